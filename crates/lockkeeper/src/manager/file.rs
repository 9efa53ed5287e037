//! One file of the manager: its table, behind its mutex.

use std::fmt;

use super::wait::Ticket;
use crate::mutex::TableMutex;
use crate::sync::{AtomicU32, AtomicUsize};
use crate::table::Table;

/// Names a file: device and inode, or any two numbers that its server chooses.
/// Names of one file (hard links, mounts, exports) must lead to one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The device, as `st_dev` of stat(2).
    pub device: u64,
    /// The inode, as `st_ino` of stat(2).
    pub inode: u64,
}

impl FileId {
    /// The file with this inode on this device.
    pub const fn new(device: u64, inode: u64) -> FileId {
        FileId { device, inode }
    }
}

impl fmt::Display for FileId {
    /// As /proc/locks prints it: `08:01:131`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.device_numbers();
        write!(f, "{major:02x}:{minor:02x}:{}", self.inode)
    }
}

impl FileId {
    /// Major and minor number of the device, as makedev(3) packs them.
    pub fn device_numbers(self) -> (u64, u64) {
        let device = self.device;
        let major = (device >> 32 & 0xffff_f000) | (device >> 8 & 0xfff);
        let minor = (device >> 12 & 0xffff_ff00) | (device & 0xff);
        (major, minor)
    }
}

/// What a manager keeps of a file.
///
/// # Layout
/// The mutex and the table behind it are written by every lock and unlock; what
/// stands before and after them is not. With the allocator's and the reference
/// counts' bytes between two files, their tables never share a cache line (64
/// bytes), so that threads on different files do not slow each other, and no
/// file pays for an alignment that its allocation would round up.
#[repr(C)]
pub(crate) struct File {
    pub(crate) id: FileId,
    /// Open handles; counted up under the map's shard alone.
    pub(crate) handles: AtomicUsize,
    /// 1 while the timer has a deadline for its leases.
    pub(crate) has_lease_timer: AtomicU32,
    pub(crate) table: TableMutex<Table<Ticket>>,
    _apart: [u64; 2],
}

impl File {
    pub(crate) fn new(id: FileId) -> File {
        File {
            id,
            handles: AtomicUsize::new(0),
            has_lease_timer: AtomicU32::new(0),
            table: TableMutex::new(Table::new()),
            _apart: [0; 2],
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Arc;

    #[test]
    fn a_device_number_is_unpacked_as_makedev_packs_it() {
        assert_eq!(FileId::new(0x801, 131).to_string(), "08:01:131");
        assert_eq!(FileId::new(0xfe00, 7).to_string(), "fe:00:7");
        let (major, minor) = (0x1234_5678, 0x9abc_def0_u64);
        let packed = (major & 0xfff) << 8
            | (major & 0xffff_f000) << 32
            | minor & 0xff
            | (minor & 0xffff_ff00) << 12;
        assert_eq!(FileId::new(packed, 0).device_numbers(), (major, minor));
    }

    #[test]
    fn the_tables_of_two_files_share_no_cache_line() {
        let files: Vec<Arc<File>> = (0..200)
            .map(|inode| Arc::new(File::new(FileId::new(0, inode))))
            .collect();
        let mut lines: Vec<(usize, usize)> = files
            .iter()
            .map(|file| {
                let start = &raw const file.table as usize;
                (start / 64, (start + size_of_val(&file.table) - 1) / 64)
            })
            .collect();
        lines.sort_unstable();
        for pair in lines.windows(2) {
            assert!(
                pair[0].1 < pair[1].0,
                "two tables in line {:#x}",
                pair[1].0 * 64
            );
        }
    }
}
