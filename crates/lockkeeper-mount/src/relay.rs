//! Who reads the device, and what happens when he is stuck in the source.
//!
//! One thread reads messages and serves them. What it does for the file system is, nearly always, a system
//! call on the source that is over in a microsecond. But the source may be a network file system or another
//! FUSE server, and then any call on it may hang: a stat, an open, even a close. Locks have to go on. So
//! the reader announces each *visit* to the source, and a watcher looks on. Who stays for longer than
//! [`PATIENCE`] loses the turn: another thread goes on reading. The late one finishes its call, answers it,
//! and ends.
//!
//! # Order
//! At any time one thread has the turn, and nobody else reads. Lock requests, FLUSH, INTERRUPT and what
//! RELEASE means for locks are served without a visit, by the thread that read them and before it reads on;
//! so a late reader has nothing to do any more that could come out of order, and a program that closes and
//! locks again never meets its own old lock.
//!
//! # Hesitation
//! Once somebody was late, readers hesitate: all that may touch the source goes to the workers, of whom
//! there can be many, until a second after the last late one is back. A source that hangs costs locks one
//! pause of some milliseconds, not one a call.
//!
//! # Cost
//! Two atomic operations a visit, and nothing for a lock. The watcher looks every few milliseconds while
//! there are visits, and sleeps when there are none.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A visit that the watcher has seen twice at this distance is too long.
pub const PATIENCE: Duration = Duration::from_millis(4);
/// The watcher goes to sleep after so many looks at which nothing happened.
const QUIET_LOOKS: u32 = 25;
/// How long readers hesitate after the last late one is back.
const HESITATION: Duration = Duration::from_secs(1);
/// More late readers than this, and the turn stays with one who is late.
const MOST_LATE: usize = 256;

/// Whose turn it is to read.
#[derive(Debug, Default)]
pub struct Relay {
    /// Counts the beginnings and ends of visits, and is odd during one. No value comes twice, so whoever
    /// finds the number of his visit replaced has lost the turn.
    visits: AtomicU64,
    /// Readers who lost the turn and are not back.
    late: AtomicUsize,
    hesitant: AtomicBool,
    over: AtomicBool,
    asleep: AtomicBool,
    watcher: OnceLock<Thread>,
}

/// A reader's stay in the source.
#[derive(Debug)]
#[must_use]
pub struct Visit(u64);

/// What the watcher is to do.
pub trait Watched {
    /// Starts a thread that [takes the turn](Relay::take) of this visit. False if there is none to be had.
    fn start_reader(&self, late: LateVisit) -> bool;

    /// Looks after the workers; whether jobs wait for one.
    fn tend_workers(&self) -> bool;
}

/// A visit that lasted too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateVisit(u64);

impl Relay {
    /// The reader goes to the source.
    pub fn visit(&self) -> Visit {
        // Sequentially consistent, as is the watcher's look after saying that it sleeps: one of the two
        // sees the other.
        let number = self.visits.fetch_add(1, Ordering::SeqCst) + 1;
        if self.asleep.load(Ordering::SeqCst) {
            self.wake();
        }
        Visit(number)
    }

    /// The reader is back; false if the turn is another's meanwhile.
    pub fn is_still_ours(&self, visit: Visit) -> bool {
        let ours = self.replace(visit.0);
        if !ours {
            self.late.fetch_sub(1, Ordering::AcqRel);
        }
        ours
    }

    /// Takes the turn from somebody who is late; false if he is back, or another has it.
    pub fn take(&self, late: LateVisit) -> bool {
        // Counted first: he may be back at any moment.
        self.late.fetch_add(1, Ordering::AcqRel);
        self.hesitant.store(true, Ordering::Relaxed);
        let taken = self.replace(late.0);
        if !taken {
            self.late.fetch_sub(1, Ordering::AcqRel);
        }
        taken
    }

    fn replace(&self, visit: u64) -> bool {
        self.visits
            .compare_exchange(visit, visit + 1, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Whether visits are for the workers.
    pub fn hesitates(&self) -> bool {
        self.hesitant.load(Ordering::Relaxed)
    }

    /// Nobody will read any more: the watcher ends.
    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if let Some(watcher) = self.watcher.get() {
            watcher.unpark();
        }
    }

    /// Watches, on a thread of its own, until the [end](Self::end).
    pub fn watch(&self, watched: &impl Watched) {
        if self.watcher.set(thread::current()).is_err() {
            return; // Somebody does so already.
        }
        let (mut seen, mut quiet, mut complained) = (0, 0, None);
        let mut calm_since = Instant::now();
        while !self.over.load(Ordering::SeqCst) {
            thread::park_timeout(PATIENCE);
            let visits = self.visits.load(Ordering::SeqCst);
            let jobs_wait = watched.tend_workers();
            let late = self.late.load(Ordering::Acquire);
            let (moved, visiting) = (visits != seen, visits % 2 == 1);
            if visiting && !moved && late < MOST_LATE {
                let started = watched.start_reader(LateVisit(visits));
                if !started && complained.replace(visits) != Some(visits) {
                    tracing::warn!("no thread to be had: locks wait for the source");
                }
            }
            if late > 0 || visiting && !moved {
                calm_since = Instant::now();
            } else if self.hesitates() && calm_since.elapsed() >= HESITATION {
                self.hesitant.store(false, Ordering::Relaxed);
            }
            seen = visits;
            if moved || visiting || jobs_wait || self.hesitates() {
                quiet = 0;
                continue;
            }
            quiet += 1;
            if quiet >= QUIET_LOOKS {
                self.sleep(visits);
                quiet = 0;
            }
        }
    }

    /// Sleeps until there is a visit.
    fn sleep(&self, seen: u64) {
        self.asleep.store(true, Ordering::SeqCst);
        while self.visits.load(Ordering::SeqCst) == seen && !self.over.load(Ordering::SeqCst) {
            thread::park();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex, PoisonError};

    #[test]
    fn a_turn_is_lost_once_and_only_during_the_visit_that_was_late() {
        let relay = Relay::default();
        let visit = relay.visit();
        let late = LateVisit(visit.0);
        assert!(relay.is_still_ours(visit), "nobody took it");
        assert!(!relay.take(late), "he was back");
        let visit = relay.visit();
        let late = LateVisit(visit.0);
        assert!(relay.take(late));
        assert!(!relay.take(late), "it has been taken");
        assert!(relay.hesitates());
        // The new reader visits and comes back while the late one is away.
        let other = relay.visit();
        assert!(relay.is_still_ours(other));
        assert_eq!(relay.late.load(Ordering::SeqCst), 1);
        assert!(!relay.is_still_ours(visit));
        assert_eq!(relay.late.load(Ordering::SeqCst), 0);
    }

    #[derive(Clone, Default)]
    struct Seen(Arc<(Relay, Mutex<Vec<LateVisit>>)>);

    impl Seen {
        fn late(&self) -> Vec<LateVisit> {
            let visits = self.0.1.lock().unwrap_or_else(PoisonError::into_inner);
            visits.clone()
        }
    }

    impl Watched for Seen {
        fn start_reader(&self, late: LateVisit) -> bool {
            let taken = self.0.0.take(late);
            let mut visits = self.0.1.lock().unwrap_or_else(PoisonError::into_inner);
            visits.push(late);
            taken
        }

        fn tend_workers(&self) -> bool {
            false
        }
    }

    #[test]
    fn the_watcher_finds_whoever_is_late_also_after_it_slept_and_ends_when_told() {
        let seen = Seen::default();
        let relay = &seen.0.0;
        thread::scope(|scope| {
            let watcher = scope.spawn(|| relay.watch(&seen));
            for round in 1..=2 {
                while !relay.asleep.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                assert!(!relay.hesitates(), "it sleeps only when all is calm");
                let visit = relay.visit();
                let late = LateVisit(visit.0);
                while seen.late().len() < round {
                    thread::yield_now();
                }
                assert_eq!(seen.late().last(), Some(&late));
                assert!(relay.hesitates());
                assert!(!relay.is_still_ours(visit));
            }
            assert!(!watcher.is_finished());
            relay.end();
        });
    }
}
