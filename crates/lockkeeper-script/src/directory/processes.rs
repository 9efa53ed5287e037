//! Processes and threads: how they begin, how they end, and what they have.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::io::Errno as SystemErrno;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::calls::{wait_for_end, wait_for_reply};
use super::posture::Probe;
use super::protocol::{self, Call};
use super::terms::*;
use super::{Carried, Directory, Open, Pending, Process, Thread, actor, sys};
use crate::executor::ExecutorError;
use crate::script::*;

impl Directory {
    /// Begins the actor's process at its first mention.
    pub(super) fn be_born(&mut self, name: &Actor) -> Carried<()> {
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
    pub(super) fn welcome(
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
    pub(super) fn beget(
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

    pub(super) fn fork(&mut self, name: &Actor, verb: &Verb, child: &Actor) -> Carried<Outcome> {
        match self.beget(name, verb, Call::Fork)? {
            Err(outcome) => Ok(outcome),
            Ok(channel) => {
                let descriptors = self.process(name)?.descriptors.clone();
                self.welcome(child, channel, None, descriptors)?;
                Ok(Outcome::Ok)
            }
        }
    }

    pub(super) fn begin_thread(
        &mut self,
        name: &Actor,
        verb: &Verb,
        new: &Actor,
    ) -> Carried<Outcome> {
        match self.beget(name, verb, Call::Thread)? {
            Err(outcome) => Ok(outcome),
            Ok(channel) => {
                let process = self.thread(name)?.process;
                self.welcome(new, channel, Some(process), HashMap::new())?;
                Ok(Outcome::Ok)
            }
        }
    }

    pub(super) fn exec(&mut self, name: &Actor, verb: &Verb) -> Carried<Outcome> {
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

    pub(super) fn exit(&mut self, name: &Actor, verb: &Verb) -> Carried<Outcome> {
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
    pub(super) fn restarted(&mut self, name: &Actor) -> Carried<()> {
        let arrival = self.arrivals;
        if let Some(pending) = &mut self.thread_mut(name)?.pending {
            pending.arrival = arrival;
            self.arrivals += 1;
        }
        Ok(())
    }

    pub(super) fn signal(&self, name: &Actor, signal: i32) -> Carried<()> {
        let thread = self.thread(name)?;
        let pid = self.processes[thread.process].pid;
        sys::signal_thread(pid, thread.tid, signal).map_err(|_| lost(name))
    }

    /// Kills a process and waits until it holds nothing.
    pub(super) fn kill(&mut self, process: usize) -> Carried<()> {
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

    pub(super) fn bury(&mut self, process: usize) {
        self.processes[process].alive = false;
        for thread in self.actors.values_mut() {
            if thread.process == process {
                thread.alive = false;
                thread.pending = None;
            }
        }
    }

    pub(super) fn thread(&self, name: &Actor) -> Carried<&Thread> {
        match self.actors.get(name) {
            Some(thread) if thread.alive => Ok(thread),
            _ => Err(ExecutorError::Misuse(format!("{name} is dead"))),
        }
    }

    pub(super) fn thread_mut(&mut self, name: &Actor) -> Carried<&mut Thread> {
        match self.actors.get_mut(name) {
            Some(thread) if thread.alive => Ok(thread),
            _ => Err(ExecutorError::Misuse(format!("{name} is dead"))),
        }
    }

    pub(super) fn process(&mut self, name: &Actor) -> Carried<&mut Process> {
        let process = self.thread(name)?.process;
        Ok(&mut self.processes[process])
    }

    pub(super) fn pending(&self, name: &Actor) -> Carried<&Pending> {
        self.thread(name)?
            .pending
            .as_ref()
            .ok_or_else(|| ExecutorError::Misuse(format!("{name} has no call out")))
    }

    pub(super) fn open(&self, name: &Actor, fd: &Descriptor) -> Carried<Open> {
        let process = self.thread(name)?.process;
        self.processes[process]
            .descriptors
            .get(fd)
            .copied()
            .ok_or_else(|| ExecutorError::Misuse(format!("{name} has no descriptor `{fd}`")))
    }

    /// The actor that began the process with this pid.
    pub(super) fn name_of(&self, pid: i32) -> Actor {
        let process = self
            .processes
            .iter()
            .rev()
            .find(|process| process.pid == pid);
        process.map_or_else(|| Actor::outsider(pid), |process| process.name.clone())
    }
}
