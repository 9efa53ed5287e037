//! A table and the model, side by side.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use lockkeeper::error::LimitKind;
use lockkeeper::table::{
    BlockedBy, BreakScope, Context, Edge, Ended, Ledger, Lock, Request, Settings, Snapshot, Survey,
    Table, WaiterView, Waits,
};
use lockkeeper::{
    LockError, LockInfo, LockKind, LockType, Owner, ProcessId, Range, Time, WaiterId,
};

use super::ops::{Ask, Op, Pick, Setup, Step, file_owner, owner};
use super::state::{BREAK_SECONDS, Meets, Model, Space, Waiter, Want, seconds};

/// A ledger of one file.
#[derive(Debug)]
struct Book {
    limits: Option<(u32, u32)>,
    locks: RefCell<HashMap<Owner, i64>>,
    waiters: RefCell<HashMap<Owner, i64>>,
}

impl Ledger for Book {
    fn book_locks(&self, owner: &Owner, delta: i64) -> Result<(), LimitKind> {
        let mut locks = self.locks.borrow_mut();
        let count = locks.entry(owner.clone()).or_default();
        match self.limits {
            Some((limit, _)) if delta > 0 && *count + delta > i64::from(limit) => {
                return Err(LimitKind::LocksPerOwner);
            }
            _ => *count += delta,
        }
        Ok(())
    }

    fn book_waiters(&self, owner: &Owner, delta: i64) -> Result<(), LimitKind> {
        let mut waiters = self.waiters.borrow_mut();
        let count = waiters.entry(owner.clone()).or_default();
        match self.limits {
            Some((_, limit)) if delta > 0 && *count + delta > i64::from(limit) => {
                return Err(LimitKind::WaitersPerOwner);
            }
            _ => *count += delta,
        }
        Ok(())
    }
}

/// How a wait is known to have ended.
#[derive(Clone, Debug, PartialEq)]
struct Ending {
    id: WaiterId,
    ticket: u64,
    result: Result<(), LockError>,
    since: Time,
}

impl Ending {
    fn of(ended: &Ended<u64>) -> Ending {
        Ending {
            id: ended.id,
            ticket: ended.ticket,
            result: ended.result.clone(),
            since: ended.since,
        }
    }
}

/// Waits that an operation ends in another way than by granting them.
#[derive(Default)]
struct Forced {
    results: HashMap<u64, LockError>,
}

pub struct Run {
    table: Table<u64>,
    model: Model,
    settings: Settings,
    ledger: Book,
    now: Time,
    /// Every id there ever was.
    ids: Vec<WaiterId>,
    tickets: u64,
    before: Snapshot,
    /// Ended, and not fetched yet.
    lying: Vec<Ending>,
    requeues: u64,
    /// Pairs of waiters of which the first, when it was granted, held what the
    /// second waits for, in this step.
    exempt: HashSet<(u64, u64)>,
    /// What is being done.
    current: Option<Step>,
}

impl Drop for Run {
    /// Tells where a run went wrong.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("wrong after {:?} on this file:", self.current);
            for view in &self.before.granted {
                eprintln!("  {} breaking {:?}", view.lock, view.breaking);
            }
            for view in &self.before.waiting {
                let indent = "  ".repeat(view.depth as usize + 1);
                eprintln!(
                    "{indent}-> {} {} {:?} overtaken {}",
                    view.arrival, view.lock, view.blocked_by, view.overtaken
                );
            }
        }
    }
}

impl Run {
    pub fn new(setup: Setup) -> Run {
        let settings = Settings::new(setup.fairness)
            .with_limits(
                setup.locks_per_file,
                setup.waiters_per_file,
                setup.per_owner.is_some(),
            )
            .with_break_time(Some(Duration::from_secs(BREAK_SECONDS)));
        Run {
            table: Table::new(),
            model: Model::new(setup),
            settings,
            ledger: Book {
                limits: setup.per_owner,
                locks: RefCell::default(),
                waiters: RefCell::default(),
            },
            now: seconds(1000),
            ids: Vec::new(),
            tickets: 0,
            before: Snapshot::default(),
            lying: Vec::new(),
            requeues: 0,
            exempt: HashSet::new(),
            current: None,
        }
    }

    /// Does one thing, compares everything.
    pub fn step(&mut self, step: &Step) {
        self.current = Some(step.clone());
        self.model.let_go.clear();
        self.exempt.clear();
        let Run {
            table,
            model,
            settings,
            ledger,
            now,
            ..
        } = self;
        let now = *now;
        let cx = Context::new(now, settings).with_ledger(ledger);
        let granted_before = model.granted.clone();
        let mut forced = Forced::default();
        let mut claimed = None;
        match &step.op {
            Op::Try(ask) => {
                let (request, want) = ask.both();
                let result = table.try_lock(&request, cx);
                let mut meets = model.newcomer(&want, now);
                if !matches!(result, Err(LockError::Queued(_))) {
                    meets = model.pass(meets, &want, now);
                }
                match (meets, &result) {
                    (Meets::Free, Ok(())) => {}
                    (Meets::Locks(locks), Err(LockError::Conflict(info))) => {
                        check_conflict(&locks, info);
                    }
                    (Meets::Queue { ahead, .. }, Err(LockError::Queued(info))) => {
                        assert!(
                            ahead
                                .iter()
                                .any(|&i| is_info_of(&model.waiters[i].want, info)),
                            "queued behind one that is not ahead: {info}"
                        );
                    }
                    (Meets::Limit(kind), Err(LockError::Limit(told))) => assert_eq!(kind, *told),
                    (meets, result) => panic!("{result:?}, but the model says {meets:?}"),
                }
            }
            Op::Wait(ask) | Op::WaitForOffer(ask) => {
                let (request, want) = ask.both();
                let may_be_offered = matches!(step.op, Op::WaitForOffer(_));
                self.tickets += 1;
                let ticket = self.tickets;
                let result = if may_be_offered {
                    table.lock_by_offer(request, ticket, cx)
                } else {
                    table.lock(request, ticket, cx)
                };
                let mut meets = model.newcomer(&want, now);
                let has_queued = match &result {
                    Ok(result) => matches!(result, Lock::Waiting(_)),
                    Err((error, _)) => is_of_waiters(error),
                };
                if !has_queued {
                    meets = model.pass(meets, &want, now);
                }
                match (meets, result) {
                    (Meets::Free, Ok(Lock::Granted(back))) => assert_eq!(back, ticket),
                    (Meets::Locks(_) | Meets::Queue { .. }, Ok(Lock::Waiting(id))) => {
                        // A conversion may have let others go before it waits.
                        let is_conversion = want.space == Space::Flocks;
                        assert!(is_conversion || model.waiter_limit(&want.owner).is_none());
                        assert!(!self.ids.contains(&id), "an id given out again");
                        self.ids.push(id);
                        model.enlist(id, ticket, &want, now, may_be_offered);
                    }
                    (
                        Meets::Locks(_) | Meets::Queue { .. },
                        Err((LockError::Limit(kind), back)),
                    ) => {
                        let limit = model.waiter_limit(&want.owner);
                        let limit = limit.expect("there is room");
                        assert!(limit == kind || want.space == Space::Flocks);
                        assert_eq!(back, ticket);
                    }
                    (Meets::Limit(kind), Err((LockError::Limit(told), back))) => {
                        assert_eq!((kind, ticket), (told, back));
                    }
                    (meets, result) => panic!("{result:?}, but the model says {meets:?}"),
                }
            }
            Op::Unlock(n, range) => {
                let result = table.unlock(&owner(*n), *range, cx);
                let limit = model.unlock(Space::Records, &owner(*n), *range);
                match (limit, result) {
                    (None, Ok(())) => {}
                    (Some(kind), Err(LockError::Limit(told))) => {
                        assert_eq!(kind, told);
                        assert_ne!(*range, Range::WHOLE);
                    }
                    (limit, result) => panic!("{result:?}, but the model says {limit:?}"),
                }
            }
            Op::UnlockFlock(n) => {
                table.unlock_flock(&file_owner(*n), cx);
                model.unlock(Space::Flocks, &file_owner(*n).into(), Range::WHOLE);
            }
            Op::Look(ask) => check_queries(table, model, ask),
            Op::Claim(pick) => {
                if let Some(id) = pick.choose(model, &self.ids) {
                    let result = table.claim(id, cx);
                    let lying = self.lying.iter().position(|ending| ending.id == id);
                    match (model.position(id), lying, result) {
                        (Some(index), _, Ok(ended)) => {
                            let waiter = &mut model.waiters[index];
                            waiter.is_told = false;
                            let was_offered = waiter.is_offered;
                            assert!(was_offered || ended.is_none(), "claimed without an offer");
                            waiter.is_offered = false;
                            claimed = ended.as_ref().map(Ending::of);
                        }
                        (None, Some(at), Ok(Some(ended))) => {
                            assert_eq!(self.lying.remove(at), Ending::of(&ended));
                        }
                        (None, None, Err(error)) => {
                            assert_eq!(error.errno().name(), "ENOENT");
                        }
                        (_, _, result) => panic!("claim gives {result:?}"),
                    }
                }
            }
            Op::Cancel(pick) | Op::RefuseDeadlock(pick) => {
                if let Some(id) = pick.choose(model, &self.ids) {
                    let is_refusal = matches!(step.op, Op::RefuseDeadlock(_));
                    let result = if is_refusal {
                        table.refuse_deadlock(id, cx)
                    } else {
                        table.cancel(id, cx)
                    };
                    match (model.position(id), result) {
                        (Some(index), Ok(ticket)) => {
                            let waiter = model.remove(index);
                            assert_eq!(waiter.ticket, ticket);
                            model.counters.deadlocks += u64::from(is_refusal);
                            model.counters.cancels += u64::from(!is_refusal);
                        }
                        (None, Err(error)) => assert_eq!(error.errno().name(), "ENOENT"),
                        (at, result) => panic!("{result:?} for the waiter at {at:?}"),
                    }
                }
            }
            Op::LetPass(pick) => {
                if let Some(id) = pick.choose(model, &self.ids) {
                    let result = table.let_pass(id, cx);
                    let at = model.position(id);
                    assert_eq!(result.is_ok(), at.is_some());
                    if let Some(index) = at {
                        model.waiters[index].passes_queue = true;
                    }
                }
            }
            Op::Release(n, waits) => {
                let owner = owner(*n);
                table.release_owner(&owner, *waits, cx);
                for waiter in &mut model.waiters {
                    if waiter.want.owner == owner {
                        match waits {
                            Waits::Keep => {}
                            Waits::Close => waiter.is_closed = true,
                            Waits::Interrupt => {
                                forced
                                    .results
                                    .insert(waiter.arrival, LockError::Interrupted);
                            }
                        }
                    }
                }
                model.unlock(Space::Records, &owner, Range::WHOLE);
                model.unlock(Space::Flocks, &owner, Range::WHOLE);
                model.leases.retain(|lease| lease.owner != owner);
            }
            Op::TearDown => {
                table.tear_down(cx);
                for waiter in &model.waiters {
                    forced.results.insert(waiter.arrival, LockError::TornDown);
                }
                model.granted.clear();
                model.leases.clear();
            }
            Op::SetFairness(fairness) => {
                table.set_fairness(*fairness, cx).expect("there is memory");
                model.own_fairness = *fairness;
            }
            Op::SetLease(n, lock_type, is_delegation, openers) => {
                let owner = file_owner(*n);
                let result = table.set_lease(
                    owner.clone(),
                    ProcessId(9),
                    *lock_type,
                    *is_delegation,
                    *openers,
                    cx,
                );
                if is_refused_for_time(model, now, result.as_ref().err()) {
                    // Nothing has changed.
                } else {
                    let expected = model.set_lease(
                        &owner.into(),
                        ProcessId(9),
                        *lock_type,
                        *is_delegation,
                        *openers,
                        now,
                    );
                    match (expected, result) {
                        (Ok(()), Ok(())) | (Err(None), Err(LockError::LeaseUnavailable)) => {}
                        (Err(Some(kind)), Err(LockError::Limit(told))) => assert_eq!(kind, told),
                        (expected, result) => panic!("{result:?} instead of {expected:?}"),
                    }
                }
            }
            Op::RemoveLease(n, is_delegation) => {
                let owner = file_owner(*n);
                let result = table.remove_lease(&owner, *is_delegation, cx);
                if !is_refused_for_time(model, now, result.as_ref().err()) {
                    match (
                        model.remove_lease(&owner.into(), *is_delegation, now),
                        result,
                    ) {
                        (true, Ok(())) | (false, Err(LockError::NoLease)) => {}
                        (had, result) => panic!("{result:?}, lease: {had}"),
                    }
                }
            }
            Op::GetLease(n, is_delegation) => {
                let owner = file_owner(*n);
                let result = table.lease(&owner, *is_delegation, cx);
                if !is_refused_for_time(model, now, result.as_ref().err()) {
                    assert_eq!(result, Ok(model.lease(&owner.into(), *is_delegation, now)));
                }
            }
            Op::TryBreak(n, access, scope) => {
                let want = opener(*n, *access, *scope);
                let result = table.try_break_leases(&want.owner, *access, *scope, cx);
                if !is_refused_for_time(model, now, result.as_ref().err()) {
                    match (model.break_leases(&want, now), result) {
                        (false, Ok(())) => {}
                        (true, Err(LockError::LeaseInTheWay(info))) => {
                            assert!(model.leases.iter().any(|lease| lease.stops(&want)
                                && lease.owner == info.owner
                                && lease.lock_type == info.lock_type));
                        }
                        (stops, result) => panic!("{result:?}, stopped: {stops}"),
                    }
                }
            }
            Op::Break(n, access, scope) => {
                let want = opener(*n, *access, *scope);
                self.tickets += 1;
                let ticket = self.tickets;
                let result = table.break_leases(&want.owner, *access, *scope, ticket, cx);
                if !is_refused_for_time(model, now, result.as_ref().err().map(|error| &error.0)) {
                    // What is overdue may let others go before this one waits.
                    let has_expired = model.expire(now) > 0;
                    match (model.break_leases(&want, now), result) {
                        (false, Ok(Lock::Granted(back))) => assert_eq!(back, ticket),
                        (true, Ok(Lock::Waiting(id))) => {
                            assert!(has_expired || model.waiter_limit(&want.owner).is_none());
                            assert!(!self.ids.contains(&id), "an id given out again");
                            self.ids.push(id);
                            model.enlist(id, ticket, &want, now, false);
                        }
                        (true, Err((LockError::Limit(kind), back))) => {
                            let limit = model.waiter_limit(&want.owner);
                            let limit = limit.expect("there is room");
                            assert!(limit == kind || has_expired);
                            assert_eq!(back, ticket);
                        }
                        (stops, result) => panic!("{result:?}, stopped: {stops}"),
                    }
                }
            }
            Op::Expire => {
                let result = table.expire(cx);
                if !is_refused_for_time(model, now, result.as_ref().err()) {
                    assert_eq!(result, Ok(model.expire(now)));
                }
            }
            Op::Pass(passed) => {
                self.now = match u64::try_from(*passed) {
                    Ok(later) => now.after(Duration::from_secs(later)),
                    Err(_) => Time(now.0 - u64::from(passed.unsigned_abs()) * seconds(1).0),
                };
            }
        }
        self.follow(step, claimed, &forced, &granted_before);
    }

    /// Finds out what has become of the waiters, and whether it may.
    fn follow(
        &mut self,
        step: &Step,
        claimed: Option<Ending>,
        forced: &Forced,
        granted_before: &[super::state::Granted],
    ) {
        self.table.check_invariants();
        let snapshot = self.table.snapshot();
        let gone: Vec<Waiter> = self
            .model
            .waiters
            .iter()
            .filter(|waiter| snapshot.waiting.iter().all(|view| view.id != waiter.id))
            .cloned()
            .collect();

        // The order in which they ended has to be asked for where it matters: one
        // owner's locks replace each other, and a check of access holds nothing,
        // so what stands in its way now may have come later.
        let has_access = gone.len() > 1 && gone.iter().any(|waiter| waiter.want.is_access);
        let has_twice = gone.iter().enumerate().any(|(index, waiter)| {
            gone[..index]
                .iter()
                .any(|other| other.want.owner == waiter.want.owner)
        });
        let fetches_ended =
            step.fetch.ended || self.model.setup.limits_locks() || has_twice || has_access;
        let mut endings: Vec<Ending> = Vec::new();
        if fetches_ended {
            while let Some(ended) = self.table.next_ended() {
                endings.push(Ending::of(&ended));
            }
            for lain in self.lying.drain(..) {
                let at = endings.iter().position(|ending| ending.id == lain.id);
                let at = at.unwrap_or_else(|| panic!("a result was lost: {lain:?}"));
                assert_eq!(endings.remove(at), lain, "another result than was seen");
            }
        }
        let mut newly: Vec<Waiter> = Vec::new();
        if let Some(claimed) = &claimed {
            let index = self.model.position(claimed.id).expect("it waited");
            let waiter = self.model.waiters[index].clone();
            self.end(&waiter, Some(claimed), forced);
            newly.push(waiter);
        }
        if fetches_ended {
            for ending in endings {
                let waiter = gone.iter().find(|waiter| waiter.id == ending.id);
                let waiter = waiter.unwrap_or_else(|| panic!("{ending:?} ended unasked or twice"));
                self.end(waiter, Some(&ending), forced);
                self.model.counters.wake_ups += 1;
                newly.push(waiter.clone());
            }
        } else {
            // In some order in which each was free when its turn came.
            let claimed = claimed.as_ref().map(|claimed| claimed.id);
            let mut rest: Vec<Waiter> = gone
                .iter()
                .filter(|waiter| Some(waiter.id) != claimed)
                .cloned()
                .collect();
            while !rest.is_empty() {
                let is_free = |waiter: &Waiter| {
                    waiter.is_closed
                        || forced.results.contains_key(&waiter.arrival)
                        || self.model.is_free(waiter)
                };
                let next = rest
                    .iter()
                    .position(is_free)
                    .unwrap_or_else(|| panic!("granted in spite of a lock: {rest:?}"));
                let waiter = rest.remove(next);
                let ending = self.end(&waiter, None, forced);
                self.lying.push(ending);
                self.model.counters.wake_ups += 1;
                newly.push(waiter);
            }
        }
        self.model.counters.cancels += newly
            .iter()
            .filter(|waiter| forced.results.get(&waiter.arrival) == Some(&LockError::Interrupted))
            .count() as u64;
        assert_eq!(
            gone.len(),
            newly.len(),
            "a waiter vanished without a result"
        );

        let claimed = claimed.as_ref().map(|claimed| claimed.id);
        self.compare_waiters(step, &snapshot, claimed, &newly);
        newly.retain(|waiter| !waiter.is_closed && !forced.results.contains_key(&waiter.arrival));
        self.check_order(&newly, granted_before);
        self.compare_granted(&snapshot);
        self.compare_survey(&snapshot);
        self.fetch_offers(step);
        self.fetch_breaks(step);
        self.compare_sums();
        self.model.check();
        self.before = snapshot;
    }

    /// Ends a wait in the model as the table says that it did.
    fn end(&mut self, waiter: &Waiter, told: Option<&Ending>, forced: &Forced) -> Ending {
        let index = self.model.position(waiter.id).expect("it ends once");
        let result = if let Some(error) = forced.results.get(&waiter.arrival) {
            self.model.remove(index);
            Err(error.clone())
        } else if waiter.is_closed {
            self.model.remove(index);
            Err(LockError::Closed)
        } else {
            for older in &self.model.waiters[..index] {
                if self.model.is_exempt(&waiter.want, older) {
                    self.exempt.insert((waiter.arrival, older.arrival));
                }
            }
            match self.model.grant_waiter(index, self.now) {
                None => Ok(()),
                Some(kind) => Err(LockError::Limit(kind)),
            }
        };
        let ending = Ending {
            id: waiter.id,
            ticket: waiter.ticket,
            result,
            since: waiter.since,
        };
        if let Some(told) = told {
            assert_eq!(*told, ending, "another end than it should have");
        }
        ending
    }

    fn compare_waiters(
        &mut self,
        step: &Step,
        snapshot: &Snapshot,
        claimed: Option<WaiterId>,
        newly: &[Waiter],
    ) {
        assert_eq!(snapshot.waiting.len(), self.model.waiters.len());
        let comes = matches!(step.op, Op::Claim(_)) && claimed.is_none();
        for view in &snapshot.waiting {
            let index = self.model.position(view.id).expect("it waits");
            let waiter = &self.model.waiters[index];
            let want = &waiter.want;
            assert!(
                is_info_of(want, &view.lock),
                "{:?} is not {want:?}",
                view.lock
            );
            assert_eq!((view.since, view.arrival), (waiter.since, waiter.arrival));
            assert!(view.overtaken >= waiter.newcomers, "overtakings forgotten");
            assert!(
                view.overtaken <= waiter.overtaken_at_most,
                "overtakings invented"
            );
            let is_offered = view.blocked_by == BlockedBy::Nothing;
            if is_offered && !waiter.is_offered {
                assert!(waiter.may_be_offered && want.space != Space::Openers);
                if let Some(bound) = self.model.bound() {
                    assert!(
                        waiter.newcomers_at_head < bound,
                        "offered although overtaken often enough"
                    );
                }
                let want = self.model.waiters[index].want.clone();
                // In Linux's order an older one may come to be looked at after it.
                let is_overtaken = newly
                    .iter()
                    .any(|other| other.arrival < view.arrival && other.want.conflicts(&want));
                assert!(
                    is_overtaken || !self.model.is_stopped_by_a_lock(&want),
                    "offered what is taken"
                );
            } else if !is_offered && self.model.waiters[index].is_offered {
                assert!(comes, "an offer was taken back");
            }
            self.model.waiters[index].is_offered = is_offered;
            match view.blocked_by {
                BlockedBy::Nothing => assert_eq!(view.depth, 0),
                BlockedBy::Lock(at) => {
                    assert_eq!(view.depth, 0);
                    assert!(at < snapshot.granted.len());
                }
                BlockedBy::Waiter(at) => {
                    let above = &snapshot.waiting[at];
                    assert_eq!(view.depth, above.depth + 1);
                    let above = self.model.position(above.id).expect("it waits");
                    let want = &self.model.waiters[index].want;
                    assert!(want.conflicts(&self.model.waiters[above].want));
                }
            }
        }
        for waiter in &self.model.waiters {
            assert!(
                waiter.is_offered || self.model.may_sleep(waiter),
                "sleeps although free: {waiter:?}"
            );
        }
    }

    /// That nobody was granted what an older waiter could have had instead.
    fn check_order(&self, newly: &[Waiter], granted_before: &[super::state::Granted]) {
        let Some(bound) = self.model.bound() else {
            return;
        };
        for older in &self.model.waiters {
            let passed: Vec<&Waiter> = newly
                .iter()
                .filter(|newer| {
                    newer.arrival > older.arrival
                        && newer.want.conflicts(&older.want)
                        && !newer.passes_queue
                        && !newer.want.is_access
                        && !self.exempt.contains(&(newer.arrival, older.arrival))
                        && !self.model.is_exempt(&newer.want, older)
                })
                .collect();
            // What the grants of these made of their owners' locks does not count.
            let is_of_passed =
                |owner: &Owner| passed.iter().any(|newer| newer.want.owner == *owner);
            if passed.is_empty()
                || passed.iter().any(|newer| {
                    granted_before
                        .iter()
                        .any(|lock| lock.owner == newer.want.owner && lock.stops(&older.want))
                })
            {
                continue;
            }
            assert!(
                older.newcomers_at_head < bound || older.is_offered,
                "one overtaken often enough was overtaken again: {older:?} by {passed:?}"
            );
            let has_reason = older.is_offered
                || self
                    .model
                    .granted
                    .iter()
                    .any(|lock| lock.stops(&older.want) && !is_of_passed(&lock.owner))
                || self
                    .model
                    .waiters
                    .iter()
                    .any(|other| other.is_offered && other.want.conflicts(&older.want))
                || self.model.is_held_back(older);
            assert!(has_reason, "passed over: {older:?} by {passed:?}");
        }
    }

    /// A snapshot in pieces is the same, but for the order of siblings.
    fn compare_survey(&self, snapshot: &Snapshot) {
        let mut survey = Survey::new();
        while self.table.survey(&mut survey, 3) {}
        let surveyed = survey.take_snapshot();
        // And once more in the same room.
        while self.table.survey(&mut survey, 3) {}
        assert_eq!(survey.into_snapshot(), surveyed);
        assert_eq!(surveyed.granted.len(), snapshot.granted.len());
        for view in &snapshot.granted {
            assert!(surveyed.granted.contains(view), "{view:?} was not surveyed");
        }
        assert_eq!(surveyed.waiting.len(), snapshot.waiting.len());
        for view in &snapshot.waiting {
            let found = surveyed.waiting.iter().find(|found| found.id == view.id);
            let found = found.expect("every waiter is surveyed");
            let alike = WaiterView {
                blocked_by: view.blocked_by,
                ..found.clone()
            };
            assert_eq!(alike, *view);
            let same = match (view.blocked_by, found.blocked_by) {
                (BlockedBy::Lock(a), BlockedBy::Lock(b)) => {
                    snapshot.granted[a] == surveyed.granted[b]
                }
                (BlockedBy::Waiter(a), BlockedBy::Waiter(b)) => {
                    snapshot.waiting[a].id == surveyed.waiting[b].id
                }
                (a, b) => a == b,
            };
            assert!(same, "{view:?} was surveyed as {found:?}");
        }
    }

    fn compare_granted(&self, snapshot: &Snapshot) {
        let mut shown: Vec<String> = Vec::new();
        let mut kinds = Vec::new();
        for view in &snapshot.granted {
            kinds.push(match view.lock.kind {
                LockKind::Posix | LockKind::Ofd => (0, view.lock.range.start()),
                LockKind::Flock => (1, 0),
                _ => (2, 0),
            });
        }
        assert!(kinds.is_sorted(), "listed out of order: {snapshot:?}");
        let mut left = snapshot.granted.clone();
        for lock in &self.model.granted {
            let at = left.iter().position(|view| {
                view.lock.kind == kind_of(lock.space, &lock.owner)
                    && view.lock.owner == lock.owner
                    && view.lock.range == lock.range
                    && view.lock.lock_type == lock.lock_type
            });
            match at {
                Some(at) => {
                    let view = left.swap_remove(at);
                    assert_eq!(view.since, lock.since, "wrong age of {lock:?}");
                    assert_eq!(view.lock.taken_by, lock.taken_by, "wrong taker of {lock:?}");
                    assert_eq!(view.breaking, None);
                }
                None => shown.push(format!("missing: {lock:?}")),
            }
        }
        for lease in &self.model.leases {
            let kind = if lease.is_delegation {
                LockKind::Delegation
            } else {
                LockKind::Lease
            };
            let at = left.iter().position(|view| {
                view.lock.kind == kind
                    && view.lock.owner == lease.owner
                    && view.lock.lock_type == lease.lock_type
                    && view.breaking == lease.breaking()
                    && view.since == lease.since
                    && view.lock.taken_by == lease.taken_by
            });
            match at {
                Some(at) => drop(left.swap_remove(at)),
                None => shown.push(format!("missing: {lease:?}")),
            }
        }
        shown.extend(left.iter().map(|view| format!("surplus: {view:?}")));
        assert!(shown.is_empty(), "other locks than the model's: {shown:#?}");
    }

    fn fetch_offers(&mut self, step: &Step) {
        if !step.fetch.offers {
            return;
        }
        loop {
            let Some((id, &ticket)) = self.table.next_offer() else {
                let untold = self
                    .model
                    .waiters
                    .iter()
                    .find(|waiter| waiter.is_offered && !waiter.is_told);
                assert!(untold.is_none(), "an offer is not told: {untold:?}");
                break;
            };
            let index = self.model.position(id).expect("it waits");
            let waiter = &mut self.model.waiters[index];
            assert!(
                waiter.is_offered && !waiter.is_told,
                "woken without need: {waiter:?}"
            );
            assert_eq!(waiter.ticket, ticket);
            waiter.is_told = true;
            self.model.counters.wake_ups += 1;
        }
    }

    fn fetch_breaks(&mut self, step: &Step) {
        if !step.fetch.breaks {
            return;
        }
        loop {
            let Some(told) = self.table.next_break() else {
                assert!(
                    self.model.leases.iter().all(|lease| !lease.is_to_tell),
                    "a break is not told"
                );
                break;
            };
            let lease = self.model.leases.iter_mut().find(|lease| {
                let target = lease.breaking().unwrap_or(Some(lease.lock_type));
                lease.is_to_tell && lease.owner == told.owner && target == told.target
            });
            lease.expect("a break told without need").is_to_tell = false;
        }
    }

    fn compare_sums(&mut self) {
        let counters = self.table.counters();
        assert!(counters.requeues >= self.requeues);
        self.requeues = counters.requeues;
        self.model.counters.requeues = counters.requeues;
        assert_eq!(counters, self.model.counters);
        assert_eq!(self.table.next_deadline(), self.model.next_deadline());
        let is_idle = self.model.granted.is_empty()
            && self.model.leases.is_empty()
            && self.model.waiters.is_empty()
            && self.lying.is_empty();
        assert_eq!(self.table.is_idle(), is_idle);
        let has_waiters = !self.model.waiters.is_empty() || !self.lying.is_empty();
        assert_eq!(self.table.has_waiters(), has_waiters);
        if self.model.setup.per_owner.is_some() {
            for (owner, &count) in &*self.ledger.locks.borrow() {
                assert_eq!(
                    count,
                    self.model.locks_of(owner) as i64,
                    "locks booked for {owner:?}"
                );
            }
            for (owner, &count) in &*self.ledger.waiters.borrow() {
                assert_eq!(
                    count,
                    self.model.waits_of(owner) as i64,
                    "waits booked for {owner:?}"
                );
            }
        }
    }

    /// Lets everything go; nothing may be left.
    pub fn finish(mut self) {
        for n in 0..=u8::MAX {
            let owner = owner(n);
            if self.model.locks_of(&owner) + self.model.waits_of(&owner) > 0 {
                self.step(&Op::Release(n, Waits::Interrupt).into());
            }
        }
        self.step(&Op::TearDown.into());
        assert!(self.table.is_idle());
    }
}

/// Whether the call was refused because time ran backwards, and rightly.
fn is_refused_for_time(model: &Model, now: Time, error: Option<&LockError>) -> bool {
    let is_refused = error == Some(&LockError::TimeRanBackwards);
    if let Some(is_good) = model.is_time_good(now) {
        assert_eq!(is_refused, !is_good, "time runs backwards to {now:?}");
    }
    is_refused
}

fn is_of_waiters(error: &LockError) -> bool {
    use LimitKind::{WaitersInAll, WaitersPerFile, WaitersPerOwner};
    matches!(
        error,
        LockError::Limit(WaitersPerOwner | WaitersPerFile | WaitersInAll)
    )
}

fn kind_of(space: Space, owner: &Owner) -> LockKind {
    match (space, owner) {
        (Space::Records, Owner::OpenFile(_)) => LockKind::Ofd,
        (Space::Records, _) => LockKind::Posix,
        (Space::Flocks, _) => LockKind::Flock,
        (Space::Openers, _) => LockKind::Lease,
    }
}

fn is_info_of(want: &Want, info: &LockInfo) -> bool {
    let kind = if want.is_access {
        LockKind::Access
    } else {
        kind_of(want.space, &want.owner)
    };
    info.kind == kind
        && info.owner == want.owner
        && info.range == want.range
        && info.lock_type == want.lock_type
        && info.taken_by == want.taken_by
}

/// The conflict that is shown is one, and of several the first.
fn check_conflict(locks: &[super::state::Granted], info: &LockInfo) {
    let first = locks.iter().map(|lock| lock.range.start()).min();
    assert_eq!(
        Some(info.range.start()),
        first,
        "not the first in the way: {info}"
    );
    assert!(
        locks.iter().any(|lock| lock.owner == info.owner
            && lock.range == info.range
            && lock.lock_type == info.lock_type
            && kind_of(lock.space, &lock.owner) == info.kind),
        "not in the way: {info}"
    );
}

fn opener(n: u8, access: LockType, scope: BreakScope) -> Want {
    Want {
        space: Space::Openers,
        owner: owner(n),
        range: Range::WHOLE,
        lock_type: access,
        taken_by: ProcessId(0),
        is_access: false,
        scope,
    }
}

impl Ask {
    fn both(&self) -> (Request, Want) {
        let (space, owner, lock_type, range, taken_by) = match *self {
            Ask::Record(n, lock_type, range) | Ask::Access(n, lock_type, range) => {
                (Space::Records, owner(n), lock_type, range, ProcessId(0))
            }
            Ask::Flock(n, lock_type, process) => (
                Space::Flocks,
                file_owner(n).into(),
                lock_type,
                Range::WHOLE,
                ProcessId(1 + u64::from(process)),
            ),
        };
        let want = Want {
            space,
            owner: owner.clone(),
            range,
            lock_type,
            taken_by,
            is_access: matches!(self, Ask::Access(..)),
            scope: BreakScope::All,
        };
        let request = match *self {
            Ask::Record(..) => Request::record(owner, lock_type, range),
            Ask::Access(..) => Request::access(owner, lock_type, range),
            Ask::Flock(n, ..) => Request::flock(file_owner(n), lock_type).taken_by(taken_by),
        };
        (request, want)
    }
}

impl Pick {
    fn choose(self, model: &Model, ever: &[WaiterId]) -> Option<WaiterId> {
        fn nth(ids: &[WaiterId], n: u8) -> Option<WaiterId> {
            (!ids.is_empty()).then(|| ids[usize::from(n) % ids.len()])
        }
        let live = |is_meant: fn(&Waiter) -> bool| -> Vec<WaiterId> {
            model
                .waiters
                .iter()
                .filter(|waiter| is_meant(waiter))
                .map(|waiter| waiter.id)
                .collect()
        };
        match self {
            Pick::Live(n) => nth(&live(|_| true), n),
            Pick::Offered(n) => nth(&live(|waiter| waiter.is_offered), n),
            Pick::Ever(n) => nth(ever, n),
            Pick::Foreign => {
                let mut other = Table::new();
                let settings = Settings::default();
                let cx = Context::new(Time(0), &settings);
                let ask = |n| Request::record(owner(n), LockType::Write, Range::WHOLE);
                other.try_lock(&ask(0), cx).ok()?;
                (0..5).find_map(|_| match other.lock(ask(1), (), cx) {
                    Ok(Lock::Waiting(id)) => Some(id),
                    _ => None,
                })
            }
        }
    }
}

/// Every query there is, against the lists.
fn check_queries(table: &Table<u64>, model: &Model, ask: &Ask) {
    let (request, want) = ask.both();
    let stopping: Vec<_> = model
        .granted
        .iter()
        .filter(|lock| lock.stops(&want))
        .cloned()
        .collect();
    match table.test(&request) {
        Some(info) => check_conflict(&stopping, &info),
        None => assert!(stopping.is_empty(), "not shown: {stopping:?}"),
    }
    let own: Vec<_> = model
        .granted
        .iter()
        .filter(|lock| {
            lock.space == Space::Records
                && lock.owner == want.owner
                && lock.range.overlaps(want.range)
        })
        .cloned()
        .collect();
    match table.test_own(&want.owner, want.range) {
        Some(info) => check_conflict(&own, &info),
        None => assert!(own.is_empty(), "not shown: {own:?}"),
    }

    let mut waits = Vec::new();
    table.visit_waits_of(&want.owner, &mut |id| waits.push(id));
    let mut expected: Vec<WaiterId> = Vec::new();
    for waiter in &model.waiters {
        assert_eq!(
            table.waiting(waiter.id).map(|waiting| *waiting.1),
            Ok(waiter.ticket)
        );
        if waiter.want.owner == want.owner {
            expected.push(waiter.id);
        }
        let mut blockers = Vec::new();
        table.visit_blockers(waiter.id, &mut |owner, edge| {
            blockers.push((owner.clone(), edge));
            true
        });
        let mut locks: Vec<Owner> = model
            .granted
            .iter()
            .filter(|lock| lock.stops(&waiter.want))
            .map(|lock| lock.owner.clone())
            .chain(
                model
                    .leases
                    .iter()
                    .filter(|lease| lease.stops(&waiter.want))
                    .map(|lease| lease.owner.clone()),
            )
            .collect();
        if waiter.is_offered {
            assert_eq!(
                blockers,
                [],
                "one that was offered its lock waits for nobody"
            );
        } else if locks.is_empty() {
            // It queues behind one that is blocked, be it at the end of a chain, or
            // behind one that runs.
            let waits = |is_offered: bool, owner: Option<&Owner>| {
                model.waiters.iter().any(|other| {
                    other.is_offered == is_offered
                        && other.want.space == waiter.want.space
                        && owner.is_none_or(|owner| *owner == other.want.owner)
                })
            };
            match &blockers[..] {
                [] => assert!(waits(true, None), "waits for nobody: {waiter:?}"),
                [(owner, Edge::Queue)] => assert!(waits(false, Some(owner))),
                blockers => panic!("{blockers:?} instead of one to queue behind"),
            }
        } else {
            locks.sort();
            let mut shown: Vec<Owner> = blockers.iter().map(|blocker| blocker.0.clone()).collect();
            shown.sort();
            assert_eq!(shown, locks);
            assert!(blockers.iter().all(|blocker| blocker.1 == Edge::Lock));
        }
    }
    waits.sort_by_key(|&id| model.position(id));
    assert_eq!(waits, expected);

    let granted = Request::record(want.owner.clone(), want.lock_type, want.range);
    let mut blocked = Vec::new();
    table.visit_blocked_by(&granted, &mut |id| blocked.push(id));
    let expected: Vec<WaiterId> = model
        .waiters
        .iter()
        .filter(|waiter| {
            let other = &waiter.want;
            !waiter.is_offered
                && other.space == Space::Records
                && other.owner != want.owner
                && other.range.overlaps(want.range)
                && other.lock_type.excludes(want.lock_type)
        })
        .map(|waiter| waiter.id)
        .collect();
    assert_eq!(blocked, expected);
}
