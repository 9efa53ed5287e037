//! Backing files: the kernel reads and writes the file below by itself (`FUSE_PASSTHROUGH`).
//!
//! The kernel does such I/O with the rights of the thread that registered the file. Ours could keep
//! the set-user-id bit of a file that a user overwrites (`CAP_FSETID`) and dip into the blocks that are
//! reserved for the administrator (`CAP_SYS_RESOURCE`), so both are put away while registering.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::device::Device;
use crate::sys;

/// Registers an open file; the id goes into the reply to OPEN.
///
/// # Errors
/// `EPERM` without the right, `ELOOP` if the source is stacked too deep.
pub fn register(device: &Device, file: BorrowedFd<'_>) -> Result<i32, Errno> {
    let own = rustix::thread::capabilities(None)?;
    let mut lent = own;
    lent.effective -= CapabilitySet::FSETID | CapabilitySet::SYS_RESOURCE;
    let reduced = lent.effective != own.effective;
    if reduced {
        rustix::thread::set_capabilities(None, lent)?;
    }
    let result = sys::backing_open(device.file(), file);
    if reduced {
        rustix::thread::set_capabilities(None, own)?;
    }
    result
}

/// Why the kernel lets this process register no backing file, or `None` if it does.
pub fn refused(device: &Device) -> Option<Errno> {
    let file = match rustix::fs::memfd_create(c"lockkeeper-probe", MemfdFlags::CLOEXEC) {
        Ok(file) => file,
        Err(errno) => return Some(errno),
    };
    match register(device, file.as_fd()) {
        Ok(id) => sys::backing_close(device.file(), id).err(),
        Err(errno) => Some(errno),
    }
}

/// How deep backing files may be stacked: 1, or 2 where the source itself is an overlay.
pub fn stack_depth(source: BorrowedFd<'_>) -> u32 {
    const OVERLAYFS_SUPER_MAGIC: u64 = 0x794c_7630;
    match rustix::fs::fstatfs(source) {
        #[allow(clippy::unnecessary_cast)] // f_type's type differs between architectures.
        Ok(stat) if stat.f_type as u64 == OVERLAYFS_SUPER_MAGIC => 2,
        _ => 1,
    }
}
