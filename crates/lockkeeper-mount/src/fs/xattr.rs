//! Extended attributes, access lists among them.

use std::ffi::CStr;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::PassthroughFs;
use crate::abi;
use crate::device::ReplyBuffer;
use crate::request::Caller;

/// Linux's limit for one value and for one list of names.
const MOST: usize = 64 * 1024;

impl PassthroughFs {
    fn xattr_path(
        &self,
        node: u64,
    ) -> Result<(std::sync::Arc<super::inode::Inode>, String), Errno> {
        let inode = self.inodes.get(node)?;
        let path = format!("/proc/self/fd/{}", inode.proc_name());
        Ok((inode, path))
    }

    pub(super) fn setxattr(
        &self,
        node: u64,
        caller: &Caller,
        name: &CStr,
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        self.writable()?;
        let (_inode, path) = self.xattr_path(node)?;
        let _acting = self.identity.act_as(caller)?;
        rustix::fs::setxattr(path, name, value, XattrFlags::from_bits_retain(flags))
    }

    pub(super) fn removexattr(&self, node: u64, caller: &Caller, name: &CStr) -> Result<(), Errno> {
        self.writable()?;
        let (_inode, path) = self.xattr_path(node)?;
        let _acting = self.identity.act_as(caller)?;
        rustix::fs::removexattr(path, name)
    }

    pub(super) fn getxattr(
        &self,
        node: u64,
        caller: &Caller,
        name: &CStr,
        size: u32,
        out: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let (_inode, path) = self.xattr_path(node)?;
        let is_acl = name.to_bytes().starts_with(b"system.posix_acl_");
        // The kernel itself needs access lists to check a permission, whoever asks; a user's
        // attributes are guarded by the file's mode, which is checked here once more.
        let needs_rights = !is_acl && name.to_bytes().starts_with(b"user.");
        let _acting = match needs_rights {
            true => Some(self.identity.act_as(caller)?),
            false => None,
        };
        let result = if size == 0 {
            rustix::fs::getxattr(&path, name, &mut [0_u8; 0]).map(|size| push_size(size, out))
        } else {
            let window = out.window((size as usize).min(MOST));
            rustix::fs::getxattr(&path, name, window).map(|size| out.commit(size))
        };
        match result {
            // "No access lists here" would fail the permission check that asked; "none set" is right.
            Err(Errno::OPNOTSUPP) if is_acl => Err(Errno::NODATA),
            other => other,
        }
    }

    pub(super) fn listxattr(
        &self,
        node: u64,
        caller: &Caller,
        size: u32,
        out: &mut ReplyBuffer,
    ) -> Result<(), Errno> {
        let (_inode, path) = self.xattr_path(node)?;
        let mut names = vec![0_u8; MOST];
        let len = rustix::fs::listxattr(path, &mut names[..])?;
        names.truncate(len);
        if caller.uid != 0 {
            // The server sees these by a capability that the caller does not have.
            names = names
                .split_inclusive(|&byte| byte == 0)
                .filter(|name| !name.starts_with(b"trusted."))
                .flatten()
                .copied()
                .collect();
        }
        if size == 0 {
            push_size(names.len(), out);
        } else if names.len() > size as usize {
            return Err(Errno::RANGE);
        } else {
            out.push_bytes(&names);
        }
        Ok(())
    }
}

fn push_size(size: usize, out: &mut ReplyBuffer) {
    out.push(&abi::GetxattrOut {
        size: u32::try_from(size).unwrap_or(u32::MAX),
        padding: 0,
    });
}
