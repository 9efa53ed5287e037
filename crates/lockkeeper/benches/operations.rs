//! Single operations, each beside what it is to be compared with: spread and
//! allocations by divan. `cargo bench -p lockkeeper --bench operations`
//!
//! The rows of the design's table as ratios, both sides in turn, are printed by
//! the bench `goals`.

use divan::{AllocProfiler, Bencher, black_box, black_box_drop};
use lockkeeper::deadlock::{Edge, WaitGraph, find_cycle};
use lockkeeper::table::{Context, Lock, Request, Settings, Table};
use lockkeeper::{FileId, LockManager, LockType, Owner, ProcessId, Range, Time, WaiterId};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

fn byte(offset: u64) -> Range {
    Range::byte(offset).expect("a small offset")
}

fn write(owner: u64, range: Range) -> Request {
    Request::record(ProcessId(owner), LockType::Write, range)
}

/// lock1: a lock and an unlock where nobody waits.
mod pair {
    use super::*;
    use std::os::fd::AsFd;

    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc;

    #[divan::bench]
    fn kernel(bencher: Bencher) {
        let file = tempfile();
        let lock = |kind: i32| libc::flock {
            l_type: kind as libc::c_short,
            l_whence: 0,
            l_start: 0,
            l_len: 1,
            l_pid: 0,
        };
        let (set, clear) = (lock(libc::F_WRLCK), lock(libc::F_UNLCK));
        bencher.bench_local(|| {
            fcntl(file.as_fd(), FcntlArg::F_SETLK(&set)).expect("lock");
            fcntl(file.as_fd(), FcntlArg::F_SETLK(&clear)).expect("unlock");
        });
    }

    #[divan::bench]
    fn two_mutex_pairs(bencher: Bencher) {
        let mutex = std::sync::Mutex::new(0_u64);
        bencher.bench_local(|| {
            for _ in 0..2 {
                if let Ok(mut count) = black_box(&mutex).lock() {
                    *count += 1;
                }
            }
        });
    }

    #[divan::bench]
    fn table(bencher: Bencher) {
        let settings = Settings::default();
        let cx = Context::new(Time(0), &settings);
        let mut table: Table<()> = Table::new();
        let (request, owner) = (write(1, byte(0)), Owner::from(ProcessId(1)));
        bencher.bench_local(|| {
            table.try_lock(black_box(&request), cx).expect("free");
            table.unlock(black_box(&owner), byte(0), cx).expect("held");
        });
    }

    #[divan::bench]
    fn manager(bencher: Bencher) {
        let manager = LockManager::new();
        let file = manager.file(FileId::new(0, 1));
        let records = file.posix(ProcessId(1));
        bencher.bench_local(|| {
            records.try_lock(LockType::Write, byte(0)).expect("free");
            records.unlock(byte(0)).expect("held");
        });
    }

    fn tempfile() -> std::fs::File {
        let path = std::env::temp_dir().join(format!("lockkeeper-bench-{}", std::process::id()));
        let file = std::fs::File::create(&path).expect("a temporary file");
        std::fs::remove_file(&path).expect("remove it again");
        file
    }
}

/// A pair beside many locks of others.
#[divan::bench(args = [0, 1_000, 50_000])]
fn pair_beside_ranges(bencher: Bencher, ranges: u64) {
    let settings = Settings::default();
    let cx = Context::new(Time(0), &settings);
    let mut table: Table<()> = Table::new();
    fill(&mut table, ranges, cx);
    let (request, owner) = (write(1, byte(1)), Owner::from(ProcessId(1)));
    bencher.bench_local(|| {
        table.try_lock(black_box(&request), cx).expect("free");
        table.unlock(black_box(&owner), byte(1), cx).expect("held");
    });
}

/// Every second byte from 2 on, each of an owner of its own.
fn fill(table: &mut Table<()>, ranges: u64, cx: Context<'_>) {
    for n in 0..ranges {
        table
            .try_lock(&write(10 + n, byte(2 + 2 * n)), cx)
            .expect("free");
    }
}

#[divan::bench(args = [50_000], sample_count = 20, sample_size = 1)]
fn fill_ranges(bencher: Bencher, ranges: u64) {
    let settings = Settings::default();
    let cx = Context::new(Time(0), &settings);
    bencher.bench_local(|| {
        let mut table: Table<()> = Table::new();
        fill(&mut table, ranges, cx);
        table
    });
}

/// A table where `waiters` wait for one byte, and their ids.
fn crowd(waiters: u64, cx: Context<'_>) -> (Table<()>, Vec<WaiterId>) {
    let mut table = Table::new();
    table.try_lock(&write(1, byte(0)), cx).expect("free");
    let ids = (0..waiters)
        .map(|n| match table.lock(write(10 + n, byte(0)), (), cx) {
            Ok(Lock::Waiting(id)) => id,
            other => panic!("it must wait: {other:?}"),
        })
        .collect();
    (table, ids)
}

/// To join a queue of so many and leave it again.
#[divan::bench(args = [10, 10_000])]
fn attach_and_cancel(bencher: Bencher, waiters: u64) {
    let settings = Settings::default();
    let cx = Context::new(Time(0), &settings);
    let (mut table, _) = crowd(waiters, cx);
    bencher.bench_local(|| match table.lock(write(2, byte(0)), (), cx) {
        Ok(Lock::Waiting(id)) => table.cancel(id, cx).expect("it waits"),
        other => panic!("it must wait: {other:?}"),
    });
}

/// To leave from the middle of a queue.
#[divan::bench(args = [10, 10_000], sample_count = 200, sample_size = 1)]
fn cancel_in_the_middle(bencher: Bencher, waiters: u64) {
    let settings = Settings::default();
    let cx = Context::new(Time(0), &settings);
    let (mut table, mut ids) = crowd(waiters, cx);
    let mut next_owner = 1_000_000;
    bencher.bench_local(|| {
        let id = ids.remove(ids.len() / 2);
        table.cancel(id, cx).expect("it waits");
        next_owner += 1;
        match table.lock(write(next_owner, byte(0)), (), cx) {
            Ok(Lock::Waiting(id)) => ids.push(id),
            other => panic!("it must wait: {other:?}"),
        }
    });
}

/// A release that grants the first of so many.
#[divan::bench(args = [10, 10_000], sample_count = 100, sample_size = 1)]
fn release(bencher: Bencher, waiters: u64) {
    let settings = Settings::default();
    let cx = Context::new(Time(0), &settings);
    let owner = Owner::from(ProcessId(1));
    bencher
        .with_inputs(|| crowd(waiters, cx).0)
        .bench_local_values(|mut table| {
            table.unlock(&owner, byte(0), cx).expect("held");
            let woken = table.next_ended();
            assert!(woken.is_some() && table.next_ended().is_none());
            table
        });
}

/// A search along a chain of owners in one table, which ends in no cycle.
#[divan::bench(args = [10, 10_000])]
fn deadlock_check(bencher: Bencher, owners: u64) {
    let settings = Settings::default();
    let cx = Context::new(Time(0), &settings);
    let mut table: Table<()> = Table::new();
    let mut waits = std::collections::HashMap::new();
    for n in 0..=owners {
        table.try_lock(&write(n, byte(2 * n)), cx).expect("free");
    }
    for n in 0..owners {
        match table.lock(write(n, byte(2 * (n + 1))), (), cx) {
            Ok(Lock::Waiting(id)) => waits.insert(Owner::from(ProcessId(n)), id),
            other => panic!("it must wait: {other:?}"),
        };
    }

    struct OneTable<'a> {
        table: &'a Table<()>,
        waits: &'a std::collections::HashMap<Owner, WaiterId>,
    }
    impl WaitGraph for OneTable<'_> {
        type Wait = WaiterId;
        fn blockers(&mut self, wait: &WaiterId, visit: &mut dyn FnMut(&Owner, Edge) -> bool) {
            self.table.visit_blockers(*wait, visit);
        }
        fn waits_of(&mut self, owner: &Owner, visit: &mut dyn FnMut(WaiterId)) {
            if let Some(&id) = self.waits.get(owner) {
                visit(id);
            }
        }
    }
    let first = Owner::from(ProcessId(0));
    let start = waits[&first];
    bencher.bench_local(|| {
        let mut graph = OneTable {
            table: &table,
            waits: &waits,
        };
        let cycle = find_cycle(&mut graph, &start, &first, false);
        assert!(black_box(cycle).is_none());
    });
    black_box_drop(table);
}
