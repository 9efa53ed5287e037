//! The system calls that no safe wrapper offers: `struct flock`, leases, the usage of a thread, and
//! memory that processes share.
//!
//! All `unsafe` of this crate is here.

#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde::{Deserialize, Serialize};

use crate::board::Board;

#[inline]
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// A `struct flock` of one byte: what fcntl(2) is asked.
#[derive(Clone, Copy)]
pub struct ByteLock(libc::flock);

impl ByteLock {
    /// `kind` is `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub fn new(kind: libc::c_int, byte: u64) -> ByteLock {
        ByteLock(libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: byte as libc::off_t,
            l_len: 1,
            l_pid: 0,
        })
    }
}

/// fcntl(2) with a lock.
#[inline]
pub fn lock_byte(file: BorrowedFd<'_>, command: libc::c_int, lock: &ByteLock) -> io::Result<()> {
    // SAFETY: the structure is valid for the time of the call, and the commands used here
    // (F_SETLK, F_SETLKW and their OFD kin) only read it.
    check(unsafe { libc::fcntl(file.as_raw_fd(), command, ptr::from_ref(&lock.0)) }).map(drop)
}

/// F_SETLEASE.
pub fn set_lease(file: BorrowedFd<'_>, lease: libc::c_int) -> io::Result<()> {
    // SAFETY: takes a number only.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, lease) }).map(drop)
}

fn break_signal() -> libc::sigset_t {
    // SAFETY: all zeroes is a valid set, made empty and then given one signal by the C library.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGIO);
        set
    }
}

/// Blocks the signal that tells of a lease break, in this thread and those that it will begin.
pub fn block_break_signal() {
    let set = break_signal();
    // SAFETY: the set lives through the call, which cannot fail with SIG_BLOCK.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()) };
}

/// Waits for that signal, at most so long; whether it came.
pub fn await_break_signal(patience: Duration) -> bool {
    let set = break_signal();
    let timeout = libc::timespec {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_nsec: patience.subsec_nanos().into(),
    };
    // SAFETY: both structures live through the call; no siginfo is asked for.
    unsafe { libc::sigtimedwait(&set, ptr::null_mut(), &timeout) == libc::SIGIO }
}

/// What a thread has used: getrusage(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time in the program, in microseconds.
    pub user_us: u64,
    /// Processor time in the kernel, in microseconds.
    pub system_us: u64,
    /// Context switches because it waited.
    pub voluntary: u64,
    /// Context switches because its time was up.
    pub involuntary: u64,
}

impl Usage {
    /// Of this thread so far.
    pub fn of_this_thread() -> Usage {
        // SAFETY: all zeroes is a valid `rusage`, which the call fills; it cannot fail with these arguments.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
            usage
        };
        let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        Usage {
            user_us: micros(usage.ru_utime),
            system_us: micros(usage.ru_stime),
            voluntary: usage.ru_nvcsw as u64,
            involuntary: usage.ru_nivcsw as u64,
        }
    }

    /// What was used since.
    pub fn since(self, before: Usage) -> Usage {
        Usage {
            user_us: self.user_us - before.user_us,
            system_us: self.system_us - before.system_us,
            voluntary: self.voluntary - before.voluntary,
            involuntary: self.involuntary - before.involuntary,
        }
    }
}

/// A [`Board`] in memory that all who map the same file share.
pub struct SharedBoard(NonNull<Board>);

// SAFETY: a board is atomics alone, so that any thread may use it at any time.
unsafe impl Send for SharedBoard {}
// SAFETY: as above.
unsafe impl Sync for SharedBoard {}

impl SharedBoard {
    /// Maps the board in `file`, which must be at least as large as one.
    ///
    /// # Errors
    /// The file is too small, or cannot be mapped.
    pub fn map(file: impl AsFd) -> io::Result<SharedBoard> {
        let size = size_of::<Board>();
        if rustix::fs::fstat(&file)?.st_size < size as i64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: a new mapping where the kernel likes replaces none.
        let memory = unsafe {
            mmap(
                ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let board = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedBoard(board))
    }
}

impl Deref for SharedBoard {
    type Target = Board;

    fn deref(&self) -> &Board {
        // SAFETY: the mapping is large enough, page-aligned, and lasts as long as `self`; any bytes are
        // valid atomics, and who else maps the file changes them through atomics alone.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for SharedBoard {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this size, and no reference to it outlives `self`.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<Board>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_has_waited_so_often_and_done_next_to_nothing() {
        let before = Usage::of_this_thread();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let used = Usage::of_this_thread().since(before);
        // A page may have been fetched meanwhile, too.
        assert!((20..30).contains(&used.voluntary), "{used:?}");
        assert!(used.user_us + used.system_us < 20_000, "{used:?}");
    }

    #[test]
    fn a_thread_that_works_has_used_the_processor() {
        let before = Usage::of_this_thread();
        let mut used = Usage::default();
        let mut sum = 0u64;
        while used.user_us < 20_000 {
            sum = (0..100_000).fold(sum, |sum, n| std::hint::black_box(sum ^ n));
            used = Usage::of_this_thread().since(before);
        }
        assert!(used.voluntary < 10, "{used:?} {sum}");
    }
}
