//! The executor for a folder of a file system: one real process an actor, real system calls.
//!
//! The executor's own process makes no lock call. It asks actors over one channel each (`protocol`), and
//! keeps which name stands for which descriptor, so that an actor is nothing but a process that makes
//! calls (`actor`). Threads of an actor are threads of its process, `fork` is fork(2) of it, `exec`
//! replaces it by the same program. The first actor is never used by a script: every process that is born
//! at its first mention is forked from it, which costs far less than to start a program.
//!
//! A call is blocked when the kernel shows that its thread waits for a lock (`posture`), or, where that
//! cannot be told, when it has not returned for a [settling time](Options::settling).
//!
//! Whatever becomes of the run, a further process ends all others and removes their files (`caretaker`).

mod actor;
mod calls;
mod caretaker;
mod files;
mod listing;
mod posture;
mod processes;
mod protocol;
mod settle;
mod start;
mod sys;
mod terms;
mod verbs;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::Duration;

use rustix::io::Errno as SystemErrno;
use rustix::process::Signal;

pub use listing::{Entry, FileIdentity, Listing, ProcLocks};

use crate::executor::{Executor, ExecutorError};
use crate::script::*;
use calls::wait_for_reply;
use posture::Probe;
use protocol::Call;
use start::{fresh_folder, start};

/// The first argument with which a program that uses this executor is started again as an actor. It then
/// has to call [`actor_main`] with the arguments that follow.
pub const ACTOR_COMMAND: &str = "script-actor";

/// The argument after [`ACTOR_COMMAND`] with which `exec` continues an actor.
const RESUME: &str = "resume";

/// What a program does that was started as an actor: see [`ACTOR_COMMAND`].
pub fn actor_main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    match arguments.as_slice() {
        [] => caretaker::main(sys::adopt(0)),
        [resume, channel] if resume == RESUME => actor::resume(channel),
        _ => {
            eprintln!("lockkeeper: `{ACTOR_COMMAND}` is for lockkeeper's own use");
            ExitCode::from(2)
        }
    }
}

/// How a [`Directory`] works.
#[derive(Debug)]
pub struct Options {
    /// The program that is started as an actor.
    pub program: PathBuf,
    /// How long a call must not have returned to count as blocked, where the kernel does not show that it
    /// waits for a lock.
    pub settling: Duration,
    /// Waits for the settling time always, whatever the kernel shows.
    pub strict: bool,
    /// How long `done` waits, and how long a call that cannot wait may take.
    pub patience: Duration,
}

impl Options {
    /// 100 ms of settling, 5 s of patience, actors from `program`.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            settling: Duration::from_millis(100),
            strict: false,
            patience: Duration::from_secs(5),
        }
    }
}

/// Runs scripts in a folder of a file system.
pub struct Directory {
    options: Options,
    listing: Box<dyn Listing>,
    /// The folder of this run, removed at the end.
    folder: PathBuf,
    caretaker: Child,
    lifeline: Option<OwnedFd>,
    /// The channel of the process from which others are forked.
    seed: OwnedFd,
    break_time_changed: bool,
    processes: Vec<Process>,
    actors: HashMap<Actor, Thread>,
    files: HashMap<FileName, FileIdentity>,
    descriptions: Vec<Description>,
    /// How many calls have blocked: the order in which requests came.
    arrivals: u64,
}

struct Process {
    /// The actor that began it, whose name listings show.
    name: Actor,
    pid: i32,
    pidfd: OwnedFd,
    alive: bool,
    descriptors: HashMap<Descriptor, Open>,
}

#[derive(Clone, Copy)]
struct Open {
    number: i32,
    /// Index in `Directory::descriptions`.
    description: usize,
}

/// An open file description.
struct Description {
    file: FileName,
    /// Which process took which bytes by an OFD lock, the latest last.
    taken: Vec<(Span, usize)>,
}

struct Thread {
    process: usize,
    tid: i32,
    channel: OwnedFd,
    probe: Probe,
    pending: Option<Pending>,
    alive: bool,
}

struct Pending {
    verb: Verb,
    /// The file that the call is about.
    file: FileName,
    /// The description that it uses, whose descriptor may be closed while it waits.
    description: Option<usize>,
    arrival: u64,
    result: Option<Outcome>,
}

/// What came of a part of a step.
type Carried<T> = Result<T, ExecutorError>;

impl Directory {
    /// An executor on a fresh folder in `directory`, whose locks /proc/locks lists.
    ///
    /// # Errors
    /// No folder can be made there, or no process can be started.
    pub fn new(directory: &Path, options: Options) -> Result<Self, ExecutorError> {
        Self::with_listing(directory, options, Box::new(ProcLocks::default()))
    }

    /// As [`Directory::new`], with another listing.
    ///
    /// # Errors
    /// As [`Directory::new`].
    pub fn with_listing(
        directory: &Path,
        options: Options,
        listing: Box<dyn Listing>,
    ) -> Result<Self, ExecutorError> {
        let folder = fresh_folder(directory)?;
        match start(&options.program, &folder) {
            Ok((caretaker, lifeline, seed)) => Ok(Self {
                options,
                listing,
                folder,
                caretaker,
                lifeline: Some(lifeline),
                seed,
                break_time_changed: false,
                processes: Vec::new(),
                actors: HashMap::new(),
                files: HashMap::new(),
                descriptions: Vec::new(),
                arrivals: 0,
            }),
            Err(error) => {
                // Nothing is in it yet; the first error is the one to tell.
                let _ = fs::remove_dir(&folder);
                Err(error)
            }
        }
    }

    /// Sets the lease break time, or restores it with -1.
    fn set_break_time(&mut self, seconds: i64) -> Carried<()> {
        let failed = |errno: SystemErrno| {
            let what = match errno {
                SystemErrno::ACCESS | SystemErrno::PERM | SystemErrno::ROFS => {
                    format!("cannot set {} (it needs root)", caretaker::BREAK_TIME)
                }
                _ => format!("cannot set {}", caretaker::BREAK_TIME),
            };
            ExecutorError::place(what, errno)
        };
        let Some(lifeline) = &self.lifeline else {
            return Err(failed(SystemErrno::PIPE));
        };
        protocol::send_request(lifeline, Call::BreakTime, &[seconds], &[], None).map_err(failed)?;
        // Another run may have changed the setting, and this one waits until it has restored it.
        match wait_for_reply(lifeline, Duration::from_secs(300)) {
            Ok(Some(reply)) => reply.map(drop).map_err(failed),
            Ok(None) => Err(failed(SystemErrno::PIPE)),
            Err(errno) => Err(failed(errno)),
        }
    }
}

impl Executor for Directory {
    fn begin(&mut self) -> Result<(), ExecutorError> {
        self.end()
    }

    fn step(&mut self, step: &Step) -> Result<Outcome, ExecutorError> {
        let outcome = match step {
            Step::BreakTime(seconds) => {
                self.break_time_changed = true;
                self.set_break_time(i64::from(*seconds))?;
                Outcome::Ok
            }
            Step::Pass(seconds) => {
                std::thread::sleep(Duration::from_secs(u64::from(*seconds)));
                Outcome::Ok
            }
            Step::Held(file) => self.held(file)?,
            Step::Waiting(file) => self.waiting(file)?,
            Step::Act { actor, verb } => self.act(actor, verb)?,
        };
        // Whatever the step has set going comes to rest before the next.
        self.settle(false)?;
        Ok(outcome)
    }

    fn end(&mut self) -> Result<(), ExecutorError> {
        let mut result = Ok(());
        for process in &self.processes {
            if process.alive {
                // An error says that it has ended by itself.
                let _ = rustix::process::pidfd_send_signal(&process.pidfd, Signal::KILL);
            }
        }
        for process in 0..self.processes.len() {
            if self.processes[process].alive {
                result = result.and(self.kill(process));
            }
        }
        self.processes.clear();
        self.actors.clear();
        self.descriptions.clear();
        self.arrivals = 0;
        for (_, file) in self.files.drain() {
            match fs::remove_file(&file.path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    let what = format!("cannot remove {}", file.path.display());
                    result = result.and(Err(ExecutorError::place(what, error)));
                }
                _ => {}
            }
        }
        if self.break_time_changed {
            self.break_time_changed = false;
            result = result.and(self.set_break_time(-1));
        }
        result
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Its end of the lifeline closes: the caretaker ends what is left, and then itself.
        self.lifeline = None;
        let _ = self.caretaker.wait();
    }
}
