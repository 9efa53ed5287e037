//! What each verb asks of an actor.

use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::OFlags;

use super::protocol::Call;
use super::terms::*;
use super::{Carried, Directory, Open, actor};
use crate::script::*;

impl Directory {
    pub(super) fn act(&mut self, name: &Actor, verb: &Verb) -> Carried<Outcome> {
        self.be_born(name)?;
        match verb {
            Verb::Open {
                fd,
                file,
                access,
                nonblock: true,
            } => {
                let (flags, path) = self.open_arguments(file, *access)?;
                let numbers = [(flags | OFlags::NONBLOCK).bits().into()];
                let reply = self.call(name, verb, Call::Open, &numbers, &path)?;
                Ok(self.opened(name, fd, file, reply))
            }
            Verb::Open { file, access, .. } => {
                let (flags, path) = self.open_arguments(file, *access)?;
                self.call_that_may_wait(name, verb, Call::Open, &[flags.bits().into()], &path)
            }
            Verb::Dup { fd, new } => {
                let old = self.open(name, fd)?;
                let reply = self.call(name, verb, Call::Dup, &[old.number.into()], &[])?;
                if let Ok([number, ..]) = reply {
                    let twin = Open {
                        number: small(number),
                        ..old
                    };
                    self.process(name)?.descriptors.insert(new.clone(), twin);
                }
                Ok(plain(reply))
            }
            Verb::Close { fd } => {
                let number = self.open(name, fd)?.number;
                let reply = self.call(name, verb, Call::Close, &[number.into()], &[])?;
                if reply.is_ok() {
                    self.process(name)?.descriptors.remove(fd);
                }
                Ok(plain(reply))
            }
            Verb::Seek { fd, offset } => self.call_on(name, verb, fd, Call::Seek, *offset),
            Verb::Truncate { fd, size } => self.call_on(name, verb, fd, Call::Truncate, *size),
            Verb::Resize { file, size } => {
                let path = self.path(file)?;
                let path = path.as_os_str().as_bytes();
                self.call_that_may_wait(name, verb, Call::Resize, &[*size], path)
            }
            Verb::Link { file, new } => self.link(name, verb, file, new),
            Verb::Fork { child } => self.fork(name, verb, child),
            Verb::Thread { thread } => self.begin_thread(name, verb, thread),
            Verb::Exec => self.exec(name, verb),
            Verb::Exit => self.exit(name, verb),
            Verb::Kill => {
                let process = self.thread(name)?.process;
                self.kill(process).map(|()| Outcome::Ok)
            }
            Verb::Signal { restart } => {
                let signal = match restart {
                    true => actor::RESTART,
                    false => actor::INTERRUPT,
                };
                self.signal(name, signal)?;
                if *restart {
                    self.restarted(name)?;
                }
                Ok(Outcome::Ok)
            }
            Verb::Set { record, wait } => self.set(name, verb, record, *wait),
            Verb::Query { record } => self.query(name, verb, record),
            Verb::Flock {
                fd,
                lock_type,
                wait,
            } => {
                let operation = match lock_type {
                    LockType::Read => libc::LOCK_SH,
                    LockType::Write => libc::LOCK_EX,
                    LockType::Unlock => libc::LOCK_UN,
                };
                let nonblock = if *wait { 0 } else { libc::LOCK_NB };
                let number = self.open(name, fd)?.number;
                let numbers = [number.into(), (operation | nonblock).into()];
                if *wait {
                    self.call_that_may_wait(name, verb, Call::Flock, &numbers, &[])
                } else {
                    self.call(name, verb, Call::Flock, &numbers, &[]).map(plain)
                }
            }
            Verb::Lease { fd, lock_type } => {
                let number = type_number(*lock_type).into();
                self.call_on(name, verb, fd, Call::SetLease, number)
            }
            Verb::LeaseQuery { fd } => self.lease(name, verb, fd),
            Verb::Done => self.collect(name),
            Verb::Blocked => {
                self.settle(true)?;
                Ok(match &self.pending(name)?.result {
                    None => Outcome::Blocked,
                    Some(result) => result.clone(),
                })
            }
            Verb::Notified => self.notified(name, verb),
        }
    }

    /// The flags and the path for open(2) of a file, which is created where it is new.
    fn open_arguments(&mut self, file: &FileName, access: Access) -> Carried<(OFlags, Vec<u8>)> {
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::WRONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
        let path = self.create(file)?;
        Ok((flags, path.into_os_string().into_vec()))
    }

    fn link(
        &mut self,
        name: &Actor,
        verb: &Verb,
        file: &FileName,
        new: &FileName,
    ) -> Carried<Outcome> {
        let from = self.path(file)?;
        let to = self.folder.join(new.as_str());
        let paths = [from.as_os_str().as_bytes(), to.as_os_str().as_bytes()].join(&0);
        let reply = self.call(name, verb, Call::Link, &[], &paths)?;
        if reply.is_ok() {
            let mut identity = self.identity(file)?.clone();
            identity.path = to;
            self.files.insert(new.clone(), identity);
        }
        Ok(plain(reply))
    }

    fn set(&mut self, name: &Actor, verb: &Verb, record: &Record, wait: bool) -> Carried<Outcome> {
        let Open {
            number,
            description,
        } = self.open(name, &record.fd)?;
        let numbers = record_numbers(number, record, set_command(record.kind, wait));
        if wait {
            return self.call_that_may_wait(name, verb, Call::Record, &numbers, &[]);
        }
        let outcome = plain(self.call(name, verb, Call::Record, &numbers, &[])?);
        self.note_taken(name, description, record, &outcome)?;
        Ok(outcome)
    }

    fn query(&mut self, name: &Actor, verb: &Verb, record: &Record) -> Carried<Outcome> {
        let open = self.open(name, &record.fd)?;
        let number = open.number;
        let command = match record.kind {
            RecordKind::Posix => libc::F_GETLK,
            RecordKind::Ofd => libc::F_OFD_GETLK,
        };
        let numbers = record_numbers(number, record, command);
        let reply = self.call(name, verb, Call::Record, &numbers, &[])?;
        let asker = self.process(name)?.pid;
        let file = self.descriptions[open.description].file.clone();
        let file = self.identity(&file)?.clone();
        Ok(self.found(asker, &file, reply))
    }

    fn lease(&mut self, name: &Actor, verb: &Verb, fd: &Descriptor) -> Carried<Outcome> {
        let number = self.open(name, fd)?.number;
        let reply = self.call(name, verb, Call::GetLease, &[number.into()], &[])?;
        Ok(match reply {
            Ok([lease, ..]) => lock_type(lease).map_or(Outcome::None, Outcome::Lease),
            Err(errno) => error(errno),
        })
    }

    /// A break sends its signal before the opener waits or is refused, so that it is there or never will
    /// be; `strict` gives it time all the same.
    fn notified(&mut self, name: &Actor, verb: &Verb) -> Carried<Outcome> {
        let patience = match self.options.strict {
            true => self.options.settling.as_millis(),
            false => 0,
        };
        let patience = i64::try_from(patience).unwrap_or(0);
        let reply = self.call(name, verb, Call::Notified, &[patience], &[])?;
        Ok(match reply {
            Ok([0, ..]) => Outcome::None,
            Ok(_) => Outcome::Ok,
            Err(errno) => error(errno),
        })
    }
}
