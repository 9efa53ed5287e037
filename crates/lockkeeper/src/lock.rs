//! The words that every layer uses: types of locks, what a lock shows of itself,
//! time, ids of waiters, limits and the fairness bound.

use core::fmt;
use core::time::Duration;

use crate::owner::{Owner, PidView, ProcessId};
use crate::range::Range;

/// Read (shared) or write (exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockType {
    /// Shared: F_RDLCK, LOCK_SH. Any number of owners may hold it together.
    Read = 0,
    /// Exclusive: F_WRLCK, LOCK_EX.
    Write = 1,
}

impl LockType {
    /// Whether locks of these two types on the same bytes by different owners
    /// exclude each other: unless both only read.
    pub const fn excludes(self, other: LockType) -> bool {
        matches!(self, LockType::Write) || matches!(other, LockType::Write)
    }
}

impl fmt::Display for LockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LockType::Read => "read",
            LockType::Write => "write",
        })
    }
}

/// Which family of locks a lock or a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockKind {
    /// POSIX record lock, of a process or a remote owner.
    Posix,
    /// Record lock of an open file description.
    Ofd,
    /// Whole-file lock, flock(2).
    Flock,
    /// Lease, or the wait of an opener for one to be broken.
    Lease,
    /// Delegation: a lease of a server's own kind.
    Delegation,
    /// A wait of `check_io`: reads or writes that mandatory locking delays.
    Access,
}

impl LockKind {
    /// The kind of a record lock of `owner`.
    pub(crate) fn of_record(owner: &Owner) -> LockKind {
        match owner {
            Owner::OpenFile(_) => LockKind::Ofd,
            _ => LockKind::Posix,
        }
    }
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LockKind::Posix => "posix",
            LockKind::Ofd => "ofd",
            LockKind::Flock => "flock",
            LockKind::Lease => "lease",
            LockKind::Delegation => "delegation",
            LockKind::Access => "access",
        })
    }
}

/// A lock or a waiting request, as it is shown to whom it stands in the way of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// Its family.
    pub kind: LockKind,
    /// Read or write.
    pub lock_type: LockType,
    /// The bytes; [`Range::WHOLE`] for flock and leases.
    pub range: Range,
    /// Whose it is.
    pub owner: Owner,
    /// The process that took it, where that is known and not the owner itself:
    /// listings show it for flock. `ProcessId(0)` where unknown.
    pub taken_by: ProcessId,
}

impl LockInfo {
    /// `l_pid` as F_GETLK reports it (fcntl(2)): the owner's pid in the asker's
    /// view, 0 where the asker cannot see it, -1 for an open file description,
    /// a remote owner's own number as it is.
    pub fn pid(&self, view: &dyn PidView) -> i32 {
        match &self.owner {
            Owner::Process(process) => view.pid(*process).unwrap_or(0),
            Owner::OpenFile(_) => -1,
            Owner::Remote(remote) => remote.number(),
        }
    }
}

impl fmt::Display for LockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} [{}] of ", self.kind, self.lock_type, self.range)?;
        match &self.owner {
            Owner::Process(process) => write!(f, "process {}", process.0),
            Owner::OpenFile(file) => write!(f, "open file {}", file.0),
            Owner::Remote(remote) => write!(f, "{remote:?}"),
        }
    }
}

/// A point in time, in nanoseconds since a moment of the embedder's choosing; it
/// must not run backwards. The table never asks for the time, it is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The time `duration` later; the end of time where that is past it.
    pub fn after(self, duration: Duration) -> Time {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(nanos))
    }

    /// How long ago `earlier` was; zero if it was not.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Names a waiting request of one table. Never used again for another one
/// within 2^32 waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaiterId {
    pub(crate) slot: u32,
    pub(crate) stamp: u32,
}

/// How many newcomers may overtake a waiter before they queue behind it.
///
/// A newcomer *overtakes* a waiter when it is granted a lock that the waiter's
/// request conflicts with. That counts against the bound while the waiter is at
/// the head of its queue: the oldest of those that wait for the same bytes and
/// type. So whoever is `n`-th in a queue lets at most `n` times the bound pass,
/// and nobody starves, however long the queue is.
///
/// Owners for whom the waiter itself waits are never queued behind it: that
/// would be a deadlock made by fairness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fairness {
    /// Linux: without end. Readers can starve a writer.
    Unlimited,
    /// At most so many; 0 is first come, first served.
    Bounded(u32),
}

impl Fairness {
    /// First come, first served.
    pub const FIFO: Fairness = Fairness::Bounded(0);

    pub(crate) fn is_exhausted(self, overtaken: u64) -> bool {
        match self {
            Fairness::Unlimited => false,
            Fairness::Bounded(bound) => overtaken >= u64::from(bound),
        }
    }
}

impl Default for Fairness {
    /// A bound that keeps throughput high and lets nobody starve: 1,000.
    fn default() -> Fairness {
        Fairness::Bounded(1000)
    }
}

/// How many locks and waiting requests there may be; `None` is no limit.
/// Reaching one gives ENOLCK and changes nothing. Unlocking a whole file is
/// never refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Locks of one owner, over all files.
    pub locks_per_owner: Option<u32>,
    /// Locks on one file.
    pub locks_per_file: Option<u32>,
    /// Locks in all.
    pub locks_in_all: Option<u32>,
    /// Waiting requests of one owner, over all files.
    pub waiters_per_owner: Option<u32>,
    /// Waiting requests on one file.
    pub waiters_per_file: Option<u32>,
    /// Waiting requests in all.
    pub waiters_in_all: Option<u32>,
}

impl Limits {
    /// Whether nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        *self == Limits::default()
    }
}
