//! CT: what a file's locks are, and who owns them.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use lockkeeper::table::Waits;
use lockkeeper::{
    Errno, FileId, Limits, LockManager, OFFSET_MAX, Owner, PidIsId, Range, RangeError, Whence,
};

use crate::common::*;

const EAGAIN: Result = Err(Errno::EAGAIN);

#[test]
fn ct_01_closing_any_descriptor_drops_all_posix_locks() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    assert_eq!(stage.set(p(1), R, bytes(50, 60)), Ok(()));
    assert_eq!(stage.set(p(2), W, byte(0)), EAGAIN);
    stage.close(p(1), Waits::Keep); // the read-only one, which locked nothing
    assert_eq!(stage.held(), "");
    assert_eq!(stage.set(p(2), W, byte(0)), Ok(()));
}

#[test]
fn ct_02_two_opens_of_a_process_are_one_owner_for_posix_only() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let stage = stage.on(101);
    assert_eq!(stage.set(o(1), W, byte(0)), Ok(()));
    assert_eq!(stage.set(o(2), W, byte(0)), EAGAIN);
    let stage = stage.on(102);
    assert_eq!(stage.flock(o(1), W), Ok(()));
    assert_eq!(stage.flock(o(2), W), EAGAIN);
}

#[test]
fn ct_03_locks_merge_split_and_replace() {
    //            0        10       20        50      100     EOF
    // W W        wwwwwwwwwwwwwwwwwww
    // U 8-11     wwwwww    wwwwwwwww
    // R 0-       rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr
    // W 100      rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrwrrrrrrrrr
    // U 50-      rrrrrrrrrrrrrrrrrrrrrrrrr
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, bytes(0, 9)), Ok(()));
    assert_eq!(stage.set(p(1), W, bytes(10, 19)), Ok(()));
    assert_eq!(stage.held(), "1:W0-19");
    assert_eq!(stage.unlock(p(1), bytes(8, 11)), Ok(()));
    assert_eq!(stage.held(), "1:W0-7 1:W12-19");
    assert_eq!(stage.set(p(1), R, from(0)), Ok(()));
    assert_eq!(stage.held(), "1:R0-EOF");
    assert_eq!(stage.set(p(1), W, byte(100)), Ok(()));
    assert_eq!(stage.held(), "1:R0-99 1:W100-100 1:R101-EOF");
    assert_eq!(stage.unlock(p(1), from(50)), Ok(()));
    assert_eq!(stage.held(), "1:R0-49");
    assert_eq!(stage.unlock(p(1), from(1000)), Ok(()), "of nothing");
    assert_eq!(stage.held(), "1:R0-49");
}

#[test]
fn ct_05_a_negative_length_covers_the_bytes_before_the_start() {
    use RangeError::NegativeStart;
    let size = 100;
    let cases = [
        (Whence::Start, 10, -5, Ok(bytes(5, 9))),
        (Whence::Start, 3, -5, Err(NegativeStart)),
        (Whence::Start, 0, -1, Err(NegativeStart)),
        (Whence::Start, 10, i64::MIN, Err(NegativeStart)),
        (Whence::End(size), -10, 0, Ok(from(90))),
        (Whence::End(size), -10, -5, Ok(bytes(85, 89))),
    ];
    for (whence, start, len, expected) in cases {
        let range = Range::from_flock(whence, start, len);
        assert_eq!(range, expected, "{whence:?} {start} {len}");
        match range {
            Ok(range) => assert_eq!(Stage::linux().set(p(1), W, range), Ok(())),
            Err(error) => assert_eq!(error.errno(), Errno::EINVAL),
        }
    }
}

#[test]
fn ct_06_ranges_are_exact_at_the_last_offset() {
    const M: i64 = i64::MAX;
    let last = OFFSET_MAX;
    let cases = [
        (Whence::Start, M, 1, Ok(((M, 0), bytes(last, last)))),
        (Whence::Start, M, 2, Err(Errno::EOVERFLOW)),
        (Whence::Start, M, 0, Ok(((M, 0), bytes(last, last)))),
        (Whence::Start, 0, M, Ok(((0, M), bytes(0, last - 1)))),
        (Whence::Start, 1, M, Ok(((1, 0), bytes(1, last)))),
        (Whence::Start, 2, M, Err(Errno::EOVERFLOW)),
        (Whence::End(100), M, 1, Err(Errno::EOVERFLOW)),
        (Whence::Start, -1, 1, Err(Errno::EINVAL)),
    ];
    for (whence, start, len, expected) in cases {
        let stage = Stage::linux();
        let result = Range::from_flock(whence, start, len)
            .map(|range| {
                assert_eq!(stage.set(p(1), W, range), Ok(()));
                let shown = stage.file.posix(p(2)).test(R, Range::WHOLE);
                let shown = shown.expect("it is locked").range;
                (shown.to_flock(), shown)
            })
            .map_err(RangeError::errno);
        assert_eq!(result, expected, "{whence:?} {start} {len}");
    }
    let unknown = Whence::from_raw(9, 0, 100).map_err(RangeError::errno);
    assert_eq!(unknown, Err(Errno::EINVAL));

    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(last)), Ok(()));
    assert_eq!(stage.set(p(1), W, byte(last - 1)), Ok(()));
    assert_eq!(stage.held(), format!("1:W{}-EOF", last - 1));
    assert_eq!(
        stage.snapshot().granted[0].lock.range,
        bytes(last - 1, last)
    );
}

/// Which way a descriptor is open is its owner's to know: the server that has
/// the descriptor answers EBADF before it asks here. What must hold here is that
/// neither a question nor an unlock needs the right to lock.
#[test]
fn ct_07_questions_and_unlocks_are_free_of_any_mode() {
    let stage = Stage::linux();
    for lock_type in [R, W] {
        assert_eq!(stage.file.posix(p(1)).test(lock_type, byte(0)), None);
        assert_eq!(stage.file.ofd(o(1)).test(lock_type, byte(0)), None);
    }
    assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
    assert_eq!(stage.unlock(o(1), byte(0)), Ok(()));
    stage.unlock_flock(o(1));
    stage.assert_empty();
}

#[test]
fn ct_08_nobody_unlocks_what_another_holds() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, bytes(0, 9)), Ok(()));
    assert_eq!(stage.unlock(p(2), from(0)), Ok(()));
    assert_eq!(stage.held(), "1:W0-9");
    let seen = stage.file.posix(p(3)).test(W, byte(5)).expect("held");
    assert_eq!(seen.owner, Owner::from(p(1)));
    // Twice, with another owner in between.
    assert_eq!(stage.unlock(p(1), bytes(0, 9)), Ok(()));
    assert_eq!(stage.set(p(2), W, bytes(0, 9)), Ok(()));
    assert_eq!(stage.unlock(p(1), bytes(0, 9)), Ok(()));
    assert_eq!(stage.held(), "2:W0-9");
}

#[test]
fn ct_11_the_end_of_a_process_leaves_nothing_of_it() {
    let stage = Stage::linux();
    let other = stage.on(101);
    assert_eq!(stage.set(p(1), W, bytes(0, 99)), Ok(()));
    assert_eq!(other.set(p(1), R, bytes(5, 6)), Ok(()));
    let waiter = stage.wait(p(2), W, byte(0));
    assert_eq!(waiter.outcome(), WAITS);
    stage.manager.release_owner_everywhere(&p(1).into());
    stage.check();
    assert_eq!(waiter.outcome(), GRANTED);
    assert_eq!(stage.held(), "2:W0-0");
    assert_eq!(other.held(), "");
}

#[test]
fn ct_12_a_failed_flock_conversion_loses_the_lock_and_a_posix_upgrade_does_not() {
    let stage = Stage::linux();
    assert_eq!(stage.flock(o(1), R), Ok(()));
    assert_eq!(stage.flock(o(2), R), Ok(()));
    assert_eq!(stage.flock(o(1), W), EAGAIN);
    assert_eq!(stage.held(), "o2:fR");
    stage.close(o(2), Waits::Interrupt);
    assert_eq!(stage.flock(o(3), W), Ok(()));

    let stage = stage.on(101);
    assert_eq!(stage.set(p(1), R, byte(0)), Ok(()));
    assert_eq!(stage.set(p(2), R, byte(0)), Ok(()));
    assert_eq!(stage.set(p(1), W, byte(0)), EAGAIN);
    assert_eq!(stage.held(), "1:R0-0 2:R0-0");
}

#[test]
fn ct_14_what_does_not_overlap_or_is_ones_own_is_granted() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    assert_eq!(stage.set(p(2), W, from(1)), Ok(()));
    assert_eq!(stage.set(p(2), R, from(1)), Ok(()));
    assert_eq!(stage.set(p(1), R, byte(0)), Ok(()));
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    assert_eq!(stage.held(), "1:W0-0 2:R1-EOF");
}

#[test]
fn ct_15_posix_and_ofd_conflict_and_an_open_file_has_no_pid() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(4711), W, byte(0)), Ok(()));
    assert_eq!(stage.set(o(1), W, byte(0)), EAGAIN);
    let seen = stage.file.ofd(o(1)).test(W, byte(0)).expect("held");
    assert_eq!((seen.lock_type, seen.pid(&PidIsId)), (W, 4711));
    assert_eq!(stage.unlock(p(4711), byte(0)), Ok(()));
    assert_eq!(stage.set(o(1), W, byte(0)), Ok(()));
    assert_eq!(stage.set(p(4711), W, byte(0)), EAGAIN);
    let seen = stage.file.posix(p(4711)).test(R, byte(0)).expect("held");
    assert_eq!((seen.lock_type, seen.pid(&PidIsId)), (W, -1));
}

/// An `l_pid` in a request and an `l_type` of 7 cannot be said here: the types
/// have no place for them, and the server that reads a `struct flock` answers
/// EINVAL. What a process that makes the calls is called decides nothing.
#[test]
fn ct_16_who_makes_the_calls_changes_no_outcome() {
    let stage = Stage::linux();
    let a = stage.file.ofd(o(1)).taken_by(p(5));
    assert_eq!(errno(a.try_lock(W, byte(0))), Ok(()));
    let b = stage.file.ofd(o(1)).taken_by(p(6));
    assert_eq!(errno(b.try_lock(R, byte(0))), Ok(()), "the same owner");
    assert_eq!(stage.held(), "o1:R0-0");
    let other = stage.file.ofd(o(2)).taken_by(p(5));
    assert_eq!(errno(other.try_lock(W, byte(0))), EAGAIN, "another");
    stage.check();
}

#[test]
fn ct_18_an_open_file_can_ask_what_it_holds_itself() {
    let stage = Stage::linux();
    assert_eq!(stage.set(o(3), W, bytes(50, 54)), Ok(()));
    let own = stage.file.ofd(o(3)).test_own(from(0)).expect("held");
    assert_eq!(own.range.to_flock(), (50, 5));
    assert_eq!((own.lock_type, own.pid(&PidIsId)), (W, -1));
    assert_eq!(stage.file.ofd(o(2)).test_own(from(0)), None);
}

#[test]
fn ct_19_flock_and_record_locks_are_apart() {
    let stage = Stage::linux();
    assert_eq!(stage.flock(o(1), W), Ok(()));
    assert_eq!(stage.set(p(3), W, Range::WHOLE), Ok(()));
    assert_eq!(stage.set(o(3), W, Range::WHOLE), EAGAIN, "records conflict");
    assert_eq!(stage.flock(o(3), R), EAGAIN);
    assert_eq!(stage.held(), "3:W0-EOF o1:fW");
}

#[test]
fn ct_21_threads_of_one_open_file_lock_and_unlock_at_once() {
    let stage = Stage::linux();
    let is_over = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..100_000 {
                    stage.file.flock(o(1)).lock(W).expect("granted in the end");
                    stage.file.flock(o(1)).unlock();
                }
                is_over.fetch_add(1, Ordering::Relaxed);
            });
        }
        scope.spawn(|| {
            let mut round = 0;
            while is_over.load(Ordering::Relaxed) < 2 {
                let taken = errno(stage.file.flock(o(2)).try_lock(W));
                assert!(matches!(taken, Ok(()) | EAGAIN), "{taken:?}");
                round += 1;
                if round % 64 == 0 {
                    let held = stage.held();
                    assert!(matches!(&*held, "" | "o1:fW" | "o2:fW"), "{held}");
                }
                stage.file.flock(o(2)).unlock();
            }
        });
    });
    stage.assert_empty();
}

#[test]
fn ct_22_a_conversion_leaves_one_record_of_an_open_file() {
    let stage = Stage::linux();
    let is_over = AtomicU32::new(0);
    thread::scope(|scope| {
        for thread in 0..2 {
            let (stage, is_over) = (&stage, &is_over);
            scope.spawn(move || {
                for round in 0..50_000 {
                    let lock_type = if (round + thread) % 2 == 0 { R } else { W };
                    let result = errno(stage.file.flock(o(1)).try_lock(lock_type));
                    assert!(matches!(result, Ok(()) | EAGAIN), "{result:?}");
                }
                is_over.fetch_add(1, Ordering::Relaxed);
            });
        }
        scope.spawn(|| {
            while is_over.load(Ordering::Relaxed) < 2 {
                let _ = stage.file.flock(o(2)).try_lock(W);
                let held = stage.held();
                assert!(matches!(&*held, "" | "o1:fR" | "o1:fW" | "o2:fW"), "{held}");
                stage.file.flock(o(2)).unlock();
            }
        });
    });
    stage.unlock_flock(o(1));
    assert_eq!(stage.held(), "");
}

#[test]
fn ct_24_the_first_lock_of_a_file_goes_to_one_of_many() {
    const THREADS: u64 = 64;
    const ROUNDS: u64 = 50;
    let manager = LockManager::new();
    let barrier = Barrier::new(THREADS as usize);
    let granted: Vec<AtomicU32> = (0..ROUNDS).map(|_| AtomicU32::new(0)).collect();
    thread::scope(|scope| {
        for owner in 1..=THREADS {
            let (manager, barrier, granted) = (&manager, &barrier, &granted);
            scope.spawn(move || {
                for (round, granted) in granted.iter().enumerate() {
                    barrier.wait();
                    let file = manager.file(FileId::new(1, round as u64));
                    match errno(file.posix(p(owner)).try_lock(W, byte(0))) {
                        Ok(()) => granted.fetch_add(1, Ordering::Relaxed),
                        refused => {
                            assert_eq!(refused, EAGAIN);
                            0
                        }
                    };
                }
            });
        }
    });
    for granted in &granted {
        assert_eq!(granted.load(Ordering::Relaxed), 1);
    }
    assert_eq!(manager.file_count() as u64, ROUNDS, "one state each");
}

/// By the limit of locks on a file, which strikes where an allocation would
/// fail; `allocation.rs` fails each allocation in turn.
#[test]
fn ct_26_a_split_that_cannot_be_leaves_everything_as_it_was() {
    let stage = Stage::with(LockManager::builder().limits(Limits {
        locks_per_file: Some(1),
        ..Limits::default()
    }));
    assert_eq!(stage.set(p(1), W, bytes(0, 99)), Ok(()));
    assert_eq!(stage.unlock(p(1), bytes(40, 59)), Err(Errno::ENOLCK));
    assert_eq!(stage.held(), "1:W0-99");
    assert_eq!(stage.set(p(1), R, bytes(40, 59)), Err(Errno::ENOLCK));
    assert_eq!(stage.held(), "1:W0-99");
    assert_eq!(stage.set(p(1), R, Range::WHOLE), Ok(()), "needs no more");
    assert_eq!(stage.unlock(p(1), Range::WHOLE), Ok(()));
    stage.assert_empty();
}

#[test]
fn ct_27_a_cap_on_locks_of_one_owner_leaves_the_others_alone() {
    const CAP: u32 = 1000;
    let stage = Stage::with(LockManager::builder().limits(Limits {
        locks_per_owner: Some(CAP),
        ..Limits::default()
    }));
    for index in 0..u64::from(CAP) {
        let range = byte(2 * index);
        assert_eq!(errno(stage.file.posix(p(1)).try_lock(W, range)), Ok(()));
    }
    stage.check();
    let beyond = byte(2 * u64::from(CAP));
    assert_eq!(stage.set(p(1), W, beyond), Err(Errno::ENOLCK));
    assert_eq!(stage.snapshot().granted.len(), CAP as usize);
    assert_eq!(stage.on(101).set(p(1), W, byte(0)), Err(Errno::ENOLCK));
    assert_eq!(stage.set(p(2), W, beyond), Ok(()));
    assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
    assert_eq!(stage.set(p(1), R, byte(1)), Ok(()), "one was given up");
}

#[test]
fn ct_29_two_names_of_a_file_lead_to_one_state() {
    let manager = LockManager::new();
    let name1 = manager.file(FileId::new(0x801, 131));
    let name2 = manager.file(FileId::new(0x801, 131));
    assert_eq!(errno(name1.flock(o(1)).try_lock(W)), Ok(()));
    assert_eq!(errno(name2.flock(o(2)).try_lock(W)), EAGAIN);
    assert_eq!(manager.file_count(), 1);
    let elsewhere = manager.file(FileId::new(0x802, 131));
    assert_eq!(errno(elsewhere.flock(o(2)).try_lock(W)), Ok(()));
    for file in [name1, name2, elsewhere] {
        file.check_invariants();
    }
}
