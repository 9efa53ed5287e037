//! DL: EDEADLK exactly where owners wait for each other in a circle.

use std::sync::{Barrier, Mutex};
use std::thread;

use lockkeeper::{Errno, FileId, LockManager, Owner, Range};

use crate::common::*;

const EDEADLK: Option<Result> = failed(Errno::EDEADLK);

#[test]
fn dl_01_who_closes_a_cycle_is_refused_and_keeps_what_it_had() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    assert_eq!(stage.set(p(2), W, byte(1)), Ok(()));
    let first = stage.wait(p(1), W, byte(1));
    let second = stage.wait(p(2), W, byte(0));
    assert_eq!((first.outcome(), second.outcome()), (WAITS, EDEADLK));
    assert_eq!(stage.held(), "1:W0-0 2:W1-1");
    assert_eq!(stage.unlock(p(2), byte(1)), Ok(()));
    assert_eq!(first.outcome(), GRANTED);
    assert_eq!(stage.file.counters().deadlocks, 1);
}

#[test]
fn dl_02_plain_contention_is_no_deadlock() {
    let stage = Stage::with(LockManager::builder());
    for is_ofd in [false, true] {
        thread::scope(|scope| {
            for number in 1..=8 {
                let stage = &stage;
                scope.spawn(move || {
                    let owner = match is_ofd {
                        true => Owner::from(o(number)),
                        false => Owner::from(p(number)),
                    };
                    let records = stage.file.records(owner);
                    for _ in 0..20 {
                        records.lock(W, byte(0)).expect("granted");
                        records.unlock(byte(0)).expect("whole");
                        stage.check();
                    }
                });
            }
        });
        stage.assert_empty();
    }
    assert_eq!(stage.file.counters().deadlocks, 0);
}

/// Linux examines the first lock in the way only: where P3 locked before P1, P2
/// is let wait, and told EDEADLK when P3 has unlocked. Here every lock in the
/// way counts at once.
#[test]
fn dl_04_every_lock_in_the_way_is_examined() {
    for order in [[1, 3], [3, 1]] {
        let stage = Stage::linux();
        for owner in order {
            let offset = if owner == 1 { 2 } else { 0 };
            assert_eq!(stage.set(p(owner), W, byte(offset)), Ok(()));
        }
        assert_eq!(stage.set(p(2), W, byte(10)), Ok(()));
        let first = stage.wait(p(1), W, byte(10));
        let second = stage.wait(p(2), W, bytes(0, 2));
        assert_eq!(second.outcome(), EDEADLK, "{order:?}");
        assert_eq!(first.outcome(), WAITS);
        assert_eq!(stage.unlock(p(2), byte(10)), Ok(()));
        assert_eq!(first.outcome(), GRANTED);
    }
}

/// Linux gives up after ten steps: cycles of 13 owners and more block there.
#[test]
fn dl_05_a_cycle_of_any_length_is_found() {
    for n in (2..=24).chain([100, 1000]) {
        let stage = Stage::linux();
        for owner in 0..n {
            let held = stage.file.posix(p(owner)).try_lock(W, byte(owner));
            assert_eq!(errno(held), Ok(()));
        }
        let waiters: Vec<Asked> = (0..n - 1)
            .map(|owner| {
                let records = stage.file.posix(p(owner));
                Asked::start(|id, callback| records.lock_callback(id, W, byte(owner + 1), callback))
            })
            .collect();
        stage.check();
        let last = stage.wait(p(n - 1), W, byte(0));
        assert_eq!(last.outcome(), EDEADLK, "{n} owners");
        assert!(waiters.iter().all(|waiter| waiter.outcome() == WAITS));
    }
}

#[test]
fn dl_05_the_search_ends_where_another_cycle_exists() {
    let stage = Stage::linux();
    // Two open files wait for each other, which nobody is refused for.
    assert_eq!(stage.set(o(1), W, byte(1)), Ok(()));
    assert_eq!(stage.set(o(2), W, byte(2)), Ok(()));
    let first = stage.wait(o(1), W, byte(2));
    let second = stage.wait(o(2), W, byte(1));
    assert_eq!((first.outcome(), second.outcome()), (WAITS, WAITS));
    // A process that waits for them is in no cycle, nor is who waits for it.
    assert_eq!(stage.set(p(1), W, byte(3)), Ok(()));
    let beside = stage.wait(p(1), W, bytes(1, 2));
    let behind = stage.wait(p(2), W, byte(3));
    assert_eq!((beside.outcome(), behind.outcome()), (WAITS, WAITS));
    assert_eq!(stage.manager.find_deadlocks().len(), 1);
}

#[test]
fn dl_06_of_two_that_close_a_cycle_at_once_one_is_refused() {
    const ROUNDS: u64 = 1000;
    let manager = LockManager::new();
    let files = [1, 2].map(|inode| manager.file(FileId::new(1, inode)));
    let barrier = Barrier::new(2);
    let outcomes = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for me in 0..2 {
            let (files, barrier, outcomes) = (&files, &barrier, &outcomes);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let owner = p(me as u64 + 1);
                    let (own, other) = (files[me].posix(owner), files[1 - me].posix(owner));
                    own.try_lock(W, Range::WHOLE).expect("free");
                    barrier.wait();
                    let outcome = errno(other.lock(W, Range::WHOLE));
                    if outcome.is_ok() {
                        other.unlock(Range::WHOLE).expect("whole");
                    }
                    own.unlock(Range::WHOLE).expect("whole");
                    outcomes.lock().expect("not poisoned").push(outcome);
                    barrier.wait();
                    if me == 0 {
                        let mut outcomes = outcomes.lock().expect("not poisoned");
                        let refused = outcomes.iter().filter(|o| **o == Err(Errno::EDEADLK));
                        assert_eq!((outcomes.len(), refused.count()), (2, 1));
                        outcomes.clear();
                        files.iter().for_each(|file| file.check_invariants());
                    }
                    barrier.wait();
                }
            });
        }
    });
    assert!(manager.snapshot().is_empty());
}

/// As Linux does: threads of a process are one owner, so B is refused although
/// another thread of A might have unlocked what it waits for.
#[test]
fn dl_08_threads_of_a_process_are_one_owner() {
    let f = Stage::linux();
    let g = f.on(101);
    assert_eq!(f.set(p(1), W, byte(0)), Ok(()));
    assert_eq!(g.set(p(2), W, byte(0)), Ok(()));
    let thread_of_a = g.wait(p(1), W, byte(0));
    let b = f.wait(p(2), W, byte(0));
    assert_eq!((thread_of_a.outcome(), b.outcome()), (WAITS, EDEADLK));
    // The other thread of A comes too late to be of use.
    assert_eq!(f.unlock(p(1), byte(0)), Ok(()));
    assert_eq!(f.wait(p(2), W, byte(0)).outcome(), GRANTED);
}
