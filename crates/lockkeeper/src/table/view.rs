//! What a file shows of itself: who holds what, who waits beneath whom.

use alloc::vec::Vec;

use super::Table;
use super::locks::{Locks, Space};
use super::waiting::{Obstacle, State};
use crate::lock::{LockInfo, LockType, Time, WaiterId};
use crate::slab::NIL;

/// The state of a file at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Granted record locks by first byte, then flocks, then leases.
    pub granted: Vec<GrantedView>,
    /// Waiting requests in the order of the tree: after each come those that
    /// hang beneath it, so that `depth` draws it.
    pub waiting: Vec<WaiterView>,
}

/// A granted lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedView {
    /// The lock.
    pub lock: LockInfo,
    /// When it was granted, or its oldest part.
    pub since: Time,
    /// For a lease that is being broken: what must be left of it, `None` for
    /// nothing. `lock` keeps what it still is.
    pub breaking: Option<Option<LockType>>,
}

/// A waiting request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterView {
    /// Its id, for cancelling it.
    pub id: WaiterId,
    /// What it asks for. Of a waiting opener: `Lease`, and how it opens.
    pub lock: LockInfo,
    /// When it came.
    pub since: Time,
    /// Its place in the order of arrival among all that ever waited here.
    pub arrival: u64,
    /// How many were granted what it conflicts with since it came.
    pub overtaken: u64,
    /// What it hangs beneath.
    pub blocked_by: BlockedBy,
    /// How many waiters it hangs beneath, at most; 0 directly beneath a lock.
    pub depth: u32,
}

/// What a waiter hangs beneath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockedBy {
    /// The granted lock at this index of [`Snapshot::granted`].
    Lock(usize),
    /// The waiter at this index of [`Snapshot::waiting`].
    Waiter(usize),
    /// Nothing any more: it is being woken to take its lock.
    Nothing,
}

impl<T> Table<T> {
    /// The state of the file. Costs what it shows.
    pub fn snapshot(&self) -> Snapshot {
        let mut granted: Vec<GrantedView> = self
            .few
            .iter()
            .map(|held| GrantedView {
                lock: held.info(),
                since: held.since,
                breaking: None,
            })
            .collect();
        granted.sort_by_key(|view| {
            let is_flock = view.lock.kind == crate::lock::LockKind::Flock;
            (is_flock, view.lock.range)
        });
        let mut snapshot = Snapshot {
            granted,
            waiting: Vec::new(),
        };
        if let Some(locks) = self.full_in_use() {
            locks.add_to(&mut snapshot);
        }
        snapshot
    }
}

impl<T> Locks<T> {
    fn add_to(&self, snapshot: &mut Snapshot) {
        for space in [Space::Records, Space::Flocks] {
            let mut ids = Vec::new();
            self.visit_granted(space, &mut |id| ids.push(id));
            ids.sort_by_key(|&id| self.records[id].range);
            for id in ids {
                let record = &self.records[id];
                self.add_granted(
                    snapshot,
                    GrantedView {
                        lock: record.info(),
                        since: record.since,
                        breaking: None,
                    },
                    record.branch,
                );
            }
        }
        for (_, lease) in self.leases.iter() {
            self.add_granted(
                snapshot,
                GrantedView {
                    lock: lease.info(),
                    since: lease.since,
                    breaking: lease.is_breaking().then(|| lease.target()),
                },
                lease.branch,
            );
        }
        let mut offered: Vec<u32> = self
            .live_waiters()
            .filter(|(_, waiter)| waiter.state == State::Offered)
            .map(|(id, _)| id)
            .collect();
        offered.sort_by_key(|&id| self.waiters[id].arrival);
        for id in offered {
            self.add_tree(snapshot, id, BlockedBy::Nothing);
        }
    }

    fn add_granted(&self, snapshot: &mut Snapshot, view: GrantedView, branch: u32) {
        let index = snapshot.granted.len();
        snapshot.granted.push(view);
        for child in self.beneath(branch) {
            self.add_tree(snapshot, child, BlockedBy::Lock(index));
        }
    }

    /// Adds a waiter and all beneath it. Not by recursion: a tree may be as deep
    /// as there are waiters.
    fn add_tree(&self, snapshot: &mut Snapshot, top: u32, blocked_by: BlockedBy) {
        let mut at = top;
        let mut depth = 0;
        // Index in the snapshot of each waiter on the way up from `at`.
        let mut above: Vec<usize> = Vec::new();
        loop {
            let index = snapshot.waiting.len();
            let waiter = &self.waiters[at];
            snapshot.waiting.push(WaiterView {
                id: self.waiter_id(at),
                lock: self.waiter_info(at),
                since: waiter.since,
                arrival: waiter.arrival,
                overtaken: self.overtaken(at),
                blocked_by: above.last().map_or(blocked_by, |&i| BlockedBy::Waiter(i)),
                depth,
            });
            if let Some(child) = self.beneath(waiter.branch).next() {
                above.push(index);
                at = child;
                depth += 1;
                continue;
            }
            loop {
                if at == top {
                    return;
                }
                match self.next_sibling(at) {
                    NIL => {}
                    sibling => {
                        at = sibling;
                        break;
                    }
                }
                match self.blocker_of(at) {
                    Some(Obstacle::Waiter(up)) => at = up,
                    _ => return,
                }
                above.pop();
                depth -= 1;
            }
        }
    }
}
