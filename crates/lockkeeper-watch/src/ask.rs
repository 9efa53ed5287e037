//! Asking the server of a mount, over its status socket.
//!
//! Whoever connects may send one line that says what it wants, and reads to the end. Nothing sent, or
//! nothing within [`PATIENCE`], is the report.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::report::{Report, VERSION};

/// So long a server waits for the line.
pub const PATIENCE: Duration = Duration::from_millis(100);

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The report, as one JSON document.
    Report,
    /// The same for who asks again and again: of very many files only some have their paths.
    Brief,
    /// The metrics, as Prometheus reads them.
    Metrics,
}

impl Question {
    /// The word by which it is asked.
    pub fn word(self) -> &'static str {
        match self {
            Question::Report => "report",
            Question::Brief => "brief",
            Question::Metrics => "metrics",
        }
    }

    /// What a client asks that has sent this; `None` if nobody knows.
    pub fn of_line(line: &str) -> Option<Question> {
        match line.trim() {
            "" | "report" => Some(Question::Report),
            "brief" => Some(Question::Brief),
            "metrics" => Some(Question::Metrics),
            _ => None,
        }
    }
}

/// Why a server does not say how it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No socket.
    #[error(
        "there is no status socket {0}: the mount was started with --no-status, or its server is gone"
    )]
    NoSocket(PathBuf),
    /// Nobody listens.
    #[error("nobody answers on {0}: the server was killed")]
    Dead(PathBuf),
    /// Not for this user.
    #[error("{0} answers only root and the user who mounted")]
    Denied(PathBuf),
    /// The connection failed.
    #[error("cannot ask on {path}: {error}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The answer is none.
    #[error("what {path} says is not understood (another version of lockkeeper?): {error}")]
    Unreadable {
        /// The socket.
        path: PathBuf,
        /// Why.
        error: String,
    },
}

/// The report of the server that listens at `socket`.
///
/// # Errors
/// [`AskError`], for people to read.
pub fn report(socket: &Path) -> Result<Report, AskError> {
    document(socket, Question::Report)
}

/// The same for who asks again and again: see [`Question::Brief`].
///
/// # Errors
/// [`AskError`], for people to read.
pub fn brief(socket: &Path) -> Result<Report, AskError> {
    document(socket, Question::Brief)
}

fn document(socket: &Path, question: Question) -> Result<Report, AskError> {
    let text = answer(socket, question)?;
    let unreadable = |error: String| AskError::Unreadable {
        path: socket.into(),
        error,
    };
    /// The version first: what another one says need not be a report.
    #[derive(Deserialize)]
    struct Versioned {
        version: Option<u64>,
    }
    let Versioned { version } =
        serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?;
    if version != Some(u64::from(VERSION)) {
        return Err(unreadable(format!(
            "version {version:?}, and this program knows {VERSION}"
        )));
    }
    serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))
}

/// The metrics of the server that listens at `socket`.
///
/// # Errors
/// [`AskError`], for people to read.
pub fn metrics(socket: &Path) -> Result<String, AskError> {
    let text = answer(socket, Question::Metrics)?;
    match String::from_utf8(text) {
        Ok(text) if text.starts_with('#') => Ok(text),
        _ => Err(AskError::Unreadable {
            path: socket.into(),
            error: "these are no metrics".into(),
        }),
    }
}

fn answer(socket: &Path, question: Question) -> Result<Vec<u8>, AskError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => AskError::NoSocket(socket.into()),
        io::ErrorKind::ConnectionRefused => AskError::Dead(socket.into()),
        io::ErrorKind::PermissionDenied => AskError::Denied(socket.into()),
        _ => AskError::Io {
            path: socket.into(),
            error,
        },
    };
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    // A server that does not want to know closes at once: what it says, or does not, is below.
    let _ = writeln!(stream, "{}", question.word());
    let _ = stream.shutdown(Shutdown::Write);
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .map_err(failed)?;
    let mut text = Vec::new();
    match stream.read_to_end(&mut text) {
        Ok(_) => {}
        // Closed with our question unread.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => return Err(failed(error)),
    }
    if text.is_empty() {
        return Err(AskError::Denied(socket.into()));
    }
    Ok(text)
}
