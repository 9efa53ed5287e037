//! The full state of a file on which more happens than a few plain locks.

use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::time::Duration;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::few::Few;
use super::granted::{Granted, Record};
use super::lease::Lease;
use super::waiting::{Branch, Class, Requeued, Waiter, Waiting};
use crate::error::{LimitKind, LockError};
use crate::lock::{Fairness, LockKind, LockType, Time};
use crate::owner::{Owner, ProcessId};
use crate::range::Range;
use crate::slab::{NIL, Slab};

/// Kinds of locks that never conflict with each other (flock(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// POSIX and OFD record locks, which conflict with each other (fcntl(2)).
    Records = 0,
    /// Whole-file locks.
    Flocks = 1,
    /// Waiting openers only: leases are kept in a slab of their own.
    Leases = 2,
}

/// A request for a lock.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) owner: Owner,
    pub(crate) taken_by: ProcessId,
    pub(crate) range: Range,
    pub(crate) lock_type: LockType,
    pub(crate) space: Space,
    /// Waits like a lock and holds nothing when granted: a mandatory check.
    pub(crate) is_access: bool,
}

impl Request {
    pub(crate) fn kind(&self) -> LockKind {
        match self.space {
            _ if self.is_access => LockKind::Access,
            Space::Records => LockKind::of_record(&self.owner),
            Space::Flocks => LockKind::Flock,
            Space::Leases => LockKind::Lease,
        }
    }
}

/// Counts locks and waiters over many files, where a limit spans them. Called
/// while the file is locked by whoever guards the table; must not call back.
pub trait Ledger {
    /// Adds `delta` to the owner's locks and to the sum of all.
    ///
    /// # Errors
    /// The limit that an increase would pass; nothing is booked then. A decrease
    /// is never refused.
    fn book_locks(&self, owner: &Owner, delta: i64) -> Result<(), LimitKind>;

    /// The same for waiting requests.
    ///
    /// # Errors
    /// As [`book_locks`](Ledger::book_locks).
    fn book_waiters(&self, owner: &Owner, delta: i64) -> Result<(), LimitKind>;
}

/// What holds for every call on a table; many tables may share one.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub(crate) fairness: Fairness,
    pub(crate) locks_per_file: Option<u32>,
    pub(crate) waiters_per_file: Option<u32>,
    pub(crate) is_limited: bool,
    pub(crate) break_time: BreakTime,
}

/// How long the holder of a lease has; `None` is without end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BreakTime(pub(crate) Option<Duration>);

impl Default for BreakTime {
    /// 45 s, the kernel's /proc/sys/fs/lease-break-time.
    fn default() -> BreakTime {
        BreakTime(Some(Duration::from_secs(45)))
    }
}

impl Settings {
    /// Settings with this fairness and no limits.
    pub fn new(fairness: Fairness) -> Settings {
        Settings {
            fairness,
            ..Settings::default()
        }
    }

    /// The same with limits for one file. Limits that span files are a
    /// [`Ledger`]'s to keep, which is asked only if `spans_files` is true.
    pub fn with_limits(
        mut self,
        locks_per_file: Option<u32>,
        waiters_per_file: Option<u32>,
        spans_files: bool,
    ) -> Settings {
        self.locks_per_file = locks_per_file;
        self.waiters_per_file = waiters_per_file;
        self.is_limited = spans_files || locks_per_file.is_some() || waiters_per_file.is_some();
        self
    }

    /// The same with a lease break time: how long a holder has to answer a
    /// break. `None` is without end; the default is 45 s.
    pub fn with_break_time(mut self, break_time: Option<Duration>) -> Settings {
        self.break_time = BreakTime(break_time);
        self
    }
}

/// What a table is told on each call: the time, the settings, and who counts
/// over files.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub(crate) now: Time,
    pub(crate) settings: &'a Settings,
    pub(crate) ledger: Option<&'a dyn Ledger>,
}

impl<'a> Context<'a> {
    /// A call at `now` under these settings.
    pub fn new(now: Time, settings: &'a Settings) -> Context<'a> {
        Context {
            now,
            settings,
            ledger: None,
        }
    }

    /// When a lease break that starts now is overdue.
    pub(crate) fn break_deadline(&self) -> Option<Time> {
        self.settings.break_time.0.map(|time| self.now.after(time))
    }

    /// The same with a ledger for limits that span files.
    pub fn with_ledger(mut self, ledger: &'a dyn Ledger) -> Context<'a> {
        self.ledger = Some(ledger);
        self
    }
}

/// How often things happened on one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Locks granted, at once or after a wait.
    pub acquisitions: u64,
    /// Requests that had to wait.
    pub contended: u64,
    /// Waiters that were woken: granted, refused, or sent to try again.
    pub wake_ups: u64,
    /// Waiters that were looked at and had to wait on, beneath another lock.
    pub requeues: u64,
    /// Waits refused with EDEADLK.
    pub deadlocks: u64,
    /// Waits that were cancelled, interrupted or timed out.
    pub cancels: u64,
}

impl core::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.acquisitions += other.acquisitions;
        self.contended += other.contended;
        self.wake_ups += other.wake_ups;
        self.requeues += other.requeues;
        self.deadlocks += other.deadlocks;
        self.cancels += other.cancels;
    }
}

/// Locks, waiters and leases of one file. Each module of the table adds the
/// operations for its part.
#[derive(Debug)]
pub(crate) struct Locks<T> {
    /// For tables by owner, whose values others may choose.
    pub(crate) hasher: DefaultHashBuilder,
    pub(crate) records: Slab<Record>,
    pub(crate) granted: [Granted; 3],
    pub(crate) waiters: Slab<Waiter<T>>,
    pub(crate) branches: Slab<Branch>,
    pub(crate) classes: Slab<Class>,
    pub(crate) waiting: [Waiting; 3],
    /// Waiters to be looked at, by arrival; empty between calls.
    pub(crate) pending: u32,
    /// Finished waiters that nobody has taken yet.
    pub(crate) ready: (u32, u32),
    /// What the owner of a finished waiter held of its bytes before the grant, by
    /// its slot; only where it held anything.
    pub(crate) held_before: Vec<(u32, Vec<(Range, LockType)>)>,
    /// Offered waiters that nobody has been told to wake yet.
    pub(crate) untold: u32,
    /// Whether a request has ever queued for fairness alone.
    pub(crate) has_queued: bool,
    /// Who queues for fairness alone, newly and by no call of his own.
    pub(crate) requeued: Requeued,
    /// Where the stamps of waiters' ids begin: another place in each file's state,
    /// so that an id of one is none of another.
    pub(crate) first_stamp: u32,
    /// The last arrival number given out.
    pub(crate) arrivals: u64,
    pub(crate) leases: Slab<Lease>,
    pub(crate) counters: Counters,
    /// Set for this file alone, in place of the settings' own.
    pub(crate) fairness: Option<Fairness>,
    /// The latest time that a call on leases was told.
    pub(crate) latest: Time,
}

impl<T> Locks<T> {
    pub(crate) fn new() -> Locks<T> {
        let hasher = DefaultHashBuilder::default();
        Locks {
            first_stamp: hasher.hash_one(0_u8) as u32,
            hasher,
            records: Slab::new(),
            granted: [Granted::NONE; 3],
            waiters: Slab::new(),
            branches: Slab::new(),
            classes: Slab::new(),
            waiting: [Waiting::NONE; 3],
            pending: NIL,
            ready: (NIL, NIL),
            held_before: Vec::new(),
            untold: 0,
            has_queued: false,
            requeued: Requeued::default(),
            arrivals: 0,
            leases: Slab::new(),
            counters: Counters::default(),
            fairness: None,
            latest: Time(0),
        }
    }

    pub(crate) fn fairness(&self, cx: &Context<'_>) -> Fairness {
        self.fairness.unwrap_or(cx.settings.fairness)
    }

    /// Whether nothing is locked and nobody waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.records.len() == 0 && self.waiters.len() == 0 && self.leases.len() == 0
    }

    /// Whether anybody waits, or has a result to take.
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.len() != 0
    }

    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.ready.0 != NIL || self.has_offer() || !self.requeued.is_empty()
    }

    /// Takes over the locks that a table kept in itself.
    ///
    /// # Errors
    /// `NoMemory`; then nothing has changed.
    pub(crate) fn take_in(&mut self, few: &mut Few) -> Result<(), LockError> {
        // Room for what the call that leads here is about to add, too.
        self.records.reserve(4).map_err(|_| LockError::NoMemory)?;
        while let Some(held) = few.take() {
            self.insert_held(held);
        }
        Ok(())
    }

    /// Drops every lock and lease. Nobody waits.
    pub(crate) fn drop_everything(&mut self, cx: &Context<'_>) {
        for space in [Space::Records, Space::Flocks] {
            while let Some(owner) = self.any_holder(space) {
                // A whole-file unlock never fails.
                let _ = self.unhold(space, &owner, Range::WHOLE, cx);
            }
        }
        for id in 0..self.leases.slots() {
            if self.leases.get(id).is_some() {
                self.drop_lease(id, cx);
            }
        }
    }

    /// Gives back what a crowd needed. Only while idle.
    pub(crate) fn give_back(&mut self) {
        self.records.shrink();
        self.waiters.shrink();
        self.branches.shrink();
        self.classes.shrink();
        self.leases.shrink();
        for waiting in &mut self.waiting {
            if waiting.owners.capacity() > 64 {
                waiting.owners = HashTable::new();
            }
        }
    }
}
