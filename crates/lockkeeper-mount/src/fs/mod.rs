//! The file system: what is at the source, passed through.
//!
//! `namespace` has what works on names, `attr` what works on attributes, `data` what works on contents,
//! `dir` lists folders, `xattr` the extended attributes, `inode` holds what the kernel knows.

mod attr;
mod data;
mod dir;
pub mod inode;
mod namespace;
mod pace;
mod reclaim;
mod xattr;

use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

use crate::abi;
use crate::credentials::Identity;
use crate::device::{Device, ReplyBuffer};
use crate::locks::FileId;
use crate::request::{Operation, Request};
use inode::{HandleTable, InodeTable};

/// How the file system behaves.
#[derive(Clone, Debug)]
pub struct FsOptions {
    /// Refuse every change with `EROFS`.
    pub read_only: bool,
    /// How long the kernel may use a name without asking again.
    pub entry_timeout: Duration,
    /// How long the kernel may use attributes without asking again.
    pub attr_timeout: Duration,
    /// Send every read and write here (needed where locks are mandatory): no backing files, no cache.
    pub direct_io: bool,
    /// Use backing files where the kernel has them.
    pub passthrough: bool,
}

/// Where a request is being served, and so whether it may take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the one reader: whatever may wait for a disk is refused with [`Served::Elsewhere`].
    Reader,
    /// On a worker: take all the time it takes.
    Worker,
}

/// What listings say of a file.
#[derive(Clone, Debug)]
pub struct FilePlace {
    /// Below the root; of an unlinked file, where it was.
    pub path: PathBuf,
    /// Whether it is unlinked.
    pub deleted: bool,
    /// The inode number that programs see.
    pub inode: u64,
    /// In bytes.
    pub size: u64,
}

/// Says where files are.
#[derive(Debug)]
pub struct Places<'a> {
    fs: &'a PassthroughFs,
    /// Where the root is at the source.
    root: Option<PathBuf>,
}

impl Places<'_> {
    /// Where a file is that the kernel knows; `None` if it does not, or it cannot be told.
    pub fn of(&self, file: FileId) -> Option<FilePlace> {
        let fs = self.fs;
        let inode = fs.inodes.get(fs.inodes.node_of(file)?).ok()?;
        // From a source that does not answer: what is known of the file without asking.
        let known = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(inode.fd(), c"", known, StatxFlags::BASIC_STATS).ok()?;
        let absolute = fs.path_of(&inode)?;
        let root = self.root.as_ref()?;
        let mut path = absolute.strip_prefix(root).unwrap_or(&absolute).to_owned();
        let deleted = stat.stx_nlink == 0;
        // What the kernel appends to the name of an unlinked file.
        if deleted && let Some(kept) = path.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
            path = OsStr::from_bytes(kept).into();
        }
        Some(FilePlace {
            path,
            deleted,
            inode: fs.shown_ino(&stat),
            size: stat.stx_size,
        })
    }
}

/// What became of a request.
#[derive(Debug)]
pub enum Served {
    /// Done; the body is in the reply buffer.
    Done,
    /// Done, and the kernel wants no reply.
    Silent,
    /// It may wait for a disk or a lease: a worker must do it.
    Elsewhere,
}

/// The source, as a FUSE file system.
#[derive(Debug)]
pub struct PassthroughFs {
    options: FsOptions,
    identity: Identity,
    inodes: InodeTable,
    handles: HandleTable,
    /// `/proc/self/fd`: the way from an `O_PATH` descriptor to calls that want a path.
    proc_fd: OwnedFd,
    root_dev: u64,
    device: Arc<Device>,
    backing: AtomicBool,
    setxattr_ext: AtomicBool,
    room: reclaim::Room,
    pace: pace::Pace,
}

impl PassthroughFs {
    /// Shows the folder `root` (an `O_PATH` descriptor).
    ///
    /// # Errors
    /// If `/proc` is not mounted or the folder cannot be looked at.
    pub fn new(root: OwnedFd, device: Arc<Device>, options: FsOptions) -> Result<Self, Errno> {
        let proc_fd = rustix::fs::open(
            "/proc/self/fd",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let stat = stat_fd(&root)?;
        let id = file_id(&stat);
        Ok(PassthroughFs {
            options,
            identity: Identity::detect(),
            inodes: InodeTable::new(root, id),
            handles: HandleTable::default(),
            proc_fd,
            root_dev: id.dev,
            device,
            backing: AtomicBool::new(false),
            setxattr_ext: AtomicBool::new(false),
            room: reclaim::Room::of_this_process(),
            pace: pace::Pace::default(),
        })
    }

    /// Says what INIT negotiated.
    pub fn negotiated(&self, backing: bool, setxattr_ext: bool) {
        self.backing.store(backing, Ordering::Relaxed);
        self.setxattr_ext.store(setxattr_ext, Ordering::Relaxed);
    }

    /// Whether SETXATTR comes in its long form.
    pub fn setxattr_ext(&self) -> bool {
        self.setxattr_ext.load(Ordering::Relaxed)
    }

    /// How it behaves.
    pub fn options(&self) -> &FsOptions {
        &self.options
    }

    /// Known inodes and open handles.
    pub fn counts(&self) -> (usize, usize) {
        (self.inodes.len(), self.handles.len())
    }

    /// The file that the open handle `fh` is on.
    ///
    /// # Errors
    /// `EBADF` if there is no such handle.
    pub fn file_of(&self, fh: u64) -> Result<FileId, Errno> {
        Ok(self.handles.get(fh)?.inode.id)
    }

    /// The file that the kernel calls `nodeid`.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode.
    pub fn file_of_node(&self, nodeid: u64) -> Result<FileId, Errno> {
        Ok(self.inodes.get(nodeid)?.id)
    }

    /// The size of the file that the kernel calls `nodeid`.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode; what statx(2) says.
    pub fn size_of_node(&self, nodeid: u64) -> Result<u64, Errno> {
        Ok(stat_fd(self.inodes.get(nodeid)?.fd())?.stx_size)
    }

    /// Where files are, for as many as are wanted now.
    pub fn places(&self) -> Places<'_> {
        let root = self.inodes.get(abi::ROOT_ID).ok();
        Places {
            fs: self,
            root: root.and_then(|root| self.path_of(&root)),
        }
    }

    /// Where it is at the source.
    fn path_of(&self, inode: &inode::Inode) -> Option<PathBuf> {
        let link = rustix::fs::readlinkat(&self.proc_fd, inode.proc_name(), Vec::new()).ok()?;
        Some(PathBuf::from(OsString::from_vec(link.into_bytes())))
    }

    /// Serves one request about files. Locks, FLUSH, INIT and INTERRUPT are not its business.
    ///
    /// # Errors
    /// The errno for the caller.
    pub fn serve(
        &self,
        request: &Request<'_>,
        place: Place,
        out: &mut ReplyBuffer,
    ) -> Result<Served, Errno> {
        let (node, caller) = (request.nodeid, &request.caller);
        match &request.operation {
            Operation::Lookup { name } => return self.lookup(node, name, place, out),
            Operation::Forget { nlookup } => {
                self.inodes.forget(node, *nlookup);
                return Ok(Served::Silent);
            }
            Operation::BatchForget { items } => {
                for item in crate::request::forget_items(items) {
                    self.inodes.forget(item.nodeid, item.nlookup);
                }
                return Ok(Served::Silent);
            }
            Operation::Getattr { fh } => self.getattr(node, *fh, out)?,
            Operation::Setattr(args) => return self.setattr(node, caller, args, place, out),
            Operation::Readlink => self.readlink(node, out)?,
            Operation::Symlink { name, target } => self.symlink(node, caller, name, target, out)?,
            Operation::Mknod { args, name } => self.mknod(node, caller, args, name, out)?,
            Operation::Mkdir { args, name } => self.mkdir(node, caller, args, name, out)?,
            Operation::Unlink { name } => self.unlink(node, caller, name, AtFlags::empty())?,
            Operation::Rmdir { name } => self.unlink(node, caller, name, AtFlags::REMOVEDIR)?,
            Operation::Rename {
                newdir,
                flags,
                name,
                newname,
            } => {
                self.rename(node, *newdir, caller, name, newname, *flags)?;
            }
            Operation::Link { oldnodeid, name } => {
                self.link(node, *oldnodeid, caller, name, out)?
            }
            Operation::Open(args) => return self.open(node, caller, args, place, out),
            Operation::Create { args, name } => self.create(node, caller, args, name, out)?,
            Operation::Tmpfile { args } => self.tmpfile(node, caller, args, out)?,
            Operation::Read(args) => return self.read(args, place, out),
            Operation::Write { args, data } => return self.write(args, data, place, out),
            Operation::Release(args) => self.release(args.fh),
            Operation::Fsync(args) | Operation::Fsyncdir(args) => {
                return self.fsync(args, place);
            }
            Operation::Fallocate(args) => return self.fallocate(caller, args, place),
            Operation::Lseek(args) => self.lseek(args, out)?,
            Operation::CopyFileRange { args, wide } => {
                return self.copy_file_range(caller, args, *wide, place, out);
            }
            Operation::Statfs => self.statfs(node, out)?,
            Operation::Setxattr { flags, name, value } => {
                self.setxattr(node, caller, name, value, *flags)?;
            }
            Operation::Getxattr { size, name } => self.getxattr(node, caller, name, *size, out)?,
            Operation::Listxattr { size } => self.listxattr(node, caller, *size, out)?,
            Operation::Removexattr { name } => self.removexattr(node, caller, name)?,
            Operation::Opendir(args) => self.opendir(node, caller, args, out)?,
            Operation::Readdir { args, plus } => self.readdir(args, *plus, out)?,
            Operation::Releasedir(args) => drop(self.handles.remove(args.fh)),
            _ => return Err(Errno::NOSYS),
        }
        Ok(Served::Done)
    }

    /// Refuses changes where there may be none.
    fn writable(&self) -> Result<(), Errno> {
        if self.options.read_only {
            Err(Errno::ROFS)
        } else {
            Ok(())
        }
    }

    /// A record that tells the kernel of an inode, and counts one lookup of it.
    fn entry(&self, fd: OwnedFd) -> Result<(Arc<inode::Inode>, abi::EntryOut), Errno> {
        let stat = stat_fd(&fd)?;
        let inode = self.inodes.remember(fd, file_id(&stat));
        let attr_timeout = self.attr_timeout(&stat);
        let entry = abi::EntryOut {
            nodeid: inode.nodeid,
            generation: 0, // Numbers are never reused, so they need no generation.
            entry_valid: self.options.entry_timeout.as_secs(),
            entry_valid_nsec: self.options.entry_timeout.subsec_nanos(),
            attr_valid: attr_timeout.as_secs(),
            attr_valid_nsec: attr_timeout.subsec_nanos(),
            attr: self.attr(&stat),
        };
        Ok((inode, entry))
    }

    /// How long the kernel may believe these attributes.
    ///
    /// Not at all where set-id bits are: a write to the backing file takes them off without the
    /// kernel's noticing, and it must not run the changed program with them.
    fn attr_timeout(&self, stat: &Statx) -> Duration {
        match u32::from(stat.stx_mode) & 0o6000 {
            0 => self.options.attr_timeout,
            _ => Duration::ZERO,
        }
    }

    /// The protocol's form of attributes.
    fn attr(&self, stat: &Statx) -> abi::Attr {
        abi::Attr {
            ino: self.shown_ino(stat),
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            // The kernel reads the seconds as signed.
            atime: stat.stx_atime.tv_sec.cast_unsigned(),
            mtime: stat.stx_mtime.tv_sec.cast_unsigned(),
            ctime: stat.stx_ctime.tv_sec.cast_unsigned(),
            atimensec: stat.stx_atime.tv_nsec,
            mtimensec: stat.stx_mtime.tv_nsec,
            ctimensec: stat.stx_ctime.tv_nsec,
            mode: u32::from(stat.stx_mode),
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            rdev: encode_dev(stat.stx_rdev_major, stat.stx_rdev_minor),
            blksize: stat.stx_blksize,
            flags: 0,
        }
    }

    /// The inode number that programs see: the source's own, and for file systems mounted further
    /// down one that does not collide with it (the mount shows one device number for all).
    fn shown_ino(&self, stat: &Statx) -> u64 {
        let dev = file_id(stat).dev;
        if dev == self.root_dev {
            stat.stx_ino
        } else {
            stat.stx_ino ^ (dev << 40)
        }
    }

    fn open_path(&self, dir: &inode::Inode, name: &CStr) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(
            dir.fd(),
            name,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )
    }
}

/// Opens a folder to be shown, as [`PassthroughFs::new`] wants it.
///
/// # Errors
/// What open(2) says.
pub fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

fn stat_fd(fd: impl AsFd) -> Result<Statx, Errno> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

fn file_id(stat: &Statx) -> FileId {
    FileId {
        dev: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
        ino: stat.stx_ino,
    }
}

/// The kernel's 32-bit form of a device number (`new_encode_dev`).
fn encode_dev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The inverse of [`encode_dev`], for mknod.
fn decode_dev(dev: u32) -> u64 {
    rustix::fs::makedev((dev & 0xfff00) >> 8, (dev & 0xff) | ((dev >> 12) & 0xfff00))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_protocol() {
        for (major, minor) in [(0, 0), (8, 1), (259, 300), (0xfff, 0xf_ffff)] {
            assert_eq!(
                decode_dev(encode_dev(major, minor)),
                rustix::fs::makedev(major, minor),
                "{major}:{minor}"
            );
        }
    }
}
