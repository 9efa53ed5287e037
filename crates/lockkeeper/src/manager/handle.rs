//! Handles: the calls of fcntl(2) and flock(2) on one file.

use core::time::Duration;
use std::fmt;

use super::Shared;
use super::callback::{CallbackId, Deliver, Started};
use super::events;
use super::file::{File, FileId};
use super::future::LockFuture;
use super::wait::{Ask, Ticket, WaitOptions};
use crate::error::LockError;
use crate::lock::{Fairness, LockInfo, LockType};
use crate::mutex::TableGuard;
use crate::owner::{FileOwner, OpenFileId, Owner, ProcessId, RemoteOwner};
use crate::range::Range;
use crate::sync::{Arc, Ordering};
use crate::table::{
    BreakScope, Counters, LeaseState, Openers, Request, Snapshot, Survey, Table, Waits,
};

/// How many places are copied before a file is let go of again.
const PIECE: u32 = 32;

/// A file of a [`LockManager`](crate::LockManager). Clones are handles of the
/// same file; its state is freed when nothing is locked, nobody waits and the
/// last handle is dropped.
pub struct FileHandle {
    pub(crate) file: Arc<File>,
    pub(crate) shared: Arc<Shared>,
}

impl Clone for FileHandle {
    fn clone(&self) -> FileHandle {
        // Not from 0, so not in need of the map's shard.
        self.file.handles.fetch_add(1, Ordering::Relaxed);
        FileHandle::new(self.file.clone(), self.shared.clone())
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        if self.file.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.forget(&self.file);
        }
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileHandle({})", self.file.id)
    }
}

impl FileHandle {
    /// A handle that has been counted already.
    pub(crate) fn new(file: Arc<File>, shared: Arc<Shared>) -> FileHandle {
        FileHandle { file, shared }
    }

    /// Which file this is.
    pub fn id(&self) -> FileId {
        self.file.id
    }

    /// Record locks of a process: F_SETLK, F_SETLKW, F_GETLK.
    pub fn posix(&self, process: ProcessId) -> Records<'_> {
        self.records(process)
    }

    /// Record locks of an open file description: F_OFD_SETLK, F_OFD_SETLKW,
    /// F_OFD_GETLK.
    pub fn ofd(&self, open_file: OpenFileId) -> Records<'_> {
        self.records(open_file)
    }

    /// Record locks of a client elsewhere.
    pub fn remote(&self, owner: RemoteOwner) -> Records<'_> {
        self.records(owner)
    }

    /// Record locks of any owner.
    pub fn records(&self, owner: impl Into<Owner>) -> Records<'_> {
        Records {
            file: self,
            owner: owner.into(),
            taken_by: ProcessId(0),
            timeout: None,
        }
    }

    /// The whole-file lock of an open file description or a remote client:
    /// flock(2).
    pub fn flock(&self, owner: impl Into<FileOwner>) -> Flock<'_> {
        Flock {
            file: self,
            owner: owner.into(),
            taken_by: ProcessId(0),
            timeout: None,
        }
    }

    /// The lease of an open file description or a remote client: F_SETLEASE,
    /// F_GETLEASE.
    pub fn lease(&self, owner: impl Into<FileOwner>) -> Lease<'_> {
        Lease {
            file: self,
            owner: owner.into(),
            taken_by: ProcessId(0),
            is_delegation: false,
        }
    }

    /// The delegation of an open file description or a remote client: a lease of
    /// a server's own kind.
    pub fn delegation(&self, owner: impl Into<FileOwner>) -> Lease<'_> {
        Lease {
            is_delegation: true,
            ..self.lease(owner)
        }
    }

    /// An open or a truncation by `opener`, which breaks leases: `Read` for an
    /// open with O_RDONLY, `Write` for any other and for a truncation.
    pub fn opening(
        &self,
        opener: impl Into<Owner>,
        access: LockType,
        scope: BreakScope,
    ) -> Opening<'_> {
        Opening {
            file: self,
            ask: Ask::Open {
                opener: opener.into(),
                access,
                scope,
            },
            timeout: None,
        }
    }

    // ---- The fast path -----------------------------------------------------

    /// Grants a request if nothing is in the way. [`Records`] and [`Flock`] are
    /// the usual way here.
    ///
    /// # Errors
    /// As [`Table::try_lock`].
    #[inline]
    pub fn try_lock(&self, request: &Request) -> Result<(), LockError> {
        let cx = self.shared.context(self.shared.clock.recent());
        let mut table = self.file.table.lock();
        if let Err(error) = table.try_lock(request, cx) {
            return self.not_granted(table, request, error);
        }
        if table.has_waiters() && self.is_news(&table, request.owner()) {
            self.bring_news(table, Some(request));
        } else {
            drop(table);
        }
        events::set_lock(self.file.id, request, &Ok(()));
        Ok(())
    }

    /// What is left to do for a request that was not granted. A flock may have
    /// been dropped for it.
    #[cold]
    fn not_granted<'a>(
        &'a self,
        table: TableGuard<'a, Table<Ticket>>,
        request: &Request,
        error: LockError,
    ) -> Result<(), LockError> {
        if table.has_news() {
            self.bring_news(table, None);
        } else {
            drop(table);
        }
        let result = Err(error);
        events::set_lock(self.file.id, request, &result);
        result
    }

    /// Gives up record locks. [`Records`] is the usual way here.
    ///
    /// # Errors
    /// As [`Table::unlock`].
    #[inline]
    pub fn unlock(&self, owner: &Owner, range: Range) -> Result<(), LockError> {
        let mut table = self.file.table.lock();
        let result = if table.unlock_plain(owner, range) {
            drop(table);
            Ok(())
        } else {
            let cx = self.shared.context(self.shared.clock.recent());
            let result = table.unlock(owner, range, cx);
            if table.has_news() {
                self.bring_news(table, None);
            }
            result
        };
        events::unlock(self.file.id, owner, range, &result);
        result
    }

    /// Whether there is anything to bring after a lock was granted to `owner`.
    #[inline]
    fn is_news(&self, table: &Table<Ticket>, owner: &Owner) -> bool {
        table.has_news() || self.shared.registry.is_waiting(owner)
    }

    // ---- Calls that may wait -----------------------------------------------

    fn lock_or_wait(&self, request: Request, options: WaitOptions<'_>) -> Result<(), LockError> {
        match self.try_lock(&request) {
            Ok(()) => Ok(()),
            Err(LockError::Conflict(_) | LockError::Queued(_)) => {
                self.wait(&Ask::Lock(request), options)
            }
            Err(error) => Err(error),
        }
    }

    /// Calls a function on the table, and brings what news that made.
    fn with_table<R>(
        &self,
        call: impl FnOnce(&mut Table<Ticket>, crate::table::Context<'_>) -> R,
    ) -> R {
        // The time under the mutex, so that it runs forwards for the table.
        let mut table = self.file.table.lock();
        let cx = self.shared.context(self.shared.clock.now());
        let result = call(&mut table, cx);
        self.bring_news(table, None);
        result
    }

    // ---- The file as a whole -----------------------------------------------

    /// Drops every lock and lease of the owner on this file, whole: close(2) of
    /// any descriptor for a process, of the last one for an open file
    /// description. `waits` says what becomes of what it waits for here. Wakes
    /// whom that frees.
    pub fn release_owner(&self, owner: &Owner, waits: Waits) {
        self.with_table(|table, cx| table.release_owner(owner, waits, cx));
        events::release(self.file.id, owner);
    }

    /// Drops every lock and ends every wait with EIO: the file system goes away.
    pub fn tear_down(&self) {
        self.with_table(|table, cx| table.tear_down(cx));
    }

    /// Sets how many newcomers may overtake a waiter of this file; `None` follows
    /// the manager's setting. Lasts as long as the file's state.
    ///
    /// # Errors
    /// `NoMemory` (ENOLCK).
    pub fn set_fairness(&self, fairness: Option<Fairness>) -> Result<(), LockError> {
        self.with_table(|table, cx| table.set_fairness(fairness, cx))
    }

    /// Who holds what and who waits for whom, at one moment: the file is held up
    /// until all of it is copied.
    pub fn snapshot(&self) -> Snapshot {
        self.file.table.lock().snapshot()
    }

    /// The same without holding the file up for longer than a lock call: more than
    /// a few dozen locks and waiters are copied in pieces, and what changes between
    /// two of them is seen before the change or after it, as in /proc/locks.
    pub fn survey(&self) -> Snapshot {
        self.survey_and_counters(&mut Survey::new()).0
    }

    /// Both with no more visits than the first takes, and in the room of one survey: listings ask for them on
    /// every file.
    pub(crate) fn survey_and_counters(&self, survey: &mut Survey) -> (Snapshot, Counters) {
        loop {
            survey.reserve(PIECE);
            let table = self.file.table.lock();
            if !table.survey(survey, PIECE) {
                let counters = table.counters();
                drop(table);
                return (survey.take_snapshot(), counters);
            }
        }
    }

    /// How often things have happened on this file since its state was made.
    pub fn counters(&self) -> Counters {
        self.file.table.lock().counters()
    }

    /// Panics unless every invariant of the file's table holds; for tests.
    pub fn check_invariants(&self) {
        self.file.table.lock().check_invariants();
    }
}

/// The options with this timeout, unless they have one.
fn or_timeout(options: WaitOptions<'_>, timeout: Option<Duration>) -> WaitOptions<'_> {
    WaitOptions {
        timeout: options.timeout.or(timeout),
        ..options
    }
}

/// Record locks of one owner on one file (fcntl(2)).
#[derive(Clone, Debug)]
pub struct Records<'a> {
    file: &'a FileHandle,
    owner: Owner,
    taken_by: ProcessId,
    timeout: Option<Duration>,
}

impl<'a> Records<'a> {
    /// The process that makes the calls, for listings; needed for no decision.
    pub fn taken_by(mut self, process: ProcessId) -> Records<'a> {
        self.taken_by = process;
        self
    }

    /// Waits started from here give up after this long, with ETIMEDOUT, in
    /// whichever way they wait. [`WaitOptions::timeout`] goes before it.
    pub fn timeout(mut self, timeout: Duration) -> Records<'a> {
        self.timeout = Some(timeout);
        self
    }

    fn request(&self, lock_type: LockType, range: Range) -> Request {
        Request::record(self.owner.clone(), lock_type, range).taken_by(self.taken_by)
    }

    /// F_SETLK: grants the lock if nothing is in the way.
    ///
    /// # Errors
    /// `Conflict` or `Queued` (EAGAIN), `Limit` or `NoMemory` (ENOLCK).
    #[inline]
    pub fn try_lock(&self, lock_type: LockType, range: Range) -> Result<(), LockError> {
        self.file.try_lock(&self.request(lock_type, range))
    }

    /// F_SETLKW: blocks the thread until the lock is granted. What the owner
    /// holds stays as it is meanwhile.
    ///
    /// # Errors
    /// `Deadlock` (EDEADLK), `Closed` (EBADF), `TornDown` (EIO), `Limit` or
    /// `NoMemory` (ENOLCK), `Interrupted` (EINTR).
    pub fn lock(&self, lock_type: LockType, range: Range) -> Result<(), LockError> {
        self.lock_with(lock_type, range, WaitOptions::default())
    }

    /// The same with a timeout or a way to interrupt it.
    ///
    /// # Errors
    /// As [`lock`](Records::lock), and `TimedOut` (ETIMEDOUT).
    pub fn lock_with(
        &self,
        lock_type: LockType,
        range: Range,
        options: WaitOptions<'_>,
    ) -> Result<(), LockError> {
        self.file.lock_or_wait(
            self.request(lock_type, range),
            or_timeout(options, self.timeout),
        )
    }

    /// F_SETLKW as a future, for any executor. Nothing happens before it is
    /// polled. Dropping it cancels the wait, and gives back a grant that was
    /// quicker: the owner then holds on these bytes what it held before.
    pub fn lock_async(&self, lock_type: LockType, range: Range) -> LockFuture {
        LockFuture::new(self.file.clone(), Ask::Lock(self.request(lock_type, range)))
            .or_timeout(self.timeout)
    }

    /// F_SETLKW with a callback in place of a sleeper, for servers. If the lock
    /// is not granted at once, `callback` is called exactly once, outside every
    /// lock of the manager, by whoever ends the wait; it may call back into the
    /// manager. [`cancel_callback`](crate::LockManager::cancel_callback) ends it.
    ///
    /// # Errors
    /// `AlreadyWaiting` (EALREADY) if a callback of this id waits in the manager;
    /// else as [`lock`](Records::lock) where that is known at once. The callback
    /// is not called then.
    pub fn lock_callback(
        &self,
        id: CallbackId,
        lock_type: LockType,
        range: Range,
        callback: impl FnOnce(Result<(), LockError>) + Send + 'static,
    ) -> Result<Started, LockError> {
        let ask = Ask::Lock(self.request(lock_type, range));
        self.file
            .begin_callback(id, &ask, self.timeout, Box::new(callback))
    }

    /// F_SETLK with F_UNLCK: gives up what the owner holds of `range`.
    ///
    /// # Errors
    /// `Limit` or `NoMemory` (ENOLCK) where it splits a lock; nothing has changed
    /// then. Never for [`Range::WHOLE`].
    #[inline]
    pub fn unlock(&self, range: Range) -> Result<(), LockError> {
        self.file.unlock(&self.owner, range)
    }

    /// F_GETLK: the lock in the way of such a request, or `None` if it could be
    /// granted.
    pub fn test(&self, lock_type: LockType, range: Range) -> Option<LockInfo> {
        self.file
            .file
            .table
            .lock()
            .test(&self.request(lock_type, range))
    }

    /// F_OFD_GETLK with F_UNLCK: the owner's own lock with the lowest first byte
    /// in `range`.
    pub fn test_own(&self, range: Range) -> Option<LockInfo> {
        self.file.file.table.lock().test_own(&self.owner, range)
    }

    /// Mandatory locking: whether others' record locks allow this owner to read
    /// (`Read`) or write (`Write`) these bytes.
    ///
    /// # Errors
    /// `Conflict` or `Queued` (EAGAIN).
    pub fn check_io(&self, access: LockType, range: Range) -> Result<(), LockError> {
        self.file
            .try_lock(&Request::access(self.owner.clone(), access, range))
    }

    /// The same, blocking the thread until they do.
    ///
    /// # Errors
    /// As [`lock_with`](Records::lock_with).
    pub fn wait_for_io(
        &self,
        access: LockType,
        range: Range,
        options: WaitOptions<'_>,
    ) -> Result<(), LockError> {
        let request = Request::access(self.owner.clone(), access, range).taken_by(self.taken_by);
        self.file
            .lock_or_wait(request, or_timeout(options, self.timeout))
    }

    /// The same as a future.
    pub fn wait_for_io_async(&self, access: LockType, range: Range) -> LockFuture {
        let request = Request::access(self.owner.clone(), access, range).taken_by(self.taken_by);
        LockFuture::new(self.file.clone(), Ask::Lock(request)).or_timeout(self.timeout)
    }

    /// The same with a callback.
    ///
    /// # Errors
    /// As [`lock_callback`](Records::lock_callback).
    pub fn wait_for_io_callback(
        &self,
        id: CallbackId,
        access: LockType,
        range: Range,
        callback: impl FnOnce(Result<(), LockError>) + Send + 'static,
    ) -> Result<Started, LockError> {
        let ask =
            Ask::Lock(Request::access(self.owner.clone(), access, range).taken_by(self.taken_by));
        self.file
            .begin_callback(id, &ask, self.timeout, Box::new(callback))
    }
}

/// The whole-file lock of one owner (flock(2)).
#[derive(Clone, Debug)]
pub struct Flock<'a> {
    file: &'a FileHandle,
    owner: FileOwner,
    taken_by: ProcessId,
    timeout: Option<Duration>,
}

impl<'a> Flock<'a> {
    /// The process that makes the calls: listings show it.
    pub fn taken_by(mut self, process: ProcessId) -> Flock<'a> {
        self.taken_by = process;
        self
    }

    /// Waits started from here give up after this long, with ETIMEDOUT, in
    /// whichever way they wait. [`WaitOptions::timeout`] goes before it.
    pub fn timeout(mut self, timeout: Duration) -> Flock<'a> {
        self.timeout = Some(timeout);
        self
    }

    fn request(&self, lock_type: LockType) -> Request {
        Request::flock(self.owner.clone(), lock_type).taken_by(self.taken_by)
    }

    /// LOCK_SH (`Read`) or LOCK_EX (`Write`) with LOCK_NB.
    ///
    /// A lock of the other type that the owner holds is dropped first, and lost
    /// if the new one cannot be had.
    ///
    /// # Errors
    /// `Conflict` or `Queued` (EAGAIN), `Limit` or `NoMemory` (ENOLCK).
    pub fn try_lock(&self, lock_type: LockType) -> Result<(), LockError> {
        self.file.try_lock(&self.request(lock_type))
    }

    /// LOCK_SH (`Read`) or LOCK_EX (`Write`): blocks the thread until it is
    /// granted. A lock of the other type is dropped first. Never EDEADLK.
    ///
    /// # Errors
    /// `Closed` (EBADF), `TornDown` (EIO), `Limit` or `NoMemory` (ENOLCK),
    /// `Interrupted` (EINTR).
    pub fn lock(&self, lock_type: LockType) -> Result<(), LockError> {
        self.lock_with(lock_type, WaitOptions::default())
    }

    /// The same with a timeout or a way to interrupt it.
    ///
    /// # Errors
    /// As [`lock`](Flock::lock), and `TimedOut` (ETIMEDOUT).
    pub fn lock_with(
        &self,
        lock_type: LockType,
        options: WaitOptions<'_>,
    ) -> Result<(), LockError> {
        self.file
            .lock_or_wait(self.request(lock_type), or_timeout(options, self.timeout))
    }

    /// The same as a future; see [`Records::lock_async`]. Dropping it gives back
    /// a grant that was quicker by unlocking.
    pub fn lock_async(&self, lock_type: LockType) -> LockFuture {
        LockFuture::new(self.file.clone(), Ask::Lock(self.request(lock_type)))
            .or_timeout(self.timeout)
    }

    /// The same with a callback; see [`Records::lock_callback`].
    ///
    /// # Errors
    /// As [`Records::lock_callback`].
    pub fn lock_callback(
        &self,
        id: CallbackId,
        lock_type: LockType,
        callback: impl FnOnce(Result<(), LockError>) + Send + 'static,
    ) -> Result<Started, LockError> {
        let ask = Ask::Lock(self.request(lock_type));
        self.file
            .begin_callback(id, &ask, self.timeout, Box::new(callback))
    }

    /// LOCK_UN. Never fails.
    pub fn unlock(&self) {
        let cx = self.file.shared.context(self.file.shared.clock.recent());
        let mut table = self.file.file.table.lock();
        table.unlock_flock(&self.owner, cx);
        if table.has_news() {
            self.file.bring_news(table, None);
        }
    }

    /// The lock in the way of such a request, or `None`.
    pub fn test(&self, lock_type: LockType) -> Option<LockInfo> {
        self.file.file.table.lock().test(&self.request(lock_type))
    }
}

/// The lease or delegation of one owner (fcntl(2), "Leases").
#[derive(Clone, Debug)]
pub struct Lease<'a> {
    file: &'a FileHandle,
    owner: FileOwner,
    taken_by: ProcessId,
    is_delegation: bool,
}

impl<'a> Lease<'a> {
    /// The process that makes the calls: listings show it.
    pub fn taken_by(mut self, process: ProcessId) -> Lease<'a> {
        self.taken_by = process;
        self
    }

    /// F_SETLEASE with F_RDLCK or F_WRLCK: takes the lease or changes its type.
    /// `openers` says how else the file is open.
    ///
    /// # Errors
    /// `LeaseUnavailable` (EAGAIN), `Limit` or `NoMemory` (ENOLCK).
    pub fn set(&self, lock_type: LockType, openers: Openers) -> Result<(), LockError> {
        let result = self.file.with_table(|table, cx| {
            table.set_lease(
                self.owner.clone(),
                self.taken_by,
                lock_type,
                self.is_delegation,
                openers,
                cx,
            )
        });
        events::add_lease(self.file.file.id, &self.owner, lock_type, &result);
        result
    }

    /// F_SETLEASE with F_UNLCK: gives the lease up, and lets the openers go on
    /// that waited for it.
    ///
    /// # Errors
    /// `NoLease` (EAGAIN).
    pub fn unlock(&self) -> Result<(), LockError> {
        let result = self
            .file
            .with_table(|table, cx| table.remove_lease(&self.owner, self.is_delegation, cx));
        events::delete_lease(self.file.file.id, &self.owner, &result);
        result
    }

    /// F_GETLEASE: the lease, or while it is being broken what must be left of
    /// it.
    ///
    /// # Errors
    /// `TimeRanBackwards` (EINVAL), where the clock does.
    pub fn get(&self) -> Result<LeaseState, LockError> {
        self.file
            .with_table(|table, cx| table.lease(&self.owner, self.is_delegation, cx))
    }
}

/// An open or truncation that breaks leases (fcntl(2), "Leases").
#[derive(Clone, Debug)]
pub struct Opening<'a> {
    file: &'a FileHandle,
    ask: Ask,
    timeout: Option<Duration>,
}

impl<'a> Opening<'a> {
    /// Waits started from here give up after this long, with ETIMEDOUT, in
    /// whichever way they wait. [`WaitOptions::timeout`] goes before it.
    pub fn timeout(mut self, timeout: Duration) -> Opening<'a> {
        self.timeout = Some(timeout);
        self
    }

    /// With O_NONBLOCK. The holders of leases in the way are told all the same.
    ///
    /// # Errors
    /// `LeaseInTheWay` (EWOULDBLOCK).
    pub fn try_break(&self) -> Result<(), LockError> {
        let Ask::Open {
            opener,
            access,
            scope,
        } = &self.ask
        else {
            return Ok(());
        };
        self.file
            .with_table(|table, cx| table.try_break_leases(opener, *access, *scope, cx))
    }

    /// Blocks the thread until no lease is in the way, at most for the break
    /// time.
    ///
    /// # Errors
    /// `TornDown` (EIO), `Limit` or `NoMemory` (ENOLCK), `Interrupted` (EINTR),
    /// `TimedOut` (ETIMEDOUT).
    pub fn wait(&self, options: WaitOptions<'_>) -> Result<(), LockError> {
        self.file.wait(&self.ask, or_timeout(options, self.timeout))
    }

    /// The same as a future.
    pub fn wait_async(&self) -> LockFuture {
        LockFuture::new(self.file.clone(), self.ask.clone()).or_timeout(self.timeout)
    }

    /// The same with a callback; see [`Records::lock_callback`].
    ///
    /// # Errors
    /// As [`Records::lock_callback`].
    pub fn wait_callback(
        &self,
        id: CallbackId,
        callback: impl FnOnce(Result<(), LockError>) + Send + 'static,
    ) -> Result<Started, LockError> {
        let callback: Deliver = Box::new(callback);
        self.file
            .begin_callback(id, &self.ask, self.timeout, callback)
    }
}
