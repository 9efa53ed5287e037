//! What only a run can know of a script: who lives, what is open, whose call is still out.
//!
//! The census follows a run step by step and says of the next step whether it makes sense. It knows
//! nothing of locks.

use std::collections::{HashMap, HashSet};

use crate::script::*;

/// Why a step makes no sense where it stands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// The actor's process or thread has ended.
    #[error("{actor} is dead: {cause} in line {line}")]
    Dead {
        /// The actor.
        actor: Actor,
        /// What ended it.
        cause: Death,
        /// Where.
        line: usize,
    },
    /// The actor's earlier call has not been collected.
    #[error(
        "{actor} has a call out since line {line}: `{actor} done` must collect its result before another call"
    )]
    Pending {
        /// The actor.
        actor: Actor,
        /// The line of the call.
        line: usize,
    },
    /// `done` or `blocked` for an actor that has no call out.
    #[error("{actor} has no call out: no earlier line says `=> blocked`")]
    NothingPending {
        /// The actor.
        actor: Actor,
    },
    /// The descriptor was never opened.
    #[error("{actor} has no descriptor `{fd}`")]
    NoDescriptor {
        /// The actor.
        actor: Actor,
        /// The name.
        fd: Descriptor,
    },
    /// The descriptor is closed.
    #[error("descriptor `{fd}` of {actor} was closed in line {line}")]
    Closed {
        /// The actor.
        actor: Actor,
        /// The name.
        fd: Descriptor,
        /// Where it was closed.
        line: usize,
    },
    /// The name of a new descriptor is taken.
    #[error("{actor} has a descriptor `{fd}` already")]
    DescriptorTaken {
        /// The actor.
        actor: Actor,
        /// The name.
        fd: Descriptor,
    },
    /// The name of a new actor is taken.
    #[error("{actor} is the name of an earlier actor")]
    ActorTaken {
        /// The name.
        actor: Actor,
    },
    /// No line has opened the file.
    #[error("no line above opens or names a file `{file}`")]
    NoFile {
        /// The name.
        file: FileName,
    },
    /// The second name of a file is taken.
    #[error("`{file}` is the name of an earlier file")]
    FileTaken {
        /// The name.
        file: FileName,
    },
}

/// What ended an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// `exit`
    Exited,
    /// `kill`
    Killed,
    /// Another thread's `exec`
    Replaced,
}

impl std::fmt::Display for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Exited => "its process exited",
            Self::Killed => "its process was killed",
            Self::Replaced => "its process was replaced by `exec`",
        })
    }
}

/// The actors, descriptors and files of a run.
#[derive(Clone, Debug, Default)]
pub struct Census {
    actors: HashMap<Actor, Life>,
    processes: Vec<Process>,
    files: HashSet<FileName>,
    /// How many open file descriptions there have been.
    descriptions: usize,
}

#[derive(Clone, Debug)]
enum Life {
    Alive {
        process: usize,
        pending: Option<Pending>,
    },
    Dead {
        cause: Death,
        line: usize,
    },
}

#[derive(Clone, Debug)]
struct Pending {
    line: usize,
    /// The descriptor that the call will open, and the file.
    opens: Option<(Descriptor, FileName)>,
}

#[derive(Clone, Debug)]
struct Process {
    /// The actor that began it.
    name: Actor,
    descriptors: HashMap<Descriptor, State>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Open(Opened),
    Closed(usize),
}

/// What a descriptor stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The file, by the name under which it was opened.
    pub file: FileName,
    /// The open file description: equal for descriptors that share it.
    pub description: usize,
}

impl Census {
    /// Whether the step makes sense now.
    ///
    /// # Errors
    /// Why it makes none.
    pub fn check(&self, step: &Step) -> Result<(), Misuse> {
        match step {
            Step::BreakTime(_) | Step::Pass(_) => Ok(()),
            Step::Held(file) | Step::Waiting(file) => self.check_file(file),
            Step::Act { actor, verb } => self.check_act(actor, verb),
        }
    }

    fn check_file(&self, file: &FileName) -> Result<(), Misuse> {
        match self.files.contains(file) {
            true => Ok(()),
            false => Err(Misuse::NoFile { file: file.clone() }),
        }
    }

    fn check_act(&self, actor: &Actor, verb: &Verb) -> Result<(), Misuse> {
        let (process, pending) = match self.actors.get(actor) {
            None => (None, None),
            Some(Life::Alive { process, pending }) => {
                (Some(&self.processes[*process]), pending.as_ref())
            }
            Some(Life::Dead { cause, line }) => {
                return Err(Misuse::Dead {
                    actor: actor.clone(),
                    cause: *cause,
                    line: *line,
                });
            }
        };
        match (verb, pending) {
            (Verb::Done | Verb::Blocked, None) => {
                return Err(Misuse::NothingPending {
                    actor: actor.clone(),
                });
            }
            (
                Verb::Done | Verb::Blocked | Verb::Exit | Verb::Kill | Verb::Signal { .. },
                Some(_),
            ) => {}
            (_, Some(pending)) => {
                return Err(Misuse::Pending {
                    actor: actor.clone(),
                    line: pending.line,
                });
            }
            (_, None) => {}
        }
        let state = |fd: &Descriptor| process.and_then(|process| process.descriptors.get(fd));
        if let Some(fd) = verb.descriptor() {
            let (actor, fd) = (actor.clone(), fd.clone());
            match state(&fd) {
                Some(State::Open(_)) => {}
                Some(State::Closed(line)) => {
                    let line = *line;
                    return Err(Misuse::Closed { actor, fd, line });
                }
                None => return Err(Misuse::NoDescriptor { actor, fd }),
            }
        }
        match verb {
            Verb::Open { fd, .. } | Verb::Dup { new: fd, .. }
                if matches!(state(fd), Some(State::Open(_))) =>
            {
                Err(Misuse::DescriptorTaken {
                    actor: actor.clone(),
                    fd: fd.clone(),
                })
            }
            Verb::Fork { child: new } | Verb::Thread { thread: new }
                if new == actor || self.actors.contains_key(new) =>
            {
                Err(Misuse::ActorTaken { actor: new.clone() })
            }
            Verb::Resize { file, .. } => self.check_file(file),
            Verb::Link { file, new } => {
                self.check_file(file)?;
                match self.files.contains(new) {
                    true => Err(Misuse::FileTaken { file: new.clone() }),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Takes note of a step that made sense, and of what came of it.
    pub fn record(&mut self, line: usize, step: &Step, outcome: &Outcome) {
        let Step::Act { actor, verb } = step else {
            return;
        };
        let process = self.process_of(actor);
        let done = *outcome == Outcome::Ok;
        match verb {
            Verb::Open { fd, file, .. } => {
                self.files.insert(file.clone());
                if done {
                    self.open(process, fd, file);
                }
            }
            Verb::Dup { fd, new } if done => {
                let descriptors = &mut self.processes[process].descriptors;
                if let Some(state) = descriptors.get(fd).cloned() {
                    descriptors.insert(new.clone(), state);
                }
            }
            Verb::Close { fd } if done => {
                self.processes[process]
                    .descriptors
                    .insert(fd.clone(), State::Closed(line));
            }
            Verb::Link { new, .. } if done => {
                self.files.insert(new.clone());
            }
            Verb::Fork { child } if done => {
                self.processes.push(Process {
                    name: child.clone(),
                    descriptors: self.processes[process].descriptors.clone(),
                });
                self.be_born(child, self.processes.len() - 1);
            }
            Verb::Thread { thread } if done => self.be_born(thread, process),
            Verb::Exec if done => self.die(process, Some(actor), Death::Replaced, line),
            Verb::Exit => self.die(process, None, Death::Exited, line),
            Verb::Kill => self.die(process, None, Death::Killed, line),
            Verb::Done if *outcome != Outcome::Blocked => self.collect(actor, process, done),
            _ => {}
        }
        if verb.may_block() && *outcome == Outcome::Blocked {
            let opens = match verb {
                Verb::Open { fd, file, .. } => Some((fd.clone(), file.clone())),
                _ => None,
            };
            if let Some(Life::Alive { pending, .. }) = self.actors.get_mut(actor) {
                *pending = Some(Pending { line, opens });
            }
        }
    }

    /// The actors whose call has not been collected, in no order.
    pub fn pending(&self) -> impl Iterator<Item = &Actor> {
        self.actors.iter().filter_map(|(actor, life)| {
            matches!(
                life,
                Life::Alive {
                    pending: Some(_),
                    ..
                }
            )
            .then_some(actor)
        })
    }

    /// What a descriptor of the actor stands for, while it is open.
    pub fn opened(&self, actor: &Actor, fd: &Descriptor) -> Option<&Opened> {
        match self.process(actor)?.descriptors.get(fd)? {
            State::Open(opened) => Some(opened),
            State::Closed(_) => None,
        }
    }

    /// The actor that began the process of this one, while it lives.
    pub fn process_name(&self, actor: &Actor) -> Option<&Actor> {
        self.process(actor).map(|process| &process.name)
    }

    fn process(&self, actor: &Actor) -> Option<&Process> {
        match self.actors.get(actor)? {
            Life::Alive { process, .. } => self.processes.get(*process),
            Life::Dead { .. } => None,
        }
    }

    /// The files that have been named, in the order of their names.
    pub fn files(&self) -> Vec<FileName> {
        let mut files: Vec<_> = self.files.iter().cloned().collect();
        files.sort();
        files
    }

    fn process_of(&mut self, actor: &Actor) -> usize {
        if let Some(Life::Alive { process, .. }) = self.actors.get(actor) {
            return *process;
        }
        self.processes.push(Process {
            name: actor.clone(),
            descriptors: HashMap::new(),
        });
        let process = self.processes.len() - 1;
        self.be_born(actor, process);
        process
    }

    fn be_born(&mut self, actor: &Actor, process: usize) {
        let life = Life::Alive {
            process,
            pending: None,
        };
        self.actors.insert(actor.clone(), life);
    }

    fn open(&mut self, process: usize, fd: &Descriptor, file: &FileName) {
        self.descriptions += 1;
        let opened = Opened {
            file: file.clone(),
            description: self.descriptions,
        };
        self.processes[process]
            .descriptors
            .insert(fd.clone(), State::Open(opened));
    }

    fn die(&mut self, ended: usize, spared: Option<&Actor>, cause: Death, line: usize) {
        for (actor, life) in &mut self.actors {
            let member = matches!(life, Life::Alive { process, .. } if *process == ended);
            if member && Some(actor) != spared {
                *life = Life::Dead { cause, line };
            }
        }
    }

    fn collect(&mut self, actor: &Actor, process: usize, done: bool) {
        let Some(Life::Alive { pending, .. }) = self.actors.get_mut(actor) else {
            return;
        };
        let opens = pending.take().and_then(|pending| pending.opens);
        if let (Some((fd, file)), true) = (opens, done) {
            self.open(process, &fd, &file);
        }
    }
}
