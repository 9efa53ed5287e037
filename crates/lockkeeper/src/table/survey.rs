//! A snapshot in pieces, so that no file is held up by those who look at it.
//!
//! Granted locks, leases and waiters are copied by the places where they are
//! kept, a piece at a time, with the table free in between; their tree is put
//! together afterwards, outside it. What changes meanwhile may be seen before or
//! after the change, so a waiter may be seen whose blocker was not: it is shown as
//! one that hangs beneath nothing. Nothing is shown that never was.

use alloc::vec::Vec;

use hashbrown::HashMap;

use super::Table;
use super::few::FEW;
use super::locks::Locks;
use super::view::{BlockedBy, GrantedView, Snapshot, WaiterView};
use super::waiting::{Obstacle, State};
use crate::lock::LockKind;
use crate::slab::NIL;

/// What has been copied of a table so far.
#[derive(Debug, Default)]
pub struct Survey {
    granted: Vec<(Obstacle, GrantedView)>,
    waiting: Vec<(u32, Option<Obstacle>, WaiterView)>,
    /// The slab, and the place in it, where the next piece begins.
    stage: Stage,
    next: u32,
    /// Where it ends: what is added behind that comes too late, so that a file that
    /// grows is done with, too.
    end: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    #[default]
    Records,
    Leases,
    Waiters,
    Done,
}

impl Survey {
    /// Nothing copied yet.
    pub fn new() -> Survey {
        Survey::default()
    }

    /// Makes room for the next `count` places: to be called with the table free,
    /// so that copying them allocates nothing.
    pub fn reserve(&mut self, count: u32) {
        let count = count as usize;
        // The locks that the table keeps in itself are copied beside the first piece.
        self.granted.reserve(count + FEW);
        self.waiting.reserve(count);
    }

    /// The state of the file, as far as it was copied.
    pub fn into_snapshot(mut self) -> Snapshot {
        self.take_snapshot()
    }

    /// The same, and nothing is copied any more: the next file can have the room that
    /// there is, and the snapshot has no more than it needs.
    pub fn take_snapshot(&mut self) -> Snapshot {
        let Survey {
            granted,
            waiting,
            stage,
            next,
            end,
        } = self;
        (*stage, *next, *end) = (Stage::default(), 0, 0);
        // A lock that the table kept in itself may have moved since, and been seen twice.
        let moved: Vec<GrantedView> = granted
            .iter()
            .filter(|(place, _)| *place == IN_TABLE)
            .filter(|(_, few)| {
                let mut others = granted.iter().filter(|(place, _)| *place != IN_TABLE);
                others.any(|(_, view)| {
                    let (a, b) = (&few.lock, &view.lock);
                    (a.kind, a.range, &a.owner) == (b.kind, b.range, &b.owner)
                })
            })
            .map(|(_, few)| few.clone())
            .collect();
        granted.retain(|(place, view)| *place != IN_TABLE || !moved.contains(view));
        granted.sort_by(|(_, a), (_, b)| {
            let key = |view: &GrantedView| (rank(view.lock.kind), view.lock.range);
            key(a).cmp(&key(b)).then(a.since.cmp(&b.since))
        });
        if waiting.is_empty() {
            return Snapshot {
                granted: granted.drain(..).map(|(_, view)| view).collect(),
                waiting: Vec::new(),
            };
        }
        waiting.sort_by_key(|(.., view)| view.arrival);
        let locks: HashMap<(bool, u32), usize> = granted
            .iter()
            .enumerate()
            .filter_map(|(index, (place, _))| Some((key_of(*place)?, index)))
            .collect();
        let waiters: HashMap<u32, usize> = waiting
            .iter()
            .enumerate()
            .map(|(index, (slot, ..))| (*slot, index))
            .collect();

        // For each waiter those beneath it, youngest first; for each that hangs
        // beneath none, its root.
        let mut beneath: Vec<Vec<usize>> = Vec::new();
        beneath.resize_with(waiting.len(), Vec::new);
        let mut roots: Vec<(usize, BlockedBy)> = Vec::new();
        for (index, (_, blocker, _)) in waiting.iter().enumerate().rev() {
            match blocker {
                Some(Obstacle::Waiter(slot))
                    if waiters.get(slot).is_some_and(|&at| at != index) =>
                {
                    beneath[waiters[slot]].push(index);
                }
                Some(place) => {
                    let lock = key_of(*place).and_then(|key| locks.get(&key));
                    roots.push((
                        index,
                        lock.map_or(BlockedBy::Nothing, |&lock| BlockedBy::Lock(lock)),
                    ));
                }
                None => roots.push((index, BlockedBy::Nothing)),
            }
        }
        // The last is taken first: those of the first lock in front, by arrival.
        roots.sort_by_key(|&(index, root)| match root {
            BlockedBy::Lock(lock) => core::cmp::Reverse((lock, index)),
            _ => core::cmp::Reverse((usize::MAX, index)),
        });

        let mut views: Vec<Option<WaiterView>> =
            waiting.drain(..).map(|(.., view)| Some(view)).collect();
        let mut snapshot = Snapshot {
            granted: granted.drain(..).map(|(_, view)| view).collect(),
            waiting: Vec::with_capacity(views.len()),
        };
        let mut next_lost = 0;
        loop {
            let mut todo: Vec<(usize, BlockedBy, u32)> = match roots.pop() {
                Some((index, root)) => alloc::vec![(index, root, 0)],
                // A ring of waiters, each seen beneath the next, is no tree.
                None => match views[next_lost..].iter().position(Option::is_some) {
                    Some(lost) => {
                        next_lost += lost;
                        alloc::vec![(next_lost, BlockedBy::Nothing, 0)]
                    }
                    None => return snapshot,
                },
            };
            while let Some((index, blocked_by, depth)) = todo.pop() {
                let Some(view) = views[index].take() else {
                    continue;
                };
                let place = snapshot.waiting.len();
                snapshot.waiting.push(WaiterView {
                    blocked_by,
                    depth,
                    ..view
                });
                todo.extend(
                    beneath[index]
                        .iter()
                        .map(|&child| (child, BlockedBy::Waiter(place), depth + 1)),
                );
            }
        }
    }
}

/// The place of a lock that the table keeps in itself, beneath which nobody waits.
const IN_TABLE: Obstacle = Obstacle::Waiter(NIL);

/// Records before flocks before leases.
fn rank(kind: LockKind) -> u8 {
    match kind {
        LockKind::Posix | LockKind::Ofd | LockKind::Access => 0,
        LockKind::Flock => 1,
        LockKind::Lease | LockKind::Delegation => 2,
    }
}

fn key_of(place: Obstacle) -> Option<(bool, u32)> {
    match place {
        Obstacle::Record(id) => Some((false, id)),
        Obstacle::Lease(id) => Some((true, id)),
        Obstacle::Waiter(_) => None,
    }
}

impl<T> Table<T> {
    /// Copies up to `count` more places, at least one, into `survey`; false when
    /// that was the rest. The table may change between two calls: see [`Survey`].
    pub fn survey(&self, survey: &mut Survey, count: u32) -> bool {
        if let (Stage::Records, 0) = (survey.stage, survey.next) {
            let few = self.few.iter().map(|held| GrantedView {
                lock: held.info(),
                since: held.since,
                breaking: None,
            });
            survey.granted.extend(few.map(|view| (IN_TABLE, view)));
        }
        match self.full_in_use() {
            Some(locks) => locks.survey(survey, count),
            None => false,
        }
    }
}

impl<T> Locks<T> {
    fn survey(&self, survey: &mut Survey, count: u32) -> bool {
        let mut left = count.max(1);
        loop {
            let slots = match survey.stage {
                Stage::Records => self.records.slots(),
                Stage::Leases => self.leases.slots(),
                Stage::Waiters => self.waiters.slots(),
                Stage::Done => return false,
            };
            if survey.next == 0 {
                survey.end = slots;
            }
            while survey.next < survey.end.min(slots) {
                if left == 0 {
                    return true;
                }
                left -= 1;
                self.survey_slot(survey, survey.next);
                survey.next += 1;
            }
            survey.next = 0;
            survey.stage = match survey.stage {
                Stage::Records => Stage::Leases,
                Stage::Leases => Stage::Waiters,
                Stage::Waiters | Stage::Done => Stage::Done,
            };
        }
    }

    fn survey_slot(&self, survey: &mut Survey, id: u32) {
        match survey.stage {
            Stage::Records => {
                if let Some(record) = self.records.get(id) {
                    let view = GrantedView {
                        lock: record.info(),
                        since: record.since,
                        breaking: None,
                    };
                    survey.granted.push((Obstacle::Record(id), view));
                }
            }
            Stage::Leases => {
                if let Some(lease) = self.leases.get(id) {
                    let view = GrantedView {
                        lock: lease.info(),
                        since: lease.since,
                        breaking: lease.is_breaking().then(|| lease.target()),
                    };
                    survey.granted.push((Obstacle::Lease(id), view));
                }
            }
            Stage::Waiters => {
                let waiter = self.waiters.get(id);
                let waiter = waiter.filter(|w| !matches!(w.state, State::Finished(_)));
                if let Some(waiter) = waiter {
                    let view = WaiterView {
                        id: self.waiter_id(id),
                        lock: self.waiter_info(id),
                        since: waiter.since,
                        arrival: waiter.arrival,
                        overtaken: self.overtaken(id),
                        blocked_by: BlockedBy::Nothing,
                        depth: 0,
                    };
                    survey.waiting.push((id, self.blocker_of(id), view));
                }
            }
            Stage::Done => {}
        }
    }
}
