//! A stage for tests of the manager: files, owners by number, and requests whose
//! outcome can be looked at. Every step checks the invariants of every file.

#![allow(dead_code)] // Each test binary uses its part.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use lockkeeper::manager::Builder;
use lockkeeper::table::{Snapshot, Waits};
use lockkeeper::{
    BreakScope, CallbackId, Errno, Fairness, FileHandle, FileId, LockError, LockManager, LockType,
    OpenFileId, Owner, ProcessId, Range, Started,
};

pub const R: LockType = LockType::Read;
pub const W: LockType = LockType::Write;

/// What a call returned: the errno is all that a program would see.
pub type Result = std::result::Result<(), Errno>;

/// The request waits.
pub const WAITS: Option<Result> = None;
/// It was granted.
pub const GRANTED: Option<Result> = Some(Ok(()));

pub const fn failed(errno: Errno) -> Option<Result> {
    Some(Err(errno))
}

pub fn bytes(start: u64, end: u64) -> Range {
    Range::new(start, end).expect("in order")
}

pub fn byte(offset: u64) -> Range {
    bytes(offset, offset)
}

pub fn from(start: u64) -> Range {
    Range::from_offset(start).expect("within the offsets")
}

pub fn p(number: u64) -> ProcessId {
    ProcessId(number)
}

pub fn o(number: u64) -> OpenFileId {
    OpenFileId(number)
}

pub fn errno<T>(result: std::result::Result<T, LockError>) -> std::result::Result<T, Errno> {
    result.map_err(|error| error.errno())
}

/// Yields until it is so; gives up at last, so that a lost wake-up fails a test
/// rather than hanging it.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1_000_000 {
        if is_so() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("never happened: {what}");
}

/// An id that no other callback of this binary has.
pub fn fresh_id() -> CallbackId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    CallbackId(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A request with a callback, and what came of it.
pub struct Asked {
    pub id: CallbackId,
    news: Arc<Mutex<Vec<Result>>>,
}

impl Asked {
    /// Starts a request; `start` is given the id and the callback.
    pub fn start(
        start: impl FnOnce(
            CallbackId,
            Box<dyn FnOnce(std::result::Result<(), LockError>) + Send>,
        ) -> std::result::Result<Started, LockError>,
    ) -> Asked {
        let id = fresh_id();
        let news = Arc::new(Mutex::new(Vec::new()));
        let note = news.clone();
        let callback = Box::new(move |result| {
            let mut news = note.lock().expect("not poisoned");
            news.push(errno(result));
        });
        let done = match start(id, callback) {
            Ok(Started::Granted) => Some(Ok(())),
            Ok(Started::Waiting(_)) => None,
            Err(error) => Some(Err(error.errno())),
        };
        if let Some(done) = done {
            let mut news = news.lock().expect("not poisoned");
            assert!(news.is_empty(), "a callback although it was done at once");
            news.push(done);
        }
        Asked { id, news }
    }

    /// What came of it; panics if that came more than once.
    pub fn outcome(&self) -> Option<Result> {
        let news = self.news.lock().expect("not poisoned");
        assert!(news.len() <= 1, "told {} times: {news:?}", news.len());
        news.first().copied()
    }
}

/// A file, with others of the same manager beside it.
#[derive(Clone)]
pub struct Stage {
    pub manager: LockManager,
    pub file: FileHandle,
    files: Arc<Mutex<Vec<FileHandle>>>,
}

impl Stage {
    /// As Linux does it: no bound on overtaking.
    pub fn linux() -> Stage {
        Stage::with(LockManager::builder().fairness(Fairness::Unlimited))
    }

    pub fn with(builder: Builder) -> Stage {
        let manager = builder.build();
        let file = manager.file(FileId::new(0x801, 100));
        Stage {
            files: Arc::new(Mutex::new(vec![file.clone()])),
            manager,
            file,
        }
    }

    /// The stage seen from another file; 100 is the first one.
    pub fn on(&self, inode: u64) -> Stage {
        let file = self.manager.file(FileId::new(0x801, inode));
        self.files.lock().expect("not poisoned").push(file.clone());
        Stage {
            file,
            ..self.clone()
        }
    }

    pub fn check(&self) {
        for file in self.files.lock().expect("not poisoned").iter() {
            file.check_invariants();
        }
    }

    fn checked<T>(&self, result: T) -> T {
        self.check();
        result
    }

    /// F_SETLK or F_OFD_SETLK.
    pub fn set(&self, owner: impl Into<Owner>, lock_type: LockType, range: Range) -> Result {
        self.checked(errno(self.file.records(owner).try_lock(lock_type, range)))
    }

    /// F_SETLKW or F_OFD_SETLKW.
    pub fn wait(&self, owner: impl Into<Owner>, lock_type: LockType, range: Range) -> Asked {
        let records = self.file.records(owner);
        self.checked(Asked::start(|id, callback| {
            records.lock_callback(id, lock_type, range, callback)
        }))
    }

    /// F_SETLK with F_UNLCK.
    pub fn unlock(&self, owner: impl Into<Owner>, range: Range) -> Result {
        self.checked(errno(self.file.records(owner).unlock(range)))
    }

    /// flock with LOCK_NB.
    pub fn flock(&self, owner: OpenFileId, lock_type: LockType) -> Result {
        self.checked(errno(self.file.flock(owner).try_lock(lock_type)))
    }

    /// flock.
    pub fn wait_flock(&self, owner: OpenFileId, lock_type: LockType) -> Asked {
        let flock = self.file.flock(owner);
        self.checked(Asked::start(|id, callback| {
            flock.lock_callback(id, lock_type, callback)
        }))
    }

    pub fn unlock_flock(&self, owner: OpenFileId) {
        self.file.flock(owner).unlock();
        self.check();
    }

    /// open with O_NONBLOCK, or a truncation, as far as leases go.
    pub fn open(&self, opener: impl Into<Owner>, access: LockType) -> Result {
        let opening = self.file.opening(opener, access, BreakScope::All);
        self.checked(errno(opening.try_break()))
    }

    /// open.
    pub fn wait_open(&self, opener: impl Into<Owner>, access: LockType) -> Asked {
        let opening = self.file.opening(opener, access, BreakScope::All);
        self.checked(Asked::start(|id, callback| {
            opening.wait_callback(id, callback)
        }))
    }

    /// A signal without SA_RESTART, or a cancel message.
    pub fn cancel(&self, asked: &Asked) -> Result {
        let result = self.manager.cancel_callback(asked.id);
        self.checked(result.map_err(|error| error.errno()))
    }

    /// close of a descriptor.
    pub fn close(&self, owner: impl Into<Owner>, waits: Waits) {
        self.file.release_owner(&owner.into(), waits);
        self.check();
    }

    pub fn snapshot(&self) -> Snapshot {
        self.checked(self.file.snapshot())
    }

    /// The granted locks: `1:W0-9` for process 1, `o1:` for an open file, with
    /// `f` and `l` before the type of a flock and a lease. By kind, range, owner.
    pub fn held(&self) -> String {
        let mut granted = self.snapshot().granted;
        granted.sort_by_key(|view| (view.lock.kind, view.lock.range, view.lock.owner.clone()));
        let locks: Vec<String> = granted
            .iter()
            .map(|view| {
                let owner = match &view.lock.owner {
                    Owner::Process(process) => format!("{}", process.0),
                    Owner::OpenFile(file) => format!("o{}", file.0),
                    Owner::Remote(remote) => format!("r{}", remote.number()),
                };
                let letter = match view.lock.lock_type {
                    LockType::Read => 'R',
                    LockType::Write => 'W',
                };
                let range = view.lock.range;
                let end = match range.reaches_end() {
                    true => "EOF".to_owned(),
                    false => range.end().to_string(),
                };
                match view.lock.kind {
                    lockkeeper::LockKind::Flock => format!("{owner}:f{letter}"),
                    lockkeeper::LockKind::Lease => format!("{owner}:l{letter}"),
                    lockkeeper::LockKind::Delegation => format!("{owner}:d{letter}"),
                    _ => format!("{owner}:{letter}{}-{end}", range.start()),
                }
            })
            .collect();
        locks.join(" ")
    }

    /// How many requests wait on this file.
    pub fn waiting(&self) -> usize {
        self.file.snapshot().waiting.len()
    }

    /// Nothing is locked and nobody waits, on any file.
    pub fn assert_empty(&self) {
        self.check();
        let listing = self.manager.snapshot();
        assert!(listing.is_empty(), "left behind: {listing:#?}");
    }
}

/// A random number generator for stress tests (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
