//! The rows of the design's table, as ratios: both sides of each in turn, several
//! rounds, medians. `cargo bench -p lockkeeper --bench goals [-- WORD]` runs the
//! rows whose name has WORD in it.
//!
//! The kernel's side is the same loop on a file in /dev/shm (or the temporary
//! folder). For many tasks on one byte both sides are threads of one process:
//! the kernel's take OFD locks through descriptions of their own, since POSIX
//! locks of one process never conflict; the library's are owners of their own.
//! As in will-it-scale, a lock and an unlock are two operations; a pair is both.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use lockkeeper::table::{Context, Lock, Request, Settings, Table};
use lockkeeper::{
    CallbackId, Errno, FileId, LockManager, LockType, Owner, ProcessId, Range, Started, Time,
};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

const ROUNDS: usize = 5;

fn main() {
    let word = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let rows: &[(&str, fn())] = &[
        ("lock1", lock1),
        ("lock1-two-threads", lock1_on_two_threads),
        ("lock2", lock2),
        ("ranges", ranges),
        ("waiters", waiters),
        ("deadlock", deadlock),
    ];
    for (name, row) in rows {
        if word
            .as_ref()
            .is_none_or(|word| name.contains(word.as_str()))
        {
            row();
        }
    }
}

// ---- Measuring -------------------------------------------------------------

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds for each of `count` calls.
fn time(count: u32, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..count {
        call();
    }
    start.elapsed().as_nanos() as f64 / f64::from(count)
}

fn report(row: &str, measured: String, goal: &str) {
    println!("{row:<44} {measured:<64} goal: {goal}");
}

fn byte(offset: u64) -> Range {
    Range::byte(offset).expect("a small offset")
}

fn write(owner: u64, range: Range) -> Request {
    Request::record(ProcessId(owner), LockType::Write, range)
}

// ---- The kernel's side -----------------------------------------------------

/// A file that is gone from its folder as soon as nobody has it open.
struct KernelFile {
    path: PathBuf,
}

impl KernelFile {
    fn new() -> KernelFile {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let folder = match std::path::Path::new("/dev/shm").is_dir() {
            true => PathBuf::from("/dev/shm"),
            false => std::env::temp_dir(),
        };
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("lockkeeper-bench-{}-{count}", std::process::id()));
        File::create(&path).expect("a file to lock");
        KernelFile { path }
    }

    fn open(&self) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&self.path)
            .expect("open it again")
    }
}

impl Drop for KernelFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn flock(kind: i32, start: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: 0,
        l_start: start,
        l_len: 1,
        l_pid: 0,
    }
}

fn kernel_pair(file: &File) {
    fcntl(file.as_fd(), FcntlArg::F_SETLK(&flock(libc::F_WRLCK, 0))).expect("lock");
    fcntl(file.as_fd(), FcntlArg::F_SETLK(&flock(libc::F_UNLCK, 0))).expect("unlock");
}

fn kernel_pair_waiting(file: &File) {
    fcntl(
        file.as_fd(),
        FcntlArg::F_OFD_SETLKW(&flock(libc::F_WRLCK, 0)),
    )
    .expect("lock");
    fcntl(
        file.as_fd(),
        FcntlArg::F_OFD_SETLK(&flock(libc::F_UNLCK, 0)),
    )
    .expect("unlock");
}

// ---- Rows ------------------------------------------------------------------

fn lock1() {
    let manager = LockManager::new();
    let file = manager.file(FileId::new(0, 1));
    let records = file.posix(ProcessId(1));
    let mutex = Mutex::new(0_u64);
    let kernel = KernelFile::new();
    let kernel = kernel.open();
    let (mut of_mutex, mut of_kernel, mut ours) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let mutexes = time(4_000_000, || {
            if let Ok(mut count) = black_box(&mutex).lock() {
                *count += 1;
            }
        });
        let pair = time(2_000_000, || {
            records.try_lock(LockType::Write, byte(0)).expect("free");
            records.unlock(byte(0)).expect("held");
        });
        let kernel = time(200_000, || kernel_pair(&kernel));
        of_mutex.push(pair / (2.0 * mutexes));
        of_kernel.push(kernel / pair);
        ours.push(pair);
    }
    report(
        "lock1: a pair, one thread, own file",
        format!(
            "{:.0} ns, {:.2} x two mutex pairs, {:.1} x faster than the kernel",
            median(&mut ours),
            median(&mut of_mutex),
            median(&mut of_kernel)
        ),
        "1.8 x two mutex pairs, 25 x the kernel",
    );
}

fn lock1_on_two_threads() {
    let manager = LockManager::new();
    let rate = |threads: u64| {
        let done = run_for(Duration::from_millis(400), threads as usize, &|task| {
            let file = manager.file(FileId::new(0, 1 + task as u64));
            let owner = ProcessId(1 + task as u64);
            move || {
                let records = file.posix(owner);
                records.try_lock(LockType::Write, byte(0)).expect("free");
                records.unlock(byte(0)).expect("held");
            }
        });
        done.iter().sum::<u64>() as f64
    };
    let mut ratios: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let one = rate(1);
            rate(2) / one
        })
        .collect();
    report(
        "lock1: two threads, two files",
        format!("{:.2} x one thread", median(&mut ratios)),
        "1.95 x one thread",
    );
}

/// Runs `tasks` threads for so long; how many calls each made.
fn run_for<F: FnMut() + Send>(
    time: Duration,
    tasks: usize,
    make: &(dyn Fn(usize) -> F + Sync),
) -> Vec<u64> {
    let stop = AtomicBool::new(false);
    let ready = Barrier::new(tasks + 1);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..tasks)
            .map(|task| {
                let (stop, ready) = (&stop, &ready);
                std::thread::Builder::new()
                    .stack_size(128 << 10)
                    .spawn_scoped(scope, move || {
                        let mut call = make(task);
                        ready.wait();
                        let mut done = 0;
                        while !stop.load(Ordering::Relaxed) {
                            call();
                            done += 1;
                        }
                        done
                    })
                    .expect("a thread")
            })
            .collect();
        ready.wait();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        handles
            .into_iter()
            .map(|handle| handle.join().expect("no panic"))
            .collect()
    })
}

fn lock2() {
    let mut at_20 = 0.0;
    for tasks in [2, 8, 20, 100, 500, 1000] {
        let duration = Duration::from_millis(if tasks < 500 { 400 } else { 1500 });
        let (mut ratios, mut rates, mut least) = (vec![], vec![], vec![]);
        for _ in 0..3 {
            let kernel = KernelFile::new();
            let theirs = run_for(duration, tasks, &|_| {
                let file = kernel.open();
                move || kernel_pair_waiting(&file)
            });
            let manager = LockManager::new();
            let file = manager.file(FileId::new(0, 1));
            let ours = run_for(duration, tasks, &|task| {
                let file = file.clone();
                move || {
                    let records = file.posix(ProcessId(1 + task as u64));
                    records.lock(LockType::Write, byte(0)).expect("in turn");
                    records.unlock(byte(0)).expect("held");
                }
            });
            let sum = |done: &[u64]| done.iter().sum::<u64>() as f64;
            ratios.push(sum(&ours) / sum(&theirs));
            rates.push(sum(&ours) / duration.as_secs_f64() / 1e6);
            let mean = sum(&ours) / tasks as f64;
            least.push(*ours.iter().min().unwrap_or(&0) as f64 / mean);
        }
        let rate = median(&mut rates);
        if tasks == 20 {
            at_20 = rate;
        }
        let beside = match tasks {
            1000 => format!(", {:.2} x what it is at 20", rate / at_20),
            _ => String::new(),
        };
        report(
            &format!("lock2: one byte, {tasks} threads"),
            format!(
                "{rate:.1} M pairs/s, {:.1} x the kernel, least served {:.2} of the mean{beside}",
                median(&mut ratios),
                median(&mut least)
            ),
            match tasks {
                2 => "10 x, least 0.5",
                1000 => "20 x, least 0.5, 0.9 x of 20",
                _ => "20 x, least 0.5",
            },
        );
    }
}

fn ranges() {
    const HELD: u64 = 50_000;
    let settings = Settings::default();
    let cx = Context::new(Time(0), &settings);
    let (mut fills, mut pairs) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let mut table: Table<()> = Table::new();
        fills.push(time(1, || {
            for n in 0..HELD {
                table
                    .try_lock(&write(10 + n, byte(2 + 2 * n)), cx)
                    .expect("free");
            }
        }));
        let (request, owner) = (write(1, byte(HELD + 1)), Owner::from(ProcessId(1)));
        pairs.push(time(200_000, || {
            table.try_lock(&request, cx).expect("free");
            table.unlock(&owner, byte(HELD + 1), cx).expect("held");
        }));
    }
    // The kernel takes minutes to fill 50,000; a tenth shows the order.
    let kernel = KernelFile::new();
    let kernel = kernel.open();
    let kernel_fill = time(1, || {
        for n in 0..HELD as i64 / 10 {
            let lock = flock(libc::F_WRLCK, 2 + 2 * n);
            fcntl(kernel.as_fd(), FcntlArg::F_SETLK(&lock)).expect("lock");
        }
    });
    let other = flock(libc::F_WRLCK, 1 + 2 * HELD as i64);
    let other_end = flock(libc::F_UNLCK, 1 + 2 * HELD as i64);
    let kernel_pair = time(500, || {
        fcntl(kernel.as_fd(), FcntlArg::F_SETLK(&other)).expect("lock");
        fcntl(kernel.as_fd(), FcntlArg::F_SETLK(&other_end)).expect("unlock");
    });
    report(
        "ranges: filling 50,000",
        format!(
            "{:.1} ms (the kernel, 5,000: {:.0} ms)",
            median(&mut fills) / 1e6,
            kernel_fill / 1e6
        ),
        "under 50 ms",
    );
    report(
        "ranges: a pair beside 50,000",
        format!(
            "{:.0} ns (the kernel, beside 5,000: {:.0} ns)",
            median(&mut pairs),
            kernel_pair
        ),
        "under 1,000 ns",
    );
}

fn waiters() {
    let settings = Settings::default();
    let cx = Context::new(Time(0), &settings);
    let crowd = |waiters: u64| {
        let mut table: Table<u64> = Table::new();
        table.try_lock(&write(1, byte(0)), cx).expect("free");
        for n in 0..waiters {
            let waits = table.lock(write(10 + n, byte(0)), n, cx);
            assert!(matches!(waits, Ok(Lock::Waiting(_))));
        }
        table
    };
    let (mut attach, mut release) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let attaching = |table: &mut Table<u64>| {
            time(20_000, || match table.lock(write(2, byte(0)), 0, cx) {
                Ok(Lock::Waiting(id)) => {
                    table.cancel(id, cx).expect("it waits");
                }
                other => panic!("it must wait: {other:?}"),
            })
        };
        let (mut few, mut many) = (crowd(10), crowd(10_000));
        attach.push(attaching(&mut many) / attaching(&mut few));
        // The holder lets go, the first in the queue is granted, and the holder
        // comes back to the end: the crowd stays as large as it is.
        let releasing = |table: &mut Table<u64>, waiters: u64| {
            let mut holder = 1;
            let mut next = 10;
            time(20_000, || {
                table
                    .unlock(&ProcessId(holder).into(), byte(0), cx)
                    .expect("held");
                let woken = table
                    .next_ended()
                    .map(|ended| ended.request.owner().clone());
                assert_eq!(woken, Some(ProcessId(next).into()));
                assert!(table.next_ended().is_none());
                let waits = table.lock(write(holder, byte(0)), 0, cx);
                assert!(matches!(waits, Ok(Lock::Waiting(_))));
                holder = next;
                next = match next {
                    1 => 10,
                    last if last == 9 + waiters => 1,
                    other => other + 1,
                };
            })
        };
        release.push(releasing(&mut many, 10_000) / releasing(&mut few, 10));
    }
    report(
        "waiters: joining and leaving 10,000",
        format!("{:.2} x joining and leaving 10", median(&mut attach)),
        "2 x",
    );
    report(
        "waiters: a release with 10,000, and back",
        format!("wakes 1, {:.2} x the same with 10", median(&mut release)),
        "wakes 1, 2 x",
    );
}

fn deadlock() {
    const OWNERS: u64 = 10_000;
    let mut times = vec![];
    for many_files in [false, true] {
        times.clear();
        for _ in 0..ROUNDS {
            let manager = LockManager::new();
            let files: Vec<_> = (0..=OWNERS)
                .map(|n| manager.file(FileId::new(0, if many_files { n } else { 0 })))
                .collect();
            for n in 0..=OWNERS {
                let records = files[n as usize].posix(ProcessId(n + 1));
                records
                    .try_lock(LockType::Write, byte(2 * n))
                    .expect("free");
            }
            // From the end, so that each new wait is the start of the chain.
            for n in (0..OWNERS).rev() {
                let records = files[n as usize + 1].posix(ProcessId(n + 1));
                let started = records.lock_callback(
                    CallbackId(n),
                    LockType::Write,
                    byte(2 * (n + 1)),
                    |_| {},
                );
                assert!(matches!(started, Ok(Started::Waiting(_))));
                if n == 1 {
                    break;
                }
            }
            // The last owner closes the cycle: it waits for the second.
            times.push(time(20, || {
                let records = files[1].posix(ProcessId(OWNERS + 1));
                let refused = records.lock_callback(
                    CallbackId(u64::MAX),
                    LockType::Write,
                    byte(2),
                    |result| assert_eq!(result.map_err(|e| e.errno()), Err(Errno::EDEADLK)),
                );
                assert!(matches!(refused, Ok(Started::Waiting(_))));
            }));
        }
        let place = if many_files {
            "10,000 files"
        } else {
            "one file"
        };
        report(
            &format!("deadlock: a chain of 10,000 owners, {place}"),
            format!("{:.2} ms", median(&mut times) / 1e6),
            "exact, under 1 ms",
        );
    }
}
