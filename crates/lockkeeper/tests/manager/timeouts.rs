//! Timeouts and interrupts of threads, futures and callbacks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use lockkeeper::{
    BreakScope, CallbackId, Errno, Interrupt, LockManager, Openers, Started, WaitOptions,
};

use crate::common::*;

const SECOND: Duration = Duration::from_secs(1);

fn within(timeout: Duration) -> WaitOptions<'static> {
    WaitOptions {
        timeout: Some(timeout),
        interrupt: None,
    }
}

fn manual() -> Stage {
    Stage::with(LockManager::builder().manual_clock())
}

#[test]
fn a_thread_gives_up_when_its_time_is_over() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    for timeout in [Duration::ZERO, Duration::from_millis(1)] {
        let result = stage
            .file
            .posix(p(2))
            .lock_with(W, byte(0), within(timeout));
        assert_eq!(errno(result), Err(Errno::ETIMEDOUT));
        stage.check();
        assert_eq!(stage.waiting(), 0);
    }
    // Without conflict no time is needed.
    let result = stage
        .file
        .posix(p(2))
        .lock_with(W, byte(1), within(Duration::ZERO));
    assert_eq!(errno(result), Ok(()));
}

#[test]
fn a_manual_clock_alone_moves_the_timeouts_of_threads() {
    let stage = manual();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    assert_eq!(stage.flock(o(1), W), Ok(()));
    thread::scope(|scope| {
        // No real time passes for this one, however short it is.
        let waiter = scope.spawn(|| {
            let options = within(Duration::from_nanos(1));
            errno(stage.file.posix(p(2)).lock_with(W, byte(0), options))
        });
        // And an hour is over at once.
        let flock = scope.spawn(|| {
            let options = within(3600 * SECOND);
            errno(stage.file.flock(o(2)).lock_with(W, options))
        });
        until("both wait", || stage.waiting() == 2);
        // It is seen to wait before its deadline is set, so time moves until then.
        until("the first is over", || {
            assert!(!flock.is_finished());
            stage.manager.advance(Duration::from_nanos(1));
            waiter.is_finished()
        });
        assert_eq!(waiter.join().expect("no panic"), Err(Errno::ETIMEDOUT));
        until("the second is over", || {
            stage.manager.advance(3600 * SECOND);
            flock.is_finished()
        });
        assert_eq!(flock.join().expect("no panic"), Err(Errno::ETIMEDOUT));
    });
    assert_eq!(stage.held(), "1:W0-0 o1:fW");
}

#[test]
fn a_future_times_out_at_its_deadline_and_not_before() {
    let stage = manual();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let mut cx = Context::from_waker(Waker::noop());
    let mut future = stage
        .file
        .posix(p(2))
        .lock_async(W, byte(0))
        .timeout(SECOND);
    assert!(Pin::new(&mut future).poll(&mut cx).is_pending());
    stage.manager.advance(SECOND - Duration::from_nanos(1));
    assert!(Pin::new(&mut future).poll(&mut cx).is_pending());
    stage.manager.advance(Duration::from_nanos(1));
    assert_eq!(stage.waiting(), 0);
    let Poll::Ready(result) = Pin::new(&mut future).poll(&mut cx) else {
        panic!("its time is over");
    };
    assert_eq!(errno(result), Err(Errno::ETIMEDOUT));
    // A deadline that is over has no effect on whoever waits there next.
    let next = stage.wait(p(3), W, byte(0));
    stage.manager.advance(10 * SECOND);
    assert_eq!(next.outcome(), WAITS);
}

#[test]
fn a_grant_and_a_timeout_at_once_have_one_outcome() {
    const ROUNDS: usize = 3_000;
    let stage = manual();
    let (start, end) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                start.wait();
                stage.manager.advance(SECOND);
                end.wait();
            }
        });
        for _ in 0..ROUNDS {
            assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
            let mut cx = Context::from_waker(Waker::noop());
            let mut future = stage
                .file
                .posix(p(2))
                .lock_async(W, byte(0))
                .timeout(SECOND);
            assert!(Pin::new(&mut future).poll(&mut cx).is_pending());
            start.wait();
            assert_eq!(errno(stage.file.posix(p(1)).unlock(byte(0))), Ok(()));
            end.wait();
            let Poll::Ready(result) = Pin::new(&mut future).poll(&mut cx) else {
                panic!("granted or over");
            };
            let held = stage.held();
            match errno(result) {
                Ok(()) => assert_eq!(held, "2:W0-0"),
                error => assert_eq!((error, &*held), (Err(Errno::ETIMEDOUT), "")),
            }
            assert_eq!(stage.unlock(p(2), byte(0)), Ok(()));
        }
    });
    stage.assert_empty();
}

#[test]
fn an_interrupt_serves_one_wait_after_the_other() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let interrupt = Interrupt::new();
    for _ in 0..100 {
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let options = WaitOptions {
                    timeout: None,
                    interrupt: Some(&interrupt),
                };
                errno(stage.file.posix(p(2)).lock_with(R, byte(0), options))
            });
            until("it can be interrupted", || interrupt.interrupt().is_ok());
            assert_eq!(waiter.join().expect("no panic"), Err(Errno::EINTR));
        });
        stage.check();
        assert!(interrupt.interrupt().is_err());
    }
}

#[test]
fn mandatory_waits_time_out_and_hold_nothing() {
    let stage = manual();
    assert_eq!(stage.set(p(1), R, bytes(0, 9)), Ok(()));
    let other = stage.file.posix(p(2));
    assert_eq!(errno(other.check_io(R, byte(5))), Ok(()));
    assert_eq!(errno(other.check_io(W, byte(5))), Err(Errno::EAGAIN));
    let own = stage.file.posix(p(1));
    assert_eq!(errno(own.check_io(W, byte(5))), Ok(()), "its own lock");
    let mut cx = Context::from_waker(Waker::noop());
    let mut write = other.wait_for_io_async(W, byte(5)).timeout(SECOND);
    assert!(Pin::new(&mut write).poll(&mut cx).is_pending());
    let asked = Asked::start(|id, callback| other.wait_for_io_callback(id, W, byte(6), callback));
    stage.manager.advance(SECOND);
    let Poll::Ready(result) = Pin::new(&mut write).poll(&mut cx) else {
        panic!("its time is over");
    };
    assert_eq!(errno(result), Err(Errno::ETIMEDOUT));
    assert_eq!(asked.outcome(), WAITS);
    assert_eq!(stage.unlock(p(1), bytes(0, 9)), Ok(()));
    assert_eq!(asked.outcome(), GRANTED);
    stage.assert_empty();
}

#[test]
fn an_open_without_a_break_time_waits_for_the_holder() {
    let builder = LockManager::builder().manual_clock().lease_break_time(None);
    let stage = Stage::with(builder);
    let lease = stage.file.lease(o(1));
    lease.set(W, Openers::default()).expect("alone");
    let opener = stage.wait_open(o(2), W);
    stage.manager.advance(1_000_000 * SECOND);
    assert_eq!(opener.outcome(), WAITS);
    // The opener itself may give up.
    let opening = stage.file.opening(o(3), W, BreakScope::All);
    let mut cx = Context::from_waker(Waker::noop());
    let mut open = opening.wait_async().timeout(SECOND);
    assert!(Pin::new(&mut open).poll(&mut cx).is_pending());
    stage.manager.advance(SECOND);
    let Poll::Ready(result) = Pin::new(&mut open).poll(&mut cx) else {
        panic!("its time is over");
    };
    assert_eq!(errno(result), Err(Errno::ETIMEDOUT));
    assert_eq!(opener.outcome(), WAITS);
    lease.unlock().expect("held");
    assert_eq!(opener.outcome(), GRANTED);
}

/// Lease by lease, by the system's clock and its thread alone.
#[test]
fn the_timer_ends_breaks_by_itself() {
    let builder = LockManager::builder().lease_break_time(Some(Duration::from_millis(1)));
    let stage = Stage::with(builder);
    for inode in 101..111 {
        let file = stage.on(inode);
        let lease = file.file.lease(o(1));
        lease.set(W, Openers::default()).expect("alone");
        let opening = file.file.opening(o(2), W, BreakScope::All);
        assert_eq!(errno(opening.wait(WaitOptions::default())), Ok(()));
        stage.check();
    }
    stage.assert_empty();
}

#[test]
fn a_callback_is_told_when_its_time_is_over() {
    let stage = manual();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    assert_eq!(stage.flock(o(1), W), Ok(()));
    let (sent, told) = std::sync::mpsc::channel();
    let (of_record, of_flock) = (sent.clone(), sent);
    let started = stage.file.posix(p(2)).timeout(SECOND).lock_callback(
        CallbackId(1),
        W,
        byte(0),
        move |result| of_record.send(errno(result)).expect("the test listens"),
    );
    assert!(matches!(started, Ok(Started::Waiting(_))));
    let started =
        stage
            .file
            .flock(o(2))
            .timeout(SECOND * 2)
            .lock_callback(CallbackId(2), W, move |result| {
                of_flock.send(errno(result)).expect("the test listens")
            });
    assert!(matches!(started, Ok(Started::Waiting(_))));
    stage.manager.advance(SECOND / 2);
    assert!(told.try_recv().is_err(), "told too early");
    stage.manager.advance(SECOND / 2);
    assert_eq!(told.try_recv(), Ok(Err(Errno::ETIMEDOUT)));
    assert_eq!(stage.waiting(), 1);
    // One that is granted in time is told once, and its deadline is gone.
    stage.file.flock(o(1)).unlock();
    assert_eq!(told.try_recv(), Ok(Ok(())));
    stage.manager.advance(SECOND * 10);
    assert!(told.try_recv().is_err(), "told twice");
    stage.check();
}

#[test]
fn leases_taken_by_two_threads_never_see_time_run_backwards() {
    let stage = Stage::linux();
    thread::scope(|scope| {
        for number in 1..3 {
            let file = &stage.file;
            scope.spawn(move || {
                for _ in 0..50_000 {
                    file.lease(o(number))
                        .set(R, Openers::default())
                        .expect("no opener");
                    file.lease(o(number)).unlock().expect("it was just taken");
                }
            });
        }
    });
}
