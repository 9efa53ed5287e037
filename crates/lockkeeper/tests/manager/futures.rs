//! Futures: any executor, and what a dropped one leaves.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use lockkeeper::{BreakScope, Errno, Fairness, LockFuture, LockManager, Openers, Waits};

use crate::common::*;

/// Wakes a thread, and counts how often.
struct Unpark(Thread, AtomicU32);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

fn unpark() -> Arc<Unpark> {
    Arc::new(Unpark(thread::current(), AtomicU32::new(0)))
}

/// The whole of an executor.
fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let waker = Waker::from(unpark());
    let mut cx = Context::from_waker(&waker);
    loop {
        match Pin::new(&mut future).poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn poll(future: &mut LockFuture, waker: &Waker) -> Option<Result> {
    let mut cx = Context::from_waker(waker);
    match Pin::new(future).poll(&mut cx) {
        Poll::Ready(result) => Some(errno(result)),
        Poll::Pending => None,
    }
}

#[test]
fn a_future_is_granted_by_another_thread() {
    let stage = Stage::linux();
    for _ in 0..200 {
        assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
        thread::scope(|scope| {
            let task = scope.spawn(|| block_on(stage.file.posix(p(2)).lock_async(W, byte(0))));
            until("it waits", || stage.waiting() == 1);
            assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
            assert_eq!(task.join().expect("no panic"), Ok(()));
        });
        assert_eq!(stage.held(), "2:W0-0");
        assert_eq!(stage.unlock(p(2), byte(0)), Ok(()));
    }
}

#[test]
fn nothing_happens_before_the_first_poll_or_after_the_last() {
    let stage = Stage::linux();
    let mut future = stage.file.posix(p(1)).lock_async(W, byte(0));
    assert_eq!(stage.held(), "");
    assert_eq!(poll(&mut future, Waker::noop()), GRANTED);
    assert_eq!(stage.held(), "1:W0-0");
    let again = poll(&mut future, Waker::noop());
    assert_eq!(again, failed(Errno::EINTR), "it was done");
    drop(future);
    assert_eq!(stage.held(), "1:W0-0", "a lock that was delivered stays");
    drop(stage.file.posix(p(2)).lock_async(W, byte(9)));
    assert_eq!(stage.held(), "1:W0-0");
}

#[test]
fn the_waker_of_the_last_poll_is_woken_and_only_once() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let mut future = stage.file.posix(p(2)).lock_async(W, byte(0));
    let (first, last) = (unpark(), unpark());
    assert_eq!(poll(&mut future, &first.clone().into()), WAITS);
    for _ in 0..10 {
        assert_eq!(poll(&mut future, &last.clone().into()), WAITS);
    }
    assert_eq!(stage.waiting(), 1, "polling queues it once");
    assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
    let woken = (&first, &last);
    assert_eq!(
        (
            woken.0.1.load(Ordering::SeqCst),
            woken.1.1.load(Ordering::SeqCst)
        ),
        (0, 1)
    );
    assert_eq!(poll(&mut future, &last.into()), GRANTED);
}

#[test]
fn a_future_dropped_while_it_waits_frees_those_behind_it() {
    let stage = Stage::with(LockManager::builder().fairness(Fairness::FIFO));
    assert_eq!(stage.set(p(1), R, byte(0)), Ok(()));
    let mut writer = stage.file.posix(p(2)).lock_async(W, byte(0));
    assert_eq!(poll(&mut writer, Waker::noop()), WAITS);
    let reader = stage.wait(p(3), R, byte(0));
    assert_eq!(reader.outcome(), WAITS, "first come, first served");
    drop(writer);
    stage.check();
    assert_eq!(reader.outcome(), GRANTED);
    assert_eq!(stage.file.counters().cancels, 1);
}

#[test]
fn a_future_dropped_after_its_grant_gives_back_to_what_was_held() {
    // What is held before the wait, what is waited for, what is left of it.
    let cases = [
        (vec![], (W, bytes(0, 9)), ""),
        (vec![(R, bytes(0, 9))], (W, bytes(0, 9)), "2:R0-9"),
        (
            vec![(R, bytes(0, 2)), (W, bytes(5, 6)), (R, bytes(8, 20))],
            (W, bytes(1, 12)),
            "2:R0-2 2:W5-6 2:R8-20",
        ),
        (
            vec![(W, bytes(0, 3)), (W, bytes(6, 9))],
            (R, bytes(2, 7)),
            "2:W0-3 2:W6-9",
        ),
    ];
    for (held, (lock_type, range), left) in cases {
        let stage = Stage::linux();
        for (lock_type, range) in held {
            assert_eq!(stage.set(p(2), lock_type, range), Ok(()));
        }
        // Of the type that only what is waited for conflicts with.
        let other_type = if lock_type == W { R } else { W };
        assert_eq!(stage.set(p(1), other_type, byte(4)), Ok(()));
        let mut future = stage.file.posix(p(2)).lock_async(lock_type, range);
        assert_eq!(poll(&mut future, Waker::noop()), WAITS);
        assert_eq!(stage.unlock(p(1), byte(4)), Ok(()));
        let next = stage.wait(p(3), other_type, byte(4));
        assert_eq!(next.outcome(), WAITS, "it was granted");
        drop(future);
        stage.check();
        assert_eq!(next.outcome(), GRANTED, "what was given back is handed on");
        assert_eq!(stage.unlock(p(3), byte(4)), Ok(()));
        assert_eq!(stage.held(), left);
    }
}

#[test]
fn a_flock_and_an_open_that_were_dropped_hold_nothing() {
    let stage = Stage::linux();
    assert_eq!(stage.flock(o(1), W), Ok(()));
    let mut flock = stage.file.flock(o(2)).lock_async(W);
    assert_eq!(poll(&mut flock, Waker::noop()), WAITS);
    stage.unlock_flock(o(1));
    assert_eq!(stage.held(), "o2:fW");
    drop(flock);
    assert_eq!(stage.held(), "");

    let lease = stage.file.lease(o(1));
    lease.set(W, Openers::default()).expect("alone");
    let opening = stage.file.opening(o(2), W, BreakScope::All);
    let mut open = opening.wait_async();
    assert_eq!(poll(&mut open, Waker::noop()), WAITS);
    lease.unlock().expect("held");
    drop(open);
    stage.assert_empty();
}

#[test]
fn a_future_dropped_while_the_grant_is_under_way_leaves_what_was_held() {
    const ROUNDS: usize = 5_000;
    let stage = Stage::with(LockManager::builder());
    let (start, end) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                start.wait();
                stage.file.posix(p(1)).unlock(byte(0)).expect("whole");
                end.wait();
            }
        });
        for round in 0..ROUNDS {
            assert_eq!(stage.set(p(1), R, byte(0)), Ok(()));
            assert_eq!(stage.set(p(2), R, byte(0)), Ok(()));
            let mut upgrade = stage.file.posix(p(2)).lock_async(W, byte(0));
            assert_eq!(poll(&mut upgrade, Waker::noop()), WAITS);
            start.wait();
            for _ in 0..round % 64 {
                std::hint::spin_loop();
            }
            drop(upgrade);
            end.wait();
            stage.check();
            assert_eq!(stage.held(), "2:R0-0");
            assert_eq!(stage.waiting(), 0);
        }
    });
    assert_eq!(stage.unlock(p(2), byte(0)), Ok(()));
    stage.assert_empty();
}

/// A task that owns the future and is kept alive by its waker alone.
#[test]
fn a_waker_whose_drop_drops_another_wait_locks_nothing_up() {
    struct Task(std::sync::Mutex<Option<LockFuture>>);
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let mut inner = stage.file.posix(p(2)).lock_async(W, byte(0));
    let task = Arc::new(Task(std::sync::Mutex::new(None)));
    assert_eq!(poll(&mut inner, &task.clone().into()), WAITS);
    let waker = Waker::from(task.clone());
    let mut outer = stage.file.posix(p(3)).lock_async(W, byte(0));
    assert_eq!(poll(&mut outer, &waker), WAITS);
    *task.0.lock().expect("not poisoned") = Some(inner);
    drop((task, waker));
    // Replaces the last waker but one, and then drops the rest.
    assert_eq!(poll(&mut outer, Waker::noop()), WAITS);
    drop(outer);
    stage.check();
    stage.manager.release_owner_everywhere(&p(2).into());
    assert_eq!(stage.waiting(), 0);
}

#[test]
fn a_cancelled_future_is_eintr() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let mut future = stage.file.posix(p(2)).lock_async(W, byte(0));
    assert_eq!(poll(&mut future, Waker::noop()), WAITS);
    let id = stage.snapshot().waiting[0].id;
    assert_eq!(stage.file.cancel(id), Ok(()));
    assert_eq!(poll(&mut future, Waker::noop()), failed(Errno::EINTR));
    assert_eq!(stage.held(), "1:W0-0");
}

#[test]
fn a_future_closing_a_cycle_is_refused_at_its_first_poll() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(1)), Ok(()));
    assert_eq!(stage.set(p(2), W, byte(2)), Ok(()));
    let first = stage.wait(p(1), W, byte(2));
    let mut future = stage.file.posix(p(2)).lock_async(W, byte(1));
    assert_eq!(poll(&mut future, Waker::noop()), failed(Errno::EDEADLK));
    assert_eq!(first.outcome(), WAITS);
    drop(future);
    assert_eq!(stage.held(), "1:W1-1 2:W2-2");
}

/// By the system's clock, whose timer must do it with no call to the manager.
#[test]
fn a_timeout_needs_no_executor() {
    let stage = Stage::with(LockManager::builder());
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let future = stage.file.posix(p(2)).lock_async(W, byte(0));
    let result = block_on(future.timeout(Duration::from_millis(1)));
    assert_eq!(errno(result), Err(Errno::ETIMEDOUT));
    assert_eq!(stage.waiting(), 0);
}

#[test]
fn a_dropped_future_leaves_what_was_held_at_the_grant_and_not_at_the_start() {
    let stage = Stage::linux();
    let waker = Waker::from(unpark());
    assert_eq!(stage.set(p(1), R, bytes(0, 9)), Ok(()));
    assert_eq!(stage.set(p(2), R, bytes(0, 9)), Ok(()));
    let mut upgrade = stage.file.posix(p(2)).lock_async(W, bytes(0, 9));
    assert_eq!(poll(&mut upgrade, &waker), None);
    // Another call of the owner gives up a part of it while the upgrade waits.
    assert_eq!(stage.unlock(p(2), bytes(0, 4)), Ok(()));
    assert_eq!(stage.unlock(p(1), bytes(0, 9)), Ok(()));
    assert_eq!(stage.held(), "2:W0-9");
    drop(upgrade);
    assert_eq!(stage.held(), "2:R5-9");
    stage.check();
}

#[test]
fn a_dropped_future_brings_nothing_back_that_was_given_up_since_the_grant() {
    let stage = Stage::linux();
    let waker = Waker::from(unpark());
    assert_eq!(stage.set(p(1), R, byte(0)), Ok(()));
    assert_eq!(stage.set(p(2), R, byte(0)), Ok(()));
    let mut upgrade = stage.file.posix(p(1)).lock_async(W, byte(0));
    assert_eq!(poll(&mut upgrade, &waker), None);
    assert_eq!(stage.unlock(p(2), byte(0)), Ok(()));
    assert_eq!(stage.held(), "1:W0-0");
    stage.file.release_owner(&p(1).into(), Waits::Interrupt);
    drop(upgrade);
    assert_eq!(stage.held(), "");
}

#[test]
fn a_dropped_future_keeps_the_weaker_of_what_was_held_and_what_is() {
    let stage = Stage::linux();
    let waker = Waker::from(unpark());
    assert_eq!(stage.set(p(1), W, bytes(0, 9)), Ok(()));
    assert_eq!(stage.set(p(2), W, byte(10)), Ok(()));
    let mut downgrade = stage.file.posix(p(1)).lock_async(R, bytes(0, 10));
    assert_eq!(poll(&mut downgrade, &waker), None);
    assert_eq!(stage.unlock(p(2), byte(10)), Ok(()));
    assert_eq!(stage.set(p(3), R, byte(5)), Ok(()));
    drop(downgrade);
    assert_eq!(stage.held(), "1:R0-9 3:R5-5");
}

#[test]
fn a_task_is_woken_within_a_callback() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    assert_eq!(stage.set(p(2), W, byte(1)), Ok(()));
    let file = stage.file.clone();
    let (sent, told) = std::sync::mpsc::channel();
    let callback = move |_| {
        let woken = unpark();
        let mut future = file.posix(p(3)).lock_async(W, byte(1));
        assert_eq!(poll(&mut future, &Waker::from(woken.clone())), None);
        file.posix(p(2)).unlock(byte(1)).expect("whole");
        sent.send(woken.1.load(Ordering::SeqCst))
            .expect("the test listens");
    };
    let started = stage
        .file
        .posix(p(3))
        .lock_callback(fresh_id(), W, byte(0), callback);
    assert!(started.is_ok());
    assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
    assert_eq!(told.recv(), Ok(1));
}
