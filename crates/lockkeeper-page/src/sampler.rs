//! What was seen last, for all who look; and the counters of the last ten minutes.
//!
//! The locks are looked at only while somebody looks at the page. The counters are read once a second,
//! always: who opens the page when something hangs wants to know what it was like before.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use lockkeeper_watch::report::Report;
use serde::Serialize;
use tokio::sync::{Notify, watch};

use crate::source::{Source, TotalsNow};

/// The least time between two looks.
const PERIOD: Duration = Duration::from_millis(500);
/// A look is followed by so many times its own length without one.
const REST: u32 = 20;
/// How often the counters are read.
const SECOND: Duration = Duration::from_secs(1);
/// How many readings are kept: ten minutes.
const KEPT: usize = 600;

/// The sampler's results, and who wants them.
pub struct Sampler {
    pub source: Arc<dyn Source>,
    seen: watch::Sender<Option<Arc<Report>>>,
    history: watch::Sender<History>,
    viewers: AtomicUsize,
    came: Notify,
}

/// What happened in one second, and how it was at its end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// When it was, in seconds since 1970.
    pub time: f64,
    pub acquisitions: u64,
    pub contended: u64,
    pub wake_ups: u64,
    pub waiting: usize,
}

/// The last readings, the oldest first.
#[derive(Debug, Default)]
pub struct History {
    samples: VecDeque<Sample>,
    /// The number of the sample that comes next, counted from the first ever.
    next: u64,
}

impl History {
    fn push(&mut self, sample: Sample) {
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        self.next += 1;
    }

    /// The samples from that number on which are still kept, and the number after them.
    pub fn since(&self, number: u64) -> (Vec<Sample>, u64) {
        let new = usize::try_from(self.next.saturating_sub(number)).unwrap_or(usize::MAX);
        let skipped = self.samples.len().saturating_sub(new);
        (self.samples.range(skipped..).copied().collect(), self.next)
    }
}

/// Somebody who looks, for as long as this lives.
pub struct Viewer(Arc<Sampler>);

impl Drop for Viewer {
    fn drop(&mut self) {
        self.0.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Sampler {
    pub fn new(source: Arc<dyn Source>) -> Arc<Sampler> {
        Arc::new(Sampler {
            source,
            seen: watch::Sender::new(None),
            history: watch::Sender::new(History::default()),
            viewers: AtomicUsize::new(0),
            came: Notify::new(),
        })
    }

    /// Somebody who looks, and what there is to be seen from now on.
    pub fn look(self: &Arc<Self>) -> (Viewer, watch::Receiver<Option<Arc<Report>>>) {
        self.viewers.fetch_add(1, Ordering::Relaxed);
        self.came.notify_one();
        (Viewer(self.clone()), self.seen.subscribe())
    }

    /// The counters of the last minutes, from this sample on.
    pub fn history_since(&self, number: u64) -> (Vec<Sample>, u64) {
        self.history.borrow().since(number)
    }

    /// How many look.
    pub fn viewers(&self) -> usize {
        self.viewers.load(Ordering::Relaxed)
    }

    /// Looks at the locks for as long as there is a server.
    pub async fn sample_locks(self: Arc<Self>) {
        loop {
            if self.viewers() == 0 {
                // What was seen before is of no use to who comes next.
                self.seen.send_replace(None);
                self.came.notified().await;
                continue;
            }
            let (source, begun) = (self.source.clone(), Instant::now());
            match tokio::task::spawn_blocking(move || source.report()).await {
                Ok(report) => {
                    self.seen.send_replace(Some(Arc::new(report)));
                }
                Err(error) => tracing::error!(%error, "cannot look at the locks for the page"),
            }
            tokio::time::sleep(rest_after(begun.elapsed())).await;
        }
    }

    /// Reads the counters for as long as there is a server.
    pub async fn sample_totals(self: Arc<Self>) {
        let mut before = self.source.totals();
        let mut ticks = tokio::time::interval(SECOND);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let now = self.source.totals();
            let sample = difference(&before, &now);
            self.history.send_modify(|history| history.push(sample));
            before = now;
        }
    }
}

fn rest_after(took: Duration) -> Duration {
    (took * REST).max(PERIOD.saturating_sub(took))
}

fn difference(before: &TotalsNow, now: &TotalsNow) -> Sample {
    let (from, to) = (&before.totals, &now.totals);
    Sample {
        time: seconds_now(),
        acquisitions: to.acquisitions.saturating_sub(from.acquisitions),
        contended: to.contended.saturating_sub(from.contended),
        wake_ups: to.wake_ups.saturating_sub(from.wake_ups),
        waiting: now.waiting,
    }
}

fn seconds_now() -> f64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(number: u64) -> Sample {
        Sample {
            time: 0.0,
            acquisitions: number,
            contended: 0,
            wake_ups: 0,
            waiting: 0,
        }
    }

    #[test]
    fn ten_minutes_are_kept_and_told_once() {
        let mut history = History::default();
        assert_eq!(history.since(0), (vec![], 0));
        for number in 0..1000 {
            history.push(sample(number));
        }
        let (all, next) = history.since(0);
        assert_eq!((all.len(), next), (KEPT, 1000));
        assert_eq!(all[0].acquisitions, 400);
        assert_eq!(history.since(998).0, [sample(998), sample(999)]);
        assert_eq!(history.since(1000), (vec![], 1000));
        // Of a server before this one.
        assert_eq!(history.since(5000).0, []);
    }

    #[test]
    fn looking_takes_at_most_a_twentieth_of_the_time() {
        for (took, rests) in [(0, 500), (10, 490), (100, 2000)] {
            assert_eq!(
                rest_after(Duration::from_millis(took)),
                Duration::from_millis(rests)
            );
        }
    }

    struct Counting(AtomicUsize);

    impl Source for Counting {
        fn report(&self) -> Report {
            self.0.fetch_add(1, Ordering::Relaxed);
            Report::default()
        }

        fn totals(&self) -> TotalsNow {
            TotalsNow::default()
        }

        fn watch(&self, _: crate::source::FileId) -> Box<dyn crate::source::Watched> {
            unreachable!("nobody opens a file")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_looked_at_while_nobody_looks() {
        let counting = Arc::new(Counting(AtomicUsize::new(0)));
        let sampler = Sampler::new(counting.clone());
        tokio::spawn(sampler.clone().sample_locks());
        tokio::spawn(sampler.clone().sample_totals());
        let a_minute = || tokio::time::sleep(Duration::from_secs(60));
        a_minute().await;
        assert_eq!(counting.0.load(Ordering::Relaxed), 0);
        let viewers = [sampler.look(), sampler.look()];
        a_minute().await;
        let looks = counting.0.load(Ordering::Relaxed);
        assert!((2..=121).contains(&looks), "{looks}");
        drop(viewers);
        a_minute().await;
        assert_eq!(counting.0.load(Ordering::Relaxed), looks);
        assert_eq!(*sampler.seen.borrow(), None, "nothing is kept");
        // The counters were read all the time.
        assert!(sampler.history_since(0).0.len() >= 170);
    }
}
