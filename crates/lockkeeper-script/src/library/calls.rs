//! The calls on descriptors: what is refused before the library is asked, and what it is asked.

use lockkeeper::{LockInfo, Range, RangeError, Records, Whence};

use super::*;

impl Library {
    pub(super) fn act(&mut self, name: &Actor, verb: &Verb) -> Carried<Outcome> {
        self.be_born(name);
        match verb {
            Verb::Open { .. } | Verb::Resize { .. } => self.open_or_resize(name, verb),
            Verb::Dup { fd, new } => self.dup(name, fd, new),
            Verb::Close { fd } => self.close(name, fd),
            Verb::Seek { fd, offset } => self.seek(name, fd, *offset),
            Verb::Truncate { fd, size } => self.truncate(name, fd, *size),
            Verb::Link { file, new } => {
                let file = self.file_named(file)?;
                self.names.insert(new.clone(), file);
                Ok(Outcome::Ok)
            }
            Verb::Fork { child } => self.fork(name, child),
            Verb::Thread { thread } => self.begin_thread(name, thread),
            Verb::Exec => self.exec(name),
            Verb::Exit | Verb::Kill => self.end_process(name),
            Verb::Signal { restart } => self.signal(name, *restart),
            Verb::Set { record, wait } => self.set(name, verb, record, *wait),
            Verb::Query { record } => self.query(name, record),
            Verb::Flock {
                fd,
                lock_type,
                wait,
            } => self.flock(name, verb, fd, *lock_type, *wait),
            Verb::Lease { fd, lock_type } => self.lease(name, fd, *lock_type),
            Verb::LeaseQuery { fd } => self.lease_query(name, fd),
            Verb::Done => self.collect(name),
            Verb::Blocked => {
                let result = self.pending(name)?.result.clone();
                Ok(result.unwrap_or(Outcome::Blocked))
            }
            Verb::Notified => {
                let process = self.thread(name)?.process;
                Ok(
                    match std::mem::take(&mut self.processes[process].notified) {
                        true => Outcome::Ok,
                        false => Outcome::None,
                    },
                )
            }
        }
    }

    fn seek(&mut self, name: &Actor, fd: &Descriptor, offset: i64) -> Carried<Outcome> {
        let (_, description) = self.open(name, fd)?;
        if offset < 0 {
            return Ok(Outcome::Error(Errno::EINVAL));
        }
        self.descriptions[description].offset = offset;
        Ok(Outcome::Ok)
    }

    /// ftruncate(2), which breaks no lease: who could call it has broken them by opening the file.
    fn truncate(&mut self, name: &Actor, fd: &Descriptor, size: i64) -> Carried<Outcome> {
        let (_, description) = self.open(name, fd)?;
        let Description { access, file, .. } = self.descriptions[description];
        if size < 0 || access == Access::Read {
            return Ok(Outcome::Error(Errno::EINVAL));
        }
        self.files[file].size = size;
        Ok(Outcome::Ok)
    }

    /// The owner of such locks of the actor, ready to be asked for them.
    pub(super) fn records(
        &self,
        process: usize,
        description: usize,
        kind: RecordKind,
    ) -> Records<'_> {
        let handle = &self.file_of(description).handle;
        let records = match kind {
            RecordKind::Posix => handle.posix(process_id(process)),
            RecordKind::Ofd => handle.ofd(open_file_id(description)),
        };
        records.taken_by(process_id(process))
    }

    fn set(&mut self, name: &Actor, verb: &Verb, record: &Record, wait: bool) -> Carried<Outcome> {
        let (_, description) = self.open(name, &record.fd)?;
        let (lock_type, range) = match self.check_set(record, description) {
            Ok(checked) => checked,
            Err(errno) => return Ok(Outcome::Error(errno)),
        };
        let process = self.thread(name)?.process;
        let records = self.records(process, description, record.kind);
        let result = match lock_type {
            None => records.unlock(range),
            Some(lock_type) if wait => {
                return self.begin_wait(name, verb, description, |library, id, answer| {
                    let records = library.records(process, description, record.kind);
                    records.lock_callback(id, lock_type, range, answer)
                });
            }
            Some(lock_type) => records.try_lock(lock_type, range),
        };
        Ok(plain(result))
    }

    /// What the kernel checks before it looks for locks, in its order: the range, the type, the access
    /// mode, and that OFD calls give no pid.
    fn check_set(
        &self,
        record: &Record,
        description: usize,
    ) -> Result<(Option<lockkeeper::LockType>, Range), Errno> {
        let range = self.range(record, description)?;
        let RequestType::Known(lock_type) = record.lock_type else {
            return Err(Errno::EINVAL);
        };
        let allowed = match (lock_type, self.descriptions[description].access) {
            (LockType::Read, Access::Write) | (LockType::Write, Access::Read) => false,
            (LockType::Read | LockType::Write | LockType::Unlock, _) => true,
        };
        if !allowed {
            return Err(Errno::EBADF);
        }
        if record.kind == RecordKind::Ofd && record.pid.unwrap_or(0) != 0 {
            return Err(Errno::EINVAL);
        }
        Ok((lock_type_of(lock_type), range))
    }

    fn range(&self, record: &Record, description: usize) -> Result<Range, Errno> {
        let offset = self.descriptions[description].offset;
        let size = self.file_of(description).size;
        let whence = match record.range.base {
            Base::Start => Ok(Whence::Start),
            Base::Current => Ok(Whence::Current(offset)),
            Base::End => Ok(Whence::End(size)),
            Base::Raw(number) => Whence::from_raw(number.into(), offset, size),
        };
        whence
            .and_then(|whence| Range::from_flock(whence, record.range.start, record.range.len))
            .map_err(|error: RangeError| Errno(error.errno().raw()))
    }

    fn query(&mut self, name: &Actor, record: &Record) -> Carried<Outcome> {
        let (_, description) = self.open(name, &record.fd)?;
        let process = self.thread(name)?.process;
        let invalid = Ok(Outcome::Error(Errno::EINVAL));
        let of_own = record.lock_type == RequestType::Known(LockType::Unlock);
        if record.kind == RecordKind::Posix && of_own {
            return invalid;
        }
        let range = match self.range(record, description) {
            Ok(range) => range,
            Err(errno) => return Ok(Outcome::Error(errno)),
        };
        let RequestType::Known(lock_type) = record.lock_type else {
            return invalid;
        };
        if record.kind == RecordKind::Ofd && record.pid.unwrap_or(0) != 0 {
            return invalid;
        }
        let records = self.records(process, description, record.kind);
        let found = match lock_type_of(lock_type) {
            None => records.test_own(range),
            Some(lock_type) => records.test(lock_type, range),
        };
        Ok(found.map_or(Outcome::Free, |lock| self.conflict(&lock)))
    }

    /// A lock in the way, as a query shows it.
    fn conflict(&self, lock: &LockInfo) -> Outcome {
        // The pid of a model process is its number.
        let pid = lock.pid(&lockkeeper::PidIsId);
        Outcome::Conflict {
            lock_type: script_type(Some(lock.lock_type)),
            span: span(lock.range),
            by: match pid {
                -1 => Holder::Ofd,
                pid => Holder::Actor(self.name_of(ProcessId(u64::try_from(pid).unwrap_or(0)))),
            },
        }
    }

    fn flock(
        &mut self,
        name: &Actor,
        verb: &Verb,
        fd: &Descriptor,
        lock_type: LockType,
        wait: bool,
    ) -> Carried<Outcome> {
        let (_, description) = self.open(name, fd)?;
        let process = self.thread(name)?.process;
        let Some(lock_type) = lock_type_of(lock_type) else {
            let handle = &self.file_of(description).handle;
            handle.flock(open_file_id(description)).unlock();
            return Ok(Outcome::Ok);
        };
        if wait {
            return self.begin_wait(name, verb, description, |library, id, answer| {
                let flock = library
                    .file_of(description)
                    .handle
                    .flock(open_file_id(description));
                let flock = flock.taken_by(process_id(process));
                flock.lock_callback(id, lock_type, answer)
            });
        }
        let flock = self
            .file_of(description)
            .handle
            .flock(open_file_id(description));
        Ok(plain(
            flock.taken_by(process_id(process)).try_lock(lock_type),
        ))
    }
}

/// The library's type of a lock to be taken; `None` to unlock.
pub(super) fn lock_type_of(lock_type: LockType) -> Option<lockkeeper::LockType> {
    match lock_type {
        LockType::Read => Some(lockkeeper::LockType::Read),
        LockType::Write => Some(lockkeeper::LockType::Write),
        LockType::Unlock => None,
    }
}

/// The script's type of a lock; `None` is unlock.
pub(super) fn script_type(lock_type: Option<lockkeeper::LockType>) -> LockType {
    match lock_type {
        Some(lockkeeper::LockType::Read) => LockType::Read,
        Some(lockkeeper::LockType::Write) => LockType::Write,
        None => LockType::Unlock,
    }
}

pub(super) fn span(range: Range) -> Span {
    let (start, len) = range.to_flock();
    Span { start, len }
}
