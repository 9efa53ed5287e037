//! The executor over the library: actors are model processes, and every call that waits is a callback.
//!
//! Nothing here sleeps and no thread runs. A process is a table of descriptors, a descriptor leads to an
//! open file description, and a description to a file of a [`LockManager`]. A blocked call is a wait with a
//! callback, which only takes down what came of it; the executor looks there after each step. So a run
//! depends on its script alone, and takes no time: the clock is moved by `pass`, and by `done` on a call
//! that only time can end.
//!
//! What Linux does around its locks is modelled here, in the order in which it does it: which calls are
//! refused before a lock is looked for (`calls`), what a closed descriptor takes with it (`processes`),
//! how an open counts while it waits for a lease (`opening`). What Linux does with its locks is the
//! library's part. After every step all invariants of every table are checked.

mod calls;
mod listing;
mod opening;
mod picture;
mod processes;
mod waits;

pub use picture::LEGEND;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper::{
    CallbackId, Fairness, FileHandle, FileId, LockError, LockManager, OpenFileId, Owner, ProcessId,
};

use crate::executor::{Executor, ExecutorError};
use crate::script::*;

/// How long `done` waits, in the time of the run.
const PATIENCE: Duration = Duration::from_secs(5);
/// The kernel's own, where a script does not say.
const BREAK_TIME: Duration = Duration::from_secs(45);

/// Runs scripts on the library.
pub struct Library {
    fairness: Fairness,
    break_time: Duration,
    manager: LockManager,
    post: Arc<Mutex<Post>>,
    processes: Vec<Process>,
    threads: HashMap<Actor, Thread>,
    files: Vec<File>,
    names: HashMap<FileName, usize>,
    descriptions: Vec<Description>,
    /// How many calls may have had to wait so far.
    calls: u64,
}

/// What the manager has told by callback and is yet to be acted on.
#[derive(Default)]
struct Post {
    ended: Vec<(CallbackId, Result<(), LockError>)>,
    /// The processes whose leases are being broken.
    breaks: Vec<ProcessId>,
}

/// A process. Its index, counted from 1, is the number by which the library knows it.
struct Process {
    /// The actor that began it, whose name listings show.
    name: Actor,
    /// By number, the lowest free one being given to the next.
    descriptors: Vec<Option<Open>>,
    /// Has been told of a lease break and not been asked since.
    notified: bool,
}

#[derive(Clone)]
struct Open {
    name: Descriptor,
    description: usize,
}

struct Thread {
    process: usize,
    pending: Option<Pending>,
}

/// A call that may wait, from when it is made until its result is collected.
struct Pending {
    id: CallbackId,
    verb: Verb,
    /// The description that the call uses, of which it holds a reference while it waits.
    description: usize,
    /// The descriptor has been closed by another thread.
    closed: bool,
    result: Option<Outcome>,
}

/// An open file description, or what counts as one: an open or a truncation that waits for a lease.
///
/// Its index is the number by which the library knows it.
struct Description {
    file: usize,
    access: Access,
    offset: i64,
    /// Descriptors and calls that use it.
    references: usize,
    /// The process that opened it.
    opener: usize,
}

struct File {
    id: FileId,
    handle: FileHandle,
    size: i64,
}

/// What came of a part of a step.
type Carried<T> = Result<T, ExecutorError>;

impl Library {
    /// An executor whose waiters can be overtaken as `fairness` says. Linux is
    /// [`Fairness::Unlimited`].
    pub fn new(fairness: Fairness) -> Self {
        let post = Arc::default();
        Self {
            fairness,
            break_time: BREAK_TIME,
            manager: manager(fairness, BREAK_TIME, &post),
            post,
            processes: Vec::new(),
            threads: HashMap::new(),
            files: Vec::new(),
            names: HashMap::new(),
            descriptions: Vec::new(),
            calls: 0,
        }
    }

    /// Sets the lease break time, which a manager has from its beginning: there is a new one.
    fn set_break_time(&mut self, time: Duration) -> Carried<Outcome> {
        if time != self.break_time {
            if !self.manager.snapshot().is_empty() {
                let reason =
                    "the library's lease break time cannot change while something is locked";
                return Err(ExecutorError::Unsupported(reason.to_owned()));
            }
            self.break_time = time;
            self.manager = manager(self.fairness, time, &self.post);
            for file in &mut self.files {
                file.handle = self.manager.file(file.id);
            }
        }
        Ok(Outcome::Ok)
    }

    fn carry_out(&mut self, step: &Step) -> Carried<Outcome> {
        let outcome = match step {
            Step::BreakTime(seconds) => {
                self.set_break_time(Duration::from_secs((*seconds).into()))?
            }
            Step::Pass(seconds) => {
                self.manager.advance(Duration::from_secs((*seconds).into()));
                Outcome::Ok
            }
            Step::Held(file) => self.held(file)?,
            Step::Waiting(file) => self.waiting(file)?,
            Step::Act { actor, verb } => self.act(actor, verb)?,
        };
        self.settle();
        for file in &self.files {
            file.handle.check_invariants();
        }
        Ok(outcome)
    }

    fn post(&self) -> MutexGuard<'_, Post> {
        self.post.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn thread(&self, name: &Actor) -> Carried<&Thread> {
        let thread = self.threads.get(name);
        thread.ok_or_else(|| ExecutorError::Misuse(format!("{name} is dead")))
    }

    fn thread_mut(&mut self, name: &Actor) -> Carried<&mut Thread> {
        let thread = self.threads.get_mut(name);
        thread.ok_or_else(|| ExecutorError::Misuse(format!("{name} is dead")))
    }

    /// The number of an open descriptor, and its description.
    fn open(&self, name: &Actor, fd: &Descriptor) -> Carried<(usize, usize)> {
        let process = &self.processes[self.thread(name)?.process];
        let mut numbered = process.descriptors.iter().enumerate();
        numbered
            .find_map(|(number, open)| {
                let open = open.as_ref().filter(|open| open.name == *fd)?;
                Some((number, open.description))
            })
            .ok_or_else(|| ExecutorError::Misuse(format!("{name} has no descriptor `{fd}`")))
    }

    fn file_named(&self, name: &FileName) -> Carried<usize> {
        let file = self.names.get(name).copied();
        file.ok_or_else(|| ExecutorError::Misuse(format!("no file is named `{name}`")))
    }

    /// The file of a description.
    fn file_of(&self, description: usize) -> &File {
        &self.files[self.descriptions[description].file]
    }
}

fn manager(fairness: Fairness, break_time: Duration, post: &Arc<Mutex<Post>>) -> LockManager {
    let post = Arc::clone(post);
    LockManager::builder()
        .manual_clock()
        .fairness(fairness)
        .lease_break_time(Some(break_time))
        .on_lease_break(move |_, lease_break| {
            let mut post = post.lock().unwrap_or_else(PoisonError::into_inner);
            post.breaks.push(lease_break.taken_by);
        })
        .build()
}

impl Executor for Library {
    fn begin(&mut self) -> Result<(), ExecutorError> {
        *self = Self::new(self.fairness);
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<Outcome, ExecutorError> {
        // A broken invariant is a finding about the library, like a wrong result.
        catch_unwind(AssertUnwindSafe(|| self.carry_out(step))).unwrap_or_else(|panic| {
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
            let reason = words.unwrap_or("no message").to_owned();
            Err(ExecutorError::Broken(reason))
        })
    }

    fn end(&mut self) -> Result<(), ExecutorError> {
        self.begin()
    }

    fn picture(&mut self) -> Option<String> {
        Some(self.draw())
    }
}

/// The process with this index, as the library knows it. 0 is nobody there.
fn process_id(process: usize) -> ProcessId {
    ProcessId(process as u64 + 1)
}

/// The index of a process that the library names.
fn process_index(id: ProcessId) -> Option<usize> {
    usize::try_from(id.0).ok()?.checked_sub(1)
}

fn open_file_id(description: usize) -> OpenFileId {
    OpenFileId(description as u64)
}

fn posix_owner(process: usize) -> Owner {
    process_id(process).into()
}

fn error(error: &LockError) -> Outcome {
    Outcome::Error(Errno(error.errno().raw()))
}

fn plain(result: Result<(), LockError>) -> Outcome {
    result.map_or_else(|failed| error(&failed), |()| Outcome::Ok)
}
