//! Who has a file open, by /proc/PID/fd and fdinfo; and who waits in a lock call on it.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::{Key, proc_locks, unescape};
use crate::process;
use crate::report;

/// A descriptor of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenFile {
    pub(crate) key: Key,
    pub(crate) pid: u32,
    pub(crate) fd: u32,
    pub(crate) path: Option<PathBuf>,
    pub(crate) is_deleted: bool,
    pub(crate) size: Option<u64>,
    /// The locks of this open file, and the process's own, as [`proc_locks::Line::text`].
    pub(crate) locks: Vec<String>,
    /// What else fdinfo says: the same for two descriptors of one open file.
    pub(crate) state: String,
}

impl OpenFile {
    /// What is the same for all descriptors of one open file, whatever process has them; those of two open files
    /// may look alike.
    pub(crate) fn sign(self) -> String {
        let mut sign = self.state;
        // Those of POSIX are each process's own.
        for lock in self.locks.iter().filter(|lock| !lock.starts_with("POSIX")) {
            sign.push_str(lock);
            sign.push('\n');
        }
        sign
    }
}

/// The mounts, by number: which device each shows.
pub(crate) struct Mounts(HashMap<u64, (u32, u32, PathBuf)>);

impl Mounts {
    /// Those that this process sees.
    pub(crate) fn own() -> io::Result<Mounts> {
        Ok(Mounts(mounts_of("self")?.collect()))
    }

    /// The devices mounted below a folder.
    pub(crate) fn below(&self, folder: &Path) -> impl Iterator<Item = (u32, u32)> {
        let below = self
            .0
            .values()
            .filter(move |(.., path)| path.starts_with(folder));
        below.map(|&(major, minor, _)| (major, minor))
    }

    fn device(&self, mount: u64) -> Option<(u32, u32)> {
        self.0.get(&mount).map(|&(major, minor, _)| (major, minor))
    }
}

/// The mounts in the namespace of a process: number, device and path (proc(5), mountinfo).
fn mounts_of(process: &str) -> io::Result<impl Iterator<Item = (u64, (u32, u32, PathBuf))>> {
    let text = fs::read(format!("/proc/{process}/mountinfo"))?;
    let lines: Vec<Vec<u8>> = text
        .split(|&byte| byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
    Ok(lines.into_iter().filter_map(|line| {
        let mut words = line.split(|&byte| byte == b' ');
        let number = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let (major, minor) = std::str::from_utf8(words.nth(1)?).ok()?.split_once(':')?;
        let path = unescape(words.nth(1)?);
        Some((number, (major.parse().ok()?, minor.parse().ok()?, path)))
    }))
}

/// The file at a path, as the kernel knows it. Needs no right to read it.
///
/// # Errors
/// It is not there, or /proc does not tell.
pub(crate) fn identify(path: &Path, mounts: &Mounts) -> io::Result<Key> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let info = Info::parse(&info);
    // Before Linux 5.14 fdinfo has no inode number; that of stat(2) is nearly always the same.
    let inode = match info.inode {
        Some(inode) => inode,
        None => std::os::unix::fs::MetadataExt::ino(&file.metadata()?),
    };
    let device = info.mount.and_then(|mount| mounts.device(mount));
    let (major, minor) =
        device.ok_or_else(|| io::Error::other("its mount is not in /proc/self/mountinfo"))?;
    Ok((major, minor, inode))
}

/// Every descriptor of these files that can be seen.
///
/// # Errors
/// There is no /proc.
pub(crate) fn of(keys: &HashSet<Key>) -> io::Result<Vec<OpenFile>> {
    let mut mounts = Mounts::own()?;
    let others = process::all().into_iter();
    let others = others.filter(|&pid| pid != std::process::id());
    Ok(others
        .flat_map(|pid| of_process(pid, keys, &mut mounts))
        .collect())
}

/// The descriptors of these files that a process has, of those that can be seen.
pub(crate) fn of_process(pid: u32, keys: &HashSet<Key>, mounts: &mut Mounts) -> Vec<OpenFile> {
    let inodes: HashSet<u64> = keys.iter().map(|key| key.2).collect();
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return Vec::new();
    };
    let fds = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    fds.filter_map(|fd| open_file(pid, fd, &inodes, mounts))
        .filter(|file| keys.contains(&file.key))
        .collect()
}

fn open_file(pid: u32, fd: u32, inodes: &HashSet<u64>, mounts: &mut Mounts) -> Option<OpenFile> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
    let info = Info::parse(&text);
    let link = format!("/proc/{pid}/fd/{fd}");
    let inode = match info.inode {
        Some(inode) => inode,
        None => std::os::unix::fs::MetadataExt::ino(&fs::metadata(&link).ok()?),
    };
    if !inodes.contains(&inode) {
        return None;
    }
    let mount = info.mount?;
    if mounts.device(mount).is_none() {
        // Of another namespace; numbers of mounts are the same in all.
        mounts.0.extend(mounts_of(&pid.to_string()).ok()?);
    }
    let (major, minor) = mounts.device(mount)?;
    let metadata = fs::metadata(&link).ok();
    let target = fs::read_link(&link)
        .ok()
        .map(|path| path.into_os_string().into_vec());
    let is_deleted = metadata
        .as_ref()
        .is_some_and(|found| std::os::unix::fs::MetadataExt::nlink(found) == 0);
    let path = target.map(|mut path| {
        if is_deleted && path.ends_with(b" (deleted)") {
            path.truncate(path.len() - b" (deleted)".len());
        }
        PathBuf::from(std::ffi::OsStr::from_bytes(&path))
    });
    Some(OpenFile {
        key: (major, minor, inode),
        pid,
        fd,
        path: path.filter(|path| path.is_absolute()),
        is_deleted,
        size: metadata.map(|found| found.len()),
        locks: info.locks,
        state: info.state,
    })
}

/// What fdinfo says of a descriptor.
#[derive(Debug, Default)]
struct Info {
    mount: Option<u64>,
    inode: Option<u64>,
    locks: Vec<String>,
    state: String,
}

impl Info {
    fn parse(text: &str) -> Info {
        let mut info = Info::default();
        for line in text.lines() {
            match line.split_once(':') {
                Some(("mnt_id", number)) => info.mount = number.trim().parse().ok(),
                Some(("ino", number)) => info.inode = number.trim().parse().ok(),
                Some(("lock", lock)) => {
                    let line = proc_locks::parse_line(lock.trim_start());
                    info.locks.extend(line.map(|line| line.text));
                }
                _ => {
                    info.state.push_str(line);
                    info.state.push('\n');
                }
            }
        }
        info
    }
}

/// A thread that is in a lock call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    pub(crate) pid: u32,
    pub(crate) fd: u32,
    pub(crate) call: Call,
}

/// The calls of an open file's owner; those of processes are listed with their process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// F_OFD_SETLKW, and what it asks for, if that can be read.
    Ofd(Option<(report::Mode, u64, Option<u64>)>),
    /// flock(2).
    Flock,
}

/// The threads of a process that are in a lock call. Needs the right to trace it.
pub(crate) fn blocked_threads(pid: u32) -> Vec<Blocked> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let call = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("syscall")).ok()?;
        let (call, fd) = parse_call(&text, |address| read_flock(pid, address))?;
        Some(Blocked { pid, fd, call })
    };
    tasks.flatten().filter_map(call).collect()
}

/// The text of /proc/TID/syscall: number and arguments.
fn parse_call(
    text: &str,
    flock_at: impl Fn(u64) -> Option<(report::Mode, u64, Option<u64>)>,
) -> Option<(Call, u32)> {
    let mut words = text.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let fd = u32::try_from(argument()?).ok()?;
    let second = argument()?;
    if number == libc::SYS_flock {
        return Some((Call::Flock, fd));
    }
    let is_wait =
        number == libc::SYS_fcntl && second == u64::from(libc::F_OFD_SETLKW.cast_unsigned());
    is_wait.then_some(())?;
    Some((Call::Ofd(flock_at(argument()?)), fd))
}

/// The `struct flock` of a 64-bit process, where its bytes count from the beginning of the file.
fn read_flock(pid: u32, address: u64) -> Option<(report::Mode, u64, Option<u64>)> {
    let mut bytes = [0; 24];
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    memory.read_exact_at(&mut bytes, address).ok()?;
    let short = |at: usize| i16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let long = |at: usize| i64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    (i32::from(short(2)) == libc::SEEK_SET).then_some(())?;
    let mode = match i32::from(short(0)) {
        libc::F_RDLCK => report::Mode::Read,
        _ => report::Mode::Write,
    };
    let (start, len) = (u64::try_from(long(8)).ok()?, long(16));
    let end = match len {
        0 => None,
        len => Some(
            start
                .checked_add(u64::try_from(len).ok()?)?
                .checked_sub(1)?,
        ),
    };
    Some((mode, start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_of_a_thread_is_read() {
        let ofd = format!(
            "{} 0x5 0x26 0x7ffe 0x0 0x0 0x0 0x7ffd 0x7ffc",
            libc::SYS_fcntl
        );
        let wanted = Some((report::Mode::Read, 3, None));
        assert_eq!(parse_call(&ofd, |_| wanted), Some((Call::Ofd(wanted), 5)));
        let posix = format!("{} 0x5 0x7 0x7ffe", libc::SYS_fcntl);
        assert_eq!(parse_call(&posix, |_| None), None);
        let flock = format!("{} 0x4 0x2 0x0", libc::SYS_flock);
        assert_eq!(parse_call(&flock, |_| None), Some((Call::Flock, 4)));
        assert_eq!(parse_call("running", |_| None), None);
    }

    #[test]
    fn what_fdinfo_says_is_read() {
        let info = Info::parse(
            "pos:\t0\nflags:\t02\nmnt_id:\t27\nino:\t12\nlock:\t1: OFDLCK ADVISORY  WRITE -1 fe:00:12 0 9\n",
        );
        assert_eq!((info.mount, info.inode), (Some(27), Some(12)));
        assert_eq!(info.locks, ["OFDLCK ADVISORY WRITE -1 fe:00:12 0 9"]);
        assert_eq!(info.state, "pos:\t0\nflags:\t02\n");
    }

    #[test]
    fn paths_of_mounts_are_unescaped() {
        assert_eq!(unescape(b"/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescape(b"/a\\"), Path::new("/a\\"));
    }
}
