//! BW: who waits beneath whom, and who is woken when.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use lockkeeper::table::{BlockedBy, Waits};
use lockkeeper::{Errno, FileId, Interrupt, LockError, LockManager, WaitOptions};

use crate::common::*;

#[test]
fn bw_01_a_downgrade_keeps_who_still_has_to_wait() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let q = stage.wait(p(2), W, byte(0));
    assert_eq!(stage.set(p(1), R, byte(0)), Ok(()));
    assert_eq!(q.outcome(), WAITS);
    assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
    assert_eq!(q.outcome(), GRANTED);
}

#[test]
fn bw_02_a_downgrade_wakes_readers() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let q = stage.wait(p(2), R, byte(0));
    assert_eq!(q.outcome(), WAITS);
    assert_eq!(stage.set(p(1), R, byte(0)), Ok(()));
    assert_eq!(q.outcome(), GRANTED);
}

#[test]
fn bw_04_a_restarted_wait_has_one_entry_at_the_end_of_the_queue() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let mut q = stage.wait(p(2), W, byte(0));
    let r = stage.wait(p(3), W, byte(0));
    let s = stage.wait(p(4), W, byte(0));
    for _ in 0..1000 {
        assert_eq!(stage.cancel(&q), Ok(()));
        assert_eq!(q.outcome(), failed(Errno::EINTR));
        assert_eq!(stage.waiting(), 2);
        q = stage.wait(p(2), W, byte(0));
        assert_eq!(stage.waiting(), 3);
    }
    for (releases, next) in [(1, &r), (3, &s), (4, &q)] {
        assert_eq!(next.outcome(), WAITS);
        assert_eq!(stage.unlock(p(releases), byte(0)), Ok(()));
        assert_eq!(next.outcome(), GRANTED);
    }
    assert_eq!(stage.held(), "2:W0-0");
}

#[test]
fn bw_05_who_must_wait_on_releases_those_beneath() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, bytes(0, 29)), Ok(()));
    let q = stage.wait(p(2), W, bytes(0, 29));
    let r = stage.wait(p(3), W, bytes(20, 22));
    assert_eq!(stage.snapshot().waiting[1].blocked_by, BlockedBy::Waiter(0));
    assert_eq!(stage.unlock(p(1), bytes(20, 29)), Ok(()));
    assert_eq!((q.outcome(), r.outcome()), (WAITS, GRANTED));
    assert_eq!(stage.held(), "1:W0-19 3:W20-22");
}

#[test]
fn bw_08_who_leaves_the_middle_takes_no_wake_up_along() {
    for is_killed in [false, true] {
        let stage = Stage::linux();
        assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
        let q = stage.wait(p(2), W, byte(0));
        let r = stage.wait(p(3), W, byte(0));
        assert_eq!(stage.snapshot().waiting[1].depth, 1);
        if is_killed {
            stage.close(p(2), Waits::Interrupt);
        } else {
            assert_eq!(stage.cancel(&q), Ok(()));
        }
        assert_eq!(q.outcome(), failed(Errno::EINTR));
        assert_eq!(r.outcome(), WAITS);
        assert_eq!(stage.snapshot().waiting[0].blocked_by, BlockedBy::Lock(0));
        assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
        assert_eq!(r.outcome(), GRANTED);
    }
}

#[test]
fn bw_10_a_cancelled_wait_is_eintr_for_threads_too() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let callback = stage.wait(p(2), W, byte(0));
    assert_eq!(stage.cancel(&callback), Ok(()));
    assert_eq!(callback.outcome(), failed(Errno::EINTR));
    assert_eq!(stage.cancel(&callback), Err(Errno::ENOENT), "once");

    thread::scope(|scope| {
        let waiter = scope.spawn(|| errno(stage.file.posix(p(3)).lock(W, byte(0))));
        until("it waits", || stage.waiting() == 1);
        let id = stage.snapshot().waiting[0].id;
        assert_eq!(stage.file.cancel(id), Ok(()));
        assert_eq!(waiter.join().expect("no panic"), Err(Errno::EINTR));
        assert!(stage.file.cancel(id).is_err());
    });
    assert_eq!(stage.held(), "1:W0-0");
}

#[test]
fn bw_11_a_cancelled_wait_leaves_what_was_held() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(2), R, byte(0)), Ok(()));
    assert_eq!(stage.set(p(1), W, byte(50)), Ok(()));
    let q = stage.wait(p(2), W, bytes(0, 99));
    assert_eq!(stage.cancel(&q), Ok(()));
    assert_eq!(q.outcome(), failed(Errno::EINTR));
    assert_eq!(stage.held(), "2:R0-0 1:W50-50");
}

#[test]
fn bw_12_a_grant_and_a_cancel_at_once_are_decided_once() {
    const ROUNDS: usize = 10_000;
    let stage = Stage::with(LockManager::builder());
    let current: Mutex<Option<Asked>> = Mutex::new(None);
    let (start, end) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                start.wait();
                stage.file.flock(o(1)).unlock();
                end.wait();
            }
        });
        for round in 0..ROUNDS {
            assert_eq!(errno(stage.file.flock(o(1)).try_lock(W)), Ok(()));
            let asked = stage.wait_flock(o(2), W);
            assert_eq!(asked.outcome(), WAITS);
            *current.lock().expect("not poisoned") = Some(asked);
            start.wait();
            for _ in 0..round % 32 {
                std::hint::spin_loop();
            }
            let asked = current.lock().expect("not poisoned").take();
            let asked = asked.expect("put there above");
            let cancelled = stage.cancel(&asked);
            end.wait();
            let expected = match cancelled {
                Ok(()) => failed(Errno::EINTR),
                Err(_) => GRANTED,
            };
            assert_eq!(asked.outcome(), expected);
            let held = stage.held();
            assert_eq!(held, if cancelled.is_ok() { "" } else { "o2:fW" });
            stage.unlock_flock(o(2));
        }
    });
    stage.assert_empty();
}

/// A thread that waits through a descriptor which another thread closes: for a
/// process the wait goes on and ends with EBADF; an open file lives as long as
/// the call does, and takes its lock along when the call is over.
#[test]
fn bw_14_a_close_during_the_wait_leaves_nothing_behind() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(2), W, byte(0)), Ok(()));
    let t1 = stage.wait(p(1), W, byte(0));
    stage.close(p(1), Waits::Close);
    assert_eq!(t1.outcome(), WAITS);
    assert_eq!(stage.unlock(p(2), byte(0)), Ok(()));
    assert_eq!(t1.outcome(), failed(Errno::EBADF));
    stage.assert_empty();

    assert_eq!(stage.set(o(2), W, byte(0)), Ok(()));
    assert_eq!(stage.flock(o(2), W), Ok(()));
    let record = stage.wait(o(1), W, byte(0));
    let flock = stage.wait_flock(o(1), W);
    stage.close(o(2), Waits::Interrupt);
    assert_eq!((record.outcome(), flock.outcome()), (GRANTED, GRANTED));
    stage.close(o(1), Waits::Interrupt);
    stage.assert_empty();

    // The close and the grant at once, by threads.
    for _ in 0..300 {
        assert_eq!(stage.set(p(2), W, byte(0)), Ok(()));
        let go = Barrier::new(2);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| errno(stage.file.posix(p(1)).lock(W, byte(0))));
            until("it waits", || stage.waiting() == 1);
            scope.spawn(|| {
                go.wait();
                stage.file.release_owner(&p(1).into(), Waits::Close);
            });
            go.wait();
            assert_eq!(errno(stage.file.posix(p(2)).unlock(byte(0))), Ok(()));
            // Granted and released, or closed first: either is right.
            let outcome = waiter.join().expect("no panic");
            assert!(matches!(outcome, Ok(()) | Err(Errno::EBADF)), "{outcome:?}");
        });
        stage.check();
        // A grant that came before the close was dropped by it. One that came
        // while the thread had still to fetch it is refused.
        stage.assert_empty();
    }
}

#[test]
fn bw_16_a_wait_ends_granted_and_never_with_eagain() {
    let stage = Stage::linux();
    for _ in 0..200 {
        assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
        thread::scope(|scope| {
            let waiter = scope.spawn(|| errno(stage.file.posix(p(2)).lock(W, byte(0))));
            until("it waits", || stage.waiting() == 1);
            assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
            assert_eq!(waiter.join().expect("no panic"), Ok(()));
        });
        assert_eq!(stage.held(), "2:W0-0");
        assert_eq!(stage.unlock(p(2), byte(0)), Ok(()));
    }
}

#[test]
fn bw_17_nobody_waits_for_what_nobody_holds() {
    let manager = LockManager::new();
    let id = FileId::new(1, 1);
    thread::scope(|scope| {
        for thread in 1..=3 {
            let manager = &manager;
            scope.spawn(move || {
                let mut random = Random(thread * 0x9e37_79b9);
                // No thread would be left to end the wait of a lost one.
                let options = WaitOptions {
                    timeout: Some(Duration::from_secs(60)),
                    ..WaitOptions::default()
                };
                for _ in 0..60_000 {
                    let lock_type = if random.below(2) == 0 { R } else { W };
                    // The entry comes and goes with its handles.
                    let file = manager.file(id);
                    let flock = file.flock(o(thread));
                    flock.lock_with(lock_type, options).expect("its turn comes");
                    flock.unlock();
                }
            });
        }
    });
    assert_eq!(manager.file_count(), 0);
}

#[test]
fn bw_18_a_blocked_flock_can_be_interrupted() {
    let stage = Stage::linux();
    assert_eq!(stage.flock(o(1), W), Ok(()));
    let interrupt = Interrupt::new();
    assert!(interrupt.interrupt().is_err(), "nobody waits with it yet");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let options = WaitOptions {
                interrupt: Some(&interrupt),
                ..WaitOptions::default()
            };
            errno(stage.file.flock(o(2)).lock_with(W, options))
        });
        until("it can be interrupted", || interrupt.interrupt().is_ok());
        assert_eq!(waiter.join().expect("no panic"), Err(Errno::EINTR));
    });
    assert!(interrupt.interrupt().is_err(), "its wait is over");
    assert_eq!(stage.held(), "o1:fW");
    assert_eq!(stage.waiting(), 0);
}

#[test]
fn bw_19_alike_waiters_are_served_in_order_of_arrival() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let order = Arc::new(Mutex::new(Vec::new()));
    for owner in 2..=7 {
        let (order, file) = (order.clone(), stage.file.clone());
        let unlock = move |result: Result| {
            assert_eq!(result, Ok(()));
            order.lock().expect("not poisoned").push(owner);
            assert_eq!(errno(file.posix(p(owner)).unlock(byte(0))), Ok(()));
        };
        let records = stage.file.posix(p(owner));
        records
            .lock_callback(fresh_id(), W, byte(0), move |result| unlock(errno(result)))
            .expect("it waits");
        stage.check();
    }
    assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
    assert_eq!(*order.lock().expect("not poisoned"), [2, 3, 4, 5, 6, 7]);
    stage.assert_empty();
}

#[test]
fn bw_19_a_waiting_writer_is_no_barrier_to_readers_on_linux() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), R, byte(0)), Ok(()));
    let q = stage.wait(p(2), W, byte(0));
    assert_eq!(stage.set(p(3), R, byte(0)), Ok(()));
    assert_eq!(q.outcome(), WAITS);
}

#[test]
fn bw_21_a_callback_may_use_the_file_whose_lock_it_was_told_of() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, bytes(0, 9)), Ok(()));
    let other = Arc::new(stage.wait(p(3), R, byte(9)));
    let heard = Arc::new(AtomicU64::new(0));
    let callback = {
        let (stage, other, heard) = (stage.clone(), other.clone(), heard.clone());
        move |result: std::result::Result<(), LockError>| {
            assert_eq!(result, Ok(()));
            assert_eq!(stage.set(p(2), R, bytes(0, 3)), Ok(()), "locks");
            assert_eq!(stage.unlock(p(2), bytes(4, 5)), Ok(()), "unlocks");
            assert_eq!(stage.cancel(&other), Ok(()), "cancels");
            stage.close(p(2), Waits::Interrupt); // its owner goes meanwhile
            stage.manager.release_owner_everywhere(&p(2).into());
            heard.fetch_add(1, Ordering::Relaxed);
        }
    };
    let records = stage.file.posix(p(2));
    records
        .lock_callback(fresh_id(), W, bytes(0, 5), callback)
        .expect("it waits");
    assert_eq!(stage.unlock(p(1), bytes(0, 5)), Ok(()));
    assert_eq!(heard.load(Ordering::Relaxed), 1);
    assert_eq!(other.outcome(), failed(Errno::EINTR));
    assert_eq!(stage.held(), "1:W6-9");
}

/// Signals are interrupts and stray wake-ups here.
#[test]
fn bw_22_what_does_not_wait_is_never_interrupted() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(9), W, byte(0)), Ok(()));
    assert_eq!(stage.flock(o(9), W), Ok(()));
    let interrupt = Interrupt::new();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let caller = scope.spawn(|| {
            for round in 0..50_000 {
                let offset = round % 2;
                let expected = [Err(Errno::EAGAIN), Ok(())][offset as usize];
                let (posix, ofd) = (stage.file.posix(p(1)), stage.file.ofd(o(1)));
                assert_eq!(errno(posix.try_lock(W, byte(offset))), expected);
                assert_eq!(errno(posix.unlock(byte(offset))), Ok(()));
                assert_eq!(errno(ofd.try_lock(W, byte(offset))), expected);
                assert_eq!(errno(ofd.unlock(byte(offset))), Ok(()));
                let taken = errno(stage.file.flock(o(1)).try_lock(W));
                assert_eq!(taken, Err(Errno::EAGAIN));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) && !caller.is_finished() {
            assert!(interrupt.interrupt().is_err());
            caller.thread().unpark();
        }
    });
    stage.check();
}
