//! What the status socket tells: the mount, and every lock and waiting request on it.
//!
//! The form of the JSON document is described in `docs/mount.md`, and is these types.

use serde::{Deserialize, Serialize};

use crate::locks::{FileId, LockKind};

/// The version of the document. It grows when a field goes or changes its meaning; new fields may come
/// without.
pub const VERSION: u32 = 1;

/// The whole document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The version of the server.
    pub lockkeeper: String,
    /// The server's process id.
    pub pid: u32,
    /// The folder that is shown.
    pub source: String,
    /// Where it is shown.
    pub mountpoint: String,
    /// How data goes: `backing`, `cached` or `direct`; `None` until the kernel has said hello.
    pub data: Option<String>,
    /// Whether reads and writes obey record locks.
    pub mandatory: bool,
    /// Numbers that tell how the mount is doing.
    pub counts: Counts,
    /// The files on which anything is locked.
    pub files: Vec<FileLocks>,
}

/// Numbers that tell how a mount is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Inodes the kernel knows.
    pub inodes: usize,
    /// Files and folders it has open.
    pub handles: usize,
    /// Processes that have, want or had locks in files they still have open.
    pub lock_processes: usize,
    /// Open files that were used to lock.
    pub lock_handles: usize,
    /// Requests whose reply is still owed: waiters.
    pub waiting: usize,
}

/// A file on which something is locked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileLocks {
    /// Where the file is on the mount; `None` if that cannot be told.
    pub path: Option<String>,
    /// Whether it is unlinked: the path is where it was.
    pub deleted: bool,
    /// Its inode number as stat(2) shows it on the mount.
    pub inode: u64,
    /// Its size in bytes; `None` if that cannot be told.
    pub size: Option<u64>,
    /// The device number of the file at the source.
    pub source_device: u64,
    /// The inode number of the file at the source.
    pub source_inode: u64,
    /// The locks held: record locks by their first byte, then flocks.
    pub locks: Vec<Held>,
    /// The requests that wait, in the order of the tree: each is followed by those that hang beneath it.
    pub waiters: Vec<Waiting>,
}

/// The family of a lock or request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A process's record lock.
    Posix,
    /// A record lock of an open file description.
    Ofd,
    /// flock(2).
    Flock,
    /// A read or write that waits for mandatory locks.
    Access,
    /// A kind of another version.
    #[serde(other)]
    Other,
}

/// Shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
}

/// What is locked or asked for, and by whom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lock {
    /// The family.
    pub kind: Kind,
    /// Shared or exclusive.
    #[serde(rename = "type")]
    pub mode: Mode,
    /// The first byte.
    pub start: u64,
    /// The last byte, inclusive; `None` to the end, however the file grows.
    pub end: Option<u64>,
    /// The process that took or wants it, as the server sees it; of several that share an open file
    /// description, the one that called. 0 if it is not visible there.
    pub pid: u32,
    /// The name of its program; `None` if it has ended.
    pub command: Option<String>,
    /// Whose lock it is: equal numbers are one owner, a process or an open file description.
    pub owner: u64,
}

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// The lock.
    #[serde(flatten)]
    pub lock: Lock,
    /// For how many seconds; of a lock that was put together from parts, the oldest part.
    pub held_for: f64,
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// What is asked for.
    #[serde(flatten)]
    pub lock: Lock,
    /// For how many seconds it has waited.
    pub waits_for: f64,
    /// How many were granted what it conflicts with since it came.
    pub overtaken: u64,
    /// How many waiters stand between it and the lock that blocks it.
    pub depth: u32,
    /// What it hangs beneath; `None` if it is just being granted.
    pub blocked_by: Option<Blocker>,
}

/// What a request hangs beneath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Blocker {
    /// The lock at this place of `locks`, from 0.
    Lock(usize),
    /// The request at this place of `waiters`, from 0.
    Waiter(usize),
}

impl FileLocks {
    /// Nothing yet, of this file of the source.
    pub fn new(file: FileId) -> FileLocks {
        FileLocks {
            path: None,
            deleted: false,
            inode: file.ino,
            size: None,
            source_device: file.dev,
            source_inode: file.ino,
            locks: Vec::new(),
            waiters: Vec::new(),
        }
    }

    /// The file, as the lock manager knows it.
    pub fn file(&self) -> FileId {
        FileId {
            dev: self.source_device,
            ino: self.source_inode,
        }
    }

    /// The lock or request that this one hangs beneath.
    pub fn blocker(&self, waiting: &Waiting) -> Option<&Lock> {
        match waiting.blocked_by? {
            Blocker::Lock(index) => self.locks.get(index).map(|held| &held.lock),
            Blocker::Waiter(index) => self.waiters.get(index).map(|waiting| &waiting.lock),
        }
    }
}

impl Mode {
    /// The same as a kind of request.
    pub fn as_lock_kind(self) -> LockKind {
        match self {
            Mode::Read => LockKind::Read,
            Mode::Write => LockKind::Write,
        }
    }
}
