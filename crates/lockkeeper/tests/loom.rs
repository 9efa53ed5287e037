//! Interleavings of threads, all of them up to a number of preemptions, by loom.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 \
//!     cargo test -p lockkeeper --release --test loom --target-dir target/loom
//! ```
//!
//! A wake-up that is lost is a deadlock of the model, which loom reports.

#![cfg(loom)]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use lockkeeper::mutex::TableLock;
use lockkeeper::table::Waits;
use lockkeeper::{
    CallbackId, Errno, FileHandle, FileId, Interrupt, LockManager, LockType, OpenFileId, Owner,
    ProcessId, Range, Started, WaitOptions,
};
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

const R: LockType = LockType::Read;
const W: LockType = LockType::Write;
const ALL: Range = Range::WHOLE;
const HOLDER: ProcessId = ProcessId(1);
const WAITER: ProcessId = ProcessId(2);

type Outcome = Result<(), Errno>;

/// What callbacks were told, in order.
type News = Arc<Mutex<Vec<Outcome>>>;

fn news() -> News {
    Arc::new(Mutex::new(Vec::new()))
}

fn heard(news: &News) -> Vec<Outcome> {
    news.lock().expect("not poisoned").clone()
}

/// A file on which `HOLDER` has everything.
fn held_file() -> (LockManager, FileHandle) {
    let manager = LockManager::builder().manual_clock().build();
    let file = manager.file(FileId::new(1, 1));
    file.posix(HOLDER).try_lock(W, ALL).expect("free");
    (manager, file)
}

fn wait(file: &FileHandle, id: u64, owner: ProcessId, news: &News) -> Outcome {
    let note = news.clone();
    let callback = move |result: Result<(), lockkeeper::LockError>| {
        let outcome = result.map_err(|error| error.errno());
        note.lock().expect("not poisoned").push(outcome);
    };
    let started = file
        .posix(owner)
        .lock_callback(CallbackId(id), W, ALL, callback);
    started
        .map(|started| {
            if started == Started::Granted {
                news.lock().expect("not poisoned").push(Ok(()));
            }
        })
        .map_err(|error| error.errno())
}

/// Who holds something of the file.
fn holders(file: &FileHandle) -> Vec<Owner> {
    file.check_invariants();
    let granted = file.snapshot().granted;
    granted.into_iter().map(|view| view.lock.owner).collect()
}

#[test]
fn a_grant_and_a_cancel_have_one_outcome() {
    loom::model(|| {
        let (manager, file) = held_file();
        let news = news();
        wait(&file, 1, WAITER, &news).expect("it waits");
        let unlocker = {
            let file = file.clone();
            thread::spawn(move || file.posix(HOLDER).unlock(ALL).expect("whole"))
        };
        let cancelled = manager.cancel_callback(CallbackId(1)).is_ok();
        unlocker.join().expect("no panic");
        if cancelled {
            assert_eq!(heard(&news), [Err(Errno::EINTR)]);
            assert_eq!(holders(&file), []);
        } else {
            assert_eq!(heard(&news), [Ok(())]);
            assert_eq!(holders(&file), [Owner::from(WAITER)]);
        }
        // The id is free again.
        assert!(manager.cancel_callback(CallbackId(1)).is_err());
    });
}

#[test]
fn of_two_cancels_one_finds_the_wait() {
    loom::model(|| {
        let (manager, file) = held_file();
        let news = news();
        wait(&file, 1, WAITER, &news).expect("it waits");
        let other = {
            let manager = manager.clone();
            thread::spawn(move || manager.cancel_callback(CallbackId(1)).is_ok())
        };
        let mine = manager.cancel_callback(CallbackId(1)).is_ok();
        let others = other.join().expect("no panic");
        assert!(mine != others, "both or none: {mine}");
        assert_eq!(heard(&news), [Err(Errno::EINTR)]);
        assert_eq!(holders(&file), [Owner::from(HOLDER)]);
    });
}

/// The id of a callback is free as soon as its wait has ended, and whoever still
/// brings the news of the old one must leave the new one alone.
#[test]
fn an_id_that_is_used_again_at_once_belongs_to_the_new_wait() {
    loom::model(|| {
        let (manager, file) = held_file();
        let (first, second) = (news(), news());
        wait(&file, 1, WAITER, &first).expect("it waits");
        let other = manager.file(FileId::new(1, 2));
        other.posix(HOLDER).try_lock(W, ALL).expect("free");
        let unlocker = {
            let file = file.clone();
            thread::spawn(move || file.posix(HOLDER).unlock(ALL).expect("whole"))
        };
        let again = wait(&other, 1, WAITER, &second);
        unlocker.join().expect("no panic");
        assert_eq!(heard(&first), [Ok(())]);
        match again {
            Ok(()) => {
                assert!(manager.cancel_callback(CallbackId(1)).is_ok(), "it waits");
                assert_eq!(heard(&second), [Err(Errno::EINTR)]);
            }
            Err(error) => assert_eq!(error, Errno::EALREADY),
        }
    });
}

/// A thread's timeout is a cancel of its own wait; here another thread does it.
#[test]
fn a_timeout_and_a_grant_of_a_thread_have_one_outcome() {
    loom::model(|| {
        let (_manager, file) = held_file();
        let interrupt = Interrupt::new();
        let waiter = {
            let (file, interrupt) = (file.clone(), interrupt.clone());
            thread::spawn(move || {
                let options = WaitOptions {
                    interrupt: Some(&interrupt),
                    ..WaitOptions::default()
                };
                let result = file.posix(WAITER).lock_with(W, ALL, options);
                result.map_err(|error| error.errno())
            })
        };
        let unlocker = {
            let file = file.clone();
            thread::spawn(move || file.posix(HOLDER).unlock(ALL).expect("whole"))
        };
        let interrupted = interrupt.interrupt().is_ok();
        unlocker.join().expect("no panic");
        let outcome = waiter.join().expect("no panic");
        if interrupted {
            assert_eq!(outcome, Err(Errno::EINTR));
            assert_eq!(holders(&file), []);
        } else {
            assert_eq!(outcome, Ok(()));
            assert_eq!(holders(&file), [Owner::from(WAITER)]);
        }
    });
}

#[test]
fn a_future_dropped_while_it_is_granted_leaves_what_was_held() {
    loom::model(|| {
        let manager = LockManager::builder().manual_clock().build();
        let file = manager.file(FileId::new(1, 1));
        // An upgrade: what the waiter reads already must stay.
        file.posix(HOLDER).try_lock(R, ALL).expect("free");
        file.posix(WAITER).try_lock(R, ALL).expect("both read");
        let unlocker = {
            let file = file.clone();
            thread::spawn(move || file.posix(HOLDER).unlock(ALL).expect("whole"))
        };
        {
            let future = pin!(file.posix(WAITER).lock_async(W, ALL));
            let mut cx = Context::from_waker(Waker::noop());
            if let Poll::Ready(result) = future.poll(&mut cx) {
                assert_eq!(result, Ok(()));
                file.posix(WAITER).lock(R, ALL).expect("weaker");
            }
        }
        unlocker.join().expect("no panic");
        assert_eq!(holders(&file), [Owner::from(WAITER)]);
        let held = file.snapshot().granted;
        assert_eq!((held[0].lock.lock_type, held[0].lock.range), (R, ALL));
        assert_eq!(file.snapshot().waiting, []);
    });
}

#[test]
fn a_file_forgotten_and_touched_at_once_has_one_state() {
    loom::model(|| {
        let manager = LockManager::builder().manual_clock().build();
        let id = FileId::new(1, 1);
        let last = manager.file(id);
        let dropper = thread::spawn(move || drop(last));
        let toucher = {
            let manager = manager.clone();
            thread::spawn(move || {
                let file = manager.file(id);
                file.posix(WAITER).try_lock(W, ALL).expect("free");
            })
        };
        dropper.join().expect("no panic");
        toucher.join().expect("no panic");
        assert_eq!(manager.file_count(), 1, "it is locked");
        let file = manager.file(id);
        assert_eq!(holders(&file), [Owner::from(WAITER)]);
        file.posix(WAITER).unlock(ALL).expect("whole");
        drop(file);
        assert_eq!(manager.file_count(), 0);
    });
}

#[test]
fn a_close_during_a_blocked_set_leaves_nothing_behind() {
    loom::model(|| {
        let (_manager, file) = held_file();
        let news = news();
        wait(&file, 1, WAITER, &news).expect("it waits");
        let closer = {
            let file = file.clone();
            thread::spawn(move || file.release_owner(&WAITER.into(), Waits::Close))
        };
        file.posix(HOLDER).unlock(ALL).expect("whole");
        closer.join().expect("no panic");
        let heard = heard(&news);
        assert!(
            heard == [Ok(())] || heard == [Err(Errno::EBADF)],
            "{heard:?}"
        );
        assert_eq!(holders(&file), []);
        assert_eq!(file.snapshot().waiting, []);
    });
}

#[test]
fn a_thread_blocked_in_a_set_that_is_closed_leaves_nothing_behind() {
    loom::model(|| {
        let (_manager, file) = held_file();
        let waiter = {
            let file = file.clone();
            thread::spawn(move || {
                let result = file.posix(WAITER).lock(W, ALL);
                result.map_err(|error| error.errno())
            })
        };
        file.posix(HOLDER).unlock(ALL).expect("whole");
        file.release_owner(&WAITER.into(), Waits::Close);
        let outcome = waiter.join().expect("no panic");
        // Closed before the call, it takes the lock afterwards: the caller who
        // closes a descriptor in use must release again when the call is over.
        assert!(matches!(outcome, Ok(()) | Err(Errno::EBADF)), "{outcome:?}");
        file.release_owner(&WAITER.into(), Waits::Close);
        assert_eq!(holders(&file), []);
        assert_eq!(file.snapshot().waiting, []);
    });
}

#[test]
fn a_cycle_closed_from_both_sides_refuses_exactly_one() {
    loom::model(|| {
        let manager = LockManager::builder().manual_clock().build();
        let files = [1, 2].map(|inode| manager.file(FileId::new(1, inode)));
        files[0].posix(HOLDER).try_lock(W, ALL).expect("free");
        files[1].posix(WAITER).try_lock(W, ALL).expect("free");
        let (first, second) = (news(), news());
        let other = {
            let (file, news) = (files[1].clone(), first.clone());
            thread::spawn(move || wait(&file, 1, HOLDER, &news))
        };
        wait(&files[0], 2, WAITER, &second).expect("it waits, or is told later");
        other.join().expect("no panic").expect("the same");
        let mut both = heard(&first);
        both.extend(heard(&second));
        assert_eq!(both, [Err(Errno::EDEADLK)], "one is told, the other waits");
        let waiting: usize = files.iter().map(|f| f.snapshot().waiting.len()).sum();
        assert_eq!(waiting, 1);
        files.iter().for_each(FileHandle::check_invariants);
    });
}

#[test]
fn an_offered_lock_that_a_newcomer_took_is_offered_again() {
    loom::model(|| {
        let (_manager, file) = held_file();
        let waiter = {
            let file = file.clone();
            thread::spawn(move || file.posix(WAITER).lock(W, ALL).expect("its turn comes"))
        };
        file.posix(HOLDER).unlock(ALL).expect("whole");
        let newcomer = file.posix(ProcessId(3));
        if newcomer.try_lock(W, ALL).is_ok() {
            newcomer.unlock(ALL).expect("whole");
        }
        waiter.join().expect("no panic");
        assert_eq!(holders(&file), [Owner::from(WAITER)]);
    });
}

#[test]
fn two_waiting_threads_are_both_served() {
    loom::model(|| {
        let (_manager, file) = held_file();
        let waiters: Vec<_> = (2..=3)
            .map(|owner| {
                let file = file.clone();
                thread::spawn(move || {
                    let flock = file.flock(OpenFileId(owner));
                    flock.lock(W).expect("its turn comes");
                    flock.unlock();
                })
            })
            .collect();
        for waiter in waiters {
            waiter.join().expect("no panic");
        }
        assert_eq!(holders(&file), [Owner::from(HOLDER)], "the record lock");
    });
}

/// The mutex of a file's table: two threads in turn, and a third that comes late
/// enough to sleep. A wake-up that is lost is a deadlock of the model; two holders
/// at once would each miss what the other counted.
#[test]
fn a_sleeper_at_a_mutex_is_woken() {
    loom::model(|| {
        let lock = Arc::new(TableLock::new());
        let count = Arc::new(AtomicU32::new(0));
        let holders: Vec<_> = (0..2)
            .map(|_| {
                let (lock, count) = (lock.clone(), count.clone());
                thread::spawn(move || hold(&lock, &count))
            })
            .collect();
        hold(&lock, &count);
        for holder in holders {
            holder.join().expect("no panic");
        }
        assert_eq!(count.load(Ordering::Relaxed), 3);
        assert!(lock.try_acquire(), "held by nobody");
    });
}

fn hold(lock: &TableLock, count: &AtomicU32) {
    lock.acquire();
    let before = count.load(Ordering::Relaxed);
    thread::yield_now();
    count.store(before + 1, Ordering::Relaxed);
    lock.release();
}
