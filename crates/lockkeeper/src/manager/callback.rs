//! Waits with a callback in place of a sleeper, as lock servers need them.

use core::time::Duration;

use hashbrown::{HashMap, hash_map::Entry};

use super::file::File;
use super::handle::FileHandle;
use super::timer::{Due, TimerKey};
use super::wait::{Ask, Outcome, Ticket};
use crate::error::LockError;
use crate::lock::WaiterId;
use crate::sync::{Arc, Mutex, lock};
use crate::table::Lock;

/// Names a wait with a callback, by the server's own choice: a request's number,
/// a cookie. No two may wait in one manager under the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallbackId(pub u64);

/// What came of a request with a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// Granted at once; the callback is not called.
    Granted,
    /// It waits; the callback will be called, or has been already.
    Waiting(WaiterId),
}

pub(crate) type Deliver = Box<dyn FnOnce(Outcome) + Send>;

struct Waiting {
    file: Arc<File>,
    /// [`STARTING`] until it waits.
    id: WaiterId,
}

const STARTING: WaiterId = WaiterId {
    slot: u32::MAX,
    stamp: 0,
};

/// Kept small: there is an entry for each wait, but few have a timer.
#[derive(Default)]
struct Books {
    waiting: HashMap<CallbackId, Waiting>,
    timers: HashMap<CallbackId, TimerKey>,
}

/// The waits with callbacks of a manager, by their ids.
pub(crate) struct Callbacks {
    books: Mutex<Books>,
}

impl Callbacks {
    pub(crate) fn new() -> Callbacks {
        Callbacks {
            books: Mutex::new(Books::default()),
        }
    }

    /// Takes the id for a request that is about to start.
    fn take(&self, id: CallbackId, file: &Arc<File>) -> Result<(), LockError> {
        match lock(&self.books).waiting.entry(id) {
            Entry::Occupied(entry) => Err(LockError::AlreadyWaiting(entry.get().id)),
            Entry::Vacant(entry) => {
                entry.insert(Waiting {
                    file: file.clone(),
                    id: STARTING,
                });
                Ok(())
            }
        }
    }

    /// Notes under which id it waits. Called with the file's mutex, so before it
    /// can end.
    pub(crate) fn note(&self, id: CallbackId, waiter: WaiterId) {
        if let Some(waiting) = lock(&self.books).waiting.get_mut(&id) {
            waiting.id = waiter;
        }
    }

    /// Notes its timer; gives it back if the wait has ended in the meantime, and
    /// its id is free or another's.
    fn note_timer(
        &self,
        id: CallbackId,
        file: &Arc<File>,
        waiter: WaiterId,
        timer: TimerKey,
    ) -> Option<TimerKey> {
        let books = &mut *lock(&self.books);
        match books.waiting.get(&id) {
            Some(waiting) if waiting.id == waiter && Arc::ptr_eq(&waiting.file, file) => {
                books.timers.insert(id, timer)
            }
            _ => Some(timer),
        }
    }

    pub(crate) fn find(&self, id: CallbackId) -> Option<(Arc<File>, WaiterId)> {
        let books = lock(&self.books);
        let found = books.waiting.get(&id)?;
        (found.id != STARTING).then(|| (found.file.clone(), found.id))
    }

    /// Frees the id of a wait that has ended; returns its timer.
    pub(crate) fn end(&self, id: CallbackId) -> Option<TimerKey> {
        let books = &mut *lock(&self.books);
        books.waiting.remove(&id);
        let timer = match books.timers.is_empty() {
            true => None,
            false => books.timers.remove(&id),
        };
        if books.waiting.is_empty() && books.waiting.capacity() > 64 {
            *books = Books::default();
        }
        timer
    }
}

impl FileHandle {
    pub(crate) fn begin_callback(
        &self,
        id: CallbackId,
        ask: &Ask,
        timeout: Option<Duration>,
        deliver: Deliver,
    ) -> Result<Started, LockError> {
        self.shared.callbacks.take(id, &self.file)?;
        match self.begin(ask, Ticket::Callback(id, deliver), false) {
            Ok(Lock::Granted(_)) => {
                self.shared.callbacks.end(id);
                Ok(Started::Granted)
            }
            Ok(Lock::Waiting(waiter)) => {
                if let Some(timeout) = timeout {
                    let at = self.shared.clock.now().after(timeout);
                    let timer = self
                        .shared
                        .set_timer(at, Due::Cancel(self.file.clone(), waiter));
                    let callbacks = &self.shared.callbacks;
                    let unused = callbacks.note_timer(id, &self.file, waiter, timer);
                    if let Some(timer) = unused {
                        self.shared.timer.forget(timer);
                    }
                }
                Ok(Started::Waiting(waiter))
            }
            Err((error, _)) => {
                self.shared.callbacks.end(id);
                Err(error)
            }
        }
    }
}
