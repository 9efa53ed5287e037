//! The tree of waiters: its links, and where in it a waiter hangs.
//!
//! The rules are at the head of [`waiting`](super::waiting), by number.

use super::locks::{Context, Locks, Request, Space};
use super::waiting::{Beneath, Branch, ByArrival, Obstacle, Sleeper, State};
use crate::avl::{self, Links};
use crate::lock::{Fairness, LockType};
use crate::range::Range;
use crate::slab::NIL;

impl<T> Locks<T> {
    pub(super) fn branch_of(&self, obstacle: Obstacle) -> u32 {
        match obstacle {
            Obstacle::Record(id) => self.records[id].branch,
            Obstacle::Waiter(id) => self.waiters[id].branch,
            Obstacle::Lease(id) => self.leases[id].branch,
        }
    }

    pub(super) fn set_branch(&mut self, obstacle: Obstacle, branch: u32) {
        match obstacle {
            Obstacle::Record(id) => self.records[id].branch = branch,
            Obstacle::Waiter(id) => self.waiters[id].branch = branch,
            Obstacle::Lease(id) => self.leases[id].branch = branch,
        }
    }

    /// Hangs a pending waiter, already out of the pending tree, as the last
    /// directly beneath `obstacle`.
    pub(super) fn link(&mut self, id: u32, obstacle: Obstacle, is_soft: bool) {
        let mut branch = self.branch_of(obstacle);
        if branch == NIL {
            branch = self.branches.insert(Branch {
                beneath: obstacle,
                head: NIL,
                tail: NIL,
            });
            self.set_branch(obstacle, branch);
        }
        let tail = self.branches[branch].tail;
        let waiter = &mut self.waiters[id];
        waiter.state = State::Blocked;
        waiter.blocker = branch;
        waiter.is_soft = is_soft;
        waiter.near = Links {
            left: tail,
            right: NIL,
        };
        let class = waiter.class;
        match tail {
            NIL => self.branches[branch].head = id,
            tail => self.waiters[tail].near.right = id,
        }
        self.branches[branch].tail = id;
        if class != NIL {
            self.classes[class].anchor = id;
        }
        if let Obstacle::Waiter(above) = obstacle {
            let waiter = &self.waiters[id];
            let is_mixed = !waiter.beneath.is_pure() || self.waiters[above].class != class;
            let is_soft = is_soft || waiter.beneath.has_soft();
            self.mark_above(above, is_mixed, is_soft);
        }
    }

    /// Marks a waiter and those above it as having another class beneath them, or
    /// a soft waiter.
    pub(super) fn mark_above(&mut self, mut id: u32, is_mixed: bool, is_soft: bool) {
        loop {
            let waiter = &mut self.waiters[id];
            let marked = waiter.beneath.with(is_mixed, is_soft);
            if core::mem::replace(&mut waiter.beneath, marked) == marked {
                return;
            }
            match self.blocker_of(id) {
                Some(Obstacle::Waiter(above)) => id = above,
                _ => return,
            }
        }
    }

    /// What the waiter hangs beneath.
    pub(crate) fn blocker_of(&self, id: u32) -> Option<Obstacle> {
        match self.waiters[id].blocker {
            NIL => None,
            branch => Some(self.branches[branch].beneath),
        }
    }

    /// The waiter that this one, which no lock stops, queues behind for fairness;
    /// `None` if that is one that was offered its lock.
    pub(crate) fn queued_behind(&self, id: u32) -> Option<u32> {
        let mut at = id;
        // Those that queue behind the same waiter may hang in a chain.
        while self.waiters[at].is_soft {
            match self.blocker_of(at) {
                Some(Obstacle::Waiter(above)) => at = above,
                _ => break,
            }
        }
        (at != id && self.waiters[at].state == State::Blocked).then_some(at)
    }

    /// Takes a blocked or offered waiter from where it hangs; its own branch
    /// stays with it.
    pub(super) fn unlink(&mut self, id: u32) {
        let waiter = &mut self.waiters[id];
        let Links { left, right } = waiter.near;
        let class = waiter.class;
        let branch = core::mem::replace(&mut waiter.blocker, NIL);
        if left != NIL {
            self.waiters[left].near.right = right;
        }
        if right != NIL {
            self.waiters[right].near.left = left;
        }
        if branch == NIL {
            self.untold -= u32::from(self.waiters[id].sleeper != Sleeper::Woken);
            let space = self.waiters[id].request.space;
            let (head, tail) = &mut self.waiting[space as usize].offered;
            if left == NIL {
                *head = right;
            }
            if right == NIL {
                *tail = left;
            }
        } else {
            let beneath = self.branches[branch].beneath;
            if left == NIL {
                self.branches[branch].head = right;
            }
            if right == NIL {
                self.branches[branch].tail = left;
            }
            if self.branches[branch].head == NIL {
                self.branches.remove(branch);
                self.set_branch(beneath, NIL);
                if let Obstacle::Waiter(above) = beneath {
                    self.waiters[above].beneath = Beneath::Pure;
                }
            }
            if class != NIL && self.classes[class].anchor == id {
                // The nearest of its like that still hangs, if one is at hand.
                let above = match beneath {
                    Obstacle::Waiter(above) => above,
                    _ => NIL,
                };
                let is_anchor = |&near: &u32| {
                    near != NIL
                        && self.waiters[near].class == class
                        && self.waiters[near].state == State::Blocked
                };
                let near = [left, right, above].into_iter().find(is_anchor);
                self.classes[class].anchor = near.unwrap_or(NIL);
            }
        }
        self.waiters[id].state = State::Pending;
    }

    /// Takes a waiter from where it hangs, to be looked at.
    pub(super) fn detach(&mut self, id: u32) {
        self.unlink(id);
        self.pending = avl::insert::<ByArrival<T>>(&mut self.waiters, self.pending, id);
    }

    /// Detaches all who hang directly beneath.
    pub(super) fn detach_branch(&mut self, obstacle: Obstacle) {
        loop {
            match self.branch_of(obstacle) {
                NIL => return,
                branch => self.detach(self.branches[branch].head),
            }
        }
    }

    /// Detaches those directly beneath a record that no longer conflict with it,
    /// all of them if it is about to go (`rest` is `None`). One that still does
    /// may have others beneath it that no longer do: it lets go of them (rule 1).
    #[inline]
    pub(crate) fn loosen_record(&mut self, id: u32, rest: Option<Range>) {
        if self.records[id].branch == NIL {
            return;
        }
        let Some(rest) = rest else {
            return self.detach_branch(Obstacle::Record(id));
        };
        let lock_type = self.records[id].lock_type;
        let mut child = self.branches[self.records[id].branch].head;
        while child != NIL {
            let next = self.waiters[child].near.right;
            let request = &self.waiters[child].request;
            if !request.range.overlaps(rest) || !request.lock_type.excludes(lock_type) {
                self.detach(child);
            } else if !self.waiters[child].beneath.is_pure() {
                self.detach_branch(Obstacle::Waiter(child));
            }
            child = next;
        }
    }

    /// Detaches those directly beneath a lease that no longer conflict with it,
    /// all of them if it is about to go.
    pub(crate) fn loosen_lease(&mut self, id: u32, is_going: bool) {
        if self.leases[id].branch == NIL {
            return;
        }
        let mut child = self.branches[self.leases[id].branch].head;
        while child != NIL {
            let next = self.waiters[child].near.right;
            if is_going || !self.breaks(child, id) {
                self.detach(child);
            }
            child = next;
        }
    }

    pub(super) fn conflict_of_waiters(&self, a: u32, b: u32) -> bool {
        let (a, b) = (&self.waiters[a], &self.waiters[b]);
        // Openers wait side by side: none of them holds anything when it is done.
        a.request.space != Space::Leases
            && a.request.range.overlaps(b.request.range)
            && a.request.lock_type.excludes(b.request.lock_type)
            && a.request.owner != b.request.owner
    }

    // ---- Finding a place ---------------------------------------------------

    /// Hangs a waiter that hangs nowhere beneath `obstacle`, or further down
    /// where rule 2 demands it.
    ///
    /// On the way down a younger waiter is passed by descending beneath it only
    /// in Linux's order; else it is detached, to find its place beneath this one.
    pub(crate) fn attach(&mut self, id: u32, obstacle: Obstacle, cx: &Context<'_>) {
        let in_arrival_order = self.fairness(cx) != Fairness::Unlimited;
        let mut is_soft = false;
        if let Obstacle::Waiter(above) = obstacle {
            self.has_queued = true;
            self.let_go_of(id, above);
            is_soft = self.waiters[above].blocker != NIL;
        }
        let mut obstacle = match self.shortcut(id, in_arrival_order) {
            Some(Shortcut::Beside(branch)) => {
                let beneath = self.branches[branch].beneath;
                self.link(id, beneath, false);
                return self.recheck_branch(id);
            }
            Some(Shortcut::Beneath(above)) => {
                is_soft = false;
                Obstacle::Waiter(above)
            }
            None => obstacle,
        };
        'down: loop {
            let mut child = match self.branch_of(obstacle) {
                NIL => NIL,
                branch => self.branches[branch].head,
            };
            while child != NIL {
                let next = self.waiters[child].near.right;
                if self.conflict_of_waiters(id, child) {
                    if !in_arrival_order || self.waiters[child].arrival < self.waiters[id].arrival {
                        obstacle = Obstacle::Waiter(child);
                        continue 'down;
                    }
                    self.detach(child);
                }
                child = next;
            }
            break;
        }
        self.link(id, obstacle, is_soft);
        self.recheck_branch(id);
    }

    /// If `above` hangs beneath `id`, detaches `id`'s branch, so that `id` can
    /// hang beneath `above`.
    pub(super) fn let_go_of(&mut self, id: u32, above: u32) {
        if self.waiters[id].branch == NIL {
            return;
        }
        let mut at = above;
        while let Some(Obstacle::Waiter(up)) = self.blocker_of(at) {
            if up == id {
                return self.detach_branch(Obstacle::Waiter(id));
            }
            at = up;
        }
    }

    /// A place for a waiter next to another of its class, found without a walk.
    ///
    /// The anchor conflicts with all its ancestors, and so does this waiter, but
    /// for those that are its own owner's: it must have no other waiter here and
    /// no lock on these bytes. A reader then fits beside the anchor, whose
    /// siblings it cannot conflict with unless one is of the anchor's owner; a
    /// writer conflicts with the anchor itself and goes further down from there.
    pub(super) fn shortcut(&self, id: u32, in_arrival_order: bool) -> Option<Shortcut> {
        let waiter = &self.waiters[id];
        if waiter.class == NIL {
            return None;
        }
        let class = &self.classes[waiter.class];
        let anchor = class.anchor;
        if anchor == NIL || anchor == id || self.waiters[anchor].is_soft {
            return None;
        }
        let Request {
            owner,
            range,
            space,
            ..
        } = &waiter.request;
        if !self.waits_once(*space, owner) || self.own_overlap(*space, owner, *range) != NIL {
            return None;
        }
        let near = &self.waiters[anchor];
        match class.lock_type {
            LockType::Write => {
                let is_below =
                    waiter.branch == NIL && (!in_arrival_order || near.arrival < waiter.arrival);
                is_below.then_some(Shortcut::Beneath(anchor))
            }
            LockType::Read => {
                let is_younger = match self.branches[near.blocker].beneath {
                    Obstacle::Waiter(above) => self.waiters[above].arrival < waiter.arrival,
                    _ => true,
                };
                let fits = self.waits_once(*space, &near.request.owner)
                    && (!in_arrival_order || is_younger);
                fits.then_some(Shortcut::Beside(near.blocker))
            }
        }
    }

    /// Rule 5 for a waiter that has just been hung somewhere with its branch.
    ///
    /// A branch of nothing but its own class conflicts with whatever it does
    /// itself, unless an owner above has a waiter in the branch. Where that is
    /// certain the branch stays; else each in it is looked at.
    pub(super) fn recheck_branch(&mut self, id: u32) {
        if self.waiters[id].branch == NIL {
            return;
        }
        if !self.waiters[id].beneath.is_pure()
            || self.waiters[id].is_soft
            || !self.owners_above_are_alone(id)
        {
            self.detach_branch(Obstacle::Waiter(id));
        }
    }

    /// Whether no owner above a waiter has another waiter in the space. Gives up,
    /// with false, where there are many.
    pub(super) fn owners_above_are_alone(&self, id: u32) -> bool {
        let space = self.waiters[id].request.space;
        let mut at = id;
        for _ in 0..8 {
            match self.blocker_of(at) {
                None | Some(Obstacle::Lease(_)) => return true,
                Some(Obstacle::Record(record)) => {
                    return self.first_wait_of(space, &self.records[record].owner) == NIL;
                }
                Some(Obstacle::Waiter(above)) => {
                    if !self.waits_once(space, &self.waiters[above].request.owner) {
                        return false;
                    }
                    at = above;
                }
            }
        }
        false
    }
}

pub(super) enum Shortcut {
    /// In this branch.
    Beside(u32),
    /// Somewhere beneath this waiter.
    Beneath(u32),
}
