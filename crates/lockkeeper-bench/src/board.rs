//! The board: the words through which a run's tasks, threads or processes, are started and stopped.
//!
//! It lies in memory that all of them share. While they are at work they read one word of it, `phase`,
//! and write none: what they count is their own and is reported at the end.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::futex;
use rustix::time::Timespec;

/// Tasks make themselves ready.
pub const SETUP: u32 = 0;
/// Tasks are at work, and are not measured yet.
pub const GO: u32 = 1;
/// What they do is counted.
pub const MEASURE: u32 = 2;
/// Tasks finish what they have begun, and report.
pub const STOP: u32 = 3;

/// A word in cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
pub struct Word(AtomicU32);

impl Word {
    /// What it is.
    #[inline]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Counts one more, and wakes who waits for it.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }

    /// Sets it, and wakes who waits for it.
    pub fn set(&self, value: u32) {
        self.0.store(value, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        let _ = futex::wake(&self.0, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Waits while it is `value`, at most so long.
    pub fn wait_while(&self, value: u32, patience: Duration) {
        if self.get() != value {
            return;
        }
        let timeout = Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: patience.subsec_nanos().into(),
        };
        // A wait that ends early is asked for again by whoever still has to wait.
        let _ = futex::wait(&self.0, futex::Flags::empty(), value, Some(&timeout));
    }

    /// Waits until it is at least `value`.
    pub fn wait_for(&self, value: u32) {
        loop {
            match self.get() {
                now if now >= value => return,
                now => self.wait_while(now, Duration::from_secs(1)),
            }
        }
    }
}

/// The words.
#[repr(C)]
#[derive(Default)]
pub struct Board {
    /// One of the phases above; only the parent writes it.
    pub phase: Word,
    /// How many tasks are ready to start.
    pub ready: Word,
    /// How many tasks are about to wait (herd, chain).
    pub entered: Word,
    /// How often the lease has been taken (lease).
    pub leases: Word,
    /// How often a task has closed the file after it (lease).
    pub closed: Word,
    /// How many tasks have done their work.
    pub done: Word,
    /// How many processes have failed, and report why.
    pub failed: Word,
    /// Deadlock checks so far: who makes them may not come back from one.
    pub checks: Checks,
}

/// A counter in cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
pub struct Checks(pub AtomicU64);
