//! The status socket: who asks and may, is told everything about the mount.
//!
//! The protocol is at [`lockkeeper_watch::ask`], the other side. The socket is `0600`, and what counts is the
//! peer's user id, which the kernel vouches for: root and the user who mounted are answered, nobody else.
//! [`sockets_of`] says where the socket of a mount may be.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use lockkeeper_watch::ask::{AskError, report as ask};
use lockkeeper_watch::ask::{PATIENCE, Question};
use lockkeeper_watch::metrics;
use lockkeeper_watch::report::Report;

use crate::mountpoint::{FS_TYPE, MountEntry, make_folders};

/// How many are answered at once. Who reads slowly takes one of the places, so there must be more than one.
const ANSWERERS: usize = 4;
/// How long a reader may pause, and how long he may take for all of it.
const PAUSE: Duration = Duration::from_secs(5);
const WHOLE: Duration = Duration::from_secs(20);

/// A listening status socket; the file goes when this is dropped.
#[derive(Debug)]
pub struct StatusSocket {
    path: PathBuf,
    /// A link to it, where it is looked for.
    link: Option<PathBuf>,
    created: Vec<PathBuf>,
}

/// Where a mount with this device number has its socket unless told otherwise: a name that `stat` on
/// the mount point leads to.
pub fn default_path(mount_dev: u64) -> PathBuf {
    default_folder().join(format!(
        "{}-{}.sock",
        rustix::fs::major(mount_dev),
        rustix::fs::minor(mount_dev)
    ))
}

const ROOTS_FOLDER: &str = "/run/lockkeeper";

/// The folder of all default sockets: `/run/lockkeeper` for root, below `$XDG_RUNTIME_DIR` (or the
/// temporary folder) for others.
pub fn default_folder() -> PathBuf {
    let uid = rustix::process::getuid();
    if uid.is_root() {
        return PathBuf::from(ROOTS_FOLDER);
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) => PathBuf::from(folder).join("lockkeeper"),
        None => std::env::temp_dir().join(format!("lockkeeper-{}", uid.as_raw())),
    }
}

impl StatusSocket {
    /// Listens at `path` and answers from a few threads of its own, each time with what `report` says to the
    /// question.
    ///
    /// # Errors
    /// If the socket cannot be made, or a living server has it.
    pub fn listen(
        path: &Path,
        report: impl Fn(Question) -> Report + Send + Sync + 'static,
    ) -> io::Result<StatusSocket> {
        let created = prepare_folder(path)?;
        // A socket left by a killed server refuses connections: replace it. Anything else stays.
        if let Ok(metadata) = fs::symlink_metadata(path)
            && metadata.file_type().is_socket()
        {
            if UnixStream::connect(path).is_ok() {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "another server answers on this socket",
                ));
            }
            fs::remove_file(path)?;
        }
        let shared = Arc::new((UnixListener::bind(path)?, report));
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        for _ in 0..ANSWERERS {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("status".into())
                .spawn(move || answer_all(&shared.0, &shared.1))?;
        }
        // Whoever removes it may have moved to another folder.
        Ok(StatusSocket {
            path: std::path::absolute(path)?,
            link: None,
            created,
        })
    }

    /// Makes it known at `path` too, as a symbolic link: so that whoever knows only the mount finds it.
    ///
    /// # Errors
    /// If the link cannot be made.
    pub fn announce(&mut self, path: &Path) -> io::Result<()> {
        self.created.extend(prepare_folder(path)?);
        // Whatever socket was there belonged to a mount that had this device number before.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::os::unix::fs::symlink(&self.path, path)?;
        self.link = Some(path.to_owned());
        Ok(())
    }

    /// Takes the file away, so that nobody connects any more. Dropping does the same.
    pub fn close(&self) {
        // The listening threads end with the process.
        let _ = fs::remove_file(&self.path);
        if let Some(link) = &self.link {
            let _ = fs::remove_file(link);
        }
    }

    /// The folders that were missing for it and were made.
    pub fn created(&self) -> &[PathBuf] {
        &self.created
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Makes the folder for a socket, closed to others, and returns what it made; refuses the default one if
/// somebody else made it.
fn prepare_folder(socket: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(folder) = socket.parent() else {
        return Ok(Vec::new());
    };
    let created = make_folders(folder).map_err(io::Error::other)?;
    if !created.is_empty() {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    }
    if folder == default_folder()
        && fs::symlink_metadata(folder)?.uid() != rustix::process::getuid().as_raw()
    {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} belongs to somebody else", folder.display()),
        ));
    }
    Ok(created)
}

fn answer_all(listener: &UnixListener, report: &impl Fn(Question) -> Report) {
    let owner = rustix::process::getuid();
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => answer(&stream, owner, report),
            Err(error) => {
                tracing::warn!(%error, "status socket");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Writes to somebody who may be slow, but not for ever.
struct Patient<'a> {
    stream: &'a UnixStream,
    deadline: Instant,
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_write_timeout(Some(left.min(PAUSE)))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn answer(stream: &UnixStream, owner: rustix::process::Uid, report: &impl Fn(Question) -> Report) {
    let peer = rustix::net::sockopt::socket_peercred(stream.as_fd());
    match peer {
        Ok(peer) if peer.uid.is_root() || peer.uid == owner => {}
        Ok(peer) => return tracing::warn!(uid = peer.uid.as_raw(), "refused on the status socket"),
        Err(errno) => return tracing::warn!(%errno, "cannot tell who asks on the status socket"),
    }
    let written = asked(stream).and_then(|line| {
        let text = text_for(&line, report)?;
        let deadline = Instant::now() + WHOLE;
        Patient { stream, deadline }.write_all(&text)
    });
    if let Err(error) = written {
        tracing::debug!(%error, "status reader went away");
    }
}

/// The answer to that line.
fn text_for(line: &str, report: &impl Fn(Question) -> Report) -> io::Result<Vec<u8>> {
    let mut text = match Question::of_line(line) {
        Some(question @ (Question::Report | Question::Brief)) => {
            serde_json::to_vec(&report(question))?
        }
        Some(question @ Question::Metrics) => {
            return Ok(metrics::render(&report(question)).into_bytes());
        }
        None => {
            let known = [Question::Report, Question::Brief, Question::Metrics].map(Question::word);
            let error = format!("cannot tell {line:?}; known are {}", known.join(", "));
            serde_json::to_vec(&serde_json::json!({ "error": error }))?
        }
    };
    text.push(b'\n');
    Ok(text)
}

/// The line that the client has sent, if it sends any.
fn asked(mut stream: &UnixStream) -> io::Result<String> {
    const LONGEST: usize = 64;
    let deadline = Instant::now() + PATIENCE;
    let mut line = Vec::new();
    let mut buffer = [0; LONGEST];
    while line.len() < LONGEST && !line.contains(&b'\n') {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => line.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    let line = String::from_utf8_lossy(&line);
    Ok(line.lines().next().unwrap_or_default().to_owned())
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        self.close();
    }
}

/// The mounts of lockkeeper that this process can see.
pub fn mounts() -> Vec<MountEntry> {
    let mut mounts = crate::mountpoint::mounts();
    mounts.retain(|mount| mount.fs_type == FS_TYPE);
    mounts
}

/// Where the socket of this mount may be, the likeliest place first. Folders that do not belong to the
/// mounting user are left out: anybody could have made them.
pub fn sockets_of(mount: &MountEntry) -> Vec<PathBuf> {
    let name = default_path(mount.dev);
    let name = name.file_name().unwrap_or_default();
    let uid = mount.user_id;
    let of_owner = [
        PathBuf::from(format!("/run/user/{uid}/lockkeeper")),
        std::env::temp_dir().join(format!("lockkeeper-{uid}")),
    ];
    let mut folders = match uid {
        0 => vec![PathBuf::from(ROOTS_FOLDER)],
        _ => of_owner.to_vec(),
    };
    if rustix::process::getuid().as_raw() == uid {
        folders.insert(0, default_folder());
    }
    folders.dedup();
    folders.retain(|folder| fs::symlink_metadata(folder).is_ok_and(|found| found.uid() == uid));
    folders.iter().map(|folder| folder.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use lockkeeper_watch::report::VERSION;

    use super::*;

    #[test]
    fn the_owner_reads_one_document_and_a_stale_socket_is_replaced() {
        let temp = tempfile::tempdir().expect("temp folder");
        let path = temp.path().join("run/status.sock");
        fs::create_dir(temp.path().join("run")).expect("folder");
        drop(UnixListener::bind(&path).expect("stale socket"));
        let report = |_| Report {
            version: VERSION,
            pid: 7,
            ..Report::default()
        };
        let socket = StatusSocket::listen(&path, report).expect("listens");
        let mode = fs::metadata(&path).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(StatusSocket::listen(&path, report).is_err(), "in use");
        let expected = || report(Question::Report);
        assert_eq!(ask(&path).expect("answers"), expected());
        let brief = lockkeeper_watch::ask::brief(&path).expect("answers");
        assert_eq!(brief, expected());
        let metrics = lockkeeper_watch::ask::metrics(&path).expect("answers");
        assert_eq!(metrics, lockkeeper_watch::metrics::render(&expected()));
        drop(socket);
        assert!(!path.exists());
        assert!(matches!(ask(&path), Err(AskError::NoSocket(_))));
        drop(UnixListener::bind(&path).expect("stale socket"));
        assert!(matches!(ask(&path), Err(AskError::Dead(_))));
    }

    #[test]
    fn slow_readers_hold_up_nobody_and_lose_nothing() {
        let temp = tempfile::tempdir().expect("temp folder");
        let path = temp.path().join("status.sock");
        // More than a socket takes while nobody reads.
        let report = |_: Question| Report {
            version: VERSION,
            source: "a".repeat(4 << 20),
            ..Report::default()
        };
        let _socket = StatusSocket::listen(&path, report).expect("listens");
        let slow: Vec<UnixStream> = (1..ANSWERERS)
            .map(|_| {
                let mut stream = UnixStream::connect(&path).expect("connects");
                stream.write_all(b"report\n").expect("writes");
                // What has begun to come is being answered.
                stream.read_exact(&mut [0]).expect("reads");
                stream
            })
            .collect();
        assert_eq!(ask(&path).expect("answers"), report(Question::Report));
        for mut stream in slow {
            let mut rest = String::new();
            stream.read_to_string(&mut rest).expect("reads");
            // Had they been waited for, they would have been cut off first.
            assert_eq!(
                format!("{{{rest}").trim_end(),
                serde_json::to_string(&report(Question::Report)).expect("written")
            );
        }
    }

    #[test]
    fn who_says_nothing_gets_the_report_and_nonsense_gets_an_error() {
        let temp = tempfile::tempdir().expect("temp folder");
        let path = temp.path().join("status.sock");
        let report = |_| Report {
            version: VERSION + 1,
            ..Report::default()
        };
        let _socket = StatusSocket::listen(&path, report).expect("listens");
        let said = |line: &str| {
            let mut stream = UnixStream::connect(&path).expect("connects");
            stream.write_all(line.as_bytes()).expect("writes");
            let mut text = String::new();
            stream.read_to_string(&mut text).expect("reads");
            text
        };
        for line in ["", "report\n", "\n"] {
            assert!(said(line).starts_with("{\"version\":2,"), "{line:?}");
        }
        assert!(said("metrics\n").starts_with("# HELP lockkeeper_"));
        assert!(said("secrets\n").starts_with("{\"error\":"));
        let error = ask(&path).expect_err("of another version");
        assert!(
            error.to_string().contains("this program knows 1"),
            "{error}"
        );
    }
}
