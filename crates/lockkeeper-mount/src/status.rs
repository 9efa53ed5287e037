//! The status socket: who asks and may, is told everything about the mount, as one JSON document.
//!
//! The protocol is to connect and to read until the end. The socket is `0600`, and what counts is the
//! peer's user id, which the kernel vouches for: root and the user who mounted are answered, nobody else.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A listening status socket; the file goes when this is dropped.
#[derive(Debug)]
pub struct StatusSocket {
    path: PathBuf,
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

/// The folder of all default sockets: `/run/lockkeeper` for root, below `$XDG_RUNTIME_DIR` (or the
/// temporary folder) for others.
pub fn default_folder() -> PathBuf {
    let uid = rustix::process::getuid();
    if uid.is_root() {
        return PathBuf::from("/run/lockkeeper");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) => PathBuf::from(folder).join("lockkeeper"),
        None => std::env::temp_dir().join(format!("lockkeeper-{}", uid.as_raw())),
    }
}

impl StatusSocket {
    /// Listens at `path` and answers from a thread of its own, each time with what `report` says.
    ///
    /// # Errors
    /// If the socket cannot be made, or a living server has it.
    pub fn listen(
        path: &Path,
        report: impl Fn() -> serde_json::Value + Send + 'static,
    ) -> io::Result<StatusSocket> {
        if let Some(folder) = path.parent()
            && !folder.as_os_str().is_empty()
            && !folder.exists()
        {
            fs::create_dir_all(folder)?;
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        }
        if let Some(folder) = path.parent()
            && folder == default_folder()
            && fs::symlink_metadata(folder)?.uid() != rustix::process::getuid().as_raw()
        {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("{} belongs to somebody else", folder.display()),
            ));
        }
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
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        let owner = rustix::process::getuid();
        std::thread::Builder::new()
            .name("status".into())
            .spawn(move || {
                for stream in listener.incoming() {
                    match stream {
                        Ok(stream) => answer(&stream, owner, &report),
                        Err(error) => {
                            tracing::warn!(%error, "status socket");
                            std::thread::sleep(Duration::from_millis(100));
                        }
                    }
                }
            })?;
        // Whoever removes it may have moved to another folder.
        Ok(StatusSocket {
            path: std::path::absolute(path)?,
        })
    }

    /// Takes the file away, so that nobody connects any more. Dropping does the same.
    pub fn close(&self) {
        // The listening thread ends with the process.
        let _ = fs::remove_file(&self.path);
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn answer(
    mut stream: &UnixStream,
    owner: rustix::process::Uid,
    report: &impl Fn() -> serde_json::Value,
) {
    let peer = rustix::net::sockopt::socket_peercred(stream.as_fd());
    match peer {
        Ok(peer) if peer.uid.is_root() || peer.uid == owner => {}
        Ok(peer) => return tracing::warn!(uid = peer.uid.as_raw(), "refused on the status socket"),
        Err(errno) => return tracing::warn!(%errno, "cannot tell who asks on the status socket"),
    }
    // Somebody who does not read must not keep the thread.
    let written = stream
        .set_write_timeout(Some(Duration::from_secs(5)))
        .and_then(|()| stream.write_all(format!("{}\n", report()).as_bytes()));
    if let Err(error) = written {
        tracing::debug!(%error, "status reader went away");
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_owner_reads_one_document_and_a_stale_socket_is_replaced() {
        let temp = tempfile::tempdir().expect("temp folder");
        let path = temp.path().join("run/status.sock");
        fs::create_dir(temp.path().join("run")).expect("folder");
        drop(UnixListener::bind(&path).expect("stale socket"));
        let socket = StatusSocket::listen(&path, || serde_json::json!({"a": 1})).expect("listens");
        let mode = fs::metadata(&path).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut text = String::new();
        UnixStream::connect(&path)
            .expect("connects")
            .read_to_string(&mut text)
            .expect("reads");
        assert_eq!(text, "{\"a\":1}\n");
        assert!(
            StatusSocket::listen(&path, || serde_json::Value::Null).is_err(),
            "in use"
        );
        drop(socket);
        assert!(!path.exists());
    }
}
