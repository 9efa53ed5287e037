//! Limits over files, and fairness by file.

use lockkeeper::{Errno, Fairness, Limits, LockManager, Openers, Range};

use crate::common::*;

const ENOLCK: Result = Err(Errno::ENOLCK);

fn limited(limits: Limits) -> Stage {
    Stage::with(LockManager::builder().limits(limits))
}

#[test]
fn locks_of_an_owner_are_counted_over_files() {
    let stage = limited(Limits {
        locks_per_owner: Some(3),
        ..Limits::default()
    });
    let other = stage.on(101);
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    assert_eq!(stage.set(p(1), W, bytes(10, 19)), Ok(()));
    assert_eq!(other.set(p(1), R, byte(0)), Ok(()));
    assert_eq!(other.set(p(1), R, byte(2)), ENOLCK);
    assert_eq!(stage.unlock(p(1), byte(15)), ENOLCK, "would split");
    assert_eq!(stage.set(p(1), R, byte(15)), ENOLCK, "would split in three");
    assert_eq!(stage.held(), "1:W0-0 1:W10-19");
    assert_eq!(other.held(), "1:R0-0");
    // What needs no further lock is granted, and others are not concerned.
    assert_eq!(other.set(p(1), R, byte(1)), Ok(()), "it joins");
    assert_eq!(other.set(p(1), W, bytes(0, 1)), Ok(()));
    assert_eq!(other.set(p(2), W, byte(9)), Ok(()));
    // A whole-file unlock is never refused, and frees what it held.
    assert_eq!(stage.unlock(p(1), Range::WHOLE), Ok(()));
    assert_eq!(other.set(p(1), R, byte(5)), Ok(()));
    assert_eq!(other.set(p(1), R, byte(7)), Ok(()));
    assert_eq!(other.set(p(1), R, byte(11)), ENOLCK);
    stage.manager.release_owner_everywhere(&p(1).into());
    assert_eq!(stage.set(p(1), R, byte(1)), Ok(()));
}

#[test]
fn locks_of_all_kinds_count_against_the_limit_in_all() {
    let stage = limited(Limits {
        locks_in_all: Some(4),
        ..Limits::default()
    });
    let other = stage.on(101);
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    assert_eq!(stage.set(o(1), W, byte(2)), Ok(()));
    assert_eq!(other.flock(o(1), R), Ok(()));
    let lease = other.file.lease(o(2));
    assert_eq!(errno(lease.set(R, Openers::default())), Ok(()));
    assert_eq!(other.set(p(2), R, byte(0)), ENOLCK);
    assert_eq!(other.flock(o(3), R), ENOLCK);
    let refused = other.file.lease(o(3)).set(R, Openers::default());
    assert_eq!(errno(refused), ENOLCK);
    other.check();
    assert_eq!(other.flock(o(1), W), Ok(()), "a conversion takes its place");
    assert_eq!(errno(lease.unlock()), Ok(()));
    assert_eq!(other.set(p(2), R, byte(0)), Ok(()));
    stage.file.tear_down();
    other.file.tear_down();
    for offset in [0, 2, 4, 6] {
        assert_eq!(stage.set(p(3), R, byte(offset)), Ok(()), "all are free");
    }
    assert_eq!(stage.set(p(3), R, byte(8)), ENOLCK);
}

#[test]
fn waits_are_limited_by_owner_by_file_and_in_all() {
    let cases = [
        (
            Limits {
                waiters_per_owner: Some(2),
                ..Limits::default()
            },
            [true, true, false, true],
        ),
        (
            Limits {
                waiters_in_all: Some(2),
                ..Limits::default()
            },
            [true, true, false, false],
        ),
        (
            Limits {
                waiters_per_file: Some(1),
                ..Limits::default()
            },
            [true, true, false, false],
        ),
    ];
    for (limits, waits) in cases {
        let stage = limited(limits);
        let other = stage.on(101);
        assert_eq!(stage.set(p(1), W, bytes(0, 9)), Ok(()));
        assert_eq!(other.set(p(1), W, bytes(0, 9)), Ok(()));
        // Two of one owner, on a file each; a third; one of another owner.
        let asked = [
            stage.wait(p(2), W, byte(0)),
            other.wait(p(2), W, byte(0)),
            stage.wait(p(2), W, byte(5)),
            stage.wait(p(3), W, byte(7)),
        ];
        for (asked, waits) in asked.iter().zip(waits) {
            let expected = if waits { WAITS } else { Some(ENOLCK) };
            assert_eq!(asked.outcome(), expected, "{limits:?}");
        }
        // Who is refused may try once somebody has gone.
        assert_eq!(stage.cancel(&asked[0]), Ok(()));
        let again = stage.wait(p(2), W, byte(5));
        assert_eq!(again.outcome(), WAITS);
        stage.manager.release_owner_everywhere(&p(1).into());
        assert_eq!(again.outcome(), GRANTED);
        assert_eq!(stage.waiting() + other.waiting(), 0);
    }
}

#[test]
fn a_waiter_whose_lock_would_pass_a_limit_ends_with_enolck() {
    let stage = limited(Limits {
        locks_per_owner: Some(1),
        ..Limits::default()
    });
    assert_eq!(stage.set(p(1), W, byte(0)), Ok(()));
    let waiter = stage.wait(p(2), W, byte(0));
    let behind = stage.wait(p(3), W, byte(0));
    assert_eq!(stage.set(p(2), W, byte(50)), Ok(()), "its only one");
    assert_eq!(stage.unlock(p(1), byte(0)), Ok(()));
    assert_eq!(waiter.outcome(), Some(ENOLCK));
    assert_eq!(behind.outcome(), GRANTED, "the next one is not lost");
    assert_eq!(stage.held(), "3:W0-0 2:W50-50");
}

#[test]
fn a_random_life_within_limits_ends_with_everything_free() {
    let limits = Limits {
        locks_per_owner: Some(5),
        locks_per_file: Some(8),
        locks_in_all: Some(12),
        waiters_per_owner: Some(2),
        waiters_per_file: Some(3),
        waiters_in_all: Some(5),
    };
    let stage = limited(limits);
    let files = [stage.clone(), stage.on(101), stage.on(102)];
    let mut random = Random(88_172_645_463_325_252);
    let mut asked = Vec::new();
    for _ in 0..3_000 {
        let file = &files[random.below(3) as usize];
        let owner = p(1 + random.below(4));
        let start = random.below(20);
        let range = bytes(start, start + random.below(6));
        let lock_type = if random.below(2) == 0 { R } else { W };
        match random.below(6) {
            0 | 1 => drop(file.set(owner, lock_type, range)),
            2 => asked.push(file.wait(owner, lock_type, range)),
            3 => drop(file.unlock(owner, range)),
            4 if !asked.is_empty() => {
                let index = random.below(asked.len() as u64) as usize;
                let asked = asked.swap_remove(index);
                let was_waiting = asked.outcome() == WAITS;
                assert_eq!(stage.cancel(&asked).is_ok(), was_waiting);
            }
            _ => file.close(owner, lockkeeper::table::Waits::Interrupt),
        }
        let listing = stage.manager.snapshot();
        let granted = listing.iter().map(|listing| listing.snapshot.granted.len());
        assert!(granted.sum::<usize>() <= 12);
    }
    for owner in 1..=4 {
        stage.manager.release_owner_everywhere(&p(owner).into());
    }
    stage.assert_empty();
    // The books are clean: everything can be had again.
    for (owner, file) in [(1, 0), (2, 1), (3, 2)] {
        for offset in 0..4 {
            let held = files[file].set(p(owner), W, byte(2 * offset));
            assert_eq!(held, Ok(()));
        }
    }
    assert_eq!(files[0].set(p(4), R, byte(50)), ENOLCK);
}

#[test]
fn each_file_may_have_its_own_fairness() {
    let stage = Stage::linux();
    let fifo = stage.on(101);
    assert_eq!(errno(fifo.file.set_fairness(Some(Fairness::FIFO))), Ok(()));
    for file in [&stage, &fifo] {
        assert_eq!(file.set(p(1), R, byte(0)), Ok(()));
    }
    let writers = [stage.wait(p(2), W, byte(0)), fifo.wait(p(2), W, byte(0))];
    assert_eq!(stage.set(p(3), R, byte(0)), Ok(()), "Linux");
    assert_eq!(fifo.set(p(3), R, byte(0)), Err(Errno::EAGAIN), "queues");
    assert_eq!(
        fifo.set(p(1), R, byte(0)),
        Ok(()),
        "the writer waits for it"
    );
    assert_eq!(errno(fifo.file.set_fairness(None)), Ok(()));
    assert_eq!(fifo.set(p(3), R, byte(0)), Ok(()), "as the manager has it");
    assert_eq!([writers[0].outcome(), writers[1].outcome()], [WAITS; 2]);
}

#[test]
fn a_bound_lets_so_many_pass_and_no_more() {
    for bound in [1, 7] {
        let stage = Stage::with(LockManager::builder().fairness(Fairness::Bounded(bound)));
        assert_eq!(stage.set(p(1), R, byte(0)), Ok(()));
        let writer = stage.wait(p(2), W, byte(0));
        for newcomer in 0..u64::from(bound) {
            assert_eq!(stage.set(p(10 + newcomer), R, byte(0)), Ok(()));
        }
        assert_eq!(stage.snapshot().waiting[0].overtaken, u64::from(bound));
        assert_eq!(stage.set(p(9), R, byte(0)), Err(Errno::EAGAIN));
        let queued = stage.wait(p(9), R, byte(0));
        assert_eq!(queued.outcome(), WAITS);
        for owner in (10..10 + u64::from(bound)).chain([1]) {
            assert_eq!(writer.outcome(), WAITS);
            assert_eq!(stage.unlock(p(owner), byte(0)), Ok(()));
        }
        assert_eq!((writer.outcome(), queued.outcome()), (GRANTED, WAITS));
        assert_eq!(stage.unlock(p(2), byte(0)), Ok(()));
        assert_eq!(queued.outcome(), GRANTED);
    }
}
