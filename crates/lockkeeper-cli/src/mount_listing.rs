//! The listing for lock scripts that run on a mount of lockkeeper's: its server tells.
//!
//! Leases are the one thing it does not know: the kernel keeps those of a mount to itself, and lists them in
//! /proc/locks under the mount's own device number.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lockkeeper_mount::report::{FileLocks, Kind, Lock, Mode};
use lockkeeper_mount::status::{self, AskError};
use lockkeeper_script::directory::{Directory, Entry, FileIdentity, Listing, Options};
use lockkeeper_script::script::{ItemKind, LockType};
use rustix::fs::{AtFlags, StatxFlags};

/// The executor for a folder, which lists locks as the place of the folder wants it.
///
/// # Errors
/// The folder cannot be used, or its server does not tell.
pub fn directory_on(directory: &Path, options: Options) -> anyhow::Result<Directory> {
    let found = match fs::metadata(directory) {
        Ok(found) => status::mounts()
            .into_iter()
            .find(|mount| mount.dev == found.dev()),
        // The executor says it better.
        Err(_) => None,
    };
    let Some(mount) = found else {
        return Ok(Directory::new(directory, options)?);
    };
    let mut last = None;
    for socket in status::sockets_of(&mount) {
        match status::ask(&socket) {
            Ok(_) => {
                let listing = MountListing {
                    directory: directory.into(),
                    socket,
                    device: place(mount.dev),
                };
                return Ok(Directory::with_listing(
                    directory,
                    options,
                    Box::new(listing),
                )?);
            }
            Err(AskError::NoSocket(_)) if last.is_some() => {}
            Err(error) => last = Some(error),
        }
    }
    let reason = last.map_or_else(
        || "it has no status socket where one is looked for".to_owned(),
        |error| error.to_string(),
    );
    anyhow::bail!(
        "{} is on the lockkeeper mount {}, whose locks cannot be listed: {reason}",
        directory.display(),
        mount.path.display()
    )
}

/// Asks the server of a mount.
#[derive(Debug)]
struct MountListing {
    directory: PathBuf,
    socket: PathBuf,
    /// The mount's device number, as /proc/locks prints it.
    device: String,
}

impl MountListing {
    /// Waits until the server has seen every close so far: the kernel tells it of the
    /// last one of a description without waiting for it, but in order with what is
    /// asked after that.
    fn catch_up(&self) -> io::Result<()> {
        let (flags, wanted) = (AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
        rustix::fs::statx(rustix::fs::CWD, &self.directory, flags, wanted)?;
        Ok(())
    }

    fn locks_of(&self, file: &FileIdentity) -> io::Result<Option<FileLocks>> {
        let report = status::ask(&self.socket).map_err(io::Error::other)?;
        let mut files = report.files.into_iter();
        Ok(files.find(|found| found.inode == file.inode))
    }
}

impl Listing for MountListing {
    fn entries(&mut self, file: &FileIdentity) -> io::Result<Vec<Entry>> {
        self.catch_up()?;
        let mut entries = leases_of(
            &fs::read_to_string("/proc/locks")?,
            &format!("{}:{}", self.device, file.inode),
        );
        if let Some(found) = self.locks_of(file)? {
            let held = found.locks.iter().map(|held| entry(&held.lock, false));
            let wanted = found.waiters.iter().map(|one| entry(&one.lock, true));
            entries.extend(held.chain(wanted).flatten());
        }
        Ok(entries)
    }

    fn shows_waiter(&mut self, file: &FileIdentity, pid: i32) -> bool {
        let found = self.locks_of(file).ok().flatten();
        found.is_some_and(|found| {
            let mut waiters = found.waiters.iter();
            waiters.any(|waiting| i64::from(waiting.lock.pid) == i64::from(pid))
        })
    }

    fn mend(&mut self, file: &FileIdentity, asker: i32, found: &mut Entry) {
        let Ok(entries) = self.entries(file) else {
            return;
        };
        let mut alike: Vec<Entry> = entries
            .into_iter()
            .filter(|entry| {
                matches!(entry.kind, ItemKind::Posix | ItemKind::Ofd)
                    && (entry.waiting, entry.lock_type) == (false, found.lock_type)
                    && (entry.start, entry.end) == (found.start, found.end)
                    // The asker's own are not in the way of what a process asks.
                    && !(found.pid.is_some() && entry.kind == ItemKind::Posix && entry.pid == Some(asker))
            })
            .collect();
        if alike.iter().any(|entry| entry.pid == found.pid) {
            alike.retain(|entry| entry.pid == found.pid);
        }
        if let Some(entry) = alike.into_iter().next() {
            *found = entry;
        }
    }
}

fn entry(lock: &Lock, waiting: bool) -> Option<Entry> {
    Some(Entry {
        waiting,
        kind: match lock.kind {
            Kind::Posix => ItemKind::Posix,
            Kind::Ofd => ItemKind::Ofd,
            Kind::Flock => ItemKind::Flock,
            // Reads and writes that wait are no locks.
            Kind::Access | Kind::Lease | Kind::Delegation | Kind::Other => return None,
        },
        lock_type: match lock.mode {
            Mode::Read => LockType::Read,
            Mode::Write => LockType::Write,
        },
        start: i64::try_from(lock.start).ok()?,
        end: lock
            .end
            .map_or(Some(i64::MAX), |end| i64::try_from(end).ok())?,
        pid: i32::try_from(lock.pid).ok().filter(|&pid| pid > 0),
    })
}

/// A device number as the kernel prints it in listings.
fn place(device: u64) -> String {
    format!(
        "{:02x}:{:02x}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    )
}

/// The leases on the file that is known as `place`, and the openers that wait for one to be broken, which
/// have no file of their own in the listing but follow under the same ordinal number.
fn leases_of(text: &str, place: &str) -> Vec<Entry> {
    let mut ordinal = "";
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let number = words.next()?;
            let mut words = words.peekable();
            let waiting = words.next_if_eq(&"->").is_some();
            let words: Vec<&str> = words.collect();
            let &["LEASE", _, mode, pid, file, ..] = &words[..] else {
                return None;
            };
            if !waiting && file == place {
                ordinal = number;
            }
            (ordinal == number).then_some(())?;
            Some(Entry {
                waiting,
                kind: ItemKind::Lease,
                lock_type: match mode {
                    "READ" => LockType::Read,
                    "WRITE" => LockType::Write,
                    _ => LockType::Unlock,
                },
                start: 0,
                end: i64::MAX,
                pid: pid.parse().ok(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_and_their_breakers_are_found() {
        let text = "\
1: POSIX  ADVISORY  WRITE 7 00:39:11 0 9
2: LEASE  BREAKING  UNLCK 6527 00:39:11 0 EOF
2: -> LEASE  BREAKER   WRITE 6571 <none>:0 0 EOF
3: LEASE  ACTIVE    READ 6528 00:39:12 0 EOF
3: -> LEASE  BREAKER   WRITE 6572 <none>:0 0 EOF
";
        let found: Vec<_> = leases_of(text, "00:39:11")
            .into_iter()
            .map(|entry| (entry.waiting, entry.lock_type, entry.pid))
            .collect();
        assert_eq!(
            found,
            [
                (false, LockType::Unlock, Some(6527)),
                (true, LockType::Write, Some(6571))
            ]
        );
    }
}
