//! A listing of everything, file by file, and as the text of /proc/locks.

use std::fmt::Write;

use super::LockManager;
use super::file::FileId;
use crate::owner::PidView;
use crate::proc_locks;
use crate::table::{Counters, Snapshot, Survey};

/// One file of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileListing {
    /// Which file.
    pub file: FileId,
    /// Its locks and waiters.
    pub snapshot: Snapshot,
    /// How often things have happened on it.
    pub counters: Counters,
}

impl LockManager {
    /// Every file on which anything is locked, in order of their ids. They are
    /// visited one after the other, as /proc/locks does, and none is held up for
    /// longer than a lock call: see [`FileHandle::survey`].
    ///
    /// [`FileHandle::survey`]: crate::FileHandle::survey
    pub fn snapshot(&self) -> Vec<FileListing> {
        let mut survey = Survey::new();
        let mut listings: Vec<FileListing> = self
            .handles()
            .iter()
            .map(|handle| {
                let (snapshot, counters) = handle.survey_and_counters(&mut survey);
                FileListing {
                    file: handle.id(),
                    snapshot,
                    counters,
                }
            })
            .filter(|listing| {
                let Snapshot { granted, waiting } = &listing.snapshot;
                !granted.is_empty() || !waiting.is_empty()
            })
            .collect();
        listings.sort_by_key(|listing| listing.file);
        listings
    }

    /// Everything in the format of /proc/locks (proc(5)), as `view` sees it: for
    /// tools that read that.
    pub fn proc_locks(&self, view: &dyn PidView) -> String {
        let mut text = String::new();
        let mut ordinal = 0;
        for listing in self.snapshot() {
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "{}",
                proc_locks::Listing {
                    file: listing.file,
                    snapshot: &listing.snapshot,
                    view,
                    after: ordinal,
                }
            );
            ordinal += listing.snapshot.granted.len();
        }
        text
    }
}
