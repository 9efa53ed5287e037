//! Who must go first: the locks in a newcomer's way, and the waiters that it may
//! not overtake any more.
//!
//! Overtaking is counted once a class, not once a waiter: a newcomer that is
//! granted what a class conflicts with overtakes all of its members. The bound
//! looks at the oldest of a class alone, and counts from when it became that.

use super::locks::{Context, Locks, Request};
use super::waiting::{Class, Obstacle};
use crate::avl::Links;
use crate::lock::{Fairness, LockInfo};
use crate::owner::Owner;
use crate::slab::NIL;

impl<T> Locks<T> {
    /// What a newcomer would have to wait for: a granted lock, or a waiter that
    /// has been overtaken often enough.
    #[inline]
    pub(crate) fn obstacle(&self, request: &Request, cx: &Context<'_>) -> Option<Obstacle> {
        let Request {
            owner,
            range,
            lock_type,
            space,
            ..
        } = request;
        let record = self.first_conflict(*space, owner, *range, *lock_type);
        if record != NIL {
            return Some(Obstacle::Record(record));
        }
        // An access holds nothing afterwards, so it is in nobody's way.
        if self.waiting[*space as usize].count == 0 || request.is_access {
            return None;
        }
        let ahead = self.first_ahead(request, u64::MAX, self.fairness(cx));
        (ahead != NIL).then_some(Obstacle::Waiter(ahead))
    }

    pub(crate) fn obstacle_info(&self, obstacle: Obstacle) -> LockInfo {
        match obstacle {
            Obstacle::Record(id) => self.records[id].info(),
            Obstacle::Waiter(id) => self.waiter_info(id),
            Obstacle::Lease(id) => self.leases[id].info(),
        }
    }

    pub(crate) fn waiter_info(&self, id: u32) -> LockInfo {
        self.waiters[id].request.info()
    }

    /// A waiter that came before `arrival` and that such a request may not
    /// overtake any more; `NIL` if there is none.
    pub(super) fn first_ahead(&self, request: &Request, arrival: u64, fairness: Fairness) -> u32 {
        if fairness == Fairness::Unlimited {
            return NIL;
        }
        let root = self.waiting[request.space as usize].classes;
        self.first_ahead_in(root, request, arrival, fairness)
    }

    pub(super) fn first_ahead_in(
        &self,
        root: u32,
        request: &Request,
        arrival: u64,
        fair: Fairness,
    ) -> u32 {
        if root == NIL || self.classes[root].max_end < request.range.start() {
            return NIL;
        }
        let class = &self.classes[root];
        let left = self.first_ahead_in(class.links.left, request, arrival, fair);
        if left != NIL || class.range.start() > request.range.end() {
            return left;
        }
        if class.range.overlaps(request.range) && class.lock_type.excludes(request.lock_type) {
            let oldest = self.oldest_of_others(class, &request.owner);
            if oldest != NIL
                && self.waiters[oldest].arrival < arrival
                && fair.is_exhausted(self.overtaken_at_head(oldest))
                // The waiter itself waits for this owner: it must pass.
                && !self.own_excludes(request.space, &request.owner, class.range, class.lock_type)
            {
                return oldest;
            }
        }
        self.first_ahead_in(class.links.right, request, arrival, fair)
    }

    /// The class's oldest waiter that is not the owner's own.
    pub(super) fn oldest_of_others(&self, class: &Class, owner: &Owner) -> u32 {
        let mut member = class.head;
        while member != NIL && self.waiters[member].request.owner == *owner {
            member = self.waiters[member].in_class.right;
        }
        member
    }

    /// How many were granted what this waiter conflicts with since it came.
    pub(crate) fn overtaken(&self, id: u32) -> u64 {
        let waiter = &self.waiters[id];
        let by_newcomers = match waiter.class {
            NIL => 0,
            class => self.classes[class].overtakings - waiter.overtakings_before,
        };
        by_newcomers + u64::from(waiter.overtaken_in_queue)
    }

    /// The same since it became the oldest of its class: what the fairness bound
    /// limits. Those behind the oldest are overtaken along with it, but if that
    /// counted against the bound, a long queue would use it up before its members
    /// came to the front, and every lock would be handed from sleeper to sleeper.
    pub(super) fn overtaken_at_head(&self, id: u32) -> u64 {
        let waiter = &self.waiters[id];
        let by_newcomers = match waiter.class {
            NIL => 0,
            class => {
                let class = &self.classes[class];
                let before = class.overtakings_before_head.max(waiter.overtakings_before);
                class.overtakings - before
            }
        };
        by_newcomers + u64::from(waiter.overtaken_in_queue)
    }

    /// Whether a newcomer, whom no lock stops, may be granted this at once as far
    /// as one look can tell: then it has been counted. That is where nobody is
    /// overtaken, or those of a single class, who have not reached the bound.
    #[inline]
    pub(crate) fn overtakes(&mut self, request: &Request, cx: &Context<'_>) -> bool {
        let root = self.waiting[request.space as usize].classes;
        if root == NIL {
            return true;
        }
        let fairness = self.fairness(cx);
        let class = &self.classes[root];
        if class.links.left != NIL || class.links.right != NIL {
            return false;
        }
        if !class.range.overlaps(request.range) || !class.lock_type.excludes(request.lock_type) {
            return true;
        }
        let head = class.head;
        if self.waiters[head].request.owner == request.owner
            || fairness.is_exhausted(self.overtaken_at_head(head))
        {
            return false;
        }
        self.classes[root].overtakings += 1;
        true
    }

    /// Every waiter that a lock granted to this request stands in the way of.
    pub(super) fn visit_stopped_by(&self, request: &Request, visit: &mut dyn FnMut(u32)) {
        let root = self.waiting[request.space as usize].classes;
        self.visit_stopped_in(root, request, visit);
    }

    fn visit_stopped_in(&self, root: u32, request: &Request, visit: &mut dyn FnMut(u32)) {
        if root == NIL || self.classes[root].max_end < request.range.start() {
            return;
        }
        let class = &self.classes[root];
        self.visit_stopped_in(class.links.left, request, visit);
        if class.range.start() > request.range.end() {
            return;
        }
        if class.range.overlaps(request.range) && class.lock_type.excludes(request.lock_type) {
            let mut member = class.head;
            while member != NIL {
                if self.waiters[member].request.owner != request.owner {
                    visit(member);
                }
                member = self.waiters[member].in_class.right;
            }
        }
        self.visit_stopped_in(class.links.right, request, visit);
    }

    /// Counts that a newcomer was granted such a request.
    #[inline]
    pub(crate) fn count_overtaking(&mut self, request: &Request) {
        let root = self.waiting[request.space as usize].classes;
        if root != NIL {
            self.count_overtaking_in(root, request, u64::MAX);
        }
    }

    pub(super) fn count_overtaking_in(&mut self, root: u32, request: &Request, arrival: u64) {
        if root == NIL || self.classes[root].max_end < request.range.start() {
            return;
        }
        let Links { left, right } = self.classes[root].links;
        self.count_overtaking_in(left, request, arrival);
        let class = &self.classes[root];
        if class.range.start() > request.range.end() {
            return;
        }
        if class.range.overlaps(request.range) && class.lock_type.excludes(request.lock_type) {
            let oldest = self.oldest_of_others(class, &request.owner);
            if oldest != NIL && arrival == u64::MAX {
                self.classes[root].overtakings += 1;
            } else if oldest != NIL && self.waiters[oldest].arrival < arrival {
                let waiter = &mut self.waiters[oldest];
                waiter.overtaken_in_queue = waiter.overtaken_in_queue.saturating_add(1);
            }
        }
        self.count_overtaking_in(right, request, arrival);
    }
}
