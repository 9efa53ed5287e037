//! Callbacks: once each, outside every lock, whatever they do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lockkeeper::table::Waits;
use lockkeeper::{CallbackId, Errno, FileId, LockError, LockManager, Openers, Range, Started};

use crate::common::*;

#[test]
fn a_second_wait_under_an_id_is_refused_and_the_first_stands() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let first = stage.wait(p(2), W, byte(0));
    for file in [stage.clone(), stage.on(101)] {
        let again = file
            .file
            .posix(p(3))
            .lock_callback(first.id, W, byte(0), |_| {
                panic!("it never waited");
            });
        assert_eq!(errno(again), Err(Errno::EALREADY));
        stage.check();
    }
    assert_eq!(stage.waiting(), 1);
    assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
    assert_eq!(first.outcome(), GRANTED);
    // The id is free again, for a lock that is had at once as well.
    let again = stage
        .file
        .posix(p(3))
        .lock_callback(first.id, W, byte(5), |_| {
            panic!("it was granted at once");
        });
    assert_eq!(errno(again), Ok(Started::Granted));
    assert_eq!(stage.cancel(&first), Err(Errno::ENOENT));
}

#[test]
fn a_cancel_of_an_unknown_or_ended_wait_is_enoent_and_changes_nothing() {
    let stage = Stage::linux();
    let unknown = stage.manager.cancel_callback(CallbackId(u64::MAX));
    assert_eq!(unknown.map_err(|error| error.errno()), Err(Errno::ENOENT));
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let waits = stage.wait(p(2), W, byte(0));
    let id = stage.snapshot().waiting[0].id;
    assert!(stage.on(101).file.cancel(id).is_err(), "of another file");
    assert_eq!(stage.file.cancel(id), Ok(()));
    assert!(stage.file.cancel(id).is_err(), "stale");
    let next = stage.wait(p(2), W, byte(0));
    assert!(stage.file.cancel(id).is_err(), "its place is another's now");
    assert_eq!(waits.outcome(), failed(Errno::EINTR));
    assert_eq!(next.outcome(), WAITS);
    assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
    assert_eq!(stage.cancel(&next), Err(Errno::ENOENT), "the grant stands");
    assert_eq!(stage.held(), "2:W0-0");
}

#[test]
fn callbacks_that_unlock_need_no_stack_as_deep_as_the_queue() {
    const WAITERS: u64 = 20_000;
    let order = Arc::new(AtomicU64::new(0));
    let counted = order.clone();
    let small_stack = thread::Builder::new().stack_size(256 * 1024);
    let worker = small_stack.spawn(move || {
        let stage = Stage::with(LockManager::builder());
        assert_eq!(stage.set(p(0), W, byte(0)), Ok(()));
        for owner in 1..=WAITERS {
            let (file, order) = (stage.file.clone(), counted.clone());
            let records = stage.file.posix(p(owner));
            let callback = move |result: std::result::Result<(), _>| {
                assert_eq!(result, Ok(()));
                assert_eq!(order.fetch_add(1, Ordering::Relaxed), owner - 1);
                file.posix(p(owner)).unlock(byte(0)).expect("whole");
            };
            records
                .lock_callback(fresh_id(), W, byte(0), callback)
                .expect("it waits");
        }
        stage.file.posix(p(0)).unlock(byte(0)).expect("whole");
        stage.assert_empty();
    });
    worker.expect("a thread").join().expect("no panic");
    assert_eq!(order.load(Ordering::Relaxed), WAITERS);
}

#[test]
fn a_callback_that_panics_keeps_no_news_from_others() {
    // More readers than one batch of news holds; several of them panic.
    const READERS: u64 = 50;
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let heard = Arc::new(Mutex::new(Vec::new()));
    for owner in 0..READERS {
        let heard = heard.clone();
        let callback = move |result: std::result::Result<(), _>| {
            assert_eq!(result, Ok(()));
            heard.lock().expect("not poisoned").push(owner);
            if owner % 20 == 0 {
                std::panic::resume_unwind(Box::new(owner));
            }
        };
        let records = stage.file.posix(p(100 + owner));
        records
            .lock_callback(fresh_id(), R, byte(0), callback)
            .expect("it waits");
    }
    // Who unlocks is a stranger to those callbacks and need not know.
    assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
    let expected: Vec<u64> = (0..READERS).collect();
    assert_eq!(*heard.lock().expect("not poisoned"), expected);
    assert_eq!(stage.snapshot().granted.len(), READERS as usize);
    // The manager goes on as if nothing had been.
    assert_eq!(stage.set(p(1), R, byte(0)), Ok(()));
}

#[test]
fn a_callback_that_panics_within_another_keeps_no_news_from_others() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let last = {
        let file = stage.file.clone();
        let callback = move |_: std::result::Result<(), _>| {
            file.posix(p(2)).unlock(byte(0)).expect("whole");
            std::panic::resume_unwind(Box::new("one"));
        };
        let records = stage.file.posix(p(2));
        records
            .lock_callback(fresh_id(), W, byte(0), callback)
            .expect("it waits");
        stage.wait(p(3), W, byte(0))
    };
    assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
    assert_eq!(last.outcome(), GRANTED);
    assert_eq!(stage.held(), "3:W0-0");
}

#[test]
fn a_callback_may_wait_again_under_its_own_id() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, bytes(0, 1)), Ok(()));
    let id = fresh_id();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (again, note, second) = (stage.file.clone(), heard.clone(), heard.clone());
    let callback = move |result: std::result::Result<(), _>| {
        note.lock().expect("not poisoned").push((1, errno(result)));
        let next = move |result: std::result::Result<(), _>| {
            second
                .lock()
                .expect("not poisoned")
                .push((2, errno(result)));
        };
        let started = again.posix(p(2)).lock_callback(id, W, byte(1), next);
        assert!(matches!(started, Ok(Started::Waiting(_))), "{started:?}");
    };
    let records = stage.file.posix(p(2));
    records
        .lock_callback(id, W, byte(0), callback)
        .expect("it waits");
    assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
    assert_eq!(*heard.lock().expect("not poisoned"), [(1, Ok(()))]);
    assert_eq!(stage.manager.cancel_callback(id), Ok(()));
    assert_eq!(
        *heard.lock().expect("not poisoned"),
        [(1, Ok(())), (2, Err(Errno::EINTR))]
    );
    assert_eq!(stage.held(), "2:W0-0 1:W1-1");
}

#[test]
fn a_listener_for_breaks_may_give_the_lease_up() {
    let manager = Arc::new(Mutex::new(None::<LockManager>));
    let answer = manager.clone();
    let builder = LockManager::builder().on_lease_break(move |file, _| {
        let manager = answer.lock().expect("not poisoned").clone();
        let file = manager.expect("set below").file(file);
        file.lease(o(1)).unlock().expect("held");
    });
    let stage = Stage::with(builder);
    *manager.lock().expect("not poisoned") = Some(stage.manager.clone());
    let lease = stage.file.lease(o(1));
    lease.set(W, Openers::default()).expect("alone");
    let opener = stage.wait_open(o(2), W);
    assert_eq!(opener.outcome(), GRANTED);
    stage.assert_empty();
    manager.lock().expect("not poisoned").take();
}

#[test]
fn tearing_down_ends_every_wait_with_eio() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    assert_eq!(stage.flock(o(1), W), Ok(()));
    let lease = stage.file.lease(o(1));
    lease.set(W, Openers::default()).expect("alone");
    let waits = [
        stage.wait(p(2), W, byte(0)),
        stage.wait(p(3), R, Range::WHOLE),
        stage.wait_flock(o(2), R),
        stage.wait_open(o(3), W),
    ];
    thread::scope(|scope| {
        let blocked = scope.spawn(|| errno(stage.file.posix(p(4)).lock(W, byte(0))));
        until("it waits", || stage.waiting() == 5);
        stage.file.tear_down();
        assert_eq!(blocked.join().expect("no panic"), Err(Errno::EIO));
    });
    for wait in waits {
        assert_eq!(wait.outcome(), failed(Errno::EIO));
    }
    stage.assert_empty();
}

#[test]
fn a_client_that_died_leaves_no_lock_or_wait_on_any_file() {
    let stage = Stage::linux();
    let files: Vec<Stage> = (200..232).map(|inode| stage.on(inode)).collect();
    let mut others = Vec::new();
    for (file, index) in files.iter().zip(0..) {
        let holder = p(1 + index % 2);
        assert_eq!(file.set(holder, W, byte(0)), Ok(()));
        others.push((holder, file.wait(p(2 - index % 2), W, byte(0))));
    }
    // Each second wait closed a cycle, and was refused.
    stage.manager.release_owner_everywhere(&p(1).into());
    for (file, (holder, wait)) in files.iter().zip(&others) {
        file.check();
        let outcome = wait.outcome().expect("it ended");
        if *holder == p(1) {
            assert!(matches!(outcome, Ok(()) | Err(Errno::EDEADLK)));
            assert_eq!(file.held(), if outcome.is_ok() { "2:W0-0" } else { "" });
        } else {
            assert!(matches!(outcome, Err(Errno::EINTR | Errno::EDEADLK)));
            assert_eq!(file.held(), "2:W0-0");
        }
        assert_eq!(file.waiting(), 0);
    }
}

#[test]
fn the_states_of_many_files_are_apart() {
    let manager = LockManager::new();
    for inode in 0..100 {
        let file = manager.file(FileId::new(1, inode));
        file.posix(p(1)).try_lock(W, byte(inode)).expect("free");
        file.release_owner(&p(2).into(), Waits::Interrupt);
    }
    let listing = manager.snapshot();
    assert_eq!(listing.len(), 100);
    for (listing, inode) in listing.iter().zip(0..) {
        assert_eq!(listing.file, FileId::new(1, inode), "in order");
        assert_eq!(listing.snapshot.granted[0].lock.range, byte(inode));
    }
}

#[test]
fn a_callback_that_panics_in_the_timer_stops_no_other_deadline() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let (sent, told) = std::sync::mpsc::channel();
    let wait = |owner, callback: Box<dyn FnOnce(std::result::Result<(), LockError>) + Send>| {
        let records = stage.file.posix(p(owner)).timeout(Duration::from_millis(5));
        let started = records.lock_callback(fresh_id(), W, byte(0), callback);
        assert!(matches!(started, Ok(Started::Waiting(_))));
    };
    wait(2, Box::new(|_| std::panic::resume_unwind(Box::new("one"))));
    until("the first gave up", || stage.waiting() == 0);
    wait(
        3,
        Box::new(move |result| sent.send(errno(result)).expect("the test listens")),
    );
    assert_eq!(
        told.recv_timeout(Duration::from_secs(60)),
        Ok(Err(Errno::ETIMEDOUT))
    );
}

#[test]
fn an_id_of_one_file_or_of_an_earlier_state_is_none_of_another() {
    let manager = LockManager::new();
    let mut ids = Vec::new();
    for inode in [1, 2, 1] {
        let file = manager.file(FileId::new(0, inode));
        file.posix(p(1)).try_lock(W, byte(0)).expect("free");
        for &id in &ids {
            assert_eq!(
                file.cancel(id).map_err(|error| error.errno()),
                Err(Errno::ENOENT)
            );
        }
        match file
            .posix(p(2))
            .lock_callback(fresh_id(), W, byte(0), |_| {})
        {
            Ok(Started::Waiting(id)) => ids.push(id),
            other => panic!("it must wait: {other:?}"),
        }
        for &id in &ids[..ids.len() - 1] {
            assert_eq!(
                file.cancel(id).map_err(|error| error.errno()),
                Err(Errno::ENOENT)
            );
        }
        file.tear_down();
    }
}
