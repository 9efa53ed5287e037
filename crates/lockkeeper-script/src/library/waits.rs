//! Calls that may wait: how they begin, end, are interrupted, and give back what came too late.

use lockkeeper::{Started, Waits};

use super::*;

/// Takes down what came of a wait.
pub(super) type Answer = Box<dyn FnOnce(Result<(), LockError>) + Send>;

impl Pending {
    /// Whether the call asks for a lock of the process.
    pub(super) fn is_posix(&self) -> bool {
        matches!(&self.verb, Verb::Set { record, .. } if record.kind == RecordKind::Posix)
    }
}

impl Library {
    /// Makes a call that may wait, with a reference of the description while it does; returns its result
    /// or that it is blocked.
    pub(super) fn begin_wait(
        &mut self,
        name: &Actor,
        verb: &Verb,
        description: usize,
        start: impl FnOnce(&Self, CallbackId, Answer) -> Result<Started, LockError>,
    ) -> Carried<Outcome> {
        self.calls += 1;
        let id = CallbackId(self.calls);
        self.descriptions[description].references += 1;
        self.thread_mut(name)?.pending = Some(Pending {
            id,
            verb: verb.clone(),
            description,
            closed: false,
            result: None,
        });
        let post = Arc::clone(&self.post);
        let answer: Answer = Box::new(move |result| {
            let mut post = post.lock().unwrap_or_else(PoisonError::into_inner);
            post.ended.push((id, result));
        });
        match start(self, id, answer) {
            Ok(Started::Granted) => self.finish(id, Ok(())),
            Ok(Started::Waiting(_)) => {}
            Err(error) => self.finish(id, Err(error)),
        }
        self.settle();
        let pending = &mut self.thread_mut(name)?.pending;
        Ok(match pending.take_if(|pending| pending.result.is_some()) {
            Some(pending) => pending.result.unwrap_or(Outcome::Blocked),
            None => Outcome::Blocked,
        })
    }

    pub(super) fn pending(&self, name: &Actor) -> Carried<&Pending> {
        let pending = self.thread(name)?.pending.as_ref();
        pending.ok_or_else(|| ExecutorError::Misuse(format!("{name} has no call out")))
    }

    /// Acts on all that the manager has told, and on what follows from that.
    pub(super) fn settle(&mut self) {
        loop {
            let Post { ended, breaks } = std::mem::take(&mut *self.post());
            if ended.is_empty() && breaks.is_empty() {
                return;
            }
            for process in breaks.into_iter().filter_map(process_index) {
                self.processes[process].notified = true;
            }
            for (id, result) in ended {
                self.finish(id, result);
            }
        }
    }

    /// A call returns: to whoever made it, unless he is gone.
    fn finish(&mut self, id: CallbackId, result: Result<(), LockError>) {
        let mut threads = self.threads.values_mut();
        let found = threads.find_map(|thread| {
            let pending = thread.pending.as_ref()?;
            let waits = pending.id == id && pending.result.is_none();
            waits.then(|| {
                (
                    thread.process,
                    pending.verb.clone(),
                    pending.description,
                    pending.closed,
                )
            })
        });
        let Some((process, verb, description, closed)) = found else {
            return;
        };
        let mut outcome = plain(result);
        match &verb {
            Verb::Open { fd, .. } if outcome == Outcome::Ok => {
                self.install(process, fd, description);
            }
            Verb::Resize { size, .. } if outcome == Outcome::Ok => {
                let file = self.descriptions[description].file;
                self.files[file].size = *size;
            }
            // fcntl(2) looks at the descriptor once more. What it stood for is closed, and so the process
            // loses all its locks on the file again.
            Verb::Set { record, .. } if record.kind == RecordKind::Posix => {
                let too_late = closed && outcome == Outcome::Ok;
                if too_late || outcome == Outcome::Error(Errno::EBADF) {
                    outcome = Outcome::Error(Errno::EBADF);
                    let owner = posix_owner(process);
                    self.file_of(description)
                        .handle
                        .release_owner(&owner, Waits::Keep);
                }
            }
            _ => {}
        }
        for thread in self.threads.values_mut() {
            if let Some(pending) = thread.pending.as_mut().filter(|pending| pending.id == id) {
                pending.result = Some(outcome.clone());
            }
        }
        self.let_go(description);
    }

    /// Ends the wait of a call whose result nobody will look at.
    pub(super) fn abandon(&mut self, pending: &Pending) {
        if pending.result.is_none() {
            // An error says that it ends by itself, and has done so when its result comes in.
            let _ = self.manager.cancel_callback(pending.id);
            self.settle();
            self.let_go(pending.description);
        }
    }

    pub(super) fn signal(&mut self, name: &Actor, restart: bool) -> Carried<Outcome> {
        let waiting = self.thread(name)?.pending.as_ref();
        let Some(pending) = waiting.filter(|pending| pending.result.is_none()) else {
            return Ok(Outcome::Ok);
        };
        let (id, verb) = (pending.id, pending.verb.clone());
        // An error says that the wait ends by itself: the signal comes too late.
        if self.manager.cancel_callback(id).is_err() {
            return Ok(Outcome::Ok);
        }
        self.settle();
        if restart {
            self.begin_anew(name, &verb)?;
        }
        Ok(Outcome::Ok)
    }

    /// Makes an interrupted call again, which looks for its descriptor again.
    fn begin_anew(&mut self, name: &Actor, verb: &Verb) -> Carried<()> {
        let interrupted = self.thread_mut(name)?.pending.take();
        let is_gone = verb
            .descriptor()
            .is_some_and(|fd| self.open(name, fd).is_err());
        let outcome = match is_gone {
            true => Outcome::Error(Errno::EBADF),
            false => self.act(name, verb)?,
        };
        if outcome != Outcome::Blocked {
            self.thread_mut(name)?.pending = interrupted.map(|pending| Pending {
                result: Some(outcome),
                ..pending
            });
        }
        Ok(())
    }

    /// Takes the result of a call, moving the clock on where only time can bring it.
    pub(super) fn collect(&mut self, name: &Actor) -> Carried<Outcome> {
        let moment = Duration::from_millis(100);
        let mut waited = Duration::ZERO;
        while self.pending(name)?.result.is_none() && waited < PATIENCE {
            self.manager.advance(moment);
            self.settle();
            waited += moment;
        }
        let pending = &mut self.thread_mut(name)?.pending;
        let collected = pending.take_if(|pending| pending.result.is_some());
        Ok(collected
            .and_then(|pending| pending.result)
            .unwrap_or(Outcome::Blocked))
    }
}
