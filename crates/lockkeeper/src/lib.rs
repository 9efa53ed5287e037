//! The file-lock manager of Linux as a library: POSIX record locks, open-file-description
//! locks, flock and leases, with the tree of blocked requests that ends the thundering
//! herd.
//!
//! # Two layers
//! - [`LockManager`] (feature `std`) serves many files to threads, tasks and callbacks.
//!   [`LockManager::file`] gives a [`FileHandle`], and that the calls of fcntl(2) and
//!   flock(2): [`FileHandle::posix`], [`ofd`](FileHandle::ofd),
//!   [`flock`](FileHandle::flock), [`lease`](FileHandle::lease).
//! - [`table::Table`] is one file's locks and waiters: a pure state machine without I/O,
//!   clock or threads, for `no_std` with `alloc`. Kernels embed this one.
//!
//! # Words
//! A *granted lock* is a record on a file. A *request* asks for one. A *waiter* is a
//! request that waits, for its *blocker*: a granted lock or another waiter. *Owners*
//! ([`Owner`]) are values, and equal by value. Ranges ([`Range`]) have inclusive ends, up
//! to [`OFFSET_MAX`].
//!
//! # Errors
//! Every call that can fail gives a [`LockError`] with the one errno that Linux gives for
//! it ([`LockError::errno`]); a conflict carries the lock in the way.
//!
//! # Features
//! `std` (default): the manager. `tracing`: events under the kernel's tracepoint names.

#![cfg_attr(not(feature = "std"), no_std)]
// Allowed in one place: `mutex`.
#![deny(unsafe_code)]

extern crate alloc;

mod avl;
pub mod deadlock;
pub mod error;
pub mod lock;
#[cfg(feature = "std")]
pub mod manager;
#[cfg(all(feature = "std", not(loom)))]
mod mutex;
/// For its model alone.
#[cfg(loom)]
pub mod mutex;
pub mod owner;
#[cfg(feature = "std")]
pub mod proc_locks;
pub mod range;
mod slab;
#[cfg(feature = "std")]
mod sync;
pub mod table;

pub use error::{Errno, LimitKind, LockError, NotWaiting, RangeError};
pub use lock::{Fairness, Limits, LockInfo, LockKind, LockType, Time, WaiterId};
#[cfg(feature = "std")]
pub use manager::{
    CallbackId, FileHandle, FileId, Flock, Interrupt, Lease, LockFuture, LockManager, Opening,
    Records, Started, WaitOptions,
};
pub use owner::{FileOwner, OpenFileId, Owner, PidIsId, PidView, ProcessId, RemoteOwner};
pub use range::{OFFSET_MAX, Range, Whence};
pub use table::{BreakScope, LeaseBreak, LeaseState, Openers, Waits};

/// The example of the README compiles and runs.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
