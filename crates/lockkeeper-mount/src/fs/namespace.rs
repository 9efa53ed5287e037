//! Names: look up, create, link, rename, remove.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::inode::Inode;
use super::{PassthroughFs, Place, Served, decode_dev};
use crate::abi;
use crate::credentials::set_umask;
use crate::device::ReplyBuffer;
use crate::request::Caller;

impl PassthroughFs {
    /// LOOKUP. The kernel has checked that the caller may search the folder.
    pub(super) fn lookup(
        &self,
        parent: u64,
        name: &CStr,
        place: Place,
        out: &mut ReplyBuffer,
    ) -> Result<Served, Errno> {
        if self.is_crowded() {
            match place {
                Place::Reader => return Ok(Served::Elsewhere),
                Place::Worker => self.wait_for_room(),
            }
        }
        let dir = self.inodes.get(parent)?;
        match self.open_path(&dir, name) {
            Ok(fd) => self.tell(fd, out)?,
            // A node id of 0 lets the kernel remember for a while that the name is not there.
            Err(Errno::NOENT) => {
                out.push(&abi::EntryOut {
                    entry_valid: self.options.entry_timeout.as_secs(),
                    entry_valid_nsec: self.options.entry_timeout.subsec_nanos(),
                    ..abi::EntryOut::default()
                });
            }
            Err(errno) => return Err(errno),
        }
        Ok(Served::Done)
    }

    pub(super) fn readlink(&self, node: u64, out: &mut ReplyBuffer) -> Result<(), Errno> {
        let inode = self.inodes.get(node)?;
        let target = rustix::fs::readlinkat(inode.fd(), c"", Vec::new())?;
        out.push_bytes(target.to_bytes());
        Ok(())
    }

    pub(super) fn symlink(
        &self,
        parent: u64,
        caller: &Caller,
        name: &CStr,
        target: &CStr,
        out: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        self.make(parent, caller, 0, name, out, |dir| {
            rustix::fs::symlinkat(target, dir.fd(), name)
        })
    }

    pub(super) fn mknod(
        &self,
        parent: u64,
        caller: &Caller,
        args: &abi::MknodIn,
        name: &CStr,
        out: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        self.make(parent, caller, args.umask, name, out, |dir| {
            let kind = FileType::from_raw_mode(args.mode);
            let mode = Mode::from_raw_mode(args.mode & 0o7777);
            rustix::fs::mknodat(dir.fd(), name, kind, mode, decode_dev(args.rdev))
        })
    }

    pub(super) fn mkdir(
        &self,
        parent: u64,
        caller: &Caller,
        args: &abi::MkdirIn,
        name: &CStr,
        out: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        self.make(parent, caller, args.umask, name, out, |dir| {
            rustix::fs::mkdirat(dir.fd(), name, Mode::from_raw_mode(args.mode & 0o7777))
        })
    }

    pub(super) fn link(
        &self,
        parent: u64,
        old: u64,
        caller: &Caller,
        name: &CStr,
        out: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let old = self.inodes.get(old)?;
        self.make(parent, caller, 0, name, out, |dir| {
            // Not AT_EMPTY_PATH: that needs a capability which the caller does not have.
            rustix::fs::linkat(
                &self.proc_fd,
                old.proc_name(),
                dir.fd(),
                name,
                AtFlags::SYMLINK_FOLLOW,
            )
        })
    }

    /// Makes something as the caller would, and tells the kernel of it.
    fn make(
        &self,
        parent: u64,
        caller: &Caller,
        umask: u32,
        name: &CStr,
        out: &mut ReplyBuffer,
        create: impl FnOnce(&Inode) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.writable()?;
        let dir = self.inodes.get(parent)?;
        {
            let _acting = self.identity.act_as(caller)?;
            set_umask(umask);
            create(&dir)?;
        }
        let fd = self.open_path(&dir, name)?;
        self.tell(fd, out)
    }

    fn tell(&self, fd: OwnedFd, out: &mut ReplyBuffer) -> Result<(), Errno> {
        let (_, entry) = self.entry(fd)?;
        out.push(&entry);
        Ok(())
    }

    pub(super) fn unlink(
        &self,
        parent: u64,
        caller: &Caller,
        name: &CStr,
        flags: AtFlags,
    ) -> Result<(), Errno> {
        self.writable()?;
        let dir = self.inodes.get(parent)?;
        let _acting = self.identity.act_as(caller)?;
        rustix::fs::unlinkat(dir.fd(), name, flags)
    }

    pub(super) fn rename(
        &self,
        parent: u64,
        new_parent: u64,
        caller: &Caller,
        name: &CStr,
        new_name: &CStr,
        flags: u32,
    ) -> Result<(), Errno> {
        self.writable()?;
        let (dir, new_dir) = (self.inodes.get(parent)?, self.inodes.get(new_parent)?);
        let flags = RenameFlags::from_bits_retain(flags);
        let _acting = self.identity.act_as(caller)?;
        rustix::fs::renameat_with(dir.fd(), name, new_dir.fd(), new_name, flags)
    }

    /// CREATE: make (or find) a file and open it, in one step.
    pub(super) fn create(
        &self,
        parent: u64,
        caller: &Caller,
        args: &abi::CreateIn,
        name: &CStr,
        out: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        self.writable()?;
        let dir = self.inodes.get(parent)?;
        let flags = self.data_flags(args.flags) | OFlags::CREATE | OFlags::NOFOLLOW;
        let file = {
            let _acting = self.identity.act_as(caller)?;
            set_umask(args.umask);
            rustix::fs::openat(
                dir.fd(),
                name,
                flags,
                Mode::from_raw_mode(args.mode & 0o7777),
            )?
        };
        self.created(file, args.flags, out)
    }

    /// TMPFILE: a file without a name.
    pub(super) fn tmpfile(
        &self,
        parent: u64,
        caller: &Caller,
        args: &abi::CreateIn,
        out: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        self.writable()?;
        let dir = self.inodes.get(parent)?;
        let kept = OFlags::CREATE.union(OFlags::TRUNC).complement();
        let flags = (self.data_flags(args.flags) & kept) | OFlags::TMPFILE;
        let file = {
            let _acting = self.identity.act_as(caller)?;
            set_umask(args.umask);
            let mode = Mode::from_raw_mode(args.mode & 0o7777);
            rustix::fs::openat(&self.proc_fd, dir.proc_name(), flags, mode)?
        };
        self.created(file, args.flags, out)
    }

    /// Tells the kernel of a file just created and opened.
    fn created(&self, file: OwnedFd, flags: u32, out: &mut ReplyBuffer) -> Result<(), Errno> {
        let path = self.reopen(&file, OFlags::PATH)?;
        let (inode, entry) = self.entry(path)?;
        out.push(&entry);
        self.opened(inode, file, flags, out);
        Ok(())
    }

    /// Opens once more what `fd` refers to.
    fn reopen(&self, fd: &impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
        use std::os::fd::AsRawFd;
        let name = fd.as_fd().as_raw_fd().to_string();
        rustix::fs::openat(&self.proc_fd, name, flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// Opens an inode as the rights of the thread allow.
    pub(super) fn open_inode(&self, inode: &Arc<Inode>, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = (flags | OFlags::CLOEXEC) - OFlags::NOFOLLOW;
        rustix::fs::openat(&self.proc_fd, inode.proc_name(), flags, Mode::empty())
    }
}
