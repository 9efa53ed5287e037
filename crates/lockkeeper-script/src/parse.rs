//! The parser of lock scripts.
//!
//! A line is cut into words once; each argument then says what it wants of the next word. The first word
//! that does not fit ends the parse with its place and with what would have fitted, so that nothing of
//! a script with a mistake is ever run.

use std::fmt;

use crate::script::*;

/// Where a text is no script, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ParseError {
    /// Where the script came from.
    pub source_name: String,
    /// The line, from 1.
    pub line: usize,
    /// The column of the word, in characters from 1.
    pub column: usize,
    /// The word; `None` where the line ended too early.
    pub word: Option<String>,
    /// What was expected in its place.
    pub expected: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            source_name,
            line,
            column,
            expected,
            ..
        } = self;
        write!(f, "{source_name}:{line}:{column}: expected {expected}, ")?;
        match &self.word {
            Some(word) => write!(f, "found `{word}`"),
            None => f.write_str("but the line ends here"),
        }
    }
}

impl Script {
    /// The script that `text` is. `source` names it in messages; a report takes its file stem as the
    /// script's [name](Script::name).
    ///
    /// # Errors
    /// The first word that the grammar does not have at its place.
    pub fn parse(source: &str, text: &str) -> Result<Self, ParseError> {
        let lines = text
            .lines()
            .enumerate()
            .map(|(index, line)| {
                parse_line(line).map_err(|Misfit { at, expected }| ParseError {
                    source_name: source.to_owned(),
                    line: index + 1,
                    column: line[..at.unwrap_or(end_of_words(line))].chars().count() + 1,
                    word: at.map(|at| word_at(line, at).to_owned()),
                    expected,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            source: source.to_owned(),
            lines,
        })
    }
}

/// A word that did not fit: the byte at which it begins, or `None` for the end of the line.
struct Misfit {
    at: Option<usize>,
    expected: String,
}

type Fits<T> = Result<T, Misfit>;

fn end_of_words(line: &str) -> usize {
    let code = line.find('#').map_or(line, |at| &line[..at]);
    code.trim_end().len()
}

fn word_at(line: &str, at: usize) -> &str {
    line[at..]
        .split(|c: char| c.is_whitespace() || c == ';' || c == '#')
        .next()
        .filter(|word| !word.is_empty())
        .unwrap_or_else(|| {
            line[at..]
                .chars()
                .next()
                .map_or("", |c| &line[at..at + c.len_utf8()])
        })
}

fn parse_line(line: &str) -> Fits<Line> {
    let (code, comment) = match line.find('#') {
        None => (line, None),
        Some(at) => (&line[..at], Some(line[at + 1..].trim().to_owned())),
    };
    let mut words = Words { code, at: 0 };
    let statement = if words.is_empty() {
        None
    } else {
        Some(parse_statement(&mut words)?)
    };
    Ok(Line { statement, comment })
}

fn parse_statement(words: &mut Words<'_>) -> Fits<Statement> {
    let step = parse_step(words)?;
    let expected = match words.peek() {
        Some("=>") => {
            words.next();
            parse_outcome(words, &step)?
        }
        Some(_) => return words.misfit("`=>` or the end of the line"),
        None => match step.usual() {
            Some(usual) => usual,
            None => return words.misfit("`=>` and a list, or `none`"),
        },
    };
    if !words.is_empty() {
        return words.misfit("the end of the line");
    }
    Ok(Statement { step, expected })
}

fn parse_step(words: &mut Words<'_>) -> Fits<Step> {
    match words.peek() {
        Some("break-time") => {
            words.next();
            words.number("a number of seconds").map(Step::BreakTime)
        }
        Some("pass") => {
            words.next();
            words.number("a number of seconds").map(Step::Pass)
        }
        Some("held") => {
            words.next();
            words.file().map(Step::Held)
        }
        Some("waiting") => {
            words.next();
            words.file().map(Step::Waiting)
        }
        _ => {
            let actor = words.actor("an actor, `held`, `waiting`, `break-time` or `pass`")?;
            let verb = parse_verb(words)?;
            Ok(Step::Act { actor, verb })
        }
    }
}

const VERBS: &str = "a verb (open, opennb, dup, close, seek, truncate, resize, link, fork, thread, \
    exec, exit, kill, signal, posix, posix?, ofd, ofd?, flock, lease, lease?, done, blocked, notified)";

fn parse_verb(words: &mut Words<'_>) -> Fits<Verb> {
    let begin = words.place();
    let verb = match words.next() {
        Some(word @ ("open" | "opennb")) => Verb::Open {
            fd: words.descriptor()?,
            file: words.file()?,
            access: words.one_of(
                "`r`, `w` or `rw`",
                &[
                    ("r", Access::Read),
                    ("w", Access::Write),
                    ("rw", Access::ReadWrite),
                ],
            )?,
            nonblock: word == "opennb",
        },
        Some("dup") => Verb::Dup {
            fd: words.descriptor()?,
            new: words.descriptor()?,
        },
        Some("close") => Verb::Close {
            fd: words.descriptor()?,
        },
        Some("seek") => Verb::Seek {
            fd: words.descriptor()?,
            offset: words.number("an offset")?,
        },
        Some("truncate") => Verb::Truncate {
            fd: words.descriptor()?,
            size: words.number("a size")?,
        },
        Some("resize") => Verb::Resize {
            file: words.file()?,
            size: words.number("a size")?,
        },
        Some("link") => Verb::Link {
            file: words.file()?,
            new: words.file()?,
        },
        Some("fork") => Verb::Fork {
            child: words.actor("the name of the child")?,
        },
        Some("thread") => Verb::Thread {
            thread: words.actor("the name of the thread")?,
        },
        Some("exec") => Verb::Exec,
        Some("exit") => Verb::Exit,
        Some("kill") => Verb::Kill,
        Some("signal") => Verb::Signal {
            restart: words.option("restart"),
        },
        Some("posix") => parse_set(words, RecordKind::Posix)?,
        Some("ofd") => parse_set(words, RecordKind::Ofd)?,
        Some("posix?") => Verb::Query {
            record: parse_record(words, RecordKind::Posix)?,
        },
        Some("ofd?") => Verb::Query {
            record: parse_record(words, RecordKind::Ofd)?,
        },
        Some("flock") => Verb::Flock {
            fd: words.descriptor()?,
            lock_type: words.one_of(
                "`shared`, `exclusive` or `unlock`",
                &[
                    ("shared", LockType::Read),
                    ("exclusive", LockType::Write),
                    ("unlock", LockType::Unlock),
                ],
            )?,
            wait: words.option("wait"),
        },
        Some("lease") => Verb::Lease {
            fd: words.descriptor()?,
            lock_type: words.lock_type()?,
        },
        Some("lease?") => Verb::LeaseQuery {
            fd: words.descriptor()?,
        },
        Some("done") => Verb::Done,
        Some("blocked") => Verb::Blocked,
        Some("notified") => Verb::Notified,
        _ => {
            return Err(Misfit {
                at: begin,
                expected: VERBS.to_owned(),
            });
        }
    };
    Ok(verb)
}

fn parse_set(words: &mut Words<'_>, kind: RecordKind) -> Fits<Verb> {
    Ok(Verb::Set {
        record: parse_record(words, kind)?,
        wait: words.option("wait"),
    })
}

fn parse_record(words: &mut Words<'_>, kind: RecordKind) -> Fits<Record> {
    Ok(Record {
        kind,
        fd: words.descriptor()?,
        lock_type: words.fit("`read`, `write` or `unlock`", |word| {
            match word.strip_prefix("type:") {
                Some(number) => number.parse().ok().map(RequestType::Raw),
                None => lock_type(word).map(RequestType::Known),
            }
        })?,
        range: words.fit("a range (START,LEN, cur:START,LEN or end:START,LEN)", range)?,
        pid: match words.peek().and_then(|word| word.strip_prefix("pid:")) {
            None => None,
            Some(number) => match number.parse() {
                Ok(pid) => {
                    words.next();
                    Some(pid)
                }
                Err(_) => return words.misfit("`pid:` and a number"),
            },
        },
    })
}

fn lock_type(word: &str) -> Option<LockType> {
    Some(match word {
        "read" => LockType::Read,
        "write" => LockType::Write,
        "unlock" => LockType::Unlock,
        _ => return None,
    })
}

fn range(word: &str) -> Option<Range> {
    let (base, rest) = if let Some(rest) = word.strip_prefix("cur:") {
        (Base::Current, rest)
    } else if let Some(rest) = word.strip_prefix("end:") {
        (Base::End, rest)
    } else if let Some(rest) = word.strip_prefix("whence:") {
        let (whence, rest) = rest.split_once(':')?;
        (Base::Raw(whence.parse().ok()?), rest)
    } else {
        (Base::Start, word)
    };
    let (start, len) = rest.split_once(',')?;
    Some(Range {
        base,
        start: start.parse().ok()?,
        len: len.parse().ok()?,
    })
}

/// A range as a result shows it: neither part is negative.
fn span(word: &str) -> Option<Span> {
    let (start, len) = word.split_once(',')?;
    let (start, len): (i64, i64) = (start.parse().ok()?, len.parse().ok()?);
    (start >= 0 && len >= 0).then_some(Span { start, len })
}

fn parse_outcome(words: &mut Words<'_>, step: &Step) -> Fits<Outcome> {
    match step {
        Step::BreakTime(_) => words.fit("`ok` or an errno", ok_or_errno),
        Step::Pass(_) => words.fit("`ok`", |word| (word == "ok").then_some(Outcome::Ok)),
        Step::Held(_) | Step::Waiting(_) => parse_listing(words),
        Step::Act { verb, .. } => match verb {
            Verb::Query { .. } => parse_answer(words),
            Verb::LeaseQuery { .. } => words.fit("`read`, `write`, `unlock` or an errno", |word| {
                lock_type(word).map(Outcome::Lease).or_else(|| errno(word))
            }),
            Verb::Notified => words.fit("`ok` or `none`", |word| match word {
                "ok" => Some(Outcome::Ok),
                "none" => Some(Outcome::None),
                _ => None,
            }),
            Verb::Blocked => words.fit("`ok`", |word| (word == "ok").then_some(Outcome::Blocked)),
            verb if verb.may_block() => words.fit("`ok`, `blocked` or an errno", |word| {
                (word == "blocked")
                    .then_some(Outcome::Blocked)
                    .or_else(|| ok_or_errno(word))
            }),
            _ => words.fit("`ok` or an errno", ok_or_errno),
        },
    }
}

fn errno(word: &str) -> Option<Outcome> {
    Errno::named(word).map(Outcome::Error)
}

fn ok_or_errno(word: &str) -> Option<Outcome> {
    (word == "ok")
        .then_some(Outcome::Ok)
        .or_else(|| errno(word))
}

fn parse_answer(words: &mut Words<'_>) -> Fits<Outcome> {
    if words.option("free") {
        return Ok(Outcome::Free);
    }
    if let Some(outcome) = words.peek().and_then(errno) {
        words.next();
        return Ok(outcome);
    }
    let lock_type = words.fit("`free`, an errno, or `read` or `write`", |word| {
        lock_type(word).filter(|lock_type| *lock_type != LockType::Unlock)
    })?;
    let span = words.fit("START,LEN", span)?;
    words.fit("`by`", |word| (word == "by").then_some(()))?;
    let by = if words.option("ofd") {
        Holder::Ofd
    } else {
        Holder::Actor(words.actor("an actor or `ofd`")?)
    };
    Ok(Outcome::Conflict {
        lock_type,
        span,
        by,
    })
}

fn parse_listing(words: &mut Words<'_>) -> Fits<Outcome> {
    if words.option("none") {
        return Ok(Outcome::Listing(Vec::new()));
    }
    let mut items = Vec::new();
    loop {
        let kind = words.one_of(
            if items.is_empty() {
                "`none`, or `posix`, `ofd`, `flock` or `lease`"
            } else {
                "`posix`, `ofd`, `flock` or `lease`"
            },
            &[
                ("posix", ItemKind::Posix),
                ("ofd", ItemKind::Ofd),
                ("flock", ItemKind::Flock),
                ("lease", ItemKind::Lease),
            ],
        )?;
        let lock_type = words.lock_type()?;
        let span = match kind {
            ItemKind::Posix | ItemKind::Ofd => Some(words.fit("START,LEN", span)?),
            ItemKind::Flock | ItemKind::Lease => None,
        };
        items.push(Item {
            kind,
            lock_type,
            span,
            actor: words.actor("an actor")?,
        });
        if !words.option(";") {
            return Ok(Outcome::Listing(items));
        }
    }
}

/// The words of a line that are still to be read. `;` is a word of its own.
struct Words<'a> {
    code: &'a str,
    at: usize,
}

impl<'a> Words<'a> {
    fn skip_blanks(&mut self) {
        let rest = &self.code[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn is_empty(&mut self) -> bool {
        self.peek().is_none()
    }

    /// Where the next word begins.
    fn place(&mut self) -> Option<usize> {
        self.peek().map(|_| self.at)
    }

    fn peek(&mut self) -> Option<&'a str> {
        self.skip_blanks();
        let rest = &self.code[self.at..];
        if rest.starts_with(';') {
            return Some(";");
        }
        let end = rest
            .find(|c: char| c.is_whitespace() || c == ';')
            .unwrap_or(rest.len());
        (end > 0).then(|| &rest[..end])
    }

    fn next(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        self.at += word.len();
        Some(word)
    }

    fn misfit<T>(&mut self, expected: &str) -> Fits<T> {
        Err(Misfit {
            at: self.place(),
            expected: expected.to_owned(),
        })
    }

    /// The next word, as `fits` understands it.
    fn fit<T>(&mut self, expected: &str, fits: impl FnOnce(&'a str) -> Option<T>) -> Fits<T> {
        match self.peek().and_then(fits) {
            None => self.misfit(expected),
            Some(value) => {
                self.next();
                Ok(value)
            }
        }
    }

    /// Takes the next word if it is `word`.
    fn option(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        if found {
            self.next();
        }
        found
    }

    fn one_of<T: Copy>(&mut self, expected: &str, table: &[(&str, T)]) -> Fits<T> {
        self.fit(expected, |word| {
            table
                .iter()
                .find(|(name, _)| *name == word)
                .map(|(_, value)| *value)
        })
    }

    fn number<T: std::str::FromStr>(&mut self, expected: &str) -> Fits<T> {
        self.fit(expected, |word| word.parse().ok())
    }

    fn lock_type(&mut self) -> Fits<LockType> {
        self.fit("`read`, `write` or `unlock`", lock_type)
    }

    fn actor(&mut self, expected: &str) -> Fits<Actor> {
        self.fit(expected, |word| {
            Actor::new(word).filter(|actor| !RESERVED.contains(&actor.as_str()))
        })
    }

    fn descriptor(&mut self) -> Fits<Descriptor> {
        self.fit("a descriptor (a word)", Descriptor::new)
    }

    fn file(&mut self) -> Fits<FileName> {
        self.fit("a file (a word)", FileName::new)
    }
}
