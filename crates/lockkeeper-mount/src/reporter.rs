//! The report on a mount, for whoever watches it.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use lockkeeper_watch::ask::Question;
use lockkeeper_watch::report::{FileLocks, Origin, Report, VERSION};
use lockkeeper_watch::{deadlock, process};

use crate::server::Observer;

/// So many files have their paths in a brief report: to find them takes two system calls each, and who asks twice
/// a second is not to wait for those of 100,000.
const NAMED: usize = 10_000;

/// Tells all that is known of a mount at the moment.
#[derive(Clone, Debug)]
pub struct Reporter {
    observer: Observer,
    source: PathBuf,
    mountpoint: PathBuf,
    started: f64,
}

impl Reporter {
    /// For the mount of `source` that `observer` sees at `mountpoint`, which begins now.
    pub(crate) fn new(observer: Observer, source: PathBuf, mountpoint: PathBuf) -> Reporter {
        Reporter {
            observer,
            source,
            mountpoint,
            started: unix_time(),
        }
    }

    /// Each file as it is at one moment, one after the other, with the paths that the question is about.
    pub fn report(&self, question: Question) -> Report {
        let time = unix_time();
        let mut files = self.observer.listing();
        let most = match question {
            Question::Report => usize::MAX,
            Question::Brief => NAMED,
            Question::Metrics => 0,
        };
        let unnamed = files.len().saturating_sub(most);
        self.observer
            .name(busiest(&mut files, most), &self.mountpoint);
        let deadlocks = deadlock::find(&files, process::threads);
        Report {
            version: VERSION,
            lockkeeper: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            source: self.source.to_string_lossy().into_owned(),
            mountpoint: self.mountpoint.to_string_lossy().into_owned(),
            data: self
                .observer
                .data_path()
                .map(|path| format!("{path:?}").to_lowercase()),
            mandatory: self.observer.is_mandatory(),
            counts: self.observer.counts(),
            files,
            origin: Origin::Mount,
            unplaced: 0,
            unnamed,
            time,
            started: self.started,
            totals: self.observer.totals(),
            wait_times: self.observer.wait_times(),
            deadlocks,
        }
    }
}

/// At most so many files: those on which most wait, then those on which most had to.
fn busiest(files: &mut [FileLocks], most: usize) -> Vec<&mut FileLocks> {
    let mut chosen: Vec<&mut FileLocks> = files.iter_mut().collect();
    if chosen.len() > most {
        if most > 0 {
            chosen.select_nth_unstable_by_key(most - 1, |file| {
                Reverse((file.waiters.len(), file.counters.contended))
            });
        }
        chosen.truncate(most);
    }
    chosen
}

/// Seconds since 1970.
fn unix_time() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use lockkeeper_watch::report::FileCounters;

    use super::*;

    fn file(inode: u64, contended: u64) -> FileLocks {
        FileLocks {
            counters: FileCounters {
                contended,
                ..FileCounters::default()
            },
            ..FileLocks::new(1, inode)
        }
    }

    #[test]
    fn of_very_many_files_the_busiest_are_looked_for() {
        let mut files: Vec<FileLocks> = (0..100_000)
            .map(|inode| file(inode, inode % 50_000))
            .collect();
        let chosen = busiest(&mut files, NAMED);
        assert_eq!(chosen.len(), NAMED);
        assert!(chosen.iter().all(|file| file.counters.contended >= 45_000));
        assert_eq!(busiest(&mut files, usize::MAX).len(), 100_000);
        assert_eq!(busiest(&mut files, 0).len(), 0);
        assert_eq!(busiest(&mut [], NAMED).len(), 0);
    }
}
