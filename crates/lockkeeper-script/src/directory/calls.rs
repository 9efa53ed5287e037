//! Calls and their results: those that cannot wait, and those that may.
//!
//! A call that may wait is out until it returns. Whether it is blocked, `settle` decides.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno as SystemErrno;

use super::listing::{Entry, FileIdentity};
use super::protocol::{self, Call, Reply};
use super::terms::*;
use super::{Carried, Description, Directory, Open, Pending};
use crate::executor::ExecutorError;
use crate::script::*;

impl Directory {
    pub(super) fn send(
        &self,
        name: &Actor,
        call: Call,
        numbers: &[i64],
        path: &[u8],
        passed: Option<&OwnedFd>,
    ) -> Carried<()> {
        let channel = &self.thread(name)?.channel;
        protocol::send_request(channel, call, numbers, path, passed).map_err(|_| lost(name))
    }

    /// Makes a call that cannot wait.
    pub(super) fn call(
        &mut self,
        name: &Actor,
        verb: &Verb,
        call: Call,
        numbers: &[i64],
        path: &[u8],
    ) -> Carried<Reply> {
        self.send(name, call, numbers, path, None)?;
        self.reply(name, verb)
    }

    /// Makes a call that cannot wait, with a descriptor and one argument.
    pub(super) fn call_on(
        &mut self,
        name: &Actor,
        verb: &Verb,
        fd: &Descriptor,
        call: Call,
        argument: i64,
    ) -> Carried<Outcome> {
        let number = self.open(name, fd)?.number;
        self.call(name, verb, call, &[number.into(), argument], &[])
            .map(plain)
    }

    /// The reply to a call that cannot wait. A process that does not answer is killed.
    pub(super) fn reply(&mut self, name: &Actor, verb: &Verb) -> Carried<Reply> {
        let thread = self.thread(name)?;
        let process = thread.process;
        match wait_for_reply(&thread.channel, self.options.patience) {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(lost(name)),
            Err(_) => {
                let pid = self.processes[process].pid;
                self.kill(process)?;
                Err(ExecutorError::Hung {
                    actor: name.clone(),
                    call: verb.to_string(),
                    pid,
                })
            }
        }
    }

    /// Makes a call that may wait, and returns its result or that it is blocked.
    pub(super) fn call_that_may_wait(
        &mut self,
        name: &Actor,
        verb: &Verb,
        call: Call,
        numbers: &[i64],
        path: &[u8],
    ) -> Carried<Outcome> {
        let (file, description) = match verb {
            Verb::Open { file, .. } | Verb::Resize { file, .. } => (file.clone(), None),
            _ => {
                let no_file = || ExecutorError::Misuse(format!("`{verb}` is about no file"));
                let fd = verb.descriptor().ok_or_else(no_file)?;
                let description = self.open(name, fd)?.description;
                let file = self.descriptions[description].file.clone();
                (file, Some(description))
            }
        };
        self.send(name, call, numbers, path, None)?;
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.thread_mut(name)?.pending = Some(Pending {
            verb: verb.clone(),
            file,
            description,
            arrival,
            result: None,
        });
        self.settle(true)?;
        if self.pending(name)?.result.is_some() {
            return self.collect(name);
        }
        Ok(Outcome::Blocked)
    }

    /// Takes the result of the actor's pending call, waiting for it.
    pub(super) fn collect(&mut self, name: &Actor) -> Carried<Outcome> {
        if self.pending(name)?.result.is_none() {
            match wait_for_reply(&self.thread(name)?.channel, self.options.patience) {
                Ok(Some(reply)) => self.returned(name, reply)?,
                Ok(None) => return Err(lost(name)),
                Err(_) => return Ok(Outcome::Blocked),
            }
        }
        let pending = self.thread_mut(name)?.pending.take();
        Ok(pending
            .and_then(|pending| pending.result)
            .unwrap_or(Outcome::Blocked))
    }

    /// Takes note of what a call that could wait has returned.
    pub(super) fn returned(&mut self, name: &Actor, reply: Reply) -> Carried<()> {
        let pending = self.pending(name)?;
        let (verb, description) = (pending.verb.clone(), pending.description);
        let outcome = match &verb {
            Verb::Open { fd, file, .. } => self.opened(name, fd, file, reply),
            Verb::Set { record, .. } => {
                let outcome = plain(reply);
                if let Some(description) = description {
                    self.note_taken(name, description, record, &outcome)?;
                }
                outcome
            }
            _ => plain(reply),
        };
        if let Some(pending) = &mut self.thread_mut(name)?.pending {
            pending.result = Some(outcome);
        }
        Ok(())
    }

    pub(super) fn opened(
        &mut self,
        name: &Actor,
        fd: &Descriptor,
        file: &FileName,
        reply: Reply,
    ) -> Outcome {
        if let Ok([number, ..]) = reply {
            self.descriptions.push(Description {
                file: file.clone(),
                taken: Vec::new(),
            });
            let open = Open {
                number: small(number),
                description: self.descriptions.len() - 1,
            };
            if let Ok(process) = self.process(name) {
                process.descriptors.insert(fd.clone(), open);
            }
        }
        plain(reply)
    }

    /// Keeps who set an OFD lock, which the kernel does not tell.
    pub(super) fn note_taken(
        &mut self,
        name: &Actor,
        description: usize,
        record: &Record,
        outcome: &Outcome,
    ) -> Carried<()> {
        let takes = record.lock_type != RequestType::Known(LockType::Unlock);
        if record.kind == RecordKind::Ofd && takes && *outcome == Outcome::Ok {
            let process = self.thread(name)?.process;
            let span = absolute(&record.range);
            let taken = &mut self.descriptions[description].taken;
            taken.retain(|(earlier, _)| *earlier != span);
            taken.push((span, process));
        }
        Ok(())
    }

    /// What a query by the process of `asker` on `file` found.
    pub(super) fn found(&mut self, asker: i32, file: &FileIdentity, reply: Reply) -> Outcome {
        let [l_type, _, start, len, pid, ..] = match reply {
            Ok(numbers) => numbers,
            Err(errno) => return error(errno),
        };
        let lock_type = match lock_type(l_type) {
            None | Some(LockType::Unlock) => return Outcome::Free,
            Some(lock_type) => lock_type,
        };
        let mut found = Entry {
            waiting: false,
            kind: match pid {
                -1 => ItemKind::Ofd,
                _ => ItemKind::Posix,
            },
            lock_type,
            start,
            end: match len {
                0 => i64::MAX,
                len => start.saturating_add(len - 1),
            },
            pid: (pid != -1).then(|| small(pid)),
        };
        self.listing.mend(file, asker, &mut found);
        Outcome::Conflict {
            lock_type,
            span: Span { start, len },
            by: match (found.kind, found.pid) {
                (ItemKind::Ofd, _) | (_, None) => Holder::Ofd,
                (_, Some(pid)) => Holder::Actor(self.name_of(pid)),
            },
        }
    }
}

/// Waits for a reply: `None` where the other end is gone, `Err(TIMEDOUT)` where none comes.
pub(super) fn wait_for_reply(
    channel: &OwnedFd,
    patience: Duration,
) -> Result<Option<Reply>, SystemErrno> {
    match wait_until_ready(channel, patience)? {
        true => protocol::take_reply(channel),
        false => Err(SystemErrno::TIMEDOUT),
    }
}

/// Waits for the end of a process; whether it came.
pub(super) fn wait_for_end(pidfd: &OwnedFd, patience: Duration) -> bool {
    wait_until_ready(pidfd, patience).unwrap_or(false)
}

pub(super) fn wait_until_ready(
    descriptor: &OwnedFd,
    patience: Duration,
) -> Result<bool, SystemErrno> {
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut one = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut one, Some(&timeout)) {
            Err(SystemErrno::INTR) => {}
            result => return result.map(|ready| ready > 0),
        }
    }
}
