//! The report on a mount, for whoever watches it.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use lockkeeper_watch::report::{Origin, Report, VERSION};
use lockkeeper_watch::{deadlock, process};

use crate::server::Observer;

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

    /// Each file as it is at one moment, one after the other.
    pub fn report(&self) -> Report {
        let time = unix_time();
        let files = self.observer.listing(&self.mountpoint);
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
            time,
            started: self.started,
            totals: self.observer.totals(),
            wait_times: self.observer.wait_times(),
            deadlocks,
        }
    }
}

/// Seconds since 1970.
fn unix_time() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}
