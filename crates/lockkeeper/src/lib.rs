//! The file-lock manager of Linux as a library.

#![cfg_attr(not(feature = "std"), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod avl;
pub mod error;
pub mod lock;
pub mod owner;
pub mod range;
mod slab;
pub mod table;

pub use error::{Errno, LimitKind, LockError, NotWaiting, RangeError};
pub use lock::{Fairness, Limits, LockInfo, LockKind, LockType, Time, WaiterId};
pub use owner::{FileOwner, OpenFileId, Owner, PidIsId, PidView, ProcessId, RemoteOwner};
pub use range::{OFFSET_MAX, Range, Whence};
