//! The inodes the kernel knows, and the files it has open.
//!
//! The kernel names an inode by a number that this table gives out (never twice) and counts how often
//! it was told; FORGET takes counts back. For each inode there is one `O_PATH` descriptor: it pins the
//! inode below, so (device, inode number) stays its identity for as long as it is here, renamed or
//! unlinked as it may be. That identity is also what its locks are kept under.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use rustix::io::Errno;

use crate::abi::ROOT_ID;
use crate::locks::{FileId, HandleId};

/// One inode of the source.
#[derive(Debug)]
pub struct Inode {
    /// The kernel's name for it.
    pub nodeid: u64,
    /// Device and inode number at the source.
    pub id: FileId,
    fd: OwnedFd,
    /// How its open files do their reads and writes.
    pub io: Mutex<IoMode>,
}

/// How reads and writes of an inode go while it is open. The kernel insists that all open files of one
/// inode agree on it: the first open decides, the last release ends it.
#[derive(Debug, Default)]
pub enum IoMode {
    /// Not open.
    #[default]
    Closed,
    /// Through this server, by `opens` open files.
    Served {
        /// How many.
        opens: u64,
    },
    /// By the kernel itself, on the backing file registered as `id`.
    Backed {
        /// How many open files.
        opens: u64,
        /// The id that every OPEN of this inode must name.
        id: i32,
    },
}

impl Inode {
    /// The `O_PATH` descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Its entry below `/proc/self/fd`.
    pub fn proc_name(&self) -> String {
        self.fd.as_raw_fd().to_string()
    }
}

#[derive(Debug)]
struct Known {
    inode: Arc<Inode>,
    lookups: u64,
}

#[derive(Debug, Default)]
struct Maps {
    /// In order of age, since numbers only grow.
    by_node: BTreeMap<u64, Known>,
    by_id: HashMap<FileId, u64>,
    next: u64,
}

/// All inodes the kernel knows.
#[derive(Debug, Default)]
pub struct InodeTable(Mutex<Maps>);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere must not take the mount down; no invariant spans two statements here.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl InodeTable {
    /// A table with the root alone.
    pub fn new(root: OwnedFd, id: FileId) -> InodeTable {
        let table = InodeTable::default();
        {
            let mut maps = lock(&table.0);
            maps.next = ROOT_ID;
            maps.insert(root, id);
        }
        table
    }

    /// The inode the kernel calls `nodeid`.
    ///
    /// # Errors
    /// `ESTALE` if there is none.
    pub fn get(&self, nodeid: u64) -> Result<Arc<Inode>, Errno> {
        lock(&self.0)
            .by_node
            .get(&nodeid)
            .map(|known| known.inode.clone())
            .ok_or(Errno::STALE)
    }

    /// Counts one more lookup of the inode that `fd` refers to, and returns it.
    pub fn remember(&self, fd: OwnedFd, id: FileId) -> Arc<Inode> {
        let mut maps = lock(&self.0);
        if let Some(&nodeid) = maps.by_id.get(&id)
            && let Some(known) = maps.by_node.get_mut(&nodeid)
        {
            known.lookups += 1;
            return known.inode.clone();
        }
        maps.insert(fd, id)
    }

    /// Takes `count` lookups back; the inode goes with its last one.
    pub fn forget(&self, nodeid: u64, count: u64) {
        let mut maps = lock(&self.0);
        let Some(known) = maps.by_node.get_mut(&nodeid) else {
            return;
        };
        known.lookups = known.lookups.saturating_sub(count);
        if known.lookups == 0 && nodeid != ROOT_ID {
            let id = known.inode.id;
            let gone = maps.by_node.remove(&nodeid);
            maps.by_id.remove(&id);
            drop(maps);
            drop(gone); // Closes a descriptor: not under the lock.
        }
    }

    /// How many inodes are known.
    pub fn len(&self) -> usize {
        lock(&self.0).by_node.len()
    }

    /// Every inode but the root, the longest known first.
    pub fn by_age(&self) -> Vec<u64> {
        lock(&self.0)
            .by_node
            .keys()
            .copied()
            .filter(|&node| node != ROOT_ID)
            .collect()
    }

    /// The node that shows this file, if the kernel knows it.
    pub fn node_of(&self, id: FileId) -> Option<u64> {
        lock(&self.0).by_id.get(&id).copied()
    }
}

impl Maps {
    fn insert(&mut self, fd: OwnedFd, id: FileId) -> Arc<Inode> {
        let nodeid = self.next;
        self.next += 1;
        let inode = Arc::new(Inode {
            nodeid,
            id,
            fd,
            io: Mutex::default(),
        });
        self.by_node.insert(
            nodeid,
            Known {
                inode: inode.clone(),
                lookups: 1,
            },
        );
        self.by_id.insert(id, nodeid);
        inode
    }
}

/// A file or folder the kernel has open.
#[derive(Debug)]
pub struct Handle {
    /// What it is open on.
    pub inode: Arc<Inode>,
    /// The server's own descriptor.
    pub fd: OwnedFd,
    /// For folders: where the descriptor's position is, as the cookie of the next entry.
    pub position: Mutex<u64>,
}

/// All open files and folders. Numbers are never used twice.
#[derive(Debug, Default)]
pub struct HandleTable {
    handles: Mutex<HashMap<u64, Arc<Handle>>>,
    last: AtomicU64,
}

impl HandleTable {
    /// Adds a handle and returns its number.
    pub fn insert(&self, inode: Arc<Inode>, fd: OwnedFd) -> HandleId {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let handle = Arc::new(Handle {
            inode,
            fd,
            position: Mutex::new(0),
        });
        lock(&self.handles).insert(id, handle);
        HandleId(id)
    }

    /// The handle with this number.
    ///
    /// # Errors
    /// `EBADF` if there is none.
    pub fn get(&self, id: u64) -> Result<Arc<Handle>, Errno> {
        lock(&self.handles).get(&id).cloned().ok_or(Errno::BADF)
    }

    /// Takes a handle out.
    pub fn remove(&self, id: u64) -> Option<Arc<Handle>> {
        lock(&self.handles).remove(&id)
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        lock(&self.handles).len()
    }
}
