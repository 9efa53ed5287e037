//! The file-lock manager of Linux as a library.

#![cfg_attr(not(feature = "std"), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod avl;
pub mod deadlock;
pub mod error;
pub mod lock;
#[cfg(feature = "std")]
pub mod manager;
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
