//! What the page is about: asked of whoever serves the mount.

use lockkeeper_watch::report::{Report, Totals};
use lockkeeper_watch::timeline::Span;
use serde::{Serialize, Serializer};

/// A file of the source, by device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The device number.
    pub device: u64,
    /// The inode number.
    pub inode: u64,
}

/// What the page shows. Called from threads of the page's own.
pub trait Source: Send + Sync + 'static {
    /// Everything at this moment. Called at most twice a second, and only while somebody looks.
    fn report(&self) -> Report;

    /// What has been counted so far. Called once a second, always: it must cost next to nothing.
    fn totals(&self) -> TotalsNow;

    /// Begins to record the grants and waits of a file, until what it returns is dropped.
    fn watch(&self, file: FileId) -> Box<dyn Watched>;
}

/// What has been counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TotalsNow {
    /// Since the mount began.
    pub totals: Totals,
    /// How many requests wait at this moment.
    pub waiting: usize,
}

/// A file whose grants and waits are recorded while this lives.
pub trait Watched: Send + 'static {
    /// What was recorded, the oldest first, and the present time in seconds since 1970.
    fn spans(&self) -> (f64, Vec<Span>);
}

impl FileId {
    /// As it is written in addresses: `DEVICE-INODE`.
    pub(crate) fn parse(text: &str) -> Option<FileId> {
        let (device, inode) = text.split_once('-')?;
        Some(FileId {
            device: device.parse().ok()?,
            inode: inode.parse().ok()?,
        })
    }
}

impl Serialize for FileId {
    // Numbers of 64 bits do not survive JavaScript.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}-{}", self.device, self.inode))
    }
}
