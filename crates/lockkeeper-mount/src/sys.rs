//! The few system calls that no safe wrapper offers. All `unsafe` of this crate is here.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// `FUSE_DEV_IOC_BACKING_OPEN`: `_IOW(229, 1, struct fuse_backing_map)`.
const BACKING_OPEN: libc::Ioctl = 0x4010_e501_u32 as libc::Ioctl;
/// `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 2, uint32_t)`.
const BACKING_CLOSE: libc::Ioctl = 0x4004_e502_u32 as libc::Ioctl;

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Registers `file` as a backing file of the connection `device` and returns its id.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN` in the initial user namespace, `ELOOP` if the file system below
/// is itself stacked too deep, `EINVAL` or `EOPNOTSUPP` for what is no regular file.
pub fn backing_open(device: &File, file: BorrowedFd<'_>) -> Result<i32, Errno> {
    let map = BackingMap {
        fd: file.as_raw_fd(),
        flags: 0,
        padding: 0,
    };
    // SAFETY: both descriptors are open for the whole call, and the kernel only reads `map`, which
    // has the size that the request number states.
    let id = unsafe { libc::ioctl(device.as_raw_fd(), BACKING_OPEN, &raw const map) };
    if id > 0 {
        Ok(id)
    } else {
        Err(if id == 0 { Errno::IO } else { last_errno() })
    }
}

/// Gives a backing id back. Open files keep what they use.
///
/// # Errors
/// `ENOENT` if there is no such id.
pub fn backing_close(device: &File, id: i32) -> Result<(), Errno> {
    let id = id.cast_unsigned();
    // SAFETY: the descriptor is open, and the kernel only reads the four bytes of `id`.
    match unsafe { libc::ioctl(device.as_raw_fd(), BACKING_CLOSE, &raw const id) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Makes `uid` the user that the calling thread acts as on files, and tells whether that worked.
///
/// Leaving user 0 also drops the capabilities that override file permissions; coming back to 0
/// restores them (capabilities(7), "Effect of user ID changes").
#[must_use]
pub fn set_fs_uid(uid: u32) -> bool {
    // SAFETY: setfsuid takes any number and touches nothing but the calling thread's credentials.
    unsafe {
        libc::syscall(libc::SYS_setfsuid, uid);
        // An impossible id changes nothing and returns the present one.
        libc::syscall(libc::SYS_setfsuid, u32::MAX) as u32 == uid
    }
}

/// The same for the group.
#[must_use]
pub fn set_fs_gid(gid: u32) -> bool {
    // SAFETY: as for `set_fs_uid`.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsgid, u32::MAX) as u32 == gid
    }
}

/// Gives the calling thread a umask and a current folder of its own.
///
/// # Errors
/// `ENOMEM`.
pub fn own_umask() -> Result<(), Errno> {
    // SAFETY: CLONE_FS separates umask, root and current folder from the other threads. It touches
    // neither descriptors nor memory, so no invariant of safe code depends on it.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }
}
