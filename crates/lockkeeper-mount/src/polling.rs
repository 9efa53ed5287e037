//! Whether the reader looks for the next message a while before it sleeps.
//!
//! Whoever makes a call on the mount sleeps until the reader has answered, and the reader sleeps until the next call. Where
//! both have their turns on one processor, that is two context switches. Where the scheduler puts them on two, each
//! wake-up rouses a processor that has nothing else to do, and on a virtual machine a call takes 60 µs instead of
//! 2.4. Neither may be chosen: a reader that moves to its caller's processor sees the caller woken on the other one.
//! But a reader that stays awake until the next call comes saves one of the two wake-ups.
//!
//! That costs a processor's time, and with others to run there it may cost the caller more than it saves. So it is
//! tried, for one batch of messages, where they come slowly enough that it could help, and quickly enough that the
//! wait is short; and is kept up for as long as the batches are quicker for it. Each try that does not help makes the
//! next one later.

use std::time::{Duration, Instant};

use crate::device::Device;

/// So many messages are timed together.
const BATCH: u32 = 64;
/// How long to look for a message. From one call to the next it takes some 17 µs if the caller does nothing else.
const LOOK: Duration = Duration::from_micros(50);
/// A batch with less time for a message is as quick as it gets.
const QUICK: Duration = Duration::from_micros(8);
/// With more than this, nobody hurries.
const LEISURELY: Duration = Duration::from_micros(120);
/// Looking has to bring a batch down to so many tenths.
const WORTH: u32 = 8;
/// Somebody else had the processor for so long while we looked: this is no place for it.
const CROWDED: Duration = Duration::from_millis(1);
/// So many looks in vain in a batch are enough.
const VAIN: u32 = 8;
/// The most batches between two tries.
const LONGEST_PAUSE: u32 = 1024;
/// So many batches later it is seen whether sleeping has become as quick.
const RECONSIDER: u32 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Sleep,
    /// Look first, as long as a batch takes less than `than`. `batches` were so.
    Look {
        than: Duration,
        batches: u32,
    },
}

/// How a look ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Message,
    Nothing,
    /// Others had the processor meanwhile.
    Others,
}

/// What a reader has learnt of how messages come.
#[derive(Debug)]
pub struct Polling {
    way: Way,
    messages: u32,
    since: Instant,
    vain: u32,
    /// Batches until the next try, and how many it were the last time.
    left: u32,
    pause: u32,
}

impl Default for Polling {
    fn default() -> Self {
        Polling {
            way: Way::Sleep,
            messages: 0,
            since: Instant::now(),
            vain: 0,
            left: 0,
            pause: 0,
        }
    }
}

impl Polling {
    /// Looks for the next message, if that has proved its worth, and returns when there is one or it is time to sleep.
    #[inline]
    pub fn await_message(&mut self, device: &Device) {
        self.messages += 1;
        if self.messages == BATCH {
            self.end_batch(Instant::now());
        }
        if self.way != Way::Sleep {
            self.looked(look(device));
        }
    }

    fn looked(&mut self, seen: Seen) {
        match seen {
            Seen::Message => {}
            Seen::Others => self.give_up(),
            Seen::Nothing => {
                self.vain += 1;
                if self.vain == VAIN {
                    self.give_up();
                }
            }
        }
    }

    #[cold]
    fn end_batch(&mut self, now: Instant) {
        let took = now.duration_since(self.since);
        self.start_batch(now);
        match &mut self.way {
            Way::Sleep if took < QUICK * BATCH || took > LEISURELY * BATCH => {
                (self.left, self.pause) = (0, 0);
            }
            Way::Sleep if self.left > 0 => self.left -= 1,
            Way::Sleep => {
                self.way = Way::Look {
                    than: took * WORTH / 10,
                    batches: 0,
                };
            }
            Way::Look { than, .. } if took >= *than => self.give_up(),
            Way::Look { batches, .. } => {
                self.pause = 0;
                *batches += 1;
                if *batches == RECONSIDER {
                    self.way = Way::Sleep;
                }
            }
        }
    }

    /// Sleeps for more batches than the last time.
    fn give_up(&mut self) {
        self.way = Way::Sleep;
        self.pause = (2 * self.pause + 1).min(LONGEST_PAUSE);
        self.left = self.pause;
        self.start_batch(Instant::now());
    }

    fn start_batch(&mut self, now: Instant) {
        (self.messages, self.since, self.vain) = (0, now, 0);
    }
}

fn look(device: &Device) -> Seen {
    let start = Instant::now();
    let mut last = start;
    loop {
        if device.has_message() {
            return Seen::Message;
        }
        // The caller may have been put behind us.
        std::thread::yield_now();
        let now = Instant::now();
        if now.duration_since(last) > CROWDED {
            return Seen::Others;
        }
        if now.duration_since(start) > LOOK {
            return Seen::Nothing;
        }
        last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_micros(60);
    const HELPED: Duration = Duration::from_micros(17);

    /// Lets batches pass whose messages take so long when the reader sleeps and when it looks, and returns
    /// in how many it looked.
    fn looks(polling: &mut Polling, asleep: Duration, looking: Duration, batches: u32) -> u32 {
        let mut looks = 0;
        for _ in 0..batches {
            let each = match polling.way {
                Way::Sleep => asleep,
                Way::Look { .. } => looking,
            };
            looks += u32::from(polling.way != Way::Sleep);
            polling.end_batch(polling.since + each * BATCH);
        }
        looks
    }

    #[test]
    fn it_looks_where_that_helps_and_elsewhere_ever_more_seldom() {
        let us = Duration::from_micros;
        for (asleep, looking, batches, expected) in [
            // It helps: all but the first batch, and one in 256.
            (SLOW, HELPED, 257, 256),
            (SLOW, HELPED, 1 + 256 + 1 + 256, 512),
            // It does not, or not enough: after 1, 3, 7, 15 batches more.
            (SLOW, SLOW, 2, 1),
            (SLOW, us(48), 5, 2),
            (SLOW, us(47), 257, 256),
            (SLOW, us(5000), 2 + 3 + 5 + 9, 4),
            // Pauses up to the longest are some 2,000 batches.
            (SLOW, SLOW, 2100 + 10 * (LONGEST_PAUSE + 2), 21),
            // It could not.
            (us(7), us(1), 1000, 0),
            (us(121), us(1), 1000, 0),
        ] {
            let mut polling = Polling::default();
            assert_eq!(
                looks(&mut polling, asleep, looking, batches),
                expected,
                "{asleep:?} asleep, {looking:?} looking, {batches} batches"
            );
        }
    }

    #[test]
    fn a_crowded_processor_and_looks_in_vain_end_it_at_once() {
        for (seen, times) in [(Seen::Others, 1), (Seen::Nothing, VAIN)] {
            let mut polling = Polling::default();
            assert_eq!(looks(&mut polling, SLOW, HELPED, 2), 1);
            for time in 1..=times {
                assert_ne!(polling.way, Way::Sleep, "{seen:?}, {time}");
                polling.looked(Seen::Message);
                polling.looked(seen);
            }
            assert_eq!((polling.way, polling.left), (Way::Sleep, 1), "{seen:?}");
        }
    }

    #[test]
    fn a_few_looks_in_vain_in_each_batch_are_no_matter() {
        let mut polling = Polling::default();
        assert_eq!(looks(&mut polling, SLOW, HELPED, 2), 1);
        for _ in 0..100 {
            for _ in 1..VAIN {
                polling.looked(Seen::Nothing);
            }
            assert_eq!(looks(&mut polling, SLOW, HELPED, 1), 1);
        }
    }
}
