//! What can go wrong, each with the one errno that Linux gives for it.

use core::fmt;

use crate::lock::{LockInfo, WaiterId};

/// An error number of Linux. The values are those of every Linux architecture
/// that Rust's standard library supports but MIPS and SPARC, whose own numbers
/// an embedder there maps by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Errno {
    /// No such file or directory; here: no such waiter.
    ENOENT = 2,
    /// Interrupted system call.
    EINTR = 4,
    /// Input/output error; here: the file was torn down.
    EIO = 5,
    /// Bad file descriptor; here: closed while its owner waited, or not open in
    /// the way that the lock needs.
    EBADF = 9,
    /// Resource temporarily unavailable: the lock is held by somebody else.
    EAGAIN = 11,
    /// Cannot allocate memory.
    ENOMEM = 12,
    /// Invalid argument.
    EINVAL = 22,
    /// Resource deadlock avoided.
    EDEADLK = 35,
    /// No locks available.
    ENOLCK = 37,
    /// Value too large for defined data type; here: a range past the end.
    EOVERFLOW = 75,
    /// Connection timed out; here: the wait took longer than the caller allowed.
    ETIMEDOUT = 110,
    /// Operation already in progress.
    EALREADY = 114,
}

impl Errno {
    /// The number, positive.
    pub const fn raw(self) -> i32 {
        self as i32
    }

    /// The name, as errno(3) spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Errno::ENOENT => "ENOENT",
            Errno::EINTR => "EINTR",
            Errno::EIO => "EIO",
            Errno::EBADF => "EBADF",
            Errno::EAGAIN => "EAGAIN",
            Errno::ENOMEM => "ENOMEM",
            Errno::EINVAL => "EINVAL",
            Errno::EDEADLK => "EDEADLK",
            Errno::ENOLCK => "ENOLCK",
            Errno::EOVERFLOW => "EOVERFLOW",
            Errno::ETIMEDOUT => "ETIMEDOUT",
            Errno::EALREADY => "EALREADY",
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a range is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// The end lies before the start.
    Empty,
    /// The range begins before byte 0.
    NegativeStart,
    /// The range ends past [`OFFSET_MAX`](crate::OFFSET_MAX).
    PastEnd,
    /// `l_whence` is none of `SEEK_SET`, `SEEK_CUR`, `SEEK_END`.
    UnknownWhence(i32),
}

impl RangeError {
    /// EOVERFLOW for a range past the end, EINVAL for the others (fcntl(2)).
    pub const fn errno(self) -> Errno {
        match self {
            RangeError::PastEnd => Errno::EOVERFLOW,
            _ => Errno::EINVAL,
        }
    }
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RangeError::Empty => f.write_str("the range ends before it starts"),
            RangeError::NegativeStart => f.write_str("the range starts before byte 0"),
            RangeError::PastEnd => f.write_str("the range ends past the last offset, 2^63-1"),
            RangeError::UnknownWhence(whence) => {
                write!(
                    f,
                    "l_whence is {whence}, not SEEK_SET, SEEK_CUR or SEEK_END"
                )
            }
        }
    }
}

impl core::error::Error for RangeError {}

/// Which limit a request ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// Locks of one owner, over all files.
    LocksPerOwner,
    /// Locks on one file.
    LocksPerFile,
    /// Locks in all.
    LocksInAll,
    /// Waiting requests of one owner, over all files.
    WaitersPerOwner,
    /// Waiting requests on one file.
    WaitersPerFile,
    /// Waiting requests in all.
    WaitersInAll,
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LimitKind::LocksPerOwner => "locks per owner",
            LimitKind::LocksPerFile => "locks per file",
            LimitKind::LocksInAll => "locks in all",
            LimitKind::WaitersPerOwner => "waiting requests per owner",
            LimitKind::WaitersPerFile => "waiting requests per file",
            LimitKind::WaitersInAll => "waiting requests in all",
        })
    }
}

/// Why a lock call failed. Whatever the error, the locks are as they were
/// before the call, but for a flock conversion, which drops the old lock first
/// (flock(2)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockError {
    /// Another owner's lock is in the way: EAGAIN.
    Conflict(LockInfo),
    /// No lock is in the way, but a request that has been overtaken as often as
    /// the fairness bound allows waits for some of the same bytes: EAGAIN.
    Queued(LockInfo),
    /// Waiting would close a cycle of owners that wait for each other: EDEADLK.
    /// The owner is the next one in the cycle, whom the caller would wait for.
    Deadlock(LockInfo),
    /// The wait was interrupted or cancelled: EINTR.
    Interrupted,
    /// The wait took longer than the caller allowed: ETIMEDOUT.
    TimedOut,
    /// The owner's descriptor was closed while it waited: EBADF.
    Closed,
    /// The file was torn down: EIO.
    TornDown,
    /// A limit is reached: ENOLCK.
    Limit(LimitKind),
    /// No memory for another lock or waiter: ENOLCK, as fcntl(2) names it.
    NoMemory,
    /// The range is none: EINVAL or EOVERFLOW.
    Range(RangeError),
    /// A lease cannot be had, because of how the file is open or because others
    /// hold leases on it or break them: EAGAIN (fcntl(2), F_SETLEASE).
    LeaseUnavailable,
    /// The opener would have to wait for a lease to be broken: EAGAIN, the same
    /// number as EWOULDBLOCK (open(2)).
    LeaseInTheWay(LockInfo),
    /// No lease of this owner to act on: EAGAIN (fcntl(2), F_SETLEASE with
    /// F_UNLCK).
    NoLease,
    /// This callback id is waiting already: EALREADY. The first request stands.
    AlreadyWaiting(WaiterId),
    /// The given time lies before a time given earlier: EINVAL.
    TimeRanBackwards,
}

impl LockError {
    /// The errno that Linux gives for it.
    pub const fn errno(&self) -> Errno {
        match self {
            LockError::Conflict(_)
            | LockError::Queued(_)
            | LockError::LeaseUnavailable
            | LockError::LeaseInTheWay(_)
            | LockError::NoLease => Errno::EAGAIN,
            LockError::Deadlock(_) => Errno::EDEADLK,
            LockError::Interrupted => Errno::EINTR,
            LockError::TimedOut => Errno::ETIMEDOUT,
            LockError::Closed => Errno::EBADF,
            LockError::TornDown => Errno::EIO,
            LockError::Limit(_) | LockError::NoMemory => Errno::ENOLCK,
            LockError::Range(error) => error.errno(),
            LockError::AlreadyWaiting(_) => Errno::EALREADY,
            LockError::TimeRanBackwards => Errno::EINVAL,
        }
    }

    /// The lock or waiting request in the way, where there is one.
    pub fn in_the_way(&self) -> Option<&LockInfo> {
        match self {
            LockError::Conflict(info)
            | LockError::Queued(info)
            | LockError::Deadlock(info)
            | LockError::LeaseInTheWay(info) => Some(info),
            _ => None,
        }
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::Conflict(info) => write!(f, "held by another owner: {info}"),
            LockError::Queued(info) => write!(f, "another owner has waited long enough: {info}"),
            LockError::Deadlock(info) => {
                write!(
                    f,
                    "waiting would close a cycle of waits, next in it: {info}"
                )
            }
            LockError::Interrupted => f.write_str("the wait was interrupted"),
            LockError::TimedOut => f.write_str("the wait timed out"),
            LockError::Closed => f.write_str("the descriptor was closed during the wait"),
            LockError::TornDown => f.write_str("the file was torn down"),
            LockError::Limit(kind) => write!(f, "the limit of {kind} is reached"),
            LockError::NoMemory => f.write_str("no memory for another lock"),
            LockError::Range(error) => error.fmt(f),
            LockError::LeaseUnavailable => {
                f.write_str("other openers or leases of the file forbid the lease")
            }
            LockError::LeaseInTheWay(info) => write!(f, "a lease must be broken first: {info}"),
            LockError::NoLease => f.write_str("the owner holds no lease on the file"),
            LockError::AlreadyWaiting(_) => f.write_str("a request of this id waits already"),
            LockError::TimeRanBackwards => f.write_str("the given time lies before an earlier one"),
        }
    }
}

impl core::error::Error for LockError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            LockError::Range(error) => Some(error),
            _ => None,
        }
    }
}

impl From<RangeError> for LockError {
    fn from(error: RangeError) -> LockError {
        LockError::Range(error)
    }
}

/// Nothing waits under this id: it was granted, refused or cancelled before, or
/// never was. ENOENT; where it was granted, the grant stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotWaiting;

impl NotWaiting {
    /// ENOENT.
    pub const fn errno(self) -> Errno {
        Errno::ENOENT
    }
}

impl fmt::Display for NotWaiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no request waits under this id")
    }
}

impl core::error::Error for NotWaiting {}
