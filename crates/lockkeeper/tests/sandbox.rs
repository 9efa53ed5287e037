//! The manager where membarrier(2) may not be called: for all threads or for some,
//! before the first manager or after it. Each case runs in a process of its own,
//! since a sandbox is never taken off again.

#![cfg(target_os = "linux")]

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lockkeeper::{FileHandle, FileId, LockManager, LockType, ProcessId, Range};
use nix::libc;

const W: LockType = LockType::Write;
const CASE: &str = "LOCKKEEPER_SANDBOX_CASE";

/// From here on this thread, and what it starts, gets `errno` from membarrier(2).
fn forbid_membarrier(errno: i32) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    // The number of the call is the first word of what a filter is shown.
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_membarrier as u32,
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | errno as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the filter is read during the call alone.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    };
    assert!(done, "no filter: {}", std::io::Error::last_os_error());
}

/// Threads that lock and unlock a file, each of its own bytes and all of one byte:
/// every lock is granted in the end, and counted.
fn crowd(file: &FileHandle, before_each: impl Fn(u64) + Sync) {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 20_000;
    let counted = file.counters().acquisitions;
    thread::scope(|scope| {
        for number in 1..=THREADS {
            let before_each = &before_each;
            scope.spawn(move || {
                before_each(number);
                let own = Range::byte(number).expect("a small offset");
                let of_all = Range::byte(0).expect("a small offset");
                let records = file.posix(ProcessId(number));
                for round in 0..ROUNDS {
                    records.try_lock(W, own).expect("nobody else's");
                    records.unlock(own).expect("whole");
                    if round.is_multiple_of(100) {
                        records.lock(W, of_all).expect("in no cycle");
                        records.unlock(of_all).expect("whole");
                    }
                }
            });
        }
    });
    file.check_invariants();
    let snapshot = file.snapshot();
    assert!(snapshot.granted.is_empty() && snapshot.waiting.is_empty());
    let granted = file.counters().acquisitions - counted;
    assert_eq!(granted, THREADS * (ROUNDS + ROUNDS / 100));
}

fn file() -> FileHandle {
    LockManager::new().file(FileId::new(1, 1))
}

/// A thread without the barrier waits for a mutex whose holder does not run: it
/// sleeps meanwhile.
fn naps() {
    let file = file();
    // A snapshot of so many locks holds the mutex for a while.
    for n in 0..200_000 {
        let byte = Range::byte(2 * n).expect("a small offset");
        file.posix(ProcessId(n)).try_lock(W, byte).expect("free");
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                drop(file.snapshot());
            }
        });
        let waiter = scope.spawn(|| {
            forbid_membarrier(libc::EPERM);
            let before = sleeps();
            // Each waits for a snapshot now and then.
            for _ in 0..100_000 {
                if sleeps() > before {
                    return true;
                }
                file.counters();
            }
            false
        });
        let slept = waiter.join();
        is_over.store(true, Ordering::SeqCst);
        assert!(slept.expect("it ends"), "it never slept");
    });
}

/// How often this thread has given up the processor by itself.
fn sleeps() -> i64 {
    // SAFETY: all zeros is a value of it, which the call fills in.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage.ru_nvcsw
    }
}

fn run_case(case: &str) {
    match case {
        "forbidden before" => {
            forbid_membarrier(libc::EPERM);
            crowd(&file(), |_| {});
        }
        "unknown before" => {
            forbid_membarrier(libc::ENOSYS);
            crowd(&file(), |_| {});
        }
        "forbidden after" => {
            let file = file();
            forbid_membarrier(libc::EPERM);
            crowd(&file, |_| {});
        }
        "unknown after" => {
            let file = file();
            forbid_membarrier(libc::ENOSYS);
            crowd(&file, |_| {});
        }
        "forbidden for some" => crowd(&file(), |number| {
            if number.is_multiple_of(2) {
                forbid_membarrier(libc::EPERM);
            }
        }),
        // A second manager must not change what the first one's files go by.
        "forbidden for the first" => {
            let first = thread::spawn(|| {
                forbid_membarrier(libc::EPERM);
                file()
            });
            let first = first.join().expect("it ends");
            thread::scope(|scope| {
                scope.spawn(|| crowd(&first, |_| {}));
                scope.spawn(|| crowd(&file(), |_| {}));
            });
        }
        "naps" => naps(),
        // The manager was made by the parent.
        "fork" => {
            let file = file();
            crowd(&file, |_| {});
            // SAFETY: no other thread runs, so the child may do what it likes.
            let child = unsafe { libc::fork() };
            assert!(child >= 0, "{}", std::io::Error::last_os_error());
            crowd(&file, |_| {});
            crowd(&self::file(), |_| {});
            if child == 0 {
                std::process::exit(0);
            }
            let mut status = 0;
            // SAFETY: the child is this process's own, and the status is written here.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!((waited, status), (child, 0));
        }
        _ => panic!("no such case: {case}"),
    }
}

/// What the cases run in: nothing by itself.
#[test]
fn in_a_process_of_its_own() {
    if let Ok(case) = std::env::var(CASE) {
        run_case(&case);
    }
}

#[test]
fn locks_are_taken_and_counted_without_membarrier() {
    for case in [
        "forbidden before",
        "unknown before",
        "forbidden after",
        "unknown after",
        "forbidden for some",
        "forbidden for the first",
        "naps",
        "fork",
    ] {
        let program = std::env::current_exe().expect("it runs");
        let output = Command::new(program)
            .args(["--exact", "in_a_process_of_its_own", "--nocapture"])
            .env(CASE, case)
            .output()
            .expect("it is there");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{case}: {text}");
    }
}
