//! Random scripts, for running on two executors at once ([`differ`](crate::differ)).
//!
//! A generated script is a list of steps without results: running fills them in. It is a function of the
//! seed, the script's number and the [`Settings`] alone. Whether an actor is blocked when its turn comes,
//! or has a descriptor that an open failed to give, only a run knows; such steps are left out by the run,
//! as are the `done` lines put in. So every part of a script is a script too, which is what shrinking
//! needs.
//!
//! The weights favour what lock managers get wrong: few files and few distinct ends of ranges, so that
//! ranges overlap, touch and coincide; the last bytes of the offset space; upgrades and downgrades; waits,
//! and their end by signal, close, kill and exec; descriptions shared by dup and fork.
//!
//! Not generated: `break-time` and `pass`, since a lease whose time runs out meanwhile makes results depend
//! on the clock; `link`, which is the same file; bad arguments, which tests of their own cover.

use crate::random::Random;
use crate::script::*;

/// What scripts look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How many processes there are at first.
    pub actors: usize,
    /// How many files.
    pub files: usize,
    /// How many steps a script has after the first opens.
    pub steps: usize,
    /// How many scripts in a hundred have leases.
    pub leases: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            actors: 4,
            files: 2,
            steps: 60,
            leases: 15,
        }
    }
}

/// The script with this number of a seed.
pub fn script(seed: u64, number: u64, settings: &Settings) -> Vec<Step> {
    let mut author = Author {
        random: Random::new(seed, number),
        actors: Vec::new(),
        processes: Vec::new(),
        files: (1..=settings.files.max(1))
            .filter_map(|number| FileName::new(&format!("d{number}")))
            .collect(),
        born: 0,
        descriptors: 0,
        steps: Vec::new(),
    };
    let leases = author.random.chance(settings.leases);
    for _ in 0..settings.actors.max(1) {
        author.newcomer();
    }
    let end = author.steps.len() + settings.steps;
    while author.steps.len() < end {
        author.write(leases);
    }
    author.steps
}

#[derive(Clone, Copy)]
enum Kind {
    Posix,
    Ofd,
    Flock,
    Ask,
    Open,
    Dup,
    Close,
    Seek,
    Truncate,
    Fork,
    Thread,
    Exec,
    End,
    Signal,
    Lease,
    AskLease,
    OpenNonblock,
    Notified,
    Resize,
}

/// How often each kind of step comes, in a script without leases.
const WEIGHTS: [(usize, Kind); 14] = [
    (400, Kind::Posix),
    (150, Kind::Ofd),
    (90, Kind::Flock),
    (50, Kind::Ask),
    (40, Kind::Open),
    (20, Kind::Dup),
    (40, Kind::Close),
    (10, Kind::Seek),
    (10, Kind::Truncate),
    (12, Kind::Fork),
    (14, Kind::Thread),
    (4, Kind::Exec),
    (14, Kind::End),
    (50, Kind::Signal),
];

/// The same with leases. Opens and closes decide over them.
const LEASE_WEIGHTS: [(usize, Kind); 13] = [
    (200, Kind::Lease),
    (80, Kind::AskLease),
    (120, Kind::OpenNonblock),
    (120, Kind::Open),
    (160, Kind::Close),
    (20, Kind::Dup),
    (60, Kind::Notified),
    (20, Kind::Resize),
    (15, Kind::Fork),
    (10, Kind::Thread),
    (5, Kind::Exec),
    (20, Kind::End),
    (30, Kind::Signal),
];

const STARTS: [i64; 10] = [0, 0, 1, 5, 10, 15, 20, 30, i64::MAX - 1, i64::MAX];
const LENGTHS: [i64; 9] = [0, 1, 1, 5, 5, 10, 10, 20, -5];

struct Author {
    random: Random,
    /// Those who live, as far as the script decides, with the index of their process.
    actors: Vec<(Actor, usize)>,
    /// By process: the descriptors that it may have open, with the index of their file.
    processes: Vec<Vec<(Descriptor, usize)>>,
    files: Vec<FileName>,
    born: usize,
    descriptors: usize,
    steps: Vec<Step>,
}

impl Author {
    fn newcomer(&mut self) {
        let Some(actor) = self.name() else { return };
        self.processes.push(Vec::new());
        self.actors.push((actor, self.processes.len() - 1));
        let newest = self.actors.len() - 1;
        for file in 0..self.files.len() {
            self.open(newest, file, false);
        }
    }

    /// A, B, … Z, A1, B1, …
    fn name(&mut self) -> Option<Actor> {
        let letter = char::from(b'A' + (self.born % 26) as u8);
        let name = match self.born / 26 {
            0 => letter.to_string(),
            round => format!("{letter}{round}"),
        };
        self.born += 1;
        Actor::new(&name)
    }

    fn act(&mut self, actor: usize, verb: Verb) {
        let actor = self.actors[actor].0.clone();
        self.steps.push(Step::Act { actor, verb });
    }

    fn new_descriptor(&mut self) -> Option<Descriptor> {
        self.descriptors += 1;
        Descriptor::new(&format!("f{}", self.descriptors))
    }

    fn open(&mut self, actor: usize, file: usize, nonblock: bool) {
        let Some(fd) = self.new_descriptor() else {
            return;
        };
        let access = self.random.weighted(&[
            (6, Access::ReadWrite),
            (2, Access::Read),
            (1, Access::Write),
        ]);
        self.processes[self.actors[actor].1].push((fd.clone(), file));
        let file = self.files[file].clone();
        self.act(
            actor,
            Verb::Open {
                fd,
                file,
                access,
                nonblock,
            },
        );
    }

    /// Adds a step or two.
    fn write(&mut self, leases: bool) {
        let kind = match leases {
            true => self.random.weighted(&LEASE_WEIGHTS),
            false => self.random.weighted(&WEIGHTS),
        };
        let actor = self.random.below(self.actors.len());
        let process = self.actors[actor].1;
        let file = self.random.below(self.files.len());
        // Those that need no descriptor.
        match kind {
            Kind::Open => return self.open(actor, file, false),
            Kind::OpenNonblock => return self.open(actor, file, true),
            Kind::Fork => return self.fork(actor),
            Kind::Thread => return self.thread(actor),
            Kind::Exec => {
                self.act(actor, Verb::Exec);
                let survivor = self.actors[actor].0.clone();
                return self
                    .actors
                    .retain(|(name, of)| *of != process || *name == survivor);
            }
            Kind::End => {
                let verb = match self.random.chance(50) {
                    true => Verb::Exit,
                    false => Verb::Kill,
                };
                self.act(actor, verb);
                self.actors.retain(|(_, of)| *of != process);
                return self.newcomer();
            }
            Kind::Signal => {
                let restart = self.random.chance(20);
                return self.act(actor, Verb::Signal { restart });
            }
            Kind::Notified => return self.act(actor, Verb::Notified),
            Kind::Resize => {
                let file = self.files[file].clone();
                return self.act(actor, Verb::Resize { file, size: 10 });
            }
            _ => {}
        }
        if self.processes[process].is_empty() {
            return self.open(actor, file, leases);
        }
        let at = self.random.below(self.processes[process].len());
        let (fd, file) = self.processes[process][at].clone();
        let verb = match kind {
            Kind::Posix => self.set(RecordKind::Posix, fd),
            Kind::Ofd => self.set(RecordKind::Ofd, fd),
            Kind::Flock => {
                let lock_type = self.lock_type(30);
                let wait = self.random.chance(40);
                Verb::Flock {
                    fd,
                    lock_type,
                    wait,
                }
            }
            Kind::Ask => {
                let kind = self.random.pick(&[RecordKind::Posix, RecordKind::Ofd]);
                let lock_type = self.random.pick(&[LockType::Read, LockType::Write]);
                let record = self.record(kind, fd, lock_type);
                Verb::Query { record }
            }
            Kind::Dup => {
                let Some(new) = self.new_descriptor() else {
                    return;
                };
                self.processes[process].push((new.clone(), file));
                Verb::Dup { fd, new }
            }
            Kind::Close => {
                // The names stay known for a while in other processes only: here it is gone.
                self.processes[process].remove(at);
                Verb::Close { fd }
            }
            Kind::Seek => {
                let offset = self.random.pick(&[0, 5, 10, 20]);
                Verb::Seek { fd, offset }
            }
            Kind::Truncate => {
                let size = self.random.pick(&[0, 5, 10, 20]);
                Verb::Truncate { fd, size }
            }
            Kind::Lease => {
                let lock_type = self.lock_type(30);
                Verb::Lease { fd, lock_type }
            }
            _ => Verb::LeaseQuery { fd },
        };
        self.act(actor, verb);
    }

    fn lock_type(&mut self, unlocks: usize) -> LockType {
        if self.random.chance(unlocks) {
            return LockType::Unlock;
        }
        self.random.pick(&[LockType::Read, LockType::Write])
    }

    fn record(&mut self, kind: RecordKind, fd: Descriptor, lock_type: LockType) -> Record {
        let base = self
            .random
            .weighted(&[(94, Base::Start), (3, Base::Current), (3, Base::End)]);
        Record {
            kind,
            fd,
            lock_type: RequestType::Known(lock_type),
            range: Range {
                base,
                start: self.random.pick(&STARTS),
                len: self.random.pick(&LENGTHS),
            },
            pid: None,
        }
    }

    fn set(&mut self, kind: RecordKind, fd: Descriptor) -> Verb {
        let lock_type = self.lock_type(35);
        let record = self.record(kind, fd, lock_type);
        // A range that counts from elsewhere is not waited for: what waits must be known from the text.
        let waits = record.range.base == Base::Start && lock_type != LockType::Unlock;
        let wait = waits && self.random.chance(55);
        Verb::Set { record, wait }
    }

    fn fork(&mut self, actor: usize) {
        let Some(child) = self.name() else { return };
        let copies = self.processes[self.actors[actor].1].clone();
        self.processes.push(copies);
        self.act(
            actor,
            Verb::Fork {
                child: child.clone(),
            },
        );
        self.actors.push((child, self.processes.len() - 1));
    }

    fn thread(&mut self, actor: usize) {
        let Some(thread) = self.name() else { return };
        let process = self.actors[actor].1;
        self.act(
            actor,
            Verb::Thread {
                thread: thread.clone(),
            },
        );
        self.actors.push((thread, process));
    }
}
