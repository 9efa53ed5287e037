//! A lock manager as small as it can be, to test the mount without the library: a list of locks, a list
//! of waiters that are all tried again whenever something is released. No deadlock detection.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper_mount::{
    Conflict, DeferredReply, Errno, FileId, IoRequest, LockClass, LockKind, LockRequest,
    LockService, Owner, Range, RequestId,
};

#[derive(Clone, Copy, Debug)]
struct Held {
    file: FileId,
    owner: Owner,
    class: LockClass,
    kind: LockKind,
    range: Range,
    pid: u32,
}

enum Waiter {
    Lock(LockRequest, DeferredReply),
    Io(IoRequest, DeferredReply),
}

#[derive(Default)]
struct Lists {
    held: Vec<Held>,
    waiters: Vec<Waiter>,
}

/// The lock manager.
#[derive(Default)]
pub struct ListLocks(Mutex<Lists>);

fn overlap(a: Range, b: Range) -> bool {
    a.start <= b.end && b.start <= a.end
}

impl Lists {
    fn conflict(&self, request: &LockRequest) -> Option<Held> {
        let flock = |class| class == LockClass::Flock;
        self.held.iter().copied().find(|held| {
            held.file == request.file
                && flock(held.class) == flock(request.class)
                && held.owner != request.owner
                && overlap(held.range, request.range)
                && (held.kind == LockKind::Write || request.kind == LockKind::Write)
        })
    }

    fn io_conflict(&self, io: &IoRequest) -> bool {
        self.held.iter().any(|held| {
            held.file == io.file
                && held.class != LockClass::Flock
                && Some(held.owner) != io.process
                && Some(held.owner) != io.open_file
                && overlap(held.range, io.range)
                && (held.kind == LockKind::Write || io.write)
        })
    }

    fn remove(&mut self, file: FileId, owner: Owner, class: LockClass, range: Range) {
        let mut kept = Vec::new();
        for held in self.held.drain(..) {
            if held.file != file
                || held.owner != owner
                || held.class != class
                || !overlap(held.range, range)
            {
                kept.push(held);
                continue;
            }
            if held.range.start < range.start {
                kept.push(Held {
                    range: Range {
                        start: held.range.start,
                        end: range.start - 1,
                    },
                    ..held
                });
            }
            if held.range.end > range.end {
                kept.push(Held {
                    range: Range {
                        start: range.end + 1,
                        end: held.range.end,
                    },
                    ..held
                });
            }
        }
        self.held = kept;
    }

    fn set(&mut self, request: &LockRequest) -> Result<(), Errno> {
        if request.kind != LockKind::Unlock && self.conflict(request).is_some() {
            return Err(Errno::AGAIN);
        }
        self.remove(request.file, request.owner, request.class, request.range);
        if request.kind != LockKind::Unlock {
            self.held.push(Held {
                file: request.file,
                owner: request.owner,
                class: request.class,
                kind: request.kind,
                range: request.range,
                pid: request.pid,
            });
        }
        Ok(())
    }

    fn retry(&mut self) -> Vec<DeferredReply> {
        let mut granted = Vec::new();
        for waiter in std::mem::take(&mut self.waiters) {
            match waiter {
                Waiter::Lock(request, reply) => match self.set(&request) {
                    Ok(()) => granted.push(reply),
                    Err(_) => self.waiters.push(Waiter::Lock(request, reply)),
                },
                Waiter::Io(io, reply) if self.io_conflict(&io) => {
                    self.waiters.push(Waiter::Io(io, reply))
                }
                Waiter::Io(_, reply) => granted.push(reply),
            }
        }
        granted
    }
}

impl ListLocks {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LockService for ListLocks {
    fn getlk(&self, query: &LockRequest) -> Result<Option<Conflict>, Errno> {
        let lists = self.lists();
        let found = match query.kind {
            LockKind::Unlock => lists.held.iter().copied().find(|held| {
                held.file == query.file
                    && held.owner == query.owner
                    && overlap(held.range, query.range)
            }),
            _ => lists.conflict(query),
        };
        Ok(found.map(|held| Conflict {
            kind: held.kind,
            range: held.range,
            pid: held.pid,
        }))
    }

    fn setlk(&self, request: &LockRequest) -> Result<(), Errno> {
        let mut lists = self.lists();
        lists.set(request)?;
        let granted = lists.retry();
        drop(lists);
        granted.into_iter().for_each(|reply| reply.send(Ok(())));
        Ok(())
    }

    fn setlkw(&self, request: &LockRequest, reply: DeferredReply) {
        let mut lists = self.lists();
        // A flock conversion gives up what it had.
        if request.class == LockClass::Flock && lists.conflict(request).is_some() {
            lists.remove(request.file, request.owner, request.class, request.range);
        }
        let mut ready = Vec::new();
        match lists.set(request) {
            Ok(()) => ready.push(reply),
            Err(_) => lists.waiters.push(Waiter::Lock(*request, reply)),
        }
        ready.extend(lists.retry());
        drop(lists);
        ready.into_iter().for_each(|reply| reply.send(Ok(())));
    }

    fn interrupt(&self, id: RequestId) {
        let mut lists = self.lists();
        let found = lists.waiters.iter().position(|waiter| match waiter {
            Waiter::Lock(_, reply) | Waiter::Io(_, reply) => reply.id() == id,
        });
        let waiter = found.map(|index| lists.waiters.remove(index));
        drop(lists);
        if let Some(Waiter::Lock(_, reply) | Waiter::Io(_, reply)) = waiter {
            reply.send(Err(Errno::INTR));
        }
    }

    fn close_owner(&self, file: FileId, owner: Owner) {
        let mut lists = self.lists();
        lists
            .held
            .retain(|held| held.file != file || held.owner != owner);
        let granted = lists.retry();
        drop(lists);
        granted.into_iter().for_each(|reply| reply.send(Ok(())));
    }

    fn admit_io(&self, io: &IoRequest, admission: DeferredReply) {
        let mut lists = self.lists();
        if !lists.io_conflict(io) {
            drop(lists);
            admission.send(Ok(()));
        } else if io.nonblocking {
            drop(lists);
            admission.send(Err(Errno::AGAIN));
        } else {
            lists.waiters.push(Waiter::Io(*io, admission));
        }
    }

    fn listing(&self) -> serde_json::Value {
        let lists = self.lists();
        serde_json::json!({ "held": lists.held.len(), "waiting": lists.waiters.len() })
    }

    fn shut_down(&self) {
        // Dropped replies say EIO.
        drop(std::mem::take(&mut self.lists().waiters));
    }
}
