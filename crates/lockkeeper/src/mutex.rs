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
//! Who finds the mutex held looks again after a pause, twice as long each time. A
//! thread that takes it away after each round makes every round fetch the file's
//! cache lines from another processor, ten times what the round costs by itself;
//! pauses let rounds be made in rows.
//!
//! The compiler may not swap (1) and (2) either: [`light`] stops it.
//!
//! Where the kernel has no such call, both sides use a fence, as a plain mutex
//! would. Which of the two holds is decided once, before there is a mutex: were
//! it to change, one side might go by the old and the other by the new.
//!
//! Should the call fail later, because a sandbox has been put around this thread
//! since (seccomp(2)), its wake-up may be missed. It naps then, a millisecond at
//! a time: to spin instead would take the processor from the very holder that it
//! waits for. A child of fork(2) inherits the registration; one that had not
//! would make its own.
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
const LOOKS: u32 = if cfg!(loom) { 1 } else { 40 };

/// The longest pause after a look, in turns of the processor's own pause, which
/// takes 10 to 50 ns.
const LONGEST_PAUSE: u32 = 32;

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
        let mut had_barrier = true;
        loop {
            let mut pause = 1;
            for _ in 0..LOOKS {
                if self.is_held.load(Ordering::Relaxed) == 0 && self.try_acquire() {
                    return;
                }
                for _ in 0..pause {
                    core::hint::spin_loop();
                }
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
            had_barrier = self.sleep(!had_barrier);
        }
    }

    /// (a) and (b): whether to sleep, and whether the barrier could be had. Without
    /// it only a nap is safe. Under the lock of the queue.
    fn must_sleep(&self, is_nap: bool) -> (bool, bool) {
        self.has_sleepers.store(1, Ordering::Relaxed);
        let had_barrier = barrier::heavy();
        let may_sleep = had_barrier || is_nap;
        let is_held = self.is_held.load(Ordering::Relaxed) == 1;
        (may_sleep && is_held, had_barrier)
    }

    /// The end of (3), or of a nap: one sleeper was taken out of the queue, if there
    /// was any. Under the lock of the queue.
    fn one_left(&self, are_more: bool) {
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
mod barrier {
    use core::sync::atomic::{AtomicBool, compiler_fence};
    use std::sync::Once;

    use crate::sync::{Ordering, fence};

    /// Set before there is a mutex, and never again: whoever has one sees it.
    static IS_FREE: AtomicBool = AtomicBool::new(false);

    /// Asks the kernel whether it has the barrier, and registers for it. Before
    /// the first mutex is made; takes a few milliseconds where threads run.
    pub(crate) fn prepare() {
        static DECISION: Once = Once::new();
        DECISION.call_once(|| {
            if kernel::has_barrier() && register_and_run() {
                IS_FREE.store(true, Ordering::Release);
            }
        });
    }

    fn register_and_run() -> bool {
        kernel::register() && kernel::run_barrier()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn is_free() -> bool {
        IS_FREE.load(Ordering::SeqCst)
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
        kernel::run_barrier() || register_and_run()
    }

    /// membarrier(2).
    #[cfg(all(target_os = "linux", not(loom)))]
    mod kernel {
        use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

        pub(super) fn has_barrier() -> bool {
            let commands = membarrier_query();
            commands.contains_command(MembarrierCommand::RegisterPrivateExpedited)
                && commands.contains_command(MembarrierCommand::PrivateExpedited)
        }

        pub(super) fn register() -> bool {
            membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
        }

        pub(super) fn run_barrier() -> bool {
            membarrier(MembarrierCommand::PrivateExpedited).is_ok()
        }
    }

    /// No other kernel has it, nor loom.
    #[cfg(not(all(target_os = "linux", not(loom))))]
    mod kernel {
        pub(super) fn has_barrier() -> bool {
            false
        }

        pub(super) fn register() -> bool {
            false
        }

        pub(super) fn run_barrier() -> bool {
            false
        }
    }
}

#[cfg(not(loom))]
mod sleep {
    use std::time::{Duration, Instant};

    use parking_lot_core::{DEFAULT_PARK_TOKEN, DEFAULT_UNPARK_TOKEN, park, unpark_one};

    use super::TableLock;

    /// For how long a thread sleeps whose wake-up may be missed.
    const NAP: Duration = Duration::from_millis(1);

    impl TableLock {
        /// Where its sleepers queue.
        fn key(&self) -> usize {
            core::ptr::from_ref(self) as usize
        }

        /// Sleeps if the mutex is held; false if the barrier could not be had, and
        /// the next sleep is to be a nap.
        pub(super) fn sleep(&self, is_nap: bool) -> bool {
            let end = is_nap.then(|| Instant::now() + NAP);
            let mut had_barrier = true;
            // SAFETY: the key is this lock's own address, and none of the closures
            // panics or parks.
            #[allow(unsafe_code)]
            unsafe {
                park(
                    self.key(),
                    || {
                        let must_sleep;
                        (must_sleep, had_barrier) = self.must_sleep(is_nap);
                        must_sleep
                    },
                    || {},
                    |_, was_last| self.one_left(!was_last),
                    DEFAULT_PARK_TOKEN,
                    end,
                );
            }
            had_barrier
        }

        #[cold]
        pub(super) fn wake_one(&self) {
            // SAFETY: as above.
            #[allow(unsafe_code)]
            unsafe {
                unpark_one(self.key(), |woken| {
                    self.one_left(woken.have_more_threads);
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

        pub(super) fn sleep(&self, is_nap: bool) -> bool {
            let mut queue = lock(&self.bed.0);
            let (must_sleep, had_barrier) = self.must_sleep(is_nap);
            if must_sleep {
                queue.push_back(current());
                drop(queue);
                park();
            }
            had_barrier
        }

        pub(super) fn wake_one(&self) {
            let mut queue = lock(&self.bed.0);
            let sleeper = queue.pop_front();
            self.one_left(!queue.is_empty());
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    /// A plain counter behind it loses no round, whatever threads meet there.
    #[test]
    fn of_many_threads_one_at_a_time_is_behind_it() {
        // (threads, rounds each, whether the holder lets others run meanwhile)
        for (threads, rounds, yields) in [(2, 500_000, false), (8, 100_000, false), (64, 500, true)]
        {
            prepare();
            let counter = TableMutex::new(0_u64);
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        for _ in 0..rounds {
                            let mut counter = counter.lock();
                            let before = *counter;
                            if yields {
                                thread::yield_now();
                            }
                            *counter = before + 1;
                        }
                    });
                }
            });
            assert_eq!(counter.into_inner(), threads * rounds);
        }
    }

    #[test]
    fn a_panic_under_it_lets_it_go() {
        prepare();
        let mutex = TableMutex::new(());
        let panicked = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _guard = mutex.lock();
                std::panic::resume_unwind(Box::new(()));
            });
            thread.join().is_err()
        });
        assert!(panicked && mutex.try_lock().is_some());
    }

    /// Managers are made by many threads at once, and each finds it decided.
    #[test]
    fn which_barrier_it_is_never_changes() {
        prepare();
        let is_free = barrier::is_free();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    prepare();
                    assert_eq!(barrier::is_free(), is_free);
                });
            }
        });
    }

    /// Whether somebody has gone to sleep at it, and not been woken since.
    fn has_sleepers(lock: &TableLock) -> bool {
        lock.has_sleepers.load(Ordering::SeqCst) != 0
    }

    #[test]
    fn the_flag_goes_with_the_last_sleeper() {
        prepare();
        let lock = TableLock::new();
        let is_done = AtomicBool::new(false);
        lock.acquire();
        thread::scope(|scope| {
            scope.spawn(|| {
                lock.acquire();
                is_done.store(true, Ordering::SeqCst);
                lock.release();
            });
            while !has_sleepers(&lock) {
                thread::yield_now();
            }
            assert!(!is_done.load(Ordering::SeqCst));
            lock.release();
        });
        assert!(is_done.into_inner() && !has_sleepers(&lock));
    }

    #[test]
    fn the_flag_goes_with_the_last_nap() {
        prepare();
        let lock = TableLock::new();
        lock.acquire();
        // Nobody wakes it: it ends by itself.
        lock.sleep(true);
        assert!(!has_sleepers(&lock));
        lock.release();
    }
}
