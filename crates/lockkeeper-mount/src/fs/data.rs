//! Contents: open, read, write, fsync, fallocate, lseek, copy_file_range, release.
//!
//! The reader answers a read itself if the page cache below has it (`RWF_NOWAIT`), and does small writes
//! as long as they are quick (see `pace`), since handing over to a worker costs more than copying.
//! Everything that may wait for a disk goes to a worker. That
//! breaks no order that a program can see: its call returns only when the worker has answered, and the
//! kernel sends RELEASE only after the last such call on the file is over.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};

use super::inode::{Inode, IoMode, lock};
use super::{PassthroughFs, Place, Served};
use crate::abi::{self, fopen};
use crate::device::ReplyBuffer;
use crate::request::Caller;
use crate::sys;

/// The most that one READ may ask for, whatever the message says.
pub const MAX_IO: usize = 1 << 20;

impl PassthroughFs {
    /// The flags the server's own descriptor is opened with, for a caller's `flags`.
    pub(super) fn data_flags(&self, flags: u32) -> OFlags {
        // O_APPEND goes with each write (the caller can switch it by fcntl); O_DIRECT would want
        // aligned buffers, and the kernel has bypassed its cache already; O_NONBLOCK means nothing on
        // the files that reach us.
        let dropped = OFlags::APPEND
            | OFlags::DIRECT
            | OFlags::NONBLOCK
            | OFlags::NOFOLLOW
            | OFlags::PATH
            | OFlags::DIRECTORY
            | OFlags::TMPFILE;
        (OFlags::from_bits_retain(flags) - dropped) | OFlags::CLOEXEC | OFlags::NOCTTY
    }

    pub(super) fn open(
        &self,
        node: u64,
        caller: &Caller,
        args: &abi::OpenIn,
        place: Place,
        out: &mut ReplyBuffer,
    ) -> Result<Served, Errno> {
        let asked = OFlags::from_bits_retain(args.flags);
        let changes = asked.intersects(OFlags::TRUNC) || (asked & OFlags::RWMODE) != OFlags::RDONLY;
        if changes {
            self.writable()?;
        }
        if asked.contains(OFlags::TRUNC) && place == Place::Reader {
            return Ok(Served::Elsewhere);
        }
        let inode = self.inodes.get(node)?;
        let mut flags = self.data_flags(args.flags) - OFlags::CREATE - OFlags::EXCL;
        // A lease held at the source makes an open wait for its holder: never on the reader.
        if place == Place::Reader || asked.contains(OFlags::NONBLOCK) {
            flags |= OFlags::NONBLOCK;
        }
        let opened = {
            let _acting = self.identity.act_as(caller)?;
            self.open_inode(&inode, flags)
        };
        let file = match opened {
            Err(Errno::AGAIN) if place == Place::Reader && !asked.contains(OFlags::NONBLOCK) => {
                return Ok(Served::Elsewhere);
            }
            other => other?,
        };
        if args.open_flags & abi::OPEN_KILL_SUIDGID != 0 && asked.contains(OFlags::TRUNC) {
            self.strip_set_id(&inode)?;
        }
        self.opened(inode, file, args.flags, out);
        Ok(Served::Done)
    }

    /// Registers an open file and appends the record that tells the kernel how to use it.
    pub(super) fn opened(
        &self,
        inode: Arc<Inode>,
        file: OwnedFd,
        flags: u32,
        out: &mut ReplyBuffer,
    ) {
        let backing_id = self.join_io_mode(&inode, &file);
        let direct =
            self.options.direct_io || OFlags::from_bits_retain(flags).contains(OFlags::DIRECT);
        let open_flags = match backing_id {
            Some(_) => fopen::PASSTHROUGH,
            None if direct => fopen::DIRECT_IO,
            None => 0,
        };
        let handle = self.handles.insert(inode, file);
        out.push(&abi::OpenOut {
            fh: handle.0,
            open_flags,
            backing_id: backing_id.unwrap_or(0),
        });
    }

    /// Counts one more open file of the inode; the id of its backing file, if it has one.
    fn join_io_mode(&self, inode: &Inode, file: &OwnedFd) -> Option<i32> {
        let mut io = lock(&inode.io);
        match &mut *io {
            IoMode::Served { opens } => *opens += 1,
            IoMode::Backed { opens, .. } => *opens += 1,
            IoMode::Closed => *io = self.first_io_mode(file),
        }
        match *io {
            IoMode::Backed { id, .. } => Some(id),
            _ => None,
        }
    }

    fn first_io_mode(&self, file: &OwnedFd) -> IoMode {
        if self.backing.load(Ordering::Relaxed) {
            match crate::backing::register(&self.device, file.as_fd()) {
                Ok(id) => return IoMode::Backed { opens: 1, id },
                Err(errno) => {
                    tracing::warn!(%errno, "no backing file for an inode: its data goes through the server");
                }
            }
        }
        IoMode::Served { opens: 1 }
    }

    /// RELEASE: the last reference to an open file is gone.
    pub(super) fn release(&self, fh: u64) {
        let Some(handle) = self.handles.remove(fh) else {
            return;
        };
        let mut io = lock(&handle.inode.io);
        let closed = match &mut *io {
            IoMode::Closed => return,
            IoMode::Served { opens } | IoMode::Backed { opens, .. } => {
                *opens -= 1;
                *opens == 0
            }
        };
        if closed
            && let IoMode::Backed { id, .. } = std::mem::take(&mut *io)
            && let Err(errno) = sys::backing_close(self.device.file(), id)
        {
            tracing::warn!(%errno, "cannot give a backing file back");
        }
    }

    pub(super) fn read(
        &self,
        args: &abi::ReadIn,
        place: Place,
        out: &mut ReplyBuffer,
    ) -> Result<Served, Errno> {
        let handle = self.handles.get(args.fh)?;
        let window = out.window((args.size as usize).min(MAX_IO));
        let flags = match place {
            Place::Reader => ReadWriteFlags::NOWAIT,
            Place::Worker => ReadWriteFlags::empty(),
        };
        let mut done = 0;
        while done < window.len() {
            let offset = args.offset.checked_add(done as u64).ok_or(Errno::INVAL)?;
            let mut slices = [IoSliceMut::new(&mut window[done..])];
            match rustix::io::preadv2(&handle.fd, &mut slices, offset, flags) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(_) if place == Place::Reader => return Ok(Served::Elsewhere),
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        out.commit(done);
        Ok(Served::Done)
    }

    pub(super) fn write(
        &self,
        args: &abi::WriteIn,
        data: &[u8],
        place: Place,
        out: &mut ReplyBuffer,
    ) -> Result<Served, Errno> {
        let asked = OFlags::from_bits_retain(args.flags);
        let begin = (place == Place::Reader).then(Instant::now);
        if let Some(begin) = begin {
            // O_DSYNC is in O_SYNC.
            let must_wait = asked.intersects(OFlags::DSYNC | OFlags::DIRECT);
            if must_wait || !self.pace.allows(data.len(), begin) {
                return Ok(Served::Elsewhere);
            }
        }
        let handle = self.handles.get(args.fh)?;
        let flags = if asked.contains(OFlags::APPEND) {
            ReadWriteFlags::APPEND
        } else {
            ReadWriteFlags::empty()
        };
        let mut done = 0;
        while done < data.len() {
            let offset = args.offset.checked_add(done as u64).ok_or(Errno::FBIG)?;
            let slices = [IoSlice::new(&data[done..])];
            match rustix::io::pwritev2(&handle.fd, &slices, offset, flags) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        if let Some(begin) = begin {
            self.pace.took(begin, Instant::now());
        }
        if args.write_flags & abi::WRITE_KILL_SUIDGID != 0 {
            self.strip_set_id(&handle.inode)?;
        }
        out.push(&abi::WriteOut {
            size: u32::try_from(done).unwrap_or(u32::MAX),
            padding: 0,
        });
        Ok(Served::Done)
    }

    pub(super) fn fsync(&self, args: &abi::FsyncIn, place: Place) -> Result<Served, Errno> {
        if place == Place::Reader {
            return Ok(Served::Elsewhere);
        }
        let handle = self.handles.get(args.fh)?;
        if args.fsync_flags & abi::FSYNC_FDATASYNC != 0 {
            rustix::fs::fdatasync(&handle.fd)?;
        } else {
            rustix::fs::fsync(&handle.fd)?;
        }
        Ok(Served::Done)
    }

    pub(super) fn fallocate(
        &self,
        caller: &Caller,
        args: &abi::FallocateIn,
        place: Place,
    ) -> Result<Served, Errno> {
        if place == Place::Reader {
            return Ok(Served::Elsewhere);
        }
        let handle = self.handles.get(args.fh)?;
        let mode = FallocateFlags::from_bits_retain(args.mode);
        rustix::fs::fallocate(&handle.fd, mode, args.offset, args.length)?;
        self.strip_set_id_for(caller, &handle.inode)?;
        Ok(Served::Done)
    }

    pub(super) fn lseek(&self, args: &abi::LseekIn, out: &mut ReplyBuffer) -> Result<(), Errno> {
        let handle = self.handles.get(args.fh)?;
        let whence = match i32::try_from(args.whence) {
            Ok(libc::SEEK_DATA) => SeekFrom::Data(args.offset),
            Ok(libc::SEEK_HOLE) => SeekFrom::Hole(args.offset),
            // The kernel does the others itself.
            _ => return Err(Errno::INVAL),
        };
        out.push(&abi::LseekOut {
            offset: rustix::fs::seek(&handle.fd, whence)?,
        });
        Ok(())
    }

    pub(super) fn copy_file_range(
        &self,
        caller: &Caller,
        args: &abi::CopyFileRangeIn,
        wide: bool,
        place: Place,
        out: &mut ReplyBuffer,
    ) -> Result<Served, Errno> {
        if place == Place::Reader {
            return Ok(Served::Elsewhere);
        }
        if args.flags != 0 {
            return Err(Errno::INVAL);
        }
        let (from, to) = (
            self.handles.get(args.fh_in)?,
            self.handles.get(args.fh_out)?,
        );
        let (mut off_in, mut off_out) = (args.off_in, args.off_out);
        // The narrow reply has 32 bits for the count.
        let most = if wide {
            args.len
        } else {
            args.len.min(u64::from(u32::MAX) & !0xfff)
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let copied = rustix::fs::copy_file_range(
            &from.fd,
            Some(&mut off_in),
            &to.fd,
            Some(&mut off_out),
            most,
        )?;
        self.strip_set_id_for(caller, &to.inode)?;
        if wide {
            out.push(&abi::CopyFileRangeOut {
                bytes_copied: copied as u64,
            });
        } else {
            out.push(&abi::WriteOut {
                size: u32::try_from(copied).unwrap_or(u32::MAX),
                padding: 0,
            });
        }
        Ok(Served::Done)
    }
}
