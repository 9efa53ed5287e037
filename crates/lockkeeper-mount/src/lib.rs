//! A FUSE mount whose file locks are served by lockkeeper.
//!
//! The file system itself is a passthrough: what is at the source shows at the mount point. What is
//! special is the locks. Every fcntl(2), OFD and flock(2) call on the mount reaches a [`LockService`],
//! told apart, with the right owner, in the order it was made.
//!
//! # Why no FUSE crate
//!
//! Four were weighed. What the locks need rules most of them out: fuser answers INTERRUPT with `ENOSYS`
//! and drops `lk_flags`, so a waiting program could not be killed and a flock would become a record lock;
//! fuse3 drops `lk_flags` too; polyfuse has no extended INIT and so no backing files. fuse-backend-rs
//! leaves the loop to the caller, so its server could be used beside a loop of our own that takes the
//! lock messages. But its passthrough (some 4,000 lines, with its own table of inodes) hides its handles,
//! and lock service, backing files and exact permissions all hang on those: OPEN, CREATE, TMPFILE, READDIR,
//! READDIRPLUS, RELEASE, INIT, and with them READ, WRITE, FSYNC, FALLOCATE and LSEEK would be ours anyway.
//! It also acts with the caller's user and group but not with his supplementary groups, and applies the
//! umask without regard to default access lists. What would have remained of it is a dozen short calls.
//!
//! So the protocol is spoken directly: the records in [`abi`] and their strict decoder in [`request`] (some
//! 700 lines), the passthrough in `fs` (some 1,800, on rustix), the loop and the workers (some 500). That is
//! about as much as gluing would have been, but all of it is ours to test, and all of it is safe Rust; `unsafe`
//! is confined to `sys`.
//!
//! # Who does what
//!
//! ```text
//!  kernel ─► server   one reader, in order ─► locks    owners, deferred replies ─► LockService: service
//!              │      (relay: whose turn it is)
//!              │                               ├ owners  whose lock is it: a pure state machine
//!              │                               └ caller  OFD or POSIX? /proc/TID/syscall tells
//!              ├─► fs       the passthrough, with the caller's rights (credentials)
//!              └─► workers  the same, for what may wait for a disk
//!
//!  service      the LockService over lockkeeper's LockManager
//!  timelines    what is recorded of the files that somebody watches
//!  leases       which were taken away, as far as the kernel lets on
//!  turn         of servers that start at once on one mount point, one mounts
//!  status       the socket over which a listing is asked for; what it says: lockkeeper-watch
//! ```
//!
//! Exactly one thread reads the device at any time. RELEASE is asynchronous: with two readers a program that
//! closes a file and opens it again would meet its own old lock. And a wake-up across cpus costs more than all
//! the work of a lock call, so the reader does that work itself. Nothing it does may take long: reads that the
//! page cache cannot answer, large or slow writes, fsync, truncation and their like go to worker threads,
//! which cannot break an order that matters (see `fs::data`); a lock request that must wait is a [`DeferredReply`] somewhere
//! in the lock manager, and no thread at all. A reader that gets stuck in the source all the same, which may be
//! a file system that hangs, loses its turn to another thread (`relay`).

#![deny(missing_docs)]
#![deny(unsafe_code)]

pub mod abi;
mod backing;
mod caller;
mod credentials;
mod device;
mod fs;
mod leases;
mod locks;
pub mod mountpoint;
mod owners;
mod polling;
mod relay;
mod reporter;
pub mod request;
mod sentinel;
mod server;
mod service;
mod session;
pub mod status;
mod sys;
mod tally;
mod timelines;
mod turn;
#[cfg(test)]
mod wire_tests;
mod workers;

pub use lockkeeper_watch::report::{self, Counts};
pub use locks::{
    Conflict, DeferredReply, FileId, HandleId, IoRequest, LockClass, LockKind, LockRequest,
    LockService, OFFSET_MAX, Range, RequestId,
};
pub use mountpoint::{MountError, Prepared};
pub use owners::{Owner, OwnerKind};
pub use reporter::Reporter;
pub use rustix::io::Errno;
pub use sentinel::Sentinel;
pub use server::{DataPath, Negotiated, Observer};
pub use service::ManagerService;
pub use session::{MountOptions, Session, Unmounted, Unmounter};
pub use timelines::Watching;
