//! What the model once found, each as the shortest sequence that shows it.
//!
//! The model is the judge here as in `properties.rs`; the comments say what was
//! wrong.

mod model;

use lockkeeper::table::{BreakScope, Context, Lock, Openers, Request, Settings, Table, Waits};
use lockkeeper::{Fairness, LockType, ProcessId, Range, Time};

use model::ops::{Ask, Op, Pick, Setup, Step};
use model::run_steps;

const R: LockType = LockType::Read;
const W: LockType = LockType::Write;

fn record(owner: u8, lock_type: LockType, start: u64, end: u64) -> Ask {
    Ask::Record(owner, lock_type, bytes(start, end))
}

fn bytes(start: u64, end: u64) -> Range {
    Range::new(start, end).expect("in order")
}

fn run(setup: Setup, ops: impl IntoIterator<Item = Op>) {
    run_steps(setup, ops.into_iter().map(Step::from));
}

fn linux() -> Setup {
    Setup::new(Fairness::Unlimited)
}

#[test]
fn a_shrinking_lock_lets_those_go_that_hang_beneath_one_who_must_wait_on() {
    // The third hangs beneath the second, which still waits for the rest of the
    // lock; it stayed there, though its own bytes were free (BW-05).
    for freed in [bytes(3, 4), bytes(4, 4), bytes(2, 4)] {
        run(
            linux(),
            [
                Op::Try(record(6, W, 0, 4)),
                Op::Wait(record(7, W, 0, 4)),
                Op::Wait(record(0, W, 4, 4)),
                Op::Unlock(6, freed),
            ],
        );
    }
    // The same where the middle is weakened, and the lock split.
    run(
        linux(),
        [
            Op::Try(record(6, W, 0, 4)),
            Op::Wait(Ask::Access(7, W, bytes(0, 4))),
            Op::Wait(record(0, W, 4, 4)),
            Op::Try(record(6, R, 1, 1)),
        ],
    );
}

#[test]
fn a_converted_flock_is_as_old_as_its_conversion_and_of_the_process_that_made_it() {
    // Kept in the table itself, it stayed the first process's.
    run(
        linux(),
        [
            Op::Try(Ask::Flock(4, W, 1)),
            Op::Pass(5),
            Op::Try(Ask::Flock(4, R, 0)),
        ],
    );
    run(
        linux(),
        [
            Op::Try(record(1, W, 0, 9)),
            Op::Pass(5),
            Op::Try(record(1, R, 0, 9)),
        ],
    );
}

#[test]
fn a_joined_lock_is_as_old_as_its_oldest_part() {
    run(
        linux(),
        [
            Op::Try(record(1, W, 4, 5)),
            Op::Pass(1),
            Op::Try(record(1, W, 0, 1)),
            Op::Pass(1),
            Op::Try(record(1, W, 2, 3)),
        ],
    );
}

#[test]
fn of_two_locks_in_the_way_the_first_is_named_whichever_was_taken_first() {
    for [first, second] in [[(0, 1), (8, 9)], [(8, 9), (0, 1)]] {
        run(
            linux(),
            [
                Op::Try(record(1, W, first.0, first.1)),
                Op::Try(record(2, W, second.0, second.1)),
                Op::Try(record(3, R, 0, 9)),
            ],
        );
    }
}

#[test]
fn a_conversion_that_waited_for_nobody_in_the_end_is_granted() {
    // It drops its lock; the waiter ahead of it is let go and refused, by a limit
    // or since it is closed. Then nothing is in the way, and it hung nowhere.
    let fifo = Setup::new(Fairness::FIFO);
    run(
        fifo,
        [
            Op::Try(Ask::Flock(2, R, 0)),
            Op::Wait(Ask::Flock(4, W, 0)),
            Op::Release(7, Waits::Close),
            Op::Wait(Ask::Flock(2, W, 0)),
        ],
    );
    run(
        Setup {
            per_owner: Some((3, 2)),
            ..fifo
        },
        [
            Op::Try(Ask::Flock(2, R, 0)),
            Op::Wait(Ask::Flock(4, W, 0)),
            Op::Try(record(7, W, 0, 0)),
            Op::Try(record(7, W, 2, 2)),
            Op::Try(record(7, W, 4, 4)),
            Op::Wait(Ask::Flock(2, W, 0)),
        ],
    );
}

#[test]
fn what_a_killed_owner_held_goes_before_others_are_granted_what_it_waited_for() {
    // At the limit of locks, the second waiter was refused for want of room that
    // the release was about to make.
    run(
        Setup {
            locks_per_file: Some(3),
            ..linux()
        },
        [
            Op::Try(record(1, W, 0, 0)),
            Op::Try(record(4, W, 11, 11)),
            Op::Try(record(2, W, 6, 9)),
            Op::WaitForOffer(Ask::Access(1, W, bytes(6, 7))),
            Op::Wait(record(3, W, 7, 7)),
            Op::Unlock(2, bytes(6, 9)),
            Op::Try(record(1, W, 2, 2)),
            Op::Release(1, Waits::Interrupt),
        ],
    );
}

#[test]
fn an_opener_whose_lease_is_overdue_goes_before_a_new_lease() {
    // The call that found the old lease overdue put its own in its place, and
    // the opener waited for that one, too.
    let free = Openers::default();
    for (is_delegation, renewed) in [(false, false), (true, false), (true, true)] {
        run(
            linux(),
            [
                Op::SetLease(0, W, is_delegation, free),
                Op::Break(0, W, BreakScope::All),
                Op::Break(1, W, BreakScope::All),
                Op::Pass(10),
                Op::SetLease(0, W, renewed, free),
            ],
        );
    }
}

#[test]
fn who_queued_behind_a_cancelled_waiter_is_looked_at_however_deep_it_hangs() {
    // The reader queues behind the first writer, which has been overtaken often
    // enough, and hangs beneath the second. That one took the first's place and
    // the reader stayed beneath it, though it may pass.
    for cancel in [Op::Cancel(Pick::Live(0)), Op::Release(3, Waits::Interrupt)] {
        run(
            Setup::new(Fairness::Bounded(1)),
            [
                Op::Try(Ask::Flock(2, R, 0)),
                Op::Wait(Ask::Flock(0, W, 0)),
                Op::Try(Ask::Flock(3, R, 0)),
                Op::UnlockFlock(3),
                Op::Wait(Ask::Flock(3, W, 0)),
                Op::Wait(Ask::Flock(4, R, 0)),
                cancel,
            ],
        );
    }
}

#[test]
fn who_queues_behind_one_that_was_offered_its_lock_is_blocked_by_nobody() {
    // The second queued behind the first, which was offered its lock later.
    run(
        Setup::new(Fairness::FIFO),
        [
            Op::Try(record(7, W, 11, 11)),
            Op::WaitForOffer(record(2, W, 0, 11)),
            Op::Wait(Ask::Access(3, W, bytes(4, 4))),
            Op::SetFairness(Some(Fairness::Unlimited)),
            Op::Release(7, Waits::Keep),
            Op::Look(record(0, W, 0, 0)),
        ],
    );
}

#[test]
fn the_bound_set_for_a_live_tree_holds_from_then_on() {
    // In Linux's order an older waiter comes to hang beneath a younger one; then
    // arrival counts.
    for fairness in [Fairness::FIFO, Fairness::Bounded(1)] {
        run(
            linux(),
            [
                Op::Try(record(0, W, 0, 4)),
                Op::Try(record(1, W, 5, 9)),
                Op::Wait(record(2, W, 5, 9)),
                Op::Wait(record(3, W, 0, 9)),
                Op::Wait(record(4, W, 0, 9)),
                Op::Unlock(1, Range::WHOLE),
                Op::SetFairness(Some(fairness)),
                Op::Try(record(6, R, 11, 11)),
                Op::Unlock(2, Range::WHOLE),
                Op::Wait(record(7, W, 4, 5)),
                Op::Unlock(0, Range::WHOLE),
                Op::Unlock(3, Range::WHOLE),
            ],
        );
    }
}

#[test]
fn asking_for_a_flock_that_one_has_overtakes_nobody() {
    // While the waiter was being woken, it counted against the bound.
    run(
        Setup::new(Fairness::Bounded(3)),
        [
            Op::Try(Ask::Flock(1, W, 0)),
            Op::WaitForOffer(Ask::Flock(3, W, 0)),
            Op::UnlockFlock(1),
            Op::Try(Ask::Flock(2, R, 0)),
            Op::Try(Ask::Flock(2, R, 0)),
        ],
    );
}

#[test]
fn a_chain_of_ten_thousand_waiters_needs_no_more_stack_than_one() {
    let run = || {
        let settings = Settings::new(Fairness::Unlimited);
        let cx = Context::new(Time(1), &settings);
        let ask = |owner| Request::record(ProcessId(owner), W, Range::WHOLE);
        let mut table = Table::new();
        table.try_lock(&ask(0), cx).expect("free");
        let ids: Vec<_> = (1..=10_000)
            .map(|owner| match table.lock(ask(owner), owner, cx) {
                Ok(Lock::Waiting(id)) => id,
                other => panic!("{other:?}"),
            })
            .collect();
        table.check_invariants();
        let snapshot = table.snapshot();
        assert_eq!(snapshot.waiting.last().map(|view| view.depth), Some(9_999));
        // From the middle, the top and the bottom of the chain.
        for at in [5_000, 0, 9_999, 4_999, 5_001] {
            assert_eq!(table.cancel(ids[at], cx), Ok(at as u64 + 1));
        }
        table.check_invariants();
        table
            .unlock(&ProcessId(0).into(), Range::WHOLE, cx)
            .expect("held");
        let ended = table.next_ended().expect("the oldest");
        assert_eq!((ended.ticket, ended.result), (2, Ok(())));
        assert!(table.next_ended().is_none());
        assert_eq!(table.counters().wake_ups, 1);
        table.release_owner(&ProcessId(2).into(), Waits::Keep, cx);
        drop(table);
    };
    let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(run);
    thread.expect("a thread").join().expect("no overflow");
}
