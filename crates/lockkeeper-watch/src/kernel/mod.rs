//! The locks of a folder that no lockkeeper mount serves, as the kernel shows them.
//!
//! /proc/locks has every lock and what waits beneath it, by device and inode, without times (proc(5)). The
//! rest is put together from /proc/PID: a file's path from who has it open, whose an OFD lock is from the
//! fdinfo of open files, and which thread waits for one from the system call it is in. All of that changes
//! while it is read, so any part may be missing, and nothing here believes that two parts belong together
//! without a sign of it.
//!
//! # Devices
//! /proc/locks names a file system by the kernel's own device number. stat(2) may show another (btrfs has
//! one for each subvolume, overlayfs one for each layer), but mountinfo has the kernel's. So a path is
//! opened and its fdinfo read, which has the mount and the kernel's own inode number.

mod build;
mod open_files;
mod proc_locks;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::report::{FileLocks, Origin, Report, VERSION};
use crate::{deadlock, process};
use open_files::{Mounts, OpenFile};
use proc_locks::Record;

/// A file as the kernel knows it: device, major and minor, and inode.
pub(crate) type Key = (u32, u32, u64);

/// So many folder entries are looked at for a file that nobody whose files we may see has open.
const WALK: usize = 50_000;
/// Between two looks at what seems to be a deadlock.
const PAUSE: Duration = Duration::from_millis(20);

/// A folder or file whose locks are asked for.
#[derive(Clone, Debug)]
pub struct Place {
    path: PathBuf,
    /// The file, if it is one.
    file: Option<Key>,
    /// The devices of the folder and of what is mounted below.
    devices: HashSet<(u32, u32)>,
}

impl Place {
    /// This folder or file.
    ///
    /// # Errors
    /// It is not there, may not be looked at, or is neither; or there is no /proc.
    pub fn new(path: &Path) -> io::Result<Place> {
        let path = path.canonicalize()?;
        let found = fs::metadata(&path)?;
        let mounts = Mounts::own()?;
        let own = open_files::identify(&path, &mounts)?;
        let file = (!found.is_dir()).then_some(own);
        let mut devices = HashSet::from([(own.0, own.1)]);
        if file.is_none() {
            devices.extend(mounts.below(&path));
        }
        Ok(Place {
            path,
            file,
            devices,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is locked there now.
    ///
    /// # Errors
    /// There is no /proc/locks.
    pub fn report(&self) -> io::Result<Report> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        let records = self.records()?;
        let (files, unplaced) = self.files(&records)?;
        let mut report = Report {
            version: VERSION,
            lockkeeper: env!("CARGO_PKG_VERSION").into(),
            source: self.path.to_string_lossy().into_owned(),
            mountpoint: self.path.to_string_lossy().into_owned(),
            origin: Origin::Kernel,
            time: time.map_or(0.0, |time| time.as_secs_f64()),
            files,
            unplaced,
            ..Report::default()
        };
        report.counts.waiting = report.files.iter().map(|file| file.waiters.len()).sum();
        report.deadlocks = deadlock::find(&report.files, process::threads);
        if !report.deadlocks.is_empty() {
            self.confirm(&mut report, &records)?;
        }
        Ok(report)
    }

    /// A real deadlock is still there a little later.
    fn confirm(&self, report: &mut Report, before: &[Record]) -> io::Result<()> {
        std::thread::sleep(PAUSE);
        let now = self.records()?;
        let (before, now) = (texts_by_file(before), texts_by_file(&now));
        let is_as_before: Vec<bool> = report
            .files
            .iter()
            .map(|file| {
                let id = (file.source_device, file.source_inode);
                before.get(&id) == now.get(&id)
            })
            .collect();
        report.deadlocks.retain(|deadlock| {
            let mut steps = deadlock.steps.iter();
            steps.all(|step| is_as_before[step.file])
        });
        Ok(())
    }

    fn records(&self) -> io::Result<Vec<Record>> {
        let mut records = proc_locks::read()?;
        records.retain(|record| match self.file {
            Some(key) => record.key() == Some(key),
            None => {
                let device = record.key().map(|(major, minor, _)| (major, minor));
                device.is_some_and(|device| self.devices.contains(&device))
            }
        });
        Ok(records)
    }

    /// The files of the place, and how many there are that may be elsewhere.
    fn files(&self, records: &[Record]) -> io::Result<(Vec<FileLocks>, usize)> {
        let keys: HashSet<Key> = records.iter().filter_map(Record::key).collect();
        if keys.is_empty() {
            return Ok((Vec::new(), 0));
        }
        let open = open_files::of(&keys)?;
        let mut names: HashMap<Key, (PathBuf, bool)> = HashMap::new();
        for file in &open {
            let Some(path) = &file.path else { continue };
            let is_ours = path.starts_with(&self.path);
            let name = names
                .entry(file.key)
                .or_insert_with(|| (path.clone(), file.is_deleted));
            // Of the names of one file one that is asked about.
            if is_ours && !name.0.starts_with(&self.path) {
                *name = (path.clone(), file.is_deleted);
            }
        }
        if let Some(key) = self.file {
            names.insert(key, (self.path.clone(), false));
        }
        let nameless: HashSet<Key> = keys
            .iter()
            .copied()
            .filter(|key| !names.contains_key(key))
            .collect();
        if !nameless.is_empty() {
            self.walk(&nameless, &mut names);
        }
        let unplaced = keys.iter().filter(|key| !names.contains_key(*key)).count();
        names.retain(|_, (path, _)| path.starts_with(&self.path));
        Ok((build::files(records, &open, &names), unplaced))
    }

    /// Looks for files by their inode numbers below the folder.
    fn walk(&self, wanted: &HashSet<Key>, names: &mut HashMap<Key, (PathBuf, bool)>) {
        let inodes: HashSet<u64> = wanted.iter().map(|key| key.2).collect();
        let mut folders = vec![self.path.clone()];
        let mut left = WALK;
        while let Some(folder) = folders.pop() {
            let Ok(entries) = fs::read_dir(&folder) else {
                continue;
            };
            for entry in entries.flatten() {
                left -= 1;
                if left == 0 {
                    return;
                }
                if entry.file_type().is_ok_and(|found| found.is_dir()) {
                    folders.push(entry.path());
                }
                // Only a number so far; another file system below may have the same.
                if inodes.contains(&entry.ino())
                    && let Ok(mounts) = Mounts::own()
                    && let Ok(key) = open_files::identify(&entry.path(), &mounts)
                    && wanted.contains(&key)
                {
                    names.insert(key, (entry.path(), false));
                }
            }
        }
    }
}

/// What the records of each file say, in order, by device and inode as in a report.
fn texts_by_file(records: &[Record]) -> HashMap<(u64, u64), Vec<&str>> {
    let mut texts: HashMap<(u64, u64), Vec<&str>> = HashMap::new();
    for record in records {
        if let Some(key) = record.key() {
            let lines = std::iter::once(&record.held).chain(&record.waiters);
            let of_file = texts.entry(build::id_of(key)).or_default();
            of_file.extend(lines.map(|line| line.text.as_str()));
        }
    }
    for of_file in texts.values_mut() {
        of_file.sort_unstable();
    }
    texts
}

/// The leases on the files of a device that are being broken: the inode, and the process that has the lease.
///
/// # Errors
/// There is no /proc/locks.
pub fn breaking_leases(major: u32, minor: u32) -> io::Result<Vec<(u64, u32)>> {
    let text = fs::read("/proc/locks")?;
    let text = String::from_utf8_lossy(&text);
    // Of very many lines few are of leases.
    let lines = text.lines().filter(|line| line.contains("BREAKING"));
    let breaking = lines
        .filter_map(proc_locks::parse_line)
        .filter(|line| line.is_breaking && line.depth.is_none())
        .filter_map(|line| match line.key? {
            (of_major, of_minor, inode) if (of_major, of_minor) == (major, minor) => {
                Some((inode, line.pid))
            }
            _ => None,
        });
    Ok(breaking.collect())
}

/// The leases on the files of a device, which is a FUSE mount: the kernel keeps those to itself. They are
/// added to the report on the mount.
///
/// # Errors
/// There is no /proc/locks.
pub fn add_leases(report: &mut Report, major: u32, minor: u32) -> io::Result<()> {
    let mut records = proc_locks::read()?;
    records.retain(|record| {
        record.held.kind.is_lease()
            && record
                .key()
                .is_some_and(|key| (key.0, key.1) == (major, minor))
    });
    if records.is_empty() {
        return Ok(());
    }
    let keys: HashSet<Key> = records.iter().filter_map(Record::key).collect();
    let names: HashMap<Key, (PathBuf, bool)> = open_files::of(&keys)?
        .into_iter()
        .filter_map(
            |OpenFile {
                 key,
                 path,
                 is_deleted,
                 ..
             }| Some((key, (path?, is_deleted))),
        )
        .collect();
    let nameless = keys.iter().filter(|key| !names.contains_key(*key));
    let unknown: Vec<(Key, (PathBuf, bool))> = nameless
        .map(|&key| (key, (PathBuf::new(), false)))
        .collect();
    let names = names.into_iter().chain(unknown).collect();
    let places: HashMap<u64, usize> = report
        .files
        .iter()
        .enumerate()
        .map(|(place, file)| (file.inode, place))
        .collect();
    for leased in build::files(&records, &[], &names) {
        match places.get(&leased.inode) {
            Some(&place) => build::append(&mut report.files[place], leased),
            None => report.files.push(leased),
        }
    }
    Ok(())
}

/// A process that has a file open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opener {
    /// The process.
    pub pid: u32,
    /// The same of all who share an open file. Those of two open files may look alike.
    pub sign: String,
}

/// Who has this file of a report open, of those that can be seen. It is found by its inode number, so that it may be
/// unlinked and have any name.
pub fn openers(report: &Report, file: &FileLocks) -> Vec<Opener> {
    let Some(key) = Identity::of(report).map(|identity| identity.key(file)) else {
        return Vec::new();
    };
    let open = open_files::of(&HashSet::from([key])).unwrap_or_default();
    open.into_iter()
        .map(|file| Opener {
            pid: file.pid,
            sign: file.sign(),
        })
        .collect()
}

/// The files of a report, by their places, that a process has open.
pub fn opened_by(report: &Report, pid: u32) -> Vec<usize> {
    let (Some(identity), Ok(mut mounts)) = (Identity::of(report), Mounts::own()) else {
        return Vec::new();
    };
    let keys: Vec<Key> = report.files.iter().map(|file| identity.key(file)).collect();
    let wanted = keys.iter().copied().collect();
    let open = open_files::of_process(pid, &wanted, &mut mounts);
    let open: HashSet<Key> = open.into_iter().map(|file| file.key).collect();
    let places = 0..keys.len();
    places
        .filter(|&place| open.contains(&keys[place]))
        .collect()
}

/// How the kernel knows the files of a report.
enum Identity {
    /// As the report says.
    Kernel,
    /// By the device of the mount.
    Mount(u32, u32),
}

impl Identity {
    /// `None` if the mount cannot be seen from here.
    fn of(report: &Report) -> Option<Identity> {
        if report.origin == Origin::Kernel {
            return Some(Identity::Kernel);
        }
        let mountpoint = Path::new(&report.mountpoint);
        let (major, minor, _) = open_files::identify(mountpoint, &Mounts::own().ok()?).ok()?;
        Some(Identity::Mount(major, minor))
    }

    fn key(&self, file: &FileLocks) -> Key {
        match *self {
            Identity::Kernel => {
                let device = file.source_device;
                let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
                (major, minor, file.source_inode)
            }
            Identity::Mount(major, minor) => (major, minor, file.inode),
        }
    }
}

/// A path as the kernel wrote it into a list of mounts, where white space and backslashes are octal:
/// proc_pid_mountinfo(5).
pub fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            digits.iter().try_fold(0_u8, |value, &digit| match digit {
                b'0'..=b'7' => value.checked_mul(8)?.checked_add(digit - b'0'),
                _ => None,
            })
        };
        match (first, tail.get(..3).and_then(octal)) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}
