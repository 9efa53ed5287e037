//! PF: what makes a lock manager slow, as far as it can be counted.

use std::sync::{Arc, Mutex};
use std::thread;

use lockkeeper::{FileHandle, FileId, LockManager};

use crate::common::*;

#[test]
fn pf_01_an_unlock_wakes_one_writer_however_many_wait() {
    for n in [10, 100, 1000] {
        let stage = Stage::linux();
        assert_eq!(stage.set(p(0), W, byte(0)), Ok(()));
        let holders = Arc::new(Mutex::new(vec![0]));
        for owner in 1..=n {
            let holders = holders.clone();
            let note = move |_| holders.lock().expect("not poisoned").push(owner);
            let records = stage.file.posix(p(owner));
            records
                .lock_callback(fresh_id(), W, byte(0), note)
                .expect("it waits");
        }
        stage.check();
        for released in 0..n {
            let before = stage.file.counters();
            let unlocked = stage.file.posix(p(released)).unlock(byte(0));
            assert_eq!(errno(unlocked), Ok(()));
            let after = stage.file.counters();
            assert_eq!(after.wake_ups - before.wake_ups, 1, "{n} waiters");
            assert_eq!(after.requeues, before.requeues, "nobody else is looked at");
        }
        stage.check();
        let expected: Vec<u64> = (0..=n).collect();
        assert_eq!(*holders.lock().expect("not poisoned"), expected);
    }
}

/// Threads are offered a lock; while an offer is under way no other is sent.
#[test]
fn pf_01_threads_are_woken_once_a_release_at_most() {
    let stage = Stage::with(LockManager::builder());
    thread::scope(|scope| {
        for owner in 1..=8 {
            let stage = &stage;
            scope.spawn(move || {
                let records = stage.file.posix(p(owner));
                for _ in 0..5_000 {
                    records.lock(W, byte(0)).expect("granted");
                    records.unlock(byte(0)).expect("whole");
                }
            });
        }
    });
    let counters = stage.file.counters();
    assert_eq!(counters.acquisitions, 40_000);
    assert!(
        counters.wake_ups <= counters.acquisitions,
        "more wake-ups than releases: {counters:?}"
    );
    stage.assert_empty();
}

#[test]
fn pf_02_threads_on_files_of_their_own_never_meet() {
    let manager = LockManager::new();
    let files: Vec<FileHandle> = (0..4)
        .map(|inode| manager.file(FileId::new(1, inode)))
        .collect();
    thread::scope(|scope| {
        for (file, owner) in files.iter().zip(1..) {
            scope.spawn(move || {
                for _ in 0..20_000 {
                    let records = file.posix(p(owner));
                    records.try_lock(W, byte(0)).expect("nobody else");
                    assert_eq!(records.test(W, byte(0)), None);
                    records.unlock(byte(0)).expect("whole");
                }
            });
        }
    });
    for file in &files {
        file.check_invariants();
        let counters = file.counters();
        assert_eq!(counters.acquisitions, 20_000, "questions are not counted");
        assert_eq!((counters.contended, counters.wake_ups), (0, 0));
        assert_eq!(counters.requeues, 0);
    }
}
