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
mod caretaker;
mod listing;
mod posture;
mod protocol;
mod sys;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno as SystemErrno;
use rustix::process::{Pid, PidfdFlags, Signal};

pub use listing::{Entry, FileIdentity, Listing, ProcLocks};

use crate::executor::{Executor, ExecutorError};
use crate::script::*;
use posture::{Posture, Probe};
use protocol::{Call, Reply};

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
    arrival: u64,
    result: Option<Outcome>,
}

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

    fn act(&mut self, name: &Actor, verb: &Verb) -> Carried<Outcome> {
        self.be_born(name)?;
        match verb {
            Verb::Open {
                fd,
                file,
                access,
                nonblock,
            } => {
                let path = self.create(file)?;
                let mode = match access {
                    Access::Read => OFlags::RDONLY,
                    Access::Write => OFlags::WRONLY,
                    Access::ReadWrite => OFlags::RDWR,
                };
                let flags = if *nonblock {
                    mode | OFlags::NONBLOCK
                } else {
                    mode
                };
                let numbers = [flags.bits().into()];
                let path = path.as_os_str().as_bytes();
                if *nonblock {
                    let reply = self.call(name, verb, Call::Open, &numbers, path)?;
                    Ok(self.opened(name, fd, file, reply))
                } else {
                    self.call_that_may_wait(name, verb, Call::Open, &numbers, path)
                }
            }
            Verb::Dup { fd, new } => {
                let old = self.open(name, fd)?;
                let reply = self.call(name, verb, Call::Dup, &[old.number.into()], &[])?;
                if let Ok([number, ..]) = reply {
                    let twin = Open {
                        number: small(number),
                        ..old
                    };
                    self.process(name)?.descriptors.insert(new.clone(), twin);
                }
                Ok(plain(reply))
            }
            Verb::Close { fd } => {
                let number = self.open(name, fd)?.number;
                let reply = self.call(name, verb, Call::Close, &[number.into()], &[])?;
                if reply.is_ok() {
                    self.process(name)?.descriptors.remove(fd);
                }
                Ok(plain(reply))
            }
            Verb::Seek { fd, offset } => self.call_on(name, verb, fd, Call::Seek, *offset),
            Verb::Truncate { fd, size } => self.call_on(name, verb, fd, Call::Truncate, *size),
            Verb::Resize { file, size } => {
                let path = self.path(file)?;
                let path = path.as_os_str().as_bytes();
                self.call_that_may_wait(name, verb, Call::Resize, &[*size], path)
            }
            Verb::Link { file, new } => {
                let from = self.path(file)?;
                let to = self.folder.join(new.as_str());
                let paths = [from.as_os_str().as_bytes(), to.as_os_str().as_bytes()].join(&0);
                let reply = self.call(name, verb, Call::Link, &[], &paths)?;
                if reply.is_ok() {
                    let mut identity = self.identity(file)?.clone();
                    identity.path = to;
                    self.files.insert(new.clone(), identity);
                }
                Ok(plain(reply))
            }
            Verb::Fork { child } => self.fork(name, verb, child),
            Verb::Thread { thread } => self.begin_thread(name, verb, thread),
            Verb::Exec => self.exec(name, verb),
            Verb::Exit => self.exit(name, verb),
            Verb::Kill => {
                let process = self.thread(name)?.process;
                self.kill(process).map(|()| Outcome::Ok)
            }
            Verb::Signal { restart } => {
                let signal = match restart {
                    true => actor::RESTART,
                    false => actor::INTERRUPT,
                };
                self.signal(name, signal)?;
                if *restart {
                    self.restarted(name)?;
                }
                Ok(Outcome::Ok)
            }
            Verb::Set { record, wait } => {
                let open = self.open(name, &record.fd)?;
                let numbers = record_numbers(open.number, record, set_command(record.kind, *wait));
                if *wait {
                    self.call_that_may_wait(name, verb, Call::Record, &numbers, &[])
                } else {
                    let reply = self.call(name, verb, Call::Record, &numbers, &[])?;
                    let outcome = plain(reply);
                    self.note_taken(name, record, &outcome)?;
                    Ok(outcome)
                }
            }
            Verb::Query { record } => {
                let open = self.open(name, &record.fd)?;
                let command = match record.kind {
                    RecordKind::Posix => libc::F_GETLK,
                    RecordKind::Ofd => libc::F_OFD_GETLK,
                };
                let numbers = record_numbers(open.number, record, command);
                let reply = self.call(name, verb, Call::Record, &numbers, &[])?;
                Ok(self.found(reply))
            }
            Verb::Flock {
                fd,
                lock_type,
                wait,
            } => {
                let operation = match lock_type {
                    LockType::Read => libc::LOCK_SH,
                    LockType::Write => libc::LOCK_EX,
                    LockType::Unlock => libc::LOCK_UN,
                };
                let nonblock = if *wait { 0 } else { libc::LOCK_NB };
                let number = self.open(name, fd)?.number;
                let numbers = [number.into(), (operation | nonblock).into()];
                if *wait {
                    self.call_that_may_wait(name, verb, Call::Flock, &numbers, &[])
                } else {
                    self.call(name, verb, Call::Flock, &numbers, &[]).map(plain)
                }
            }
            Verb::Lease { fd, lock_type } => self.call_on(
                name,
                verb,
                fd,
                Call::SetLease,
                type_number(*lock_type).into(),
            ),
            Verb::LeaseQuery { fd } => {
                let number = self.open(name, fd)?.number;
                let reply = self.call(name, verb, Call::GetLease, &[number.into()], &[])?;
                Ok(match reply {
                    Ok([lease, ..]) => lock_type(lease).map_or(Outcome::None, Outcome::Lease),
                    Err(errno) => error(errno),
                })
            }
            Verb::Done => self.collect(name),
            Verb::Blocked => {
                self.settle(true)?;
                Ok(match &self.pending(name)?.result {
                    None => Outcome::Blocked,
                    Some(result) => result.clone(),
                })
            }
            Verb::Notified => {
                let patience = match self.options.strict {
                    true => self.options.settling.as_millis(),
                    false => 0,
                };
                let patience = i64::try_from(patience).unwrap_or(0);
                let reply = self.call(name, verb, Call::Notified, &[patience], &[])?;
                Ok(match reply {
                    Ok([0, ..]) => Outcome::None,
                    Ok(_) => Outcome::Ok,
                    Err(errno) => error(errno),
                })
            }
        }
    }

    // ----- Calls -----------------------------------------------------------------------------------------

    fn send(
        &self,
        name: &Actor,
        call: Call,
        numbers: &[i64],
        path: &[u8],
        passed: Option<&OwnedFd>,
    ) -> Carried<()> {
        let channel = &self.thread(name)?.channel;
        protocol::send_request(channel, call, numbers, path, passed).map_err(|_| lost(name))
    }

    /// Makes a call that cannot wait.
    fn call(
        &mut self,
        name: &Actor,
        verb: &Verb,
        call: Call,
        numbers: &[i64],
        path: &[u8],
    ) -> Carried<Reply> {
        self.send(name, call, numbers, path, None)?;
        self.reply(name, verb)
    }

    /// Makes a call that cannot wait, with a descriptor and one argument.
    fn call_on(
        &mut self,
        name: &Actor,
        verb: &Verb,
        fd: &Descriptor,
        call: Call,
        argument: i64,
    ) -> Carried<Outcome> {
        let number = self.open(name, fd)?.number;
        self.call(name, verb, call, &[number.into(), argument], &[])
            .map(plain)
    }

    /// The reply to a call that cannot wait. A process that does not answer is killed.
    fn reply(&mut self, name: &Actor, verb: &Verb) -> Carried<Reply> {
        let thread = self.thread(name)?;
        let process = thread.process;
        match wait_for_reply(&thread.channel, self.options.patience) {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(lost(name)),
            Err(_) => {
                let pid = self.processes[process].pid;
                self.kill(process)?;
                Err(ExecutorError::Hung {
                    actor: name.clone(),
                    call: verb.to_string(),
                    pid,
                })
            }
        }
    }

    /// Makes a call that may wait, and returns its result or that it is blocked.
    fn call_that_may_wait(
        &mut self,
        name: &Actor,
        verb: &Verb,
        call: Call,
        numbers: &[i64],
        path: &[u8],
    ) -> Carried<Outcome> {
        self.send(name, call, numbers, path, None)?;
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.thread_mut(name)?.pending = Some(Pending {
            verb: verb.clone(),
            arrival,
            result: None,
        });
        self.settle(true)?;
        if self.pending(name)?.result.is_some() {
            return self.collect(name);
        }
        Ok(Outcome::Blocked)
    }

    /// Takes the result of the actor's pending call, waiting for it.
    fn collect(&mut self, name: &Actor) -> Carried<Outcome> {
        if self.pending(name)?.result.is_none() {
            match wait_for_reply(&self.thread(name)?.channel, self.options.patience) {
                Ok(Some(reply)) => self.returned(name, reply)?,
                Ok(None) => return Err(lost(name)),
                Err(_) => return Ok(Outcome::Blocked),
            }
        }
        let pending = self.thread_mut(name)?.pending.take();
        Ok(pending
            .and_then(|pending| pending.result)
            .unwrap_or(Outcome::Blocked))
    }

    /// Takes note of what a call that could wait has returned.
    fn returned(&mut self, name: &Actor, reply: Reply) -> Carried<()> {
        let verb = self.pending(name)?.verb.clone();
        let outcome = match &verb {
            Verb::Open { fd, file, .. } => self.opened(name, fd, file, reply),
            Verb::Set { record, .. } => {
                let outcome = plain(reply);
                self.note_taken(name, record, &outcome)?;
                outcome
            }
            _ => plain(reply),
        };
        if let Some(pending) = &mut self.thread_mut(name)?.pending {
            pending.result = Some(outcome);
        }
        Ok(())
    }

    fn opened(&mut self, name: &Actor, fd: &Descriptor, file: &FileName, reply: Reply) -> Outcome {
        if let Ok([number, ..]) = reply {
            self.descriptions.push(Description {
                file: file.clone(),
                taken: Vec::new(),
            });
            let open = Open {
                number: small(number),
                description: self.descriptions.len() - 1,
            };
            if let Ok(process) = self.process(name) {
                process.descriptors.insert(fd.clone(), open);
            }
        }
        plain(reply)
    }

    /// Keeps who set an OFD lock, which the kernel does not tell.
    fn note_taken(&mut self, name: &Actor, record: &Record, outcome: &Outcome) -> Carried<()> {
        if record.kind == RecordKind::Ofd && *outcome == Outcome::Ok {
            let process = self.thread(name)?.process;
            // The descriptor may have been closed while the call waited, and its lock is gone then.
            if let Ok(open) = self.open(name, &record.fd) {
                let span = absolute(&record.range);
                let taken = &mut self.descriptions[open.description].taken;
                taken.retain(|(earlier, _)| *earlier != span);
                taken.push((span, process));
            }
        }
        Ok(())
    }

    fn found(&self, reply: Reply) -> Outcome {
        let [l_type, _, start, len, pid, ..] = match reply {
            Ok(numbers) => numbers,
            Err(errno) => return error(errno),
        };
        match lock_type(l_type) {
            None | Some(LockType::Unlock) => Outcome::Free,
            Some(lock_type) => Outcome::Conflict {
                lock_type,
                span: Span { start, len },
                by: match pid {
                    -1 => Holder::Ofd,
                    pid => Holder::Actor(self.name_of(small(pid))),
                },
            },
        }
    }

    // ----- Settling --------------------------------------------------------------------------------------

    /// Waits until every call that is out has returned or waits for a lock, and takes the results.
    ///
    /// Where the kernel does not show that a call waits, the settling time decides. It is spent only where
    /// something `depends` on it.
    fn settle(&mut self, depends: bool) -> Carried<()> {
        let names: Vec<Actor> = self
            .actors
            .iter()
            .filter(|(_, thread)| {
                matches!(&thread.pending, Some(Pending { result: None, .. })) && thread.alive
            })
            .map(|(name, _)| name.clone())
            .collect();
        let begin = Instant::now();
        let mut last_look = Vec::new();
        let mut open = names;
        while !open.is_empty() {
            let mut changed = false;
            let mut running = false;
            let mut asleep = false;
            let mut look = Vec::with_capacity(open.len());
            let mut still_open = Vec::with_capacity(open.len());
            for name in open {
                match self.take_result(&name)? {
                    true => changed = true,
                    false => {
                        match self.posture(&name)? {
                            Posture::Running => running = true,
                            Posture::Asleep => asleep = true,
                            Posture::Waiting { runs } => look.push(runs),
                        }
                        still_open.push(name);
                    }
                }
            }
            open = still_open;
            if !changed && !running {
                let seen = !asleep && !self.options.strict;
                // Twice the same look: every thread slept from the end of the first to the begin of the
                // second, all at once.
                if seen && look == last_look {
                    return Ok(());
                }
                if !seen && (!depends || begin.elapsed() >= self.options.settling) {
                    return Ok(());
                }
            }
            if begin.elapsed() > self.options.patience {
                return Ok(());
            }
            let quiet = !changed && !running && !asleep && !self.options.strict;
            last_look = if quiet { look } else { Vec::new() };
            if !quiet || last_look.is_empty() {
                self.pause(&open, if asleep { 1000 } else { 60 })?;
            }
        }
        Ok(())
    }

    /// Waits a moment for any of these to return.
    fn pause(&self, names: &[Actor], microseconds: i64) -> Carried<()> {
        let mut channels = Vec::with_capacity(names.len());
        for name in names {
            channels.push(PollFd::new(&self.thread(name)?.channel, PollFlags::IN));
        }
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: microseconds * 1000,
        };
        // An interrupted pause is short, which does no harm.
        let _ = rustix::event::poll(&mut channels, Some(&timeout));
        Ok(())
    }

    /// Takes the result of a call that is out, if it has come.
    fn take_result(&mut self, name: &Actor) -> Carried<bool> {
        match protocol::take_reply(&self.thread(name)?.channel) {
            Ok(Some(reply)) => self.returned(name, reply).map(|()| true),
            Err(SystemErrno::AGAIN) => Ok(false),
            Ok(None) | Err(_) => Err(lost(name)),
        }
    }

    fn posture(&mut self, name: &Actor) -> Carried<Posture> {
        let thread = self.thread(name)?;
        let posture = thread.probe.posture().map_err(|_| lost(name))?;
        if posture != Posture::Asleep {
            return Ok(posture);
        }
        let pid = self.processes[thread.process].pid;
        let file = match &self.pending(name)?.verb {
            Verb::Open { file, .. } | Verb::Resize { file, .. } => Some(file.clone()),
            verb => verb
                .descriptor()
                .and_then(|fd| self.open(name, fd).ok())
                .map(|open| self.descriptions[open.description].file.clone()),
        };
        let identity = file.and_then(|file| self.files.get(&file).cloned());
        let shown = identity.is_some_and(|file| self.listing.shows_waiter(&file, pid));
        Ok(match shown {
            true => Posture::Waiting { runs: 0 },
            false => Posture::Asleep,
        })
    }

    // ----- Processes -------------------------------------------------------------------------------------

    /// Begins the actor's process at its first mention.
    fn be_born(&mut self, name: &Actor) -> Carried<()> {
        if self.actors.contains_key(name) {
            return Ok(());
        }
        let failed = |errno: SystemErrno| {
            ExecutorError::place(format!("cannot start a process for {name}"), errno)
        };
        let (ours, theirs) = protocol::channel().map_err(failed)?;
        protocol::send_request(&self.seed, Call::Fork, &[], &[], Some(&theirs)).map_err(failed)?;
        drop(theirs);
        match wait_for_reply(&self.seed, self.options.patience) {
            Ok(Some(reply)) => reply.map_err(failed)?,
            Ok(None) => return Err(lost(name)),
            Err(errno) => return Err(failed(errno)),
        };
        self.welcome(name, ours, None, HashMap::new())
    }

    /// Takes in an actor that says hello: a thread of `process`, or a new process with `descriptors`.
    fn welcome(
        &mut self,
        name: &Actor,
        channel: OwnedFd,
        process: Option<usize>,
        descriptors: HashMap<Descriptor, Open>,
    ) -> Carried<()> {
        let [pid, tid, ..] = match wait_for_reply(&channel, self.options.patience) {
            Ok(Some(Ok(numbers))) => numbers,
            _ => return Err(lost(name)),
        };
        let (pid, tid) = (small(pid), small(tid));
        let probe = Probe::new(pid, tid).map_err(|_| lost(name))?;
        let process = match process {
            Some(process) => process,
            None => {
                let pidfd = Pid::from_raw(pid)
                    .ok_or(SystemErrno::SRCH)
                    .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()))
                    .map_err(|_| lost(name))?;
                self.processes.push(Process {
                    name: name.clone(),
                    pid,
                    pidfd,
                    alive: true,
                    descriptors,
                });
                self.processes.len() - 1
            }
        };
        let thread = Thread {
            process,
            tid,
            channel,
            probe,
            pending: None,
            alive: true,
        };
        self.actors.insert(name.clone(), thread);
        Ok(())
    }

    /// Asks the actor for a fork or a thread, with a channel for it.
    fn beget(
        &mut self,
        name: &Actor,
        verb: &Verb,
        call: Call,
    ) -> Carried<Result<OwnedFd, Outcome>> {
        let (ours, theirs) = match protocol::channel() {
            Ok(ends) => ends,
            Err(errno) => return Err(ExecutorError::place("cannot make a channel", errno)),
        };
        self.send(name, call, &[], &[], Some(&theirs))?;
        drop(theirs);
        let reply = self.reply(name, verb)?;
        Ok(reply.map(|_| ours).map_err(error))
    }

    fn fork(&mut self, name: &Actor, verb: &Verb, child: &Actor) -> Carried<Outcome> {
        match self.beget(name, verb, Call::Fork)? {
            Err(outcome) => Ok(outcome),
            Ok(channel) => {
                let descriptors = self.process(name)?.descriptors.clone();
                self.welcome(child, channel, None, descriptors)?;
                Ok(Outcome::Ok)
            }
        }
    }

    fn begin_thread(&mut self, name: &Actor, verb: &Verb, new: &Actor) -> Carried<Outcome> {
        match self.beget(name, verb, Call::Thread)? {
            Err(outcome) => Ok(outcome),
            Ok(channel) => {
                let process = self.thread(name)?.process;
                self.welcome(new, channel, Some(process), HashMap::new())?;
                Ok(Outcome::Ok)
            }
        }
    }

    fn exec(&mut self, name: &Actor, verb: &Verb) -> Carried<Outcome> {
        let reply = self.call(name, verb, Call::Exec, &[], &[])?;
        let Ok([_, tid, ..]) = reply else {
            return Ok(plain(reply));
        };
        let process = self.thread(name)?.process;
        for (other, thread) in &mut self.actors {
            thread.alive &= thread.process != process || other == name;
        }
        let pid = self.processes[process].pid;
        let tid = small(tid);
        let probe = Probe::new(pid, tid).map_err(|_| lost(name))?;
        let thread = self.thread_mut(name)?;
        thread.tid = tid;
        thread.probe = probe;
        Ok(Outcome::Ok)
    }

    fn exit(&mut self, name: &Actor, verb: &Verb) -> Carried<Outcome> {
        let thread = self.thread(name)?;
        let process = thread.process;
        match &thread.pending {
            Some(Pending { result: None, .. }) => self.signal(name, actor::EXIT)?,
            _ => self.send(name, Call::Exit, &[], &[], None)?,
        }
        match wait_for_end(&self.processes[process].pidfd, self.options.patience) {
            true => {
                self.bury(process);
                Ok(Outcome::Ok)
            }
            false => {
                let pid = self.processes[process].pid;
                self.kill(process)?;
                Err(ExecutorError::Hung {
                    actor: name.clone(),
                    call: verb.to_string(),
                    pid,
                })
            }
        }
    }

    /// A call that is restarted makes its request anew, behind those that came before.
    fn restarted(&mut self, name: &Actor) -> Carried<()> {
        let arrival = self.arrivals;
        if let Some(pending) = &mut self.thread_mut(name)?.pending {
            pending.arrival = arrival;
            self.arrivals += 1;
        }
        Ok(())
    }

    fn signal(&self, name: &Actor, signal: i32) -> Carried<()> {
        let thread = self.thread(name)?;
        let pid = self.processes[thread.process].pid;
        sys::signal_thread(pid, thread.tid, signal).map_err(|_| lost(name))
    }

    /// Kills a process and waits until it holds nothing.
    fn kill(&mut self, process: usize) -> Carried<()> {
        let Process { pid, pidfd, .. } = &self.processes[process];
        // An error says that it has ended by itself.
        let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
        // A process shows its end only when its descriptors are closed.
        if !wait_for_end(pidfd, self.options.patience) {
            return Err(ExecutorError::place(
                format!("process {pid}"),
                "it has been killed and does not end",
            ));
        }
        self.bury(process);
        Ok(())
    }

    fn bury(&mut self, process: usize) {
        self.processes[process].alive = false;
        for thread in self.actors.values_mut() {
            if thread.process == process {
                thread.alive = false;
                thread.pending = None;
            }
        }
    }

    fn thread(&self, name: &Actor) -> Carried<&Thread> {
        match self.actors.get(name) {
            Some(thread) if thread.alive => Ok(thread),
            _ => Err(ExecutorError::Misuse(format!("{name} is dead"))),
        }
    }

    fn thread_mut(&mut self, name: &Actor) -> Carried<&mut Thread> {
        match self.actors.get_mut(name) {
            Some(thread) if thread.alive => Ok(thread),
            _ => Err(ExecutorError::Misuse(format!("{name} is dead"))),
        }
    }

    fn process(&mut self, name: &Actor) -> Carried<&mut Process> {
        let process = self.thread(name)?.process;
        Ok(&mut self.processes[process])
    }

    fn pending(&self, name: &Actor) -> Carried<&Pending> {
        self.thread(name)?
            .pending
            .as_ref()
            .ok_or_else(|| ExecutorError::Misuse(format!("{name} has no call out")))
    }

    fn open(&self, name: &Actor, fd: &Descriptor) -> Carried<Open> {
        let process = self.thread(name)?.process;
        self.processes[process]
            .descriptors
            .get(fd)
            .copied()
            .ok_or_else(|| ExecutorError::Misuse(format!("{name} has no descriptor `{fd}`")))
    }

    /// The actor that began the process with this pid.
    fn name_of(&self, pid: i32) -> Actor {
        let process = self
            .processes
            .iter()
            .rev()
            .find(|process| process.pid == pid);
        process.map_or_else(|| Actor::outsider(pid), |process| process.name.clone())
    }

    // ----- Files and listings ----------------------------------------------------------------------------

    /// The path of the file, which is created where it is new.
    fn create(&mut self, file: &FileName) -> Carried<PathBuf> {
        if let Some(identity) = self.files.get(file) {
            return Ok(identity.path.clone());
        }
        let path = self.folder.join(file.as_str());
        let created = fs::File::options()
            .write(true)
            .create_new(true)
            .open(&path)
            .and_then(|created| created.metadata());
        let metadata = created.map_err(|error| {
            ExecutorError::place(format!("cannot create {}", path.display()), error)
        })?;
        let identity = FileIdentity {
            path: path.clone(),
            device: metadata.dev(),
            inode: metadata.ino(),
        };
        self.files.insert(file.clone(), identity);
        Ok(path)
    }

    fn identity(&self, file: &FileName) -> Carried<&FileIdentity> {
        self.files
            .get(file)
            .ok_or_else(|| ExecutorError::Misuse(format!("there is no file `{file}`")))
    }

    fn path(&self, file: &FileName) -> Carried<PathBuf> {
        self.identity(file).map(|identity| identity.path.clone())
    }

    fn list(&mut self, file: &FileName, waiting: bool) -> Carried<Vec<Entry>> {
        self.settle(true)?;
        let identity = self.identity(file)?.clone();
        let mut entries = self
            .listing
            .entries(&identity)
            .map_err(|error| ExecutorError::place("cannot list the locks", error))?;
        entries.retain(|entry| entry.waiting == waiting);
        Ok(entries)
    }

    fn held(&mut self, file: &FileName) -> Carried<Outcome> {
        let entries = self.list(file, false)?;
        let takers = match entries.iter().any(|entry| entry.kind == ItemKind::Ofd) {
            true => self.ofd_takers(file),
            false => Vec::new(),
        };
        let mut unclaimed = takers;
        let mut items: Vec<Item> = entries
            .iter()
            .map(|entry| {
                let span = Span::inclusive(entry.start, entry.end);
                let actor = match (entry.kind, entry.pid) {
                    (ItemKind::Ofd, _) | (_, None) => {
                        let claim = unclaimed.iter().position(|(taken, _)| *taken == span);
                        claim.map_or_else(
                            || Actor::outsider(-1),
                            |claim| unclaimed.swap_remove(claim).1,
                        )
                    }
                    (_, Some(pid)) => self.name_of(pid),
                };
                item(entry, actor)
            })
            .collect();
        Item::sort(&mut items);
        Ok(Outcome::Listing(items))
    }

    /// The OFD locks of the file, by what the descriptors of living processes keep, with their takers.
    fn ofd_takers(&self, file: &FileName) -> Vec<(Span, Actor)> {
        let mut seen = Vec::new();
        let mut takers = Vec::new();
        for process in self.processes.iter().filter(|process| process.alive) {
            for open in process.descriptors.values() {
                let description = &self.descriptions[open.description];
                let used = !description.taken.is_empty();
                let of_the_file = self.files.get(&description.file).map(|file| file.inode)
                    == self.files.get(file).map(|file| file.inode);
                if !used || !of_the_file || seen.contains(&open.description) {
                    continue;
                }
                seen.push(open.description);
                for (start, end) in listing::ofd_locks_of(process.pid, open.number) {
                    let taker = description
                        .taken
                        .iter()
                        .rev()
                        .find(|(span, _)| span.start <= start && start <= span.end())
                        .or(description.taken.last());
                    if let Some((_, taker)) = taker {
                        let name = self.processes[*taker].name.clone();
                        takers.push((Span::inclusive(start, end), name));
                    }
                }
            }
        }
        takers
    }

    fn waiting(&mut self, file: &FileName) -> Carried<Outcome> {
        let entries = self.list(file, true)?;
        let mut calls: Vec<(u64, &Thread, &Pending)> = self
            .actors
            .values()
            .filter_map(|thread| {
                let pending = thread.pending.as_ref()?;
                (pending.result.is_none()).then_some((pending.arrival, thread, pending))
            })
            .collect();
        calls.sort_by_key(|(arrival, ..)| *arrival);
        let mut items: Vec<(u64, Item)> = entries
            .iter()
            .map(|entry| {
                let call = best_match(&calls, |(_, thread, pending)| {
                    let pid = self.processes[thread.process].pid;
                    likeness(entry, pid, &pending.verb)
                });
                match call {
                    Some(call) => {
                        let (arrival, thread, _) = calls.remove(call);
                        let name = self.processes[thread.process].name.clone();
                        (arrival, item(entry, name))
                    }
                    None => {
                        let name = match entry.pid {
                            Some(pid) => self.name_of(pid),
                            None => Actor::outsider(-1),
                        };
                        (u64::MAX, item(entry, name))
                    }
                }
            })
            .collect();
        items.sort_by_key(|(arrival, _)| *arrival);
        let items = items.into_iter().map(|(_, item)| item).collect();
        Ok(Outcome::Listing(items))
    }

    // ----- The caretaker ---------------------------------------------------------------------------------

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

/// A new folder in `directory`.
fn fresh_folder(directory: &Path) -> Carried<PathBuf> {
    static FOLDERS: AtomicU32 = AtomicU32::new(0);
    let failed = |error: std::io::Error| {
        let what = format!(
            "cannot make a folder for the script's files in {}",
            directory.display()
        );
        ExecutorError::place(what, error)
    };
    let directory = fs::canonicalize(directory).map_err(failed)?;
    loop {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = directory.join(format!("lockkeeper-{}-{number}", std::process::id()));
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            // Left by a process of the same number, long ago.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Starts the caretaker and the first actor: the caretaker, its lifeline, the actor's channel.
fn start(program: &Path, folder: &Path) -> Carried<(Child, OwnedFd, OwnedFd)> {
    let failed = |error: &dyn std::fmt::Display| {
        ExecutorError::place(
            format!("cannot start {} as an actor", program.display()),
            error,
        )
    };
    let (lifeline, theirs) = protocol::channel().map_err(|errno| failed(&errno))?;
    let (seed, its) = protocol::channel().map_err(|errno| failed(&errno))?;
    let mut command = Command::new(program);
    command
        .arg(ACTOR_COMMAND)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null());
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut caretaker = command.spawn().map_err(|error| failed(&error))?;
    // The command still holds the caretaker's end, whose closing must show when the caretaker is gone.
    drop(command);
    let path = folder.as_os_str().as_bytes();
    let hello = protocol::send_request(&lifeline, Call::Start, &[], path, Some(&its))
        .and_then(|()| wait_for_reply(&seed, Duration::from_secs(5)));
    match hello {
        Ok(Some(Ok(_))) => Ok((caretaker, lifeline, seed)),
        other => {
            drop(lifeline);
            drop(seed);
            drop(its);
            let _ = caretaker.kill();
            let _ = caretaker.wait();
            Err(match other {
                Err(errno) => failed(&errno),
                _ => failed(&"it does not answer"),
            })
        }
    }
}

/// Waits for a reply: `None` where the other end is gone, `Err(TIMEDOUT)` where none comes.
fn wait_for_reply(channel: &OwnedFd, patience: Duration) -> Result<Option<Reply>, SystemErrno> {
    match wait_until_ready(channel, patience)? {
        true => protocol::take_reply(channel),
        false => Err(SystemErrno::TIMEDOUT),
    }
}

/// Waits for the end of a process; whether it came.
fn wait_for_end(pidfd: &OwnedFd, patience: Duration) -> bool {
    wait_until_ready(pidfd, patience).unwrap_or(false)
}

fn wait_until_ready(descriptor: &OwnedFd, patience: Duration) -> Result<bool, SystemErrno> {
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut one = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut one, Some(&timeout)) {
            Err(SystemErrno::INTR) => {}
            result => return result.map(|ready| ready > 0),
        }
    }
}

// ----- Between the script's terms and the kernel's -------------------------------------------------------

/// A descriptor's number or an id, which the kernel keeps in 32 bits.
fn small(number: i64) -> i32 {
    i32::try_from(number).unwrap_or(-1)
}

fn lost(name: &Actor) -> ExecutorError {
    ExecutorError::Lost {
        actor: name.clone(),
    }
}

fn error(errno: SystemErrno) -> Outcome {
    Outcome::Error(Errno(errno.raw_os_error()))
}

fn plain(reply: Reply) -> Outcome {
    reply.map_or_else(error, |_| Outcome::Ok)
}

fn type_number(lock_type: LockType) -> i32 {
    match lock_type {
        LockType::Read => libc::F_RDLCK,
        LockType::Write => libc::F_WRLCK,
        LockType::Unlock => libc::F_UNLCK,
    }
}

fn lock_type(number: i64) -> Option<LockType> {
    [LockType::Read, LockType::Write, LockType::Unlock]
        .into_iter()
        .find(|lock_type| i64::from(type_number(*lock_type)) == number)
}

fn set_command(kind: RecordKind, wait: bool) -> i32 {
    match (kind, wait) {
        (RecordKind::Posix, false) => libc::F_SETLK,
        (RecordKind::Posix, true) => libc::F_SETLKW,
        (RecordKind::Ofd, false) => libc::F_OFD_SETLK,
        (RecordKind::Ofd, true) => libc::F_OFD_SETLKW,
    }
}

fn record_numbers(number: i32, record: &Record, command: i32) -> [i64; 7] {
    let l_type = match record.lock_type {
        RequestType::Known(lock_type) => type_number(lock_type).into(),
        RequestType::Raw(number) => i64::from(number),
    };
    let whence = match record.range.base {
        Base::Start => libc::SEEK_SET.into(),
        Base::Current => libc::SEEK_CUR.into(),
        Base::End => libc::SEEK_END.into(),
        Base::Raw(number) => i64::from(number),
    };
    [
        number.into(),
        command.into(),
        l_type,
        whence,
        record.range.start,
        record.range.len,
        record.pid.unwrap_or(0).into(),
    ]
}

/// The bytes of a range that was granted, as far as its text tells: one that counts from the offset or
/// the end stands for the whole file.
fn absolute(range: &Range) -> Span {
    range.span().unwrap_or(Span { start: 0, len: 0 })
}

fn item(entry: &Entry, actor: Actor) -> Item {
    Item {
        kind: entry.kind,
        lock_type: entry.lock_type,
        span: match entry.kind {
            ItemKind::Posix | ItemKind::Ofd => Some(Span::inclusive(entry.start, entry.end)),
            ItemKind::Flock | ItemKind::Lease => None,
        },
        actor,
    }
}

/// How well a call of process `pid` fits an entry that waits: `None` where it cannot be the one.
fn likeness(entry: &Entry, pid: i32, verb: &Verb) -> Option<u8> {
    if entry.pid.is_some_and(|listed| listed != pid) {
        return None;
    }
    match (entry.kind, verb) {
        (ItemKind::Posix | ItemKind::Ofd, Verb::Set { record, .. }) => {
            let kind = match record.kind {
                RecordKind::Posix => ItemKind::Posix,
                RecordKind::Ofd => ItemKind::Ofd,
            };
            let same_type = record.lock_type == RequestType::Known(entry.lock_type);
            let same_span = absolute(&record.range) == Span::inclusive(entry.start, entry.end);
            (entry.kind == kind && same_type).then_some(u8::from(same_span))
        }
        (ItemKind::Flock, Verb::Flock { lock_type, .. }) => {
            (*lock_type == entry.lock_type).then_some(1)
        }
        (ItemKind::Lease, Verb::Open { .. } | Verb::Resize { .. }) => Some(1),
        _ => None,
    }
}

/// The position of the first of those that fit best.
fn best_match<T>(candidates: &[T], mut fits: impl FnMut(&T) -> Option<u8>) -> Option<usize> {
    let mut best: Option<(u8, usize)> = None;
    for (position, candidate) in candidates.iter().enumerate() {
        if let Some(fit) = fits(candidate)
            && best.is_none_or(|(so_far, _)| fit > so_far)
        {
            best = Some((fit, position));
        }
    }
    best.map(|(_, position)| position)
}
