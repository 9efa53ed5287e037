//! Cycles of owners over files: refused where they are deadlocks of POSIX locks,
//! reported where they are of open files, let pass where fairness made them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper::{Errno, Fairness, LockManager, Owner, Range, RemoteOwner, WaitOptions};

use crate::common::*;

const EDEADLK: Option<Result> = failed(Errno::EDEADLK);

#[test]
fn cycles_of_open_files_are_reported_and_not_refused() {
    let stage = Stage::linux();
    let other = stage.on(101);
    // By OFD record locks, over two files.
    assert_eq!(stage.set(o(1), W, byte(0)), Ok(()));
    assert_eq!(other.set(o(2), W, byte(0)), Ok(()));
    let ofd = [other.wait(o(1), W, byte(0)), stage.wait(o(2), W, byte(0))];
    // By flock, three of them.
    let files = [stage.on(102), stage.on(103), stage.on(104)];
    let mut flocks = Vec::new();
    for (file, owner) in files.iter().zip(11..) {
        assert_eq!(file.flock(o(owner), W), Ok(()));
    }
    assert_eq!(stage.manager.find_deadlocks().len(), 1);
    for (index, owner) in (11..14).enumerate() {
        flocks.push(files[(index + 1) % 3].wait_flock(o(owner), W));
    }
    for asked in ofd.iter().chain(&flocks) {
        assert_eq!(asked.outcome(), WAITS);
    }
    let mut cycles = stage.manager.find_deadlocks();
    cycles.sort_by_key(|cycle| cycle.steps.len());
    let lengths: Vec<usize> = cycles.iter().map(|cycle| cycle.steps.len()).collect();
    assert_eq!(lengths, [2, 3], "each once");
    for cycle in &cycles {
        for (step, next) in cycle.steps.iter().zip(cycle.steps.iter().cycle().skip(1)) {
            assert_eq!(step.waits_for, next.request.owner);
        }
    }
    // One gives up, and there is none any more.
    let step = &cycles[0].steps[0];
    let file = stage.manager.file(step.file);
    file.cancel(step.waiter).expect("it waits");
    assert_eq!(stage.manager.find_deadlocks().len(), 1);
    assert_eq!(stage.cancel(&flocks[0]), Ok(()));
    assert_eq!(stage.manager.find_deadlocks(), []);
}

/// As Linux: the process that closes the cycle is refused, the open file never.
#[test]
fn a_cycle_through_an_open_file_is_refused_where_a_process_closes_it() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    assert_eq!(stage.set(o(2), W, byte(1)), Ok(()));
    let open_file = stage.wait(o(2), W, byte(0));
    let process = stage.wait(p(1), W, byte(1));
    assert_eq!((open_file.outcome(), process.outcome()), (WAITS, EDEADLK));
    assert_eq!(stage.cancel(&open_file), Ok(()));
    let process = stage.wait(p(1), W, byte(1));
    let open_file = stage.wait(o(2), W, byte(0));
    assert_eq!((open_file.outcome(), process.outcome()), (WAITS, WAITS));
    assert_eq!(stage.manager.find_deadlocks().len(), 1, "but it is shown");
}

#[test]
fn remote_owners_are_refused_like_processes() {
    let stage = Stage::linux();
    let client = RemoteOwner::new(b"client", -2);
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    assert_eq!(stage.set(client.clone(), W, byte(1)), Ok(()));
    let first = stage.wait(client, W, byte(0));
    assert_eq!(stage.wait(p(1), W, byte(1)).outcome(), EDEADLK);
    assert_eq!(first.outcome(), WAITS);
}

/// A waits on g for B with one thread. Its other thread is granted what B waits
/// for on f: only then do the two wait for each other.
#[test]
fn a_grant_to_an_owner_that_waits_elsewhere_may_close_a_cycle() {
    for is_upgrade in [false, true] {
        let f = Stage::linux();
        let g = f.on(101);
        assert_eq!(g.set(p(2), W, byte(0)), Ok(()));
        let a = g.wait(p(1), W, byte(0));
        // C keeps B out of f[0-9], in a byte that A does not want.
        assert_eq!(f.set(p(3), W, byte(9)), Ok(()));
        let b = f.wait(p(2), R, bytes(0, 9));
        assert_eq!((a.outcome(), b.outcome()), (WAITS, WAITS));
        if is_upgrade {
            assert_eq!(f.set(p(1), R, byte(0)), Ok(()));
            assert_eq!(b.outcome(), WAITS, "both read");
        }
        assert_eq!(f.set(p(1), W, byte(0)), Ok(()));
        assert_eq!(b.outcome(), EDEADLK, "its new edge closed the cycle");
        assert_eq!(a.outcome(), WAITS);
        assert_eq!(g.unlock(p(2), byte(0)), Ok(()));
        assert_eq!(a.outcome(), GRANTED);
    }
}

/// The same where the grant comes to a waiter of A, by an unlock of D.
#[test]
fn a_grant_to_a_waiter_whose_owner_waits_elsewhere_may_close_a_cycle() {
    let f = Stage::linux();
    let g = f.on(101);
    assert_eq!(g.set(p(2), W, byte(0)), Ok(()));
    let a_on_g = g.wait(p(1), W, byte(0));
    assert_eq!(f.set(p(4), R, byte(0)), Ok(()));
    assert_eq!(f.set(p(3), W, byte(9)), Ok(()));
    let a_on_f = f.wait(p(1), W, byte(0));
    let b = f.wait(p(2), R, bytes(0, 9));
    assert_eq!(b.outcome(), WAITS);
    assert_eq!(f.unlock(p(4), byte(0)), Ok(()));
    assert_eq!(a_on_f.outcome(), GRANTED);
    assert_eq!((b.outcome(), a_on_g.outcome()), (EDEADLK, WAITS));
}

#[test]
fn a_cycle_that_a_cancel_broke_is_none() {
    let stage = Stage::linux();
    for owner in 1..=3 {
        assert_eq!(stage.set(p(owner), W, byte(owner)), Ok(()));
    }
    let first = stage.wait(p(1), W, byte(2));
    let second = stage.wait(p(2), W, byte(3));
    assert_eq!(stage.cancel(&first), Ok(()));
    let third = stage.wait(p(3), W, byte(1));
    assert_eq!((second.outcome(), third.outcome()), (WAITS, WAITS));
    assert_eq!(stage.wait(p(1), W, byte(2)).outcome(), EDEADLK);
}

/// First come, first served: B's newcomer queues behind A's waiter, which waits
/// for X, who waits for B elsewhere. Nobody needs what another has: B passes.
#[test]
fn a_cycle_made_by_queueing_lets_the_newcomer_pass() {
    let f = Stage::with(LockManager::builder().fairness(Fairness::FIFO));
    let g = f.on(101);
    assert_eq!(f.set(p(9), W, byte(0)), Ok(())); // X
    let a = f.wait(p(1), W, bytes(0, 9));
    assert_eq!(g.set(p(2), W, byte(0)), Ok(())); // B
    let x = g.wait(p(9), W, byte(0));
    let b = f.wait(p(2), W, byte(5));
    assert_eq!(b.outcome(), GRANTED, "without a cycle it would queue");
    assert_eq!((a.outcome(), x.outcome()), (WAITS, WAITS));
    assert_eq!(f.file.counters().deadlocks, 0);
    assert_eq!(g.unlock(p(2), byte(0)), Ok(()));
    assert_eq!(x.outcome(), GRANTED);
}

/// The same, where the last edge appears when a lock goes and B, which waited
/// for it, has to queue behind A.
#[test]
fn a_cycle_made_by_queueing_again_lets_the_waiter_pass() {
    let f = Stage::with(LockManager::builder().fairness(Fairness::FIFO));
    let g = f.on(101);
    assert_eq!(f.set(p(9), W, byte(0)), Ok(())); // X
    assert_eq!(f.set(p(8), W, byte(5)), Ok(())); // Y
    let a = f.wait(p(1), W, bytes(0, 4));
    let a_too = f.wait(p(1), W, bytes(0, 9));
    assert_eq!(g.set(p(2), W, byte(0)), Ok(())); // B
    let x = g.wait(p(9), W, byte(0));
    let b = f.wait(p(2), W, byte(5));
    assert_eq!(b.outcome(), WAITS, "for Y");
    assert_eq!(f.unlock(p(8), byte(5)), Ok(()));
    assert_eq!(b.outcome(), GRANTED);
    assert_eq!([a.outcome(), a_too.outcome(), x.outcome()], [WAITS; 3]);
    assert_eq!(f.file.counters().deadlocks, 0);
}

/// A cycle of open files beside one through a queue: the first is nobody's to
/// end, and must not hide the second.
#[test]
fn a_reported_cycle_hides_none_that_is_to_be_ended() {
    let f = Stage::with(LockManager::builder().fairness(Fairness::FIFO));
    let g = f.on(101);
    let h = f.on(102);
    // S will wait on g for two readers: T, who waits for S on h, and U, whose
    // other thread queues on f behind A, which waits for S.
    assert_eq!(h.set(o(1), W, byte(0)), Ok(())); // S
    assert_eq!(f.set(o(1), W, byte(0)), Ok(())); // S
    assert_eq!(g.set(o(2), R, byte(0)), Ok(())); // T
    assert_eq!(g.set(o(3), R, byte(0)), Ok(())); // U
    let t = h.wait(o(2), W, byte(0));
    let a = f.wait(o(4), W, bytes(0, 9)); // A
    let u = f.wait(o(3), W, byte(5));
    assert_eq!(u.outcome(), WAITS, "queues, in no cycle");
    let s = g.wait(o(1), W, byte(0));
    assert_eq!(u.outcome(), GRANTED, "now it is");
    assert_eq!([t.outcome(), a.outcome(), s.outcome()], [WAITS; 3]);
    assert_eq!(f.manager.find_deadlocks().len(), 1);
}

#[test]
fn many_owners_on_many_files_never_wait_for_ever_nor_in_vain() {
    for fairness in [Fairness::default(), Fairness::FIFO, Fairness::Bounded(3)] {
        stress(fairness);
    }
}

/// Threads that take random locks on random files, two owners to three threads,
/// and give all up when one is refused. Every wait ends; a timeout would be a
/// wait that was forgotten.
fn stress(fairness: Fairness) {
    const THREADS: u64 = 6;
    let stage = Stage::with(LockManager::builder().fairness(fairness));
    let files: Vec<Stage> = (0..4).map(|inode| stage.on(200 + inode)).collect();
    let refused = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (files, refused) = (&files, &refused);
            scope.spawn(move || {
                let mut random = Random(thread * 7919 + 17);
                let owner = Owner::from(p(1 + thread * 2 / 3));
                let options = WaitOptions {
                    timeout: Some(Duration::from_secs(60)),
                    interrupt: None,
                };
                for _ in 0..1_500 {
                    for _ in 0..=random.below(3) {
                        let file = &files[random.below(4) as usize];
                        let start = random.below(8);
                        let range = bytes(start, start + random.below(3));
                        let lock_type = if random.below(3) == 0 { R } else { W };
                        let records = file.file.records(owner.clone());
                        match errno(records.lock_with(lock_type, range, options)) {
                            Ok(()) => {}
                            Err(Errno::EDEADLK) => {
                                refused.fetch_add(1, Ordering::Relaxed);
                                break;
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    for file in files {
                        let records = file.file.records(owner.clone());
                        records.unlock(Range::WHOLE).expect("whole");
                    }
                }
            });
        }
    });
    let deadlocks: u64 = files.iter().map(|f| f.file.counters().deadlocks).sum();
    assert_eq!(deadlocks, refused.load(Ordering::Relaxed));
    stage.assert_empty();
}

/// Locks taken in one order by all can form no cycle: nobody may be refused.
#[test]
fn locks_in_order_are_never_refused() {
    for fairness in [Fairness::default(), Fairness::FIFO] {
        let stage = Stage::with(LockManager::builder().fairness(fairness));
        let files: Vec<Stage> = (0..5).map(|inode| stage.on(200 + inode)).collect();
        thread::scope(|scope| {
            for owner in 1..=6 {
                let files = &files;
                scope.spawn(move || {
                    let mut random = Random(owner * 104_729);
                    let options = WaitOptions {
                        timeout: Some(Duration::from_secs(60)),
                        interrupt: None,
                    };
                    for _ in 0..1_000 {
                        for file in files {
                            if random.below(2) == 0 {
                                let start = random.below(4);
                                let range = bytes(start, start + random.below(2));
                                let records = file.file.posix(p(owner));
                                let result = records.lock_with(W, range, options);
                                assert_eq!(errno(result), Ok(()));
                            }
                        }
                        for file in files {
                            let records = file.file.posix(p(owner));
                            records.unlock(Range::WHOLE).expect("whole");
                        }
                    }
                });
            }
        });
        stage.assert_empty();
    }
}

#[test]
fn a_wait_for_mandatory_io_is_part_of_a_cycle_and_may_be_refused() {
    for io_last in [false, true] {
        let stage = Stage::linux();
        assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
        assert_eq!(stage.set(p(2), W, byte(1)), Ok(()));
        let wait = |owner, offset, is_io: bool| {
            let (sent, told) = std::sync::mpsc::channel();
            let records = stage.file.posix(p(owner));
            let callback = move |result| sent.send(errno(result)).unwrap_or(());
            let started = if is_io {
                records.wait_for_io_callback(fresh_id(), W, byte(offset), callback)
            } else {
                records.lock_callback(fresh_id(), W, byte(offset), callback)
            };
            assert!(started.is_ok());
            told
        };
        let first = wait(1, 1, !io_last);
        let last = wait(2, 0, io_last);
        assert_eq!(last.try_recv(), Ok(Err(Errno::EDEADLK)));
        assert!(first.try_recv().is_err(), "the first waits on");
    }
}

/// A wait of the model: on which file, whose, for which bytes.
struct Waiting {
    file: usize,
    owner: Owner,
    first: u64,
    last: u64,
}

/// Whether the last of the waits is in a cycle. Another of its owner's may be in
/// one of open files that stands, which is not this one's doing.
fn closes_cycle(held: &[(usize, u64, Owner)], waits: &[Waiting]) -> bool {
    let Some((last, earlier)) = waits.split_last() else {
        return false;
    };
    let to = &last.owner;
    let mut seen = vec![to.clone()];
    let mut next = 0;
    while next < seen.len() {
        let owner = seen[next].clone();
        next += 1;
        let of_owner = earlier.iter().filter(|wait| wait.owner == owner);
        let of_owner: Vec<&Waiting> = match owner == *to {
            true => vec![last],
            false => of_owner.collect(),
        };
        for wait in of_owner {
            for (file, byte, holder) in held {
                let is_there = *file == wait.file && (wait.first..=wait.last).contains(byte);
                if is_there && *holder != owner {
                    if holder == to {
                        return true;
                    }
                    if !seen.contains(holder) {
                        seen.push(holder.clone());
                    }
                }
            }
        }
    }
    false
}

/// Processes, open files and clients, on three files, most with one wait and some
/// with several: chains, branches, and cycles that a chain runs into.
#[test]
fn a_wait_is_refused_exactly_where_the_obvious_search_finds_a_cycle() {
    const OWNERS: u64 = 9;
    let owner = |number: u64| match number % 3 {
        2 if number.is_multiple_of(2) => Owner::from(o(number)),
        2 => RemoteOwner::new(number.to_string().as_bytes(), -1).into(),
        _ => p(number).into(),
    };
    let (mut refused, mut waiting) = (0, 0);
    for seed in 0..3_000 {
        let mut random = Random(seed * 7919 + 1);
        let first = Stage::linux();
        let files = [first.clone(), first.on(101), first.on(102)];
        let mut held = Vec::new();
        for _ in 0..14 {
            let (file, byte_no, holder) = (
                random.below(3) as usize,
                random.below(6),
                owner(random.below(OWNERS)),
            );
            if files[file].set(holder.clone(), W, byte(byte_no)) == Ok(()) {
                held.push((file, byte_no, holder));
            }
        }
        let mut waits: Vec<Waiting> = Vec::new();
        let mut asked = Vec::new();
        for _ in 0..20 {
            let first = random.below(6);
            let wait = Waiting {
                file: random.below(3) as usize,
                owner: owner(random.below(OWNERS)),
                first,
                // Mostly of one byte, so for one other.
                last: first + random.below(4) / 3,
            };
            let is_free = !held.iter().any(|(file, byte, holder)| {
                *file == wait.file
                    && (wait.first..=wait.last).contains(byte)
                    && *holder != wait.owner
            });
            if is_free {
                continue;
            }
            let (file, owner) = (wait.file, wait.owner.clone());
            let range = bytes(wait.first, wait.last);
            waits.push(wait);
            let closes = owner.is_refused_deadlock() && closes_cycle(&held, &waits);
            let request = files[file].wait(owner, W, range);
            if closes {
                assert_eq!(request.outcome(), EDEADLK, "seed {seed}");
                waits.pop();
                refused += 1;
            } else {
                assert_eq!(request.outcome(), WAITS, "seed {seed}");
                asked.push(request);
                waiting += 1;
            }
        }
        for request in &asked {
            assert_eq!(request.outcome(), WAITS, "seed {seed}: refused for another");
        }
    }
    assert!(refused > 1_000 && waiting > 1_000, "{refused}, {waiting}");
}
