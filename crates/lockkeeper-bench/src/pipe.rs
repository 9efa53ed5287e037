//! What the bench and the processes that it starts say to each other: an argument, and a line; and how long it waits.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::ChildStdout;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// How long it waits between two looks.
const GLANCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// A wait that began just now: until the user ends it, or it has lasted too long.
pub struct Patience<'a> {
    stop: Option<&'a AtomicBool>,
    /// Who does not answer.
    place: &'a Path,
    within: Duration,
    begin: Instant,
}

impl<'a> Patience<'a> {
    /// Without `stop` the user cannot end it.
    pub fn new(stop: Option<&'a AtomicBool>, place: &'a Path, within: Duration) -> Patience<'a> {
        Patience {
            stop,
            place,
            within,
            begin: Instant::now(),
        }
    }

    /// Whether to wait on.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), Error> {
        self.stop.map_or(Ok(()), go_on)?;
        if self.begin.elapsed() > self.within {
            return Err(Error::NoAnswer {
                path: self.place.to_owned(),
                within: self.within,
            });
        }
        Ok(())
    }
}

/// Whether to go on.
///
/// # Errors
/// The user has ended it.
pub fn go_on(stop: &AtomicBool) -> Result<(), Error> {
    match stop.load(Ordering::Relaxed) {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}

/// What a process is to do, from the argument of its hidden command; says so if somebody else has started it.
pub fn told<T: DeserializeOwned>(argument: &str) -> Option<T> {
    serde_json::from_str(argument)
        .inspect_err(|error| {
            eprintln!("error: this command is for `lockkeeper bench` alone: {error}");
        })
        .ok()
}

/// Reports on the standard output.
///
/// # Errors
/// Nobody reads it.
pub fn write_line(report: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(report).map_err(io::Error::other)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

/// A line, or what there is of it at the end. While nothing comes, `glance` is asked whether to go on.
///
/// # Errors
/// What `glance` gave, or the system.
pub fn read_line(
    pipe: &mut BufReader<ChildStdout>,
    mut glance: impl FnMut() -> Result<(), Error>,
) -> Result<String, Error> {
    let what = "read the report of a task";
    let mut line = Vec::new();
    loop {
        if pipe.buffer().is_empty() {
            let mut fds = [PollFd::new(pipe.get_ref(), PollFlags::IN)];
            match poll(&mut fds, Some(&GLANCE)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {
                    glance()?;
                    continue;
                }
                Ok(_) => {}
                Err(error) => return Err(Error::system(what)(error)),
            }
        }
        // There is something, or the end: it does not wait.
        let some = pipe.fill_buf().map_err(Error::system(what))?;
        let end = some.iter().position(|&byte| byte == b'\n');
        let is_over = some.is_empty() || end.is_some();
        let count = end.map_or(some.len(), |end| end + 1);
        line.extend_from_slice(&some[..count]);
        pipe.consume(count);
        if is_over {
            return Ok(String::from_utf8_lossy(&line).into_owned());
        }
    }
}
