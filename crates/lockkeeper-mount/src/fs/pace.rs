//! Whether the reader may write by itself.
//!
//! A write into the page cache takes a microsecond or two, and a hand-over to a worker ten times that. But
//! a writer may also be put to sleep: when too many pages are dirty, or the journal is full. There is no way
//! to ask before (`RWF_NOWAIT` is refused for such writes by most file systems). So the reader tries, small
//! writes only, and once one was slow it leaves writing to the workers for a while: half a second, and twice as
//! long each time the next try is slow again. Locks wait for a stalled disk once in that while, not longer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The largest write that the reader does.
pub const SMALL: usize = 128 * 1024;
/// A write that takes longer has waited for something.
const SLOW: Duration = Duration::from_millis(2);
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What recent writes of the reader were like.
#[derive(Debug)]
pub struct Pace {
    start: Instant,
    /// The reader does not write before this time, in microseconds from `start`.
    resume: AtomicU64,
    /// The last pause, in microseconds.
    pause: AtomicU64,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            start: Instant::now(),
            resume: AtomicU64::new(0),
            pause: AtomicU64::new(0),
        }
    }
}

impl Pace {
    /// Whether a write of `len` bytes at `now` is for the reader.
    pub fn allows(&self, len: usize, now: Instant) -> bool {
        len <= SMALL && self.micros(now) >= self.resume.load(Ordering::Relaxed)
    }

    /// A write by the reader took from `begin` to `end`. Only the reader calls this.
    pub fn took(&self, begin: Instant, end: Instant) {
        if end.duration_since(begin) < SLOW {
            // Forgiven a little with each quick write, so that one stall long ago does not count.
            let pause = self.pause.load(Ordering::Relaxed);
            if pause > 0 {
                self.pause
                    .store(pause - pause.div_ceil(64), Ordering::Relaxed);
            }
            return;
        }
        let last = self.pause.load(Ordering::Relaxed);
        let pause = (last * 2).clamp(
            SHORTEST_PAUSE.as_micros() as u64,
            LONGEST_PAUSE.as_micros() as u64,
        );
        self.pause.store(pause, Ordering::Relaxed);
        self.resume
            .store(self.micros(end) + pause, Ordering::Relaxed);
    }

    fn micros(&self, now: Instant) -> u64 {
        u64::try_from(now.duration_since(self.start).as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_write_sends_the_next_ones_elsewhere_for_longer_each_time() {
        let pace = Pace::default();
        let begin = pace.start;
        let ms = |ms| begin + Duration::from_millis(ms);
        assert!(pace.allows(SMALL, begin));
        assert!(!pace.allows(SMALL + 1, begin));
        pace.took(ms(0), ms(1));
        assert!(pace.allows(1, ms(1)));
        pace.took(ms(1), ms(11));
        assert!(!pace.allows(1, ms(510)));
        assert!(pace.allows(1, ms(511)));
        pace.took(ms(511), ms(611));
        assert!(!pace.allows(1, ms(1600)));
        assert!(pace.allows(1, ms(1611)));
        for _ in 0..1000 {
            pace.took(ms(2000), ms(2000));
        }
        pace.took(ms(2000), ms(2010));
        assert!(pace.allows(1, ms(2510)), "forgiven");
    }
}
