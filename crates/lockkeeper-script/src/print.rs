//! The printed form of scripts: what it prints parses to what was printed.

use std::fmt::{Display, Formatter, Result};

use crate::script::*;

impl Display for Script {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl Display for Line {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if let Some(statement) = &self.statement {
            write!(f, "{statement}")?;
        }
        match (&self.statement, &self.comment) {
            (_, None) => Ok(()),
            (Some(_), Some(comment)) => write!(f, "  # {comment}"),
            (None, Some(comment)) if comment.is_empty() => f.write_str("#"),
            (None, Some(comment)) => write!(f, "# {comment}"),
        }
    }
}

impl Display for Statement {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}", self.step)?;
        if self.step.usual().as_ref() == Some(&self.expected) {
            return Ok(());
        }
        write!(f, "  => {}", self.expected)
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Act { actor, verb } => write!(f, "{actor} {verb}"),
            Self::BreakTime(seconds) => write!(f, "break-time {seconds}"),
            Self::Pass(seconds) => write!(f, "pass {seconds}"),
            Self::Held(file) => write!(f, "held {file}"),
            Self::Waiting(file) => write!(f, "waiting {file}"),
        }
    }
}

fn waits(wait: bool) -> &'static str {
    if wait { " wait" } else { "" }
}

impl Display for Verb {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Open {
                fd,
                file,
                access,
                nonblock,
            } => {
                let verb = if *nonblock { "opennb" } else { "open" };
                write!(f, "{verb} {fd} {file} {access}")
            }
            Self::Dup { fd, new } => write!(f, "dup {fd} {new}"),
            Self::Close { fd } => write!(f, "close {fd}"),
            Self::Seek { fd, offset } => write!(f, "seek {fd} {offset}"),
            Self::Truncate { fd, size } => write!(f, "truncate {fd} {size}"),
            Self::Resize { file, size } => write!(f, "resize {file} {size}"),
            Self::Link { file, new } => write!(f, "link {file} {new}"),
            Self::Fork { child } => write!(f, "fork {child}"),
            Self::Thread { thread } => write!(f, "thread {thread}"),
            Self::Exec => f.write_str("exec"),
            Self::Exit => f.write_str("exit"),
            Self::Kill => f.write_str("kill"),
            Self::Signal { restart: false } => f.write_str("signal"),
            Self::Signal { restart: true } => f.write_str("signal restart"),
            Self::Set { record, wait } => {
                write!(f, "{} {record}{}", record.kind, waits(*wait))
            }
            Self::Query { record } => write!(f, "{}? {record}", record.kind),
            Self::Flock {
                fd,
                lock_type,
                wait,
            } => {
                let operation = match lock_type {
                    LockType::Read => "shared",
                    LockType::Write => "exclusive",
                    LockType::Unlock => "unlock",
                };
                write!(f, "flock {fd} {operation}{}", waits(*wait))
            }
            Self::Lease { fd, lock_type } => write!(f, "lease {fd} {lock_type}"),
            Self::LeaseQuery { fd } => write!(f, "lease? {fd}"),
            Self::Done => f.write_str("done"),
            Self::Blocked => f.write_str("blocked"),
            Self::Notified => f.write_str("notified"),
        }
    }
}

impl Display for Access {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Self::Read => "r",
            Self::Write => "w",
            Self::ReadWrite => "rw",
        })
    }
}

impl Display for Record {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} {} {}", self.fd, self.lock_type, self.range)?;
        match self.pid {
            None => Ok(()),
            Some(pid) => write!(f, " pid:{pid}"),
        }
    }
}

impl Display for RecordKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Self::Posix => "posix",
            Self::Ofd => "ofd",
        })
    }
}

impl Display for LockType {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Unlock => "unlock",
        })
    }
}

impl Display for RequestType {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Known(lock_type) => write!(f, "{lock_type}"),
            Self::Raw(number) => write!(f, "type:{number}"),
        }
    }
}

impl Display for Range {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.base {
            Base::Start => {}
            Base::Current => f.write_str("cur:")?,
            Base::End => f.write_str("end:")?,
            Base::Raw(whence) => write!(f, "whence:{whence}:")?,
        }
        write!(f, "{},{}", self.start, self.len)
    }
}

impl Display for Span {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{},{}", self.start, self.len)
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Ok => f.write_str("ok"),
            Self::Error(errno) => write!(f, "{errno}"),
            Self::Blocked => f.write_str("blocked"),
            Self::Free => f.write_str("free"),
            Self::Conflict {
                lock_type,
                span,
                by,
            } => write!(f, "{lock_type} {span} by {by}"),
            Self::Lease(lock_type) => write!(f, "{lock_type}"),
            Self::None => f.write_str("none"),
            Self::Listing(items) if items.is_empty() => f.write_str("none"),
            Self::Listing(items) => {
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        f.write_str("; ")?;
                    }
                    write!(f, "{item}")?;
                }
                Ok(())
            }
        }
    }
}

impl Display for Holder {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Actor(actor) => write!(f, "{actor}"),
            Self::Ofd => f.write_str("ofd"),
        }
    }
}

impl Display for Item {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} {} ", self.kind, self.lock_type)?;
        if let Some(span) = self.span {
            write!(f, "{span} ")?;
        }
        write!(f, "{}", self.actor)
    }
}

impl Display for ItemKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Self::Posix => "posix",
            Self::Ofd => "ofd",
            Self::Flock => "flock",
            Self::Lease => "lease",
        })
    }
}

impl Display for Errno {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "E{}", self.0),
        }
    }
}
