//! The requests of one file that wait, and the tree in which they hang.
//!
//! # The tree
//! A waiter hangs beneath its *blocker*: a granted lock, a lease, or another
//! waiter. Five rules hold between calls, and only [`Locks::link`],
//! [`Locks::unlink`] and the hand-over of a whole branch change the tree.
//!
//! 1. A waiter conflicts with its blocker and with every further ancestor.
//!    (One that waits only because the fairness bound makes it queue behind
//!    another waiter conflicts with that one, but perhaps not with what is above;
//!    it is marked `is_soft`.)
//! 2. The waiters directly beneath one blocker do not conflict with each other.
//! 3. When a lock goes, shrinks or weakens, the waiters directly beneath it that
//!    no longer conflict with it are looked at, in order of arrival. Each is
//!    granted, refused, or hung beneath another blocker. Of those that still
//!    conflict with what is left of the lock, only the branches are looked at,
//!    unless they are of one class and so conflict with it too.
//! 4. A granted waiter takes its whole branch along, asleep: whoever waited for
//!    the waiter waits for its lock.
//! 5. A waiter that is hung elsewhere or cancelled lets go of its branch, since
//!    blocking is not transitive: those beneath it conflict with it, but perhaps
//!    not with what now blocks it. They are looked at in turn.
//!
//! Every waiter therefore hangs, through its ancestors, from a granted lock, a
//! lease, or an *offered* waiter.
//!
//! # Offered waiters
//! A waiter that may be granted and whose thread would have to be woken first
//! can be *offered* the lock instead: it is woken to take it, and until it comes
//! the lock is free, so that a running thread may lock and unlock many times in
//! the meantime. That is what makes a contended lock fast (no lock waits for a
//! sleeper), and it costs a waiter at most as many overtakings as the fairness
//! bound allows. While its wake-up is under way no second one is sent. A waiter
//! that need not run to take its lock (a callback, a future) is always granted
//! directly, as is one that has been overtaken often enough.
//!
//! # Classes
//! Requests for the same bytes and type are alike but for their owners: what one
//! conflicts with, the others do. A [`Class`] lists the waiters of one such
//! kind by arrival and makes three things cheap that a plain tree makes slow:
//!
//! - To join a long chain or a wide fan of its like, a newcomer starts at the
//!   class's `anchor`, a waiter that hangs already, and does not walk down to
//!   it: [`Locks::shortcut`].
//! - A chain of the same class is hung elsewhere as a whole, where rule 5 would
//!   look at each link of it to the same end: [`Locks::recheck_branch`].
//! - Overtaking is counted once a class, not once a waiter.
//!
//! Owners are what makes two requests of a class differ: one waiter may be the
//! owner of a lock that another waits for. All shortcuts therefore ask first
//! whether an owner has anything else at stake, and step aside if so.

use core::cmp::Ordering;

use super::lease::BreakScope;
use super::locks::{Context, Locks, Request, Space};
use hashbrown::HashTable;

use crate::avl::{self, Links, Order};
use crate::error::{LimitKind, LockError};
use crate::lock::{Fairness, LockInfo, LockType, Time, WaiterId};
use crate::owner::Owner;
use crate::range::Range;
use crate::slab::{NIL, Slab};

/// What a waiter can hang beneath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    Record(u32),
    Waiter(u32),
    Lease(u32),
}

/// The waiters directly beneath one blocker, oldest link first. Kept apart from
/// the blocker, so that a waiter's branch becomes its lock's branch by changing
/// one field. Never empty.
#[derive(Debug)]
pub(crate) struct Branch {
    pub(crate) beneath: Obstacle,
    pub(crate) head: u32,
    tail: u32,
}

/// How a wait ended, where the table ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Granted,
    Interrupted,
    Closed,
    TornDown,
    NoMemory,
    Limit(LimitKind),
}

impl Verdict {
    pub(crate) fn into_result(self) -> Result<(), LockError> {
        match self {
            Verdict::Granted => Ok(()),
            Verdict::Interrupted => Err(LockError::Interrupted),
            Verdict::Closed => Err(LockError::Closed),
            Verdict::TornDown => Err(LockError::TornDown),
            Verdict::NoMemory => Err(LockError::NoMemory),
            Verdict::Limit(kind) => Err(LockError::Limit(kind)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// To be looked at; within a call only.
    Pending,
    /// Hangs beneath a blocker.
    Blocked,
    /// Woken to take its lock; nothing was in the way when it was.
    Offered,
    /// Ended, and nobody has taken the result yet.
    Finished(Verdict),
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiter<T> {
    pub(crate) request: Request,
    /// For an opener that waits for leases to be broken: which ones.
    pub(crate) breaks: Option<BreakScope>,
    pub(crate) ticket: T,
    pub(crate) since: Time,
    /// Arrival number, unique in the table.
    pub(crate) arrival: u64,
    /// The class's count of overtakings at arrival.
    overtakings_before: u64,
    /// Overtakings by older waiters' juniors, counted at the head of a class.
    overtaken_in_queue: u32,
    pub(crate) state: State,
    class: u32,
    in_class: Links,
    /// The branch it hangs in, or `NIL`.
    pub(crate) blocker: u32,
    /// Neighbours among siblings, offered or finished waiters, or links in the
    /// tree of pending ones: it is in one of these at a time.
    near: Links,
    near_height: u8,
    /// Its owner's next older and younger waiter.
    pub(crate) own: Links,
    /// Its own branch: who hangs beneath it, or `NIL`.
    pub(crate) branch: u32,
    /// Has a thread that can come for an offered lock.
    may_be_offered: bool,
    /// A wake-up is under way that it has not answered yet.
    is_woken: bool,
    /// Hangs beneath a waiter whose own ancestors it may not conflict with.
    is_soft: bool,
    /// All that hangs beneath it, at any depth, is of its class.
    is_pure: bool,
    /// Some that hang beneath it, at any depth, may be soft.
    is_above_soft: bool,
    /// Never queues for fairness alone: that closed a cycle.
    pub(crate) passes_queue: bool,
    /// Its descriptor is closed: it ends with EBADF where it would be granted.
    is_closed: bool,
}

/// The pending waiters, by arrival.
struct ByArrival<T>(core::marker::PhantomData<T>);

impl<T> Order for ByArrival<T> {
    type Node = Waiter<T>;

    fn links(node: &Waiter<T>) -> &Links {
        &node.near
    }
    fn links_mut(node: &mut Waiter<T>) -> &mut Links {
        &mut node.near
    }
    fn height(node: &Waiter<T>) -> u8 {
        node.near_height
    }
    fn set_height(node: &mut Waiter<T>, height: u8) {
        node.near_height = height;
    }
    fn compare(a: (u32, &Waiter<T>), b: (u32, &Waiter<T>)) -> Ordering {
        a.1.arrival.cmp(&b.1.arrival)
    }
}

/// The waiters for the same bytes and type, by arrival.
#[derive(Debug)]
pub(crate) struct Class {
    range: Range,
    lock_type: LockType,
    head: u32,
    tail: u32,
    /// A member that is `Blocked`, from which another can find its place; `NIL`
    /// if none is known.
    anchor: u32,
    /// How many newcomers were granted something that the class conflicts with.
    overtakings: u64,
    /// That count when the oldest member became the oldest.
    overtakings_before_head: u64,
    links: Links,
    height: u8,
    /// The greatest last byte in the subtree.
    max_end: u64,
}

/// Classes by first byte, last byte, type.
struct ByBytes;

impl Order for ByBytes {
    type Node = Class;

    fn links(node: &Class) -> &Links {
        &node.links
    }
    fn links_mut(node: &mut Class) -> &mut Links {
        &mut node.links
    }
    fn height(node: &Class) -> u8 {
        node.height
    }
    fn set_height(node: &mut Class, height: u8) {
        node.height = height;
    }
    fn compare(a: (u32, &Class), b: (u32, &Class)) -> Ordering {
        (a.1.range, a.1.lock_type).cmp(&(b.1.range, b.1.lock_type))
    }
    fn summarize(nodes: &mut Slab<Class>, id: u32) {
        let Links { left, right } = nodes[id].links;
        let mut max_end = nodes[id].range.end();
        for child in [left, right] {
            if child != NIL {
                max_end = max_end.max(nodes[child].max_end);
            }
        }
        nodes[id].max_end = max_end;
    }
    fn summarize_leaf(node: &mut Class) {
        node.max_end = node.range.end();
    }
}

/// The waiters of one space.
#[derive(Debug)]
pub(crate) struct Waiting {
    classes: u32,
    /// The oldest waiter of each owner.
    pub(crate) owners: HashTable<u32>,
    pub(crate) count: u32,
    /// Offered waiters; those not yet told stand first.
    offered: (u32, u32),
}

impl Waiting {
    pub(crate) const NONE: Waiting = Waiting {
        classes: NIL,
        owners: HashTable::new(),
        count: 0,
        offered: (NIL, NIL),
    };
}

/// Waiters that have come to queue for fairness alone, when the lock went that
/// they waited for. The search for cycles must hear of them, and to tell it must
/// not take memory: past the first few, all who queue are told.
#[derive(Debug, Default)]
pub(crate) struct Requeued {
    first: [u32; 4],
    count: usize,
    /// Where the walk over all who queue has come to.
    cursor: u32,
}

impl Requeued {
    fn add(&mut self, id: u32) {
        if let Some(place) = self.first.get_mut(self.count) {
            *place = id;
        }
        self.count = self.first.len().min(self.count) + 1;
        self.cursor = 0;
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// How a waiter came out of a look at its state.
pub(crate) enum Claim {
    Waiting,
    Finished,
}

impl<T> Locks<T> {
    // ---- Who is in the way -------------------------------------------------

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
        let request = &self.waiters[id].request;
        LockInfo {
            kind: request.kind(),
            lock_type: request.lock_type,
            range: request.range,
            owner: request.owner.clone(),
            taken_by: request.taken_by,
        }
    }

    /// A waiter that came before `arrival` and that such a request may not
    /// overtake any more; `NIL` if there is none.
    fn first_ahead(&self, request: &Request, arrival: u64, fairness: Fairness) -> u32 {
        if fairness == Fairness::Unlimited {
            return NIL;
        }
        let root = self.waiting[request.space as usize].classes;
        self.first_ahead_in(root, request, arrival, fairness)
    }

    fn first_ahead_in(&self, root: u32, request: &Request, arrival: u64, fair: Fairness) -> u32 {
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
    fn oldest_of_others(&self, class: &Class, owner: &Owner) -> u32 {
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
    fn overtaken_at_head(&self, id: u32) -> u64 {
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

    /// Counts that a newcomer was granted such a request.
    #[inline]
    pub(crate) fn count_overtaking(&mut self, request: &Request) {
        let root = self.waiting[request.space as usize].classes;
        if root != NIL {
            self.count_overtaking_in(root, request, u64::MAX);
        }
    }

    fn count_overtaking_in(&mut self, root: u32, request: &Request, arrival: u64) {
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

    // ---- Waiters come and go -----------------------------------------------

    /// Books a new waiter, which hangs nowhere yet.
    ///
    /// # Errors
    /// `Limit` or `NoMemory`, with the ticket; then nothing has changed.
    pub(crate) fn enlist(
        &mut self,
        request: Request,
        breaks: Option<BreakScope>,
        may_be_offered: bool,
        ticket: T,
        cx: &Context<'_>,
    ) -> Result<u32, (LockError, T)> {
        // A branch has at least one waiter in it, so as many branches as waiters
        // are enough, and none has to be allocated when one is hung elsewhere.
        let branches = self.waiters.len() + 1 - self.branches.len().min(self.waiters.len() + 1);
        if self.waiters.reserve(1).is_err()
            || self.classes.reserve(1).is_err()
            || self.reserve_owner(request.space).is_err()
            || self.branches.reserve(branches).is_err()
        {
            return Err((LockError::NoMemory, ticket));
        }
        if let Some(limit) = cx.settings.waiters_per_file {
            if self.waiter_count() >= limit {
                return Err((LockError::Limit(LimitKind::WaitersPerFile), ticket));
            }
        }
        if let Some(ledger) = cx.ledger.filter(|_| cx.settings.is_limited) {
            if let Err(kind) = ledger.book_waiters(&request.owner, 1) {
                return Err((LockError::Limit(kind), ticket));
            }
        }
        self.arrivals += 1;
        self.counters.contended += 1;
        let space = request.space;
        let class = match space {
            Space::Leases => NIL,
            _ => self.class_of(&request),
        };
        let (tail, overtakings_before) = match class {
            NIL => (NIL, 0),
            class => (self.classes[class].tail, self.classes[class].overtakings),
        };
        let id = self.waiters.insert(Waiter {
            request,
            breaks,
            ticket,
            since: cx.now,
            arrival: self.arrivals,
            overtakings_before,
            overtaken_in_queue: 0,
            state: State::Pending,
            class,
            in_class: Links {
                left: tail,
                right: NIL,
            },
            blocker: NIL,
            near: Links::NONE,
            near_height: 0,
            own: Links::NONE,
            branch: NIL,
            may_be_offered,
            is_woken: false,
            is_soft: false,
            is_pure: true,
            is_above_soft: false,
            passes_queue: false,
            is_closed: false,
        });
        if class != NIL {
            match tail {
                NIL => self.classes[class].head = id,
                tail => self.waiters[tail].in_class.right = id,
            }
            self.classes[class].tail = id;
        }
        let waiting = &mut self.waiting[space as usize];
        waiting.count += 1;
        self.enter_owner(id);
        Ok(id)
    }

    /// The class of such requests, made if this is the first.
    fn class_of(&mut self, request: &Request) -> u32 {
        let key = (request.range, request.lock_type);
        let root = self.waiting[request.space as usize].classes;
        let found = avl::first::<ByBytes>(&self.classes, root, |c| (c.range, c.lock_type) >= key);
        if found != NIL && (self.classes[found].range, self.classes[found].lock_type) == key {
            return found;
        }
        let class = self.classes.insert(Class {
            range: request.range,
            lock_type: request.lock_type,
            head: NIL,
            tail: NIL,
            anchor: NIL,
            overtakings: 0,
            overtakings_before_head: 0,
            links: Links::NONE,
            height: 0,
            max_end: request.range.end(),
        });
        self.waiting[request.space as usize].classes =
            avl::insert::<ByBytes>(&mut self.classes, root, class);
        class
    }

    /// Undoes [`enlist`](Self::enlist) for a waiter that hangs nowhere, but for
    /// the waiter itself.
    fn discharge(&mut self, id: u32, cx: &Context<'_>) {
        let waiter = &mut self.waiters[id];
        let space = waiter.request.space;
        let class = core::mem::replace(&mut waiter.class, NIL);
        let Links { left, right } = waiter.in_class;
        if let Some(ledger) = cx.ledger.filter(|_| cx.settings.is_limited) {
            // A decrease is never refused.
            let _ = ledger.book_waiters(&waiter.request.owner, -1);
        }
        if class != NIL {
            match left {
                NIL => {
                    let class = &mut self.classes[class];
                    class.head = right;
                    class.overtakings_before_head = class.overtakings;
                }
                left => self.waiters[left].in_class.right = right,
            }
            match right {
                NIL => self.classes[class].tail = left,
                right => self.waiters[right].in_class.left = left,
            }
            if self.classes[class].head == NIL {
                let root = self.waiting[space as usize].classes;
                self.waiting[space as usize].classes =
                    avl::remove::<ByBytes>(&mut self.classes, root, class);
                self.classes.remove(class);
            }
        }
        self.waiting[space as usize].count -= 1;
        self.leave_owner(id);
    }

    /// Waiting requests, of all spaces.
    pub(crate) fn waiter_count(&self) -> u32 {
        self.waiting.iter().map(|waiting| waiting.count).sum()
    }

    /// The slot of a waiter that has not been taken away, by its id.
    pub(crate) fn find_waiter(&self, id: WaiterId) -> Option<u32> {
        self.waiters
            .get(id.slot)
            .filter(|waiter| waiter.arrival as u32 == id.stamp)
            .map(|_| id.slot)
    }

    pub(crate) fn waiter_id(&self, slot: u32) -> WaiterId {
        WaiterId {
            slot,
            stamp: self.waiters[slot].arrival as u32,
        }
    }

    // ---- Links of the tree -------------------------------------------------

    fn branch_of(&self, obstacle: Obstacle) -> u32 {
        match obstacle {
            Obstacle::Record(id) => self.records[id].branch,
            Obstacle::Waiter(id) => self.waiters[id].branch,
            Obstacle::Lease(id) => self.leases[id].branch,
        }
    }

    fn set_branch(&mut self, obstacle: Obstacle, branch: u32) {
        match obstacle {
            Obstacle::Record(id) => self.records[id].branch = branch,
            Obstacle::Waiter(id) => self.waiters[id].branch = branch,
            Obstacle::Lease(id) => self.leases[id].branch = branch,
        }
    }

    /// Hangs a pending waiter, already out of the pending tree, as the last
    /// directly beneath `obstacle`.
    fn link(&mut self, id: u32, obstacle: Obstacle, is_soft: bool) {
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
            let is_mixed = !waiter.is_pure || self.waiters[above].class != class;
            let is_soft = is_soft || waiter.is_above_soft;
            self.mark_above(above, is_mixed, is_soft);
        }
    }

    /// Marks a waiter and those above it as having another class beneath them, or
    /// a soft waiter.
    fn mark_above(&mut self, mut id: u32, is_mixed: bool, is_soft: bool) {
        loop {
            let waiter = &mut self.waiters[id];
            let is_marked = (!is_mixed || !waiter.is_pure) && (!is_soft || waiter.is_above_soft);
            if is_marked {
                return;
            }
            waiter.is_pure &= !is_mixed;
            waiter.is_above_soft |= is_soft;
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
    fn unlink(&mut self, id: u32) {
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
            self.untold -= u32::from(!self.waiters[id].is_woken);
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
                    self.waiters[above].is_pure = true;
                    self.waiters[above].is_above_soft = false;
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
    fn detach(&mut self, id: u32) {
        self.unlink(id);
        self.pending = avl::insert::<ByArrival<T>>(&mut self.waiters, self.pending, id);
    }

    /// Detaches all who hang directly beneath.
    fn detach_branch(&mut self, obstacle: Obstacle) {
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
            } else if !self.waiters[child].is_pure {
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

    fn conflict_of_waiters(&self, a: u32, b: u32) -> bool {
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
    fn let_go_of(&mut self, id: u32, above: u32) {
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
    fn shortcut(&self, id: u32, in_arrival_order: bool) -> Option<Shortcut> {
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
    fn recheck_branch(&mut self, id: u32) {
        if self.waiters[id].branch == NIL {
            return;
        }
        if !self.waiters[id].is_pure || self.waiters[id].is_soft || !self.owners_above_are_alone(id)
        {
            self.detach_branch(Obstacle::Waiter(id));
        }
    }

    /// Whether no owner above a waiter has another waiter in the space. Gives up,
    /// with false, where there are many.
    fn owners_above_are_alone(&self, id: u32) -> bool {
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

    // ---- Looking at waiters ------------------------------------------------

    /// Looks at every pending waiter, in order of arrival (rule 3).
    #[inline]
    pub(crate) fn settle(&mut self, cx: &Context<'_>) {
        while self.pending != NIL {
            let (rest, id) = avl::remove_first::<ByArrival<T>>(&mut self.waiters, self.pending);
            self.pending = rest;
            self.look_at(id, cx);
        }
    }

    /// Grants a pending waiter its lock, offers it, or hangs it where it belongs.
    pub(crate) fn look_at(&mut self, id: u32, cx: &Context<'_>) {
        if let Some(obstacle) = self.obstacle_of_waiter(id, cx) {
            self.counters.requeues += 1;
            if matches!(obstacle, Obstacle::Waiter(_)) {
                self.requeued.add(id);
            }
            return self.attach(id, obstacle, cx);
        }
        let is_offer = self.waiters[id].may_be_offered
            && !self.fairness(cx).is_exhausted(self.overtaken_at_head(id));
        if is_offer {
            self.offer(id);
        } else {
            let verdict = self.grant(id, cx);
            self.finish(id, verdict);
        }
    }

    /// The next waiter that has come to queue for fairness alone.
    pub(crate) fn next_requeued(&mut self) -> Option<u32> {
        let queues = |waiters: &Slab<Waiter<T>>, id: u32| {
            let waiter = waiters.get(id);
            waiter.is_some_and(|waiter| waiter.is_soft && waiter.state == State::Blocked)
        };
        let requeued = &mut self.requeued;
        while let Some(last) = requeued.count.checked_sub(1) {
            let id = match requeued.first.get(last) {
                Some(&id) => {
                    requeued.count = last;
                    id
                }
                None => {
                    let id = requeued.cursor;
                    requeued.cursor += 1;
                    if id >= self.waiters.slots() {
                        requeued.count = 0;
                    }
                    id
                }
            };
            if queues(&self.waiters, id) {
                return Some(id);
            }
        }
        None
    }

    /// What a waiter must wait for now: a lock, a lease, an older waiter that was
    /// offered what it wants, or one that it may not overtake.
    fn obstacle_of_waiter(&mut self, id: u32, cx: &Context<'_>) -> Option<Obstacle> {
        let request = &self.waiters[id].request;
        if request.space == Space::Leases {
            return self.lease_to_await(id, cx).map(Obstacle::Lease);
        }
        let record = self.first_conflict(
            request.space,
            &request.owner,
            request.range,
            request.lock_type,
        );
        if record != NIL {
            return Some(Obstacle::Record(record));
        }
        let waiter = &self.waiters[id];
        let mut offered = self.waiting[request.space as usize].offered.0;
        while offered != NIL {
            if self.waiters[offered].arrival < waiter.arrival
                && self.conflict_of_waiters(id, offered)
            {
                return Some(Obstacle::Waiter(offered));
            }
            offered = self.waiters[offered].near.right;
        }
        if waiter.passes_queue || request.is_access {
            return None;
        }
        let ahead = self.first_ahead(request, waiter.arrival, self.fairness(cx));
        (ahead != NIL).then_some(Obstacle::Waiter(ahead))
    }

    /// Offers a waiter its lock; wakes it unless a wake-up is under way.
    fn offer(&mut self, id: u32) {
        let space = self.waiters[id].request.space as usize;
        let (head, tail) = self.waiting[space].offered;
        let waiter = &mut self.waiters[id];
        waiter.state = State::Offered;
        waiter.is_soft = false;
        if waiter.is_woken {
            waiter.near = Links {
                left: tail,
                right: NIL,
            };
            match tail {
                NIL => self.waiting[space].offered.0 = id,
                tail => self.waiters[tail].near.right = id,
            }
            self.waiting[space].offered.1 = id;
        } else {
            self.untold += 1;
            waiter.near = Links {
                left: NIL,
                right: head,
            };
            match head {
                NIL => self.waiting[space].offered.1 = id,
                head => self.waiters[head].near.left = id,
            }
            self.waiting[space].offered.0 = id;
        }
    }

    /// Whether an offered waiter is to be woken.
    #[inline]
    pub(crate) fn has_offer(&self) -> bool {
        self.untold != 0
    }

    /// The next offered waiter that is to be woken, and marks it as woken.
    pub(crate) fn next_offer(&mut self) -> Option<u32> {
        for space in 0..2 {
            let head = self.waiting[space].offered.0;
            if head != NIL && !self.waiters[head].is_woken {
                self.unlink(head);
                self.waiters[head].is_woken = true;
                self.counters.wake_ups += 1;
                self.offer(head);
                return Some(head);
            }
        }
        None
    }

    /// Gives a waiter that hangs nowhere its lock, and its branch to the lock
    /// (rule 4), or finds that it cannot have it.
    fn grant(&mut self, id: u32, cx: &Context<'_>) -> Verdict {
        let waiter = &self.waiters[id];
        let request = waiter.request.clone();
        let arrival = waiter.arrival;
        let verdict = if waiter.is_closed {
            Verdict::Closed
        } else if request.is_access || request.space == Space::Leases {
            Verdict::Granted
        } else {
            let Request {
                owner,
                taken_by,
                range,
                lock_type,
                space,
                ..
            } = &request;
            match self.hold(*space, owner, *taken_by, *range, *lock_type, cx) {
                Ok(record) => {
                    self.counters.acquisitions += 1;
                    self.hand_over_branch(id, record);
                    Verdict::Granted
                }
                Err(LockError::Limit(kind)) => Verdict::Limit(kind),
                Err(_) => Verdict::NoMemory,
            }
        };
        self.detach_branch(Obstacle::Waiter(id));
        self.discharge(id, cx);
        if verdict == Verdict::Granted && !request.is_access {
            let root = self.waiting[request.space as usize].classes;
            self.count_overtaking_in(root, &request, arrival);
        }
        verdict
    }

    /// Rule 4, where the lock has no branch yet. Where it has one, because the
    /// new lock joined an old one, the two might conflict: the caller detaches.
    fn hand_over_branch(&mut self, id: u32, record: u32) {
        let branch = self.waiters[id].branch;
        if branch != NIL && self.records[record].branch == NIL {
            self.waiters[id].branch = NIL;
            self.records[record].branch = branch;
            self.branches[branch].beneath = Obstacle::Record(record);
        }
    }

    /// Puts an ended waiter where its result is taken from.
    fn finish(&mut self, id: u32, verdict: Verdict) {
        self.counters.wake_ups += 1;
        let waiter = &mut self.waiters[id];
        waiter.state = State::Finished(verdict);
        waiter.near = Links {
            left: self.ready.1,
            right: NIL,
        };
        match self.ready.1 {
            NIL => self.ready.0 = id,
            tail => self.waiters[tail].near.right = id,
        }
        self.ready.1 = id;
    }

    /// Takes an ended waiter out of the list of results, and away.
    pub(crate) fn take_finished(&mut self, id: u32) -> Waiter<T> {
        let Links { left, right } = self.waiters[id].near;
        match left {
            NIL => self.ready.0 = right,
            left => self.waiters[left].near.right = right,
        }
        match right {
            NIL => self.ready.1 = left,
            right => self.waiters[right].near.left = left,
        }
        self.waiters.remove(id)
    }

    // ---- What the outside asks for -----------------------------------------

    /// A woken thread comes for its lock. Answers its wake-up.
    pub(crate) fn claim(&mut self, id: u32, cx: &Context<'_>) -> Claim {
        let state = self.waiters[id].state;
        if state == State::Offered {
            self.unlink(id);
        }
        self.waiters[id].is_woken = false;
        match state {
            State::Finished(_) => Claim::Finished,
            State::Blocked | State::Pending => Claim::Waiting,
            State::Offered => {
                let claim = match self.obstacle_of_waiter(id, cx) {
                    Some(obstacle) => {
                        self.counters.requeues += 1;
                        self.attach(id, obstacle, cx);
                        Claim::Waiting
                    }
                    None => {
                        let verdict = self.grant(id, cx);
                        self.finish(id, verdict);
                        self.counters.wake_ups -= 1; // it was counted when told
                        Claim::Finished
                    }
                };
                self.settle(cx);
                claim
            }
        }
    }

    /// Ends a wait from outside; `None` if it has ended already.
    pub(crate) fn cancel(&mut self, id: u32, cx: &Context<'_>) -> Option<Waiter<T>> {
        if matches!(self.waiters[id].state, State::Finished(_)) {
            return None;
        }
        self.splice_branch(id);
        self.unlink(id);
        self.detach_branch(Obstacle::Waiter(id));
        self.discharge(id, cx);
        let waiter = self.waiters.remove(id);
        self.settle(cx);
        Some(waiter)
    }

    /// Hangs those beneath a waiter that is about to go beside it, where rules 1
    /// and 2 are sure to hold: they conflict with all its ancestors, and being of
    /// its class they conflict with none of its siblings, unless one of these is
    /// of the leaving waiter's owner. What queues beneath them for fairness alone
    /// may have done so for the leaving waiter's sake, and is looked at.
    fn splice_branch(&mut self, id: u32) {
        let waiter = &self.waiters[id];
        let (class, blocker) = (waiter.class, waiter.blocker);
        let Request { owner, space, .. } = &waiter.request;
        if blocker == NIL
            || waiter.branch == NIL
            || class == NIL
            || waiter.is_soft
            || !self.waits_once(*space, owner)
        {
            return;
        }
        let beneath = self.branches[blocker].beneath;
        let mut child = self.branches[waiter.branch].head;
        while child != NIL {
            let next = self.waiters[child].near.right;
            if self.waiters[child].class == class && !self.waiters[child].is_soft {
                self.unlink(child);
                self.link(child, beneath, false);
                if self.waiters[child].is_above_soft {
                    self.detach_branch(Obstacle::Waiter(child));
                }
            }
            child = next;
        }
    }

    /// Marks what the owner waits for as closed: it ends with EBADF where it
    /// would have been granted, as a blocked F_SETLKW does whose descriptor
    /// another thread closes.
    pub(crate) fn close_waits(&mut self, space: Space, owner: &Owner) {
        let oldest = self.first_wait_of(space, owner);
        let mut id = oldest;
        while id != NIL {
            let waiter = &mut self.waiters[id];
            waiter.is_closed = true;
            id = if waiter.own.right == oldest {
                NIL
            } else {
                waiter.own.right
            };
        }
    }

    /// Ends what the owner waits for with EINTR. Nobody is looked at yet: what
    /// the owner holds is about to go, too, and a second wait of its own must not
    /// be granted by the end of the first.
    pub(crate) fn interrupt_waits(&mut self, space: Space, owner: &Owner, cx: &Context<'_>) {
        loop {
            // A waiter that has ended is not in this index any more.
            let id = self.first_wait_of(space, owner);
            if id == NIL {
                return;
            }
            self.splice_branch(id);
            self.refuse(id, Verdict::Interrupted, cx);
            self.counters.cancels += 1;
        }
    }

    /// Ends a wait with this verdict, wherever the waiter is.
    fn refuse(&mut self, id: u32, verdict: Verdict, cx: &Context<'_>) {
        if self.waiters[id].state == State::Pending {
            self.pending = avl::remove::<ByArrival<T>>(&mut self.waiters, self.pending, id);
        } else {
            self.unlink(id);
        }
        self.detach_branch(Obstacle::Waiter(id));
        self.discharge(id, cx);
        self.finish(id, verdict);
    }

    /// Looks again at a waiter that queued for fairness alone, and lets it pass.
    pub(crate) fn let_pass(&mut self, id: u32, cx: &Context<'_>) {
        self.waiters[id].passes_queue = true;
        if self.waiters[id].state == State::Blocked {
            self.detach(id);
            self.settle(cx);
        }
    }

    /// Looks again at all that queue for fairness alone: the bound has changed.
    pub(crate) fn review_queues(&mut self, cx: &Context<'_>) {
        for id in 0..self.waiters.slots() {
            let waiter = self.waiters.get(id);
            if waiter.is_some_and(|waiter| waiter.is_soft && waiter.state == State::Blocked) {
                self.detach(id);
            }
        }
        self.settle(cx);
    }

    /// Ends every wait with this verdict.
    pub(crate) fn refuse_all(&mut self, verdict: Verdict, cx: &Context<'_>) {
        for id in 0..self.waiters.slots() {
            let waiter = self.waiters.get(id);
            if waiter.is_some_and(|waiter| !matches!(waiter.state, State::Finished(_))) {
                self.refuse(id, verdict, cx);
            }
        }
    }

    /// Every waiter that is blocked or offered, in no particular order.
    pub(crate) fn live_waiters(&self) -> impl Iterator<Item = (u32, &Waiter<T>)> {
        self.waiters
            .iter()
            .filter(|(_, waiter)| !matches!(waiter.state, State::Finished(_)))
    }

    /// The next that hangs beneath the same blocker, or `NIL`.
    pub(crate) fn next_sibling(&self, id: u32) -> u32 {
        self.waiters[id].near.right
    }

    /// Those directly beneath, in the order in which they were hung there.
    pub(crate) fn beneath(&self, branch: u32) -> impl Iterator<Item = u32> {
        let mut child = match branch {
            NIL => NIL,
            branch => self.branches[branch].head,
        };
        core::iter::from_fn(move || {
            let id = child;
            (id != NIL).then(|| {
                child = self.waiters[id].near.right;
                id
            })
        })
    }

    // ---- Checks ------------------------------------------------------------

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
                    assert!(waiter.may_be_offered);
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
                if waiter.is_pure {
                    for child in self.beneath(waiter.branch) {
                        assert_eq!(self.waiters[child].class, waiter.class, "not pure");
                        assert!(self.waiters[child].is_pure, "not pure");
                    }
                }
                for child in self.beneath(waiter.branch) {
                    let below = &self.waiters[child];
                    let is_soft = below.is_soft || below.is_above_soft;
                    assert!(waiter.is_above_soft || !is_soft, "a soft waiter unmarked");
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
    fn check_ancestors(&self, id: u32) {
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
    fn check_branch(&self, branch: u32) {
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

    fn check_classes(&self, members: u32) {
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

enum Shortcut {
    /// In this branch.
    Beside(u32),
    /// Somewhere beneath this waiter.
    Beneath(u32),
}
