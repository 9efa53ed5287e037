//! The boundary to the lock manager: what the mount asks of it, in the words of fcntl(2) and flock(2).
//!
//! [`LockService`] is what a lock manager implements to serve a mount. [`LockDesk`] stands before it:
//! it reads the kernel's lock messages, finds the owner each is for (see [`owners`](crate::owners)),
//! keeps the replies that are still owed, and passes on what FLUSH, RELEASE and INTERRUPT mean.
//!
//! # Threads and order
//! All methods of the service but [`LockService::admit_io`] and those that tell ([`LockService::listing`] and
//! below) are called by one thread at a time, the mount's reader, in the order in which the kernel sent the
//! requests, so a program that closes and locks again never meets its own old lock. For the same reason none
//! may block: what must wait keeps its [`DeferredReply`] and returns. Replies may be sent from any thread, also from
//! within the call that handed them over.

use std::fmt;
use std::sync::{Arc, Mutex};

use hashbrown::HashMap;
use rustix::io::Errno;

use crate::abi;
use crate::caller::CallerProbe;
use crate::device::Device;
use crate::fs::inode::lock;
use crate::owners::{Loss, Owner, OwnerKind, OwnerValue, Owners};
use crate::report::{FileLocks, Totals, WaitTimes};
use crate::request::Caller;

/// A file of the source: hard links are one file, and an unlinked one that is still open keeps its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Device number, as stat(2) shows it.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// An open file description of the mount. Numbers are given out once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandleId(pub u64);

/// The kernel's number of a request, by which an interrupt names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// The family a lock belongs to. POSIX and OFD locks conflict with each other, flocks among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockClass {
    /// A process's record lock: `F_SETLK`. Takes part in deadlock detection.
    Posix,
    /// An open file description's record lock: `F_OFD_SETLK`.
    Ofd,
    /// flock(2).
    Flock,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Shared: `F_RDLCK`, `LOCK_SH`.
    Read,
    /// Exclusive: `F_WRLCK`, `LOCK_EX`.
    Write,
    /// `F_UNLCK`, `LOCK_UN`.
    Unlock,
}

/// A byte range with inclusive ends; `end` is at most [`OFFSET_MAX`], which stands for "to the end".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
}

/// The largest file offset.
pub const OFFSET_MAX: u64 = i64::MAX as u64;

/// One lock request, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The request's number: what [`LockService::interrupt`] will name.
    pub id: RequestId,
    /// The file.
    pub file: FileId,
    /// The open file description it came through.
    pub handle: HandleId,
    /// Whose lock it is. POSIX: a process; OFD and flock: an open file description.
    pub owner: Owner,
    /// POSIX, OFD or flock.
    pub class: LockClass,
    /// Read, write or unlock.
    pub kind: LockKind,
    /// The bytes; for flock all of them.
    pub range: Range,
    /// The calling process in the server's pid namespace; 0 in unlocks and queries, or if not visible.
    pub pid: u32,
    /// The calling thread in the server's pid namespace; 0 if not visible.
    pub tid: u32,
}

/// The lock in the way of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Its kind: read or write.
    pub kind: LockKind,
    /// Its range.
    pub range: Range,
    /// Its process, in the server's pid namespace (the kernel translates it for the asker; an OFD
    /// query shows -1 whatever is said here). 0 if not known.
    pub pid: u32,
}

/// A read or write that mandatory locks may forbid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoRequest {
    /// The request's number.
    pub id: RequestId,
    /// The file.
    pub file: FileId,
    /// The calling process, if it is known to have locks. Its locks do not stand in its own way.
    pub process: Option<Owner>,
    /// The open file description, if it is known to have locks. Likewise.
    pub open_file: Option<Owner>,
    /// The bytes.
    pub range: Range,
    /// Whether it is a write (or a truncation).
    pub write: bool,
    /// `O_NONBLOCK`: answer `EAGAIN` rather than wait.
    pub nonblocking: bool,
    /// The open file description it goes through; `HandleId(0)` where it goes through none.
    pub handle: HandleId,
    /// The calling thread in the server's pid namespace; 0 if not visible.
    pub tid: u32,
}

/// A lock manager that serves a mount. See the module for threads and order.
pub trait LockService: Send + Sync + 'static {
    /// `F_GETLK`, `F_OFD_GETLK`: a lock that would stop this one, or `None`. With
    /// [`LockKind::Unlock`] (OFD only): a lock of the owner's own in the range.
    ///
    /// # Errors
    /// The errno for the caller.
    fn getlk(&self, query: &LockRequest) -> Result<Option<Conflict>, Errno>;

    /// Sets or releases a lock without waiting.
    ///
    /// # Errors
    /// `EAGAIN` if another lock is in the way, `ENOLCK` at a limit.
    fn setlk(&self, request: &LockRequest) -> Result<(), Errno>;

    /// Sets a lock, waiting for it if need be. Never an unlock.
    ///
    /// Answers `reply` once: `Ok` when granted, `EDEADLK`, `ENOLCK`, or `EINTR` after
    /// [`interrupt`](Self::interrupt). Dropping the reply says `EIO`.
    fn setlkw(&self, request: &LockRequest, reply: DeferredReply);

    /// The caller of request `id` got a signal: end the wait with `EINTR`, unless the grant has won.
    /// Only called for requests whose reply is still owed; one that is answered meanwhile is no error.
    fn interrupt(&self, id: RequestId);

    /// Drops every lock that `owner` holds on `file`: its last or any descriptor was closed. Requests
    /// of the owner that still wait go on waiting.
    fn close_owner(&self, file: FileId, owner: Owner);

    /// With mandatory locks: answers `Ok` when the locks of others allow this read or write, `EAGAIN`
    /// at once if they do not and it must not wait. Interrupted like a lock request.
    fn admit_io(&self, _io: &IoRequest, admission: DeferredReply) {
        admission.send(Ok(()));
    }

    /// The open file description is gone, after [`close_owner`](Self::close_owner) for those who had
    /// locks through it: whatever is kept for it can go.
    fn released(&self, _handle: HandleId) {}

    /// Everything held and waited for on this mount, for the status socket.
    fn listing(&self) -> Vec<FileLocks> {
        Vec::new()
    }

    /// How often what has happened since the mount began.
    fn totals(&self) -> Totals {
        Totals::default()
    }

    /// How long the waits were that have ended since the mount began.
    fn wait_times(&self) -> WaitTimes {
        WaitTimes::default()
    }

    /// The mount is going away: end every wait, with `EIO`.
    fn shut_down(&self) {}
}

/// What is done with the answer to a request that may be answered later.
type Finish = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// A reply that is owed. It is sent once: by [`send`](Self::send), or as `EIO` when dropped.
pub struct DeferredReply {
    id: RequestId,
    desk: Arc<Ledger>,
    finish: Option<Finish>,
}

impl DeferredReply {
    /// The request to be answered.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Answers the request. May be called from any thread, with any lock held that the
    /// [`LockService`] methods do not take.
    pub fn send(mut self, result: Result<(), Errno>) {
        self.finish_with(result);
    }

    fn finish_with(&mut self, result: Result<(), Errno>) {
        let Some(finish) = self.finish.take() else {
            return;
        };
        let interrupted = self.desk.settle(self.id, result.is_ok());
        let result = match result {
            // Sent unasked, it would reach the program as errno 512.
            Err(Errno::INTR) if !interrupted => {
                tracing::error!(
                    id = self.id.0,
                    "EINTR for a request that nobody interrupted"
                );
                Err(Errno::IO)
            }
            other => other,
        };
        finish(result);
    }
}

impl Drop for DeferredReply {
    fn drop(&mut self) {
        self.finish_with(Err(Errno::IO));
    }
}

impl fmt::Debug for DeferredReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferredReply")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// A process's wait, so that its end can be told to the owners.
#[derive(Debug)]
struct Wait {
    handle: HandleId,
    file: FileId,
    value: OwnerValue,
}

#[derive(Debug)]
struct Owed {
    wait: Option<Wait>,
    interrupted: bool,
}

/// Owners, and replies that are owed. Never locked while the service is called.
#[derive(Debug, Default)]
struct Ledger(Mutex<Books>);

#[derive(Debug, Default)]
struct Books {
    owners: Owners,
    owed: HashMap<RequestId, Owed>,
}

impl Ledger {
    /// Takes a reply off the books; whether its request was interrupted.
    fn settle(&self, id: RequestId, granted: bool) -> bool {
        let mut books = lock(&self.0);
        let Some(owed) = books.owed.remove(&id) else {
            return false;
        };
        if let Some(wait) = owed.wait {
            books
                .owners
                .wait_ends(wait.handle, wait.file, wait.value, granted);
        }
        owed.interrupted
    }
}

/// Reads lock messages and hands them to the service.
pub struct LockDesk {
    service: Arc<dyn LockService>,
    ledger: Arc<Ledger>,
    probe: CallerProbe,
    device: Arc<Device>,
}

impl fmt::Debug for LockDesk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockDesk")
            .field("ledger", &self.ledger)
            .finish_non_exhaustive()
    }
}

impl LockDesk {
    /// A desk that answers through `device`.
    pub fn new(service: Arc<dyn LockService>, probe: CallerProbe, device: Arc<Device>) -> LockDesk {
        LockDesk {
            service,
            ledger: Arc::default(),
            probe,
            device,
        }
    }

    /// The lock manager behind the desk.
    pub fn service(&self) -> &Arc<dyn LockService> {
        &self.service
    }

    /// Known processes, handles with locks, replies owed.
    pub fn counts(&self) -> (usize, usize, usize) {
        let books = lock(&self.ledger.0);
        let (processes, handles) = books.owners.counts();
        (processes, handles, books.owed.len())
    }

    /// GETLK.
    pub fn getlk(&self, unique: u64, file: FileId, caller: &Caller, args: &abi::LkIn) {
        match self.query(unique, file, caller, args) {
            Ok(lk) => self.device.reply_record(unique, &abi::LkOut { lk }),
            Err(errno) => self.device.reply(unique, Err(errno)),
        }
    }

    fn query(
        &self,
        unique: u64,
        file: FileId,
        caller: &Caller,
        args: &abi::LkIn,
    ) -> Result<abi::FileLock, Errno> {
        let asked = Asked::decode(args)?;
        let kind = self.kind_of(&asked, caller);
        let owner = {
            let owners = &mut lock(&self.ledger.0).owners;
            let known = owners.peek(asked.handle, asked.value, kind);
            known.unwrap_or_else(|| owners.nobody(kind))
        };
        let found = self
            .service
            .getlk(&asked.request(unique, file, owner, caller.tid))?;
        Ok(match found {
            None => abi::FileLock {
                kind: wire_kind(LockKind::Unlock),
                ..args.lk
            },
            Some(found) => abi::FileLock {
                start: found.range.start.min(OFFSET_MAX),
                // Anything above is EIO to the client.
                end: found.range.end.min(OFFSET_MAX),
                kind: wire_kind(found.kind),
                pid: found.pid,
            },
        })
    }

    /// SETLK and SETLKW.
    pub fn setlk(&self, unique: u64, file: FileId, caller: &Caller, args: &abi::LkIn, wait: bool) {
        let asked = match Asked::decode(args) {
            Ok(asked) => asked,
            Err(errno) => return self.device.reply(unique, Err(errno)),
        };
        // An unlock never waits, though flock(LOCK_UN) comes as a request that may.
        if asked.kind == LockKind::Unlock {
            let result = self.unlock(unique, file, caller, &asked);
            return self.device.reply(unique, result.map(|()| &[][..]));
        }
        let owner = self.resolve(&asked, file, caller);
        let request = asked.request(unique, file, owner, caller.tid);
        if wait {
            let process_wait = (owner.kind == OwnerKind::Process).then_some(Wait {
                handle: asked.handle,
                file,
                value: asked.value,
            });
            let device = self.device.clone();
            let reply = self.owe(
                request.id,
                process_wait,
                Box::new(move |result| device.reply(unique, result.map(|()| &[][..]))),
            );
            self.service.setlkw(&request, reply);
        } else {
            let result = self.service.setlk(&request);
            self.device.reply(unique, result.map(|()| &[][..]));
        }
    }

    fn unlock(
        &self,
        unique: u64,
        file: FileId,
        caller: &Caller,
        asked: &Asked,
    ) -> Result<(), Errno> {
        let owner = {
            let owners = &lock(&self.ledger.0).owners;
            // An owner of whom nothing is known holds nothing, so there is nobody to ask about.
            let kind = match asked.flock {
                true => Some(OwnerKind::OpenFile),
                false => owners.known_kind(asked.handle, asked.value),
            };
            kind.and_then(|kind| owners.peek(asked.handle, asked.value, kind))
        };
        match owner {
            None => Ok(()),
            Some(owner) => self
                .service
                .setlk(&asked.request(unique, file, owner, caller.tid)),
        }
    }

    fn resolve(&self, asked: &Asked, file: FileId, caller: &Caller) -> Owner {
        let (handle, value) = (asked.handle, asked.value);
        if !asked.flock
            && let Some(owner) = lock(&self.ledger.0)
                .owners
                .resolve_known(handle, file, value)
        {
            return owner;
        }
        // Not under the lock: it may take a look at the caller.
        let kind = self.kind_of(asked, caller);
        let owners = &mut lock(&self.ledger.0).owners;
        owners.resolve(handle, file, value, kind)
    }

    fn kind_of(&self, asked: &Asked, caller: &Caller) -> OwnerKind {
        if asked.flock {
            return OwnerKind::OpenFile;
        }
        let known = lock(&self.ledger.0)
            .owners
            .known_kind(asked.handle, asked.value);
        known
            .or_else(|| self.probe.owner_kind(caller.tid))
            .unwrap_or(OwnerKind::Process)
    }

    fn owe(&self, id: RequestId, wait: Option<Wait>, finish: Finish) -> DeferredReply {
        let mut books = lock(&self.ledger.0);
        if let Some(wait) = &wait {
            books.owners.wait_begins(wait.file, wait.value);
        }
        books.owed.insert(
            id,
            Owed {
                wait,
                interrupted: false,
            },
        );
        drop(books);
        DeferredReply {
            id,
            desk: self.ledger.clone(),
            finish: Some(finish),
        }
    }

    /// INTERRUPT. The kernel may name a request that is answered, or one that was never a lock's.
    pub fn interrupt(&self, unique: u64) {
        let id = RequestId(unique);
        let owed = match lock(&self.ledger.0).owed.get_mut(&id) {
            Some(owed) => {
                owed.interrupted = true;
                true
            }
            None => false,
        };
        if owed {
            self.service.interrupt(id);
        }
    }

    /// FLUSH, which is answered here.
    pub fn flush(&self, unique: u64, file: Result<FileId, Errno>, args: &abi::FlushIn) {
        if let Ok(file) = file {
            let loss = lock(&self.ledger.0)
                .owners
                .flush(file, OwnerValue(args.lock_owner));
            if let Some(Loss { file, owner }) = loss {
                self.service.close_owner(file, owner);
            }
        }
        self.device.reply(unique, file.map(|_| &[][..]));
    }

    /// RELEASE, which the file system goes on with.
    pub fn release(&self, file: FileId, fh: u64) {
        let losses = lock(&self.ledger.0).owners.release(HandleId(fh), file);
        for Loss { file, owner } in losses {
            self.service.close_owner(file, owner);
        }
        self.service.released(HandleId(fh));
    }

    /// Asks the mandatory locks about a read or write; `finish` runs once, when they have answered.
    pub fn admit_io(&self, io: &IoAsked, finish: Finish) {
        let id = RequestId(io.unique);
        let (process, open_file) = {
            let owners = &lock(&self.ledger.0).owners;
            // Not every message names the caller's value. If one process alone has locked through the
            // handle, it is taken for the caller: what it may not do it could do by unlocking first.
            let process = match io.lock_owner {
                Some(value) => owners.peek(io.handle, OwnerValue(value), OwnerKind::Process),
                None => owners.only_process(io.handle),
            };
            (
                process,
                owners.peek(io.handle, OwnerValue(0), OwnerKind::OpenFile),
            )
        };
        let reply = self.owe(id, None, finish);
        self.service.admit_io(
            &IoRequest {
                id,
                file: io.file,
                process,
                open_file,
                range: io.range,
                write: io.write,
                nonblocking: io.nonblocking,
                handle: io.handle,
                tid: io.tid,
            },
            reply,
        );
    }
}

/// A read or write as the kernel asks for it.
#[derive(Clone, Copy, Debug)]
pub struct IoAsked {
    /// The request's number.
    pub unique: u64,
    /// The file.
    pub file: FileId,
    /// The handle it goes through.
    pub handle: HandleId,
    /// The calling process's owner value, if the kernel named it.
    pub lock_owner: Option<u64>,
    /// The bytes.
    pub range: Range,
    /// Whether it changes them.
    pub write: bool,
    /// Whether it must not wait.
    pub nonblocking: bool,
    /// The calling thread.
    pub tid: u32,
}

impl Range {
    /// `len` bytes from `start`; `None` if there are none below [`OFFSET_MAX`].
    pub fn of_len(start: u64, len: u64) -> Option<Range> {
        let end = start.saturating_add(len.checked_sub(1)?).min(OFFSET_MAX);
        (start <= end).then_some(Range { start, end })
    }
}

/// A lock message, checked.
#[derive(Clone, Copy, Debug)]
struct Asked {
    handle: HandleId,
    value: OwnerValue,
    flock: bool,
    kind: LockKind,
    range: Range,
    pid: u32,
}

impl Asked {
    fn decode(args: &abi::LkIn) -> Result<Asked, Errno> {
        let kind = match i32::try_from(args.lk.kind) {
            Ok(libc::F_RDLCK) => LockKind::Read,
            Ok(libc::F_WRLCK) => LockKind::Write,
            Ok(libc::F_UNLCK) => LockKind::Unlock,
            _ => return Err(Errno::INVAL),
        };
        // "To the end" is i64::MAX from this kernel; other clients of the protocol say u64::MAX.
        let range = Range {
            start: args.lk.start,
            end: args.lk.end.min(OFFSET_MAX),
        };
        if range.start > range.end {
            return Err(Errno::INVAL);
        }
        Ok(Asked {
            handle: HandleId(args.fh),
            value: OwnerValue(args.owner),
            flock: args.lk_flags & abi::LK_FLOCK != 0,
            kind,
            range: if args.lk_flags & abi::LK_FLOCK != 0 {
                Range {
                    start: 0,
                    end: OFFSET_MAX,
                }
            } else {
                range
            },
            pid: args.lk.pid,
        })
    }

    fn request(&self, unique: u64, file: FileId, owner: Owner, tid: u32) -> LockRequest {
        let class = match (self.flock, owner.kind) {
            (true, _) => LockClass::Flock,
            (false, OwnerKind::OpenFile) => LockClass::Ofd,
            (false, OwnerKind::Process) => LockClass::Posix,
        };
        LockRequest {
            id: RequestId(unique),
            file,
            handle: self.handle,
            owner,
            class,
            kind: self.kind,
            range: self.range,
            pid: self.pid,
            tid,
        }
    }
}

fn wire_kind(kind: LockKind) -> u32 {
    let kind = match kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    kind.cast_unsigned()
}
