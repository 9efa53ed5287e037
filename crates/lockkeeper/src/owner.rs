//! Who owns a lock: a process, an open file description, or a client elsewhere.
//!
//! An owner is a value. Two requests belong to one owner exactly if their
//! owners are equal; what the numbers stand for is the embedder's business. A
//! number must not be used again for somebody else while locks of its first
//! bearer may remain: a kernel uses the address of the descriptor table, a
//! server a counter.
//!
//! No pid is kept or looked up when a lock is taken. Who asks later brings a
//! [`PidView`], which says what he can see from where he stands.

use alloc::sync::Arc;
use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};

/// A process, as the owner of POSIX record locks: its threads share it, a forked
/// child is another, `exec` keeps it (fcntl(2), "Advisory record locking").
///
/// The number is opaque to the table. Zero stands for "unknown" where a process
/// is only named for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

/// An open file description, as the owner of OFD record locks, flock locks and
/// leases (fcntl(2), "Open file description locks"; flock(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpenFileId(pub u64);

/// An owner on another machine: a name of any bytes, which alone decides
/// equality, and the number that its system showed for it (the `svid` of NLM).
#[derive(Clone)]
pub struct RemoteOwner(Arc<Remote>);

struct Remote {
    number: i32,
    name: alloc::boxed::Box<[u8]>,
}

impl RemoteOwner {
    /// The owner called `name`, shown in queries and listings as `number`.
    pub fn new(name: &[u8], number: i32) -> RemoteOwner {
        RemoteOwner(Arc::new(Remote {
            number,
            name: name.into(),
        }))
    }

    /// The name, as it was given.
    pub fn name(&self) -> &[u8] {
        &self.0.name
    }

    /// The number to show, as it was given. Servers conventionally use negative
    /// numbers, which can be no process of this machine.
    pub fn number(&self) -> i32 {
        self.0.number
    }
}

impl PartialEq for RemoteOwner {
    fn eq(&self, other: &RemoteOwner) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.name == other.0.name
    }
}

impl Eq for RemoteOwner {}

impl PartialOrd for RemoteOwner {
    fn partial_cmp(&self, other: &RemoteOwner) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RemoteOwner {
    fn cmp(&self, other: &RemoteOwner) -> Ordering {
        self.0.name.cmp(&other.0.name)
    }
}

impl Hash for RemoteOwner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl fmt::Debug for RemoteOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteOwner(\"{}\")", self.0.name.escape_ascii())
    }
}

/// Whom a lock belongs to. See the [module](self) for what equality means.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// Owner of POSIX record locks.
    Process(ProcessId),
    /// Owner of OFD record locks, flock locks and leases.
    OpenFile(OpenFileId),
    /// Owner of anything, named by a server on behalf of a client.
    Remote(RemoteOwner),
}

impl Owner {
    /// Whether a request of this owner that closes a cycle is refused with EDEADLK.
    /// True for processes and remote owners, which take POSIX locks; false for
    /// open file descriptions, whose holder the kernel cannot name (fcntl(2):
    /// OFD locks have no deadlock detection; flock(2): likewise).
    pub fn is_refused_deadlock(&self) -> bool {
        !matches!(self, Owner::OpenFile(_))
    }
}

impl From<ProcessId> for Owner {
    fn from(id: ProcessId) -> Owner {
        Owner::Process(id)
    }
}

impl From<OpenFileId> for Owner {
    fn from(id: OpenFileId) -> Owner {
        Owner::OpenFile(id)
    }
}

impl From<RemoteOwner> for Owner {
    fn from(owner: RemoteOwner) -> Owner {
        Owner::Remote(owner)
    }
}

/// Owner of whole-file locks (flock) and leases: an open file description, or a
/// remote client. A process cannot own either.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileOwner {
    /// An open file description of this machine.
    OpenFile(OpenFileId),
    /// A client elsewhere.
    Remote(RemoteOwner),
}

impl From<OpenFileId> for FileOwner {
    fn from(id: OpenFileId) -> FileOwner {
        FileOwner::OpenFile(id)
    }
}

impl From<RemoteOwner> for FileOwner {
    fn from(owner: RemoteOwner) -> FileOwner {
        FileOwner::Remote(owner)
    }
}

impl From<FileOwner> for Owner {
    fn from(owner: FileOwner) -> Owner {
        match owner {
            FileOwner::OpenFile(id) => Owner::OpenFile(id),
            FileOwner::Remote(owner) => Owner::Remote(owner),
        }
    }
}

/// What the asker's pid namespace shows for a process.
pub trait PidView {
    /// The pid of `process` as the asker sees it, or `None` where he cannot see
    /// it: a query then reports 0, and a listing leaves a lock of it out with all
    /// that waits for it, as /proc/locks does.
    fn pid(&self, process: ProcessId) -> Option<i32>;
}

/// The view in which a [`ProcessId`] is the pid itself: right for an embedder
/// whose owners are the pids of one namespace. A number that is no pid is
/// invisible.
#[derive(Clone, Copy, Debug, Default)]
pub struct PidIsId;

impl PidView for PidIsId {
    fn pid(&self, process: ProcessId) -> Option<i32> {
        i32::try_from(process.0).ok().filter(|&pid| pid > 0)
    }
}

impl<F: Fn(ProcessId) -> Option<i32>> PidView for F {
    fn pid(&self, process: ProcessId) -> Option<i32> {
        self(process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_owners_are_equal_by_name_alone() {
        let a = RemoteOwner::new(b"host1/7", -7);
        let b = RemoteOwner::new(b"host1/7", -9);
        assert_eq!(a, b);
        assert_ne!(a, RemoteOwner::new(b"host2/7", -7));
        assert_eq!(alloc::format!("{a:?}"), "RemoteOwner(\"host1/7\")");
    }

    #[test]
    fn an_owner_is_two_words() {
        assert_eq!(size_of::<Owner>(), 16);
    }
}
