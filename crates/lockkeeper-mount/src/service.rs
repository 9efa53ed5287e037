//! The lock manager that serves a mount: lockkeeper's own.
//!
//! # Owners and processes
//! The mount's owners have numbers that are given out once, and these are the library's owners: a process
//! is `ProcessId(number)`, an open file description `OpenFileId(number)`. So no lock ever becomes a
//! stranger's, whatever the kernel's values do. Which process took a lock is kept with the lock
//! (`taken_by`), for queries and listings alone, and goes with it.
//!
//! # Waiting
//! A request that must wait is a callback in the manager under the request's own number, and holds the
//! reply that is owed. An interrupt cancels by that number. If the grant was quicker there is nothing to
//! cancel, and success has been answered; the reply is taken out of its cell by whoever has the outcome,
//! so there is one.
//!
//! # Files
//! Each open file that was used to lock keeps its [`FileHandle`] from then until its RELEASE: a lock call
//! goes from the last used one straight to the file's own table. The manager frees a file's state with
//! its last handle, lock and waiter.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hashbrown::HashMap;
use lockkeeper::table::{BlockedBy, Request, Snapshot};
use lockkeeper::{
    CallbackId, FileHandle, LockError, LockInfo, LockManager, LockType, OpenFileId, ProcessId,
    Started, Time, Waits,
};

use crate::fs::inode::lock;
use crate::locks::{
    Conflict, DeferredReply, FileId, HandleId, IoRequest, LockClass, LockKind, LockRequest,
    LockService, OFFSET_MAX, Range, RequestId,
};
use crate::owners::{Owner, OwnerKind};
use crate::report::{
    Blocker, FileCounters, FileLocks, Held, Kind, Lock, Mode, Totals, WaitTimes, Waiting,
};
use crate::tally::{Asker, Tally};
use crate::timelines::{Timelines, Watching, unix_time};
use lockkeeper_watch::process::{Process, Uptime};
use lockkeeper_watch::timeline::{Claim, What};
use rustix::io::Errno;

/// Serves a mount's locks from a [`LockManager`].
#[derive(Debug)]
pub struct ManagerService {
    manager: LockManager,
    open: Mutex<OpenFiles>,
    timelines: Arc<Timelines>,
    tally: Arc<Tally>,
}

/// The files that were used to lock, by the open file descriptions.
#[derive(Debug, Default)]
struct OpenFiles {
    /// The one used last: most calls come in runs.
    last: Option<(HandleId, Arc<FileHandle>)>,
    all: HashMap<HandleId, Arc<FileHandle>>,
}

impl ManagerService {
    /// Serves from `manager`, which should serve nothing else: the end of the mount tears it down.
    pub fn new(manager: LockManager) -> ManagerService {
        ManagerService {
            manager,
            open: Mutex::default(),
            timelines: Arc::default(),
            tally: Arc::default(),
        }
    }

    /// Has the grants, waits and releases of a file recorded for as long as what is returned lives.
    pub fn watch(&self, file: FileId) -> Watching {
        self.timelines.watch(file, |recorder| {
            let snapshot = self.manager.file(manager_file(file)).survey();
            let (now, unix_now) = (self.manager.now(), unix_time());
            let began = |since: Time| unix_now - now.since(since).as_secs_f64();
            for granted in &snapshot.granted {
                let claim = claim_of_info(&granted.lock);
                recorder.granted(claim, pid_of(&granted.lock), began(granted.since));
            }
            let mut waiting: Vec<_> = snapshot.waiting.iter().collect();
            waiting.sort_by_key(|waiter| waiter.arrival);
            for waiter in waiting {
                let claim = claim_of_info(&waiter.lock);
                recorder.waits(claim, pid_of(&waiter.lock), began(waiter.since));
            }
        })
    }

    /// The file, and remembers it for the open file description.
    fn file(&self, file: FileId, handle: HandleId) -> Arc<FileHandle> {
        if handle == HandleId(0) {
            return Arc::new(self.manager.file(manager_file(file)));
        }
        let mut open = lock(&self.open);
        if let Some((last, file)) = &open.last
            && *last == handle
        {
            return file.clone();
        }
        let found = open
            .all
            .entry(handle)
            .or_insert_with(|| Arc::new(self.manager.file(manager_file(file))))
            .clone();
        open.last = Some((handle, found.clone()));
        found
    }

    /// Tells that a request was granted, or an unlock done.
    #[cold]
    fn tell_of(&self, request: &LockRequest, begun: Option<f64>) {
        self.timelines
            .tell(request.file, |recorder| match lock_type(request.kind) {
                Some(lock_type) => {
                    let claim = claim_of(request, lock_type);
                    recorder.granted(claim, request.pid, unix_time());
                }
                None => {
                    let claim = claim_of(request, LockType::Write);
                    recorder.released(&claim, begun.unwrap_or_else(unix_time));
                }
            });
    }

    /// What is counted of waits and refusals.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The locks and waiters of these files.
    pub(crate) fn listing_of(&self, files: &[FileId]) -> Vec<FileLocks> {
        let now = self.manager.now();
        let mut commands = Commands::new();
        let of_file = |&file: &FileId| {
            let snapshot = self.manager.file(manager_file(file)).survey();
            file_locks(file, &snapshot, now, &mut commands)
        };
        files.iter().map(of_file).collect()
    }

    /// Has a request wait. `start` is given what to do once it has an outcome.
    fn wait(
        &self,
        reply: DeferredReply,
        wait: Wait,
        start: impl FnOnce(
            CallbackId,
            Box<dyn FnOnce(Result<(), LockError>) + Send>,
        ) -> Result<Started, LockError>,
    ) {
        let id = reply.id();
        let asker = Asker {
            file: wait.file,
            pid: wait.pid,
        };
        let owed = Owed {
            reply: Arc::new(Mutex::new(Some(reply))),
            asker,
            tally: self.tally.clone(),
        };
        self.tally.begin(id, asker);
        let callback = {
            let (owed, timelines) = (owed.clone(), self.timelines.clone());
            Box::new(move |outcome| {
                let what = what_ended(&outcome);
                owed.tally.end(id);
                owed.answer(outcome);
                wait.ended(&timelines, what);
            })
        };
        match start(CallbackId(id.0), callback) {
            Ok(Started::Waiting(_)) => {
                if self.timelines.are_watched() {
                    wait.began(&self.timelines, &owed.reply);
                }
            }
            Ok(Started::Granted) => {
                self.tally.forget(id);
                owed.answer(Ok(()));
                wait.ended(&self.timelines, What::Granted);
            }
            Err(error) => {
                self.tally.forget(id);
                owed.answer(Err(error));
            }
        }
    }
}

/// A request that may have to wait, as it is recorded.
#[derive(Clone, Copy)]
struct Wait {
    file: FileId,
    claim: Claim,
    pid: u32,
}

impl Wait {
    /// It waits. Unless the reply has been sent meanwhile: then its end may have been told before.
    #[cold]
    fn began(&self, timelines: &Timelines, owed: &Mutex<Option<DeferredReply>>) {
        let owed = lock(owed);
        if owed.is_some() {
            timelines.tell(self.file, |recorder| {
                recorder.waits(self.claim, self.pid, unix_time());
            });
        }
    }

    fn ended(&self, timelines: &Timelines, what: What) {
        if timelines.are_watched() {
            timelines.tell(self.file, |recorder| {
                recorder.wait_ends(self.claim, self.pid, what, unix_time());
            });
        }
    }
}

fn what_ended(outcome: &Result<(), LockError>) -> What {
    match outcome {
        Ok(()) => What::Granted,
        Err(error) if errno_of(error) == Errno::INTR => What::Cancelled,
        Err(_) => What::Refused,
    }
}

/// The reply to a request that may have to wait.
#[derive(Clone)]
struct Owed {
    reply: Arc<Mutex<Option<DeferredReply>>>,
    asker: Asker,
    tally: Arc<Tally>,
}

impl Owed {
    /// Sends the reply, unless somebody has.
    fn answer(&self, outcome: Result<(), LockError>) {
        let reply = lock(&self.reply).take();
        if let Some(reply) = reply {
            reply.send(outcome.map_err(|error| refuse(&self.tally, self.asker, &error)));
        }
    }
}

impl LockService for ManagerService {
    fn getlk(&self, query: &LockRequest) -> Result<Option<Conflict>, Errno> {
        let file = self.file(query.file, query.handle);
        let found = match lock_type(query.kind) {
            None => file
                .records(owner_of(query.owner))
                .test_own(range_of(query.range)?),
            Some(kind) if query.class == LockClass::Flock => {
                file.flock(OpenFileId(query.owner.id)).test(kind)
            }
            Some(kind) => file
                .records(owner_of(query.owner))
                .test(kind, range_of(query.range)?),
        };
        Ok(found.map(|found| Conflict {
            kind: lock_kind(found.lock_type),
            range: Range {
                start: found.range.start(),
                end: found.range.end(),
            },
            pid: pid_of(&found),
        }))
    }

    fn setlk(&self, request: &LockRequest) -> Result<(), Errno> {
        let file = self.file(request.file, request.handle);
        // A release wakes others within the call: it is told as of before.
        let begun =
            (request.kind == LockKind::Unlock && self.timelines.are_watched()).then(unix_time);
        let result = match request_of(request)? {
            Some(wanted) => file.try_lock(&wanted),
            None if request.class == LockClass::Flock => {
                file.flock(OpenFileId(request.owner.id)).unlock();
                Ok(())
            }
            None => file.unlock(&owner_of(request.owner), range_of(request.range)?),
        };
        if self.timelines.are_watched() && result.is_ok() {
            self.tell_of(request, begun);
        }
        result.map_err(|error| refuse(&self.tally, asker(request), &error))
    }

    fn setlkw(&self, request: &LockRequest, reply: DeferredReply) {
        let (wanted, lock_type, range) = match (
            request_of(request),
            lock_type(request.kind),
            range_of(request.range),
        ) {
            (Ok(Some(wanted)), Some(lock_type), Ok(range)) => (wanted, lock_type, range),
            (Err(errno), ..) | (.., Err(errno)) => return reply.send(Err(errno)),
            // An unlock never waits.
            _ => return reply.send(self.setlk(request)),
        };
        let file = self.file(request.file, request.handle);
        match file.try_lock(&wanted) {
            Err(LockError::Conflict(_) | LockError::Queued(_)) => {}
            result => {
                if self.timelines.are_watched() && result.is_ok() {
                    self.tell_of(request, None);
                }
                let refused = |error| refuse(&self.tally, asker(request), &error);
                return reply.send(result.map_err(refused));
            }
        }
        let taker = ProcessId(request.pid.into());
        let wait = Wait {
            file: request.file,
            claim: claim_of(request, lock_type),
            pid: request.pid,
        };
        self.wait(reply, wait, |id, callback| match request.class {
            LockClass::Flock => file
                .flock(OpenFileId(request.owner.id))
                .taken_by(taker)
                .lock_callback(id, lock_type, callback),
            LockClass::Posix | LockClass::Ofd => file
                .records(owner_of(request.owner))
                .taken_by(taker)
                .lock_callback(id, lock_type, range, callback),
        });
    }

    fn interrupt(&self, id: RequestId) {
        // If nothing waits any more, the outcome that was quicker has been answered.
        let _ = self.manager.cancel_callback(CallbackId(id.0));
    }

    fn close_owner(&self, file: FileId, owner: Owner) {
        let begun = self.timelines.are_watched().then(unix_time);
        self.manager
            .file(manager_file(file))
            .release_owner(&owner_of(owner), Waits::Keep);
        if self.timelines.are_watched() {
            self.timelines.tell(file, |recorder| {
                recorder.owner_gone(owner.id, begun.unwrap_or_else(unix_time));
            });
        }
    }

    fn released(&self, handle: HandleId) {
        let mut open = lock(&self.open);
        let last = open.last.take_if(|(last, _)| *last == handle);
        let gone = open.all.remove(&handle);
        drop(open);
        // Perhaps the end of the file's state: not under the mutex.
        drop((last, gone));
    }

    /// As Linux did it: allowed if the locks of all others but the open file description allow it, or
    /// those of all others but the process.
    fn admit_io(&self, io: &IoRequest, admission: DeferredReply) {
        let access = match io.write {
            true => LockType::Write,
            false => LockType::Read,
        };
        let range = match range_of(io.range) {
            Ok(range) => range,
            Err(errno) => return admission.send(Err(errno)),
        };
        let file = self.file(io.file, io.handle);
        let asker = Asker {
            file: io.file,
            pid: io.tid,
        };
        // Numbers of owners count up from 1, so this one is nobody's.
        let nobody = Owner {
            kind: OwnerKind::OpenFile,
            id: u64::MAX - io.id.0,
        };
        let mut wait_as = io.process.or(io.open_file).unwrap_or(nobody);
        for identity in [
            io.open_file,
            io.process,
            (wait_as == nobody).then_some(nobody),
        ]
        .into_iter()
        .flatten()
        {
            match file.records(owner_of(identity)).check_io(access, range) {
                Ok(()) => return admission.send(Ok(())),
                Err(LockError::Conflict(other) | LockError::Queued(other)) => {
                    // Whoever is held up by himself alone must not wait for himself.
                    if let Some(open_file) = io.open_file
                        && Some(identity) == io.process
                        && other.owner == owner_of(open_file)
                    {
                        wait_as = open_file;
                    }
                }
                Err(error) => return admission.send(Err(refuse(&self.tally, asker, &error))),
            }
        }
        if io.nonblocking {
            return admission.send(Err(Errno::AGAIN));
        }
        let records = file
            .records(owner_of(wait_as))
            .taken_by(ProcessId(io.tid.into()));
        let wait = Wait {
            file: io.file,
            claim: Claim {
                owner: wait_as.id,
                kind: Kind::Access,
                start: io.range.start,
                end: last_byte(io.range.end),
                mode: mode_of(access),
            },
            pid: io.tid,
        };
        self.wait(admission, wait, |id, callback| {
            records.wait_for_io_callback(id, access, range, callback)
        });
    }

    fn listing(&self) -> Vec<FileLocks> {
        let now = self.manager.now();
        let mut commands = Commands::new();
        self.manager
            .snapshot()
            .into_iter()
            .map(|listing| {
                let file = FileId {
                    dev: listing.file.device,
                    ino: listing.file.inode,
                };
                let counters = listing.counters;
                FileLocks {
                    counters: FileCounters {
                        acquisitions: counters.acquisitions,
                        contended: counters.contended,
                        wake_ups: counters.wake_ups,
                        requeues: counters.requeues,
                        deadlocks: counters.deadlocks,
                        cancels: counters.cancels,
                    },
                    ..file_locks(file, &listing.snapshot, now, &mut commands)
                }
            })
            .collect()
    }

    fn totals(&self) -> Totals {
        let counters = self.manager.counters();
        Totals {
            acquisitions: counters.acquisitions,
            contended: counters.contended,
            wake_ups: counters.wake_ups,
            requeues: counters.requeues,
            deadlocks: counters.deadlocks,
            cancels: counters.cancels,
            limit_hits: self.tally.limit_hits(),
        }
    }

    fn wait_times(&self) -> WaitTimes {
        self.tally.wait_times()
    }

    fn shut_down(&self) {
        for listing in self.manager.snapshot() {
            self.manager.file(listing.file).tear_down();
        }
        *lock(&self.open) = OpenFiles::default();
    }
}

fn file_locks(file: FileId, snapshot: &Snapshot, now: Time, commands: &mut Commands) -> FileLocks {
    let seconds = |since: Time| Duration::as_secs_f64(&now.since(since));
    FileLocks {
        locks: snapshot
            .granted
            .iter()
            .map(|granted| {
                let age = seconds(granted.since);
                Held {
                    lock: shown(&granted.lock, age, commands),
                    held_for: Some(age),
                    breaking: granted.breaking.is_some(),
                }
            })
            .collect(),
        waiters: snapshot
            .waiting
            .iter()
            .map(|waiter| Waiting {
                lock: shown(&waiter.lock, seconds(waiter.since), commands),
                waits_for: Some(seconds(waiter.since)),
                overtaken: waiter.overtaken,
                depth: waiter.depth,
                blocked_by: match waiter.blocked_by {
                    BlockedBy::Lock(index) => Some(Blocker::Lock(index)),
                    BlockedBy::Waiter(index) => Some(Blocker::Waiter(index)),
                    BlockedBy::Nothing => None,
                },
            })
            .collect(),
        ..FileLocks::new(file.dev, file.ino)
    }
}

fn shown(info: &LockInfo, age: f64, commands: &mut Commands) -> Lock {
    let pid = pid_of(info);
    let end = info.range.end();
    Lock {
        kind: kind_of(info),
        mode: mode_of(info.lock_type),
        start: info.range.start(),
        end: (end < OFFSET_MAX).then_some(end),
        pid,
        command: commands.of(pid, age),
        owner: owner_number(info),
    }
}

/// A request as it is recorded.
fn claim_of(request: &LockRequest, lock_type: LockType) -> Claim {
    Claim {
        owner: request.owner.id,
        kind: match request.class {
            LockClass::Posix => Kind::Posix,
            LockClass::Ofd => Kind::Ofd,
            LockClass::Flock => Kind::Flock,
        },
        start: request.range.start,
        end: last_byte(request.range.end),
        mode: mode_of(lock_type),
    }
}

/// A lock or request of a snapshot as it is recorded.
fn claim_of_info(info: &LockInfo) -> Claim {
    Claim {
        owner: owner_number(info),
        kind: kind_of(info),
        start: info.range.start(),
        end: last_byte(info.range.end()),
        mode: mode_of(info.lock_type),
    }
}

fn last_byte(end: u64) -> u64 {
    if end < OFFSET_MAX { end } else { u64::MAX }
}

fn kind_of(info: &LockInfo) -> Kind {
    match info.kind {
        lockkeeper::LockKind::Posix => Kind::Posix,
        lockkeeper::LockKind::Ofd => Kind::Ofd,
        lockkeeper::LockKind::Flock => Kind::Flock,
        lockkeeper::LockKind::Access => Kind::Access,
        lockkeeper::LockKind::Lease => Kind::Lease,
        lockkeeper::LockKind::Delegation => Kind::Delegation,
    }
}

fn owner_number(info: &LockInfo) -> u64 {
    match &info.owner {
        lockkeeper::Owner::Process(ProcessId(id)) | lockkeeper::Owner::OpenFile(OpenFileId(id)) => {
            *id
        }
        lockkeeper::Owner::Remote(_) => 0,
    }
}

/// The programs of processes, each looked up once.
struct Commands {
    known: HashMap<u32, Option<Process>>,
    uptime: Uptime,
}

impl Commands {
    fn new() -> Commands {
        Commands {
            known: HashMap::new(),
            uptime: Uptime::now(),
        }
    }

    /// The program of who did something `age` seconds ago; `None` if it has ended, also where another process has
    /// its number now.
    fn of(&mut self, pid: u32, age: f64) -> Option<String> {
        let look = || Process::of(pid);
        let process = self.known.entry(pid).or_insert_with(look).as_ref()?;
        (!self.uptime.began_after(process, age)).then(|| process.command.clone())
    }
}

/// The process that took it, in the server's pid namespace; 0 if it is not visible there.
fn pid_of(info: &LockInfo) -> u32 {
    u32::try_from(info.taken_by.0).unwrap_or(0)
}

fn manager_file(file: FileId) -> lockkeeper::FileId {
    lockkeeper::FileId::new(file.dev, file.ino)
}

fn owner_of(owner: Owner) -> lockkeeper::Owner {
    match owner.kind {
        OwnerKind::Process => ProcessId(owner.id).into(),
        OwnerKind::OpenFile => OpenFileId(owner.id).into(),
    }
}

fn range_of(range: Range) -> Result<lockkeeper::Range, Errno> {
    lockkeeper::Range::new(range.start, range.end)
        .map_err(|error| Errno::from_raw_os_error(error.errno().raw()))
}

fn lock_type(kind: LockKind) -> Option<LockType> {
    match kind {
        LockKind::Read => Some(LockType::Read),
        LockKind::Write => Some(LockType::Write),
        LockKind::Unlock => None,
    }
}

fn lock_kind(lock_type: LockType) -> LockKind {
    match lock_type {
        LockType::Read => LockKind::Read,
        LockType::Write => LockKind::Write,
    }
}

fn mode_of(lock_type: LockType) -> Mode {
    match lock_type {
        LockType::Read => Mode::Read,
        LockType::Write => Mode::Write,
    }
}

/// The library's request; `None` for an unlock.
fn request_of(request: &LockRequest) -> Result<Option<Request>, Errno> {
    let Some(kind) = lock_type(request.kind) else {
        return Ok(None);
    };
    let wanted = match request.class {
        LockClass::Flock => Request::flock(OpenFileId(request.owner.id), kind),
        LockClass::Posix | LockClass::Ofd => {
            Request::record(owner_of(request.owner), kind, range_of(request.range)?)
        }
    };
    Ok(Some(wanted.taken_by(ProcessId(request.pid.into()))))
}

fn asker(request: &LockRequest) -> Asker {
    Asker {
        file: request.file,
        pid: request.pid,
    }
}

/// The errno for a request that is refused, and a note of the refusals that somebody may want to see.
fn refuse(tally: &Tally, asker: Asker, error: &LockError) -> Errno {
    let errno = errno_of(error);
    match errno {
        Errno::NOLCK => tally.limit(asker, || error.to_string()),
        Errno::DEADLK => tally.deadlock(asker, || error.to_string()),
        _ => {}
    }
    errno
}

fn errno_of(error: &LockError) -> Errno {
    match error {
        // Two requests of one number: not from this kernel.
        LockError::AlreadyWaiting(_) => Errno::IO,
        error => Errno::from_raw_os_error(error.errno().raw()),
    }
}
