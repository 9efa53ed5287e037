//! Targets: who grants the locks, and whether he can be asked.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::load::{FairnessSetting, Level, Load};
use crate::run::Program;
use crate::sys;
use crate::{on_kernel, on_library};

/// Who grants the locks.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// The library.
    Library(FairnessSetting),
    /// The kernel, on a folder.
    Kernel(PathBuf),
    /// Whoever serves a mount point.
    Mount(PathBuf),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Library(setting) if setting.0 == lockkeeper::Fairness::default() => {
                f.write_str("library")
            }
            Target::Library(setting) => write!(f, "library {setting}"),
            Target::Kernel(path) if path == Path::new(TMPFS) => f.write_str("kernel"),
            Target::Kernel(path) => write!(f, "kernel {}", path.display()),
            Target::Mount(path) => write!(f, "mount {}", path.display()),
        }
    }
}

/// Where the kernel's files are unless a folder is named: a tmpfs, as will-it-scale's /tmp is meant to be.
pub const TMPFS: &str = "/dev/shm";

impl Target {
    /// The folder with its files; none for the library.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Target::Library(_) => None,
            Target::Kernel(path) | Target::Mount(path) => Some(path),
        }
    }

    /// The call that tasks make.
    pub fn call(&self, load: Load, level: Level) -> &'static str {
        match self {
            Target::Library(_) => on_library::call(load, level),
            _ => on_kernel::call(load, level),
        }
    }

    /// What the tasks really are.
    pub fn served_by(&self, load: Load, level: Level) -> &'static str {
        match (self, load, level) {
            (Target::Library(_), Load::Chain, _) => "one thread, and callbacks that wait",
            (Target::Library(_), _, Level::Processes) => "threads of one process, an owner each",
            (_, _, Level::Processes) => "processes",
            (_, _, Level::Threads) => "threads of one process",
        }
    }

    /// What is done. Targets are compared where it is the same.
    pub fn work(&self, load: Load, level: Level) -> &'static str {
        match (self, load, level) {
            (Target::Library(_), Load::Lease, _) => "break of a lease, no file opened",
            (_, Load::Lease, _) => "open and close, breaking a lease",
            (_, Load::Flock, _) => "flock",
            (_, Load::Chain, _) => "deadlock check",
            (_, Load::Lock1, _) => "record lock of a process",
            (_, Load::Ofd, _) | (_, _, Level::Threads) => "record lock of an open file",
            (_, _, Level::Processes) => "record lock of a process",
        }
    }

    /// Why a load makes no sense here, if it does not.
    pub fn refusal(&self, load: Load, level: Level, tasks: u32) -> Option<String> {
        match (self, load, level) {
            (_, Load::Chain, _) if tasks < 2 => Some(
                "a chain of 1 task has nobody to wait for: give `chain` at least 2 tasks"
                    .to_owned(),
            ),
            (Target::Kernel(_) | Target::Mount(_), Load::Chain, Level::Threads) => Some(format!(
                "chain as threads makes no sense on {self}: the record locks of a process's threads have one \
                 owner, and locks of open files are not checked for deadlock; use `--as processes`"
            )),
            _ => None,
        }
    }
}

/// What a probe found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Probed {
    /// The file system's name.
    pub file_system: String,
    /// Why record locks cannot be had.
    pub locks: Option<String>,
    /// Why flock cannot.
    pub flock: Option<String>,
    /// Why leases cannot.
    pub lease: Option<String>,
    /// Why files cannot be made there, and its errno.
    pub files: Option<(String, i32)>,
}

impl Probed {
    /// Why the file system cannot do what a load asks for.
    pub fn refusal(&self, load: Load) -> Option<&str> {
        match load {
            Load::Lease => self.lease.as_deref(),
            Load::Flock => self.flock.as_deref(),
            _ => self.locks.as_deref(),
        }
    }
}

/// Looks whether a folder can be used, in a process of its own: who asks a mount whose server hangs may
/// never come back.
///
/// # Errors
/// It does not answer in time, is dead, or no file can be made there.
pub fn probe(program: &Program, path: &Path, within: Duration) -> Result<Probed, Error> {
    let mut child = Command::new(&program.path)
        .args([&program.probe_command])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(Error::system("start this program again"))?;
    let deadline = Instant::now() + within;
    let ended = loop {
        match child
            .try_wait()
            .map_err(Error::system("wait for a process"))?
        {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => break None,
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let Some(status) = ended else {
        // It may hang where no signal reaches it; then whoever inherits it reaps it.
        let _ = child.kill();
        std::thread::sleep(Duration::from_millis(50));
        let _ = child.try_wait();
        return Err(Error::NoAnswer {
            path: path.to_owned(),
            within,
        });
    };
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        let _ = io::Read::read_to_string(&mut out, &mut text);
    }
    let probed: Probed = serde_json::from_str(&text)
        .map_err(|_| Error::Task(format!("the look at {} failed: {status}", path.display())))?;
    match &probed.files {
        Some((said, errno)) if [libc::ENOTCONN, libc::ESTALE].contains(errno) => Err(Error::Dead {
            path: path.to_owned(),
            said: said.clone(),
        }),
        Some((_, errno)) => Err(Error::Place {
            path: path.to_owned(),
            source: io::Error::from_raw_os_error(*errno),
        }),
        None => Ok(probed),
    }
}

/// What the hidden command does: a probe of one folder.
pub fn probe_main(path: &Path) -> ExitCode {
    let probed = look(path).unwrap_or_else(|error| Probed {
        file_system: String::new(),
        locks: None,
        flock: None,
        lease: None,
        files: Some((error.to_string(), error.raw_os_error().unwrap_or(libc::EIO))),
    });
    let text = serde_json::to_string(&probed).expect("words are JSON");
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(2),
    }
}

fn look(path: &Path) -> io::Result<Probed> {
    use std::os::fd::AsFd;
    if !std::fs::metadata(path)?.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    let file = probe_file(path)?;
    let said = |result: io::Result<()>| result.err().map(|error| error.to_string());
    let descriptor = file.as_file().as_fd();
    let lock = |command| {
        let kinds = [libc::F_WRLCK, libc::F_UNLCK].map(|kind| sys::ByteLock::new(kind, 0));
        kinds
            .iter()
            .try_for_each(|lock| sys::lock_byte(descriptor, command, lock))
    };
    let flock = |operation| rustix::fs::flock(descriptor, operation).map_err(io::Error::from);
    use rustix::fs::FlockOperation::{NonBlockingLockExclusive, Unlock};
    let locks = said(lock(libc::F_SETLK).and_then(|()| lock(libc::F_OFD_SETLK)));
    let flock = said(flock(NonBlockingLockExclusive).and_then(|()| flock(Unlock)));
    sys::block_break_signal();
    let lease = said(
        sys::set_lease(descriptor, libc::F_WRLCK)
            .and_then(|()| sys::set_lease(descriptor, libc::F_UNLCK)),
    );
    Ok(Probed {
        file_system: file_system_of(path),
        locks,
        flock,
        lease,
        files: None,
    })
}

/// A file that goes when it is dropped. Made plainly: the error must keep its number.
fn probe_file(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let name = path.join(format!(".lockkeeper-bench-{}", std::process::id()));
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&name)?;
    Ok(tempfile::NamedTempFile::from_parts(
        file,
        tempfile::TempPath::try_from_path(name)?,
    ))
}

/// The type of the file system, as the list of mounts has it.
fn file_system_of(path: &Path) -> String {
    let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    // The last mount with the longest path is the one that is seen.
    let found = list
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let point = left.split(' ').nth(4)?;
            path.starts_with(point)
                .then(|| (point.len(), right.split(' ').next().unwrap_or_default()))
        })
        .max_by_key(|(length, _)| *length);
    found.map_or_else(|| "unknown".to_owned(), |(_, kind)| kind.to_owned())
}
