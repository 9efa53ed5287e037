//! What /proc tells of a process.

use std::fs;
use std::path::Path;

/// A process as proc(5) shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The name of its program.
    pub command: String,
    /// The state's letter: `T` and `t` are stopped, `Z` has ended.
    pub state: char,
    /// Its parent.
    pub parent: u32,
    /// How many threads it has.
    pub threads: usize,
    /// When it began, in clock ticks since the machine did.
    pub started: u64,
}

impl Process {
    /// This process, or the process of this thread; `None` if there is none, or it is hidden.
    pub fn of(pid: u32) -> Option<Process> {
        // A number of its own, so that nobody is asked about process 0.
        if pid == 0 {
            return None;
        }
        Process::parse(&String::from_utf8_lossy(
            &fs::read(format!("/proc/{pid}/stat")).ok()?,
        ))
    }

    /// What the text of /proc/PID/stat says, or of a thread's. A program may have any name, also one with blanks
    /// and brackets.
    pub fn parse(stat: &str) -> Option<Process> {
        let (front, back) = stat.rsplit_once(')')?;
        let (_, command) = front.split_once('(')?;
        let fields: Vec<&str> = back.split_ascii_whitespace().collect();
        Some(Process {
            command: command.to_owned(),
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            threads: fields.get(17)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether a signal has stopped it, or a debugger.
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    /// Whether it has ended, and only its parent has not noticed.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// The present time on the clock by which processes begin.
#[derive(Clone, Copy, Debug)]
pub struct Uptime(f64);

impl Uptime {
    /// Now. Where it cannot be told, every process seems as old as time.
    pub fn now() -> Uptime {
        let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
        let seconds = text.split(' ').next().and_then(|word| word.parse().ok());
        Uptime(seconds.unwrap_or(f64::INFINITY))
    }

    /// Whether this process began after something that is `age` seconds old, so that it is not the one that did
    /// it: a number is used again when its process has ended. In doubt it is.
    pub fn began_after(self, process: &Process, age: f64) -> bool {
        /// Both clocks are in hundredths of a second.
        const DOUBT: f64 = 0.1;
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        self.0 - process.started as f64 / ticks + DOUBT < age
    }
}

/// How many threads a process has; `None` if it is gone or hidden.
pub fn threads(pid: u32) -> Option<usize> {
    Process::of(pid).map(|process| process.threads)
}

/// The process of a thread; `None` if it is gone or hidden.
pub fn of_thread(thread: u32) -> Option<u32> {
    let status = fs::read(format!("/proc/{thread}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let mut lines = status.lines();
    lines
        .find_map(|line| line.strip_prefix("Tgid:"))?
        .trim()
        .parse()
        .ok()
}

/// The name of a process's program.
pub fn command(pid: u32) -> Option<String> {
    if pid == 0 {
        return None;
    }
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

/// Every process that can be seen.
pub fn all() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let mut pids: Vec<u32> = entries.flatten().filter_map(pid).collect();
    pids.sort_unstable();
    pids
}

/// Whether there is such a process, hidden or not.
pub fn exists(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_is_read() {
        let stat = "7 (a) b (c) T 5 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 3 0 100 0 0";
        let process = Process::parse(stat).expect("reads");
        assert_eq!(process.command, "a) b (c");
        assert_eq!((process.parent, process.threads), (5, 3));
        assert_eq!(process.started, 100);
        assert!(process.is_stopped() && !process.is_dead());
        assert_eq!(Process::parse("7 (a) T"), None);
        assert_eq!(Process::parse(""), None);
    }

    #[test]
    fn this_process_is_seen() {
        let own = Process::of(std::process::id()).expect("there");
        assert!(own.threads >= 1);
        // Younger than what is older than the machine, and no younger than what was now.
        assert!(Uptime::now().began_after(&own, f64::INFINITY));
        assert!(!Uptime::now().began_after(&own, 0.0));
        assert_eq!(of_thread(std::process::id()), Some(std::process::id()));
        assert_eq!(Some(own.command), command(std::process::id()));
        assert!(all().contains(&std::process::id()));
        assert_eq!(Process::of(0), None);
    }
}
