//! The process that outlives a run and cleans up after it.
//!
//! Whatever ends the executor (its own end, a panic, SIGINT, SIGKILL), the kernel closes its end of the
//! lifeline. The caretaker then kills every process of the run, restores the lease break time and
//! removes the folder. It makes no call that could hang, and runs in a process group of its own, so that
//! ^C at the terminal does not reach it.
//!
//! The first actor is its child and leads the group of all actors: every other process of a run comes
//! from that one by fork(2), and is re-parented to the caretaker when its own parent dies.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::protocol::{Call, receive_request};
use super::sys::{self, Caught};
use super::{actor, protocol};

/// Where the kernel keeps the lease break time.
pub const BREAK_TIME: &str = "/proc/sys/fs/lease-break-time";

/// How long killed processes may take to be gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves the executor at the other end of `lifeline` until it is gone, then cleans up.
pub fn serve(lifeline: OwnedFd) -> Result<(), Errno> {
    let Some(request) = receive_request(&lifeline)? else {
        return Ok(());
    };
    let (Call::Start, Some(channel)) = (request.call, request.channel) else {
        return Err(Errno::BADMSG);
    };
    let folder = PathBuf::from(OsString::from_vec(request.path));
    sys::catch(libc::SIGCHLD, Caught::Ignored)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let group = match sys::fork()? {
        0 => {
            drop(lifeline);
            let ready = rustix::process::setpgid(None, None).and(actor::prepare_signals());
            match ready {
                Ok(()) => actor::serve(channel),
                Err(_) => sys::exit_now(),
            }
        }
        child => child,
    };
    drop(channel);
    let mut break_time = BreakTime::default();
    while let Ok(Some(request)) = receive_request(&lifeline) {
        let reply = match request.call {
            Call::BreakTime => break_time.set(request.numbers[0]),
            _ => Err(Errno::NOSYS),
        };
        if protocol::send_reply(&lifeline, reply.map(|()| [0; 7])).is_err() {
            break;
        }
    }
    end_group(group);
    let restored = break_time.restore();
    remove(&folder);
    restored
}

/// Kills the group of the actors and waits until no process of the run is left.
fn end_group(group: i32) {
    let begin = Instant::now();
    while sys::has_child() && begin.elapsed() < PATIENCE {
        if let Some(group) = Pid::from_raw(group) {
            // An error says that there is nobody left in the group.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn remove(folder: &Path) {
    if let Err(error) = std::fs::remove_dir_all(folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        eprintln!("lockkeeper: cannot remove {}: {error}", folder.display());
    }
}

/// The lease break time while a script changes it.
///
/// The setting is the machine's. While it is changed its file is locked by flock(2), so that two runs at
/// once do not mix up what is to be restored.
#[derive(Default)]
struct BreakTime {
    changed: Option<(File, String)>,
}

impl BreakTime {
    fn set(&mut self, seconds: i64) -> Result<(), Errno> {
        if seconds < 0 {
            return self.restore();
        }
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        if self.changed.is_none() {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(BREAK_TIME)
                .map_err(errno)?;
            rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)?;
            let mut before = String::new();
            file.read_to_string(&mut before).map_err(errno)?;
            self.changed = Some((file, before));
        }
        match &mut self.changed {
            None => Ok(()),
            Some((file, _)) => write(file, &seconds.to_string()),
        }
    }

    fn restore(&mut self) -> Result<(), Errno> {
        match self.changed.take() {
            None => Ok(()),
            Some((mut file, before)) => write(&mut file, &before),
        }
    }
}

fn write(file: &mut File, text: &str) -> Result<(), Errno> {
    file.rewind()
        .and_then(|()| file.write_all(text.as_bytes()))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Serves as the caretaker of the run at the other end of `lifeline`.
pub fn main(lifeline: OwnedFd) -> std::process::ExitCode {
    match serve(lifeline) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lockkeeper: caretaker: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
