//! The model: who holds what, who waits, in flat lists.

use std::collections::HashSet;

use lockkeeper::error::LimitKind;
use lockkeeper::table::{BreakScope, Counters, LeaseState, Openers};
use lockkeeper::{Fairness, LockType, Owner, ProcessId, Range, Time, WaiterId};

use super::ops::Setup;

/// Kinds of locks that never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Records,
    Flocks,
    /// Openers that wait for leases.
    Openers,
}

/// A request, waiting or not.
#[derive(Clone, Debug)]
pub struct Want {
    pub space: Space,
    pub owner: Owner,
    pub range: Range,
    pub lock_type: LockType,
    pub taken_by: ProcessId,
    pub is_access: bool,
    pub scope: BreakScope,
}

impl Want {
    /// Whether two requests exclude each other.
    pub fn conflicts(&self, other: &Want) -> bool {
        self.owner != other.owner && self.clashes(other)
    }

    /// The same but for who owns them.
    pub fn clashes(&self, other: &Want) -> bool {
        self.space == other.space
            && self.space != Space::Openers
            && self.range.overlaps(other.range)
            && self.lock_type.excludes(other.lock_type)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Granted {
    pub space: Space,
    pub owner: Owner,
    pub range: Range,
    pub lock_type: LockType,
    pub taken_by: ProcessId,
    pub since: Time,
}

impl Granted {
    pub fn stops(&self, want: &Want) -> bool {
        self.space == want.space
            && self.owner != want.owner
            && self.range.overlaps(want.range)
            && self.lock_type.excludes(want.lock_type)
    }
}

#[derive(Clone, Debug)]
pub struct Waiter {
    pub id: WaiterId,
    pub ticket: u64,
    pub want: Want,
    pub since: Time,
    pub arrival: u64,
    pub may_be_offered: bool,
    pub is_offered: bool,
    /// Was told of an offer and has not come yet.
    pub is_told: bool,
    pub is_closed: bool,
    pub passes_queue: bool,
    /// Newcomers that were granted what it conflicts with.
    pub newcomers: u64,
    /// The same since the oldest of its like came to the head of their queue.
    pub newcomers_at_head: u64,
    /// What the table may have counted at most since then.
    pub overtaken_at_head_at_most: u64,
    /// At most so many were granted anything like it since it came.
    pub overtaken_at_most: u64,
    /// Those of them that had waited, too.
    pub overtaken_by_juniors_at_most: u64,
}

#[derive(Clone, Debug)]
pub struct Lease {
    pub owner: Owner,
    pub taken_by: ProcessId,
    pub lock_type: LockType,
    pub is_delegation: bool,
    pub since: Time,
    pub weaken_by: Option<Option<Time>>,
    pub remove_by: Option<Option<Time>>,
    pub is_to_tell: bool,
}

impl Lease {
    pub fn breaking(&self) -> Option<Option<LockType>> {
        match (self.remove_by, self.weaken_by) {
            (Some(_), _) => Some(None),
            (None, Some(_)) => Some(Some(LockType::Read)),
            (None, None) => None,
        }
    }

    pub fn stops(&self, want: &Want) -> bool {
        let is_meant = match want.scope {
            BreakScope::Leases => !self.is_delegation,
            BreakScope::Delegations => self.is_delegation,
            BreakScope::All => true,
        };
        want.space == Space::Openers
            && is_meant
            && self.lock_type.excludes(want.lock_type)
            && !(self.is_delegation && self.owner == want.owner)
    }
}

/// What a newcomer meets.
#[derive(Debug)]
pub enum Meets {
    /// It is granted; `is_new` where that overtakes others.
    Free,
    /// Locks in the way.
    Locks(Vec<Granted>),
    /// Nothing but the fairness bound: these waiters may be ahead of it, and
    /// `must` says whether it may not pass.
    Queue { ahead: Vec<usize>, must: bool },
    /// Free, but for a limit.
    Limit(LimitKind),
}

pub struct Model {
    pub setup: Setup,
    pub own_fairness: Option<Fairness>,
    pub granted: Vec<Granted>,
    pub leases: Vec<Lease>,
    /// By arrival.
    pub waiters: Vec<Waiter>,
    pub counters: Counters,
    /// Told on a call on leases since there have been some.
    pub latest_for_sure: Time,
    /// Told on any call on leases.
    pub latest: Time,
    pub arrivals: u64,
    /// Openers that an overdue lease let go before a new one was taken.
    pub let_go: Vec<u64>,
}

pub const BREAK_SECONDS: u64 = 10;

pub fn seconds(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

impl Model {
    pub fn new(setup: Setup) -> Model {
        Model {
            setup,
            own_fairness: None,
            granted: Vec::new(),
            leases: Vec::new(),
            waiters: Vec::new(),
            counters: Counters::default(),
            latest_for_sure: Time(0),
            latest: Time(0),
            arrivals: 0,
            let_go: Vec::new(),
        }
    }

    pub fn fairness(&self) -> Fairness {
        self.own_fairness.unwrap_or(self.setup.fairness)
    }

    pub fn bound(&self) -> Option<u64> {
        match self.fairness() {
            Fairness::Unlimited => None,
            Fairness::Bounded(bound) => Some(bound.into()),
        }
    }

    // ---- Locks -------------------------------------------------------------

    /// The locks as they would be after such a set, or unlock.
    fn with(
        &self,
        space: Space,
        owner: &Owner,
        range: Range,
        set: Option<(LockType, ProcessId, Time)>,
    ) -> Vec<Granted> {
        let mut after = Vec::new();
        let mut joined: Option<Granted> = None;
        for lock in &self.granted {
            let is_own = lock.space == space && lock.owner == *owner;
            let is_like = set.is_some_and(|(lock_type, ..)| lock_type == lock.lock_type);
            if is_own && is_like && lock.range.touches(range) {
                // Becomes one with the new lock, which is as old as its oldest part.
                let whole = joined.get_or_insert_with(|| Granted {
                    range,
                    ..lock.clone()
                });
                let start = whole.range.start().min(lock.range.start());
                let end = whole.range.end().max(lock.range.end());
                whole.range = Range::new(start, end).expect("in order");
                whole.since = whole.since.min(lock.since);
                continue;
            }
            if !is_own || !lock.range.overlaps(range) {
                after.push(lock.clone());
                continue;
            }
            if lock.range.start() < range.start() {
                after.push(Granted {
                    range: Range::new(lock.range.start(), range.start() - 1).expect("in order"),
                    ..lock.clone()
                });
            }
            if lock.range.end() > range.end() {
                after.push(Granted {
                    range: Range::new(range.end() + 1, lock.range.end()).expect("in order"),
                    ..lock.clone()
                });
            }
        }
        if let Some((lock_type, taken_by, since)) = set {
            after.push(joined.unwrap_or(Granted {
                space,
                owner: owner.clone(),
                range,
                lock_type,
                taken_by,
                since,
            }));
        }
        after
    }

    /// The limit that so many more locks of the owner pass.
    fn lock_limit(&self, owner: &Owner, after: &[Granted]) -> Option<LimitKind> {
        let more = after.len() as i64 - self.granted.len() as i64;
        self.limit_of_more_locks(owner, more)
    }

    fn limit_of_more_locks(&self, owner: &Owner, more: i64) -> Option<LimitKind> {
        if more <= 0 {
            return None;
        }
        let in_file = (self.granted.len() + self.leases.len()) as i64 + more;
        if self
            .setup
            .locks_per_file
            .is_some_and(|limit| in_file > i64::from(limit))
        {
            return Some(LimitKind::LocksPerFile);
        }
        let owned = self.locks_of(owner) as i64 + more;
        if self
            .setup
            .per_owner
            .is_some_and(|(limit, _)| owned > i64::from(limit))
        {
            return Some(LimitKind::LocksPerOwner);
        }
        None
    }

    pub fn locks_of(&self, owner: &Owner) -> usize {
        self.granted
            .iter()
            .filter(|lock| lock.owner == *owner)
            .count()
            + self
                .leases
                .iter()
                .filter(|lease| lease.owner == *owner)
                .count()
    }

    pub fn waits_of(&self, owner: &Owner) -> usize {
        self.waiters
            .iter()
            .filter(|waiter| waiter.want.owner == *owner)
            .count()
    }

    /// Gives up a range; whether that was allowed.
    pub fn unlock(&mut self, space: Space, owner: &Owner, range: Range) -> Option<LimitKind> {
        let after = self.with(space, owner, range, None);
        let limit = self.lock_limit(owner, &after);
        if limit.is_none() {
            self.granted = after;
        }
        limit
    }

    /// Grants what nothing is in the way of; whether limits allow it.
    pub fn hold(&mut self, want: &Want, now: Time) -> Option<LimitKind> {
        if want.is_access || want.space == Space::Openers {
            return None;
        }
        assert!(
            !self.is_stopped_by_a_lock(want),
            "granted in spite of a lock: {want:?}"
        );
        let set = Some((want.lock_type, want.taken_by, now));
        let after = self.with(want.space, &want.owner, want.range, set);
        let limit = self.lock_limit(&want.owner, &after);
        if limit.is_none() {
            self.granted = after;
            self.counters.acquisitions += 1;
        }
        limit
    }

    pub fn is_stopped_by_a_lock(&self, want: &Want) -> bool {
        self.granted.iter().any(|lock| lock.stops(want))
            || self.leases.iter().any(|lease| lease.stops(want))
    }

    /// Whether nothing was in a waiter's way at some moment of this step.
    pub fn is_free(&self, waiter: &Waiter) -> bool {
        self.let_go.contains(&waiter.arrival) || !self.is_stopped_by_a_lock(&waiter.want)
    }

    /// The owner of `want` holds what `waiter` waits for, and so never queues
    /// behind it.
    pub fn is_exempt(&self, want: &Want, waiter: &Waiter) -> bool {
        self.granted
            .iter()
            .any(|lock| lock.owner == want.owner && lock.stops(&waiter.want))
    }

    // ---- Newcomers ---------------------------------------------------------

    /// A request comes.
    pub fn newcomer(&mut self, want: &Want, now: Time) -> Meets {
        if want.space == Space::Flocks {
            let own = self
                .granted
                .iter()
                .find(|lock| lock.space == want.space && lock.owner == want.owner);
            match own {
                Some(own) if own.lock_type == want.lock_type => {
                    self.counters.acquisitions += 1;
                    return Meets::Free;
                }
                Some(_) => {
                    // A conversion drops the old lock first.
                    self.unlock(want.space, &want.owner, Range::WHOLE);
                }
                None => {}
            }
        }
        let locks: Vec<Granted> = self
            .granted
            .iter()
            .filter(|lock| lock.stops(want))
            .cloned()
            .collect();
        if !locks.is_empty() {
            return Meets::Locks(locks);
        }
        // An access holds nothing, so it overtakes nobody and queues for nobody.
        if let Some(bound) = self.bound().filter(|_| !want.is_access) {
            let mut ahead = Vec::new();
            let mut must = false;
            for (index, waiter) in self.waiters.iter().enumerate() {
                if waiter.want.conflicts(want)
                    && !self.is_exempt(want, waiter)
                    && waiter.overtaken_at_head_at_most >= bound
                {
                    ahead.push(index);
                    must |= waiter.newcomers_at_head >= bound;
                }
            }
            if !ahead.is_empty() {
                return Meets::Queue { ahead, must };
            }
        }
        self.grant_newcomer(want, now)
    }

    /// Lets a newcomer past those that it need not queue behind.
    pub fn pass(&mut self, meets: Meets, want: &Want, now: Time) -> Meets {
        match meets {
            Meets::Queue { must: false, .. } => self.grant_newcomer(want, now),
            _ => meets,
        }
    }

    /// Grants a newcomer what nothing is in the way of.
    fn grant_newcomer(&mut self, want: &Want, now: Time) -> Meets {
        if let Some(kind) = self.hold(want, now) {
            return Meets::Limit(kind);
        }
        if !want.is_access {
            for waiter in &mut self.waiters {
                let conflicts = u64::from(waiter.want.conflicts(want));
                let clashes = u64::from(waiter.want.clashes(want));
                waiter.newcomers += conflicts;
                waiter.newcomers_at_head += conflicts;
                waiter.overtaken_at_most += clashes;
                waiter.overtaken_at_head_at_most += clashes;
            }
        }
        Meets::Free
    }

    /// The limit that one more waiter of the owner passes.
    pub fn waiter_limit(&self, owner: &Owner) -> Option<LimitKind> {
        let count = self.waiters.len() as u32;
        if self
            .setup
            .waiters_per_file
            .is_some_and(|limit| count >= limit)
        {
            return Some(LimitKind::WaitersPerFile);
        }
        let owned = self.waits_of(owner) as u32;
        if self
            .setup
            .per_owner
            .is_some_and(|(_, limit)| owned >= limit)
        {
            return Some(LimitKind::WaitersPerOwner);
        }
        None
    }

    pub fn enlist(
        &mut self,
        id: WaiterId,
        ticket: u64,
        want: &Want,
        now: Time,
        may_be_offered: bool,
    ) {
        self.arrivals += 1;
        self.counters.contended += 1;
        self.waiters.push(Waiter {
            id,
            ticket,
            want: want.clone(),
            since: now,
            arrival: self.arrivals,
            may_be_offered,
            is_offered: false,
            is_told: false,
            is_closed: false,
            passes_queue: false,
            newcomers: 0,
            newcomers_at_head: 0,
            overtaken_at_head_at_most: 0,
            overtaken_at_most: 0,
            overtaken_by_juniors_at_most: 0,
        });
    }

    // ---- Waiters -----------------------------------------------------------

    pub fn position(&self, id: WaiterId) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.id == id)
    }

    /// Takes a waiter away. Overtakings count from when one comes to the head of
    /// the queue of its like, so those behind an oldest one begin anew.
    pub fn remove(&mut self, index: usize) -> Waiter {
        let waiter = self.waiters.remove(index);
        let is_like = |other: &Waiter| {
            other.want.space == waiter.want.space
                && other.want.range == waiter.want.range
                && other.want.lock_type == waiter.want.lock_type
        };
        let was_oldest = !self.waiters[..index].iter().any(is_like);
        for other in self
            .waiters
            .iter_mut()
            .filter(|other| was_oldest && is_like(other))
        {
            other.newcomers_at_head = 0;
            other.overtaken_at_head_at_most = other.overtaken_by_juniors_at_most;
        }
        waiter
    }

    /// Takes a waiter away that was granted what it asked for; the limit that
    /// forbade it after all.
    pub fn grant_waiter(&mut self, index: usize, now: Time) -> Option<LimitKind> {
        let waiter = self.remove(index);
        if waiter.want.space == Space::Openers {
            assert!(self.is_free(&waiter), "an opener went past a lease");
        }
        let limit = self.hold(&waiter.want, now);
        if limit.is_none() && !waiter.want.is_access {
            for older in &mut self.waiters {
                if older.arrival < waiter.arrival && older.want.clashes(&waiter.want) {
                    older.overtaken_at_most += 1;
                    older.overtaken_at_head_at_most += 1;
                    older.overtaken_by_juniors_at_most += 1;
                }
            }
        }
        limit
    }

    /// Whether an older waiter held this one back, now or when it was looked at.
    pub fn is_held_back(&self, waiter: &Waiter) -> bool {
        let Some(bound) = self.bound() else {
            return false;
        };
        !waiter.passes_queue
            && !waiter.want.is_access
            && self.waiters.iter().any(|other| {
                other.arrival < waiter.arrival
                    && other.want.conflicts(&waiter.want)
                    && other.overtaken_at_most >= bound
                    && !self.is_exempt(&waiter.want, other)
            })
    }

    /// Whether there is a reason for this waiter to sleep.
    pub fn may_sleep(&self, waiter: &Waiter) -> bool {
        let is_behind = |other: &&Waiter| other.want.conflicts(&waiter.want) && other.is_offered;
        self.is_stopped_by_a_lock(&waiter.want)
            || self.waiters.iter().any(|other| is_behind(&other))
            || self.queues(waiter)
    }

    /// Whether it queues behind an older one. It keeps its place when that one's
    /// overtakings count anew from the head of its queue. It may do so although it holds by
    /// now what that one waits for: that closed a cycle, which is not the
    /// table's to see.
    fn queues(&self, waiter: &Waiter) -> bool {
        let Some(bound) = self.bound() else {
            return false;
        };
        !waiter.passes_queue
            && !waiter.want.is_access
            && self.waiters.iter().any(|other| {
                other.arrival < waiter.arrival
                    && other.want.conflicts(&waiter.want)
                    && other.overtaken_at_most >= bound
            })
    }

    // ---- Leases ------------------------------------------------------------

    /// What a call on leases at `now` must answer to the time: `Some(true)` must
    /// take it, `Some(false)` must refuse it, `None` may do either (a table
    /// without leases need not remember).
    pub fn is_time_good(&self, now: Time) -> Option<bool> {
        if now >= self.latest {
            Some(true)
        } else if !self.leases.is_empty() && now < self.latest_for_sure {
            Some(false)
        } else {
            None
        }
    }

    /// The time passes on a call on leases; returns how many leases were overdue.
    pub fn expire(&mut self, now: Time) -> u32 {
        self.latest = self.latest.max(now);
        if !self.leases.is_empty() {
            self.latest_for_sure = self.latest_for_sure.max(now);
        }
        let is_due = |by: Option<Option<Time>>| matches!(by, Some(Some(by)) if by <= now);
        let mut expired = 0;
        self.leases.retain_mut(|lease| {
            if is_due(lease.remove_by) {
                expired += 1;
                return false;
            }
            if is_due(lease.weaken_by) {
                expired += 1;
                lease.weaken_by = None;
                lease.lock_type = LockType::Read;
            }
            true
        });
        expired
    }

    /// Whether the lease can be had; `Err(None)` for "not available".
    #[allow(clippy::too_many_arguments)]
    pub fn set_lease(
        &mut self,
        owner: &Owner,
        taken_by: ProcessId,
        lock_type: LockType,
        is_delegation: bool,
        openers: Openers,
        now: Time,
    ) -> Result<(), Option<LimitKind>> {
        self.expire(now);
        let openers_waiting = self
            .waiters
            .iter()
            .filter(|waiter| waiter.want.space == Space::Openers);
        self.let_go = openers_waiting
            .filter(|opener| !self.is_stopped_by_a_lock(&opener.want))
            .map(|opener| opener.arrival)
            .collect();
        let forbidding = match lock_type {
            LockType::Read => openers.writers,
            LockType::Write => openers.others,
        };
        if forbidding > 0 && !is_delegation {
            return Err(None);
        }
        let is_own = |lease: &Lease| lease.owner == *owner && lease.is_delegation == is_delegation;
        let forbids = |lease: &Lease| lock_type == LockType::Write || lease.remove_by.is_some();
        if self
            .leases
            .iter()
            .any(|lease| !is_own(lease) && forbids(lease))
        {
            return Err(None);
        }
        if let Some(own) = self.leases.iter_mut().find(|lease| is_own(lease)) {
            own.lock_type = lock_type;
            if lock_type == LockType::Read {
                own.weaken_by = None;
            }
            return Ok(());
        }
        if let Some(kind) = self.limit_of_more_locks(owner, 1) {
            return Err(Some(kind));
        }
        if self.leases.is_empty() {
            self.latest_for_sure = now;
        }
        self.leases.push(Lease {
            owner: owner.clone(),
            taken_by,
            lock_type,
            is_delegation,
            since: now,
            weaken_by: None,
            remove_by: None,
            is_to_tell: false,
        });
        self.counters.acquisitions += 1;
        Ok(())
    }

    pub fn remove_lease(&mut self, owner: &Owner, is_delegation: bool, now: Time) -> bool {
        self.expire(now);
        let before = self.leases.len();
        self.leases
            .retain(|lease| lease.owner != *owner || lease.is_delegation != is_delegation);
        self.leases.len() < before
    }

    pub fn lease(&mut self, owner: &Owner, is_delegation: bool, now: Time) -> LeaseState {
        self.expire(now);
        let own = self
            .leases
            .iter()
            .find(|lease| lease.owner == *owner && lease.is_delegation == is_delegation);
        match own.map(|lease| (lease.breaking(), lease.lock_type)) {
            Some((None, lock_type) | (Some(Some(lock_type)), _)) => LeaseState::Held(lock_type),
            Some((Some(None), _)) | None => LeaseState::Unlocked,
        }
    }

    /// Starts the breaks that such an open needs; whether it must wait.
    pub fn break_leases(&mut self, want: &Want, now: Time) -> bool {
        self.expire(now);
        let by = Some(now.after(std::time::Duration::from_secs(BREAK_SECONDS)));
        let mut must_wait = false;
        for lease in self.leases.iter_mut().filter(|lease| lease.stops(want)) {
            must_wait = true;
            // The holder is told once for each strength.
            match want.lock_type {
                LockType::Write if lease.remove_by.is_none() => {
                    lease.remove_by = Some(by);
                    lease.is_to_tell = true;
                }
                LockType::Read if lease.breaking().is_none() => {
                    lease.weaken_by = Some(by);
                    lease.is_to_tell = true;
                }
                _ => {}
            }
        }
        must_wait
    }

    pub fn next_deadline(&self) -> Option<Time> {
        let all = self
            .leases
            .iter()
            .flat_map(|lease| [lease.weaken_by, lease.remove_by]);
        all.flatten().flatten().min()
    }

    /// Panics unless what is granted is legal of itself.
    pub fn check(&self) {
        for (index, a) in self.granted.iter().enumerate() {
            for b in &self.granted[..index] {
                let is_own = a.owner == b.owner;
                let can_meet = a.space == b.space && a.range.overlaps(b.range);
                assert!(
                    !can_meet || !is_own && !a.lock_type.excludes(b.lock_type),
                    "{a:?} {b:?}"
                );
            }
        }
        let ids: HashSet<u64> = self.waiters.iter().map(|waiter| waiter.arrival).collect();
        assert_eq!(ids.len(), self.waiters.len());
    }
}
