//! What a table allocates, and what it does when that fails.
//!
//! The allocator of this binary counts what one thread asks for while a closure
//! runs, and refuses the n-th request if told so. A refusal must come back as
//! ENOLCK with nothing changed, at whichever allocation it strikes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use lockkeeper::table::{
    BreakScope, Context, Lock, Openers, Request, Settings, Snapshot, Survey, Table,
};
use lockkeeper::{
    Errno, Fairness, FileOwner, LockError, LockType, OpenFileId, Owner, ProcessId, Range,
    RemoteOwner, Time,
};

const R: LockType = LockType::Read;
const W: LockType = LockType::Write;

/// Passes all on to the system's allocator, but for what it is told to refuse.
struct Counting;

#[derive(Clone, Copy)]
struct Watch {
    /// How many requests are still granted; `None` outside [`watched`].
    left: Option<u64>,
    requests: u64,
    bytes: i64,
}

thread_local! {
    static WATCH: Cell<Watch> = const {
        Cell::new(Watch { left: None, requests: 0, bytes: 0 })
    };
}

impl Counting {
    /// Whether a request of this many bytes more is to be refused.
    fn refuses(bytes: i64) -> bool {
        let mut watch = WATCH.get();
        match &mut watch.left {
            None => return false,
            Some(0) => return true,
            Some(left) => *left -= 1,
        }
        watch.requests += 1;
        watch.bytes += bytes;
        WATCH.set(watch);
        false
    }

    fn gives_back(bytes: usize) {
        let mut watch = WATCH.get();
        if watch.left.is_some() {
            watch.bytes -= bytes as i64;
            WATCH.set(watch);
        }
    }
}

// SAFETY: every block comes from the system's allocator and goes back to it with
// the layout it came with; a null pointer is how a refusal is told.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Counting::refuses(layout.size() as i64) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        Counting::gives_back(layout.size());
        // SAFETY: the block came from `System` with this layout.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if Counting::refuses(size as i64 - layout.size() as i64) {
            return std::ptr::null_mut();
        }
        // SAFETY: the block came from `System` with this layout.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `run` with at most this many allocations; returns what it gave, how many
/// it made, and by how many bytes more it holds afterwards.
fn watched<A>(limit: u64, run: impl FnOnce() -> A) -> (A, u64, i64) {
    WATCH.set(Watch {
        left: Some(limit),
        requests: 0,
        bytes: 0,
    });
    let given = run();
    let watch = WATCH.replace(Watch {
        left: None,
        requests: 0,
        bytes: 0,
    });
    (given, watch.requests, watch.bytes)
}

/// How many allocations `run` makes.
fn allocations<A>(run: impl FnOnce() -> A) -> u64 {
    watched(u64::MAX, run).1
}

fn bytes(start: u64, end: u64) -> Range {
    Range::new(start, end).expect("in order")
}

fn write(owner: u64, start: u64, end: u64) -> Request {
    Request::record(ProcessId(owner), W, bytes(start, end))
}

/// Makes a table with `before`, then runs `call` with every allocation refused in
/// turn until it gets through. Returns how many refusals it took.
fn refuse_each_allocation<T: Clone>(
    before: impl Fn(&mut Table<T>, Context<'_>),
    call: impl Fn(&mut Table<T>, Context<'_>) -> Result<(), LockError>,
) -> u64 {
    let settings = Settings::new(Fairness::Unlimited);
    let cx = Context::new(Time(7), &settings);
    for limit in 0.. {
        let mut table = Table::new();
        before(&mut table, cx);
        let was: Snapshot = table.snapshot();
        let counted = table.counters();
        let (result, ..) = watched(limit, || call(&mut table, cx));
        table.check_invariants();
        match result {
            Ok(()) => {
                assert_ne!(table.snapshot(), was, "the call did something");
                return limit;
            }
            Err(error) => {
                assert_eq!(
                    (&error, error.errno()),
                    (&LockError::NoMemory, Errno::ENOLCK)
                );
                assert_eq!(table.snapshot(), was, "half done at allocation {limit}");
                assert_eq!(table.counters(), counted);
                // And the same call gets through when there is memory again.
                call(&mut table, cx).expect("there is memory");
                table.check_invariants();
            }
        }
    }
    unreachable!()
}

/// Fills the slots that a table has in store, so that the next lock grows them.
fn fill(table: &mut Table<u8>, cx: Context<'_>) {
    for n in 0..40 {
        // By the count of locks that exhausts every store up to there.
        if allocations(|| table.try_lock(&write(1, n * 10, n * 10 + 4), cx)) > 0 && n > 20 {
            break;
        }
    }
}

#[test]
fn unlocking_the_middle_of_a_lock_without_memory_changes_nothing() {
    let whole = |table: &mut Table<u8>, cx: Context<'_>| {
        table.try_lock(&write(1, 0, 99), cx).expect("free");
    };
    let refusals = refuse_each_allocation(whole, |table, cx| {
        table.unlock(&ProcessId(1).into(), bytes(40, 49), cx)
    });
    assert!(refusals >= 2, "{refusals}: the full form and its records");
}

#[test]
fn reading_over_a_written_lock_without_memory_changes_nothing() {
    let whole = |table: &mut Table<u8>, cx: Context<'_>| {
        table.try_lock(&write(1, 0, 99), cx).expect("free");
    };
    for (start, end) in [(40, 49), (0, 9), (90, 99), (0, 120)] {
        let read = Request::record(ProcessId(1), R, bytes(start, end));
        assert!(refuse_each_allocation(whole, |table, cx| table.try_lock(&read, cx)) >= 2);
    }
}

#[test]
fn a_third_lock_without_memory_changes_nothing() {
    let two = |table: &mut Table<u8>, cx: Context<'_>| {
        table.try_lock(&write(1, 0, 9), cx).expect("free");
        table.try_lock(&write(2, 20, 29), cx).expect("free");
    };
    for third in [write(3, 40, 49), write(1, 10, 12), write(1, 12, 15)] {
        let refusals = refuse_each_allocation(two, |table, cx| table.try_lock(&third, cx));
        assert!(third.owner() == &Owner::from(ProcessId(1)) || refusals >= 2);
    }
}

#[test]
fn waiting_without_memory_changes_nothing() {
    let two = |table: &mut Table<u8>, cx: Context<'_>| {
        table.try_lock(&write(1, 0, 9), cx).expect("free");
        table
            .try_lock(&Request::flock(OpenFileId(1), R), cx)
            .expect("free");
    };
    let wait = |request: Request| {
        move |table: &mut Table<u8>, cx: Context<'_>| match table.lock(request.clone(), 5, cx) {
            Ok(waits) => {
                assert!(matches!(waits, Lock::Waiting(_)));
                Ok(())
            }
            Err((error, ticket)) => {
                assert_eq!(ticket, 5, "the ticket comes back");
                Err(error)
            }
        }
    };
    for request in [
        write(2, 0, 0),
        Request::access(ProcessId(2), R, bytes(5, 50)),
        Request::flock(OpenFileId(2), W),
    ] {
        // The full form, records, waiters, classes, branches.
        assert!(refuse_each_allocation(two, wait(request)) >= 5);
    }
    // The same where others wait and the stores are full.
    let crowd = |table: &mut Table<u8>, cx: Context<'_>| {
        table.try_lock(&write(1, 0, 9), cx).expect("free");
        for owner in 2..6 {
            table.lock(write(owner, 0, owner), 0, cx).expect("memory");
        }
    };
    assert!(refuse_each_allocation(crowd, wait(write(9, 0, 9))) >= 3);
}

#[test]
fn a_lease_without_memory_changes_nothing() {
    let none = |_: &mut Table<u8>, _: Context<'_>| {};
    let one = |table: &mut Table<u8>, cx: Context<'_>| {
        table.try_lock(&write(1, 0, 9), cx).expect("free");
    };
    let lease = |table: &mut Table<u8>, cx: Context<'_>| {
        table.set_lease(
            OpenFileId(1).into(),
            ProcessId(1),
            R,
            false,
            Openers::default(),
            cx,
        )
    };
    assert!(refuse_each_allocation(none, lease) >= 2);
    assert!(refuse_each_allocation(one, lease) >= 2);
}

#[test]
fn an_opener_without_memory_to_wait_waits_not() {
    let settings = Settings::default();
    let cx = Context::new(Time(7), &settings);
    for limit in 0.. {
        let mut table = Table::<u8>::new();
        let owner = FileOwner::from(OpenFileId(1));
        table
            .set_lease(owner, ProcessId(1), W, false, Openers::default(), cx)
            .expect("free");
        let opener = Owner::from(OpenFileId(2));
        let (result, ..) = watched(limit, || {
            table.break_leases(&opener, W, BreakScope::All, 3, cx)
        });
        table.check_invariants();
        // The break goes on all the same: the holder is told.
        assert!(table.next_break().is_some());
        match result {
            Ok(_) => {
                assert!(limit >= 3);
                return;
            }
            Err((error, ticket)) => {
                assert_eq!((error, ticket), (LockError::NoMemory, 3));
                assert!(!table.has_waiters());
            }
        }
    }
}

#[test]
fn what_frees_things_never_asks_for_memory() {
    let settings = Settings::default();
    let cx = Context::new(Time(7), &settings);
    let crowd = || {
        let mut table = Table::<u8>::new();
        fill(&mut table, cx);
        let mut waiters = Vec::new();
        for owner in 2..30 {
            let (start, end) = (owner * 3, owner * 9);
            if let Ok(Lock::Waiting(id)) = table.lock(write(owner, start, end), 0, cx) {
                waiters.push(id);
            }
        }
        assert!(waiters.len() > 20);
        (table, waiters)
    };
    let owner = Owner::from(ProcessId(1));
    let (mut table, waiters) = crowd();
    let ((), asked, _) = watched(0, || {
        // Granting what others waited for may fail for them, not for this call.
        table
            .unlock(&owner, Range::WHOLE, cx)
            .expect("a whole file is never refused");
    });
    assert_eq!(asked, 0);
    table.check_invariants();
    drop(waiters);

    let (mut table, waiters) = crowd();
    watched(0, || {
        for &id in &waiters {
            table.cancel(id, cx).expect("it waits");
        }
        table.tear_down(cx);
        while table.next_ended().is_some() {}
    });
    table.check_invariants();
    assert!(table.is_idle());

    let (mut table, _) = crowd();
    watched(0, || {
        table.release_owner(&owner, lockkeeper::table::Waits::Interrupt, cx)
    });
    table.check_invariants();
}

#[test]
fn a_waiter_whose_lock_finds_no_memory_ends_with_enolck() {
    let settings = Settings::default();
    let cx = Context::new(Time(7), &settings);
    let mut table = Table::<u8>::new();
    fill(&mut table, cx);
    table.try_lock(&write(2, 1000, 1001), cx).expect("free");
    // To be granted by a split of the waiter's own lock, one more is needed than
    // there is room for.
    let mut results = Vec::new();
    for n in 0..40 {
        let owner = 100 + n;
        table
            .try_lock(&write(owner, 2000 + n * 10, 2000 + n * 10), cx)
            .expect("free");
        table.lock(write(owner, 1000, 1000), 0, cx).expect("memory");
    }
    let holder = Owner::from(ProcessId(2));
    watched(0, || table.unlock(&holder, bytes(1000, 1000), cx))
        .0
        .expect("a part is left");
    for _ in 0..40 {
        while let Some(ended) = table.next_ended() {
            if ended.result.is_ok() {
                let owner = ended.request.owner().clone();
                watched(0, || table.unlock(&owner, bytes(1000, 1000), cx))
                    .0
                    .expect("it shrinks");
            }
            results.push(ended.result);
        }
        table.check_invariants();
    }
    assert_eq!(results.len(), 40, "each ends in one way");
    assert!(
        results
            .iter()
            .all(|result| matches!(result, Ok(()) | Err(LockError::NoMemory)))
    );
}

#[test]
fn the_first_two_locks_of_a_file_and_their_unlocking_allocate_nothing() {
    let settings = Settings::default();
    let cx = Context::new(Time(7), &settings);
    let remote = RemoteOwner::new(b"client", -1);
    let range = bytes(0, 9);
    let records = [
        Owner::from(ProcessId(1)),
        Owner::from(OpenFileId(1)),
        Owner::from(remote.clone()),
    ];
    for first in &records {
        for lock_type in [R, W] {
            let one = Request::record(first.clone(), lock_type, range);
            let two = Request::record(ProcessId(2), lock_type, bytes(100, 199));
            let mut table = Table::<u64>::new();
            let made = allocations(|| {
                for _ in 0..3 {
                    table.try_lock(&one, cx).expect("free");
                    table.try_lock(&two, cx).expect("free");
                    table.try_lock(&one, cx).expect("its own");
                    table
                        .unlock(one.owner(), Range::WHOLE, cx)
                        .expect("never fails");
                    table
                        .unlock(two.owner(), bytes(100, 199), cx)
                        .expect("held");
                }
            });
            assert_eq!((made, table.is_idle()), (0, true));
        }
    }
    for owner in [FileOwner::from(OpenFileId(1)), FileOwner::from(remote)] {
        let one = Request::flock(owner.clone(), W);
        let again = Request::flock(owner.clone(), R);
        let two = Request::flock(OpenFileId(9), R);
        let mut table = Table::<u64>::new();
        let made = allocations(|| {
            for _ in 0..3 {
                table.try_lock(&one, cx).expect("free");
                table.try_lock(&again, cx).expect("its own");
                table.try_lock(&two, cx).expect("both read");
                table.unlock_flock(&owner, cx);
                table.unlock_flock(&OpenFileId(9).into(), cx);
            }
        });
        assert_eq!((made, table.is_idle()), (0, true));
    }
}

#[test]
fn a_contended_lock_allocates_nothing_once_warm() {
    let settings = Settings::new(Fairness::FIFO);
    let cx = Context::new(Time(7), &settings);
    let mut table = Table::<u64>::new();
    let owners: Vec<Request> = (1..=8).map(|owner| write(owner, 0, 0)).collect();
    let round = |table: &mut Table<u64>| {
        for request in &owners {
            let _ = table
                .lock(request.clone(), 0, cx)
                .map_err(|_| ())
                .expect("memory");
        }
        for request in &owners {
            table
                .unlock(request.owner(), Range::WHOLE, cx)
                .expect("never fails");
            while table.next_ended().is_some() {}
        }
        assert!(table.is_idle());
    };
    round(&mut table);
    assert_eq!(allocations(|| (0..10).for_each(|_| round(&mut table))), 0);

    // And so it goes while other locks keep the table in its full form.
    for n in 0..20 {
        let other = write(50, 100 + n * 2, 100 + n * 2);
        table.try_lock(&other, cx).expect("free");
    }
    let pairs = |table: &mut Table<u64>| {
        for request in &owners {
            table.try_lock(request, cx).expect("free");
            table
                .unlock(request.owner(), Range::WHOLE, cx)
                .expect("never fails");
        }
    };
    pairs(&mut table);
    assert_eq!(allocations(|| pairs(&mut table)), 0);
}

#[test]
fn a_further_range_costs_at_most_96_bytes() {
    let settings = Settings::default();
    let cx = Context::new(Time(7), &settings);
    let count = 50_000;
    for (name, is_one) in [("one owner", true), ("as many owners", false)] {
        let mut table = Table::<u64>::new();
        let ((), _, held) = watched(u64::MAX, || {
            for n in 0..count {
                let owner = if is_one { 1 } else { n };
                table
                    .try_lock(&write(owner, n * 2, n * 2), cx)
                    .expect("free");
            }
        });
        let each = held as f64 / count as f64;
        println!("{count} ranges of {name}: {each:.1} B a range");
        assert!(each <= 96.0, "{each:.1} B a range of {name}");
    }
}

#[test]
fn a_waiter_costs_at_most_256_bytes() {
    let settings = Settings::default();
    let cx = Context::new(Time(7), &settings);
    let count = 10_000;
    for (name, is_one) in [("one range", true), ("as many ranges", false)] {
        let mut table = Table::<u64>::new();
        table
            .try_lock(&Request::record(ProcessId(1), W, Range::WHOLE), cx)
            .expect("free");
        let ((), _, held) = watched(u64::MAX, || {
            for n in 0..count {
                let at = if is_one { 0 } else { n };
                let waits = table.lock(write(2 + n, at, at), n, cx).map_err(|_| ());
                assert!(matches!(waits, Ok(Lock::Waiting(_))));
            }
        });
        let each = held as f64 / count as f64;
        println!("{count} waiters for {name}: {each:.1} B a waiter");
        assert!(each <= 256.0, "{each:.1} B a waiter for {name}");
    }
}

#[test]
fn a_file_with_one_lock_costs_at_most_256_bytes() {
    let size = size_of::<Table<[u64; 2]>>();
    println!("a table: {size} B");
    assert!(size <= 256);
}

#[test]
fn a_crowd_that_has_gone_leaves_no_memory_behind() {
    let settings = Settings::default();
    let cx = Context::new(Time(7), &settings);
    let mut table = Table::<u64>::new();
    let ((), _, held) = watched(u64::MAX, || {
        for n in 0..5_000 {
            table.try_lock(&write(n, n * 2, n * 2), cx).expect("free");
            let waits = table
                .lock(write(n + 1, n * 2, n * 2), n, cx)
                .map_err(|_| ());
            assert!(waits.is_ok());
        }
        table.tear_down(cx);
        while table.next_ended().is_some() {}
    });
    assert!(table.is_idle());
    println!("after a crowd: {held} B");
    assert!(held < 4096, "{held} B kept");
}

/// Many locks and waiters, of clients elsewhere too.
#[test]
fn a_piece_of_a_survey_is_copied_without_allocating() {
    let settings = Settings::default();
    let cx = Context::new(Time(1), &settings);
    let mut table: Table<u64> = Table::new();
    for owner in 0..500 {
        let client = RemoteOwner::new(&owner.to_string().into_bytes(), -1);
        let lock = Request::record(client, W, bytes(2 * owner, 2 * owner));
        table.try_lock(&lock, cx).expect("free");
        let waiter = write(owner, 2 * owner, 2 * owner);
        assert!(matches!(table.lock(waiter, 0, cx), Ok(Lock::Waiting(_))));
    }
    let mut survey = Survey::new();
    loop {
        survey.reserve(32);
        let mut is_more = false;
        let made = allocations(|| is_more = table.survey(&mut survey, 32));
        assert_eq!(made, 0);
        if !is_more {
            break;
        }
    }
    let snapshot = survey.into_snapshot();
    assert_eq!((snapshot.granted.len(), snapshot.waiting.len()), (500, 500));
}
