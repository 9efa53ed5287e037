//! Where a place tells which locks it has.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use crate::script::{ItemKind, LockType};

/// A file, as a listing may know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Its path.
    pub path: PathBuf,
    /// `st_dev` of stat(2).
    pub device: u64,
    /// `st_ino` of stat(2).
    pub inode: u64,
}

/// One lock or request, as the place tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// It waits.
    pub waiting: bool,
    /// Its kind.
    pub kind: ItemKind,
    /// Its type.
    pub lock_type: LockType,
    /// The first byte.
    pub start: i64,
    /// The last byte, inclusive.
    pub end: i64,
    /// The process, where it is told: not for locks of open file descriptions.
    pub pid: Option<i32>,
}

/// Tells the locks and requests of a file.
pub trait Listing {
    /// The locks of the file and the requests that wait on it, in no order.
    ///
    /// # Errors
    /// The place does not tell, with the reason in words.
    fn entries(&mut self, file: &FileIdentity) -> io::Result<Vec<Entry>>;

    /// Whether a request of this process is known to wait on the file. It is asked where the kernel does
    /// not show that a thread waits for a lock, as on a mount, whose kernel side waits for an answer.
    fn shows_waiter(&mut self, file: &FileIdentity, pid: i32) -> bool {
        let _ = (file, pid);
        false
    }

    /// Mends what a query of process `asker` says of the lock it found, where the kernel's answer hides
    /// whose it is: on a mount, F_GETLK cannot say that it is an open file description's, and F_OFD_GETLK
    /// says so of every lock.
    fn mend(&mut self, file: &FileIdentity, asker: i32, found: &mut Entry) {
        let _ = (file, asker, found);
    }
}

/// The kernel's own listing, /proc/locks.
///
/// A lock that waits is shown beneath the one that blocks it, under the same ordinal number. An open that
/// waits for a lease has no file of its own in the listing and is known by that number alone.
#[derive(Debug, Default)]
pub struct ProcLocks {
    /// By `st_dev`: the device number under which /proc/locks knows it. The two differ on some file
    /// systems, so that it is found by taking a lock.
    devices: HashMap<u64, String>,
}

/// How much of a listing one read(2) gives at most.
const PAGE: usize = 4096;
/// How many readings of several looks each must agree, one after the other.
const AGREEING: usize = 4;
/// No line is longer: a look that leaves room for one has come to the end.
const LONGEST_LINE: usize = 256;

impl ProcLocks {
    fn device(&mut self, file: &FileIdentity) -> io::Result<String> {
        if let Some(device) = self.devices.get(&file.device) {
            return Ok(device.clone());
        }
        let probe_path = file.path.with_extension("probe.tmp");
        let probe = File::options()
            .write(true)
            .create_new(true)
            .open(&probe_path)?;
        let found = find_probe(&probe);
        std::fs::remove_file(&probe_path)?;
        let device = found?.ok_or_else(|| {
            let folder = file.path.parent().unwrap_or(&file.path);
            io::Error::other(format!(
                "{} has no entries in /proc/locks: it is no file system whose locks the kernel lists",
                folder.display()
            ))
        })?;
        self.devices.insert(file.device, device.clone());
        Ok(device)
    }
}

/// The device number under which the lock that is taken on `probe` is listed.
fn find_probe(probe: &File) -> io::Result<Option<String>> {
    use std::os::unix::fs::MetadataExt;
    rustix::fs::flock(probe, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
    let pid = std::process::id().to_string();
    let inode = probe.metadata()?.ino().to_string();
    let (text, _) = read_locks()?;
    Ok(text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[_, "FLOCK", _, _, holder, place, ..] = words.as_slice() else {
            return None;
        };
        let (device, found) = place.rsplit_once(':')?;
        (holder == pid && found == inode).then(|| device.to_owned())
    }))
}

/// The text of /proc/locks, and whether it was read in one look.
///
/// Each read(2) is one look at the list, and gives whole lines, a page at most. The next goes on at the
/// number of lines read so far, whatever has come or gone since: a lock may then be missing or be there
/// twice.
fn read_locks() -> io::Result<(String, bool)> {
    let mut file = File::open("/proc/locks")
        .map_err(|error| io::Error::new(error.kind(), format!("/proc/locks: {error}")))?;
    let mut buffer = [0; PAGE];
    let first = file.read(&mut buffer)?;
    let mut text = String::from_utf8_lossy(&buffer[..first]).into_owned();
    if first < PAGE - LONGEST_LINE {
        return Ok((text, true));
    }
    file.read_to_string(&mut text)?;
    Ok((text, false))
}

impl Listing for ProcLocks {
    fn entries(&mut self, file: &FileIdentity) -> io::Result<Vec<Entry>> {
        let place = format!("{}:{}", self.device(file)?, file.inode);
        let (text, one_look) = read_locks()?;
        let mut entries = entries_of(&text, &place);
        // Others may change the list between two looks: believe it once enough readings agree.
        let mut agreeing = if one_look { AGREEING } else { 1 };
        while agreeing < AGREEING {
            let (text, one_look) = read_locks()?;
            let again = entries_of(&text, &place);
            agreeing = match again == entries {
                _ if one_look => AGREEING,
                true => agreeing + 1,
                false => 1,
            };
            entries = again;
        }
        Ok(entries)
    }
}

/// The entries of the file that is known as `place`.
fn entries_of(text: &str, place: &str) -> Vec<Entry> {
    let mut of_the_file = false;
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1).peekable();
            let waiting = words.peek() == Some(&"->");
            let words: Vec<&str> = words.skip(usize::from(waiting)).collect();
            if !waiting {
                of_the_file = words.get(4) == Some(&place);
            }
            of_the_file.then(|| entry(&words, waiting)).flatten()
        })
        .collect()
}

/// `KIND FLAGS TYPE PID PLACE START END`
fn entry(words: &[&str], waiting: bool) -> Option<Entry> {
    let &[kind, _, lock_type, pid, _, start, end] = words else {
        return None;
    };
    let pid = pid.parse().ok()?;
    Some(Entry {
        waiting,
        kind: match kind {
            "POSIX" => ItemKind::Posix,
            "OFDLCK" => ItemKind::Ofd,
            "FLOCK" => ItemKind::Flock,
            "LEASE" => ItemKind::Lease,
            _ => return None,
        },
        lock_type: match lock_type {
            "READ" => LockType::Read,
            "WRITE" => LockType::Write,
            "UNLCK" => LockType::Unlock,
            _ => return None,
        },
        start: start.parse().ok()?,
        end: match end {
            "EOF" => i64::MAX,
            end => end.parse().ok()?,
        },
        pid: (pid >= 0).then_some(pid),
    })
}

/// The locks of open file descriptions that one descriptor of a process keeps, from
/// `/proc/PID/fdinfo/FD`: their first and last bytes. None where the place does not tell.
pub fn ofd_locks_of(pid: i32, fd: i32) -> Vec<(i64, i64)> {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")) else {
        return Vec::new();
    };
    text.lines()
        .filter_map(|line| line.strip_prefix("lock:"))
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().skip(1).collect();
            entry(&words, false)
        })
        .filter(|entry| entry.kind == ItemKind::Ofd)
        .map(|entry| (entry.start, entry.end))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_beneath_the_lock_that_blocks_them() {
        let text = "\
1: LEASE  BREAKING  UNLCK 6527 fe:00:11 0 EOF
1: -> LEASE  BREAKER   WRITE 6571 <none>:0 0 EOF
2: POSIX  ADVISORY  WRITE 6527 fe:00:12 0 9
2: -> POSIX  ADVISORY  READ 6568 fe:00:12 5 EOF
2:  -> OFDLCK ADVISORY  WRITE -1 fe:00:12 0 EOF
";
        let brief = |entry: &Entry| (entry.waiting, entry.kind, entry.pid);
        let leases = entries_of(text, "fe:00:11");
        assert_eq!(
            leases.iter().map(brief).collect::<Vec<_>>(),
            [
                (false, ItemKind::Lease, Some(6527)),
                (true, ItemKind::Lease, Some(6571))
            ]
        );
        let records = entries_of(text, "fe:00:12");
        assert_eq!(
            records.iter().map(brief).collect::<Vec<_>>(),
            [
                (false, ItemKind::Posix, Some(6527)),
                (true, ItemKind::Posix, Some(6568)),
                (true, ItemKind::Ofd, None)
            ]
        );
        assert_eq!((records[0].start, records[0].end), (0, 9));
        assert_eq!((records[1].start, records[1].end), (5, i64::MAX));
        assert!(entries_of(text, "fe:00:1").is_empty());
    }
}
