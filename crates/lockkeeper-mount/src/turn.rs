//! One server at a time gets onto a mount point.
//!
//! To look whether a mount point is free and then to mount are two steps, and so are seeing a dead mount and
//! removing it. Of two servers that start at the same moment, one would cover the other's mount or remove it.
//! So whoever is between these steps has the mount point's *turn*: a socket with a name in the abstract
//! namespace, which the kernel gives to one process and takes back when it ends, however it ends.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::mountpoint::MountError;

/// Looks at a name that is taken while nobody listens there.
const LOOKS: u32 = 50;

/// Whoever has this may mount; the turn ends when it is dropped.
#[derive(Debug)]
pub struct Turn {
    _socket: Option<UnixListener>,
}

impl Turn {
    /// Takes the turn of this mount point.
    ///
    /// # Errors
    /// [`MountError::Taken`] if another server has it.
    pub fn take(mountpoint: &Path) -> Result<Turn, MountError> {
        let name = name(mountpoint);
        let address = SocketAddr::from_abstract_name(&name).map_err(MountError::Prepare)?;
        for _ in 0..LOOKS {
            match UnixListener::bind_addr(&address) {
                Ok(socket) => {
                    return Ok(Turn {
                        _socket: Some(socket),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(MountError::Prepare(error)),
            }
            match holder(&name) {
                Ok(uid) if uid.is_root() || uid == rustix::process::getuid() => {
                    return Err(MountError::Taken(mountpoint.into()));
                }
                // Let go of just now, or not listening yet.
                Err(Errno::CONNREFUSED) => std::thread::sleep(Duration::from_millis(1)),
                _ => break,
            }
        }
        tracing::warn!("another user's program pretends to mount here: going on in spite of it");
        Ok(Turn { _socket: None })
    }
}

/// Whose the name is. Any user can take any name, and must not keep others from mounting by it; so this
/// never waits, and only root and we ourselves are believed.
fn holder(name: &str) -> Result<rustix::process::Uid, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    rustix::net::connect(&socket, &address)?;
    Ok(rustix::net::sockopt::socket_peercred(&socket)?.uid)
}

/// Names are common to a network namespace, mount points to a mount namespace.
fn name(mountpoint: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    std::fs::read_link("/proc/self/ns/mnt")
        .ok()
        .hash(&mut hasher);
    place(mountpoint).hash(&mut hasher);
    format!("lockkeeper-mounts-{:016x}", hasher.finish())
}

/// The mount point's path without symbolic links, as far as it is there; it may be missing or dead.
fn place(mountpoint: &Path) -> PathBuf {
    let path = std::path::absolute(mountpoint).unwrap_or_else(|_| mountpoint.into());
    if let Ok(path) = path.canonicalize() {
        return path;
    }
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => place(folder).join(name),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_has_one_turn_at_a_time_under_whatever_name() {
        let temp = tempfile::tempdir().expect("temp folder");
        let missing = temp.path().join("a/b");
        let turn = Turn::take(&missing).expect("nobody has it");
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(temp.path(), &link).expect("links");
        for same in [&missing, &link.join("a/b"), &temp.path().join("a/./b")] {
            let taken = Turn::take(same).expect_err("taken");
            assert!(matches!(taken, MountError::Taken(_)), "{taken}");
        }
        Turn::take(&temp.path().join("a")).expect("another mount point");
        drop(turn);
        // Somebody who has the name and does not listen is none of ours.
        let silent =
            rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
        let address = SocketAddrUnix::new_abstract_name(name(&missing).as_bytes()).expect("a name");
        rustix::net::bind(&silent, &address).expect("the name is free");
        Turn::take(&missing).expect("not kept by a pretender");
        drop(silent);
        Turn::take(&link.join("a/b")).expect("given back");
    }
}
