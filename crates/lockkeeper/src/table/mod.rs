//! One file's locks and waiters: a pure, deterministic state machine.
//!
//! A [`Table`] does no I/O, reads no clock, starts no thread and never panics on
//! any input. It answers every call at once: a request that must wait is kept,
//! with a *ticket* of the caller's choosing, and handed back when it has ended.
//! Waking whoever waits, and keeping other callers out meanwhile, is the
//! caller's part: see [`LockManager`](crate::LockManager) for a caller that does
//! it with threads, tasks and callbacks.
//!
//! ```
//! use lockkeeper::table::{Context, Lock, Request, Settings, Table};
//! use lockkeeper::{LockType, ProcessId, Range, Time};
//!
//! let settings = Settings::default();
//! let at = |seconds: u64| Context::new(Time(seconds * 1_000_000_000), &settings);
//! let mut table = Table::new();
//! let ten = Range::new(0, 9)?;
//!
//! let first = Request::record(ProcessId(1), LockType::Write, ten);
//! let second = Request::record(ProcessId(2), LockType::Read, Range::WHOLE);
//! table.try_lock(&first, at(0))?;
//! let Lock::Waiting(id) = table.lock(second, "ticket", at(1)).map_err(|(error, _)| error)? else {
//!     panic!("the first ten bytes are taken");
//! };
//!
//! table.unlock(&ProcessId(1).into(), ten, at(2))?;
//! let ended = table.next_ended().expect("the reader was granted");
//! assert_eq!((ended.id, ended.ticket, ended.result), (id, "ticket", Ok(())));
//! # Ok::<(), lockkeeper::LockError>(())
//! ```
//!
//! # How it is kept
//! Most files of a busy system have one or two locks and no waiter. A table
//! holds so many in itself, without allocating (`few`), and moves to the
//! full structures (trees of locks, the tree of waiters, leases) when more
//! happens. Both follow the same rules and are tested against the same model.

mod by_owner;
mod check;
mod few;
mod granted;
mod lease;
mod locks;
mod queue;
mod survey;
mod tree;
mod view;
mod waiting;

use alloc::boxed::Box;
use alloc::vec::Vec;

pub use lease::{BreakScope, LeaseBreak, LeaseState, Openers};
pub use locks::{Context, Counters, Ledger, Request, Settings};
pub use survey::Survey;
pub use view::{BlockedBy, GrantedView, Snapshot, WaiterView};

use crate::error::{LockError, NotWaiting};
use crate::lock::{Fairness, LockInfo, LockType, Time, WaiterId};
use crate::owner::{FileOwner, Owner, ProcessId};
use crate::range::Range;
use crate::slab::NIL;
use few::{Few, Held, Place, Tried};
use locks::{Locks, Space};
use waiting::{Claim, Obstacle, State, Verdict};

/// One file's locks and waiters. `T` is what a caller attaches to a request that
/// waits. See the [module](self).
#[derive(Debug)]
pub struct Table<T> {
    /// All locks of the file, while they are no more than these and nobody waits
    /// beneath one.
    few: Few,
    /// Everything else; kept for the next time when it becomes idle.
    full: Option<Box<[Locks<T>; 1]>>,
    /// Whether `full` is in use. If it has locks, `few` has none.
    is_full: bool,
    /// Locks granted at once.
    acquisitions: u64,
}

/// What came of a request that may wait.
#[derive(Debug, PartialEq, Eq)]
pub enum Lock<T> {
    /// It was granted at once; the ticket was not needed.
    Granted(T),
    /// It waits under this id.
    Waiting(WaiterId),
}

/// A wait that has ended.
#[derive(Debug)]
pub struct Ended<T> {
    /// The id under which it waited.
    pub id: WaiterId,
    /// What was asked for.
    pub request: Request,
    /// Granted, or why not.
    pub result: Result<(), LockError>,
    /// The caller's own.
    pub ticket: T,
    /// Since when it waited.
    pub since: Time,
    /// What the owner held of the bytes just before a grant, by first byte: what
    /// [`Table::give_back`] needs to undo it. Nothing for flock.
    pub before: Vec<(Range, LockType)>,
}

/// What became of what an owner waits for when the owner is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// They go on, as when one of several descriptors of a process is closed.
    Keep,
    /// They go on and end with EBADF where they would be granted, as when the
    /// descriptor is closed that they wait through (fcntl(2), F_SETLKW).
    Close,
    /// They end at once with EINTR, as when the owner is killed.
    Interrupt,
}

/// Where a query's answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The owner holds a lock in the way.
    Lock,
    /// The owner waits, and the fairness bound makes others queue behind it.
    Queue,
}

impl Request {
    /// A request for a record lock on `range`: POSIX, OFD or remote, as the owner
    /// is (fcntl(2)).
    pub fn record(owner: impl Into<Owner>, lock_type: LockType, range: Range) -> Request {
        Request {
            owner: owner.into(),
            taken_by: ProcessId(0),
            range,
            lock_type,
            space: Space::Records,
            is_access: false,
        }
    }

    /// A request for a whole-file lock (flock(2)).
    pub fn flock(owner: impl Into<FileOwner>, lock_type: LockType) -> Request {
        Request {
            owner: Owner::from(owner.into()),
            taken_by: ProcessId(0),
            range: Range::WHOLE,
            lock_type,
            space: Space::Flocks,
            is_access: false,
        }
    }

    /// A question whether others' record locks allow `owner` to read (`Read`) or
    /// to write (`Write`) these bytes: mandatory locking. Waits like a lock and
    /// holds nothing when it is granted.
    pub fn access(owner: impl Into<Owner>, access: LockType, range: Range) -> Request {
        Request {
            is_access: true,
            ..Request::record(owner, access, range)
        }
    }

    /// The same request, made by this process: listings show it for flock.
    pub fn taken_by(mut self, process: ProcessId) -> Request {
        self.taken_by = process;
        self
    }

    /// Who asks.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// What is asked for, as listings show it.
    pub fn info(&self) -> LockInfo {
        LockInfo {
            kind: self.kind(),
            lock_type: self.lock_type,
            range: self.range,
            owner: self.owner.clone(),
            taken_by: self.taken_by,
        }
    }
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table::new()
    }
}

impl<T> Table<T> {
    /// A table without locks. Allocates nothing.
    pub const fn new() -> Table<T> {
        Table {
            few: Few::NONE,
            full: None,
            is_full: false,
            acquisitions: 0,
        }
    }

    // ---- The fast path -----------------------------------------------------

    /// Grants the request if nothing is in the way: F_SETLK, F_OFD_SETLK,
    /// flock(2) with LOCK_NB; for [`Request::access`], tells whether it is
    /// allowed.
    ///
    /// Locks of one owner and type that touch become one; a lock of the other
    /// type gives way where they overlap. A flock of the other type is dropped
    /// before the new one is tried, and stays dropped if that fails (flock(2)).
    ///
    /// # Errors
    /// `Conflict` or `Queued` (EAGAIN), `Limit` or `NoMemory` (ENOLCK). But for
    /// the dropped flock, nothing has changed then.
    #[inline]
    pub fn try_lock(&mut self, request: &Request, cx: Context<'_>) -> Result<(), LockError> {
        if self.may_hold_few() && !cx.settings.is_limited {
            match self.try_lock_few(request, &cx) {
                Tried::Granted => return Ok(()),
                Tried::InTheWay => return self.conflict_in_few(request),
                Tried::Beyond => {}
            }
        }
        self.try_lock_full(request, &cx)
    }

    /// Whether the locks are, or may be, in the table itself. They may while
    /// others wait, as long as none of these waits beneath a lock: all hang from
    /// waiters that are being woken.
    #[inline]
    fn may_hold_few(&self) -> bool {
        match &self.full {
            Some(full) => !self.is_full || full[0].records.len() == 0,
            None => true,
        }
    }

    #[inline]
    fn try_lock_few(&mut self, request: &Request, cx: &Context<'_>) -> Tried {
        let place = match self.few.place_for(request) {
            Place::InTheWay => return Tried::InTheWay,
            _ if request.is_access && !self.is_full => return Tried::Granted,
            _ if request.is_access => return Tried::Beyond,
            Place::None => return Tried::Beyond,
            place => place,
        };
        if self.is_full && !self.few.is_held_flock(place, request) {
            let full = self.full.as_mut();
            if !full.is_some_and(|full| full[0].overtakes(request, cx)) {
                return Tried::Beyond; // To queue, or to look further who is overtaken.
            }
        }
        self.few.put(place, request, cx.now);
        self.acquisitions += 1;
        Tried::Granted
    }

    /// The error that names the first lock in the way.
    #[cold]
    fn conflict_in_few(&self, request: &Request) -> Result<(), LockError> {
        match self.few.first_in_the_way(request) {
            Some(info) => Err(LockError::Conflict(info)),
            None => Ok(()),
        }
    }

    /// Gives up the owner's record locks on `range`: F_SETLK with F_UNLCK. What
    /// others waited for may be granted by it. Unlocking what is not held does
    /// nothing.
    ///
    /// # Errors
    /// `Limit` or `NoMemory` (ENOLCK) where the middle of a lock is given up and
    /// there may be no further lock; nothing has changed then. Never for
    /// [`Range::WHOLE`].
    #[inline]
    pub fn unlock(
        &mut self,
        owner: &Owner,
        range: Range,
        cx: Context<'_>,
    ) -> Result<(), LockError> {
        if self.unlock_plain(owner, range) {
            return Ok(());
        }
        self.unlock_full(owner, range, Space::Records, &cx)
    }

    /// The part of [`unlock`](Table::unlock) that needs neither time nor settings:
    /// locks given up whole, beneath which nobody waits. False if there is more to
    /// do; nothing has changed then.
    #[inline]
    pub fn unlock_plain(&mut self, owner: &Owner, range: Range) -> bool {
        self.may_hold_few() && self.few.unlock(owner, range, Space::Records)
    }

    // ---- Locks -------------------------------------------------------------

    /// Grants the request, or lets it wait: F_SETLKW, F_OFD_SETLKW, flock(2). The
    /// ticket comes back with the result, from here or from [`next_ended`].
    ///
    /// Whether waiting would close a deadlock is the caller's to ask, right
    /// after: a table knows one file only. See [`deadlock`](crate::deadlock).
    ///
    /// [`next_ended`]: Table::next_ended
    ///
    /// # Errors
    /// `Limit` or `NoMemory` (ENOLCK), with the ticket.
    pub fn lock(
        &mut self,
        request: Request,
        ticket: T,
        cx: Context<'_>,
    ) -> Result<Lock<T>, (LockError, T)> {
        self.lock_or_wait(request, false, ticket, cx)
    }

    /// The same for a waiter that is a running thread: where it could be granted,
    /// it may be offered the lock instead, and is then woken to [`claim`] it.
    /// That lets running threads go on meanwhile, within the fairness bound.
    ///
    /// [`claim`]: Table::claim
    ///
    /// # Errors
    /// As [`lock`](Table::lock).
    pub fn lock_by_offer(
        &mut self,
        request: Request,
        ticket: T,
        cx: Context<'_>,
    ) -> Result<Lock<T>, (LockError, T)> {
        self.lock_or_wait(request, true, ticket, cx)
    }

    fn lock_or_wait(
        &mut self,
        request: Request,
        may_be_offered: bool,
        ticket: T,
        cx: Context<'_>,
    ) -> Result<Lock<T>, (LockError, T)> {
        match self.try_lock(&request, cx) {
            Ok(()) => return Ok(Lock::Granted(ticket)),
            Err(LockError::Conflict(_) | LockError::Queued(_)) => {}
            Err(error) => return Err((error, ticket)),
        }
        let locks = match self.enter_full() {
            Ok(locks) => locks,
            Err(error) => return Err((error, ticket)),
        };
        let id = locks.enlist(request, None, may_be_offered, ticket, &cx)?;
        match locks.obstacle(&locks.waiters[id].request, &cx) {
            Some(obstacle) => locks.attach(id, obstacle, &cx),
            // The try dropped a flock, and who was ahead has had it and is gone.
            None => locks.look_at(id, &cx),
        }
        locks.settle(&cx);
        Ok(Lock::Waiting(locks.waiter_id(id)))
    }

    fn try_lock_full(&mut self, request: &Request, cx: &Context<'_>) -> Result<(), LockError> {
        let locks = self.enter_full()?;
        let Request {
            owner,
            taken_by,
            range,
            lock_type,
            space,
            is_access,
        } = request;
        if *space == Space::Flocks {
            let own = locks.own_overlap(*space, owner, *range);
            if own != NIL {
                if locks.records[own].lock_type == *lock_type {
                    locks.counters.acquisitions += 1;
                    return Ok(());
                }
                locks.unhold(*space, owner, *range, cx)?;
            }
        }
        let result = match locks.obstacle(request, cx) {
            None if *is_access => Ok(()),
            None => locks
                .hold(*space, owner, *taken_by, *range, *lock_type, cx)
                .map(|_| {
                    locks.count_overtaking(request);
                    locks.counters.acquisitions += 1;
                }),
            Some(obstacle @ Obstacle::Waiter(_)) => {
                Err(LockError::Queued(locks.obstacle_info(obstacle)))
            }
            Some(obstacle) => Err(LockError::Conflict(locks.obstacle_info(obstacle))),
        };
        locks.settle(cx);
        self.leave_if_idle();
        result
    }

    /// Gives up the owner's whole-file lock: flock(2) with LOCK_UN. Never fails;
    /// giving up what is not held does nothing.
    pub fn unlock_flock(&mut self, owner: &FileOwner, cx: Context<'_>) {
        let owner = Owner::from(owner.clone());
        if self.may_hold_few() {
            self.few.unlock(&owner, Range::WHOLE, Space::Flocks);
        } else {
            // A flock is never split, which is all that could fail.
            let _ = self.unlock_full(&owner, Range::WHOLE, Space::Flocks, &cx);
        }
    }

    fn unlock_full(
        &mut self,
        owner: &Owner,
        range: Range,
        space: Space,
        cx: &Context<'_>,
    ) -> Result<(), LockError> {
        let locks = self.enter_full()?;
        let result = locks.unhold(space, owner, range, cx);
        locks.settle(cx);
        self.leave_if_idle();
        result
    }

    /// The lock in the way of such a request, if there is one: F_GETLK,
    /// F_OFD_GETLK. Of several it is the one with the lowest first byte. Waiting
    /// requests are in nobody's way.
    pub fn test(&self, request: &Request) -> Option<LockInfo> {
        let Request {
            owner,
            range,
            lock_type,
            space,
            ..
        } = request;
        if let Some(locks) = self.granted_in_full() {
            let id = locks.first_conflict(*space, owner, *range, *lock_type);
            return (id != NIL).then(|| locks.records[id].info());
        }
        self.few.first_in_the_way(request)
    }

    /// The owner's own record lock with the lowest first byte in `range`:
    /// F_OFD_GETLK with F_UNLCK, Linux 6.13 and later.
    pub fn test_own(&self, owner: &Owner, range: Range) -> Option<LockInfo> {
        if let Some(locks) = self.granted_in_full() {
            let id = locks.own_overlap(Space::Records, owner, range);
            return (id != NIL).then(|| locks.records[id].info());
        }
        self.few.first_of(owner, range)
    }

    // ---- Waiters -----------------------------------------------------------

    /// The next wait that has ended, in the order in which they did. To be called
    /// until it returns `None` after every call that changes something.
    pub fn next_ended(&mut self) -> Option<Ended<T>> {
        let locks = &mut self.full.as_mut()?[0];
        let id = match locks.ready.0 {
            NIL => return None,
            id => id,
        };
        let ended = take_ended(locks, id);
        self.leave_if_idle();
        Some(ended)
    }

    /// The next waiter to be woken to [`claim`](Table::claim) what it is offered.
    /// To be called like [`next_ended`](Table::next_ended).
    pub fn next_offer(&mut self) -> Option<(WaiterId, &T)> {
        let locks = &mut self.full.as_mut()?[0];
        let id = locks.next_offer()?;
        Some((locks.waiter_id(id), &locks.waiters[id].ticket))
    }

    /// A woken waiter comes for its lock. `None` if it must wait on, because
    /// another was quicker.
    ///
    /// # Errors
    /// `NotWaiting` (ENOENT) if nothing waits under this id.
    pub fn claim(&mut self, id: WaiterId, cx: Context<'_>) -> Result<Option<Ended<T>>, NotWaiting> {
        let (locks, id) = self.find(id)?;
        let ended = match locks.claim(id, &cx) {
            Claim::Waiting => None,
            Claim::Finished => Some(take_ended(locks, id)),
        };
        self.leave_if_idle();
        Ok(ended)
    }

    /// Ends a wait: it is gone at once and cannot be granted any more. What its
    /// owner holds stays as it is.
    ///
    /// # Errors
    /// `NotWaiting` (ENOENT) if nothing waits under this id, or what did has
    /// ended already: its result stands.
    pub fn cancel(&mut self, id: WaiterId, cx: Context<'_>) -> Result<T, NotWaiting> {
        self.withdraw(id, cx, |counters| &mut counters.cancels)
    }

    /// Ends a wait because it closes a cycle: the same as [`cancel`], counted as
    /// a deadlock.
    ///
    /// [`cancel`]: Table::cancel
    ///
    /// # Errors
    /// As [`cancel`](Table::cancel).
    pub fn refuse_deadlock(&mut self, id: WaiterId, cx: Context<'_>) -> Result<T, NotWaiting> {
        self.withdraw(id, cx, |counters| &mut counters.deadlocks)
    }

    /// Takes a waiter away, counted where `count` says.
    fn withdraw(
        &mut self,
        id: WaiterId,
        cx: Context<'_>,
        count: impl FnOnce(&mut Counters) -> &mut u64,
    ) -> Result<T, NotWaiting> {
        let (locks, id) = self.find(id)?;
        let waiter = locks.cancel(id, &cx).ok_or(NotWaiting)?;
        *count(&mut locks.counters) += 1;
        self.leave_if_idle();
        Ok(waiter.ticket)
    }

    /// Frees a waiter from queueing behind others for fairness alone: what to do
    /// where that closes a cycle, which must not become a deadlock.
    ///
    /// # Errors
    /// `NotWaiting` (ENOENT) as for [`cancel`](Table::cancel).
    pub fn let_pass(&mut self, id: WaiterId, cx: Context<'_>) -> Result<(), NotWaiting> {
        let (locks, id) = self.find(id)?;
        if matches!(locks.waiters[id].state, State::Finished(_)) {
            return Err(NotWaiting);
        }
        locks.let_pass(id, &cx);
        Ok(())
    }

    /// What waits under this id.
    ///
    /// # Errors
    /// `NotWaiting` (ENOENT) if nothing does, or what did has ended.
    pub fn waiting(&self, id: WaiterId) -> Result<(&Request, &T), NotWaiting> {
        let locks = self.full_in_use().ok_or(NotWaiting)?;
        let slot = locks.find_waiter(id).ok_or(NotWaiting)?;
        let waiter = &locks.waiters[slot];
        match waiter.state {
            State::Finished(_) => Err(NotWaiting),
            _ => Ok((&waiter.request, &waiter.ticket)),
        }
    }

    /// The next waiter that has come to queue for fairness alone, since the lock
    /// went that it waited for: an edge that may close a cycle, where others wait
    /// for its owner on other files. To be called like
    /// [`next_ended`](Table::next_ended) by whoever looks for deadlocks; a waiter
    /// may be named more than once.
    pub fn next_requeued(&mut self) -> Option<WaiterId> {
        let locks = self.full_in_use_mut()?;
        let id = locks.next_requeued()?;
        Some(locks.waiter_id(id))
    }

    /// Whether [`next_ended`](Table::next_ended),
    /// [`next_offer`](Table::next_offer) or
    /// [`next_requeued`](Table::next_requeued) has anything.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.full_in_use().is_some_and(Locks::has_news)
    }

    /// Whether anybody waits, or has ended and not been taken.
    pub fn has_waiters(&self) -> bool {
        self.full_in_use().is_some_and(Locks::has_waiters)
    }

    /// Calls `visit` with the owner of every lock that the waiter conflicts with,
    /// until it returns false; or, if there is none, with the owner of the waiter
    /// that it queues behind, if that one is blocked itself. Nothing for a waiter
    /// that was offered its lock, or queues behind one that was: its thread runs.
    pub fn visit_blockers(&self, id: WaiterId, visit: &mut dyn FnMut(&Owner, Edge) -> bool) {
        let Some(locks) = self.full_in_use() else {
            return;
        };
        let Some(slot) = locks.find_waiter(id) else {
            return;
        };
        let waiter = &locks.waiters[slot];
        if waiter.state != State::Blocked {
            return;
        }
        let Request {
            owner,
            range,
            lock_type,
            space,
            ..
        } = &waiter.request;
        if *space == Space::Leases {
            for (lease, held) in locks.leases.iter() {
                if locks.breaks(slot, lease) && !visit(&held.owner, Edge::Lock) {
                    return;
                }
            }
            return;
        }
        // A write lock on all of the bytes leaves room for no other lock.
        if let Some(Obstacle::Record(record)) = locks.blocker_of(slot) {
            let record = &locks.records[record];
            if record.lock_type == LockType::Write && record.range.contains(*range) {
                visit(&record.owner, Edge::Lock);
                return;
            }
        }
        let mut found = false;
        for held in self.few.iter() {
            if held.is_in_the_way(&waiter.request) {
                found = true;
                if !visit(&held.owner, Edge::Lock) {
                    return;
                }
            }
        }
        locks.visit_conflicts(*space, owner, *range, *lock_type, &mut |record| {
            found = true;
            visit(&locks.records[record].owner, Edge::Lock)
        });
        if !found && let Some(ahead) = locks.queued_behind(slot) {
            visit(&locks.waiters[ahead].request.owner, Edge::Queue);
        }
    }

    /// Whether any request has ever queued here for fairness alone.
    pub fn has_queued(&self) -> bool {
        self.full_in_use().is_some_and(|locks| locks.has_queued)
    }

    /// The lock of `blocker` that this waiter waits for; of several the one with
    /// the lowest first byte.
    pub fn blocker_info(&self, id: WaiterId, blocker: &Owner) -> Option<LockInfo> {
        let locks = self.full_in_use()?;
        let slot = locks.find_waiter(id)?;
        let Request {
            owner,
            range,
            lock_type,
            space,
            ..
        } = &locks.waiters[slot].request;
        let mut found = self
            .few
            .iter()
            .filter(|held| {
                held.is_in_the_way(&locks.waiters[slot].request) && held.owner == *blocker
            })
            .min_by_key(|held| held.range)
            .map(Held::info);
        locks.visit_conflicts(*space, owner, *range, *lock_type, &mut |record| {
            let record = &locks.records[record];
            let is_lower = found
                .as_ref()
                .is_none_or(|found| record.range < found.range);
            if record.owner == *blocker && is_lower {
                found = Some(record.info());
            }
            true
        });
        found
    }

    /// Every wait of this owner here, by arrival.
    pub fn visit_waits_of(&self, owner: &Owner, visit: &mut dyn FnMut(WaiterId)) {
        let Some(locks) = self.full_in_use() else {
            return;
        };
        for space in [Space::Records, Space::Flocks, Space::Leases] {
            locks
                .waits_of(space, owner)
                .for_each(|id| visit(locks.waiter_id(id)));
        }
    }

    /// Every waiter that a lock granted to this request stands in the way of, by
    /// arrival: whose edge to its owner may close a cycle.
    pub fn visit_blocked_by(&self, granted: &Request, visit: &mut dyn FnMut(WaiterId)) {
        let Some(locks) = self.full_in_use() else {
            return;
        };
        if granted.is_access || granted.space == Space::Leases {
            return;
        }
        let mut found: Vec<u32> = Vec::new();
        locks.visit_stopped_by(granted, &mut |id| {
            if locks.waiters[id].state == State::Blocked {
                found.push(id);
            }
        });
        found.sort_unstable_by_key(|&id| locks.waiters[id].arrival);
        for id in found {
            visit(locks.waiter_id(id));
        }
    }

    /// Undoes the grant of a request that nobody came for: of what the owner holds
    /// of its bytes now, it keeps what it held `before`, as [`Ended::before`] tells
    /// it. What it gave up or weakened since the grant stays so, and a write lock
    /// that the grant weakened comes back only if nothing is in its way by now.
    /// Where memory or a limit forbids to split a lock, more is given up.
    pub fn give_back(&mut self, request: &Request, before: &[(Range, LockType)], cx: Context<'_>) {
        let Request { owner, space, .. } = request;
        if request.is_access {
            return;
        }
        if *space == Space::Flocks {
            self.release_space(owner, Range::WHOLE, *space, &cx);
            return;
        }
        let Ok(locks) = self.enter_full() else {
            self.release_space(owner, Range::WHOLE, *space, &cx);
            return;
        };
        for (now, type_now) in locks.held_of(request) {
            let mut rest = Some(now);
            for &(part, type_before) in before {
                let Some(open) = rest.filter(|rest| rest.overlaps(part)) else {
                    continue;
                };
                if let Some(gap) = open.before(part) {
                    self.release_space(owner, gap, *space, &cx);
                }
                let kept = open.within(part);
                let restored = Request {
                    lock_type: type_before,
                    range: kept,
                    ..request.clone()
                };
                let is_as_granted = type_now == request.lock_type;
                let is_kept =
                    type_now <= type_before && (!is_as_granted || self.test(&restored).is_some());
                if !is_kept && self.hold_again(&restored, &cx).is_err() {
                    self.release_space(owner, kept, *space, &cx);
                }
                rest = open.after(part);
            }
            if let Some(gap) = rest {
                self.release_space(owner, gap, *space, &cx);
            }
        }
        self.leave_if_idle();
    }

    /// Sets a lock that nothing is in the way of, without queueing for it.
    fn hold_again(&mut self, request: &Request, cx: &Context<'_>) -> Result<(), LockError> {
        let Request {
            owner,
            taken_by,
            range,
            lock_type,
            space,
            ..
        } = request;
        let locks = self.enter_full()?;
        let result = locks.hold(*space, owner, *taken_by, *range, *lock_type, cx);
        locks.settle(cx);
        self.leave_if_idle();
        result.map(|_| ())
    }

    /// Unlocks `range`, or everything of the owner where that cannot be split.
    fn release_space(&mut self, owner: &Owner, range: Range, space: Space, cx: &Context<'_>) {
        if self.unlock_full(owner, range, space, cx).is_err() {
            // A whole-file unlock never fails.
            let _ = self.unlock_full(owner, Range::WHOLE, space, cx);
        }
    }

    // ---- Owners and the file as a whole ------------------------------------

    /// Drops every lock and lease of the owner here, as its end does; `waits`
    /// says what becomes of what it waits for. Waits that end by it are handed
    /// back by [`next_ended`](Table::next_ended).
    pub fn release_owner(&mut self, owner: &Owner, waits: Waits, cx: Context<'_>) {
        let Some(locks) = self.full_in_use_mut() else {
            self.few.unlock(owner, Range::WHOLE, Space::Records);
            self.few.unlock(owner, Range::WHOLE, Space::Flocks);
            return;
        };
        if waits != Waits::Keep {
            for space in [Space::Records, Space::Flocks, Space::Leases] {
                match waits {
                    Waits::Close => locks.close_waits(space, owner),
                    _ => locks.interrupt_waits(space, owner, &cx),
                }
            }
        }
        for space in [Space::Records, Space::Flocks] {
            // A whole-file unlock never fails.
            let _ = locks.unhold(space, owner, Range::WHOLE, &cx);
        }
        locks.drop_leases_of(owner, &cx);
        locks.settle(&cx);
        self.leave_if_idle();
    }

    /// Drops every lock and ends every wait with EIO: the file is torn down.
    pub fn tear_down(&mut self, cx: Context<'_>) {
        self.few = Few::NONE;
        let Some(locks) = self.full_in_use_mut() else {
            return;
        };
        locks.refuse_all(Verdict::TornDown, &cx);
        locks.drop_everything(&cx);
        self.leave_if_idle();
    }

    /// Sets the fairness bound of this file; `None` follows the settings. Whoever
    /// need not queue under the new bound is granted what it waits for.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn set_fairness(
        &mut self,
        fairness: Option<Fairness>,
        cx: Context<'_>,
    ) -> Result<(), LockError> {
        if fairness.is_some() || self.full.is_some() {
            let locks = self.enter_full()?;
            locks.fairness = fairness;
            locks.review_queues(&cx);
            self.leave_if_idle();
        }
        Ok(())
    }

    /// Whether nothing is locked and nobody waits.
    pub fn is_idle(&self) -> bool {
        self.few.is_empty() && self.full_in_use().is_none_or(Locks::is_idle)
    }

    /// How often things have happened here.
    pub fn counters(&self) -> Counters {
        let mut counters = self
            .full
            .as_ref()
            .map_or_else(Counters::default, |full| full[0].counters);
        counters.acquisitions += self.acquisitions;
        counters
    }

    // ---- Leases ------------------------------------------------------------

    /// Takes a lease or changes its type: F_SETLEASE with F_RDLCK or F_WRLCK;
    /// `is_delegation` for a lease of a server's own kind.
    ///
    /// # Errors
    /// `LeaseUnavailable` (EAGAIN) where openers forbid it, another holds a lease
    /// and a write lease is asked for, or another's lease is being broken;
    /// `Limit`, `NoMemory` (ENOLCK); `TimeRanBackwards` (EINVAL).
    pub fn set_lease(
        &mut self,
        owner: FileOwner,
        taken_by: ProcessId,
        lock_type: LockType,
        is_delegation: bool,
        openers: Openers,
        cx: Context<'_>,
    ) -> Result<(), LockError> {
        let locks = self.enter_full()?;
        let result = locks.set_lease(owner, taken_by, lock_type, is_delegation, openers, &cx);
        locks.settle(&cx);
        self.leave_if_idle();
        result
    }

    /// Gives a lease up: F_SETLEASE with F_UNLCK.
    ///
    /// # Errors
    /// `NoLease` (EAGAIN) where the owner has none, `TimeRanBackwards` (EINVAL).
    pub fn remove_lease(
        &mut self,
        owner: &FileOwner,
        is_delegation: bool,
        cx: Context<'_>,
    ) -> Result<(), LockError> {
        let locks = self.full_in_use_mut().ok_or(LockError::NoLease)?;
        let result = locks.remove_lease(&owner.clone().into(), is_delegation, &cx);
        locks.settle(&cx);
        self.leave_if_idle();
        result
    }

    /// The owner's lease, or while it is being broken what must be left of it:
    /// F_GETLEASE.
    ///
    /// # Errors
    /// `TimeRanBackwards` (EINVAL).
    pub fn lease(
        &mut self,
        owner: &FileOwner,
        is_delegation: bool,
        cx: Context<'_>,
    ) -> Result<LeaseState, LockError> {
        let Some(locks) = self.full_in_use_mut() else {
            return Ok(LeaseState::Unlocked);
        };
        let result = locks.get_lease(&owner.clone().into(), is_delegation, &cx);
        locks.settle(&cx);
        self.leave_if_idle();
        result
    }

    /// Breaks the leases that an open (`Read` for O_RDONLY, else `Write`) or a
    /// truncation (`Write`) conflicts with, without waiting: O_NONBLOCK. The
    /// holders are told all the same, see [`next_break`](Table::next_break).
    ///
    /// # Errors
    /// `LeaseInTheWay` (EWOULDBLOCK) while there is one, `TimeRanBackwards`.
    pub fn try_break_leases(
        &mut self,
        opener: &Owner,
        access: LockType,
        scope: BreakScope,
        cx: Context<'_>,
    ) -> Result<(), LockError> {
        let Some(locks) = self.full_in_use_mut() else {
            return Ok(());
        };
        let result = locks.expire_leases(&cx).and_then(|_| {
            match locks.break_leases(opener, access, scope, cx.break_deadline()) {
                NIL => Ok(()),
                id => Err(LockError::LeaseInTheWay(locks.leases[id].info())),
            }
        });
        locks.settle(&cx);
        self.leave_if_idle();
        result
    }

    /// The same, waiting until the leases are gone or weakened, by their holders
    /// or by [`expire`](Table::expire).
    ///
    /// # Errors
    /// `Limit`, `NoMemory` (ENOLCK), `TimeRanBackwards` (EINVAL), with the ticket.
    pub fn break_leases(
        &mut self,
        opener: &Owner,
        access: LockType,
        scope: BreakScope,
        ticket: T,
        cx: Context<'_>,
    ) -> Result<Lock<T>, (LockError, T)> {
        match self.try_break_leases(opener, access, scope, cx) {
            Ok(()) => return Ok(Lock::Granted(ticket)),
            Err(LockError::LeaseInTheWay(_)) => {}
            Err(error) => return Err((error, ticket)),
        }
        let locks = match self.enter_full() {
            Ok(locks) => locks,
            Err(error) => return Err((error, ticket)),
        };
        let request = Request {
            owner: opener.clone(),
            taken_by: ProcessId(0),
            range: Range::WHOLE,
            lock_type: access,
            space: Space::Leases,
            is_access: false,
        };
        let id = locks.enlist(request, Some(scope), false, ticket, &cx)?;
        match locks.lease_to_await(id, &cx) {
            Some(lease) => locks.attach(id, Obstacle::Lease(lease), &cx),
            // Not reached: the try met a lease, and nothing has changed.
            None => locks.look_at(id, &cx),
        }
        locks.settle(&cx);
        Ok(Lock::Waiting(locks.waiter_id(id)))
    }

    /// Weakens or removes what is overdue; returns how many leases were.
    ///
    /// # Errors
    /// `TimeRanBackwards` (EINVAL) if `cx` is earlier than before.
    pub fn expire(&mut self, cx: Context<'_>) -> Result<u32, LockError> {
        let Some(locks) = self.full_in_use_mut() else {
            return Ok(0);
        };
        let result = locks.expire_leases(&cx);
        locks.settle(&cx);
        self.leave_if_idle();
        result
    }

    /// When [`expire`](Table::expire) has something to do next.
    pub fn next_deadline(&self) -> Option<Time> {
        self.full_in_use().and_then(Locks::next_deadline)
    }

    /// The next holder to be told that his lease is being broken: once for each
    /// strength of a break. To be called like [`next_ended`](Table::next_ended).
    pub fn next_break(&mut self) -> Option<LeaseBreak> {
        self.full.as_mut()?[0].next_break()
    }

    // ---- From few to full and back -----------------------------------------

    fn full_in_use(&self) -> Option<&Locks<T>> {
        self.full
            .as_ref()
            .map(|full| &full[0])
            .filter(|_| self.is_full)
    }

    /// The full structures, if they have the locks.
    fn granted_in_full(&self) -> Option<&Locks<T>> {
        self.full_in_use().filter(|locks| locks.records.len() != 0)
    }

    /// The full structures with everything in them, if they are in use.
    fn full_in_use_mut(&mut self) -> Option<&mut Locks<T>> {
        if !self.is_full {
            return None;
        }
        // There is room: it was made on the way in, and is given back only when
        // the structures go out of use.
        self.enter_full().ok()
    }

    /// The full structures, with everything in them.
    ///
    /// # Errors
    /// `NoMemory`; then nothing has changed.
    fn enter_full(&mut self) -> Result<&mut Locks<T>, LockError> {
        let full = match &mut self.full {
            Some(full) => full,
            none => none.insert(try_box(Locks::new())?),
        };
        let locks = &mut full[0];
        if !self.few.is_empty() || !self.is_full {
            locks.take_in(&mut self.few)?;
            self.is_full = true;
        }
        Ok(locks)
    }

    /// Goes back to a table without locks when nothing is left.
    #[inline]
    fn leave_if_idle(&mut self) {
        if let Some(full) = &mut self.full
            && self.is_full
            && full[0].is_idle()
            && self.few.is_empty()
        {
            full[0].give_back();
            self.is_full = false;
        }
    }

    fn find(&mut self, id: WaiterId) -> Result<(&mut Locks<T>, u32), NotWaiting> {
        let locks = self.full_in_use_mut().ok_or(NotWaiting)?;
        let slot = locks.find_waiter(id).ok_or(NotWaiting)?;
        Ok((locks, slot))
    }

    /// Panics unless every invariant holds: trees ordered, balanced and
    /// summarized; an owner's ranges disjoint and joined; no conflicting grants;
    /// the rules of the wait tree; every waiter beneath something that blocks it.
    /// For tests: it visits everything, and siblings in pairs.
    pub fn check_invariants(&self) {
        match &self.full {
            Some(full) if self.is_full => {
                let locks = &full[0];
                let is_apart = self.few.is_empty() || locks.records.len() == 0;
                assert!(is_apart, "locks in both places");
                locks.check_granted();
                locks.check_waiting();
                locks.check_leases();
            }
            Some(full) => assert!(full[0].is_idle(), "locks forgotten"),
            None => {}
        }
        self.few.check_invariants();
    }
}

/// A box that is not to be had is an error, not the end of the process.
fn try_box<N>(node: N) -> Result<Box<[N; 1]>, LockError> {
    let mut one = Vec::new();
    one.try_reserve_exact(1).map_err(|_| LockError::NoMemory)?;
    one.push(node);
    // Capacity and length are the same: this moves the pointer and nothing else.
    one.into_boxed_slice()
        .try_into()
        .map_err(|_| LockError::NoMemory)
}

fn take_ended<T>(locks: &mut Locks<T>, id: u32) -> Ended<T> {
    let name = locks.waiter_id(id);
    let waiter = locks.take_finished(id);
    let noted = locks.held_before.iter().position(|(of, _)| *of == id);
    let before = noted.map_or_else(Vec::new, |at| locks.held_before.swap_remove(at).1);
    let result = match waiter.state {
        State::Finished(verdict) => verdict.into_result(),
        _ => Err(LockError::Interrupted),
    };
    Ended {
        id: name,
        request: waiter.request,
        result,
        ticket: waiter.ticket,
        since: waiter.since,
        before,
    }
}
