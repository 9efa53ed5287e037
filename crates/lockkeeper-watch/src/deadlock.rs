//! Who waits for ever: cycles of owners and processes that wait for each other.
//!
//! The lock manager and the kernel refuse a process whose record lock would close a cycle. Open file
//! descriptions, as owners of OFD locks and flocks, they let walk into one (fcntl(2), flock(2)). Here such
//! cycles are found in what a report says, so that nobody's locks are touched for it.
//!
//! # What is a deadlock
//! A wait is *dead* if any lock in its way is. A lock is dead if its owner waits and all its waits are
//! dead; or if the process that took it has every thread in a wait and all of those are dead: then nobody
//! is left to unlock. The second rule is what finds two programs that each hold a flock on one file and
//! want the other's, since every open file is an owner of its own. (A process that inherited such an open
//! file could still unlock it; programs do not count on that.)
//!
//! So waits are dead until shown to be alive. Each dead wait keeps one dead lock in its way as *witness*,
//! and looks for another when that one turns out to be alive. From a wait by its witness to a wait of its
//! holder, and so on, leads into a cycle.
//!
//! # What it costs
//! The sentinel of a mount looks once a second, at whatever its users do. Dead locks are kept by their place
//! (`in_the_way`), so that one in the way is found in the logarithm of their number, and leave
//! when they come alive. Which of several is the witness is left to chance: where locks come alive one after the
//! other, each wait in whose way they all are looks again a few times only, as the next witness is not the next to go.
//!
//! # When an edge counts
//! The files of a report are looked at one after the other, so two waits in it need never have been at
//! the same time. What was so before the first file was looked at, and still was when its file was, was
//! so at that moment; and the ages in a report count from just then. So a wait or lock younger than
//! [`SETTLED`] seconds is alive: in a real deadlock it soon is older. Where no ages are told (the kernel's
//! files) the caller has to look twice.

use std::collections::{HashMap, HashSet};

use crate::in_the_way::{Chance, InTheWay, Placed};
use crate::report::{Deadlock, DeadlockStep, FileLocks, Kind, Lock, Mode};

/// So old a wait or lock must be to count, in seconds: more than the time of a grant may be off.
pub const SETTLED: f64 = 0.02;

/// The cycles in which waits are dead. `threads` is the number of a process's threads, `None` if that
/// cannot be told; it is asked only where it decides.
pub fn find(files: &[FileLocks], threads: impl Fn(u32) -> Option<usize>) -> Vec<Deadlock> {
    Graph::of_the_dead(files, threads).cycles()
}

/// Locks of different spaces never conflict.
fn space(kind: Kind) -> u8 {
    match kind {
        Kind::Posix | Kind::Ofd | Kind::Access => 0,
        Kind::Flock => 1,
        Kind::Lease | Kind::Delegation => 2,
        Kind::Other => 3,
    }
}

fn is_settled(age: Option<f64>) -> bool {
    age.is_none_or(|age| age >= SETTLED)
}

/// An owner or a process that waits.
struct Group {
    /// The process, if it is one.
    pid: Option<u32>,
    waits: Vec<usize>,
    locks: Vec<usize>,
    is_dead: bool,
}

/// A request, and where its search for a witness stands.
struct Wait {
    step: DeadlockStep,
    groups: [Option<usize>; 2],
    /// The lock that is its witness.
    witness: Option<usize>,
    is_dead: bool,
}

/// A lock of an owner or process that waits.
struct Blocking {
    groups: [Option<usize>; 2],
    shelf: Shelf,
    /// Its place on the shelf.
    place: usize,
    /// The waits whose witness it is.
    witnessed: Vec<usize>,
}

/// Which locks conflict if they overlap: those of a file, of a space, and whether they are exclusive.
type Shelf = (usize, u8, bool);

fn shelf(file: usize, lock: &Lock, mode: Mode) -> Shelf {
    (file, space(lock.kind), mode == Mode::Write)
}

struct Graph<'a> {
    files: &'a [FileLocks],
    groups: Vec<Group>,
    waits: Vec<Wait>,
    locks: Vec<Blocking>,
    /// The locks that are dead, by place.
    shelves: HashMap<Shelf, InTheWay>,
    /// Waits to be looked at, since their witness may be alive.
    pending: Vec<usize>,
    chance: Chance,
    /// How often a witness was looked for.
    searches: usize,
}

impl<'a> Graph<'a> {
    /// All that waits and blocks, and what of it is dead.
    fn of_the_dead(files: &'a [FileLocks], threads: impl Fn(u32) -> Option<usize>) -> Graph<'a> {
        let mut graph = Graph::new(files);
        graph.bring_to_life();
        // Only now: of those that seem dead there are few.
        for group in 0..graph.groups.len() {
            if let Some(pid) = graph.groups[group].pid
                && graph.groups[group].is_dead
                && threads(pid).is_none_or(|threads| threads > graph.groups[group].waits.len())
            {
                graph.revive(group);
            }
        }
        graph.bring_to_life();
        graph
    }

    fn new(files: &'a [FileLocks]) -> Graph<'a> {
        let mut graph = Graph {
            files,
            groups: Vec::new(),
            waits: Vec::new(),
            locks: Vec::new(),
            shelves: HashMap::new(),
            pending: Vec::new(),
            chance: Chance::default(),
            searches: 0,
        };
        let mut owners: HashMap<u64, usize> = HashMap::new();
        let mut processes: HashMap<u32, usize> = HashMap::new();
        for (file, listed) in files.iter().enumerate() {
            for (waiter, waiting) in listed.waiters.iter().enumerate() {
                let Lock { owner, pid, .. } = waiting.lock;
                let of_owner = *owners.entry(owner).or_insert_with(|| graph.add_group(None));
                let of_process = (pid != 0).then(|| {
                    let add = || graph.add_group(Some(pid));
                    *processes.entry(pid).or_insert_with(add)
                });
                graph.add_wait(
                    DeadlockStep { file, waiter },
                    [Some(of_owner), of_process],
                    is_settled(waiting.waits_for),
                );
            }
        }
        let mut shelves: HashMap<Shelf, Vec<Placed>> = HashMap::new();
        for (file, listed) in files.iter().enumerate() {
            if listed.waiters.is_empty() {
                continue;
            }
            for held in listed.locks.iter().filter(|held| is_settled(held.held_for)) {
                let lock = &held.lock;
                let groups = [
                    owners.get(&lock.owner).copied(),
                    processes.get(&lock.pid).copied(),
                ];
                if !graph.is_dead(groups) {
                    continue;
                }
                let shelf = shelf(file, lock, lock.mode);
                let placed = Placed {
                    start: lock.start,
                    end: lock.end.unwrap_or(u64::MAX),
                    owner: lock.owner,
                    number: graph.locks.len(),
                };
                shelves.entry(shelf).or_default().push(placed);
                for group in groups.into_iter().flatten() {
                    graph.groups[group].locks.push(graph.locks.len());
                }
                graph.locks.push(Blocking {
                    groups,
                    shelf,
                    place: 0,
                    witnessed: Vec::new(),
                });
            }
        }
        for (shelf, locks) in shelves {
            let placed = InTheWay::new(locks);
            for (place, lock) in placed.locks().iter().enumerate() {
                graph.locks[lock.number].place = place;
            }
            graph.shelves.insert(shelf, placed);
        }
        graph
    }

    fn add_group(&mut self, pid: Option<u32>) -> usize {
        self.groups.push(Group {
            pid,
            waits: Vec::new(),
            locks: Vec::new(),
            is_dead: true,
        });
        self.groups.len() - 1
    }

    fn add_wait(&mut self, step: DeadlockStep, groups: [Option<usize>; 2], is_dead: bool) {
        let wait = self.waits.len();
        for group in groups.into_iter().flatten() {
            self.groups[group].waits.push(wait);
            self.groups[group].is_dead &= is_dead;
        }
        if is_dead {
            self.pending.push(wait);
        }
        self.waits.push(Wait {
            step,
            groups,
            witness: None,
            is_dead,
        });
    }

    /// Whether a lock of these is.
    fn is_dead(&self, groups: [Option<usize>; 2]) -> bool {
        let mut groups = groups.into_iter().flatten();
        groups.any(|group| self.groups[group].is_dead)
    }

    /// Looks at all that is pending: finds witnesses, and brings to life what has none.
    fn bring_to_life(&mut self) {
        while let Some(wait) = self.pending.pop() {
            if !self.waits[wait].is_dead {
                continue;
            }
            self.waits[wait].witness = self.find_witness(wait);
            match self.waits[wait].witness {
                Some(lock) => self.locks[lock].witnessed.push(wait),
                None => {
                    self.waits[wait].is_dead = false;
                    for group in self.waits[wait].groups.into_iter().flatten() {
                        self.revive(group);
                    }
                }
            }
        }
    }

    /// A dead lock of another owner that conflicts with the request.
    fn find_witness(&mut self, wait: usize) -> Option<usize> {
        self.searches += 1;
        let step = self.waits[wait].step;
        let request = &self.files[step.file].waiters[step.waiter].lock;
        let conflicting = match request.mode {
            Mode::Write => &[Mode::Write, Mode::Read][..],
            Mode::Read => &[Mode::Write],
        };
        conflicting.iter().find_map(|&mode| {
            let locks = self.shelves.get(&shelf(step.file, request, mode))?;
            let end = request.end.unwrap_or(u64::MAX);
            locks.find(request.start, end, request.owner, &mut self.chance)
        })
    }

    fn revive(&mut self, group: usize) {
        if !std::mem::take(&mut self.groups[group].is_dead) {
            return;
        }
        for lock in std::mem::take(&mut self.groups[group].locks) {
            if self.is_dead(self.locks[lock].groups) {
                continue;
            }
            let Blocking {
                shelf,
                place,
                witnessed,
                ..
            } = &mut self.locks[lock];
            self.pending.append(witnessed);
            if let Some(locks) = self.shelves.get_mut(shelf) {
                locks.remove(*place);
            }
        }
    }

    /// A wait of the holder of this one's witness.
    fn next(&self, wait: usize) -> Option<usize> {
        let lock = &self.locks[self.waits[wait].witness?];
        let mut groups = lock.groups.into_iter().flatten();
        let group = groups.find(|&group| self.groups[group].is_dead)?;
        self.groups[group].waits.first().copied()
    }

    fn cycles(&self) -> Vec<Deadlock> {
        let mut seen: HashSet<usize> = HashSet::new();
        let mut found = Vec::new();
        for start in (0..self.waits.len()).filter(|&wait| self.waits[wait].is_dead) {
            let mut way = Vec::new();
            let mut at = Some(start);
            while let Some(wait) = at
                && seen.insert(wait)
            {
                way.push(wait);
                at = self.next(wait);
            }
            // Back on this way, not on one that was followed before.
            if let Some(begin) = at.and_then(|wait| way.iter().position(|&other| other == wait)) {
                let steps = way[begin..].iter().map(|&wait| self.waits[wait].step);
                found.push(Deadlock {
                    steps: steps.collect(),
                });
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::{Held, Waiting};

    fn lock(kind: Kind, owner: u64, start: u64, end: u64) -> Lock {
        Lock {
            kind,
            mode: Mode::Write,
            start,
            end: Some(end),
            pid: 0,
            command: None,
            owner,
        }
    }

    fn held(owner: u64, start: u64, end: u64) -> Held {
        Held {
            lock: lock(Kind::Ofd, owner, start, end),
            held_for: Some(9.0),
            breaking: false,
        }
    }

    fn waits(owner: u64, start: u64, end: u64) -> Waiting {
        Waiting {
            lock: lock(Kind::Ofd, owner, start, end),
            waits_for: Some(5.0),
            overtaken: 0,
            depth: 0,
            blocked_by: None,
        }
    }

    fn file(locks: Vec<Held>, waiters: Vec<Waiting>) -> FileLocks {
        FileLocks {
            locks,
            waiters,
            ..FileLocks::new(1, 1)
        }
    }

    fn owners(files: &[FileLocks]) -> Vec<Vec<u64>> {
        owners_with(files, 1)
    }

    fn owners_with(files: &[FileLocks], threads: usize) -> Vec<Vec<u64>> {
        find(files, |_| Some(threads))
            .iter()
            .map(|deadlock| {
                let steps = deadlock.steps.iter();
                let mut owners: Vec<u64> = steps
                    .map(|step| files[step.file].waiters[step.waiter].lock.owner)
                    .collect();
                // Wherever it was found to begin.
                let least = (0..owners.len()).min_by_key(|&i| owners[i]);
                owners.rotate_left(least.unwrap_or(0));
                owners
            })
            .collect()
    }

    #[test]
    fn a_cycle_is_found_in_one_file_and_over_several() {
        let one = file(
            vec![held(1, 0, 9), held(2, 10, 19)],
            vec![waits(1, 15, 15), waits(2, 5, 5)],
        );
        assert_eq!(owners(&[one]), [[1, 2]]);
        let a = file(vec![held(1, 0, 9)], vec![waits(3, 0, 0), waits(9, 1, 1)]);
        let b = file(vec![held(2, 0, 9)], vec![waits(1, 0, 0)]);
        let c = file(vec![held(3, 0, 9)], vec![waits(2, 0, 0)]);
        assert_eq!(owners(&[a.clone(), b.clone(), c]), [[1, 2, 3]]);
        assert_eq!(owners(&[a, b]), [[0; 0]; 0]);
    }

    #[test]
    fn who_only_waits_behind_a_cycle_is_not_in_it() {
        let files = [
            file(
                vec![held(1, 0, 9), held(5, 20, 29)],
                vec![waits(2, 0, 0), waits(5, 1, 1), waits(6, 20, 20)],
            ),
            file(vec![held(2, 0, 9)], vec![waits(1, 0, 0)]),
        ];
        assert_eq!(owners(&files), [[1, 2]]);
    }

    #[test]
    fn what_is_younger_than_the_report_may_not_have_been_at_once() {
        let mut one = file(
            vec![held(1, 0, 9), held(2, 10, 19)],
            vec![waits(1, 15, 15), waits(2, 5, 5)],
        );
        one.waiters[1].waits_for = Some(0.001);
        assert_eq!(owners(&[one.clone()]).len(), 0);
        one.waiters[1].waits_for = None;
        assert_eq!(owners(&[one.clone()]).len(), 1);
        one.locks[0].held_for = Some(0.0);
        assert_eq!(owners(&[one]).len(), 0);
    }

    /// Whether a lock stands in the way of a request of another owner.
    fn is_in_the_way(lock: &Lock, request: &Lock) -> bool {
        lock.owner != request.owner
            && space(lock.kind) == space(request.kind)
            && (lock.mode == Mode::Write || request.mode == Mode::Write)
            && lock.end.is_none_or(|end| request.start <= end)
            && request.end.is_none_or(|end| lock.start <= end)
    }

    /// The waits that are dead, as the head of this module says it: all are, until one is found that is not.
    fn slowly(files: &[FileLocks], threads: usize) -> Vec<bool> {
        let waits: Vec<(usize, &Waiting)> = files
            .iter()
            .enumerate()
            .flat_map(|(file, listed)| listed.waiters.iter().map(move |waiting| (file, waiting)))
            .collect();
        let mut dead: Vec<bool> = waits
            .iter()
            .map(|(_, waiting)| is_settled(waiting.waits_for))
            .collect();
        loop {
            let all_dead = |is_one: &dyn Fn(&Lock) -> bool, least: usize| {
                let ones: Vec<usize> = (0..waits.len())
                    .filter(|&wait| is_one(&waits[wait].1.lock))
                    .collect();
                ones.len() >= least && ones.iter().all(|&wait| dead[wait])
            };
            let is_dead_lock = |held: &Held| {
                let Lock { owner, pid, .. } = held.lock;
                is_settled(held.held_for)
                    && (all_dead(&|lock| lock.owner == owner, 1)
                        || (pid != 0 && all_dead(&|lock| lock.pid == pid, threads)))
            };
            let alive = (0..waits.len()).find(|&wait| {
                let (file, waiting) = waits[wait];
                let mut locks = files[file].locks.iter();
                dead[wait]
                    && !locks
                        .any(|held| is_in_the_way(&held.lock, &waiting.lock) && is_dead_lock(held))
            });
            match alive {
                Some(wait) => dead[wait] = false,
                None => return dead,
            }
        }
    }

    fn any_lock() -> impl Strategy<Value = Lock> {
        let kinds = [Kind::Posix, Kind::Ofd, Kind::Flock, Kind::Access];
        (
            (0..kinds.len(), any::<bool>()),
            (0..12_u64, prop::option::weighted(0.9, 0..4_u64)),
            (1..9_u64, 0..6_u32),
        )
            .prop_map(
                move |((kind, is_read), (start, length), (owner, pid))| Lock {
                    kind: kinds[kind],
                    mode: if is_read { Mode::Read } else { Mode::Write },
                    end: length.map(|length| start + length),
                    pid,
                    ..lock(Kind::Ofd, owner, start, 0)
                },
            )
    }

    fn any_file() -> impl Strategy<Value = FileLocks> {
        let age = || prop::sample::select(vec![Some(9.0), Some(9.0), Some(9.0), None, Some(0.0)]);
        let held = (any_lock(), age()).prop_map(|(lock, held_for)| Held {
            lock,
            held_for,
            breaking: false,
        });
        let waiting = (any_lock(), age()).prop_map(|(lock, waits_for)| Waiting {
            lock,
            waits_for,
            ..waits(0, 0, 0)
        });
        (
            prop::collection::vec(held, 0..8),
            prop::collection::vec(waiting, 0..6),
        )
            .prop_map(|(locks, waiters)| file(locks, waiters))
    }

    proptest! {
        #[test]
        fn exactly_those_are_dead_that_an_obvious_search_finds(
            files in prop::collection::vec(any_file(), 1..4),
            threads in 1..3_usize,
        ) {
            let graph = Graph::of_the_dead(&files, |_| Some(threads));
            let dead: Vec<bool> = graph.waits.iter().map(|wait| wait.is_dead).collect();
            prop_assert_eq!(&dead, &slowly(&files, threads));
            let cycles = graph.cycles();
            prop_assert_eq!(cycles.is_empty(), !dead.contains(&true));
            for cycle in &cycles {
                for (place, step) in cycle.steps.iter().enumerate() {
                    let next = cycle.steps[(place + 1) % cycle.steps.len()];
                    let request = &files[step.file].waiters[step.waiter].lock;
                    let next = &files[next.file].waiters[next.waiter].lock;
                    let mut locks = files[step.file].locks.iter();
                    let is_of_next = |lock: &Lock| {
                        lock.owner == next.owner || (lock.pid != 0 && lock.pid == next.pid)
                    };
                    let is_witness = locks.any(|held| {
                        is_in_the_way(&held.lock, request) && is_of_next(&held.lock)
                    });
                    prop_assert!(is_witness, "{cycle:?}");
                }
            }
        }
    }

    /// So often a witness may be looked for: a few times a wait.
    fn searches_allowed(waits: usize) -> usize {
        waits * 2 * (waits.ilog2() as usize + 1)
    }

    #[test]
    fn very_many_locks_and_waiters_of_one_file_are_searched_a_few_times_each() {
        const MANY: u64 = 100_000;
        // Each holds a byte and waits for the next one's; the last one waits for nobody.
        let own_bytes = |count: u64| -> Vec<Held> { (0..count).map(|i| held(i, i, i)).collect() };
        let next_bytes = |count: u64| -> Vec<Waiting> {
            (0..count)
                .map(|i| waits(i, (i + 1) % MANY, (i + 1) % MANY))
                .collect()
        };
        let chain = [file(own_bytes(MANY), next_bytes(MANY - 1))];
        let circle = [file(own_bytes(MANY), next_bytes(MANY))];
        // Each waits for all before it, and they come alive one after the other.
        let stairs = [file(
            own_bytes(MANY),
            (1..MANY).map(|i| waits(i, 0, i - 1)).collect(),
        )];
        // The same the other way round.
        let down = [file(
            own_bytes(MANY),
            (0..MANY - 1).map(|i| waits(i, i + 1, MANY)).collect(),
        )];
        // Readers that all want to write: each waits for all others.
        let mut knot = [file(
            (0..MANY).map(|i| held(i, 0, 9)).collect(),
            (0..MANY).map(|i| waits(i, 0, 9)).collect(),
        )];
        for held in &mut knot[0].locks {
            held.lock.mode = Mode::Read;
        }
        for (files, dead) in [
            (&chain, 0),
            (&circle, MANY as usize),
            (&stairs, 0),
            (&down, 0),
            (&knot, MANY as usize),
        ] {
            let graph = Graph::of_the_dead(files, |_| None);
            let found = graph.waits.iter().filter(|wait| wait.is_dead).count();
            assert_eq!(found, dead);
            assert_eq!(graph.cycles().is_empty(), dead == 0);
            let allowed = searches_allowed(graph.waits.len());
            assert!(graph.searches <= allowed, "{} > {allowed}", graph.searches);
        }
    }

    #[test]
    fn a_long_cycle_over_files_ends() {
        let long: Vec<FileLocks> = (0..10_000)
            .map(|i| file(vec![held(i, 0, 9)], vec![waits((i + 1) % 10_000, 0, 0)]))
            .collect();
        assert_eq!(find(&long, |_| None)[0].steps.len(), 10_000);
    }

    /// A flock of this process through an open file of its own.
    fn flock(mut lock: Lock, pid: u32, open_file: u64) -> Lock {
        lock.kind = Kind::Flock;
        lock.pid = pid;
        lock.owner = open_file;
        lock
    }

    /// Two processes, each of which holds one file and wants the other's.
    fn crossed() -> [FileLocks; 2] {
        let mut files = [
            file(vec![held(1, 0, 9)], vec![waits(2, 0, 9)]),
            file(vec![held(3, 0, 9)], vec![waits(4, 0, 9)]),
        ];
        for (index, (holder, waiter)) in [(70, 80), (80, 70)].into_iter().enumerate() {
            let file = &mut files[index];
            let name = 10 * index as u64;
            file.locks[0].lock = flock(file.locks[0].lock.clone(), holder, name + 1);
            file.waiters[0].lock = flock(file.waiters[0].lock.clone(), waiter, name + 2);
        }
        files
    }

    #[test]
    fn processes_that_hold_a_flock_each_and_want_the_others_are_found() {
        let mut files = crossed();
        assert_eq!(owners(&files), [[2, 12]]);
        // A second thread may unlock.
        assert_eq!(owners_with(&files, 2).len(), 0);
        // Unless it waits in the same knot.
        for file in &mut files {
            let mut other = file.waiters[0].clone();
            other.lock.owner += 5;
            file.waiters.push(other);
        }
        assert_eq!(owners_with(&files, 2).len(), 1);
        // Or has a wait that will end.
        files[0].waiters[1].lock.kind = Kind::Ofd;
        assert_eq!(owners_with(&files, 2).len(), 0);
    }

    #[test]
    fn one_process_can_lock_itself_out() {
        let mut files = crossed();
        files[0].waiters[0].lock.pid = 70;
        assert_eq!(owners(&files[..1]), [[2]]);
        assert_eq!(owners_with(&files[..1], 2).len(), 0);
    }

    #[test]
    fn a_chain_that_ends_is_alive_however_long() {
        let chain: Vec<FileLocks> = (0..10_000)
            .map(|i| file(vec![held(i, 0, 9)], vec![waits(i + 1, 0, 0)]))
            .collect();
        assert!(find(&chain, |_| None).is_empty());
    }
}
