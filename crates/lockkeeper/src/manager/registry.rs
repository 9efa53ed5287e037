//! Who waits, over all files: what the search for deadlocks starts from.
//!
//! Written only where a request begins or ends to wait. The path where nobody
//! waits does not come here, and a lock that is granted while others wait reads
//! one counter: [`Registry::is_waiting`].

use core::hash::{BuildHasher, Hash};

use hashbrown::HashTable;

use super::file::File;
use crate::lock::WaiterId;
use crate::owner::Owner;
use crate::sync::{Arc, AtomicU32, HashBuilder, Mutex, Ordering, lock};

const SHARDS: usize = if cfg!(loom) { 1 } else { 64 };
const SLOTS: usize = if cfg!(loom) { 4 } else { 16384 };

/// A waiting request.
#[derive(Clone)]
pub(crate) struct Wait {
    pub(crate) file: Arc<File>,
    pub(crate) id: WaiterId,
}

impl Wait {
    /// Whether this is the same request.
    pub(crate) fn is(&self, other: &Wait) -> bool {
        self.id == other.id && Arc::ptr_eq(&self.file, &other.file)
    }
}

/// The one request of an owner that waits.
pub(crate) enum SoleWait {
    /// None does.
    None,
    /// On the file that was asked about.
    Here(WaiterId),
    /// On another.
    Elsewhere(Wait),
    /// Several do.
    Several,
}

/// The owner is kept as its hash, which is half the size. Two owners with one hash
/// would make a search follow a wait that is not its owner's, so whoever acts on
/// what it found asks the table for the owner.
struct Entry {
    owner_hash: u64,
    wait: Wait,
}

pub(crate) struct Registry {
    hasher: HashBuilder,
    shards: Box<[Mutex<HashTable<Entry>>]>,
    /// Counts of waiting requests by hash of their owner. A slot that is 0 says
    /// for sure that none of its owners waits.
    ///
    /// Sequentially consistent, since two searches must not miss each other:
    /// each writes its own slot before it reads the others', so whichever of two
    /// requests is later in the order of these writes sees the earlier one.
    waiting: Box<[AtomicU32]>,
}

impl Registry {
    pub(crate) fn new() -> Registry {
        Registry {
            hasher: HashBuilder::default(),
            shards: (0..SHARDS).map(|_| Mutex::new(HashTable::new())).collect(),
            waiting: (0..SLOTS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn hash(&self, owner: &Owner) -> u64 {
        self.hasher.hash_one(owner)
    }

    /// Whether this owner has a request that waits.
    #[inline]
    pub(crate) fn is_waiting(&self, owner: &Owner) -> bool {
        let hash = self.hash(owner);
        self.waiting[hash as usize % SLOTS].load(Ordering::SeqCst) != 0 && self.is_listed(hash)
    }

    #[cold]
    fn is_listed(&self, hash: u64) -> bool {
        let shard = lock(self.shard(hash));
        shard.find(hash, |entry| entry.owner_hash == hash).is_some()
    }

    fn shard(&self, hash: u64) -> &Mutex<HashTable<Entry>> {
        // The low bits choose the bucket within a shard's table.
        &self.shards[(hash >> 48) as usize % SHARDS]
    }

    pub(crate) fn begin(&self, owner: &Owner, file: &Arc<File>, id: WaiterId) {
        let hash = self.hash(owner);
        let mut shard = lock(self.shard(hash));
        self.waiting[hash as usize % SLOTS].fetch_add(1, Ordering::SeqCst);
        shard.insert_unique(
            hash,
            Entry {
                owner_hash: hash,
                wait: Wait {
                    file: file.clone(),
                    id,
                },
            },
            |entry| entry.owner_hash,
        );
    }

    pub(crate) fn end(&self, owner: &Owner, file: &Arc<File>, id: WaiterId) {
        let hash = self.hash(owner);
        let mut shard = lock(self.shard(hash));
        let found = shard.find_entry(hash, |entry| {
            entry.wait.id == id && Arc::ptr_eq(&entry.wait.file, file)
        });
        if let Ok(entry) = found {
            let (entry, _) = entry.remove();
            if shard.is_empty() && shard.capacity() > 64 {
                *shard = HashTable::new();
            }
            drop(shard);
            // Not under the shard: this may be the last use of the file.
            drop(entry);
            self.waiting[hash as usize % SLOTS].fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// The one request of this owner that waits, if it is one.
    pub(crate) fn sole_wait_of(&self, owner: &Owner, here: &Arc<File>) -> SoleWait {
        let hash = self.hash(owner);
        let shard = lock(self.shard(hash));
        let mut waits = shard
            .iter_hash(hash)
            .filter(|entry| entry.owner_hash == hash);
        match (waits.next(), waits.next()) {
            (None, _) => SoleWait::None,
            (Some(_), Some(_)) => SoleWait::Several,
            (Some(Entry { wait, .. }), None) if Arc::ptr_eq(&wait.file, here) => {
                SoleWait::Here(wait.id)
            }
            (Some(Entry { wait, .. }), None) => SoleWait::Elsewhere(wait.clone()),
        }
    }

    /// Every waiting request of this owner.
    pub(crate) fn waits_of(&self, owner: &Owner, visit: &mut dyn FnMut(Wait)) {
        let hash = self.hash(owner);
        let shard = lock(self.shard(hash));
        for entry in shard.iter_hash(hash) {
            if entry.owner_hash == hash {
                visit(entry.wait.clone());
            }
        }
    }
}

/// Hashes ids of files and callbacks, whose values others may choose.
pub(crate) fn hash_of(hasher: &HashBuilder, value: &impl Hash) -> u64 {
    hasher.hash_one(value)
}
