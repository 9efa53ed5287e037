//! Many files, threads, tasks and callbacks: the lock manager of a process.
//!
//! # How it is put together
//! A [`LockManager`] maps file ids to files. Each file is a [`Table`] behind a
//! mutex of its own, and that mutex is all that locking and unlocking touches
//! while nobody waits: a [`FileHandle`] leads straight to it. Everything shared
//! is for the slow paths:
//!
//! - the map, where handles are opened and closed;
//! - the *registry* of waiting owners, where a wait begins and ends;
//! - the *deadlock mutex*, where a search for a cycle is due;
//! - the timer, where a deadline is set.
//!
//! # Order of locks
//! deadlock mutex → a file's mutex (several only in order of id and address,
//! with the deadlock mutex held) → shards of the map, registry, callbacks, timer, ledger.
//! Wakers, callbacks and listeners are called with none of them held; they may
//! call back into the manager.
//!
//! # Exactly one outcome
//! A wait ends inside its file's mutex, by a call on the table that removes the
//! waiter and returns its ticket. Whoever gets the ticket delivers the outcome,
//! and there is one ticket. A cancel that finds no waiter reports `NotWaiting`,
//! and the outcome that was quicker stands.
//!
//! # Fairness of threads
//! Threads are offered locks, tasks and callbacks are granted them: see
//! [the table's essay](crate::table) on offers. So a lock is never held for a
//! thread that has yet to be scheduled, unless it has been overtaken as often as
//! the bound allows.

mod callback;
mod clock;
mod deliver;
mod detect;
mod events;
mod file;
mod future;
mod handle;
mod ledger;
mod listing;
mod registry;
mod timer;
mod wait;

use core::time::Duration;
use std::fmt;

use hashbrown::HashTable;

pub use callback::{CallbackId, Started};
pub use detect::{Cycle, CycleStep};
pub use file::FileId;
pub use future::LockFuture;
pub use handle::{FileHandle, Flock, Lease, Opening, Records};
pub use listing::FileListing;
pub use wait::{Interrupt, WaitOptions};

use crate::error::NotWaiting;
use crate::lock::{Fairness, Limits, Time};
use crate::owner::Owner;
use crate::sync::{Arc, AtomicU32, HashBuilder, Mutex, Ordering, lock};
use crate::table::{Context, Counters, LeaseBreak, Ledger, Settings, Waits};
use callback::Callbacks;
use clock::Clock;
use file::File;
use ledger::Accounting;
use registry::{Registry, hash_of};
use timer::Timer;

#[cfg(doc)]
use crate::table::Table;

const SHARDS: usize = if cfg!(loom) { 1 } else { 64 };

/// Keeps its neighbours out of its cache lines.
#[repr(align(128))]
struct Shard(Mutex<Files>);

/// Files whose ids have a hash in common.
struct Files {
    known: HashTable<Arc<File>>,
    /// What the counters of those said whose state has been freed.
    forgotten: Counters,
}

type BreakListener = Box<dyn Fn(FileId, &LeaseBreak) + Send + Sync>;

/// What all files of a manager share.
pub(crate) struct Shared {
    hasher: HashBuilder,
    files: Box<[Shard]>,
    pub(crate) clock: Clock,
    settings: Settings,
    accounting: Option<Accounting>,
    pub(crate) registry: Registry,
    /// Held during a search for a cycle, so that of two requests that close one
    /// together exactly one is refused.
    pub(crate) deadlock: Mutex<()>,
    /// Set once a request has queued for fairness alone: only then need a search
    /// look for cycles through such queues.
    pub(crate) has_queued: AtomicU32,
    pub(crate) callbacks: Callbacks,
    pub(crate) timer: Timer,
    on_lease_break: Option<BreakListener>,
}

/// The lock manager: file locks for any number of files.
///
/// Cheap to clone; the clones are one manager.
///
/// ```
/// use lockkeeper::{FileId, LockManager, LockType, ProcessId, Range};
///
/// let manager = LockManager::new();
/// let file = manager.file(FileId::new(8, 131));
/// let ten = Range::new(0, 9)?;
///
/// file.posix(ProcessId(100)).try_lock(LockType::Write, ten)?;
/// let refused = file.posix(ProcessId(200)).try_lock(LockType::Read, Range::WHOLE);
/// assert_eq!(refused.unwrap_err().errno(), lockkeeper::Errno::EAGAIN);
///
/// file.posix(ProcessId(100)).unlock(Range::WHOLE)?;
/// file.posix(ProcessId(200)).try_lock(LockType::Read, Range::WHOLE)?;
/// # Ok::<(), lockkeeper::LockError>(())
/// ```
#[derive(Clone)]
pub struct LockManager {
    shared: Arc<Shared>,
}

/// Settings of a [`LockManager`] to be made.
#[must_use = "a builder does nothing until `build`"]
pub struct Builder {
    fairness: Fairness,
    limits: Limits,
    break_time: Option<Duration>,
    is_manual: bool,
    on_lease_break: Option<BreakListener>,
}

impl Builder {
    /// How many newcomers may overtake a waiter; 1,000 by default.
    pub fn fairness(mut self, fairness: Fairness) -> Builder {
        self.fairness = fairness;
        self
    }

    /// How many locks and waiting requests there may be; no limits by default.
    ///
    /// Limits that span files (per owner, in all) are counted in one place for
    /// all files, which every lock and unlock then writes.
    pub fn limits(mut self, limits: Limits) -> Builder {
        self.limits = limits;
        self
    }

    /// How long the holder of a lease has to answer a break; 45 s by default, as
    /// the kernel's /proc/sys/fs/lease-break-time. `None` is without end.
    pub fn lease_break_time(mut self, time: Option<Duration>) -> Builder {
        self.break_time = time;
        self
    }

    /// Calls `listener` when the holder of a lease is to be told of a break, once
    /// for each strength. Called outside every lock, perhaps by the opener's
    /// thread; it may call back into the manager.
    pub fn on_lease_break(
        mut self,
        listener: impl Fn(FileId, &LeaseBreak) + Send + Sync + 'static,
    ) -> Builder {
        self.on_lease_break = Some(Box::new(listener));
        self
    }

    /// Takes the time from [`LockManager::advance`] alone, for simulations and
    /// tests: deadlines pass when the clock is moved, and nowhere else, timeouts
    /// of waiting threads included.
    pub fn manual_clock(mut self) -> Builder {
        self.is_manual = true;
        self
    }

    /// The manager.
    ///
    /// On Linux its mutexes use membarrier(2) if the first manager of the process
    /// may call it. A seccomp filter put on later should allow it: where it returns
    /// an error, threads that meet at a file nap; where it kills, they are killed.
    pub fn build(self) -> LockManager {
        crate::mutex::prepare();
        let spans_files = Limits {
            locks_per_file: None,
            waiters_per_file: None,
            ..self.limits
        } != Limits::default();
        let settings = Settings::new(self.fairness)
            .with_limits(
                self.limits.locks_per_file,
                self.limits.waiters_per_file,
                spans_files,
            )
            .with_break_time(self.break_time);
        let shared = Arc::new(Shared {
            hasher: HashBuilder::default(),
            files: (0..SHARDS)
                .map(|_| {
                    Shard(Mutex::new(Files {
                        known: HashTable::new(),
                        forgotten: Counters::default(),
                    }))
                })
                .collect(),
            clock: if self.is_manual {
                Clock::Manual(Mutex::new(Time(0)))
            } else {
                Clock::System
            },
            settings,
            accounting: spans_files.then(|| Accounting::new(self.limits)),
            registry: Registry::new(),
            deadlock: Mutex::new(()),
            has_queued: AtomicU32::new(0),
            callbacks: Callbacks::new(),
            timer: Timer::new(),
            on_lease_break: self.on_lease_break,
        });
        LockManager { shared }
    }
}

impl Default for LockManager {
    fn default() -> LockManager {
        LockManager::new()
    }
}

impl LockManager {
    /// A manager with the default settings.
    pub fn new() -> LockManager {
        LockManager::builder().build()
    }

    /// Settings to choose.
    pub fn builder() -> Builder {
        Builder {
            fairness: Fairness::default(),
            limits: Limits::default(),
            break_time: Some(Duration::from_secs(45)),
            is_manual: false,
            on_lease_break: None,
        }
    }

    /// A handle to the file with this id. All handles of one id lead to the same
    /// locks. The file's state lasts while it is locked, somebody waits, or a
    /// handle is open.
    pub fn file(&self, id: FileId) -> FileHandle {
        let hash = hash_of(&self.shared.hasher, &id);
        let mut files = self.shared.shard(hash);
        let found = files.known.find(hash, |file| file.id == id).cloned();
        let file = found.unwrap_or_else(|| {
            let file = Arc::new(File::new(id));
            files.known.insert_unique(hash, file.clone(), |file| {
                hash_of(&self.shared.hasher, &file.id)
            });
            file
        });
        file.handles.fetch_add(1, Ordering::Relaxed);
        drop(files);
        FileHandle::new(file, self.shared.clone())
    }

    /// How many files have state here.
    pub fn file_count(&self) -> usize {
        let shards = self.shared.files.iter();
        shards.map(|shard| lock(&shard.0).known.len()).sum()
    }

    /// How often things have happened on all files, also on those whose state has
    /// been freed since. Visits every file.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        for handle in self.handles_and(&mut |files| counters += files.forgotten) {
            counters += handle.counters();
        }
        counters
    }

    /// Drops every lock and lease of this owner on every file and ends what it
    /// waits for, with EINTR: for a client that died. Visits every file.
    pub fn release_owner_everywhere(&self, owner: &Owner) {
        for file in self.handles() {
            file.release_owner(owner, Waits::Interrupt);
        }
    }

    /// Ends the wait that was started under this callback id: its callback is
    /// called with EINTR, from here.
    ///
    /// # Errors
    /// `NotWaiting` (ENOENT) if nothing waits under it, or what did has ended:
    /// its outcome stands.
    pub fn cancel_callback(&self, id: CallbackId) -> Result<(), NotWaiting> {
        let (file, waiter) = self.shared.callbacks.find(id).ok_or(NotWaiting)?;
        let handle = self.shared.adopt(&file).ok_or(NotWaiting)?;
        handle.cancel(waiter)
    }

    /// Moves a manual clock on, and does what is due by then. Nothing for a
    /// manager on the system's clock, whose timer does it.
    pub fn advance(&self, duration: Duration) {
        if self.shared.clock.advance(duration) {
            timer::run_due(&self.shared);
        }
    }

    /// The manager's time, as its snapshots give it.
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Handles of every file that has state.
    fn handles(&self) -> Vec<FileHandle> {
        self.handles_and(&mut |_| {})
    }

    /// The same, and shows `visit` each shard at the moment its handles are made.
    fn handles_and(&self, visit: &mut dyn FnMut(&Files)) -> Vec<FileHandle> {
        let mut handles = Vec::new();
        for shard in &self.shared.files {
            let files = lock(&shard.0);
            visit(&files);
            for file in &files.known {
                file.handles.fetch_add(1, Ordering::Relaxed);
                handles.push(FileHandle::new(file.clone(), self.shared.clone()));
            }
        }
        handles
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("files", &self.file_count())
            .field("settings", &self.shared.settings)
            .finish()
    }
}

impl Shared {
    fn shard(&self, hash: u64) -> crate::sync::MutexGuard<'_, Files> {
        // The low bits choose the bucket within a shard's table.
        lock(&self.files[(hash >> 48) as usize % SHARDS].0)
    }

    #[inline]
    pub(crate) fn context(&self, now: Time) -> Context<'_> {
        let cx = Context::new(now, &self.settings);
        match &self.accounting {
            None => cx,
            Some(accounting) => cx.with_ledger(accounting as &dyn Ledger),
        }
    }

    pub(crate) fn tell_break(&self, file: FileId, lease_break: &LeaseBreak) {
        events::break_lease(file, lease_break);
        if let Some(listener) = &self.on_lease_break {
            listener(file, lease_break);
        }
    }

    /// A handle to a file that somebody kept without one; `None` if its state has
    /// been freed since.
    pub(crate) fn adopt(self: &Arc<Shared>, file: &Arc<File>) -> Option<FileHandle> {
        let hash = hash_of(&self.hasher, &file.id);
        let files = self.shard(hash);
        files.known.find(hash, |known| Arc::ptr_eq(known, file))?;
        file.handles.fetch_add(1, Ordering::Relaxed);
        drop(files);
        Some(FileHandle::new(file.clone(), self.clone()))
    }

    /// Frees the state of a file whose last handle went, unless it is in use.
    #[cold]
    fn forget(&self, file: &Arc<File>) {
        let hash = hash_of(&self.hasher, &file.id);
        let mut files = self.shard(hash);
        // Handles are counted up under the shard only: 0 stays 0 meanwhile.
        if file.handles.load(Ordering::Acquire) != 0 {
            return;
        }
        let table = file.table.lock();
        if !table.is_idle() {
            return;
        }
        let counters = table.counters();
        drop(table);
        let found = files
            .known
            .find_entry(hash, |known| Arc::ptr_eq(known, file));
        let gone = found.ok().map(|entry| entry.remove().0);
        if gone.is_some() {
            files.forgotten += counters;
        }
        if files.known.is_empty() && files.known.capacity() > 1024 {
            files.known = HashTable::new();
        }
        drop(files);
        drop(gone);
    }
}
