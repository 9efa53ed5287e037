//! Deadlocks over files: the search, what follows from it, and a report.
//!
//! A search holds the deadlock mutex, so searches come one after the other, and
//! each comes after the wait or grant that made it due has been entered in its
//! table. Of all requests that close a cycle together the first to search finds
//! it and is refused; the others then find it gone.
//!
//! The search visits one file at a time, so what it puts together need never
//! have been true at once. A cycle that it reports is therefore looked at again
//! with all its files locked, before anybody is refused.

use super::Shared;
use super::file::{File, FileId};
use super::handle::FileHandle;
use super::registry::{SoleWait, Wait};
use super::wait::Ticket;
use super::{LockManager, events};
use crate::deadlock::{Edge, Step, WaitGraph, find_cycle, find_queue_in_cycle};
use crate::error::LockError;
use crate::lock::{LockInfo, LockKind, WaiterId};
use crate::mutex::TableGuard;
use crate::owner::Owner;
use crate::sync::{Arc, Ordering, lock};
use crate::table::{BlockedBy, Table};

/// The waits of a manager as a graph.
struct Waits<'a> {
    shared: &'a Shared,
    /// Only waits for record locks. Those of open file descriptions are never
    /// refused, but a POSIX request may close a cycle through them.
    records_only: bool,
}

impl WaitGraph for Waits<'_> {
    type Wait = Wait;

    fn blockers(&mut self, wait: &Wait, visit: &mut dyn FnMut(&Owner, Edge) -> bool) {
        let table = wait.file.table.lock();
        let is_record = matches!(
            kind_of(&table, wait.id),
            Some(LockKind::Posix | LockKind::Ofd | LockKind::Access)
        );
        if self.records_only && !is_record {
            return;
        }
        table.visit_blockers(wait.id, visit);
    }

    fn waits_of(&mut self, owner: &Owner, visit: &mut dyn FnMut(Wait)) {
        self.shared.registry.waits_of(owner, visit);
    }
}

fn kind_of(table: &Table<Ticket>, id: WaiterId) -> Option<LockKind> {
    let (request, _) = table.waiting(id).ok()?;
    Some(request.kind())
}

/// What came of following a chain.
enum Chain {
    /// It is in no cycle.
    Ends,
    /// It was, and the cycle was ended.
    Refused(Remedy),
    /// It is no chain, or changed meanwhile: the search must look at everything.
    Branches,
}

/// A wait of a chain that is remembered, at ever greater distances: a chain that
/// runs into a cycle elsewhere meets one again.
struct Milestone {
    wait: Wait,
    next: usize,
}

impl Milestone {
    fn is_met_again(&mut self, wait: &Wait, steps: usize) -> bool {
        if self.wait.is(wait) {
            return true;
        }
        if steps >= self.next {
            self.wait = wait.clone();
            self.next = 2 * steps;
        }
        false
    }
}

fn step(wait: Wait, waits_for: Owner) -> Step<Wait> {
    Step {
        wait,
        waits_for,
        edge: Edge::Lock,
    }
}

/// The one owner whose record locks this request of `owner` waits for; `Some(None)`
/// if there is none. `None` if there are several, or the request is another's.
fn sole_blocker(table: &Table<Ticket>, id: WaiterId, owner: &Owner) -> Option<Option<Owner>> {
    let Ok((request, _)) = table.waiting(id) else {
        return Some(None);
    };
    if request.owner() != owner {
        return None;
    }
    if !matches!(
        request.kind(),
        LockKind::Posix | LockKind::Ofd | LockKind::Access
    ) {
        return Some(None);
    }
    let mut sole: Option<Owner> = None;
    let mut are_several = false;
    table.visit_blockers(id, &mut |blocker, edge| {
        if edge == Edge::Lock {
            are_several = sole.as_ref().is_some_and(|known| known != blocker);
            sole.get_or_insert_with(|| blocker.clone());
        }
        !are_several
    });
    (!are_several).then_some(sole)
}

/// What to do about a cycle.
enum Remedy {
    Refused(Ticket, Owner, LockInfo),
    LetPass(Arc<File>),
}

impl FileHandle {
    /// Searches for a cycle through this waiter, which has just begun to wait or
    /// been given somebody new to wait for, and ends it: by EDEADLK for this
    /// request, or where the cycle goes through a queue that fairness alone made,
    /// by letting a request pass there.
    pub(crate) fn look_for_cycle(&self, id: WaiterId) {
        loop {
            let remedy = {
                let _one_at_a_time = lock(&self.shared.deadlock);
                self.find_remedy(id)
            };
            match remedy {
                None => return,
                Some(Remedy::Refused(ticket, owner, next)) => {
                    self.leave(&ticket, &owner, id);
                    self.bring_news(self.file.table.lock(), None);
                    events::deadlock(self.id(), &owner, &next);
                    return ticket.deliver(Err(LockError::Deadlock(next)));
                }
                Some(Remedy::LetPass(file)) => {
                    if let Some(handle) = self.shared.adopt(&file) {
                        handle.bring_news(handle.file.table.lock(), None);
                    }
                }
            }
        }
    }

    /// With the deadlock mutex held.
    fn find_remedy(&self, id: WaiterId) -> Option<Remedy> {
        let start = Wait {
            file: self.file.clone(),
            id,
        };
        let (owner, may_be_refused) = {
            let table = self.file.table.lock();
            let (request, _) = table.waiting(id).ok()?;
            let is_record = matches!(request.kind(), LockKind::Posix | LockKind::Access);
            (request.owner().clone(), is_record)
        };
        if may_be_refused && owner.is_refused_deadlock() {
            let mut graph = Waits {
                shared: &self.shared,
                records_only: true,
            };
            match self.follow_chain(id, &owner) {
                Chain::Ends => {}
                Chain::Refused(remedy) => return Some(remedy),
                Chain::Branches => {
                    while let Some(cycle) = find_cycle(&mut graph, &start, &owner, false) {
                        if let Some(remedy) = self.refuse(&cycle, &owner, id) {
                            return Some(remedy);
                        }
                    }
                }
            }
        }
        if self.shared.has_queued.load(Ordering::SeqCst) != 0 {
            let mut graph = Waits {
                shared: &self.shared,
                records_only: false,
            };
            let cycle = find_cycle(&mut graph, &start, &owner, true)?;
            let queued = cycle.into_iter().find(|step| step.edge == Edge::Queue);
            let queued = match queued {
                Some(step) => step.wait,
                // Of a cycle of locks alone among open files nobody is refused,
                // but there may be another beside it.
                None => find_queue_in_cycle(&mut graph, &start, &owner)?,
            };
            let cx = self.shared.context(self.shared.clock.now());
            let mut table = queued.file.table.lock();
            // It may have ended; then the cycle is gone as well.
            table.let_pass(queued.id, cx).ok()?;
            drop(table);
            return Some(Remedy::LetPass(queued.file));
        }
        None
    }

    /// The search where everybody waits for one other with one request: a chain,
    /// which needs no note of who has been seen. As long as it stays in a file, the
    /// file is locked, so that a cycle within one file is found and ended at once.
    fn follow_chain(&self, id: WaiterId, owner: &Owner) -> Chain {
        let mut at = Wait {
            file: self.file.clone(),
            id,
        };
        let mut waiting = owner.clone();
        let mut steps: Vec<Step<Wait>> = Vec::new();
        let mut milestone = Milestone {
            wait: at.clone(),
            next: 2,
        };
        loop {
            let mut table = at.file.table.lock();
            let next = loop {
                let Some(blocker) = sole_blocker(&table, at.id, &waiting) else {
                    return Chain::Branches;
                };
                let Some(blocker) = blocker else {
                    return Chain::Ends;
                };
                if blocker == *owner {
                    let is_here = steps.iter().all(|s| Arc::ptr_eq(&s.wait.file, &at.file));
                    if is_here && Arc::ptr_eq(&self.file, &at.file) {
                        let first = steps.first().map_or(&blocker, |step| &step.waits_for);
                        let remedy = self.refuse_in(&mut table, id, owner, first);
                        return remedy.map_or(Chain::Ends, Chain::Refused);
                    }
                    drop(table);
                    steps.push(step(at, blocker));
                    let remedy = self.refuse(&steps, owner, id);
                    return remedy.map_or(Chain::Branches, Chain::Refused);
                }
                waiting.clone_from(&blocker);
                let sole = self.shared.registry.sole_wait_of(&blocker, &at.file);
                steps.push(step(at.clone(), blocker));
                match sole {
                    SoleWait::None => return Chain::Ends,
                    SoleWait::Several => return Chain::Branches,
                    SoleWait::Here(id) => at.id = id,
                    SoleWait::Elsewhere(wait) => break wait,
                }
                if milestone.is_met_again(&at, steps.len()) {
                    return Chain::Ends;
                }
            };
            drop(table);
            at = next;
            if milestone.is_met_again(&at, steps.len()) {
                return Chain::Ends;
            }
        }
    }

    /// Refuses the request, which waits in this table for a lock of `blocker`.
    fn refuse_in(
        &self,
        table: &mut Table<Ticket>,
        id: WaiterId,
        owner: &Owner,
        blocker: &Owner,
    ) -> Option<Remedy> {
        let next = table.blocker_info(id, blocker)?;
        let cx = self.shared.context(self.shared.clock.now());
        let ticket = table.refuse_deadlock(id, cx).ok()?;
        Some(Remedy::Refused(ticket, owner.clone(), next))
    }

    /// Refuses the request if the cycle holds with all its files locked.
    fn refuse(&self, cycle: &[Step<Wait>], owner: &Owner, id: WaiterId) -> Option<Remedy> {
        // By address too: a file that was forgotten may have a successor.
        let place = |step: &Step<Wait>| {
            let file = &step.wait.file;
            (file.id, Arc::as_ptr(file) as usize)
        };
        let mut order: Vec<_> = (0..cycle.len()).map(|n| (place(&cycle[n]), n)).collect();
        order.sort_unstable();
        let mut tables: Vec<TableGuard<'_, Table<Ticket>>> = Vec::new();
        // Which of them each step's is.
        let mut table_of = vec![0; cycle.len()];
        let mut last = None;
        for &(place, n) in &order {
            if last.replace(place) != Some(place) {
                tables.push(cycle[n].wait.file.table.lock());
            }
            table_of[n] = tables.len() - 1;
        }
        let mut waiting = owner;
        for (step, &at) in cycle.iter().zip(&table_of) {
            let table = &tables[at];
            // The registry knows owners by their hashes alone.
            let mut holds = false;
            let is_its = table.waiting(step.wait.id).ok()?.0.owner() == waiting;
            waiting = &step.waits_for;
            table.visit_blockers(step.wait.id, &mut |blocker, edge| {
                holds = *blocker == step.waits_for && edge == step.edge;
                !holds
            });
            if !holds || !is_its {
                return None;
            }
        }
        // The first step is this request's own.
        let table = &mut tables[*table_of.first()?];
        self.refuse_in(table, id, owner, &cycle.first()?.waits_for)
    }
}

/// Owners that wait for each other, each for the next and the last for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cycle {
    /// The waits.
    pub steps: Vec<CycleStep>,
}

/// One wait of a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CycleStep {
    /// The file on which it waits.
    pub file: FileId,
    /// Its id there.
    pub waiter: WaiterId,
    /// What it asks for, and for whom.
    pub request: LockInfo,
    /// Whom it waits for.
    pub waits_for: Owner,
}

impl LockManager {
    /// Cycles of owners that wait for each other, at least one through each wait
    /// that is in any: those of open file descriptions and of flock, which nobody is refused for (fcntl(2),
    /// flock(2)). Visits every file; a report of one moment a file.
    pub fn find_deadlocks(&self) -> Vec<Cycle> {
        let mut waits = Vec::new();
        for handle in self.handles() {
            let snapshot = handle.survey();
            for view in snapshot.waiting {
                if view.blocked_by != BlockedBy::Nothing {
                    waits.push((handle.clone(), view.id, view.lock));
                }
            }
        }
        let mut cycles: Vec<Cycle> = Vec::new();
        for (handle, id, info) in &waits {
            let is_known = cycles.iter().any(|cycle| {
                cycle
                    .steps
                    .iter()
                    .any(|step| step.file == handle.id() && step.waiter == *id)
            });
            if is_known {
                continue;
            }
            let _one_at_a_time = lock(&self.shared.deadlock);
            let mut graph = Waits {
                shared: &self.shared,
                records_only: false,
            };
            let start = Wait {
                file: handle.file.clone(),
                id: *id,
            };
            let Some(found) = find_cycle(&mut graph, &start, &info.owner, false) else {
                continue;
            };
            let steps = found.iter().filter_map(|step| {
                let table = step.wait.file.table.lock();
                let (request, _) = table.waiting(step.wait.id).ok()?;
                Some(CycleStep {
                    file: step.wait.file.id,
                    waiter: step.wait.id,
                    request: request.info(),
                    waits_for: step.waits_for.clone(),
                })
            });
            let cycle = Cycle {
                steps: steps.collect(),
            };
            if cycle.steps.len() == found.len() {
                cycles.push(cycle);
            }
        }
        cycles
    }
}
