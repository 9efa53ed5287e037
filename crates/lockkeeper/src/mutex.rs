//! The mutex of a file's table: one that is cheap to let go of.
//!
//! # Why not the standard library's
//! A lock and an unlock of a file take its mutex twice, and while nobody waits
//! that is most of what they cost: an atomic read-modify-write to take the mutex
//! and another to let it go, 7 ns each where this was measured, four of them in a
//! pair of 40 ns. The one that lets go asks whether anybody sleeps. Here a thread
//! that is about to sleep pays for that question instead, and letting go is a
//! plain store: the pair costs 30 ns.
//!
//! # How it works
//! `is_held` is the mutex; `has_sleepers` says that somebody sleeps until it comes
//! free. Letting go is (1) store 0 to `is_held`, (2) load `has_sleepers`, and (3)
//! wake one if it is set. Going to sleep is (a) set `has_sleepers`, (b) look at
//! `is_held` once more, (c) sleep if it is held still. The danger is a processor
//! that does (2) before others see (1): it misses the sleeper, who has missed the
//! store, and nobody wakes him. Between (a) and (b) the sleeper therefore has the
//! kernel run a full memory barrier on every processor that runs a thread of this
//! process (membarrier(2), MEMBARRIER_CMD_PRIVATE_EXPEDITED). Wherever that falls
//! in another thread's (1) and (2):
//!
//! - after (1): the store is seen by the sleeper's (b), and he does not sleep, or
//!   finds the mutex held by somebody whose own letting go is still to come;
//! - before (1), so before (2): the load sees `has_sleepers` set.
//!
//! (a) to (c) and (3) run under the lock of the sleepers' queue, which is
//! `parking_lot_core`'s: so whoever sees the flag finds the sleeper in the queue,
//! and clears the flag only when he takes the last one out of it. A flag is
//! cleared and no thread counted down, so that of the many who let go while the
//! woken one is on his way nobody wakes again.
//!
//! The compiler may not swap (1) and (2) either: [`light`] stops it.
//!
//! Where the kernel has no such call, both sides use a fence, as a plain mutex
//! would. Should the call fail later, nobody sleeps: he looks again and again.
//!
//! Loom knows no barrier that one thread runs for others. It is shown fences in
//! both places, which promise no more than the call does.
//!
//! This is the one module of the library with unsafe code: the implementation of
//! `lock_api::RawMutex`, a promise that the mutex is one, and the calls of the
//! queue, whose closures must not use it themselves.

use crate::sync::{AtomicU32, Ordering};

/// Whether it is held, and by how many it is awaited. See the [module](self).
#[derive(Debug)]
pub struct TableLock {
    is_held: AtomicU32,
    has_sleepers: AtomicU32,
    #[cfg(loom)]
    bed: bed::Bed,
}

/// How often a thread looks before it sleeps. Critical sections are short: the
/// mutex comes free at once, unless its holder is not running.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 100 };

impl TableLock {
    /// Free.
    #[cfg(not(loom))]
    pub const fn new() -> TableLock {
        TableLock {
            is_held: AtomicU32::new(0),
            has_sleepers: AtomicU32::new(0),
        }
    }

    /// Takes the mutex if it is free.
    #[inline]
    pub fn try_acquire(&self) -> bool {
        self.is_held
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes the mutex.
    #[inline]
    pub fn acquire(&self) {
        if !self.try_acquire() {
            self.acquire_contended();
        }
    }

    /// Lets the mutex go. The holder's to call.
    #[inline]
    pub fn release(&self) {
        self.is_held.store(0, Ordering::Release);
        barrier::light();
        if self.has_sleepers.load(Ordering::Relaxed) != 0 {
            self.wake_one();
        }
    }

    #[cold]
    fn acquire_contended(&self) {
        loop {
            for _ in 0..LOOKS {
                if self.is_held.load(Ordering::Relaxed) == 0 && self.try_acquire() {
                    return;
                }
                core::hint::spin_loop();
            }
            self.sleep();
        }
    }

    /// (a) and (b): whether to sleep. Under the lock of the queue.
    fn must_sleep(&self) -> bool {
        self.has_sleepers.store(1, Ordering::Relaxed);
        barrier::heavy() && self.is_held.load(Ordering::Relaxed) == 1
    }

    /// The end of (3): one sleeper was taken out of the queue, if there was any.
    /// Under the lock of the queue.
    fn woke_one(&self, are_more: bool) {
        if !are_more {
            self.has_sleepers.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(not(loom))]
mod table_mutex {
    use lock_api::{GuardNoSend, RawMutex};

    use super::TableLock;

    /// A mutex for what is behind it.
    pub(crate) type TableMutex<T> = lock_api::Mutex<TableLock, T>;

    /// Holds it until it is dropped.
    pub(crate) type TableGuard<'a, T> = lock_api::MutexGuard<'a, TableLock, T>;

    // SAFETY: a thread has the mutex only when it has changed `is_held` from 0 to 1, and
    // only `release`, which `unlock`'s caller may call as its holder, makes it 0
    // again: there is one holder at a time. The change acquires what the store of 0
    // released, so that a holder sees all that the one before him did.
    #[allow(unsafe_code)]
    unsafe impl RawMutex for TableLock {
        #[allow(clippy::declare_interior_mutable_const)]
        const INIT: TableLock = TableLock::new();

        type GuardMarker = GuardNoSend;

        #[inline]
        fn lock(&self) {
            self.acquire();
        }

        #[inline]
        fn try_lock(&self) -> bool {
            self.try_acquire()
        }

        #[inline]
        unsafe fn unlock(&self) {
            self.release();
        }
    }
}
#[cfg(not(loom))]
pub(crate) use table_mutex::{TableGuard, TableMutex};

pub(crate) use barrier::prepare;

/// Barriers of which one side is free: the pair orders a store before a load on
/// both sides, as two full fences would.
#[cfg(all(target_os = "linux", not(loom)))]
mod barrier {
    use core::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

    use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

    /// Set before there is a mutex, and never again: whoever has one sees it.
    static IS_FREE: AtomicBool = AtomicBool::new(false);

    /// Asks the kernel whether it has the barrier, and registers for it. Before
    /// the first mutex is made; takes a few milliseconds where threads run.
    pub(crate) fn prepare() {
        if IS_FREE.load(Ordering::Acquire) {
            return;
        }
        let has = |command| membarrier_query().contains_command(command);
        if has(MembarrierCommand::RegisterPrivateExpedited)
            && has(MembarrierCommand::PrivateExpedited)
            && register_and_run()
        {
            IS_FREE.store(true, Ordering::Release);
        }
    }

    fn register_and_run() -> bool {
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }

    /// The side of whoever lets go.
    #[inline]
    pub(super) fn light() {
        if IS_FREE.load(Ordering::Relaxed) {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// The side of whoever is about to sleep; false where it could not be had.
    pub(super) fn heavy() -> bool {
        if !IS_FREE.load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
            return true;
        }
        // A process that was forked may have to register anew.
        membarrier(MembarrierCommand::PrivateExpedited).is_ok() || register_and_run()
    }
}

#[cfg(not(all(target_os = "linux", not(loom))))]
mod barrier {
    use crate::sync::{Ordering, fence};

    pub(crate) fn prepare() {}

    pub(super) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn heavy() -> bool {
        fence(Ordering::SeqCst);
        true
    }
}

#[cfg(not(loom))]
mod sleep {
    use parking_lot_core::{DEFAULT_PARK_TOKEN, DEFAULT_UNPARK_TOKEN, park, unpark_one};

    use super::TableLock;

    impl TableLock {
        /// Where its sleepers queue.
        fn key(&self) -> usize {
            core::ptr::from_ref(self) as usize
        }

        pub(super) fn sleep(&self) {
            // SAFETY: the key is this lock's own address, and none of the closures
            // panics or parks.
            #[allow(unsafe_code)]
            unsafe {
                park(
                    self.key(),
                    || self.must_sleep(),
                    || {},
                    |_, _| {},
                    DEFAULT_PARK_TOKEN,
                    None,
                );
            }
        }

        #[cold]
        pub(super) fn wake_one(&self) {
            // SAFETY: as above.
            #[allow(unsafe_code)]
            unsafe {
                unpark_one(self.key(), |woken| {
                    self.woke_one(woken.have_more_threads);
                    DEFAULT_UNPARK_TOKEN
                });
            }
        }
    }
}

/// A futex for loom, and a mutex of its own for the table: the model of the
/// manager need not go through this one's interleavings as well.
#[cfg(loom)]
mod bed {
    use std::collections::VecDeque;
    use std::fmt;

    use loom::sync::{Mutex, MutexGuard};

    use super::TableLock;
    use crate::sync::{AtomicU32, Thread, current, lock, park};

    /// The queue of sleepers.
    pub(super) struct Bed(Mutex<VecDeque<Thread>>);

    impl fmt::Debug for Bed {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Bed")
        }
    }

    impl TableLock {
        /// Free.
        #[allow(clippy::new_without_default)]
        pub fn new() -> TableLock {
            TableLock {
                is_held: AtomicU32::new(0),
                has_sleepers: AtomicU32::new(0),
                bed: Bed(Mutex::new(VecDeque::new())),
            }
        }

        pub(super) fn sleep(&self) {
            let mut queue = lock(&self.bed.0);
            if self.must_sleep() {
                queue.push_back(current());
                drop(queue);
                park();
            }
        }

        pub(super) fn wake_one(&self) {
            let mut queue = lock(&self.bed.0);
            let sleeper = queue.pop_front();
            self.woke_one(!queue.is_empty());
            drop(queue);
            if let Some(sleeper) = sleeper {
                sleeper.unpark();
            }
        }
    }

    pub(crate) struct TableMutex<T>(Mutex<T>);
    pub(crate) type TableGuard<'a, T> = MutexGuard<'a, T>;

    impl<T> TableMutex<T> {
        pub(crate) fn new(behind: T) -> TableMutex<T> {
            TableMutex(Mutex::new(behind))
        }

        pub(crate) fn lock(&self) -> TableGuard<'_, T> {
            crate::sync::lock(&self.0)
        }
    }
}
#[cfg(loom)]
pub(crate) use bed::{TableGuard, TableMutex};
