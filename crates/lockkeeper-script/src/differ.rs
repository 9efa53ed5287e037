//! Runs one list of steps on two executors at once and compares all that can be seen.
//!
//! After every step both sides must have returned the same, the same blocked calls must have returned with
//! the same results, and `held` and `waiting` of every file must read the same. What was run is kept as a
//! script with results, `done` lines put in, that [replays](crate::runner::run) on either side.
//!
//! A step that makes no sense where it stands ([`Census`]) is left out. So is one after which Linux itself
//! is free to do this or that. [`Avoided`] names the rules:
//!
//! - *conversion*: flock(2) with another type on a description that has a lock, while others wait for the
//!   file. The old lock is dropped first, and the waiters it lets go race with the conversion.
//! - *restart*: a signal with SA_RESTART to one who waits for a file on which others wait too. Those beneath
//!   it are queued anew while it is itself.
//! - *end*: `exit`, `kill` or `exec` that ends a waiting call on a file where others wait too, if the same
//!   process also loses a lock there or ends a second such call. Those beneath the call are let go while
//!   the lock goes, and may overtake those who waited for it.
//! - *own overlap*: a call that waits for a range that overlaps another waiting call of the same owner.
//!   When both are granted at once, the order decides what is left.
//! - *taker*: an OFD lock through a description through which another process has set one. Which of the two
//!   a merged lock names is not defined.
//! - *number*: a restarted call whose descriptor has been closed, and a further descriptor of a description
//!   through which a call waits whose own descriptor has been closed. The number of the descriptor, by which
//!   the kernel looks for it again, may have been given anew.
//!
//! Where an answer may differ though the step is fair, the comparison accepts exactly this. [`Freedom`]
//! names the rules; after the last three the sides are in different states and the script ends:
//!
//! - *which conflict*: a query may name any granted lock that is in the way.
//! - *wake race*: a step lets go two waiters that conflict with each other and were not stopped by the same:
//!   the granted locks and the earlier waiters in their way differ, or the locks did when they were queued.
//!   Either may win, and others with it or because of it. The same holds where an earlier step has let one
//!   of such a pair go, and it had to wait again: it may be queued before or after the other. Waiters
//!   stopped by the same all along are granted in the order in which they came, and no other order is
//!   accepted.
//! - *cycle*: one side says EDEADLK where the other waits, a search of everything held and awaited
//!   (the [oracle](Rules::cycle)) finds the cycle, and the side that waits does not claim to be
//!   [exact](Rules::exact).
//! - *standing cycle*: one side says EDEADLK to a call that has been waiting, and that waits on the other
//!   side; the oracle finds a cycle through a wait of an open file description, and none without. Whoever
//!   closes a cycle by such a wait is not refused, but Linux may refuse another of the cycle when it
//!   is queued anew.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use crate::census::Census;
use crate::executor::{Executor, ExecutorError};
use crate::script::*;

/// What a comparison goes by.
pub struct Rules<'a> {
    /// Whether the left and the right side find every deadlock.
    pub exact: [bool; 2],
    /// Whether the request would close, or is part of, a cycle of owners that wait for each other for
    /// record locks.
    pub cycle: &'a dyn Fn(&Scene, &Request, Through) -> bool,
}

impl Default for Rules<'_> {
    /// Neither side is exact; cycles are [looked for](Scene::has_cycle) among the granted locks.
    fn default() -> Self {
        Self {
            exact: [false, false],
            cycle: &|scene, request, through| scene.has_cycle(request, through),
        }
    }
}

/// The owners through which a cycle may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// Processes alone.
    Processes,
    /// Processes and open file descriptions.
    All,
}

/// What came of a list of steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// What was run, with the results of the left side.
    pub transcript: Vec<Statement>,
    /// How many calls were made, the listings not counted.
    pub operations: usize,
    /// How often each rule let the sides differ.
    pub accepted: BTreeMap<Freedom, usize>,
    /// How often each rule left a step out that made sense.
    pub avoided: BTreeMap<Avoided, usize>,
    /// How it ended.
    pub end: End,
}

/// How a comparison ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Both sides agreed to the last step.
    Agreed,
    /// They differ where Linux is free, and cannot be compared further.
    Free(Freedom),
    /// They differ.
    Diverged(Box<Divergence>),
}

/// Why two sides may differ: see the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Freedom {
    /// A query may name any lock in the way.
    WhichConflict,
    /// Two that wake at once and conflict.
    WakeRace,
    /// A deadlock that one side does not look for.
    Cycle,
    /// A deadlock that nobody was refused for when it came about.
    StandingCycle,
}

/// Why a step is not run: see the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Avoided {
    /// A flock conversion while others wait.
    Conversion,
    /// A restarted wait while others wait.
    Restart,
    /// The end of a process that waits where others wait, and loses more than that.
    End,
    /// Two waiting calls of one owner that overlap.
    OwnOverlap,
    /// A second process that sets OFD locks through a description.
    Taker,
    /// The number of a closed descriptor, given anew.
    Number,
}

impl fmt::Display for Freedom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WhichConflict => "which conflict",
            Self::WakeRace => "wake race",
            Self::Cycle => "cycle",
            Self::StandingCycle => "standing cycle",
        })
    }
}

impl fmt::Display for Avoided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Conversion => "conversion",
            Self::Restart => "restart",
            Self::End => "end",
            Self::OwnOverlap => "own overlap",
            Self::Taker => "taker",
            Self::Number => "number",
        })
    }
}

/// Where two sides differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The line of the transcript, which is its last.
    pub line: usize,
    /// What was asked.
    pub step: Step,
    /// What each side answered.
    pub answers: [Answer; 2],
}

/// An answer, or why there is none.
pub type Answer = Result<Outcome, ExecutorError>;

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |answer: &Answer| match answer {
            Ok(outcome) => outcome.to_string(),
            Err(error) => error.to_string(),
        };
        let [left, right] = &self.answers;
        writeln!(f, "line {}: {}", self.line, self.step)?;
        writeln!(f, "  left:  {}", show(left))?;
        write!(f, "  right: {}", show(right))
    }
}

/// A call that waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who waits.
    pub actor: Actor,
    /// The process of the actor.
    pub process: Actor,
    /// The file.
    pub file: FileName,
    /// The descriptor through which it asks.
    pub fd: Descriptor,
    /// The open file description.
    pub description: usize,
    /// The kind of lock.
    pub kind: ItemKind,
    /// Its type.
    pub lock_type: LockType,
    /// Its range, for record locks.
    pub span: Option<Span>,
}

impl Request {
    fn same_owner(&self, other: &Self) -> bool {
        match self.kind {
            ItemKind::Posix => self.process == other.process,
            _ => self.description == other.description,
        }
    }

    /// Whether the two cannot be granted both.
    pub fn conflicts(&self, other: &Self) -> bool {
        let same_owner = self.kind == other.kind && self.same_owner(other);
        self.file == other.file
            && !same_owner
            && in_the_way(
                (self.kind, self.lock_type, self.span),
                (other.kind, other.lock_type, other.span),
            )
    }
}

type Shape = (ItemKind, LockType, Option<Span>);

/// Whether locks of different owners with these shapes exclude each other.
fn in_the_way(a: Shape, b: Shape) -> bool {
    let is_record = |kind| matches!(kind, ItemKind::Posix | ItemKind::Ofd);
    let same_space = a.0 == b.0 || (is_record(a.0) && is_record(b.0));
    let overlap = match (a.2, b.2) {
        (Some(a), Some(b)) => a.overlaps(&b),
        _ => true,
    };
    let lock = |lock_type| lock_type != LockType::Unlock;
    let excludes = lock(a.1) && lock(b.1) && (a.1 == LockType::Write || b.1 == LockType::Write);
    same_space && overlap && excludes
}

/// A request with the granted locks and the earlier requests in its way.
#[derive(Debug)]
struct Stopped {
    request: Request,
    locks: Vec<Item>,
    ahead: Vec<Request>,
}

/// The ranges that have been locked through a description and not unlocked.
#[derive(Debug)]
struct Taken {
    file: FileName,
    spans: Vec<Span>,
}

/// What both sides agree on so far.
#[derive(Debug, Default)]
pub struct Scene {
    /// Who lives and what is open.
    pub census: Census,
    /// By file: the granted locks.
    pub held: BTreeMap<FileName, Vec<Item>>,
    /// By file: what waits, as listed.
    pub waiting: BTreeMap<FileName, Vec<Item>>,
    /// The calls that wait for a lock, in the order in which they came.
    pub requests: Vec<Request>,
    /// By description: the process that sets OFD locks through it.
    takers: HashMap<usize, Actor>,
    /// By description: what has been locked through it and not unlocked, for OFD locks.
    taken: HashMap<usize, Taken>,
    /// Descriptions that have had a flock.
    flocked: HashSet<usize>,
    /// By waiting actor: the granted locks that were in the way of its request when it was queued, beneath
    /// any of which it may hang.
    queued: HashMap<Actor, Vec<Item>>,
    /// Waiting actors, in pairs, of whose requests either may be queued before the other.
    unordered: HashSet<(Actor, Actor)>,
}

impl Scene {
    /// The granted locks that are in the way of a request.
    pub fn blockers<'a>(&'a self, request: &'a Request) -> impl Iterator<Item = &'a Item> {
        let held = self.held.get(&request.file).map_or(&[][..], Vec::as_slice);
        held.iter().filter(move |item| {
            let own = item.kind == request.kind
                && match request.kind {
                    ItemKind::Posix => item.actor == request.process,
                    _ => self.holds_alone(request, item),
                };
            let shape = (request.kind, request.lock_type, request.span);
            !own && in_the_way(shape, (item.kind, item.lock_type, item.span))
        })
    }

    /// Whether either of two requests that conflict may be granted first: they are not stopped by the same,
    /// or were not before.
    fn may_race(&self, a: &Request, b: &Request) -> bool {
        let pair = (a.actor.clone(), b.actor.clone());
        let same_ahead = || {
            let ahead_of_a = self.ahead(a).filter(|ahead| *ahead != b);
            ahead_of_a.eq(self.ahead(b).filter(|ahead| *ahead != a))
        };
        let same_locks = || self.blockers(a).eq(self.blockers(b));
        let same_at_first = || self.queued.get(&a.actor) == self.queued.get(&b.actor);
        a.conflicts(b)
            && (self.unordered.contains(&pair)
                || !same_locks()
                || !same_ahead()
                || !same_at_first())
    }

    /// The waiting requests that came before this one and conflict with it.
    fn ahead<'a>(&'a self, request: &'a Request) -> impl Iterator<Item = &'a Request> {
        let earlier = self.requests.iter();
        earlier
            .take_while(move |other| *other != request)
            .filter(move |other| other.conflicts(request))
    }

    /// The requests, each with what stops it.
    fn stopped(&self) -> Vec<Stopped> {
        let stopped = |request: &Request| Stopped {
            request: request.clone(),
            locks: self.blockers(request).cloned().collect(),
            ahead: self.ahead(request).cloned().collect(),
        };
        self.requests.iter().map(stopped).collect()
    }

    /// Takes note of the requests that a step has let go, and that wait again. `before` is how they were
    /// [stopped](Scene::stopped), and those of the pairs in `races` could race then.
    fn reorder(&mut self, before: &[Stopped], races: Vec<(Actor, Actor)>) {
        let mut queued = std::mem::take(&mut self.queued);
        let mut unordered = std::mem::take(&mut self.unordered);
        let waits = |actor: &Actor| {
            let mut requests = self.requests.iter();
            requests.find(|request| request.actor == *actor)
        };
        let let_go = |actor: &Actor| {
            let stopped = before
                .iter()
                .find(|stopped| stopped.request.actor == *actor);
            stopped.zip(waits(actor)).is_some_and(|(stopped, request)| {
                let locks: Vec<&Item> = self.blockers(request).collect();
                let ahead: Vec<&Request> = self.ahead(request).collect();
                stopped.request == *request
                    && (stopped.locks.iter().any(|lock| !locks.contains(&lock))
                        || stopped.ahead.iter().any(|other| !ahead.contains(&other)))
            })
        };
        let requeued: Vec<_> = races
            .into_iter()
            .filter(|(a, b)| let_go(a) || let_go(b))
            .collect();
        queued.retain(|actor, _| waits(actor).is_some());
        for request in &self.requests {
            if !queued.contains_key(&request.actor) || let_go(&request.actor) {
                let blockers = self.blockers(request).cloned().collect();
                queued.insert(request.actor.clone(), blockers);
            }
        }
        unordered.extend(requeued);
        unordered.retain(|(a, b)| waits(a).is_some() && waits(b).is_some());
        self.unordered = unordered;
        self.queued = queued;
    }

    /// The pairs of waiting actors whose requests may race.
    fn races(&self) -> Vec<(Actor, Actor)> {
        let mut races = Vec::new();
        for a in &self.requests {
            for b in &self.requests {
                if self.may_race(a, b) {
                    races.push((a.actor.clone(), b.actor.clone()));
                }
            }
        }
        races
    }

    /// Whether the owner of a POSIX request waits, over any number of owners, for itself: a plain search
    /// of all that is held and awaited.
    pub fn has_cycle(&self, request: &Request, through: Through) -> bool {
        if request.kind != ItemKind::Posix {
            return false;
        }
        let mut seen: Vec<&Request> = Vec::new();
        let mut open = vec![request];
        while let Some(waiter) = open.pop() {
            for blocker in self.blockers(waiter) {
                if blocker.kind == ItemKind::Posix && blocker.actor == request.process {
                    return true;
                }
                for other in &self.requests {
                    let waits = match other.kind {
                        ItemKind::Posix => {
                            blocker.kind == ItemKind::Posix && other.process == blocker.actor
                        }
                        ItemKind::Ofd => {
                            through == Through::All
                                && waiter.file == other.file
                                && self.holds(other.description, blocker)
                        }
                        ItemKind::Flock | ItemKind::Lease => false,
                    };
                    if waits && !seen.contains(&other) {
                        seen.push(other);
                        open.push(other);
                    }
                }
            }
        }
        false
    }

    /// Whether an OFD lock on the request's file can only be its own. A listing names the process, and
    /// that may have several descriptions.
    fn holds_alone(&self, request: &Request, item: &Item) -> bool {
        let of_the_file = |taken: &Taken| taken.file == request.file;
        let mut others = self.taken.iter().filter(|(description, taken)| {
            **description != request.description && of_the_file(taken)
        });
        self.holds(request.description, item)
            && !others.any(|(description, _)| self.holds(*description, item))
    }

    /// Whether an OFD lock on the description's file may have been set through it.
    fn holds(&self, description: usize, item: &Item) -> bool {
        let at = |span: &Span| item.span.is_some_and(|held| span.overlaps(&held));
        let taken = self.taken.get(&description);
        item.kind == ItemKind::Ofd
            && self.takers.get(&description) == Some(&item.actor)
            && taken.is_some_and(|taken| taken.spans.iter().any(at))
    }

    /// Takes note of an OFD lock that was set or given up.
    fn take(&mut self, request: &Request) {
        // What counts from elsewhere may be anywhere.
        let span = request.span.unwrap_or(Span { start: 0, len: 0 });
        let is_known = request.span.is_some();
        let new = || Taken {
            file: request.file.clone(),
            spans: Vec::new(),
        };
        let taken = self.taken.entry(request.description).or_insert_with(new);
        let taken = &mut taken.spans;
        if is_known {
            let cut = std::mem::take(taken);
            for old in cut {
                if !old.overlaps(&span) {
                    taken.push(old);
                    continue;
                }
                if old.start < span.start {
                    taken.push(Span::inclusive(old.start, span.start - 1));
                }
                if span.end() < old.end() {
                    taken.push(Span::inclusive(span.end() + 1, old.end()));
                }
            }
        }
        if request.lock_type != LockType::Unlock {
            taken.push(span);
        }
    }

    /// The request that a step makes, if it asks for a lock or whether one could be had.
    pub fn request(&self, step: &Step) -> Option<Request> {
        let Step::Act { actor, verb } = step else {
            return None;
        };
        let (fd, kind, lock_type, span) = match verb {
            Verb::Set { record, .. } | Verb::Query { record } => {
                let kind = match record.kind {
                    RecordKind::Posix => ItemKind::Posix,
                    RecordKind::Ofd => ItemKind::Ofd,
                };
                let RequestType::Known(lock_type) = record.lock_type else {
                    return None;
                };
                // What counts from elsewhere may be anywhere.
                (&record.fd, kind, lock_type, record.range.span())
            }
            Verb::Flock { fd, lock_type, .. } => (fd, ItemKind::Flock, *lock_type, None),
            _ => return None,
        };
        let opened = self.census.opened(actor, fd)?;
        Some(Request {
            actor: actor.clone(),
            process: self.census.process_name(actor)?.clone(),
            file: opened.file.clone(),
            fd: fd.clone(),
            description: opened.description,
            kind,
            lock_type,
            span,
        })
    }

    /// Why the step is not run, though it makes sense.
    pub fn avoids(&self, step: &Step) -> Option<Avoided> {
        let Step::Act { actor, verb } = step else {
            return None;
        };
        if let Verb::Signal { restart: true } = verb {
            let its = self
                .requests
                .iter()
                .find(|request| request.actor == *actor)?;
            if self.is_closed(its) {
                return Some(Avoided::Number);
            }
            let mut others = self.requests.iter().filter(|other| other.file == its.file);
            return (others.nth(1).is_some()).then_some(Avoided::Restart);
        }
        if let Verb::Dup { fd, .. } = verb {
            let description = self.census.opened(actor, fd)?.description;
            let process = self.census.process_name(actor)?;
            let mut own = self.requests.iter().filter(|its| its.process == *process);
            let is_again = own.any(|its| its.description == description && self.is_closed(its));
            return is_again.then_some(Avoided::Number);
        }
        if matches!(verb, Verb::Exit | Verb::Kill | Verb::Exec) {
            let process = self.census.process_name(actor)?;
            let keeps_locks = matches!(verb, Verb::Exec);
            let races = self
                .requests
                .iter()
                .any(|its| its.process == *process && self.end_races(its, keeps_locks));
            return races.then_some(Avoided::End);
        }
        let request = self.request(step)?;
        let of_the_file = || {
            let file = &request.file;
            self.requests
                .iter()
                .filter(move |other| other.file == *file)
        };
        match verb {
            Verb::Flock { lock_type, .. } if *lock_type != LockType::Unlock => {
                let converts = self.flocked.contains(&request.description);
                let awaited = of_the_file().any(|other| other.kind == ItemKind::Flock);
                (converts && awaited).then_some(Avoided::Conversion)
            }
            Verb::Set { record, wait } => {
                let taker = self.takers.get(&request.description);
                let second = record.kind == RecordKind::Ofd
                    && request.lock_type != LockType::Unlock
                    && taker.is_some_and(|taker| *taker != request.process);
                if second {
                    return Some(Avoided::Taker);
                }
                let overlap = of_the_file().any(|other| {
                    let spans = other.span.zip(request.span);
                    other.kind == request.kind
                        && other.same_owner(&request)
                        && spans.is_none_or(|(a, b)| a.overlaps(&b))
                });
                (*wait && overlap).then_some(Avoided::OwnOverlap)
            }
            _ => None,
        }
    }

    /// Whether the descriptor of a request has been closed while it waits.
    fn is_closed(&self, request: &Request) -> bool {
        let opened = self.census.opened(&request.actor, &request.fd);
        opened.is_none_or(|opened| opened.description != request.description)
    }

    /// Whether others on the file of a request may overtake each other when its process ends.
    fn end_races(&self, its: &Request, keeps_locks: bool) -> bool {
        let (own, others): (Vec<&Request>, Vec<&Request>) = self
            .requests
            .iter()
            .filter(|request| request.file == its.file)
            .partition(|request| request.process == its.process);
        let mut held = self.held.get(&its.file).into_iter().flatten();
        let loses_a_lock = !keeps_locks && held.any(|item| item.actor == its.process);
        !others.is_empty() && (loses_a_lock || own.len() > 1)
    }

    fn record(&mut self, line: usize, step: &Step, outcome: &Outcome) {
        if let Some(request) = self.request(step) {
            let asks =
                matches!(step, Step::Act { verb, .. } if !matches!(verb, Verb::Query { .. }));
            if asks && request.kind == ItemKind::Ofd && request.lock_type != LockType::Unlock {
                let process = request.process.clone();
                self.takers.entry(request.description).or_insert(process);
            }
            if asks && request.kind == ItemKind::Ofd && *outcome == Outcome::Ok {
                self.take(&request);
            }
            if asks && request.kind == ItemKind::Flock {
                self.flocked.insert(request.description);
            }
            if *outcome == Outcome::Blocked {
                self.requests.push(request);
            }
        }
        self.census.record(line, step, outcome);
        if let Step::Act {
            actor,
            verb: Verb::Done,
        } = step
        {
            let granted = self.requests.iter().find(|request| {
                let is_record = request.kind == ItemKind::Ofd && *outcome == Outcome::Ok;
                is_record && request.actor == *actor
            });
            if let Some(granted) = granted.cloned() {
                self.take(&granted);
            }
            self.requests.retain(|request| request.actor != *actor);
        }
        let alive: HashSet<&Actor> = self.census.pending().collect();
        self.requests
            .retain(|request| alive.contains(&request.actor));
    }
}

/// Runs the steps on both sides up to the first difference.
///
/// # Errors
/// A side could not begin or end, or both could not carry out a step.
pub fn compare(
    steps: &[Step],
    left: &mut dyn Executor,
    right: &mut dyn Executor,
    rules: &Rules<'_>,
) -> Result<Comparison, ExecutorError> {
    let begun = left.begin().and_then(|()| right.begin());
    let mut run = Run {
        sides: [left, right],
        rules,
        scene: Scene::default(),
        blocked: Vec::new(),
        transcript: Vec::new(),
        operations: 0,
        accepted: BTreeMap::new(),
        avoided: BTreeMap::new(),
    };
    let end = begun.and_then(|()| run.steps(steps));
    let [left, right] = &mut run.sides;
    let ended = left.end().and(right.end());
    let end = end?;
    ended?;
    Ok(Comparison {
        transcript: run.transcript,
        operations: run.operations,
        accepted: run.accepted,
        avoided: run.avoided,
        end,
    })
}

struct Run<'a> {
    sides: [&'a mut dyn Executor; 2],
    rules: &'a Rules<'a>,
    scene: Scene,
    /// Who is blocked, in the order in which the calls were made.
    blocked: Vec<Actor>,
    transcript: Vec<Statement>,
    operations: usize,
    accepted: BTreeMap<Freedom, usize>,
    avoided: BTreeMap<Avoided, usize>,
}

/// What stops a run: an end, or an error of both sides.
type Goes<T> = Result<T, Stop>;

enum Stop {
    End(End),
    Error(ExecutorError),
}

impl Run<'_> {
    fn steps(&mut self, steps: &[Step]) -> Result<End, ExecutorError> {
        for step in steps {
            if self.scene.census.check(step).is_err() {
                continue;
            }
            if let Some(rule) = self.scene.avoids(step) {
                *self.avoided.entry(rule).or_default() += 1;
                continue;
            }
            match self.one(step) {
                Ok(()) => {}
                Err(Stop::End(end)) => {
                    if let End::Free(rule) = end {
                        *self.accepted.entry(rule).or_default() += 1;
                    }
                    return Ok(end);
                }
                Err(Stop::Error(error)) => return Err(error),
            }
        }
        Ok(End::Agreed)
    }

    fn one(&mut self, step: &Step) -> Goes<()> {
        self.operations += 1;
        let outcomes = self.ask(step)?;
        let [left, right] = &outcomes;
        if left != right {
            match self.freedom(step, left, right) {
                Some(rule @ Freedom::WhichConflict) => {
                    *self.accepted.entry(rule).or_default() += 1;
                }
                Some(freedom) => {
                    self.write(step, left.clone());
                    return Err(Stop::End(End::Free(freedom)));
                }
                None => return Err(self.diverged(step, outcomes.map(Ok))),
            }
        }
        let [left, _] = outcomes;
        if let (Step::Act { actor, .. }, Outcome::Blocked) = (step, &left) {
            self.blocked.push(actor.clone());
        }
        let before = self.scene.stopped();
        let races = self.scene.races();
        self.write(step, left);
        self.collect()?;
        self.list()?;
        self.scene.reorder(&before, races);
        Ok(())
    }

    /// Asks both sides.
    fn ask(&mut self, step: &Step) -> Goes<[Outcome; 2]> {
        let [left, right] = &mut self.sides;
        match (left.step(step), right.step(step)) {
            (Ok(left), Ok(right)) => Ok([left, right]),
            (Err(error), Err(_)) => Err(Stop::Error(error)),
            (left, right) => Err(self.diverged(step, [left, right])),
        }
    }

    fn write(&mut self, step: &Step, outcome: Outcome) {
        self.transcript.push(Statement {
            step: step.clone(),
            expected: outcome.clone(),
        });
        self.scene.record(self.transcript.len(), step, &outcome);
    }

    fn diverged(&mut self, step: &Step, answers: [Answer; 2]) -> Stop {
        // That a call has returned is said in a script by its `done`.
        let step = match (step, &answers[0]) {
            (
                Step::Act {
                    actor,
                    verb: Verb::Blocked,
                },
                Ok(outcome),
            ) if *outcome != Outcome::Blocked => act(actor, Verb::Done),
            (step, _) => step.clone(),
        };
        if let Ok(outcome) = &answers[0] {
            self.transcript.push(Statement {
                step: step.clone(),
                expected: outcome.clone(),
            });
        }
        Stop::End(End::Diverged(Box::new(Divergence {
            line: self.transcript.len(),
            step,
            answers,
        })))
    }

    /// By which rule two answers to a step may differ.
    fn freedom(&self, step: &Step, left: &Outcome, right: &Outcome) -> Option<Freedom> {
        let request = self.scene.request(step)?;
        match (left, right) {
            (Outcome::Conflict { .. }, Outcome::Conflict { .. }) => {
                let found = [left, right].into_iter().all(|answer| {
                    let mut blockers = self.scene.blockers(&request);
                    blockers.any(|item| names(answer, item))
                });
                found.then_some(Freedom::WhichConflict)
            }
            _ => self.cycle(&request, left, right, false),
        }
    }

    /// By which rule one side may refuse a request, or one that `has_waited`, where the other waits.
    fn cycle(
        &self,
        request: &Request,
        left: &Outcome,
        right: &Outcome,
        has_waited: bool,
    ) -> Option<Freedom> {
        let refused = Outcome::Error(Errno::EDEADLK);
        let other_side = match (*left == refused, *right == refused) {
            (true, false) => 1,
            (false, true) => 0,
            _ => return None,
        };
        let has_cycle = |through| (self.rules.cycle)(&self.scene, request, through);
        if !has_cycle(Through::All) {
            return None;
        }
        if !self.rules.exact[other_side] {
            return Some(Freedom::Cycle);
        }
        (has_waited && !has_cycle(Through::Processes)).then_some(Freedom::StandingCycle)
    }

    /// Collects the calls that have returned on both sides.
    fn collect(&mut self) -> Goes<()> {
        let alive: HashSet<Actor> = self.scene.census.pending().cloned().collect();
        self.blocked.retain(|actor| alive.contains(actor));
        let mut answers = Vec::new();
        let mut returned = Vec::new();
        for actor in &self.blocked.clone() {
            let ask = act(actor, Verb::Blocked);
            let outcomes = self.ask(&ask)?;
            let [left, right] = &outcomes;
            if left == right && *left != Outcome::Blocked {
                returned.push(actor.clone());
            }
            answers.push((actor.clone(), outcomes));
        }
        let mut differing = answers.iter().filter(|(_, [left, right])| left != right);
        if let Some((actor, outcomes)) = differing.next() {
            let step = act(actor, Verb::Blocked);
            return Err(match self.freedom_of_returns(&answers)? {
                Some(freedom) => Stop::End(End::Free(freedom)),
                None => self.diverged(&step, outcomes.clone().map(Ok)),
            });
        }
        for actor in returned {
            let step = act(&actor, Verb::Done);
            let outcomes = self.ask(&step)?;
            if outcomes[0] != outcomes[1] {
                return Err(self.diverged(&step, outcomes.map(Ok)));
            }
            let [left, _] = outcomes;
            self.write(&step, left);
            self.operations += 1;
            self.blocked.retain(|blocked| *blocked != actor);
        }
        Ok(())
    }

    /// By which rule different calls may have returned on the two sides.
    fn freedom_of_returns(&mut self, answers: &[(Actor, [Outcome; 2])]) -> Goes<Option<Freedom>> {
        for (actor, outcomes) in answers {
            if let Some(freedom) = self.cycle_of_return(actor, outcomes)? {
                return Ok(Some(freedom));
            }
        }
        // A grant to a closed descriptor is one that is given back.
        let won = |outcome: &Outcome| matches!(outcome, Outcome::Ok | Outcome::Error(Errno::EBADF));
        let lost = |outcome: &Outcome| *outcome == Outcome::Blocked;
        // Who has lost, on a side, to one with whom he may race, and won on the other.
        let scene = &self.scene;
        let request = |actor: &Actor| {
            let mut requests = scene.requests.iter();
            requests.find(|request| request.actor == *actor)
        };
        let mut raced = false;
        for (actor, outcomes) in answers {
            let [left, right] = outcomes;
            if left == right {
                continue;
            }
            let side = match (lost(left), lost(right)) {
                (true, false) if won(right) => 0,
                (false, true) if won(left) => 1,
                _ => return Ok(None),
            };
            let Some(mine) = request(actor) else {
                return Ok(None);
            };
            let mut rivals = answers
                .iter()
                .filter(|(_, outcomes)| won(&outcomes[side]))
                .filter_map(|(rival, _)| request(rival))
                .filter(|theirs| mine.conflicts(theirs))
                .peekable();
            if rivals.peek().is_none() {
                return Ok(None);
            }
            raced |= rivals.any(|theirs| scene.may_race(mine, theirs));
        }
        Ok(raced.then_some(Freedom::WakeRace))
    }

    /// By which rule one side may refuse a call that has been waiting, where the other waits on.
    fn cycle_of_return(&mut self, actor: &Actor, outcomes: &[Outcome; 2]) -> Goes<Option<Freedom>> {
        let [left, right] = outcomes;
        let mut requests = self.scene.requests.iter();
        let request = requests.find(|request| request.actor == *actor).cloned();
        let (Some(request), true) = (request, outcomes.contains(&Outcome::Blocked)) else {
            return Ok(None);
        };
        // What the step has granted may have closed the cycle.
        let waiting_side = usize::from(*right == Outcome::Blocked);
        let held = self.held_on(waiting_side)?;
        let before = std::mem::replace(&mut self.scene.held, held);
        let freedom = self.cycle(&request, left, right, true);
        self.scene.held = before;
        Ok(freedom)
    }

    /// The granted locks by file, as one side shows them now.
    fn held_on(&mut self, side: usize) -> Goes<BTreeMap<FileName, Vec<Item>>> {
        let mut held = BTreeMap::new();
        for file in self.scene.census.files() {
            let listing = self.sides[side].step(&Step::Held(file.clone()));
            if let Outcome::Listing(items) = listing.map_err(Stop::Error)? {
                held.insert(file, items);
            }
        }
        Ok(held)
    }

    /// Compares the listings of every file, and writes down those that have changed.
    fn list(&mut self) -> Goes<()> {
        for file in self.scene.census.files() {
            for step in [Step::Held(file.clone()), Step::Waiting(file.clone())] {
                let outcomes = self.ask(&step)?;
                let [left, right] = &outcomes;
                if left != right {
                    return Err(self.diverged(&step, outcomes.map(Ok)));
                }
                let Outcome::Listing(items) = left.clone() else {
                    return Err(self.diverged(&step, outcomes.map(Ok)));
                };
                let known = match step {
                    Step::Held(_) => &mut self.scene.held,
                    _ => &mut self.scene.waiting,
                };
                let before = known
                    .insert(file.clone(), items.clone())
                    .unwrap_or_default();
                if before != items {
                    let [left, _] = outcomes;
                    self.write(&step, left);
                }
            }
        }
        Ok(())
    }
}

fn act(actor: &Actor, verb: Verb) -> Step {
    Step::Act {
        actor: actor.clone(),
        verb,
    }
}

/// Whether a query's answer is this lock.
fn names(answer: &Outcome, item: &Item) -> bool {
    let Outcome::Conflict {
        lock_type,
        span,
        by,
    } = answer
    else {
        return false;
    };
    let same_holder = match by {
        Holder::Ofd => item.kind == ItemKind::Ofd,
        Holder::Actor(actor) => item.kind == ItemKind::Posix && item.actor == *actor,
    };
    item.lock_type == *lock_type && item.span == Some(*span) && same_holder
}
