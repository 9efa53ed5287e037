//! How a run begins: its folder, the caretaker and the first actor.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::calls::wait_for_reply;
use super::protocol::{self, Call};
use super::{ACTOR_COMMAND, Carried};
use crate::executor::ExecutorError;

/// A new folder in `directory`.
pub(super) fn fresh_folder(directory: &Path) -> Carried<PathBuf> {
    static FOLDERS: AtomicU32 = AtomicU32::new(0);
    let failed = |error: std::io::Error| {
        let what = format!(
            "cannot make a folder for the script's files in {}",
            directory.display()
        );
        ExecutorError::place(what, error)
    };
    let directory = fs::canonicalize(directory).map_err(failed)?;
    loop {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = directory.join(format!("lockkeeper-{}-{number}", std::process::id()));
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            // Left by a process of the same number, long ago.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Starts the caretaker and the first actor: the caretaker, its lifeline, the actor's channel.
pub(super) fn start(program: &Path, folder: &Path) -> Carried<(Child, OwnedFd, OwnedFd)> {
    let failed = |error: &dyn std::fmt::Display| {
        ExecutorError::place(
            format!("cannot start {} as an actor", program.display()),
            error,
        )
    };
    let (lifeline, theirs) = protocol::channel().map_err(|errno| failed(&errno))?;
    let (seed, its) = protocol::channel().map_err(|errno| failed(&errno))?;
    let mut command = Command::new(program);
    command
        .arg(ACTOR_COMMAND)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null());
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut caretaker = command.spawn().map_err(|error| failed(&error))?;
    // The command still holds the caretaker's end, whose closing must show when the caretaker is gone.
    drop(command);
    let path = folder.as_os_str().as_bytes();
    let hello = protocol::send_request(&lifeline, Call::Start, &[], path, Some(&its))
        .and_then(|()| wait_for_reply(&seed, Duration::from_secs(5)));
    match hello {
        Ok(Some(Ok(_))) => Ok((caretaker, lifeline, seed)),
        other => {
            drop(lifeline);
            drop(seed);
            drop(its);
            let _ = caretaker.kill();
            let _ = caretaker.wait();
            Err(match other {
                Err(errno) => failed(&errno),
                _ => failed(&"it does not answer"),
            })
        }
    }
}
