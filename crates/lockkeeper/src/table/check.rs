//! Checks of the waiters' invariants, for tests: they visit everything.

use super::locks::{Locks, Space};
use super::waiting::{ByBytes, Obstacle, Sleeper, State};
use crate::avl;
use crate::slab::NIL;

impl<T> Locks<T> {
    /// Panics unless the invariants of this module hold.
    pub(crate) fn check_waiting(&self) {
        assert_eq!(self.pending, NIL, "waiters left pending");
        let mut branches = 0;
        let mut members = 0;
        for (id, waiter) in self.waiters.iter() {
            let request = &waiter.request;
            match waiter.state {
                State::Pending => panic!("a waiter was left pending"),
                State::Finished(_) => {
                    assert_eq!((waiter.blocker, waiter.branch), (NIL, NIL));
                    continue;
                }
                State::Offered => {
                    assert_eq!(waiter.blocker, NIL, "an offered waiter hangs somewhere");
                    assert_ne!(waiter.sleeper, Sleeper::None);
                }
                State::Blocked => {
                    assert_ne!(waiter.blocker, NIL, "a blocked waiter hangs nowhere");
                    self.check_ancestors(id);
                }
            }
            if waiter.branch != NIL {
                branches += 1;
                let branch = &self.branches[waiter.branch];
                assert_eq!(branch.beneath, Obstacle::Waiter(id));
                self.check_branch(waiter.branch);
                if waiter.beneath.is_pure() {
                    for child in self.beneath(waiter.branch) {
                        assert_eq!(self.waiters[child].class, waiter.class, "not pure");
                        assert!(self.waiters[child].beneath.is_pure(), "not pure");
                    }
                }
                for child in self.beneath(waiter.branch) {
                    let below = &self.waiters[child];
                    let is_soft = below.is_soft || below.beneath.has_soft();
                    assert!(
                        waiter.beneath.has_soft() || !is_soft,
                        "a soft waiter unmarked"
                    );
                }
            }
            if waiter.class != NIL {
                members += 1;
                let class = &self.classes[waiter.class];
                assert_eq!(
                    (class.range, class.lock_type),
                    (request.range, request.lock_type)
                );
            } else {
                assert_eq!(request.space, Space::Leases);
            }
        }
        for (id, record) in self.records.iter() {
            if record.branch != NIL {
                branches += 1;
                assert_eq!(self.branches[record.branch].beneath, Obstacle::Record(id));
                self.check_branch(record.branch);
            }
        }
        for (id, lease) in self.leases.iter() {
            if lease.branch != NIL {
                branches += 1;
                assert_eq!(self.branches[lease.branch].beneath, Obstacle::Lease(id));
                self.check_branch(lease.branch);
            }
        }
        assert_eq!(branches, self.branches.len(), "branches lost");
        self.check_classes(members);
    }

    /// Rule 1, and that every way up ends.
    pub(super) fn check_ancestors(&self, id: u32) {
        let waiter = &self.waiters[id];
        let request = &waiter.request;
        let mut at = id;
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps <= self.waiters.len() + 1, "the tree has a cycle");
            let must_conflict = at == id || !waiter.is_soft;
            match self.blocker_of(at) {
                None => {
                    assert_eq!(
                        self.waiters[at].state,
                        State::Offered,
                        "a waiter hangs on air"
                    );
                    return;
                }
                Some(Obstacle::Lease(lease)) => {
                    assert!(
                        self.breaks(id, lease),
                        "waits for a lease it does not break"
                    );
                    return;
                }
                Some(Obstacle::Record(record)) => {
                    let conflicts = self.records[record].is_in_the_way(
                        &request.owner,
                        request.range,
                        request.lock_type,
                    );
                    assert!(
                        conflicts || !must_conflict,
                        "no conflict with the lock above"
                    );
                    assert_eq!(self.records[record].space, request.space);
                    return;
                }
                Some(Obstacle::Waiter(above)) => {
                    assert!(
                        self.conflict_of_waiters(id, above) || !must_conflict,
                        "no conflict with a waiter above"
                    );
                    assert_eq!(self.waiters[above].request.space, request.space);
                    at = above;
                }
            }
        }
    }

    /// Rule 2, and the links of one branch.
    pub(super) fn check_branch(&self, branch: u32) {
        let mut previous = NIL;
        for child in self.beneath(branch) {
            assert_eq!(self.waiters[child].blocker, branch);
            assert_eq!(self.waiters[child].near.left, previous);
            previous = child;
            // Quadratic, so only for families that a test makes.
            for other in self
                .beneath(branch)
                .take(64)
                .take_while(|&other| other != child)
            {
                assert!(!self.conflict_of_waiters(child, other), "siblings conflict");
            }
        }
        assert_ne!(previous, NIL, "an empty branch");
        assert_eq!(self.branches[branch].tail, previous);
    }

    pub(super) fn check_classes(&self, members: u32) {
        let mut listed = 0;
        let mut classes = 0;
        for space in [Space::Records, Space::Flocks, Space::Leases] {
            let waiting = &self.waiting[space as usize];
            classes += avl::check::<ByBytes>(&self.classes, waiting.classes);
            self.check_owners(space);
            avl::walk::<ByBytes>(&self.classes, waiting.classes, &mut |id| {
                let class = &self.classes[id];
                let mut previous = NIL;
                let mut member = class.head;
                assert_ne!(member, NIL, "an empty class");
                while member != NIL {
                    listed += 1;
                    let waiter = &self.waiters[member];
                    assert_eq!((waiter.class, waiter.in_class.left), (id, previous));
                    if previous != NIL {
                        assert!(self.waiters[previous].arrival < waiter.arrival);
                    }
                    previous = member;
                    member = waiter.in_class.right;
                }
                assert_eq!(class.tail, previous);
                if class.anchor != NIL {
                    let anchor = &self.waiters[class.anchor];
                    assert_eq!((anchor.class, anchor.state), (id, State::Blocked));
                }
            });
            let mut offered = waiting.offered.0;
            while offered != NIL {
                assert_eq!(self.waiters[offered].state, State::Offered);
                assert_eq!(self.waiters[offered].request.space, space);
                offered = self.waiters[offered].near.right;
            }
        }
        assert_eq!(listed, members, "waiters lost from their class");
        assert_eq!(classes, self.classes.len(), "classes lost");
    }
}
