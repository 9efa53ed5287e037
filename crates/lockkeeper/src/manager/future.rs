//! Waits as futures, for any executor.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::fmt;

use super::handle::FileHandle;
use super::timer::{Due, TimerKey};
use super::wait::{Ask, Outcome, Sleeper, TaskWait, Ticket};
use crate::error::LockError;
use crate::lock::{LockType, WaiterId};
use crate::range::Range;
use crate::sync::Arc;
use crate::table::Lock;

/// A request that waits without a thread; see
/// [`Records::lock_async`](crate::Records::lock_async).
///
/// Dropped before it is done, it leaves nothing behind: a wait is cancelled, and
/// a grant that came in between is given back, so that the owner holds what it
/// held before.
#[must_use = "futures do nothing unless polled"]
pub struct LockFuture {
    file: FileHandle,
    ask: Ask,
    timeout: Option<Duration>,
    state: State,
}

enum State {
    New,
    Waiting(Waiting),
    Done,
}

struct Waiting {
    id: WaiterId,
    wait: Arc<TaskWait>,
    timer: Option<TimerKey>,
}

impl LockFuture {
    pub(crate) fn new(file: FileHandle, ask: Ask) -> LockFuture {
        LockFuture {
            file,
            ask,
            timeout: None,
            state: State::New,
        }
    }

    /// Gives up after this long from the first poll, with ETIMEDOUT. The
    /// manager's timer keeps the time, so that no executor's is needed.
    pub fn timeout(mut self, timeout: Duration) -> LockFuture {
        self.timeout = Some(timeout);
        self
    }

    pub(crate) fn or_timeout(mut self, timeout: Option<Duration>) -> LockFuture {
        self.timeout = timeout;
        self
    }

    fn start(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        if let Ask::Lock(request) = &self.ask {
            match self.file.try_lock(request) {
                Err(LockError::Conflict(_) | LockError::Queued(_)) => {}
                result => {
                    self.state = State::Done;
                    return Poll::Ready(result);
                }
            }
        }
        let wait = Arc::new(TaskWait::new(cx.waker().clone()));
        self.state = State::Done;
        match self.file.begin(
            &self.ask,
            Ticket::Sleeper(Sleeper::Task(wait.clone())),
            false,
        ) {
            Ok(Lock::Granted(_)) => Poll::Ready(Ok(())),
            Err((error, _)) => Poll::Ready(Err(error)),
            Ok(Lock::Waiting(id)) => {
                let timer = self.timeout.map(|timeout| {
                    let shared = &self.file.shared;
                    let at = shared.clock.now().after(timeout);
                    shared.set_timer(at, Due::Cancel(self.file.file.clone(), id))
                });
                self.state = State::Waiting(Waiting { id, wait, timer });
                // The outcome may have come while it was being started.
                self.poll_outcome(cx)
            }
        }
    }

    fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let State::Waiting(waiting) = &self.state else {
            return Poll::Ready(Err(LockError::Interrupted));
        };
        let Some(outcome) = waiting.wait.poll(cx.waker()) else {
            return Poll::Pending;
        };
        if let Some(timer) = waiting.timer {
            self.file.shared.timer.forget(timer);
        }
        self.state = State::Done;
        Poll::Ready(outcome)
    }
}

impl Future for LockFuture {
    type Output = Result<(), LockError>;

    /// Polled again after it was done, it reports EINTR and does nothing.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.state {
            State::New => self.start(cx),
            State::Waiting(_) | State::Done => self.poll_outcome(cx),
        }
    }
}

impl Drop for LockFuture {
    fn drop(&mut self) {
        let State::Waiting(waiting) = core::mem::replace(&mut self.state, State::Done) else {
            return;
        };
        if let Some(timer) = waiting.timer {
            self.file.shared.timer.forget(timer);
        }
        if self.file.withdraw(waiting.id).is_ok() {
            return;
        }
        // The outcome was quicker. Whether it has been brought yet or not, a
        // grant is known by the outcome alone: the owner may hold the bytes for
        // another reason.
        let outcome = waiting.wait.abandon(self.file.clone(), self.ask.clone());
        if let Some((Ok(()), before)) = outcome {
            self.file.give_back(&self.ask, &before);
        }
    }
}

impl FileHandle {
    /// Undoes a grant that nobody came for.
    pub(crate) fn give_back(&self, ask: &Ask, before: &[(Range, LockType)]) {
        if let Ask::Lock(request) = ask {
            let cx = self.shared.context(self.shared.clock.now());
            let mut table = self.file.table.lock();
            table.give_back(request, before, cx);
            self.bring_news(table, None);
        }
    }
}

impl fmt::Debug for LockFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::New => "new",
            State::Waiting(_) => "waiting",
            State::Done => "done",
        };
        f.debug_struct("LockFuture")
            .field("file", &self.file)
            .field("ask", &self.ask)
            .field("state", &state)
            .finish()
    }
}
