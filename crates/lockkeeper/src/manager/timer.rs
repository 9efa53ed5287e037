//! One timer for all deadlines of a manager: leases, futures, callbacks.
//!
//! Its thread starts with the first deadline, sleeps until the earliest, and
//! ends with the manager. Threads that wait with a timeout sleep by themselves.

use std::collections::BTreeMap;
#[cfg(not(loom))]
use std::sync::{Condvar, Weak};

use hashbrown::HashMap;

use super::Shared;
use super::events;
use super::file::File;
use super::handle::FileHandle;
use crate::error::LockError;
use crate::lock::{Time, WaiterId};
use crate::sync::{Arc, Mutex, Ordering, lock};

/// What to do when a deadline has come.
#[derive(Clone)]
pub(crate) enum Due {
    /// End this wait with ETIMEDOUT.
    Cancel(Arc<File>, WaiterId),
    /// Weaken and remove the file's overdue leases.
    Leases(Arc<File>),
}

/// Names a deadline that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey(Time, u64);

#[derive(Default)]
struct Deadlines {
    due: BTreeMap<TimerKey, Due>,
    /// The deadline set for the leases of a file, by the file's address.
    leases: HashMap<usize, TimerKey>,
    count: u64,
    #[cfg(not(loom))]
    has_thread: bool,
}

/// The deadlines, and how its thread is told of an earlier one.
struct Inner {
    deadlines: Mutex<Deadlines>,
    #[cfg(not(loom))]
    earlier: Condvar,
}

pub(crate) struct Timer {
    inner: Arc<Inner>,
}

impl Timer {
    pub(crate) fn new() -> Timer {
        Timer {
            inner: Arc::new(Inner {
                deadlines: Mutex::new(Deadlines::default()),
                #[cfg(not(loom))]
                earlier: Condvar::new(),
            }),
        }
    }

    /// Drops a deadline that is of no interest any more.
    pub(crate) fn forget(&self, key: TimerKey) {
        let gone = lock(&self.inner.deadlines).due.remove(&key);
        drop(gone);
    }
}

#[cfg(not(loom))]
impl Drop for Timer {
    fn drop(&mut self) {
        // The thread finds its manager gone. With the mutex, as it may just have
        // looked and be about to sleep.
        drop(lock(&self.inner.deadlines));
        self.inner.earlier.notify_one();
    }
}

impl Shared {
    /// Sets a deadline.
    pub(crate) fn set_timer(self: &Arc<Shared>, at: Time, due: Due) -> TimerKey {
        self.set_timer_among(&mut lock(&self.timer.inner.deadlines), at, due)
    }

    fn set_timer_among(
        self: &Arc<Shared>,
        deadlines: &mut Deadlines,
        at: Time,
        due: Due,
    ) -> TimerKey {
        deadlines.count += 1;
        let key = TimerKey(at, deadlines.count);
        let is_earliest = deadlines.due.keys().next().is_none_or(|first| key < *first);
        deadlines.due.insert(key, due);
        #[cfg(not(loom))]
        if matches!(self.clock, super::clock::Clock::System) {
            if !deadlines.has_thread {
                // Tried again with the next deadline where it fails.
                deadlines.has_thread = start(self);
            } else if is_earliest {
                self.timer.inner.earlier.notify_one();
            }
        }
        let _ = is_earliest;
        key
    }
}

impl FileHandle {
    /// Sets the timer for the file's leases, whose next deadline is `at`, or drops
    /// it where there is none.
    pub(crate) fn schedule_leases(&self, at: Option<Time>) {
        let has_timer = &self.file.has_lease_timer;
        if at.is_none() && has_timer.load(Ordering::Relaxed) == 0 {
            return;
        }
        let file = Arc::as_ptr(&self.file) as usize;
        let mut deadlines = lock(&self.shared.timer.inner.deadlines);
        let old = deadlines.leases.get(&file).copied();
        if old.map(|key| key.0) == at {
            return;
        }
        deadlines.leases.remove(&file);
        let gone = old.and_then(|key| deadlines.due.remove(&key));
        if let Some(at) = at {
            let due = Due::Leases(self.file.clone());
            let new = self.shared.set_timer_among(&mut deadlines, at, due);
            deadlines.leases.insert(file, new);
        }
        has_timer.store(u32::from(at.is_some()), Ordering::Relaxed);
        drop(deadlines);
        drop(gone);
    }

    /// Weakens and removes overdue leases.
    fn expire_leases(&self) {
        let mut table = self.file.table.lock();
        let cx = self.shared.context(self.shared.clock.now());
        let expired = table.expire(cx);
        self.bring_news(table, None);
        events::time_out_leases(self.id(), &expired);
    }
}

/// Starts the timer's thread; false where none is to be had.
#[cfg(not(loom))]
fn start(shared: &Arc<Shared>) -> bool {
    let inner = shared.timer.inner.clone();
    let manager = Arc::downgrade(shared);
    std::thread::Builder::new()
        .name("lockkeeper-timer".into())
        .spawn(move || run(&inner, &manager))
        .is_ok()
}

#[cfg(not(loom))]
fn run(inner: &Inner, manager: &Weak<Shared>) {
    loop {
        let Some(shared) = manager.upgrade() else {
            return;
        };
        let next = run_due(&shared);
        let now = shared.clock.now();
        // The manager must be able to go while the timer sleeps.
        drop(shared);
        let deadlines = lock(&inner.deadlines);
        if manager.strong_count() == 0 {
            return;
        }
        let first = deadlines.due.keys().next().map(|key| key.0);
        if first != next {
            continue;
        }
        match first {
            None => drop(inner.earlier.wait(deadlines)),
            Some(at) => drop(inner.earlier.wait_timeout(deadlines, at.since(now))),
        }
    }
}

/// Does everything that is due; returns when the next deadline is.
pub(crate) fn run_due(shared: &Arc<Shared>) -> Option<Time> {
    loop {
        let now = shared.clock.now();
        let due = {
            let deadlines = &mut *lock(&shared.timer.inner.deadlines);
            match deadlines.due.first_entry() {
                None => return None,
                Some(first) if first.key().0 > now => return Some(first.key().0),
                Some(first) => {
                    let due = first.remove();
                    if let Due::Leases(file) = &due {
                        deadlines.leases.remove(&(Arc::as_ptr(file) as usize));
                    }
                    due
                }
            }
        };
        match due {
            Due::Cancel(file, id) => {
                if let Some(handle) = shared.adopt(&file) {
                    // Another outcome may have been quicker.
                    let _ = handle.cancel_with(id, LockError::TimedOut);
                }
            }
            Due::Leases(file) => {
                if let Some(handle) = shared.adopt(&file) {
                    handle.expire_leases();
                }
            }
        }
    }
}
