//! Attributes: stat, chmod, chown, truncate, utimens, statfs.

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::inode::{Handle, Inode};
use super::{PassthroughFs, Place, Served, stat_fd};
use crate::abi::{self, fattr};
use crate::device::ReplyBuffer;
use crate::request::Caller;

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o0010;

impl PassthroughFs {
    pub(super) fn getattr(
        &self,
        node: u64,
        fh: Option<u64>,
        out: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        // An open file may outlive its node only by a race; either way it is the same inode.
        let inode = match fh.and_then(|fh| self.handles.get(fh).ok()) {
            Some(handle) => handle.inode.clone(),
            None => self.inodes.get(node)?,
        };
        self.push_attr(&inode, out)
    }

    fn push_attr(&self, inode: &Inode, out: &mut ReplyBuffer) -> Result<(), Errno> {
        let stat = stat_fd(inode.fd())?;
        let timeout = self.attr_timeout(&stat);
        out.push(&abi::AttrOut {
            attr_valid: timeout.as_secs(),
            attr_valid_nsec: timeout.subsec_nanos(),
            dummy: 0,
            attr: self.attr(&stat),
        });
        Ok(())
    }

    pub(super) fn setattr(
        &self,
        node: u64,
        caller: &Caller,
        args: &abi::SetattrIn,
        place: Place,
        out: &mut ReplyBuffer,
    ) -> Result<Served, Errno> {
        self.writable()?;
        let has = |bit| args.valid & bit != 0;
        // Truncation frees blocks and may have to wait for a lease to be given up.
        if has(fattr::SIZE) && place == Place::Reader {
            return Ok(Served::Elsewhere);
        }
        let inode = self.inodes.get(node)?;
        let handle = match has(fattr::FH) {
            true => Some(self.handles.get(args.fh)?),
            false => None,
        };
        {
            let _acting = self.identity.act_as(caller)?;
            if has(fattr::MODE) {
                let mode = Mode::from_raw_mode(args.mode & 0o7777);
                rustix::fs::chmodat(&self.proc_fd, inode.proc_name(), mode, AtFlags::empty())?;
            }
            if has(fattr::UID) || has(fattr::GID) {
                let uid = has(fattr::UID).then(|| Uid::from_raw(args.uid));
                let gid = has(fattr::GID).then(|| Gid::from_raw(args.gid));
                rustix::fs::chownat(inode.fd(), c"", uid, gid, AtFlags::EMPTY_PATH)?;
            }
            if has(fattr::SIZE) {
                self.truncate(&inode, handle.as_deref(), args.size)?;
            }
            if has(fattr::ATIME) || has(fattr::MTIME) {
                let times = Timestamps {
                    last_access: timespec(
                        has(fattr::ATIME),
                        has(fattr::ATIME_NOW),
                        args.atime,
                        args.atimensec,
                    ),
                    last_modification: timespec(
                        has(fattr::MTIME),
                        has(fattr::MTIME_NOW),
                        args.mtime,
                        args.mtimensec,
                    ),
                };
                rustix::fs::utimensat(inode.fd(), c"", &times, AtFlags::EMPTY_PATH)?;
            }
        }
        if has(fattr::KILL_SUIDGID) {
            self.strip_set_id(&inode)?;
        }
        self.push_attr(&inode, out)?;
        Ok(Served::Done)
    }

    fn truncate(&self, inode: &Inode, handle: Option<&Handle>, size: u64) -> Result<(), Errno> {
        if let Some(handle) = handle {
            return rustix::fs::ftruncate(&handle.fd, size);
        }
        // truncate(2) by path, as an open for writing without its side effects on FIFOs.
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = rustix::fs::openat(&self.proc_fd, inode.proc_name(), flags, Mode::empty())?;
        rustix::fs::ftruncate(&file, size)
    }

    /// Takes the set-user-id bit, and the set-group-id bit of a program, off a file whose contents
    /// somebody without the right to keep them has changed.
    pub(super) fn strip_set_id(&self, inode: &Inode) -> Result<(), Errno> {
        let mode = u32::from(stat_fd(inode.fd())?.stx_mode) & 0o7777;
        let mut stripped = mode & !S_ISUID;
        if mode & S_IXGRP != 0 {
            stripped &= !S_ISGID;
        }
        if stripped == mode {
            return Ok(());
        }
        let mode = Mode::from_raw_mode(stripped);
        rustix::fs::chmodat(&self.proc_fd, inode.proc_name(), mode, AtFlags::empty())
    }

    /// The same after a change of contents where the kernel does not say whether the bits may stay:
    /// they may for root.
    pub(super) fn strip_set_id_for(&self, caller: &Caller, inode: &Inode) -> Result<(), Errno> {
        if caller.uid == 0 {
            Ok(())
        } else {
            self.strip_set_id(inode)
        }
    }

    pub(super) fn statfs(&self, node: u64, out: &mut ReplyBuffer) -> Result<(), Errno> {
        let inode = self.inodes.get(node)?;
        let stat = rustix::fs::fstatvfs(inode.fd())?;
        let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        out.push(&abi::StatfsOut {
            blocks: stat.f_blocks,
            bfree: stat.f_bfree,
            bavail: stat.f_bavail,
            files: stat.f_files,
            ffree: stat.f_ffree,
            bsize: narrow(stat.f_bsize),
            namelen: narrow(stat.f_namemax),
            frsize: narrow(stat.f_frsize),
            ..abi::StatfsOut::default()
        });
        Ok(())
    }
}

fn timespec(given: bool, now: bool, secs: u64, nanos: u32) -> Timespec {
    let tv_nsec = match (given, now) {
        (false, _) => rustix::fs::UTIME_OMIT,
        (true, true) => rustix::fs::UTIME_NOW,
        (true, false) => nanos.into(),
    };
    Timespec {
        tv_sec: secs.cast_signed(),
        tv_nsec,
    }
}
