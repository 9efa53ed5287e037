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

use hashbrown::HashTable;

use super::lease::BreakScope;
use super::locks::{Context, Locks, Request, Space};

use crate::avl::{self, Links, Order};
use crate::error::{LimitKind, LockError};
use crate::lock::{LockType, Time, WaiterId};
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
    pub(super) tail: u32,
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

/// What sleeps behind a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleeper {
    /// Nothing that would have to come for an offered lock: it is granted at once.
    None,
    /// A thread that can come for an offered lock.
    Asleep,
    /// The same, and a wake-up is under way that it has not answered yet.
    Woken,
}

/// What hangs beneath a waiter, at any depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beneath {
    /// Only waiters of its class, none of them soft.
    Pure,
    /// Only waiters of its class; some may be soft.
    PureAndSoft,
    /// Waiters of other classes, too, none of them soft.
    Mixed,
    /// Waiters of other classes, too; some may be soft.
    MixedAndSoft,
}

impl Beneath {
    pub(super) fn is_pure(self) -> bool {
        matches!(self, Beneath::Pure | Beneath::PureAndSoft)
    }

    pub(super) fn has_soft(self) -> bool {
        matches!(self, Beneath::PureAndSoft | Beneath::MixedAndSoft)
    }

    /// The same with another waiter in it.
    pub(super) fn with(self, is_mixed: bool, is_soft: bool) -> Beneath {
        match (self.is_pure() && !is_mixed, self.has_soft() || is_soft) {
            (true, false) => Beneath::Pure,
            (true, true) => Beneath::PureAndSoft,
            (false, false) => Beneath::Mixed,
            (false, true) => Beneath::MixedAndSoft,
        }
    }
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
    pub(super) overtakings_before: u64,
    /// Overtakings by older waiters' juniors, counted at the head of a class.
    pub(super) overtaken_in_queue: u32,
    pub(crate) state: State,
    pub(super) class: u32,
    pub(super) in_class: Links,
    /// The branch it hangs in, or `NIL`.
    pub(crate) blocker: u32,
    /// Neighbours among siblings, offered or finished waiters, or links in the
    /// tree of pending ones: it is in one of these at a time.
    pub(super) near: Links,
    pub(super) near_height: u8,
    /// Its owner's next older and younger waiter.
    pub(crate) own: Links,
    /// Its own branch: who hangs beneath it, or `NIL`.
    pub(crate) branch: u32,
    pub(super) sleeper: Sleeper,
    /// Hangs beneath a waiter whose own ancestors it may not conflict with.
    pub(super) is_soft: bool,
    pub(super) beneath: Beneath,
    /// Never queues for fairness alone: that closed a cycle.
    pub(crate) passes_queue: bool,
    /// Its descriptor is closed: it ends with EBADF where it would be granted.
    pub(super) is_closed: bool,
}

/// The pending waiters, by arrival.
pub(super) struct ByArrival<T>(core::marker::PhantomData<T>);

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
    pub(super) range: Range,
    pub(super) lock_type: LockType,
    pub(super) head: u32,
    pub(super) tail: u32,
    /// A member that is `Blocked`, from which another can find its place; `NIL`
    /// if none is known.
    pub(super) anchor: u32,
    /// How many newcomers were granted something that the class conflicts with.
    pub(super) overtakings: u64,
    /// That count when the oldest member became the oldest.
    pub(super) overtakings_before_head: u64,
    pub(super) links: Links,
    pub(super) height: u8,
    /// The greatest last byte in the subtree.
    pub(super) max_end: u64,
}

/// Classes by first byte, last byte, type.
pub(super) struct ByBytes;

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
    pub(super) classes: u32,
    /// The oldest waiter of each owner.
    pub(crate) owners: HashTable<u32>,
    pub(crate) count: u32,
    /// Offered waiters; those not yet told stand first.
    pub(super) offered: (u32, u32),
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
    pub(super) first: [u32; 4],
    pub(super) count: usize,
    /// Where the walk over all who queue has come to.
    pub(super) cursor: u32,
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
        if let Some(limit) = cx.settings.waiters_per_file
            && self.waiter_count() >= limit
        {
            return Err((LockError::Limit(LimitKind::WaitersPerFile), ticket));
        }
        if let Some(ledger) = cx.ledger.filter(|_| cx.settings.is_limited)
            && let Err(kind) = ledger.book_waiters(&request.owner, 1)
        {
            return Err((LockError::Limit(kind), ticket));
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
            sleeper: if may_be_offered {
                Sleeper::Asleep
            } else {
                Sleeper::None
            },
            is_soft: false,
            beneath: Beneath::Pure,
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
    pub(super) fn class_of(&mut self, request: &Request) -> u32 {
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
    pub(super) fn discharge(&mut self, id: u32, cx: &Context<'_>) {
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
            .filter(|waiter| self.stamp(waiter.arrival) == id.stamp)
            .map(|_| id.slot)
    }

    pub(crate) fn waiter_id(&self, slot: u32) -> WaiterId {
        WaiterId {
            slot,
            stamp: self.stamp(self.waiters[slot].arrival),
        }
    }

    fn stamp(&self, arrival: u64) -> u32 {
        self.first_stamp.wrapping_add(arrival as u32)
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
        let is_offer = self.waiters[id].sleeper != Sleeper::None
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
    pub(super) fn obstacle_of_waiter(&mut self, id: u32, cx: &Context<'_>) -> Option<Obstacle> {
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
    pub(super) fn offer(&mut self, id: u32) {
        let space = self.waiters[id].request.space as usize;
        let (head, tail) = self.waiting[space].offered;
        let waiter = &mut self.waiters[id];
        waiter.state = State::Offered;
        waiter.is_soft = false;
        if waiter.sleeper == Sleeper::Woken {
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
            if head != NIL && self.waiters[head].sleeper != Sleeper::Woken {
                self.unlink(head);
                self.waiters[head].sleeper = Sleeper::Woken;
                self.counters.wake_ups += 1;
                self.offer(head);
                return Some(head);
            }
        }
        None
    }

    /// Gives a waiter that hangs nowhere its lock, and its branch to the lock
    /// (rule 4), or finds that it cannot have it.
    pub(super) fn grant(&mut self, id: u32, cx: &Context<'_>) -> Verdict {
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
            let before = self.held_of(&request);
            match self.hold(*space, owner, *taken_by, *range, *lock_type, cx) {
                Ok(record) => {
                    // Without memory for the note a grant that is given back is
                    // given back whole.
                    if !before.is_empty() && self.held_before.try_reserve(1).is_ok() {
                        self.held_before.push((id, before));
                    }
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
    pub(super) fn hand_over_branch(&mut self, id: u32, record: u32) {
        let branch = self.waiters[id].branch;
        if branch != NIL && self.records[record].branch == NIL {
            self.waiters[id].branch = NIL;
            self.records[record].branch = branch;
            self.branches[branch].beneath = Obstacle::Record(record);
        }
    }

    /// Puts an ended waiter where its result is taken from.
    pub(super) fn finish(&mut self, id: u32, verdict: Verdict) {
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
        if self.waiters[id].sleeper == Sleeper::Woken {
            self.waiters[id].sleeper = Sleeper::Asleep;
        }
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
    pub(super) fn splice_branch(&mut self, id: u32) {
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
                if self.waiters[child].beneath.has_soft() {
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
    pub(super) fn refuse(&mut self, id: u32, verdict: Verdict, cx: &Context<'_>) {
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
}
