//! Folders: open, and list with or without attributes.
//!
//! An entry's offset is the cookie that the file system below gave for the entry after it, so a
//! listing can be continued anywhere, also by seekdir(3). `.` and `..` come from below like all others.

use std::mem::MaybeUninit;

use rustix::fs::{FileType, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use super::inode::lock;
use super::{PassthroughFs, data};
use crate::abi;
use crate::device::ReplyBuffer;
use crate::request::Caller;

/// Room for the longest entry of getdents64 and its alignment.
const LEAST_BUFFER: usize = 512;
const MOST_BUFFER: usize = 32 * 1024;

impl PassthroughFs {
    pub(super) fn opendir(
        &self,
        node: u64,
        caller: &Caller,
        _args: &abi::OpenIn,
        out: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let inode = self.inodes.get(node)?;
        let fd = {
            let _acting = self.identity.act_as(caller)?;
            self.open_inode(&inode, OFlags::RDONLY | OFlags::DIRECTORY)?
        };
        let handle = self.handles.insert(inode, fd);
        out.push(&abi::OpenOut {
            fh: handle.0,
            open_flags: 0,
            backing_id: 0,
        });
        Ok(())
    }

    pub(super) fn readdir(
        &self,
        args: &abi::ReadIn,
        plus: bool,
        out: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let handle = self.handles.get(args.fh)?;
        let limit = (args.size as usize).min(data::MAX_IO);
        // Ask below for about as much as fits into the reply: an entry is there at least 24 bytes,
        // here 32, or 160 with attributes. What does not fit after all is read again next time.
        let estimate = if plus { limit / 5 } else { limit / 4 * 3 };
        let mut space = [MaybeUninit::uninit(); MOST_BUFFER];
        let space = &mut space[..estimate.clamp(LEAST_BUFFER, MOST_BUFFER)];

        let mut position = lock(&handle.position);
        if *position != args.offset {
            rustix::fs::seek(&handle.fd, SeekFrom::Start(args.offset))?;
            *position = args.offset;
        }
        let mut entries = RawDir::new(&handle.fd, space);
        loop {
            // One bufferful a request, and never an empty reply before the end of the folder.
            if entries.is_buffer_empty() && out.len() > 0 {
                return Ok(());
            }
            let entry = match entries.next() {
                None => return Ok(()),
                Some(Ok(entry)) => entry,
                Some(Err(Errno::INTR)) => continue,
                Some(Err(_)) if out.len() > 0 => break,
                Some(Err(errno)) => return Err(errno),
            };
            let name = entry.file_name();
            let head = size_of::<abi::Dirent>() + if plus { size_of::<abi::EntryOut>() } else { 0 };
            let size = (head + name.count_bytes()).next_multiple_of(8);
            if out.len() + size > limit {
                break;
            }
            let mut ino = entry.ino();
            let mut kind = dirent_kind(entry.file_type());
            if plus {
                let told = match name.to_bytes() {
                    // The kernel knows these; it wants no entry for them.
                    b"." | b".." => abi::EntryOut::default(),
                    // Short of descriptors, or gone meanwhile: listed by name alone, node id 0.
                    _ if self.is_crowded() => abi::EntryOut::default(),
                    _ => self
                        .open_path(&handle.inode, name)
                        .and_then(|fd| self.entry(fd))
                        .map(|(_, entry)| entry)
                        .unwrap_or_default(),
                };
                if told.nodeid != 0 {
                    ino = told.attr.ino;
                    kind = told.attr.mode >> 12;
                }
                out.push(&told);
            }
            *position = entry.next_entry_cookie();
            out.push(&abi::Dirent {
                ino,
                off: entry.next_entry_cookie(),
                namelen: u32::try_from(name.count_bytes()).unwrap_or(u32::MAX),
                kind,
            });
            out.push_bytes(name.to_bytes());
            out.pad();
        }
        // The descriptor has run ahead of what was told: take it back when the kernel asks on.
        *position = u64::MAX;
        Ok(())
    }
}

/// The `d_type` of a file type: its format bits, shifted (`S_DT`).
fn dirent_kind(kind: FileType) -> u32 {
    match kind {
        FileType::Unknown => 0,
        known => known.as_raw_mode() >> 12,
    }
}
