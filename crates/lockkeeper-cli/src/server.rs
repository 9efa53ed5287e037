//! The server of one mount, to be asked again and again.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use lockkeeper_mount::mountpoint::MountEntry;
use lockkeeper_mount::status;
use lockkeeper_watch::ask;
use lockkeeper_watch::report::Report;

use crate::target;

/// Where the server is to be asked.
pub enum Server {
    /// A socket that was named.
    Socket(PathBuf),
    /// A mount, whose socket is found anew each time.
    Mount(MountEntry),
}

impl Server {
    /// The server of a mount point, a source, anything on a mount, or a socket; without `target`, of the only
    /// mount there is.
    ///
    /// # Errors
    /// If no mount is meant, or more than one.
    pub fn find(target: Option<&Path>) -> anyhow::Result<Server> {
        let mut mounts = status::mounts();
        let Some(target) = target else {
            return match mounts.len() {
                1 => Ok(Server::Mount(mounts.remove(0))),
                0 => bail!("nothing is mounted by lockkeeper here"),
                _ => bail!(
                    "there is more than one mount: name one; {}",
                    target::known(&mounts)
                ),
            };
        };
        if fs::metadata(target).is_ok_and(|found| found.file_type().is_socket()) {
            return Ok(Server::Socket(target.into()));
        }
        // A dead mount, or one of another user, cannot be looked at; its name will do.
        let path = target
            .canonicalize()
            .or_else(|_| std::path::absolute(target))
            .with_context(|| format!("{} is no path", target.display()))?;
        let named = |mount: &MountEntry| mount.path == path || mount.source == path;
        // Of several on one another the last one is seen.
        if let Some(place) = mounts.iter().rposition(named) {
            return Ok(Server::Mount(mounts.swap_remove(place)));
        }
        let found =
            fs::metadata(&path).with_context(|| format!("cannot look at {}", path.display()))?;
        match mounts.iter().rposition(|mount| mount.dev == found.dev()) {
            Some(place) => Ok(Server::Mount(mounts.swap_remove(place))),
            None => bail!(
                "{} is not on a lockkeeper mount; {}",
                path.display(),
                target::known(&mounts)
            ),
        }
    }

    /// What it says now, briefly: who watches asks again and again.
    ///
    /// # Errors
    /// No permission, or the server is gone.
    pub fn ask(&self) -> anyhow::Result<Report> {
        match self {
            Server::Socket(socket) => Ok(ask::brief(socket)?),
            Server::Mount(mount) => target::ask_mount(mount, ask::brief),
        }
    }
}
