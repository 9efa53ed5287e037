//! Files come and go.

use std::sync::Barrier;
use std::thread;

use lockkeeper::table::Waits;
use lockkeeper::{FileId, LockManager, Openers, PidIsId};

use crate::common::*;

#[test]
fn a_file_lasts_as_long_as_a_handle_a_lock_or_a_wait() {
    let manager = LockManager::builder().manual_clock().build();
    let id = FileId::new(1, 1);
    let file = manager.file(id);
    let clone = file.clone();
    drop(file);
    assert_eq!(manager.file_count(), 1);
    clone.posix(p(1)).try_lock(W, byte(0)).expect("free");
    drop(clone);
    assert_eq!(manager.file_count(), 1, "it is locked");
    let file = manager.file(id);
    let asked = Asked::start(|id, callback| {
        let records = file.posix(p(2));
        records.lock_callback(id, W, byte(0), callback)
    });
    drop(file);
    manager.release_owner_everywhere(&p(1).into());
    assert_eq!(asked.outcome(), GRANTED);
    assert_eq!(manager.file_count(), 1, "it is the other's now");
    manager.release_owner_everywhere(&p(2).into());
    assert_eq!(manager.file_count(), 0);

    // A lease that is overdue goes with its file.
    let file = manager.file(id);
    let lease = file.lease(o(1));
    lease.set(W, Openers::default()).expect("alone");
    let opening = file.opening(o(2), W, lockkeeper::BreakScope::All);
    assert!(opening.try_break().is_err());
    drop(file);
    assert_eq!(manager.file_count(), 1);
    manager.advance(std::time::Duration::from_secs(45));
    assert_eq!(manager.file_count(), 0);
}

#[test]
fn a_million_rounds_of_open_lock_and_close_leave_no_file() {
    let manager = LockManager::new();
    thread::scope(|scope| {
        for half in 0..2 {
            let manager = &manager;
            scope.spawn(move || {
                for round in 0..500_000 {
                    // Some files are the other thread's as well.
                    let file = manager.file(FileId::new(1, (round * 7 + half) % 1000));
                    let records = file.posix(p(half));
                    if records.try_lock(R, byte(round)).is_ok() {
                        records.unlock(byte(round)).expect("whole");
                    }
                }
            });
        }
    });
    assert_eq!(manager.file_count(), 0);
    assert!(manager.snapshot().is_empty());
}

#[test]
fn two_threads_that_touch_a_file_first_get_one_state() {
    const ROUNDS: u64 = 5_000;
    let manager = LockManager::new();
    let barrier = Barrier::new(2);
    let granted = thread::scope(|scope| {
        let threads = [1, 2].map(|owner| {
            let (manager, barrier) = (&manager, &barrier);
            scope.spawn(move || {
                let mut granted = 0;
                for round in 0..ROUNDS {
                    barrier.wait();
                    let file = manager.file(FileId::new(1, round));
                    let taken = file.posix(p(owner)).try_lock(W, byte(0));
                    granted += u64::from(taken.is_ok());
                    barrier.wait();
                    file.release_owner(&p(owner).into(), Waits::Interrupt);
                }
                granted
            })
        });
        threads.map(|thread| thread.join().expect("no panic"))
    });
    assert_eq!(granted[0] + granted[1], ROUNDS, "one each: {granted:?}");
    assert_eq!(manager.file_count(), 0);
}

#[test]
fn a_manager_and_its_handles_may_go_in_any_order() {
    let manager = LockManager::builder()
        .lease_break_time(Some(std::time::Duration::from_secs(3600)))
        .build();
    let file = manager.file(FileId::new(1, 1));
    // Starts the timer's thread, which must not keep the manager.
    let lease = file.lease(o(1));
    lease.set(W, Openers::default()).expect("alone");
    let opening = file.opening(o(2), W, lockkeeper::BreakScope::All);
    assert!(opening.try_break().is_err());
    let weak = {
        let note = std::sync::Arc::new(());
        let weak = std::sync::Arc::downgrade(&note);
        let records = file.posix(p(1));
        records.try_lock(W, byte(0)).expect("free");
        let callback = move |_| drop(note);
        let records = file.posix(p(2));
        records
            .lock_callback(fresh_id(), W, byte(0), callback)
            .expect("it waits");
        weak
    };
    drop(manager);
    file.check_invariants();
    file.posix(p(3)).try_lock(W, byte(5)).expect("free");
    assert!(weak.upgrade().is_some(), "it waits");
    drop(file);
    until("the last thread has let the manager go", || {
        weak.upgrade().is_none()
    });
}

#[test]
fn counters_tell_what_happened_on_a_file() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    assert!(stage.set(p(2), W, byte(0)).is_err());
    let granted = stage.wait(p(2), W, byte(0));
    let cancelled = stage.wait(p(3), W, byte(0));
    assert_eq!(stage.cancel(&cancelled), Ok(()));
    assert_eq!(stage.set(p(2), W, byte(1)), Ok(()));
    let refused = stage.wait(p(1), W, byte(1));
    assert_eq!(refused.outcome(), failed(lockkeeper::Errno::EDEADLK));
    assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
    assert_eq!(granted.outcome(), GRANTED);
    let counters = stage.file.counters();
    assert_eq!(counters.acquisitions, 3);
    assert_eq!(counters.contended, 3);
    assert_eq!(counters.wake_ups, 1);
    assert_eq!(counters.requeues, 0);
    assert_eq!(counters.deadlocks, 1);
    assert_eq!(counters.cancels, 1);
    assert_eq!(stage.manager.counters(), counters);
    // A file's own: others do not see them.
    assert_eq!(stage.on(101).file.counters().acquisitions, 0);
}

#[test]
fn what_was_counted_outlives_the_file() {
    let manager = LockManager::new();
    for round in 1..=3 {
        for inode in 0..100 {
            let file = manager.file(FileId::new(1, inode));
            file.posix(p(1)).try_lock(W, byte(0)).expect("free");
            file.posix(p(1)).unlock(byte(0)).expect("held");
        }
        assert_eq!(manager.file_count(), 0);
        assert_eq!(manager.counters().acquisitions, 100 * round);
    }
}

#[test]
fn snapshots_tell_since_when_and_how_often_overtaken() {
    let stage = Stage::with(LockManager::builder().manual_clock());
    let start = stage.manager.now();
    let second = std::time::Duration::from_secs(1);
    assert_eq!(stage.set(p(1), R, byte(0)), Ok(()));
    stage.manager.advance(second);
    let _writer = stage.wait(p(2), W, byte(0));
    stage.manager.advance(second);
    assert_eq!(stage.set(p(3), R, byte(0)), Ok(()));
    assert_eq!(stage.set(p(4), R, byte(0)), Ok(()));
    let snapshot = stage.snapshot();
    let mut since: Vec<_> = snapshot
        .granted
        .iter()
        .map(|view| (view.lock.pid(&PidIsId), view.since.since(start)))
        .collect();
    since.sort();
    let zero = std::time::Duration::ZERO;
    assert_eq!(since, [(1, zero), (3, 2 * second), (4, 2 * second)]);
    let waiter = &snapshot.waiting[0];
    assert_eq!(waiter.since.since(start), second);
    assert_eq!((waiter.overtaken, waiter.depth), (2, 0));
}
