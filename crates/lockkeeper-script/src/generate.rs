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
//! and their end by signal, close, kill and exec; rings of owners that wait for each other; descriptions
//! shared by dup and fork. Scripts with leases have more files and few descriptors, since every other open
//! of a file stands in a lease's way, and take most leases right after an open.
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
    let mut random = Random::new(seed, number);
    let leases = random.chance(settings.leases);
    let files = settings.files.max(1) + if leases { 2 } else { 0 };
    let mut author = Author {
        random,
        leases,
        actors: Vec::new(),
        processes: Vec::new(),
        files: (1..=files)
            .filter_map(|number| FileName::new(&format!("d{number}")))
            .collect(),
        born: 0,
        descriptors: 0,
        steps: Vec::new(),
    };
    for _ in 0..settings.actors.max(1) {
        author.newcomer();
    }
    let end = author.steps.len() + settings.steps;
    while author.steps.len() < end {
        author.write();
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
    Ring,
}

/// How often each kind of step comes, in a script without leases.
const WEIGHTS: [(usize, Kind); 15] = [
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
    (25, Kind::Ring),
];

/// The same with leases. Opens and closes decide over them.
const LEASE_WEIGHTS: [(usize, Kind); 13] = [
    (200, Kind::Lease),
    (60, Kind::AskLease),
    (90, Kind::OpenNonblock),
    (70, Kind::Open),
    (220, Kind::Close),
    (20, Kind::Dup),
    (60, Kind::Notified),
    (20, Kind::Resize),
    (8, Kind::Fork),
    (10, Kind::Thread),
    (5, Kind::Exec),
    (15, Kind::End),
    (30, Kind::Signal),
];

/// Where ranges begin, and how long they are, each as often as its weight.
const STARTS: [(usize, i64); 9] = [
    (25, 0),
    (5, 1),
    (20, 5),
    (20, 10),
    (10, 15),
    (10, 20),
    (5, 30),
    (3, i64::MAX - 1),
    (3, i64::MAX),
];
const LENGTHS: [(usize, i64); 6] = [(12, 0), (30, 1), (30, 5), (20, 10), (8, 20), (3, -5)];

const WHOLE_FILE: Range = Range {
    base: Base::Start,
    start: 0,
    len: 0,
};

struct Author {
    random: Random,
    /// The script has leases.
    leases: bool,
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
        if self.leases {
            return;
        }
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
        let access = match self.leases {
            true => self.random.weighted(&[
                (6, Access::Read),
                (2, Access::ReadWrite),
                (2, Access::Write),
            ]),
            false => self.random.weighted(&[
                (16, Access::ReadWrite),
                (2, Access::Read),
                (1, Access::Write),
            ]),
        };
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
    fn write(&mut self) {
        let kind = match self.leases {
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
            Kind::Ring => return self.ring(),
            Kind::Lease if self.random.chance(60) => {
                self.open(actor, file, true);
                let Some((fd, _)) = self.processes[process].last().cloned() else {
                    return;
                };
                let lock_type = self.lock_type(0);
                return self.act(actor, Verb::Lease { fd, lock_type });
            }
            Kind::Resize => {
                let file = self.files[file].clone();
                return self.act(actor, Verb::Resize { file, size: 10 });
            }
            _ => {}
        }
        if self.processes[process].is_empty() {
            return self.open(actor, file, self.leases);
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
                start: self.random.weighted(&STARTS),
                len: self.random.weighted(&LENGTHS),
            },
            pid: None,
        }
    }

    fn set(&mut self, kind: RecordKind, fd: Descriptor) -> Verb {
        let lock_type = self.lock_type(35);
        let mut record = self.record(kind, fd, lock_type);
        if lock_type == LockType::Unlock && self.random.chance(40) {
            record.range = WHOLE_FILE;
        }
        // A range that counts from elsewhere is not waited for: what waits must be known from the text.
        let waits = record.range.base == Base::Start && lock_type != LockType::Unlock;
        let wait = waits && self.random.chance(55);
        Verb::Set { record, wait }
    }

    /// Some actors each lock a byte of their own, and then wait for the next one's.
    fn ring(&mut self) {
        let length = self.actors.len().min(2 + self.random.below(3));
        let first = self.random.below(self.actors.len());
        let members: Vec<usize> = (0..length)
            .map(|member| (first + member) % self.actors.len())
            .collect();
        for wait in [false, true] {
            for (place, actor) in members.iter().enumerate() {
                let descriptors = &self.processes[self.actors[*actor].1];
                if descriptors.is_empty() {
                    continue;
                }
                let fd = descriptors[self.random.below(descriptors.len())].0.clone();
                let byte = if wait { (place + 1) % length } else { place };
                let record = Record {
                    kind: RecordKind::Posix,
                    fd,
                    lock_type: RequestType::Known(LockType::Write),
                    range: Range {
                        base: Base::Start,
                        start: byte as i64,
                        len: 1,
                    },
                    pid: None,
                };
                self.act(*actor, Verb::Set { record, wait });
            }
        }
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
