//! What the manager allocates, counted by the allocator of this binary.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use lockkeeper::{CallbackId, FileHandle, FileId, LockManager, LockType, OpenFileId, ProcessId};
use lockkeeper::{Owner, Range};

const W: LockType = LockType::Write;

/// Passes all on to the system's allocator and counts what this thread asks for.
struct Counting;

thread_local! {
    static REQUESTS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    REQUESTS.set(REQUESTS.get() + 1);
    BYTES.set(BYTES.get() + bytes);
}

// SAFETY: every block comes from the system's allocator and goes back to it with
// the layout it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get() - layout.size() as i64);
        // SAFETY: the block came from `System` with this layout.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the block came from `System` with this layout.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often memory was asked for, and how many bytes more are held after it.
fn counted(run: impl FnOnce()) -> (u64, i64) {
    let before = (REQUESTS.get(), BYTES.get());
    run();
    (REQUESTS.get() - before.0, BYTES.get() - before.1)
}

fn byte(offset: u64) -> Range {
    Range::byte(offset).expect("within the offsets")
}

#[test]
fn lock_and_unlock_through_a_handle_allocate_nothing() {
    let manager = LockManager::new();
    let file = manager.file(FileId::new(1, 1));
    let other = FileId::new(1, 2);
    let keeps = manager.file(other);
    let (requests, bytes) = counted(|| {
        for round in 0..1000 {
            let posix = file.posix(ProcessId(1));
            posix.try_lock(W, byte(round)).expect("free");
            posix.unlock(byte(round)).expect("whole");
            posix.lock(LockType::Read, Range::WHOLE).expect("free");
            assert!(file.ofd(OpenFileId(1)).try_lock(W, byte(0)).is_err());
            posix.unlock(Range::WHOLE).expect("whole");
            let flock = file.flock(OpenFileId(2));
            flock.lock(W).expect("free");
            flock.unlock();
            drop(manager.file(other)); // open and close of a file in use
        }
    });
    assert_eq!((requests, bytes), (0, 0));
    drop(keeps);
}

#[test]
fn a_file_with_one_lock_costs_at_most_256_bytes() {
    const FILES: u64 = 100_000;
    let manager = LockManager::new();
    let (_, bytes) = counted(|| {
        for inode in 0..FILES {
            let file = manager.file(FileId::new(1, inode));
            file.posix(ProcessId(1)).try_lock(W, byte(7)).expect("free");
        }
    });
    assert_eq!(manager.file_count() as u64, FILES);
    let each = bytes as f64 / FILES as f64;
    println!("a file with one lock, its entry in the map included: {each:.1} bytes");
    assert!(each <= 256.0, "{each:.1} bytes");
    let (_, freed) = counted(|| manager.release_owner_everywhere(&Owner::from(ProcessId(1))));
    assert_eq!(manager.file_count(), 0);
    println!("of {bytes} bytes {} are kept for later", bytes + freed);
    assert!(bytes + freed < bytes / 20, "{} are kept", bytes + freed);
}

/// Asks for a lock with a callback that keeps nothing.
fn wait(file: &FileHandle, number: u64) {
    let records = file.posix(ProcessId(number));
    records
        .lock_callback(CallbackId(number), W, byte(0), |_| {})
        .expect("it waits");
}

/// The waiter itself, what is kept to find its owner and its id by, and the room to
/// grow of all of them.
#[test]
fn a_wait_with_a_callback_costs_at_most_256_bytes() {
    const WAITERS: u64 = 10_000;
    let manager = LockManager::new();
    let file = manager.file(FileId::new(1, 1));
    file.posix(ProcessId(0)).try_lock(W, byte(0)).expect("free");
    wait(&file, 1);
    let (_, bytes) = counted(|| (2..2 + WAITERS).for_each(|number| wait(&file, number)));
    let each = bytes as f64 / WAITERS as f64;
    println!("a wait with a callback, all books included: {each:.1} bytes");
    let (_, freed) = counted(|| file.tear_down());
    println!("of {bytes} bytes {} are kept for later", bytes + freed);
    assert!(each <= 256.0, "{each:.1} bytes");
    assert!(bytes + freed < bytes / 20, "{} are kept", bytes + freed);
    file.check_invariants();
}

#[test]
fn a_crowd_of_files_that_came_and_went_leaves_no_memory_behind() {
    let manager = LockManager::new();
    let rounds = |from: u64| {
        for inode in from..from + 1000 {
            let file = manager.file(FileId::new(1, inode));
            file.posix(ProcessId(1)).try_lock(W, byte(0)).expect("free");
            file.posix(ProcessId(1)).unlock(byte(0)).expect("whole");
        }
    };
    rounds(0);
    let (_, bytes) = counted(|| (0..100).for_each(|round| rounds(round * 1000)));
    assert_eq!(bytes, 0, "10^5 rounds of open, lock and close");
}
