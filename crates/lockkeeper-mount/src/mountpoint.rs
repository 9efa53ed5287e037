//! Getting onto a mount point and off it again: mount(2) for root, fusermount3 for everybody else.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lockkeeper_watch::kernel::unescape;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

/// The type that mount(8) and `/proc/mounts` show.
pub const FS_TYPE: &str = "fuse.lockkeeper";

/// Why something could not be mounted, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// A folder is missing and cannot be made.
    #[error("cannot create the folder {path}: {error}")]
    Create {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Source or mount point is there but cannot be used.
    #[error("cannot use {path}: {error}")]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Source or mount point is no folder.
    #[error("{0} is not a folder; source and mount point must both be folders")]
    NotAFolder(PathBuf),
    /// The mount would contain itself.
    #[error(
        "the mount point {mountpoint} lies inside the source {source_dir}, so the mount would contain \
         itself; choose a mount point outside (or the source itself, which is then covered)"
    )]
    Recursive {
        /// The source.
        source_dir: PathBuf,
        /// The mount point.
        mountpoint: PathBuf,
    },
    /// The root folder as the mount point.
    #[error(
        "the mount point is the root folder, where no program would see the mount; choose another"
    )]
    Root,
    /// Another lockkeeper serves the mount point.
    #[error("{0} is already a lockkeeper mount; unmount it first (umount or fusermount3 -u)")]
    AlreadyMounted(PathBuf),
    /// Another lockkeeper is about to serve the mount point.
    #[error("another lockkeeper is being mounted on {0} at this moment")]
    Taken(PathBuf),
    /// No FUSE device.
    #[error(
        "there is no /dev/fuse: load the kernel module (modprobe fuse), or in a container pass the device \
         (--device /dev/fuse)"
    )]
    NoDevice,
    /// The device may not be opened.
    #[error(
        "cannot open /dev/fuse: {0}; it should be readable and writable by you (chmod 666 /dev/fuse)"
    )]
    DeviceDenied(io::Error),
    /// No fusermount3.
    #[error(
        "an ordinary user needs fusermount3 to mount, and it was not found: install the package fuse3"
    )]
    NoFusermount,
    /// fusermount3 refused.
    #[error("fusermount3 refused to mount: {0}")]
    Fusermount(String),
    /// mount(2) refused.
    #[error("mounting on {mountpoint} failed: {error}")]
    Mount {
        /// Where.
        mountpoint: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A dead mount is in the way.
    #[error(
        "a dead mount is on {mountpoint} and cannot be removed: {error}; try umount -l {mountpoint}"
    )]
    Dead {
        /// Where.
        mountpoint: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Something of the system that serving needs.
    #[error("cannot prepare to serve: {0}")]
    Prepare(io::Error),
}

/// What was done to have two folders to work with, for the user to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// Folders that were missing and are there now.
    pub created: Vec<PathBuf>,
    /// Whether a mount left by a killed server was removed from the mount point.
    pub replaced_dead_mount: bool,
}

impl Prepared {
    /// Removes the folders that were created, for they are of no use where nothing could be mounted.
    pub(crate) fn undo(&self) {
        for folder in self.created.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Makes sure that source and mount point are folders, and that nothing dead or recursive is in the way.
/// Returns both as absolute paths.
///
/// # Errors
/// [`MountError`], naming the folder; none was created then.
pub fn prepare(
    source: &Path,
    mountpoint: &Path,
) -> Result<(PathBuf, PathBuf, Prepared), MountError> {
    let mut prepared = Prepared::default();
    match prepare_both(source, mountpoint, &mut prepared) {
        Ok((source, mountpoint)) => Ok((source, mountpoint, prepared)),
        Err(error) => {
            prepared.undo();
            Err(error)
        }
    }
}

fn prepare_both(
    source: &Path,
    mountpoint: &Path,
    prepared: &mut Prepared,
) -> Result<(PathBuf, PathBuf), MountError> {
    if is_dead(mountpoint) {
        let absolute = std::path::absolute(mountpoint).unwrap_or_else(|_| mountpoint.into());
        unmount(&absolute, Unmount::Lazy).map_err(|error| MountError::Dead {
            mountpoint: mountpoint.into(),
            error,
        })?;
        prepared.replaced_dead_mount = true;
    }
    let source = folder(source, prepared)?;
    let mountpoint = folder(mountpoint, prepared)?;
    if mountpoint.parent().is_none() {
        return Err(MountError::Root);
    }
    if mountpoint != source && mountpoint.starts_with(&source) {
        return Err(MountError::Recursive {
            source_dir: source,
            mountpoint,
        });
    }
    if mounts()
        .iter()
        .any(|mount| mount.path == mountpoint && mount.fs_type == FS_TYPE)
    {
        return Err(MountError::AlreadyMounted(mountpoint));
    }
    Ok((source, mountpoint))
}

/// Whether a mount is there whose server is gone. The kernel is made to ask the server: for as long as it may
/// use attributes that it knows, a dead mount looks alive.
fn is_dead(mountpoint: &Path) -> bool {
    let (flags, wanted) = (AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    rustix::fs::statx(rustix::fs::CWD, mountpoint, flags, wanted)
        .is_err_and(|errno| errno == Errno::NOTCONN)
}

fn folder(path: &Path, prepared: &mut Prepared) -> Result<PathBuf, MountError> {
    let unusable = |error| MountError::Unusable {
        path: path.into(),
        error,
    };
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(MountError::NotAFolder(path.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            prepared.created.extend(make_folders(path)?);
        }
        Err(error) => return Err(unusable(error)),
    }
    path.canonicalize().map_err(unusable)
}

/// Makes a folder that is missing and its missing parents. Returns those it made, the outermost first.
///
/// # Errors
/// [`MountError::Create`], naming the folder that could not be made; what was made before is removed.
pub(crate) fn make_folders(path: &Path) -> Result<Vec<PathBuf>, MountError> {
    let missing: Vec<&Path> = path
        .ancestors()
        .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        .collect();
    let mut made = Vec::new();
    for folder in missing.into_iter().rev() {
        match fs::create_dir(folder) {
            Ok(()) => made.push(folder.to_owned()),
            // `a/..` is there once `a` is; or somebody else was quicker.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
            Err(error) => {
                for folder in made.iter().rev() {
                    let _ = fs::remove_dir(folder);
                }
                return Err(MountError::Create {
                    path: folder.into(),
                    error,
                });
            }
        }
    }
    Ok(made)
}

/// How a mount is to be set up.
#[derive(Clone, Debug)]
pub struct Flags {
    /// No writing.
    pub read_only: bool,
    /// Let others than the mounting user in.
    pub allow_other: bool,
    /// Honour set-user-id bits (root only).
    pub suid: bool,
    /// Honour device files (root only).
    pub dev: bool,
    /// Let programs be run.
    pub exec: bool,
}

/// Mounts and returns the connection to serve.
///
/// # Errors
/// [`MountError`], saying what is missing.
pub fn mount(source: &Path, mountpoint: &Path, flags: &Flags) -> Result<OwnedFd, MountError> {
    if rustix::process::geteuid().is_root() {
        match mount_directly(source, mountpoint, flags) {
            // Root of a container that may not mount, but has the helper.
            Err(MountError::Mount { error, .. }) if error.raw_os_error() == Some(libc::EPERM) => {
                tracing::debug!("mount(2) is not permitted, trying fusermount3");
            }
            other => return other,
        }
    }
    mount_by_helper(source, mountpoint, flags)
}

fn open_device() -> Result<OwnedFd, MountError> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| {
        match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoDevice,
            errno => MountError::DeviceDenied(errno.into()),
        }
    })
}

fn mount_directly(source: &Path, mountpoint: &Path, flags: &Flags) -> Result<OwnedFd, MountError> {
    let device = open_device()?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if flags.allow_other {
        data.push_str(",allow_other");
    }
    let mut mount_flags = MountFlags::empty();
    mount_flags.set(MountFlags::RDONLY, flags.read_only);
    mount_flags.set(MountFlags::NOSUID, !flags.suid);
    mount_flags.set(MountFlags::NODEV, !flags.dev);
    mount_flags.set(MountFlags::NOEXEC, !flags.exec);
    let refused = |error: io::Error| MountError::Mount {
        mountpoint: mountpoint.into(),
        error,
    };
    let data = CString::new(data).map_err(|error| refused(error.into()))?;
    rustix::mount::mount(source, mountpoint, FS_TYPE, mount_flags, &*data)
        .map_err(|errno| refused(errno.into()))?;
    Ok(device)
}

fn mount_by_helper(source: &Path, mountpoint: &Path, flags: &Flags) -> Result<OwnedFd, MountError> {
    let prepare = |errno: Errno| MountError::Prepare(errno.into());
    // Commas and backslashes separate options.
    let mut options = OsString::from("fsname=");
    for &byte in source.as_os_str().as_bytes() {
        if matches!(byte, b',' | b'\\') {
            options.push("\\");
        }
        options.push(OsStr::from_bytes(&[byte]));
    }
    options.push(",subtype=lockkeeper,default_permissions");
    for (wanted, option) in [
        (flags.read_only, ",ro"),
        (flags.allow_other, ",allow_other"),
        (!flags.exec, ",noexec"),
        (flags.suid, ",suid"),
        (flags.dev, ",dev"),
    ] {
        if wanted {
            options.push(option);
        }
    }
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(prepare)?;
    // The helper sends the device over the socket it is told of: its standard input.
    let child = Command::new("fusermount3")
        .arg("-o")
        .arg(options)
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => MountError::NoFusermount,
            _ => MountError::Fusermount(error.to_string()),
        })?;
    let device = receive_fd(&ours);
    let output = child
        .wait_with_output()
        .map_err(|error| MountError::Fusermount(error.to_string()))?;
    match device {
        Ok(Some(device)) if output.status.success() => Ok(device),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr);
            let mut said = said
                .trim()
                .trim_start_matches("fusermount3:")
                .trim()
                .to_owned();
            if said.is_empty() {
                said = format!("it ended with {}", output.status);
            }
            if said.contains("/dev/fuse") && said.contains("ermission") {
                said.push_str(" (chmod 666 /dev/fuse gives every user access, as most systems do)");
            } else if said.contains("user_allow_other") {
                said.push_str(" (an administrator must put the line user_allow_other there)");
            }
            Err(MountError::Fusermount(said))
        }
    }
}

fn receive_fd(socket: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    let mut byte = [0_u8; 1];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [io::IoSliceMut::new(&mut byte)];
    loop {
        match rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(_) => break,
        }
    }
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    }))
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Only if nobody uses it (`EBUSY` otherwise).
    Plain,
    /// Take it out of the tree now; who has files open there keeps them.
    Lazy,
}

/// Unmounts, with mount(2)'s counterpart or with fusermount3.
///
/// # Errors
/// `EBUSY` if it is in use and the unmount is a plain one; `EINVAL` if nothing is mounted there.
pub fn unmount(mountpoint: &Path, how: Unmount) -> io::Result<()> {
    let flags = match how {
        Unmount::Plain => UnmountFlags::NOFOLLOW,
        Unmount::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    let errno = match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => return Ok(()),
        Err(Errno::PERM) => Errno::PERM,
        Err(errno) => return Err(errno.into()),
    };
    let output = Command::new("fusermount3")
        .arg("-u")
        .args((how == Unmount::Lazy).then_some("-z"))
        .arg("--")
        .arg(mountpoint)
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            match said.contains("busy") {
                true => Err(Errno::BUSY.into()),
                false => Err(io::Error::other(said)),
            }
        }
        Err(_) => Err(errno.into()),
    }
}

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Device number of the mount, as stat(2) shows it there.
    pub dev: u64,
    /// Where it is mounted.
    pub path: PathBuf,
    /// Its type.
    pub fs_type: String,
    /// Its source.
    pub source: PathBuf,
    /// Who mounted it, for FUSE mounts; else 0.
    pub user_id: u32,
}

/// All mounts of this process's mount namespace; none if `/proc` is not there.
pub fn mounts() -> Vec<MountEntry> {
    let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
    text.split(|&byte| byte == b'\n')
        .filter_map(parse_mountinfo)
        .collect()
}

fn parse_mountinfo(line: &[u8]) -> Option<MountEntry> {
    // 36 35 98:0 /root /mount/point rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    let mut fields = line.split(|&byte| byte == b' ');
    let dev = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = dev.split_once(':')?;
    let dev = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    let path = unescape(fields.nth(1)?);
    let mut rest = fields.skip_while(|&field| field != b"-").skip(1);
    let fs_type = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = unescape(rest.next()?);
    let options = String::from_utf8_lossy(rest.next().unwrap_or_default());
    let user_id = options
        .split(',')
        .find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    Some(MountEntry {
        dev,
        path,
        fs_type,
        source,
        user_id: user_id.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_understood() {
        let line = b"55 28 0:47 / /tmp/a\\040b\\134c rw,nosuid - fuse.lockkeeper /src rw,user_id=1000,group_id=7";
        assert_eq!(
            parse_mountinfo(line),
            Some(MountEntry {
                dev: rustix::fs::makedev(0, 47),
                path: "/tmp/a b\\c".into(),
                fs_type: FS_TYPE.into(),
                source: "/src".into(),
                user_id: 1000,
            })
        );
        for bad in [
            &b""[..],
            b"1 2 3",
            b"1 2 a:b / / rw - x y",
            b"1 2 0:1 / /p rw",
        ] {
            assert_eq!(parse_mountinfo(bad), None);
        }
    }

    #[test]
    fn a_mount_point_inside_the_source_is_refused_and_missing_folders_are_made() {
        let temp = tempfile::tempdir().expect("temp folder");
        let source = temp.path().join("data");
        let inside = source.join("mnt");
        assert!(matches!(
            prepare(&source, &inside),
            Err(MountError::Recursive { .. })
        ));
        assert!(!source.exists(), "nothing is left of what was refused");
        let outside = temp.path().join("deep/mnt");
        let (_, mountpoint, prepared) = prepare(&source, &outside).expect("prepared");
        assert!(mountpoint.is_absolute() && mountpoint.is_dir());
        let missing = [source.clone(), temp.path().join("deep"), outside];
        assert_eq!(prepared.created, missing, "each is named");
        let file = temp.path().join("file");
        fs::write(&file, "").expect("written");
        assert!(matches!(
            prepare(&file, &mountpoint),
            Err(MountError::NotAFolder(_))
        ));
    }
}
