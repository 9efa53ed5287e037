//! Targets: who grants the locks, and whether he can be asked.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lockkeeper_watch::kernel::unescape;
use serde::{Deserialize, Serialize};

use crate::errand::{Answer, Errand};
use crate::error::Error;
use crate::folder;
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
    /// Whether something is mounted right there.
    pub is_mount_point: bool,
    /// Why record locks cannot be had.
    pub locks: Option<String>,
    /// Why flock cannot.
    pub flock: Option<String>,
    /// Why leases cannot.
    pub lease: Option<String>,
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

/// Removes what dead benches left in the folder of a target, and looks whether it can be used. Of the
/// library there is nothing to find.
///
/// # Errors
/// It does not answer in time, is dead, no file can be made there, or it is no mount point and should be.
pub fn probe(
    program: &Program,
    target: &Target,
    within: Duration,
    stop: &AtomicBool,
) -> Result<Option<Probed>, Error> {
    let Some(path) = target.folder() else {
        return Ok(None);
    };
    match Errand::Look(path.to_owned()).run(program, within, Some(stop)) {
        // Its server may have gone, and what is beneath would be measured in its name.
        Ok(Answer::Found(probed))
            if matches!(target, Target::Mount(_)) && !probed.is_mount_point =>
        {
            Err(Error::Refused(format!(
                "nothing is mounted at {}; any folder is measured by `--on kernel={0}`",
                path.display()
            )))
        }
        Ok(Answer::Found(probed)) => Ok(Some(probed)),
        Ok(_) => Err(Error::Task("a look found nothing".to_owned())),
        Err(Error::Place { path, source })
            if path == Path::new(TMPFS) && source.kind() == io::ErrorKind::NotFound =>
        {
            Err(Error::Refused(format!(
                "there is no {TMPFS}, where the kernel's files are by default: name a folder, best on a tmpfs, \
                 with `--on library,kernel=FOLDER`"
            )))
        }
        Err(error) => Err(error),
    }
}

/// What the errand does.
pub(crate) fn look(path: &Path) -> io::Result<Probed> {
    if !std::fs::metadata(path)?.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    // It may be a folder that can be written in, and not listed.
    let _ = folder::remove_left_over(path);
    let inside = folder::path_in(path)?;
    folder::make(&inside, &["file".to_owned()])?;
    let probed = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(inside.join("file"))
        .map(|file| look_at(&file, path));
    std::fs::remove_dir_all(&inside)?;
    probed
}

fn look_at(file: &File, path: &Path) -> Probed {
    use std::os::fd::AsFd;
    let said = |result: io::Result<()>| result.err().map(|error| error.to_string());
    let descriptor = file.as_fd();
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
    let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (point, file_system) = mount_of(&path, &list).unwrap_or_else(|| {
        let unknown = "unknown".to_owned();
        (PathBuf::new(), unknown)
    });
    Probed {
        is_mount_point: point == path,
        file_system,
        locks,
        flock,
        lease,
    }
}

/// The mount that a path is on, as the list of mounts has it: its point, and its file system's type.
fn mount_of(path: &Path, list: &str) -> Option<(PathBuf, String)> {
    // The last mount with the longest path is the one that is seen.
    list.lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let point = unescape(left.split(' ').nth(4)?.as_bytes());
            let kind = right.split(' ').next().unwrap_or_default();
            path.starts_with(&point).then(|| (point, kind.to_owned()))
        })
        .max_by_key(|(point, _)| point.as_os_str().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_on_the_last_mount_with_the_longest_point() {
        let list = "\
            22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
            30 22 0:25 / /mnt/a\\040b rw - tmpfs x rw\n\
            31 22 0:26 / /mnt/data rw - tmpfs x rw\n\
            32 31 0:27 / /mnt/data rw - fuse.lockkeeper x rw\n";
        for (path, point, kind) in [
            ("/mnt", "/", "ext4"),
            ("/mnt/a", "/", "ext4"),
            ("/mnt/a b/c", "/mnt/a b", "tmpfs"),
            ("/mnt/data", "/mnt/data", "fuse.lockkeeper"),
            ("/mnt/database", "/", "ext4"),
        ] {
            let found = mount_of(Path::new(path), list).expect(path);
            assert_eq!(found, (PathBuf::from(point), kind.to_owned()), "{path}");
        }
        assert_eq!(mount_of(Path::new("/mnt"), ""), None);
        for (field, path) in [
            ("/a\\011b\\134", "/a\tb\\"),
            ("/a\\", "/a\\"),
            ("/a\\04", "/a\\04"),
            ("/ä\\040é", "/ä é"),
        ] {
            assert_eq!(unescape(field.as_bytes()), PathBuf::from(path), "{field}");
        }
    }
}
