//! Whether a thread that is in a call really waits there.
//!
//! A call that has not returned may still be on its way. The kernel tells where a thread sleeps: in
//! `/proc/PID/task/TID/wchan` stands the function that put it to sleep. The functions in which lock
//! requests and opens wait are few and do nothing else, so a thread that sleeps in one of them waits for
//! a lock. A thread that is woken is no longer asleep from that very moment on, before it has run.
//!
//! Several threads are still at the same instant only if each was seen to wait twice, with a moment after
//! the first look at the last and before the second look at the first, and none has run in between:
//! `/proc/PID/task/TID/schedstat` counts how often a thread has run.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The functions of the kernel in which a thread waits for a lock, or for a lease to be broken.
const WAITS_FOR_A_LOCK: [&str; 8] = [
    "fcntl_setlk",
    "fcntl_setlk64",
    "do_lock_file_wait",
    "locks_lock_inode_wait",
    "locks_lock_file_wait",
    "posix_lock_inode_wait",
    "flock_lock_inode_wait",
    "__break_lease",
];

/// What a thread does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posture {
    /// It runs or is about to.
    Running,
    /// It sleeps, nobody can tell where.
    Asleep,
    /// It waits for a lock, and has run so many times before.
    Waiting {
        /// How often the thread was put on a processor.
        runs: u64,
    },
}

/// Looks at one thread.
#[derive(Debug)]
pub struct Probe {
    wchan: File,
    schedstat: File,
    stat: File,
}

impl Probe {
    /// A probe of one thread.
    pub fn new(process: i32, thread: i32) -> io::Result<Self> {
        let open = |name| File::open(format!("/proc/{process}/task/{thread}/{name}"));
        Ok(Self {
            wchan: open("wchan")?,
            schedstat: open("schedstat")?,
            stat: open("stat")?,
        })
    }

    /// What the thread does now.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn posture(&self) -> io::Result<Posture> {
        let mut buffer = [0; 512];
        if WAITS_FOR_A_LOCK.contains(&read(&self.wchan, &mut buffer)?) {
            return Ok(match self.runs(&mut buffer)? {
                Some(runs) => Posture::Waiting { runs },
                None => Posture::Asleep,
            });
        }
        // The name of the program, in parentheses, may hold anything: the state stands after the last.
        let stat = read(&self.stat, &mut buffer)?;
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        Ok(match state.starts_with('R') {
            true => Posture::Running,
            false => Posture::Asleep,
        })
    }

    fn runs(&self, buffer: &mut [u8]) -> io::Result<Option<u64>> {
        let text = read(&self.schedstat, buffer)?;
        Ok(text
            .split_whitespace()
            .nth(2)
            .and_then(|runs| runs.parse().ok()))
    }
}

fn read<'a>(file: &File, buffer: &'a mut [u8]) -> io::Result<&'a str> {
    let length = file.read_at(buffer, 0)?;
    let text = std::str::from_utf8(&buffer[..length]).unwrap_or("");
    Ok(text.trim_end())
}
