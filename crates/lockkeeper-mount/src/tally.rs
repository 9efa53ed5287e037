//! What is counted and remembered of waits and refusals, for whoever watches.
//!
//! Only requests that wait or are refused come by here: what is granted at once is counted by its file's
//! own table.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use lockkeeper_watch::report::WaitTimes;

use crate::fs::inode::lock;
use crate::locks::{FileId, RequestId};

/// The longest time of each bucket, in nanoseconds: 0.1 ms to 3,000 s.
const BOUNDS: [u64; 16] = [
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
    30_000_000_000,
    100_000_000_000,
    300_000_000_000,
    1_000_000_000_000,
    3_000_000_000_000,
];

/// So many refusals are kept until somebody takes them; the others are only counted.
const KEPT: usize = 8;

/// Who asks for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The file.
    pub file: FileId,
    /// The process; 0 if not visible.
    pub pid: u32,
}

/// A wait that goes on.
#[derive(Clone, Copy, Debug)]
struct Ongoing {
    asker: Asker,
    since: Instant,
    is_told: bool,
}

/// A wait that is longer than somebody wants to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongWait {
    /// Who waits.
    pub asker: Asker,
    /// For how long.
    pub waits_for: Duration,
}

/// Refusals of one kind since they were last taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// The first of them, with the reason in words.
    pub first: Vec<(Asker, String)>,
    /// How many there were.
    pub count: u64,
}

impl Refusals {
    fn add(&mut self, asker: Asker, reason: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < KEPT {
            self.first.push((asker, reason()));
        }
    }
}

/// The counts of one mount.
#[derive(Debug, Default)]
pub struct Tally {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    waited_nanos: AtomicU64,
    limit_hits: AtomicU64,
    waits: Mutex<HashMap<RequestId, Ongoing>>,
    limits: Mutex<Refusals>,
    deadlocks: Mutex<Refusals>,
}

impl Tally {
    /// A request begins to wait, or is about to.
    pub fn begin(&self, id: RequestId, asker: Asker) {
        let ongoing = Ongoing {
            asker,
            since: Instant::now(),
            is_told: false,
        };
        lock(&self.waits).insert(id, ongoing);
    }

    /// It did not come to wait.
    pub fn forget(&self, id: RequestId) {
        lock(&self.waits).remove(&id);
    }

    /// A wait has ended.
    pub fn end(&self, id: RequestId) {
        let Some(wait) = lock(&self.waits).remove(&id) else {
            return;
        };
        let nanos = u64::try_from(wait.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|&bound| bound < nanos);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.waited_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// A request was refused with ENOLCK.
    pub fn limit(&self, asker: Asker, reason: impl FnOnce() -> String) {
        self.limit_hits.fetch_add(1, Ordering::Relaxed);
        lock(&self.limits).add(asker, reason);
    }

    /// A request was refused with EDEADLK.
    pub fn deadlock(&self, asker: Asker, reason: impl FnOnce() -> String) {
        lock(&self.deadlocks).add(asker, reason);
    }

    /// How many requests were refused with ENOLCK.
    pub fn limit_hits(&self) -> u64 {
        self.limit_hits.load(Ordering::Relaxed)
    }

    /// How long the waits were that have ended.
    pub fn wait_times(&self) -> WaitTimes {
        let buckets = self.buckets.iter();
        let counts: Vec<u64> = buckets.map(|count| count.load(Ordering::Relaxed)).collect();
        WaitTimes {
            bounds: BOUNDS.iter().map(|&nanos| nanos as f64 / 1e9).collect(),
            count: counts.iter().sum(),
            counts,
            sum: self.waited_nanos.load(Ordering::Relaxed) as f64 / 1e9,
        }
    }

    /// The files on which somebody has waited for so long.
    pub fn files_waited_on(&self, age: Duration) -> Vec<FileId> {
        let mut files: Vec<FileId> = lock(&self.waits)
            .values()
            .filter(|wait| wait.since.elapsed() >= age)
            .map(|wait| wait.asker.file)
            .collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// The waits that have come to be so long since this was last asked, the longest first.
    pub fn newly_long(&self, age: Duration) -> Vec<LongWait> {
        let mut long: Vec<LongWait> = lock(&self.waits)
            .values_mut()
            .filter(|wait| !wait.is_told && wait.since.elapsed() >= age)
            .map(|wait| {
                wait.is_told = true;
                LongWait {
                    asker: wait.asker,
                    waits_for: wait.since.elapsed(),
                }
            })
            .collect();
        long.sort_unstable_by_key(|wait| std::cmp::Reverse(wait.waits_for));
        long
    }

    /// Refusals with ENOLCK and with EDEADLK since they were last taken.
    pub fn take_refusals(&self) -> (Refusals, Refusals) {
        (
            std::mem::take(&mut *lock(&self.limits)),
            std::mem::take(&mut *lock(&self.deadlocks)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKER: Asker = Asker {
        file: FileId { dev: 1, ino: 2 },
        pid: 7,
    };

    #[test]
    fn waits_are_counted_when_they_end_and_told_once_while_they_last() {
        let tally = Tally::default();
        tally.begin(RequestId(1), ASKER);
        tally.begin(RequestId(2), ASKER);
        tally.begin(RequestId(3), ASKER);
        tally.forget(RequestId(3));
        assert_eq!(tally.files_waited_on(Duration::ZERO), [ASKER.file]);
        assert_eq!(tally.files_waited_on(Duration::from_secs(1000)), []);
        assert_eq!(tally.newly_long(Duration::ZERO).len(), 2);
        assert_eq!(tally.newly_long(Duration::ZERO).len(), 0);
        for id in [1, 2, 3] {
            tally.end(RequestId(id));
        }
        let times = tally.wait_times();
        assert_eq!(times.count, 2);
        assert_eq!(times.counts.len(), times.bounds.len() + 1);
        assert!(times.sum > 0.0);
        assert_eq!(tally.files_waited_on(Duration::ZERO), []);
    }

    #[test]
    fn of_many_refusals_the_first_are_kept_and_all_are_counted() {
        let tally = Tally::default();
        for _ in 0..100 {
            tally.limit(ASKER, || "full".into());
        }
        let (limits, deadlocks) = tally.take_refusals();
        assert_eq!((limits.first.len(), limits.count), (KEPT, 100));
        assert_eq!(deadlocks, Refusals::default());
        assert_eq!(tally.take_refusals().0, Refusals::default());
        assert_eq!(tally.limit_hits(), 100);
    }
}
