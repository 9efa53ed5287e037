//! Reading what a process reports, without waiting for it for ever.

use std::io::{BufRead, BufReader};
use std::process::ChildStdout;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::Error;

/// How long it waits between two looks.
const GLANCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

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
