//! The actor's side: a process, or a thread of one, that makes the calls it is asked for, one at a time.
//!
//! An actor keeps nothing but its channel. Which name stands for which descriptor the executor knows; so
//! fork(2), execve(2) and death need no care here.

use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::protocol::{Call, Reply, Request, receive_request, send_reply};
use super::sys::{self, Caught};

/// Signals by which the executor reaches an actor that is in a call.
pub const INTERRUPT: i32 = libc::SIGUSR1;
pub const RESTART: i32 = libc::SIGUSR2;
pub const EXIT: i32 = libc::SIGALRM;

/// Sets up the signals of an actor. They are kept over fork(2) and threads, but not over execve(2).
pub fn prepare_signals() -> Result<(), Errno> {
    sys::block(sys::lease_signal());
    sys::catch(INTERRUPT, Caught::Interrupts)?;
    sys::catch(RESTART, Caught::Restarts)?;
    sys::catch(EXIT, Caught::Exits)?;
    // Children are reaped by nobody, and their end is seen through their pidfd.
    sys::catch(libc::SIGCHLD, Caught::Ignored)
}

/// Says hello, with the ids of process and thread, and serves until the executor is gone.
pub fn serve(mut channel: OwnedFd) -> ! {
    let hello = |channel: &OwnedFd| {
        let mut numbers = [0; 7];
        numbers[0] = rustix::process::getpid().as_raw_nonzero().get().into();
        numbers[1] = rustix::thread::gettid().as_raw_nonzero().get().into();
        send_reply(channel, Ok(numbers))
    };
    if hello(&channel).is_err() {
        sys::exit_now();
    }
    loop {
        let Ok(Some(mut request)) = receive_request(&channel) else {
            sys::exit_now();
        };
        let reply = match (request.call, request.channel.take()) {
            (Call::Fork, Some(theirs)) => match sys::fork() {
                // The copies of other threads' channels stay open here, unused. The executor learns of a
                // process's end from its pidfd and not from a channel.
                Ok(0) => {
                    channel = theirs;
                    match hello(&channel) {
                        Ok(()) => continue,
                        Err(_) => sys::exit_now(),
                    }
                }
                result => result.map(one),
            },
            (Call::Thread, Some(theirs)) => std::thread::Builder::new()
                .stack_size(128 * 1024)
                .spawn(move || serve(theirs))
                .map(|_| one(0))
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)),
            (Call::Exec, _) => Err(exec(&channel)),
            (Call::Exit, _) => sys::exit_now(),
            _ => perform(&request),
        };
        if send_reply(&channel, reply).is_err() {
            sys::exit_now();
        }
    }
}

fn one(number: i32) -> [i64; 7] {
    let mut numbers = [0; 7];
    numbers[0] = number.into();
    numbers
}

/// Replaces the process by this same program, which goes on with the same channel.
fn exec(channel: &OwnedFd) -> Errno {
    let keep = rustix::io::FdFlags::empty();
    if let Err(errno) = rustix::io::fcntl_setfd(channel, keep) {
        return errno;
    }
    let arguments = ["lockkeeper", super::ACTOR_COMMAND, super::RESUME]
        .map(str::to_owned)
        .into_iter()
        .chain([channel.as_raw_fd().to_string()])
        .map(CString::new)
        .collect::<Result<Vec<_>, _>>();
    let errno = match arguments {
        Ok(arguments) => sys::replace(c"/proc/self/exe", &arguments),
        Err(_) => Errno::INVAL,
    };
    // A channel that is not closed on a later execve(2) of another thread is of no consequence.
    let _ = rustix::io::fcntl_setfd(channel, rustix::io::FdFlags::CLOEXEC);
    errno
}

fn perform(request: &Request) -> Reply {
    let n = &request.numbers;
    let path = Path::new(OsStr::from_bytes(&request.path));
    let number = |at: usize| i32::try_from(n[at]).map_err(|_| Errno::INVAL);
    let fd = || number(0);
    match request.call {
        Call::Open => {
            let flags = OFlags::from_bits_retain(u32::try_from(n[0]).map_err(|_| Errno::INVAL)?);
            let descriptor = rustix::fs::open(path, flags, Mode::empty())?;
            Ok(one(descriptor.into_raw_fd()))
        }
        Call::Dup => {
            let twin = rustix::io::dup(sys::borrow(fd()?))?;
            // dup(2) of rustix is plain: the twin stays open over execve(2), as the original does.
            Ok(one(twin.into_raw_fd()))
        }
        Call::Close => sys::close(fd()?).map(|()| one(0)),
        Call::Seek => {
            let offset = u64::try_from(n[1]).map_err(|_| Errno::INVAL)?;
            rustix::fs::seek(sys::borrow(fd()?), rustix::fs::SeekFrom::Start(offset))?;
            Ok(one(0))
        }
        Call::Truncate => {
            let size = u64::try_from(n[1]).map_err(|_| Errno::INVAL)?;
            rustix::fs::ftruncate(sys::borrow(fd()?), size)?;
            Ok(one(0))
        }
        Call::Resize => resize(path, n[0]),
        Call::Link => {
            let mut paths = request.path.split(|byte| *byte == 0).map(OsStr::from_bytes);
            let (Some(from), Some(to)) = (paths.next(), paths.next()) else {
                return Err(Errno::INVAL);
            };
            rustix::fs::link(Path::new(from), Path::new(to))?;
            Ok(one(0))
        }
        Call::Record => record(fd()?, n),
        Call::Flock => {
            flock(fd()?, number(1)?)?;
            Ok(one(0))
        }
        Call::SetLease => sys::set_lease(fd()?, number(1)?, sys::lease_signal()).map(|()| one(0)),
        Call::GetLease => sys::lease(fd()?).map(one),
        Call::Notified => Ok(one(notified(number(0)?).into())),
        Call::Fork | Call::Thread | Call::Exec | Call::Exit | Call::Start | Call::BreakTime => {
            Err(Errno::NOSYS)
        }
    }
}

fn resize(path: &Path, size: i64) -> Reply {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    sys::truncate(&path, size).map(|()| one(0))
}

fn record(fd: i32, n: &[i64; 7]) -> Reply {
    let short = |number: i64| i16::try_from(number).map_err(|_| Errno::INVAL);
    let long = |number: i64| i32::try_from(number).map_err(|_| Errno::INVAL);
    let mut flock = libc::flock {
        l_type: short(n[2])?,
        l_whence: short(n[3])?,
        l_start: n[4],
        l_len: n[5],
        l_pid: long(n[6])?,
    };
    sys::fcntl_flock(fd, long(n[1])?, &mut flock)?;
    Ok([
        flock.l_type.into(),
        flock.l_whence.into(),
        flock.l_start,
        flock.l_len,
        flock.l_pid.into(),
        0,
        0,
    ])
}

fn flock(fd: i32, operation: i32) -> Result<(), Errno> {
    let operation = match operation {
        libc::LOCK_SH => FlockOperation::LockShared,
        libc::LOCK_EX => FlockOperation::LockExclusive,
        libc::LOCK_UN => FlockOperation::Unlock,
        number if number == libc::LOCK_SH | libc::LOCK_NB => FlockOperation::NonBlockingLockShared,
        number if number == libc::LOCK_EX | libc::LOCK_NB => {
            FlockOperation::NonBlockingLockExclusive
        }
        number if number == libc::LOCK_UN | libc::LOCK_NB => FlockOperation::NonBlockingUnlock,
        _ => return Err(Errno::INVAL),
    };
    rustix::fs::flock(sys::borrow(fd), operation)
}

/// Takes all notifications that are pending; whether there was one.
fn notified(patience: i32) -> bool {
    let signal = sys::lease_signal();
    let patience = Duration::from_millis(patience.try_into().unwrap_or(0));
    let notified = sys::take_pending(signal, patience);
    while notified && sys::take_pending(signal, Duration::ZERO) {}
    notified
}

/// A channel whose number was given to this program when it was executed.
pub fn resume(number: &OsStr) -> ! {
    let channel = number.to_str().and_then(|number| number.parse().ok());
    let Some(channel) = channel.map(sys::adopt) else {
        sys::exit_now();
    };
    let close = rustix::io::FdFlags::CLOEXEC;
    if prepare_signals().is_err() || rustix::io::fcntl_setfd(channel.as_fd(), close).is_err() {
        sys::exit_now();
    }
    serve(channel)
}
