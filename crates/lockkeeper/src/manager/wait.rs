//! Waiting: what a ticket is, how a thread sleeps, and how news is brought.
//!
//! # Implementation details
//! News (who was granted, refused, offered) is gathered under the file's mutex
//! and brought after it is released, in batches of a fixed size, so that it
//! takes no allocation and a waker may do as it likes. Only who holds a ticket
//! touches what is behind it. How foreign code is called, see
//! [`deliver`](super::deliver).
//!
//! A thread waits with one word, `state`. Whoever brings its outcome stores the
//! outcome first and the word after; the thread reads in the other order. A
//! thread that is offered its lock is told by the word alone: what it finds when
//! it comes is decided under the file's mutex.

use core::time::Duration;
use std::fmt;
use std::task::Waker;
use std::time::Instant;

use super::callback::{CallbackId, Deliver};
use super::deliver::{call, guard};
use super::events;
use super::handle::FileHandle;
use super::timer::Due;
use crate::error::{LockError, NotWaiting};
use crate::lock::{LockType, WaiterId};
use crate::mutex::TableGuard;
use crate::owner::Owner;
use crate::range::Range;
use crate::sync::{Arc, AtomicU32, Mutex, Ordering, Thread, current, lock, park};
use crate::table::{BreakScope, Ended, LeaseBreak, Lock, Request, Table};

pub(crate) type Outcome = Result<(), LockError>;

/// What waits behind a request.
pub(crate) enum Ticket {
    Sleeper(Sleeper),
    Callback(CallbackId, Deliver),
}

/// Apart, so that a ticket needs no word to tell its kinds apart.
pub(crate) enum Sleeper {
    Thread(Arc<ThreadWait>),
    Task(Arc<TaskWait>),
}

impl Ticket {
    /// Brings the outcome. Not to be called under any mutex of the manager.
    pub(crate) fn deliver(self, outcome: Outcome) {
        self.deliver_grant(outcome, Vec::new());
    }

    /// The same for an outcome that may be a grant, with what the owner held
    /// before it: a task may have gone, and gives it back.
    fn deliver_grant(self, outcome: Outcome, before: Vec<(Range, LockType)>) {
        match self {
            Ticket::Sleeper(Sleeper::Thread(wait)) => wait.finish(outcome),
            Ticket::Sleeper(Sleeper::Task(wait)) => wait.finish(outcome, before),
            Ticket::Callback(_, deliver) => call(move || deliver(outcome)),
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ticket::Sleeper(Sleeper::Thread(_)) => "Thread",
            Ticket::Sleeper(Sleeper::Task(_)) => "Task",
            Ticket::Callback(..) => "Callback",
        })
    }
}

const ASLEEP: u32 = 0;
const OFFERED: u32 = 1;
const FINISHED: u32 = 2;

/// A thread that waits.
pub(crate) struct ThreadWait {
    state: AtomicU32,
    outcome: Mutex<Option<Outcome>>,
    thread: Thread,
}

impl ThreadWait {
    pub(crate) fn new() -> ThreadWait {
        ThreadWait {
            state: AtomicU32::new(ASLEEP),
            outcome: Mutex::new(None),
            thread: current(),
        }
    }

    fn finish(&self, outcome: Outcome) {
        *lock(&self.outcome) = Some(outcome);
        // Not a plain store: it comes after what the thread made of an offer.
        self.state.swap(FINISHED, Ordering::Release);
        self.thread.unpark();
    }

    fn offer(&self) {
        // An outcome that came in between must not be overwritten.
        let _ = self
            .state
            .compare_exchange(ASLEEP, OFFERED, Ordering::Release, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// A task that waits.
pub(crate) struct TaskWait {
    inner: Mutex<TaskState>,
}

struct TaskState {
    /// The outcome, and what the owner held before a grant.
    outcome: Option<(Outcome, Vec<(Range, LockType)>)>,
    waker: Option<Waker>,
    /// Set when the future was dropped while its outcome was on its way: whoever
    /// brings a grant gives it back.
    abandoned: Option<Box<Abandoned>>,
}

struct Abandoned {
    file: FileHandle,
    ask: Ask,
}

impl TaskWait {
    pub(crate) fn new(waker: Waker) -> TaskWait {
        TaskWait {
            inner: Mutex::new(TaskState {
                outcome: None,
                waker: Some(waker),
                abandoned: None,
            }),
        }
    }

    fn finish(&self, outcome: Outcome, before: Vec<(Range, LockType)>) {
        let mut inner = lock(&self.inner);
        if let Some(abandoned) = inner.abandoned.take() {
            drop(inner);
            if outcome.is_ok() {
                abandoned.file.give_back(&abandoned.ask, &before);
            }
            return;
        }
        inner.outcome = Some((outcome, before));
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            guard(move || waker.wake());
        }
    }

    /// The outcome, if it has come; else remembers whom to wake.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<Outcome> {
        let is_known = |inner: &TaskState| {
            let known = inner.waker.as_ref();
            known.is_some_and(|known| known.will_wake(waker))
        };
        let mut inner = lock(&self.inner);
        if inner.outcome.is_none() && !is_known(&inner) {
            // A waker is cloned and dropped by foreign code: not under the mutex.
            drop(inner);
            let new = Some(waker.clone());
            inner = lock(&self.inner);
            let old = core::mem::replace(&mut inner.waker, new);
            let outcome = inner.outcome.take();
            drop(inner);
            drop(old);
            return outcome.map(|(outcome, _)| outcome);
        }
        inner.outcome.take().map(|(outcome, _)| outcome)
    }

    /// The future is gone: returns the outcome, if it has come, for the caller to
    /// undo; else leaves that to whoever brings it.
    pub(crate) fn abandon(
        &self,
        file: FileHandle,
        ask: Ask,
    ) -> Option<(Outcome, Vec<(Range, LockType)>)> {
        let mut inner = lock(&self.inner);
        let waker = inner.waker.take();
        let outcome = inner.outcome.take();
        if outcome.is_none() {
            inner.abandoned = Some(Box::new(Abandoned { file, ask }));
        }
        drop(inner);
        drop(waker);
        outcome
    }
}

/// Ends another thread's wait: the library's signal.
///
/// Given to a blocking call through [`WaitOptions`]; any thread may then call
/// [`interrupt`](Interrupt::interrupt). One `Interrupt` serves one wait at a
/// time; clones are the same one.
#[derive(Clone, Default)]
pub struct Interrupt {
    target: Arc<Mutex<Option<(FileHandle, WaiterId)>>>,
}

impl Interrupt {
    /// One that interrupts nothing yet.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// Ends the wait with EINTR.
    ///
    /// # Errors
    /// `NotWaiting` (ENOENT) if nobody waits with it, or the wait has ended: its
    /// outcome stands.
    pub fn interrupt(&self) -> Result<(), NotWaiting> {
        let target = lock(&self.target).clone();
        let (file, id) = target.ok_or(NotWaiting)?;
        file.cancel(id)
    }

    fn aim(&self, target: Option<(FileHandle, WaiterId)>) {
        let old = core::mem::replace(&mut *lock(&self.target), target);
        drop(old);
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_waiting = lock(&self.target).is_some();
        f.debug_struct("Interrupt")
            .field("is_waiting", &is_waiting)
            .finish()
    }
}

/// How a blocking call waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitOptions<'a> {
    /// Gives up after this long, with ETIMEDOUT; `None` waits without end.
    pub timeout: Option<Duration>,
    /// Lets another thread end the wait, with EINTR.
    pub interrupt: Option<&'a Interrupt>,
}

/// What is asked of a file and may have to wait.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Lock(Request),
    Open {
        opener: Owner,
        access: LockType,
        scope: BreakScope,
    },
}

impl Ask {
    pub(crate) fn owner(&self) -> &Owner {
        match self {
            Ask::Lock(request) => request.owner(),
            Ask::Open { opener, .. } => opener,
        }
    }
}

/// A batch of news from one file.
const BATCH: usize = 16;

#[derive(Default)]
struct News {
    ended: [Option<Ended<Ticket>>; BATCH],
    offers: [Option<Arc<ThreadWait>>; BATCH],
    breaks: [Option<LeaseBreak>; BATCH],
}

impl News {
    /// Gathers what fits; whether there was any.
    fn gather(&mut self, table: &mut Table<Ticket>) -> bool {
        let mut any = false;
        for slot in &mut self.ended {
            *slot = table.next_ended();
            any |= slot.is_some();
            if slot.is_none() {
                break;
            }
        }
        for slot in &mut self.offers {
            *slot = match table.next_offer() {
                Some((_, Ticket::Sleeper(Sleeper::Thread(wait)))) => Some(wait.clone()),
                _ => break,
            };
            any = true;
        }
        for slot in &mut self.breaks {
            *slot = table.next_break();
            any |= slot.is_some();
            if slot.is_none() {
                break;
            }
        }
        any
    }

    /// Tells everybody.
    fn bring(&mut self, file: &FileHandle) {
        for slot in &mut self.offers {
            if let Some(wait) = slot.take() {
                wait.offer();
            }
        }
        for slot in &mut self.ended {
            if let Some(ended) = slot.take() {
                guard(|| {
                    events::wait_ended(file.id(), &ended.request, &ended.result);
                    ended.ticket.deliver_grant(ended.result, ended.before);
                });
            }
        }
        for slot in &mut self.breaks {
            if let Some(lease_break) = slot.take() {
                let (shared, id) = (file.shared.clone(), file.id());
                call(move || shared.tell_break(id, &lease_break));
            }
        }
    }
}

impl FileHandle {
    /// Brings all news of the file, and looks for cycles that a grant of `granted`
    /// or to a waiter may have closed, or a waiter that queues anew. To be called with the file's mutex after
    /// whatever may have made news.
    #[cold]
    pub(crate) fn bring_news<'a>(
        &'a self,
        mut table: TableGuard<'a, Table<Ticket>>,
        granted: Option<&Request>,
    ) {
        let mut suspects = Vec::new();
        if let Some(request) = granted {
            self.suspect(&table, request, &mut suspects);
        }
        loop {
            let mut news = News::default();
            let any = news.gather(&mut table);
            for ended in news.ended.iter().flatten() {
                // Before asking whether its owner waits: not for this any more.
                self.leave(&ended.ticket, ended.request.owner(), ended.id);
                if ended.result.is_ok() {
                    self.suspect(&table, &ended.request, &mut suspects);
                }
            }
            while let Some(id) = table.next_requeued() {
                if self.may_close_cycle(&table, id) && !suspects.contains(&id) {
                    suspects.push(id);
                }
            }
            if !any {
                let deadline = table.next_deadline();
                drop(table);
                self.schedule_leases(deadline);
                break;
            }
            drop(table);
            news.bring(self);
            table = self.file.table.lock();
        }
        for id in suspects {
            self.look_for_cycle(id);
        }
    }

    /// Notes those whom a lock just granted makes wait for its owner, if that owner
    /// waits itself somewhere.
    fn suspect(&self, table: &Table<Ticket>, granted: &Request, suspects: &mut Vec<WaiterId>) {
        if table.has_waiters() && self.shared.registry.is_waiting(granted.owner()) {
            table.visit_blocked_by(granted, &mut |id| suspects.push(id));
        }
    }

    /// Takes a wait that has ended off the books.
    pub(crate) fn leave(&self, ticket: &Ticket, owner: &Owner, id: WaiterId) {
        self.shared.registry.end(owner, &self.file, id);
        if let Ticket::Callback(callback, _) = ticket {
            let timer = self.shared.callbacks.end(*callback);
            if let Some(timer) = timer {
                self.shared.timer.forget(timer);
            }
        }
    }

    /// Starts what is asked for: done at once, or waiting, and then on the books
    /// and known to close no cycle.
    ///
    /// # Errors
    /// The table's, with the ticket.
    pub(crate) fn begin(
        &self,
        ask: &Ask,
        ticket: Ticket,
        may_be_offered: bool,
    ) -> Result<Lock<Ticket>, (LockError, Ticket)> {
        // The time under the mutex, so that it runs forwards for the table.
        let mut table = self.file.table.lock();
        let cx = self.shared.context(self.shared.clock.now());
        let begun = match ask {
            Ask::Lock(request) if may_be_offered => {
                table.lock_by_offer(request.clone(), ticket, cx)
            }
            Ask::Lock(request) => table.lock(request.clone(), ticket, cx),
            Ask::Open {
                opener,
                access,
                scope,
            } => table.break_leases(opener, *access, *scope, ticket, cx),
        };
        let Ok(Lock::Waiting(id)) = begun else {
            let granted = match ask {
                Ask::Lock(request) if begun.is_ok() => Some(request),
                _ => None,
            };
            self.bring_news(table, granted);
            return begun;
        };
        if let Ok((_, Ticket::Callback(callback, _))) = table.waiting(id) {
            self.shared.callbacks.note(*callback, id);
        }
        self.shared.registry.begin(ask.owner(), &self.file, id);
        let may_close_cycle = self.may_close_cycle(&table, id);
        self.bring_news(table, None);
        if may_close_cycle {
            self.look_for_cycle(id);
        }
        Ok(Lock::Waiting(id))
    }

    /// Whether somebody whom this request waits for may wait himself.
    fn may_close_cycle(&self, table: &Table<Ticket>, id: WaiterId) -> bool {
        let mut may = false;
        if table.has_queued() {
            self.shared.has_queued.store(1, Ordering::SeqCst);
        }
        table.visit_blockers(id, &mut |owner, _| {
            may = self.shared.registry.is_waiting(owner);
            !may
        });
        may
    }

    /// Blocks the calling thread until what is asked for is done.
    pub(crate) fn wait(&self, ask: &Ask, options: WaitOptions<'_>) -> Outcome {
        let wait = Arc::new(ThreadWait::new());
        let (deadline, by_hand) = match options.timeout {
            None => (None, None),
            Some(timeout) if self.shared.clock.is_manual() => {
                (None, Some(self.shared.clock.now().after(timeout)))
            }
            Some(timeout) => (Instant::now().checked_add(timeout), None),
        };
        let id = match self.begin(ask, Ticket::Sleeper(Sleeper::Thread(wait.clone())), true) {
            Ok(Lock::Granted(_)) => return Ok(()),
            Ok(Lock::Waiting(id)) => id,
            Err((error, _)) => return Err(error),
        };
        if let Some(interrupt) = options.interrupt {
            interrupt.aim(Some((self.clone(), id)));
        }
        let timer = by_hand.map(|at| {
            let due = Due::Cancel(self.file.clone(), id);
            self.shared.set_timer(at, due)
        });
        let outcome = self.sleep(&wait, id, deadline);
        if let Some(timer) = timer {
            self.shared.timer.forget(timer);
        }
        if let Some(interrupt) = options.interrupt {
            interrupt.aim(None);
        }
        outcome
    }

    fn sleep(&self, wait: &ThreadWait, id: WaiterId, mut deadline: Option<Instant>) -> Outcome {
        loop {
            match wait.state.load(Ordering::Acquire) {
                FINISHED => {
                    return lock(&wait.outcome)
                        .take()
                        .unwrap_or(Err(LockError::Interrupted));
                }
                OFFERED => {
                    // Before the claim, which may lead to the next offer.
                    let _ = wait.state.compare_exchange(
                        OFFERED,
                        ASLEEP,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    );
                    if let Some(outcome) = self.claim(id) {
                        return outcome;
                    }
                }
                _ => match deadline {
                    None => park(),
                    Some(end) => match end.checked_duration_since(Instant::now()) {
                        Some(left) if !left.is_zero() => park_timeout(left),
                        _ => {
                            deadline = None;
                            if self.withdraw(id).is_ok() {
                                return Err(LockError::TimedOut);
                            }
                            // Another outcome was quicker; it is on its way.
                        }
                    },
                },
            }
        }
    }

    /// Comes for a lock that was offered; `None` if it must wait on.
    fn claim(&self, id: WaiterId) -> Option<Outcome> {
        let cx = self.shared.context(self.shared.clock.recent());
        let mut table = self.file.table.lock();
        match table.claim(id, cx) {
            Ok(Some(ended)) => {
                self.leave(&ended.ticket, ended.request.owner(), id);
                let granted = ended.result.is_ok().then_some(&ended.request);
                self.bring_news(table, granted);
                events::wait_ended(self.id(), &ended.request, &ended.result);
                Some(ended.result)
            }
            Ok(None) => {
                let may_close_cycle = self.may_close_cycle(&table, id);
                self.bring_news(table, None);
                if may_close_cycle {
                    self.look_for_cycle(id);
                }
                None
            }
            // It has ended, and its outcome is on the way.
            Err(NotWaiting) => None,
        }
    }

    /// Ends a wait with EINTR: for the wait of another thread, task or callback,
    /// which is told.
    ///
    /// # Errors
    /// `NotWaiting` (ENOENT) if nothing waits under this id, or what did has
    /// ended: its outcome stands.
    pub fn cancel(&self, id: WaiterId) -> Result<(), NotWaiting> {
        self.cancel_with(id, LockError::Interrupted)
    }

    pub(crate) fn cancel_with(&self, id: WaiterId, error: LockError) -> Result<(), NotWaiting> {
        let ticket = self.withdraw(id)?;
        ticket.deliver(Err(error));
        Ok(())
    }

    /// Ends a wait and returns its ticket, with nobody told.
    pub(crate) fn withdraw(&self, id: WaiterId) -> Result<Ticket, NotWaiting> {
        let cx = self.shared.context(self.shared.clock.now());
        let mut table = self.file.table.lock();
        let owner = table.waiting(id)?.0.owner().clone();
        let ticket = table.cancel(id, cx)?;
        self.leave(&ticket, &owner, id);
        self.bring_news(table, None);
        Ok(ticket)
    }
}

#[cfg(not(loom))]
fn park_timeout(left: Duration) {
    std::thread::park_timeout(left);
}

/// Loom has no time: a timeout is modelled by a thread that cancels.
#[cfg(loom)]
fn park_timeout(_left: Duration) {
    park();
}
