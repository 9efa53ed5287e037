//! A file's time line: who waited and who held, from when to when.
//!
//! A [`Recorder`] is told of each wait, grant and release of one file, and keeps *spans*: those that go on,
//! and the last that have ended. It follows the rules of record locks: what an owner takes or gives up
//! changes the part of its locks that it covers, and leaves the rest. Waits are in the order in which they
//! began, an owner's locks are disjoint and by their first byte; so what is told costs the logarithm of what
//! goes on, and being asked costs what is answered.
//!
//! It may begin while others lock and wait. What is told of a lock or wait that it has been given at the start
//! changes nothing; what it does not know of, ends without a trace.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::report::{Kind, Mode};

/// How many spans that have ended are kept.
const KEPT: usize = 2000;
/// How many waits, and how many locks, that go on are told.
const TOLD: usize = 200;
/// How many spans that have ended are told.
const TOLD_ENDED: usize = 400;

/// What is held or waited for, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// Whose it is, as in a report.
    pub owner: u64,
    /// The family.
    pub kind: Kind,
    /// The first byte.
    pub start: u64,
    /// The last byte, inclusive; `u64::MAX` to the end.
    pub end: u64,
    /// Shared or exclusive.
    pub mode: Mode,
}

/// A wait or a lock, from its beginning to its end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Span {
    /// Whether it is a lock or a wait, and how a wait ended.
    pub what: What,
    /// The family.
    pub kind: Kind,
    /// Shared or exclusive.
    #[serde(rename = "type")]
    pub mode: Mode,
    /// The first byte.
    pub start: u64,
    /// The last byte, inclusive; `None` to the end.
    pub end: Option<u64>,
    /// The process that called.
    pub pid: u32,
    /// Whose it is, as in a report.
    pub owner: u64,
    /// When it began, in seconds since 1970.
    pub from: f64,
    /// When it ended; `None` if it goes on.
    pub to: Option<f64>,
}

/// What a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// A lock.
    Held,
    /// A wait that goes on.
    Waits,
    /// A wait that ended with the lock.
    Granted,
    /// A wait that was refused: it would have closed a deadlock, or met a limit.
    Refused,
    /// A wait that its caller gave up.
    Cancelled,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    kind: Kind,
    end: u64,
    mode: Mode,
    pid: u32,
    from: f64,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    claim: Claim,
    pid: u32,
    from: f64,
}

/// Whose it is, and whether it is a flock: record locks and flocks do not see each other.
type Holder = (u64, bool);

/// Records one file. Begins with nothing: what is held and waited for is told first, with when it began, the
/// longest waits first.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    /// By their first byte. One map, and not one for each holder, since an empty one keeps its room: who locks and
    /// unlocks again and again allocates nothing.
    holds: BTreeMap<(Holder, u64), Hold>,
    /// By their number.
    waits: BTreeMap<u64, Wait>,
    /// The numbers of the waits for a claim: threads of a process may wait for the same.
    waits_for: BTreeMap<Claim, VecDeque<u64>>,
    next_wait: u64,
    ended: VecDeque<Span>,
    /// What a release covers, while it is being told: room that is used again.
    covered: Vec<(u64, Hold)>,
}

impl Recorder {
    /// A wait begins, or did at that time.
    pub fn waits(&mut self, claim: Claim, pid: u32, now: f64) {
        let number = self.next_wait;
        self.next_wait += 1;
        let wait = Wait {
            claim,
            pid,
            from: now,
        };
        self.waits.insert(number, wait);
        self.waits_for.entry(claim).or_default().push_back(number);
    }

    /// A wait ends: with the lock, or as `what` says.
    pub fn wait_ends(&mut self, claim: Claim, pid: u32, what: What, now: f64) {
        if let Some(wait) = self.take_wait(&claim) {
            keep(
                &mut self.ended,
                Span {
                    what,
                    to: Some(now),
                    ..wait.span()
                },
            );
        }
        if what == What::Granted && claim.kind != Kind::Access {
            self.granted(claim, pid, now);
        }
    }

    fn take_wait(&mut self, claim: &Claim) -> Option<Wait> {
        let numbers = self.waits_for.get_mut(claim)?;
        let number = numbers.pop_front();
        if numbers.is_empty() {
            self.waits_for.remove(claim);
        }
        self.waits.remove(&number?)
    }

    /// A lock is taken, or was at that time.
    pub fn granted(&mut self, claim: Claim, pid: u32, now: f64) {
        let holder = holder(&claim);
        if let Some((&(_, start), hold)) = self.last_covered(holder, &claim) {
            // What is held already changes nothing.
            if (start, hold.end, hold.mode) == (claim.start, claim.end, claim.mode) {
                return;
            }
            self.released(&claim, now);
        }
        let hold = Hold {
            kind: claim.kind,
            end: claim.end,
            mode: claim.mode,
            pid,
            from: now,
        };
        self.holds.insert((holder, claim.start), hold);
    }

    /// Of an owner's locks that a claim covers, wholly or in part, the last.
    fn last_covered(&self, holder: Holder, claim: &Claim) -> Option<(&(Holder, u64), &Hold)> {
        let up_to_end = (holder, 0)..=(holder, claim.end);
        let last = self.holds.range(up_to_end).next_back();
        last.filter(|(_, hold)| hold.end >= claim.start)
    }

    /// An owner's locks end where `claim` covers them, whatever their mode. What was taken after `now` stays.
    pub fn released(&mut self, claim: &Claim, now: f64) {
        let holder = holder(claim);
        let holds = &mut self.holds;
        // They are disjoint, so their ends are in order, too.
        let covered = holds
            .range((holder, 0)..=(holder, claim.end))
            .rev()
            .take_while(|(_, hold)| hold.end >= claim.start)
            .filter(|(_, hold)| hold.from <= now)
            .map(|(&(_, start), &hold)| (start, hold));
        self.covered.extend(covered);
        for (start, hold) in self.covered.drain(..).rev() {
            holds.remove(&(holder, start));
            if start < claim.start {
                let end = claim.start - 1;
                holds.insert((holder, start), Hold { end, ..hold });
            }
            if hold.end > claim.end {
                holds.insert((holder, claim.end + 1), hold);
            }
            let span = hold.span(claim.owner, start.max(claim.start), hold.end.min(claim.end));
            keep(
                &mut self.ended,
                Span {
                    to: Some(now),
                    ..span
                },
            );
        }
    }

    /// An owner lets go of everything here.
    pub fn owner_gone(&mut self, owner: u64, now: f64) {
        for kind in [Kind::Posix, Kind::Flock] {
            let everything = Claim {
                owner,
                kind,
                start: 0,
                end: u64::MAX,
                mode: Mode::Write,
            };
            self.released(&everything, now);
        }
    }

    /// The last spans that have ended, in the order of their ends; then locks that are held, and those who
    /// wait, the longest first. So many of each as a picture can show.
    pub fn spans(&self) -> Vec<Span> {
        let ended = self.ended.len().saturating_sub(TOLD_ENDED);
        let held = self
            .holds
            .iter()
            .take(TOLD)
            .map(|(&((owner, _), start), hold)| hold.span(owner, start, hold.end));
        let waits = self.waits.values().take(TOLD).map(Wait::span);
        self.ended
            .range(ended..)
            .cloned()
            .chain(held)
            .chain(waits)
            .collect()
    }
}

/// Keeps the last that have ended.
fn keep(ended: &mut VecDeque<Span>, span: Span) {
    if ended.len() == KEPT {
        ended.pop_front();
    }
    ended.push_back(span);
}

fn holder(claim: &Claim) -> Holder {
    (claim.owner, claim.kind == Kind::Flock)
}

fn last_byte(end: u64) -> Option<u64> {
    (end < u64::MAX).then_some(end)
}

impl Hold {
    fn span(&self, owner: u64, start: u64, end: u64) -> Span {
        Span {
            what: What::Held,
            kind: self.kind,
            mode: self.mode,
            start,
            end: last_byte(end),
            pid: self.pid,
            owner,
            from: self.from,
            to: None,
        }
    }
}

impl Wait {
    fn span(&self) -> Span {
        Span {
            what: What::Waits,
            kind: self.claim.kind,
            mode: self.claim.mode,
            start: self.claim.start,
            end: last_byte(self.claim.end),
            pid: self.pid,
            owner: self.claim.owner,
            from: self.from,
            to: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(owner: u64, kind: Kind, start: u64, end: u64, mode: Mode) -> Claim {
        Claim {
            owner,
            kind,
            start,
            end,
            mode,
        }
    }

    fn write(owner: u64, start: u64, end: u64) -> Claim {
        claim(owner, Kind::Posix, start, end, Mode::Write)
    }

    /// `OWNER what START-END FROM-TO`, a line each.
    fn picture(recorder: &Recorder) -> Vec<String> {
        let spans = recorder.spans();
        let number =
            |number: Option<f64>| number.map_or(String::new(), |number| number.to_string());
        spans
            .iter()
            .map(|span| {
                let end = span.end.map_or(String::new(), |end| end.to_string());
                format!(
                    "{} {:?} {}-{end} {}-{}",
                    span.owner,
                    span.what,
                    span.start,
                    span.from,
                    number(span.to)
                )
            })
            .collect()
    }

    #[test]
    fn a_wait_becomes_a_lock_and_ends() {
        let mut recorder = Recorder::default();
        recorder.granted(write(1, 0, 9), 11, 1.0);
        recorder.waits(write(2, 5, 6), 12, 2.0);
        assert_eq!(picture(&recorder), ["1 Held 0-9 1-", "2 Waits 5-6 2-"]);
        recorder.released(&write(1, 0, 9), 3.0);
        recorder.wait_ends(write(2, 5, 6), 12, What::Granted, 3.0);
        recorder.owner_gone(2, 4.0);
        assert_eq!(
            picture(&recorder),
            ["1 Held 0-9 1-3", "2 Granted 5-6 2-3", "2 Held 5-6 3-4"]
        );
    }

    #[test]
    fn what_is_given_up_is_cut_out_of_what_is_held() {
        // 0........9  gives up  ..34..
        let mut recorder = Recorder::default();
        recorder.granted(write(1, 0, 9), 11, 1.0);
        recorder.released(&write(1, 3, 4), 2.0);
        assert_eq!(
            picture(&recorder),
            ["1 Held 3-4 1-2", "1 Held 0-2 1-", "1 Held 5-9 1-"]
        );
        // Taken as read: what it covers of the others ends, the rest stays.
        recorder.granted(claim(1, Kind::Posix, 2, 5, Mode::Read), 11, 3.0);
        assert_eq!(
            picture(&recorder)[1..],
            [
                "1 Held 2-2 1-3",
                "1 Held 5-5 1-3",
                "1 Held 0-1 1-",
                "1 Held 2-5 3-",
                "1 Held 6-9 1-"
            ]
        );
        // Another owner's, a flock, and a gap: nothing.
        recorder.released(&write(2, 0, 9), 4.0);
        recorder.released(&claim(1, Kind::Flock, 0, u64::MAX, Mode::Write), 4.0);
        recorder.released(&write(1, 20, 30), 4.0);
        assert_eq!(recorder.spans().len(), 6);
    }

    #[test]
    fn what_was_there_at_the_start_is_not_told_twice() {
        let whole = |owner| claim(owner, Kind::Flock, 0, u64::MAX, Mode::Write);
        let mut recorder = Recorder::default();
        recorder.granted(whole(1), 7, 7.0);
        recorder.waits(whole(2), 7, 8.0);
        recorder.granted(whole(1), 7, 10.1);
        assert_eq!(picture(&recorder), ["1 Held 0- 7-", "2 Waits 0- 8-"]);
        recorder.wait_ends(whole(2), 7, What::Cancelled, 11.0);
        // Of a wait that nobody told of.
        recorder.wait_ends(write(9, 0, 0), 7, What::Refused, 11.0);
        assert_eq!(picture(&recorder), ["2 Cancelled 0- 8-11", "1 Held 0- 7-"]);
    }

    #[test]
    fn a_grant_within_a_release_of_the_same_owner_stays() {
        let mut recorder = Recorder::default();
        recorder.granted(write(1, 0, 9), 11, 1.0);
        // Another thread's wait is granted while the first one's release, of 2.0, is still being told.
        recorder.waits(write(1, 0, 5), 11, 1.5);
        recorder.wait_ends(write(1, 0, 5), 11, What::Granted, 2.1);
        recorder.released(&write(1, 0, 9), 2.0);
        assert_eq!(
            picture(&recorder).last().map(String::as_str),
            Some("1 Held 0-5 2.1-")
        );
    }

    #[test]
    fn only_the_last_are_kept_and_told() {
        let mut recorder = Recorder::default();
        for number in 0..5000_u32 {
            let now = f64::from(number);
            recorder.granted(write(1, 0, 0), 11, now);
            recorder.released(&write(1, 0, 0), now);
            recorder.waits(write(u64::from(number) + 2, 0, 0), 11, now);
        }
        assert_eq!(recorder.ended.len(), KEPT);
        let spans = recorder.spans();
        assert_eq!(spans.len(), TOLD_ENDED + TOLD);
        assert_eq!(spans[TOLD_ENDED].owner, 2, "the one that waits longest");
    }
}
