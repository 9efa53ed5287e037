//! What can go wrong, said so that a user knows what to do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a command could not be done. Nothing has been written then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for makes no sense, and why.
    #[error("{0}")]
    Refused(String),
    /// A folder that tasks are to lock files in cannot be used.
    #[error("cannot use {}", path.display())]
    Place {
        /// The folder.
        path: PathBuf,
        /// What the file system said.
        source: io::Error,
    },
    /// A mount point whose server is gone.
    #[error("nobody serves {}: {said}; unmount it (umount -l) and mount it again", path.display())]
    Dead {
        /// The mount point.
        path: PathBuf,
        /// What the file system said.
        said: String,
    },
    /// A file system that took too long.
    #[error(
        "{} did not answer within {} s: its server hangs or is very slow; `--answer-within` gives it more time",
        path.display(),
        within.as_secs_f64()
    )]
    NoAnswer {
        /// The folder.
        path: PathBuf,
        /// How long was waited.
        within: Duration,
    },
    /// A task failed, or did not end.
    #[error("{0}")]
    Task(String),
    /// The user ended the run.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// A file that is no result.
    #[error("{} {why}", path.display())]
    NoResult {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        why: String,
    },
    /// A file cannot be read or written.
    #[error("cannot {what} {}", path.display())]
    File {
        /// `read` or `write`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A plot could not be drawn.
    #[error("cannot draw: {0}")]
    Drawing(String),
    /// The system refused something that every run needs.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err` on what every run needs.
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error::System {
            what,
            source: source.into(),
        }
    }

    /// For `map_err` on what starts processes.
    pub(crate) fn start(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System {
            what,
            source: explained(source),
        }
    }
}

/// The same, with what to do where tasks are too many for the system, or their files have no server.
pub(crate) fn explained(error: io::Error) -> io::Error {
    let advice = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => {
            "fewer tasks, or a higher limit of open files (ulimit -n)"
        }
        Some(libc::EAGAIN | libc::ENOMEM) => {
            "fewer tasks, or a higher limit of processes and threads (ulimit -u, pids.max) or memory"
        }
        Some(libc::ECONNABORTED | libc::ENOTCONN) => {
            "nobody serves the files any more; unmount (umount -l) and mount again"
        }
        _ => return error,
    };
    io::Error::other(format!("{error}: {advice}"))
}
