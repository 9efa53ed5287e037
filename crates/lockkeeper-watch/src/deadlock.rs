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
//! and looks for another when that one turns out to be alive; locks only come alive, so each wait passes
//! each lock once. From a wait by its witness to a wait of its holder, and so on, leads into a cycle.
//!
//! # When an edge counts
//! The files of a report are looked at one after the other, so two waits in it need never have been at
//! the same time. What was so before the first file was looked at, and still was when its file was, was
//! so at that moment; and the ages in a report count from just then. So a wait or lock younger than
//! [`SETTLED`] seconds is alive: in a real deadlock it soon is older. Where no ages are told (the kernel's
//! files) the caller has to look twice.

use std::collections::{HashMap, HashSet};

use crate::report::{Deadlock, DeadlockStep, FileLocks, Kind, Lock, Mode};

/// So old a wait or lock must be to count, in seconds: more than the time of a grant may be off.
pub const SETTLED: f64 = 0.02;

/// The cycles in which waits are dead. `threads` is the number of a process's threads, `None` if that
/// cannot be told; it is asked only where it decides.
pub fn find(files: &[FileLocks], threads: impl Fn(u32) -> Option<usize>) -> Vec<Deadlock> {
    let mut graph = Graph::new(files);
    if graph.locks.is_empty() {
        return Vec::new();
    }
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
    graph.cycles()
}

/// Whether a lock stands in the way of a request of another owner.
pub fn is_in_the_way(lock: &Lock, request: &Lock) -> bool {
    lock.owner != request.owner
        && space(lock.kind) == space(request.kind)
        && (lock.mode == Mode::Write || request.mode == Mode::Write)
        && lock.end.is_none_or(|end| request.start <= end)
        && request.end.is_none_or(|end| lock.start <= end)
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
    is_dead: bool,
    /// The waits whose witness is held by this group.
    witnessed: Vec<usize>,
}

/// A request, and where its search for a witness stands.
struct Wait {
    step: DeadlockStep,
    groups: [Option<usize>; 2],
    /// The place, among the locks of its file, of its witness.
    witness: usize,
    is_dead: bool,
}

/// A lock of an owner or process that waits.
struct Blocking<'a> {
    lock: &'a Lock,
    groups: [Option<usize>; 2],
}

struct Graph<'a> {
    files: &'a [FileLocks],
    groups: Vec<Group>,
    waits: Vec<Wait>,
    /// By file.
    locks: HashMap<usize, Vec<Blocking<'a>>>,
    /// Waits to be looked at, since their witness may be alive.
    pending: Vec<usize>,
}

impl<'a> Graph<'a> {
    fn new(files: &'a [FileLocks]) -> Graph<'a> {
        let mut graph = Graph {
            files,
            groups: Vec::new(),
            waits: Vec::new(),
            locks: HashMap::new(),
            pending: Vec::new(),
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
                let groups = [Some(of_owner), of_process];
                for group in groups.into_iter().flatten() {
                    graph.groups[group].waits.push(graph.waits.len());
                }
                if is_settled(waiting.waits_for) {
                    graph.pending.push(graph.waits.len());
                } else {
                    for group in groups.into_iter().flatten() {
                        graph.groups[group].is_dead = false;
                    }
                }
                graph.waits.push(Wait {
                    step: DeadlockStep { file, waiter },
                    groups,
                    witness: 0,
                    is_dead: is_settled(waiting.waits_for),
                });
            }
        }
        for (file, listed) in files.iter().enumerate() {
            if listed.waiters.is_empty() {
                continue;
            }
            for held in listed.locks.iter().filter(|held| is_settled(held.held_for)) {
                let groups = [
                    owners.get(&held.lock.owner).copied(),
                    processes.get(&held.lock.pid).copied(),
                ];
                if groups != [None, None] {
                    graph.locks.entry(file).or_default().push(Blocking {
                        lock: &held.lock,
                        groups,
                    });
                }
            }
        }
        graph
    }

    fn add_group(&mut self, pid: Option<u32>) -> usize {
        self.groups.push(Group {
            pid,
            waits: Vec::new(),
            is_dead: true,
            witnessed: Vec::new(),
        });
        self.groups.len() - 1
    }

    /// The group for which a lock is dead.
    fn dead_group(&self, lock: &Blocking<'_>) -> Option<usize> {
        let mut groups = lock.groups.into_iter().flatten();
        groups.find(|&group| self.groups[group].is_dead)
    }

    /// Looks at all that is pending: finds witnesses, and brings to life what has none.
    fn bring_to_life(&mut self) {
        while let Some(wait) = self.pending.pop() {
            if !self.waits[wait].is_dead {
                continue;
            }
            match self.next_witness(wait) {
                Some(group) => self.groups[group].witnessed.push(wait),
                None => {
                    self.waits[wait].is_dead = false;
                    for group in self.waits[wait].groups.into_iter().flatten() {
                        self.revive(group);
                    }
                }
            }
        }
    }

    fn next_witness(&mut self, wait: usize) -> Option<usize> {
        let Wait { step, witness, .. } = self.waits[wait];
        let request = &self.files[step.file].waiters[step.waiter].lock;
        let locks = self.locks.get(&step.file)?;
        let (place, group) = locks
            .iter()
            .enumerate()
            .skip(witness)
            .find_map(|(i, lock)| {
                let is_in_the_way = is_in_the_way(lock.lock, request);
                Some((i, is_in_the_way.then(|| self.dead_group(lock))??))
            })?;
        self.waits[wait].witness = place;
        Some(group)
    }

    fn revive(&mut self, group: usize) {
        let group = &mut self.groups[group];
        if group.is_dead {
            group.is_dead = false;
            self.pending.append(&mut group.witnessed);
        }
    }

    /// A wait of the holder of this one's witness.
    fn next(&self, wait: usize) -> Option<usize> {
        let Wait { step, witness, .. } = self.waits[wait];
        let lock = self.locks.get(&step.file)?.get(witness)?;
        let group = self.dead_group(lock)?;
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

    #[test]
    fn conflicts_are_those_of_the_locks() {
        let with = |change: &dyn Fn(&mut Lock)| {
            let mut lock = lock(Kind::Ofd, 1, 10, 19);
            change(&mut lock);
            lock
        };
        let request = lock(Kind::Posix, 2, 15, 15);
        for (change, expected) in [
            (&(|_: &mut Lock| {}) as &dyn Fn(&mut Lock), true),
            (&|lock| lock.mode = Mode::Read, true),
            (&|lock| lock.owner = 2, false),
            (&|lock| lock.kind = Kind::Flock, false),
            (&|lock| lock.kind = Kind::Access, true),
            (&|lock| lock.start = 16, false),
            (&|lock| lock.end = Some(14), false),
            (&|lock| lock.end = None, true),
        ] {
            assert_eq!(is_in_the_way(&with(change), &request), expected);
        }
        let reads = with(&|lock| lock.mode = Mode::Read);
        assert!(!is_in_the_way(
            &reads,
            &Lock {
                owner: 2,
                ..reads.clone()
            }
        ));
    }

    #[test]
    fn a_long_cycle_and_a_knot_of_everybody_end() {
        let long: Vec<FileLocks> = (0..10_000)
            .map(|i| file(vec![held(i, 0, 9)], vec![waits((i + 1) % 10_000, 0, 0)]))
            .collect();
        assert_eq!(find(&long, |_| None)[0].steps.len(), 10_000);
        // Readers that all want to write: each waits for all others.
        let mut knot = file(
            (0..5000).map(|i| held(i, 0, 9)).collect(),
            (0..5000).map(|i| waits(i, 0, 9)).collect(),
        );
        for held in &mut knot.locks {
            held.lock.mode = Mode::Read;
        }
        assert!(!find(&[knot], |_| None).is_empty());
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
