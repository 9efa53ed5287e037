//! A snapshot in pieces of a file that changes between them.

use std::collections::HashSet;

use lockkeeper::table::{BlockedBy, Context, Lock, Request, Settings, Survey, Table};
use lockkeeper::{FileId, LockManager, LockType, ProcessId, Range, Time, WaiterId};

const W: LockType = LockType::Write;

fn write(owner: u64, start: u64, end: u64) -> Request {
    Request::record(
        ProcessId(owner),
        W,
        Range::new(start, end).expect("in order"),
    )
}

fn wait(table: &mut Table<u64>, request: Request, cx: Context<'_>) -> Option<WaiterId> {
    match table.lock(request, 0, cx) {
        Ok(Lock::Waiting(id)) => Some(id),
        _ => None,
    }
}

/// Numbers that look random, the same in every run.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

#[test]
fn what_stays_is_seen_once_whatever_changes_between_the_pieces() {
    let settings = Settings::default();
    let cx = Context::new(Time(1), &settings);
    for seed in 0..200 {
        let mut random = numbers(seed);
        let mut table = Table::new();
        // These stay: two locks, and a chain of waiters beneath the first.
        table.try_lock(&write(1, 0, 9), cx).expect("free");
        table.try_lock(&write(2, 1000, 1009), cx).expect("free");
        let staying: HashSet<WaiterId> = (10..20)
            .map(|owner| wait(&mut table, write(owner, 0, 9), cx).expect("taken"))
            .collect();
        let mut survey = Survey::new();
        while table.survey(&mut survey, 1 + random(3) as u32) {
            // And these come and go, and hang some of them elsewhere.
            let owner = 100 + random(6);
            let start = 20 + random(30);
            match random(3) {
                0 => drop(table.try_lock(&write(owner, start, start + random(20)), cx)),
                1 => drop(wait(&mut table, write(owner, start, start + random(9)), cx)),
                _ => table
                    .unlock(&ProcessId(owner).into(), Range::WHOLE, cx)
                    .expect("never fails for the whole file"),
            }
            while table.next_ended().is_some() {}
            table.check_invariants();
        }
        let snapshot = survey.into_snapshot();
        for owner in [1, 2] {
            let seen = snapshot.granted.iter();
            let seen = seen.filter(|view| view.lock.owner == ProcessId(owner).into());
            assert_eq!(seen.count(), 1, "seed {seed}: the lock of {owner}");
        }
        let seen: Vec<WaiterId> = snapshot.waiting.iter().map(|view| view.id).collect();
        let once: HashSet<WaiterId> = seen.iter().copied().collect();
        assert_eq!(once.len(), seen.len(), "seed {seed}: a waiter seen twice");
        assert!(staying.is_subset(&once), "seed {seed}: a waiter not seen");
        for (index, view) in snapshot.waiting.iter().enumerate() {
            match view.blocked_by {
                BlockedBy::Lock(at) => assert!(at < snapshot.granted.len()),
                BlockedBy::Waiter(at) => {
                    assert!(at < index, "seed {seed}: a child before its parent");
                    assert_eq!(view.depth, snapshot.waiting[at].depth + 1);
                }
                BlockedBy::Nothing => assert_eq!(view.depth, 0),
            }
        }
    }
}

#[test]
fn a_file_of_a_hundred_thousand_locks_is_shown_whole() {
    const LOCKS: u64 = 100_000;
    let manager = LockManager::new();
    let file = manager.file(FileId::new(1, 1));
    for n in 0..LOCKS {
        let byte = Range::byte(2 * n).expect("a small offset");
        file.posix(ProcessId(n)).try_lock(W, byte).expect("free");
    }
    let files = manager.snapshot();
    assert_eq!(files.len(), 1);
    let granted = &files[0].snapshot.granted;
    assert_eq!(granted.len() as u64, LOCKS);
    assert!(granted.is_sorted_by_key(|view| view.lock.range));
    assert_eq!(file.survey(), file.snapshot());
}

#[test]
fn a_piece_is_no_larger_than_was_asked_for() {
    let settings = Settings::default();
    let cx = Context::new(Time(1), &settings);
    let mut table = Table::new();
    for owner in 0..50 {
        table
            .try_lock(&write(owner, 4 * owner, 4 * owner), cx)
            .expect("free");
        wait(&mut table, write(100 + owner, 4 * owner, 4 * owner), cx).expect("taken");
    }
    // A piece of nothing would never end: it is of one.
    for (count, size) in [(0, 1), (1, 1), (7, 7), (u32::MAX, 100)] {
        for pieces in 1..=100 / size {
            let mut survey = Survey::new();
            for _ in 0..pieces {
                table.survey(&mut survey, count);
            }
            let snapshot = survey.into_snapshot();
            let copied = snapshot.granted.len() + snapshot.waiting.len();
            assert!(copied <= pieces * size, "{pieces} of {count}: {copied}");
        }
    }
}

#[test]
fn a_lock_that_moves_between_two_pieces_is_seen_once() {
    let settings = Settings::default();
    let cx = Context::new(Time(1), &settings);
    let mut table = Table::new();
    for byte in [0, 2, 4] {
        table.try_lock(&write(1, byte, byte), cx).expect("free");
    }
    let waits = table.lock_by_offer(write(2, 0, 0), 0, cx);
    let Ok(Lock::Waiting(id)) = waits else {
        panic!("the byte is taken");
    };
    // The waiter is woken, and a newcomer is quicker: his lock is in the table itself.
    table
        .unlock(&ProcessId(1).into(), Range::WHOLE, cx)
        .expect("never fails for the whole file");
    assert!(table.next_offer().is_some());
    table.try_lock(&write(3, 0, 0), cx).expect("free");

    let mut survey = Survey::new();
    assert!(table.survey(&mut survey, 1));
    // The waiter comes in vain and hangs beneath the lock, which moves for that.
    assert!(matches!(table.claim(id, cx), Ok(None)));
    while table.survey(&mut survey, 1) {}
    let snapshot = survey.into_snapshot();
    assert_eq!(snapshot.granted.len(), 1);
    assert_eq!(snapshot.waiting.len(), 1);
}

#[test]
fn a_survey_of_a_file_that_grows_has_an_end() {
    let settings = Settings::default();
    let cx = Context::new(Time(1), &settings);
    let mut table = Table::<u64>::new();
    let mut next = 0;
    let mut grow = |table: &mut Table<u64>| {
        for _ in 0..3 {
            next += 2;
            table.try_lock(&write(next, next, next), cx).expect("free");
        }
    };
    grow(&mut table);
    let mut survey = Survey::new();
    let mut pieces = 0;
    while table.survey(&mut survey, 1) {
        grow(&mut table);
        pieces += 1;
        assert!(pieces < 100, "no end");
    }
    assert!(survey.into_snapshot().granted.len() >= 3);
}
