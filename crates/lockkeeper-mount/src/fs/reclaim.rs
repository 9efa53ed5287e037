//! Keeping within the limit of open files.
//!
//! Each inode the kernel remembers costs a descriptor, and the kernel remembers as long as it has memory:
//! one `ls -l` of a large folder can use up any limit. So when the table of inodes grows towards it, the
//! kernel is asked to forget those it has known longest and does not use. Until room is made, lookups wait
//! (on a worker) and listings name entries without introducing them.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use zerocopy::IntoBytes;

use super::inode::Inode;
use super::{PassthroughFs, file_id, stat_fd};
use crate::abi;

/// Nodes named in one notification.
const BATCH: usize = 256;
/// How long a lookup waits for room before it goes ahead and takes its chance.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same on a kernel that drops names one by one, for which it must lock the folder that the lookup
/// holds: to wait for long would be to wait for oneself.
const PATIENCE_OLD_KERNEL: Duration = Duration::from_millis(5);

/// Descriptors there are, and whether somebody is freeing some.
#[derive(Debug)]
pub struct Room {
    limit: usize,
    making: AtomicBool,
    /// The kernel knows NOTIFY_PRUNE (7.45).
    prunes: AtomicBool,
}

impl Room {
    /// As much as this process may have open.
    pub fn of_this_process() -> Room {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Room {
            limit: usize::try_from(limit).unwrap_or(usize::MAX).max(64),
            making: AtomicBool::new(false),
            prunes: AtomicBool::new(true),
        }
    }
}

impl PassthroughFs {
    fn descriptors(&self) -> usize {
        self.inodes.len() + self.handles.len()
    }

    /// Whether only the reserve is left, which is for creating and opening.
    pub(super) fn is_crowded(&self) -> bool {
        self.descriptors() > self.room.limit / 8 * 7
    }

    /// Whether it is time to [make room](Self::make_room) and nobody does so yet.
    pub fn wants_room(&self) -> bool {
        self.descriptors() > self.room.limit / 4 * 3
            && !self.room.making.swap(true, Ordering::AcqRel)
    }

    /// Whether the kernel might forget some: it keeps those of open files.
    fn has_unused(&self) -> bool {
        self.inodes.len().saturating_sub(self.handles.len()) > self.room.limit / 16
    }

    /// Asks the kernel to forget the inodes it has known longest. On a worker only.
    pub fn make_room(&self) {
        let target = self.room.limit / 2;
        for batch in self.inodes.by_age().chunks(BATCH) {
            if self.descriptors() <= target {
                break;
            }
            self.ask_to_forget(batch);
        }
        // What the kernel has forgotten reaches the table through the reader: do not ask again at once.
        self.wait_until(
            || self.descriptors() <= self.room.limit / 4 * 3,
            Duration::from_millis(50),
        );
        self.room.making.store(false, Ordering::Release);
    }

    /// Waits, within reason, until there is room for one more inode or none is to be made. On a worker only.
    pub(super) fn wait_for_room(&self) {
        let prunes = self.room.prunes.load(Ordering::Relaxed);
        let patience = if prunes {
            PATIENCE
        } else {
            PATIENCE_OLD_KERNEL
        };
        self.wait_until(|| !self.is_crowded() || !self.has_unused(), patience);
    }

    fn wait_until(&self, done: impl Fn() -> bool, patience: Duration) {
        let deadline = Instant::now() + patience;
        while !done() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn ask_to_forget(&self, nodes: &[u64]) {
        if self.room.prunes.load(Ordering::Relaxed) {
            let head = abi::NotifyPruneOut {
                count: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
                ..Default::default()
            };
            match self
                .device
                .notify(abi::NOTIFY_PRUNE, &[head.as_bytes(), nodes.as_bytes()])
            {
                Err(Errno::INVAL) => self.room.prunes.store(false, Ordering::Relaxed),
                _ => return,
            }
        }
        for &node in nodes {
            if let Ok(inode) = self.inodes.get(node) {
                // Busy or renamed meanwhile: another one will do.
                let _ = self.drop_name(&inode);
            }
        }
    }

    /// On a kernel that knows no better: invalidates the name by which an inode is known now. Not for
    /// folders, beneath which something may be mounted.
    fn drop_name(&self, inode: &Inode) -> Result<(), Errno> {
        if rustix::fs::FileType::from_raw_mode(stat_fd(inode.fd())?.stx_mode.into()).is_dir() {
            return Ok(());
        }
        let path = rustix::fs::readlinkat(&self.proc_fd, inode.proc_name(), Vec::new())?;
        let path = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::NOENT);
        };
        let parent = rustix::fs::open(parent, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let parent = self
            .inodes
            .node_of(file_id(&stat_fd(&parent)?))
            .ok_or(Errno::NOENT)?;
        let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
        let head = abi::NotifyInvalEntryOut {
            parent,
            namelen: u32::try_from(name.count_bytes()).map_err(|_| Errno::NAMETOOLONG)?,
            flags: 0,
        };
        self.device.notify(
            abi::NOTIFY_INVAL_ENTRY,
            &[head.as_bytes(), name.as_bytes_with_nul()],
        )
    }
}
