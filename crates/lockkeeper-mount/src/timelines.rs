//! Which files are watched: their grants, waits and releases are recorded.
//!
//! While nothing is watched, the lock path pays one relaxed load for it. That is enough to miss nothing: who
//! begins to watch says so first and takes the file's snapshot then. A lock call changes the file first, and
//! looks then whether anybody watches. If it changed the file before the snapshot, the snapshot shows it. If it
//! did so after, it has taken the file's mutex after the snapshot released it, and so sees what was said before.
//! What is both in the snapshot and told, the recorder knows already.
//!
//! The mutex here guards the recorders. It is taken around the file's own while the snapshot is taken, never
//! within it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use hashbrown::HashMap;
use lockkeeper_watch::timeline::{Recorder, Span};

use crate::fs::inode::lock;
use crate::locks::FileId;

/// The files that are watched.
#[derive(Debug, Default)]
pub struct Timelines {
    /// How many watch.
    watching: AtomicUsize,
    files: Mutex<HashMap<FileId, Watched>>,
}

#[derive(Debug)]
struct Watched {
    watchers: usize,
    recorder: Recorder,
}

/// A file that is watched, for as long as this lives.
#[derive(Debug)]
pub struct Watching {
    timelines: Arc<Timelines>,
    file: FileId,
}

impl Timelines {
    /// Whether anything is watched: see above for why that is all the order that is needed.
    pub fn are_watched(&self) -> bool {
        self.watching.load(Ordering::Relaxed) > 0
    }

    /// Tells what has just been done to `file`. Called with `are_watched`.
    #[cold]
    pub fn tell(&self, file: FileId, what: impl FnOnce(&mut Recorder)) {
        if let Some(watched) = lock(&self.files).get_mut(&file) {
            what(&mut watched.recorder);
        }
    }

    /// Watches a file; `begin` takes its snapshot, and tells the recorder what is there.
    pub fn watch(self: &Arc<Self>, file: FileId, begin: impl FnOnce(&mut Recorder)) -> Watching {
        self.watching.fetch_add(1, Ordering::Relaxed);
        lock(&self.files)
            .entry(file)
            .or_insert_with(|| {
                let mut recorder = Recorder::default();
                begin(&mut recorder);
                Watched {
                    watchers: 0,
                    recorder,
                }
            })
            .watchers += 1;
        Watching {
            timelines: self.clone(),
            file,
        }
    }
}

impl Watching {
    /// The present time in seconds since 1970, and what was recorded until then.
    pub fn spans(&self) -> (f64, Vec<Span>) {
        let files = lock(&self.timelines.files);
        let spans = files
            .get(&self.file)
            .map_or(Vec::new(), |watched| watched.recorder.spans());
        (unix_time(), spans)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut files = lock(&self.timelines.files);
        if let Some(watched) = files.get_mut(&self.file) {
            watched.watchers -= 1;
            if watched.watchers == 0 {
                files.remove(&self.file);
            }
        }
        self.timelines.watching.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Seconds since 1970.
pub fn unix_time() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}
