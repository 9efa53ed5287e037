//! The folders in which turns lock files, and what becomes of those that a killed bench left.
//!
//! A folder's name says who made it: which start of which machine, in which pid namespace, which process,
//! begun when. So the next run knows that nobody uses it any more, without asking anybody.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_watch::process::Process;

use crate::errand::Errand;
use crate::error::Error;
use crate::run::Program;

const PREFIX: &str = "lockkeeper-bench-";

/// Who made a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Maker {
    /// Of this start of the machine, and its pid namespace.
    world: String,
    pid: u32,
    /// When it began, in ticks since the start.
    begun: u64,
}

impl Maker {
    fn this() -> io::Result<Maker> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let boot: String = boot.trim().replace('-', "").chars().take(12).collect();
        let namespace = fs::metadata("/proc/self/ns/pid")?.ino();
        let pid = std::process::id();
        let begun = begun(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Maker {
            world: format!("{boot}.{namespace}"),
            pid,
            begun,
        })
    }

    fn name(&self, count: u32) -> String {
        let Maker { world, pid, begun } = self;
        format!("{PREFIX}{world}-{pid}-{begun}-{count}")
    }

    fn of(name: &str) -> Option<Maker> {
        let mut parts = name.strip_prefix(PREFIX)?.split('-');
        let maker = Maker {
            world: parts.next()?.to_owned(),
            pid: parts.next()?.parse().ok()?,
            begun: parts.next()?.parse().ok()?,
        };
        let _count: u32 = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(maker)
    }

    /// Whether it was of this world, and is no more.
    fn has_gone(&self, here: &Maker) -> bool {
        self.world == here.world && begun(self.pid) != Some(self.begun)
    }
}

/// When a process began.
fn begun(pid: u32) -> Option<u64> {
    Process::of(pid).map(|process| process.started)
}

/// Removes what dead benches of this user left in a folder.
pub fn remove_left_over(folder: &Path) -> io::Result<()> {
    let here = Maker::this()?;
    let me = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let maker = entry.file_name().to_str().and_then(Maker::of);
        if maker.is_some_and(|maker| maker.has_gone(&here)) && entry.metadata()?.uid() == me {
            // Another bench may be at it as well.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// A path in `folder` that is this process's alone.
///
/// # Errors
/// There is no /proc.
pub fn path_in(folder: &Path) -> io::Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Ok(folder.join(Maker::this()?.name(count)))
}

/// Makes a folder with empty files. It is there whole, or not at all.
///
/// # Errors
/// What the file system said.
pub fn make(path: &Path, files: &[String]) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)?;
    let made = files
        .iter()
        .try_for_each(|name| File::create(path.join(name)).map(drop));
    made.inspect_err(|_| {
        let _ = fs::remove_dir_all(path);
    })
}

/// The folder of a turn; removed when it is dropped.
pub struct Folder<'a> {
    path: PathBuf,
    program: &'a Program,
    within: Duration,
    stop: &'a AtomicBool,
    is_there: bool,
}

/// How long somebody who has ended the bench waits for files to be removed; the next run removes the rest.
const AFTER_THE_END: Duration = Duration::from_secs(3);

impl<'a> Folder<'a> {
    /// Makes it in `place`, which may take `within`.
    ///
    /// # Errors
    /// What the file system said, or that it said nothing.
    pub fn make(
        place: &Path,
        files: Vec<String>,
        program: &'a Program,
        within: Duration,
        stop: &'a AtomicBool,
    ) -> Result<Folder<'a>, Error> {
        let path = path_in(place).map_err(Error::system("look at /proc"))?;
        let mut folder = Folder {
            path: path.clone(),
            program,
            within,
            stop,
            is_there: true,
        };
        let made = Errand::Make { path, files }.run(program, within, Some(stop));
        // What failed has cleaned up; what was killed on the way has not.
        folder.is_there = !matches!(made, Err(Error::Place { .. } | Error::Dead { .. }));
        made.map(|_| folder)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it.
    ///
    /// # Errors
    /// What the file system said, or that it said nothing.
    pub fn remove(mut self) -> Result<(), Error> {
        self.is_there = false;
        let errand = Errand::Remove(self.path.clone());
        errand.run(self.program, self.within, None).map(drop)
    }
}

impl Drop for Folder<'_> {
    fn drop(&mut self) {
        if self.is_there {
            // There has been an error before, which is the one to report.
            let errand = Errand::Remove(self.path.clone());
            let within = match self.stop.load(Ordering::Relaxed) {
                true => self.within.min(AFTER_THE_END),
                false => self.within,
            };
            let _ = errand.run(self.program, within, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_who_made_the_folder() {
        let here = Maker::this().expect("there is /proc");
        assert_eq!(Maker::of(&here.name(7)), Some(here.clone()));
        assert!(!here.has_gone(&here));
        for name in [
            "",
            "mine",
            "lockkeeper-bench-1",
            "lockkeeper-bench-a-1-2-3-4",
        ] {
            assert_eq!(Maker::of(name), None, "{name}");
        }
    }

    #[test]
    fn what_the_dead_left_is_removed_and_nothing_else() {
        let place = tempfile::tempdir().expect("a folder");
        let here = Maker::this().expect("there is /proc");
        let dead = Maker {
            begun: here.begun + 1,
            ..here.clone()
        };
        let elsewhere = Maker {
            world: "another".to_owned(),
            ..dead.clone()
        };
        let mut kept = vec![here.name(0), elsewhere.name(0), "mine".to_owned()];
        for name in kept.iter().chain([&dead.name(0)]) {
            make(&place.path().join(name), &["file".to_owned()]).expect("made");
        }
        remove_left_over(place.path()).expect("readable");
        let entries = fs::read_dir(place.path()).expect("readable").flatten();
        let mut left: Vec<_> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        kept.sort();
        assert_eq!(left, kept);
    }
}
