//! The system calls that no safe wrapper offers: `struct flock`, leases, signals, fork(2).
//!
//! All `unsafe` of this crate is here. Descriptors of scripts are plain numbers: whether a number is open
//! is what some scripts ask, so that no owner type can stand for it.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use rustix::io::Errno;

/// `F_SETSIG` of fcntl(2): which signal tells of a lease break.
const F_SETSIG: i32 = 10;

fn check(result: i32) -> Result<i32, Errno> {
    match result {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        value => Ok(value),
    }
}

/// The descriptor with this number, for one call: a closed one is answered by EBADF.
pub fn borrow(number: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the number is not -1 (numbers come from the kernel), and is used only as an argument of
    // system calls, for which a number that has been closed is an error and no harm.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// Takes over a descriptor that was handed to this process, by number, when it began.
pub fn adopt(number: RawFd) -> OwnedFd {
    // SAFETY: called once with a number that the process which executed this one left open for it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// close(2)
pub fn close(number: RawFd) -> Result<(), Errno> {
    // SAFETY: the numbers closed here are the script's own descriptors, which no owner type holds.
    check(unsafe { libc::close(number) }).map(drop)
}

/// fcntl(2) with a `struct flock`.
pub fn fcntl_flock(number: RawFd, command: i32, flock: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: `flock` is a valid structure for the time of the call, which is all that the kernel uses.
    check(unsafe { libc::fcntl(number, command, ptr::from_mut(flock)) }).map(drop)
}

/// F_SETLEASE, with `signal` as the notification of a break.
pub fn set_lease(number: RawFd, lease: i32, signal: i32) -> Result<(), Errno> {
    if lease != libc::F_UNLCK {
        // SAFETY: takes a number only.
        check(unsafe { libc::fcntl(number, F_SETSIG, signal) })?;
    }
    // SAFETY: takes a number only.
    check(unsafe { libc::fcntl(number, libc::F_SETLEASE, lease) }).map(drop)
}

/// F_GETLEASE
pub fn lease(number: RawFd) -> Result<i32, Errno> {
    // SAFETY: takes no argument.
    check(unsafe { libc::fcntl(number, libc::F_GETLEASE) })
}

/// truncate(2), by name; a negative size is the kernel's to refuse.
pub fn truncate(path: &CStr, size: i64) -> Result<(), Errno> {
    // SAFETY: the path is a C string that lives through the call.
    check(unsafe { libc::truncate(path.as_ptr(), size) }).map(drop)
}

/// fork(2). Returns 0 in the child.
pub fn fork() -> Result<i32, Errno> {
    // SAFETY: the child of a process with threads may call only what is async-signal-safe, lest it wait
    // for a lock that a thread held which it does not have. All threads of an actor but the caller are in
    // a system call here (each serves one call at a time and its caller is served now), so that none
    // holds a lock of this library; those of the C library's allocator it takes care of itself.
    check(unsafe { libc::fork() })
}

/// _exit(2)
pub fn exit_now() -> ! {
    // SAFETY: always sound; no destructor has to run.
    unsafe { libc::_exit(0) }
}

/// execv(3). Returns only if it fails.
pub fn replace(program: &CStr, arguments: &[CString]) -> Errno {
    let mut pointers: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(ptr::null());
    // SAFETY: `pointers` is an array of C strings that live until the call returns, ended by null.
    unsafe { libc::execv(program.as_ptr(), pointers.as_ptr()) };
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// What a caught signal does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caught {
    /// Nothing: a call that waits returns EINTR.
    Interrupts,
    /// Nothing, with SA_RESTART: a call that waits begins again.
    Restarts,
    /// Ends the process.
    Exits,
    /// Is ignored, without a handler.
    Ignored,
}

extern "C" fn do_nothing(_: i32) {}

extern "C" fn do_exit(_: i32) {
    exit_now()
}

/// sigaction(2)
pub fn catch(signal: i32, caught: Caught) -> Result<(), Errno> {
    // SAFETY: all zeroes is a valid `sigaction`: no flag, an empty mask, the default action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let do_nothing = do_nothing as extern "C" fn(i32) as libc::sighandler_t;
    action.sa_sigaction = match caught {
        Caught::Interrupts => do_nothing,
        Caught::Restarts => do_nothing,
        Caught::Exits => do_exit as extern "C" fn(i32) as libc::sighandler_t,
        Caught::Ignored => libc::SIG_IGN,
    };
    if caught == Caught::Restarts {
        action.sa_flags = libc::SA_RESTART;
    }
    // SAFETY: the handlers do nothing, or call _exit(2), which is async-signal-safe.
    check(unsafe { libc::sigaction(signal, &action, ptr::null_mut()) }).map(drop)
}

fn only(signal: i32) -> libc::sigset_t {
    // SAFETY: all zeroes is a valid set, made empty and then given one signal by the C library.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        set
    }
}

/// Blocks `signal` in this thread and those that it will begin.
pub fn block(signal: i32) {
    let set = only(signal);
    // SAFETY: the set lives through the call. The call cannot fail with SIG_BLOCK.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut()) };
}

/// Takes a pending `signal` that is blocked, waiting for it up to `patience`; whether there was one.
pub fn take_pending(signal: i32, patience: Duration) -> bool {
    let set = only(signal);
    let timeout = libc::timespec {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_nsec: patience.subsec_nanos().into(),
    };
    // SAFETY: both structures live through the call; no siginfo is asked for.
    unsafe { libc::sigtimedwait(&set, ptr::null_mut(), &timeout) == signal }
}

/// tgkill(2)
pub fn signal_thread(process: i32, thread: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
    check(result as i32).map(drop)
}

/// waitpid(2) for any child, without waiting: whether there is a child left.
pub fn has_child() -> bool {
    // SAFETY: asks for no status.
    unsafe { libc::waitpid(-1, ptr::null_mut(), libc::WNOHANG) != -1 }
}

/// The signal that tells of a lease break. It is a queued one, always blocked, and looked for when a
/// script asks: so it disturbs no call.
pub fn lease_signal() -> i32 {
    libc::SIGRTMIN() + 1
}
