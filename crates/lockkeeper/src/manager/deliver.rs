//! Calling other people's code: callbacks, wakers, listeners.
//!
//! # Never one within another
//! A callback may unlock, which may grant the next request, whose callback may
//! unlock, and so on: called from within one another they would need a stack as
//! deep as the queue is long. So a thread that is in such a call puts further
//! ones in a queue, and the outermost works it off in order. They are still
//! called by the thread that made the news and before its outermost call on the
//! manager returns.
//!
//! # Panics
//! A panic of such code is the embedder's. The panic hook reports it, and it goes
//! no further: the thread that makes the news is a stranger to whose callback it
//! calls, perhaps the timer's, and must neither end for it nor leave a wait of its
//! own half begun.
//!
//! Wakers are called at once, also within a callback, since a thread may sleep in
//! one until its task is woken. They do not grant anything.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::sync::thread_local;

type Calls = VecDeque<Box<dyn FnOnce()>>;

thread_local! {
    /// The calls to make when the present one is over; `None` outside of one.
    static LATER: RefCell<Option<Calls>> = RefCell::new(None);
}

/// Makes a call now, or right after the one that this thread is in. Not to be
/// called with any mutex of the manager.
pub(crate) fn call(foreign: impl FnOnce() + 'static) {
    let mut foreign = Some(foreign);
    let is_nested = LATER.try_with(|later| match &mut *later.borrow_mut() {
        Some(calls) => {
            if let Some(foreign) = foreign.take() {
                calls.push_back(Box::new(foreign));
            }
        }
        none => *none = Some(Calls::new()),
    });
    let Some(foreign) = foreign else {
        return;
    };
    guard(foreign);
    // A thread that is ending has no queue any more, and calls right away.
    if is_nested.is_ok() {
        while let Some(next) = next() {
            guard(next);
        }
    }
}

/// The next call that was put off; ends the queue where there is none.
fn next() -> Option<Box<dyn FnOnce()>> {
    let next = LATER.try_with(|later| {
        let mut later = later.borrow_mut();
        let next = later.as_mut().and_then(VecDeque::pop_front);
        if next.is_none() {
            *later = None;
        }
        next
    });
    next.unwrap_or(None)
}

/// Calls foreign code, whose panic ends here.
pub(crate) fn guard(call: impl FnOnce()) {
    // What the call leaves behind broken is its own; the manager's state is under
    // mutexes that no foreign code runs under. The panic hook has reported it.
    let _ = catch_unwind(AssertUnwindSafe(call));
}
