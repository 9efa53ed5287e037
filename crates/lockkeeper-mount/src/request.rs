//! Decodes one message of the kernel, strictly.
//!
//! The kernel is trusted to be the kernel, but the decoder does not lean on that: a message that is
//! short, overlong, garbled or names something outside the folder (`..`, a slash) is refused with
//! `EINVAL` here, before any code that acts sees it. Nothing in this file panics or allocates on
//! account of a number in a message.

use std::ffi::CStr;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::abi::{self, op};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// File-system user id of the caller.
    pub uid: u32,
    /// File-system group id of the caller.
    pub gid: u32,
    /// The calling thread in the server's pid namespace; 0 where it is not visible.
    pub tid: u32,
    /// A supplementary group that the kernel named in an extension of the message: the parent
    /// folder's group, if the caller is a member.
    pub group_hint: Option<u32>,
}

/// One message, decoded; names and data still lie in the buffer it was read into.
#[derive(Debug)]
pub struct Request<'a> {
    /// The kernel's number of this request; a reply names it.
    pub unique: u64,
    /// The inode it is about.
    pub nodeid: u64,
    /// Who asks.
    pub caller: Caller,
    /// What is asked.
    pub operation: Operation<'a>,
}

/// What a message asks for.
#[derive(Debug)]
#[allow(missing_docs)] // Field names are the protocol's.
pub enum Operation<'a> {
    Init {
        head: abi::InitIn,
        flags: u64,
    },
    Destroy,
    Interrupt {
        unique: u64,
    },
    Lookup {
        name: &'a CStr,
    },
    Forget {
        nlookup: u64,
    },
    BatchForget {
        items: &'a [u8],
    },
    Getattr {
        fh: Option<u64>,
    },
    Setattr(abi::SetattrIn),
    Readlink,
    Symlink {
        name: &'a CStr,
        target: &'a CStr,
    },
    Mknod {
        args: abi::MknodIn,
        name: &'a CStr,
    },
    Mkdir {
        args: abi::MkdirIn,
        name: &'a CStr,
    },
    Unlink {
        name: &'a CStr,
    },
    Rmdir {
        name: &'a CStr,
    },
    Rename {
        newdir: u64,
        flags: u32,
        name: &'a CStr,
        newname: &'a CStr,
    },
    Link {
        oldnodeid: u64,
        name: &'a CStr,
    },
    Open(abi::OpenIn),
    Create {
        args: abi::CreateIn,
        name: &'a CStr,
    },
    Tmpfile {
        args: abi::CreateIn,
    },
    Read(abi::ReadIn),
    Write {
        args: abi::WriteIn,
        data: &'a [u8],
    },
    Flush(abi::FlushIn),
    Release(abi::ReleaseIn),
    Fsync(abi::FsyncIn),
    Fallocate(abi::FallocateIn),
    Lseek(abi::LseekIn),
    CopyFileRange {
        args: abi::CopyFileRangeIn,
        wide: bool,
    },
    Statfs,
    Setxattr {
        flags: u32,
        name: &'a CStr,
        value: &'a [u8],
    },
    Getxattr {
        size: u32,
        name: &'a CStr,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a CStr,
    },
    Opendir(abi::OpenIn),
    Readdir {
        args: abi::ReadIn,
        plus: bool,
    },
    Releasedir(abi::ReleaseIn),
    Fsyncdir(abi::FsyncIn),
    Getlk(abi::LkIn),
    Setlk {
        args: abi::LkIn,
        wait: bool,
    },
    /// An opcode this server does not know; the kernel is told `ENOSYS` and does without.
    Unknown {
        opcode: u32,
    },
}

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not even a header: there is nobody to answer.
    #[error("message of {0} bytes has no complete header")]
    NoHeader(usize),
    /// The header is good, the body is not.
    #[error("request {unique} with opcode {opcode} is malformed: {why}")]
    Body {
        /// Number of the request, to answer it with `EINVAL`.
        unique: u64,
        /// Its opcode.
        opcode: u32,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl Malformed {
    /// The request to answer and the errno to answer with, if there is one.
    pub fn reply(&self) -> Option<(u64, Errno)> {
        match *self {
            Malformed::NoHeader(_) => None,
            // FORGET, BATCH_FORGET and INTERRUPT are never answered.
            Malformed::Body {
                opcode: op::FORGET | op::BATCH_FORGET | op::INTERRUPT,
                ..
            } => None,
            Malformed::Body { unique, .. } => Some((unique, Errno::INVAL)),
        }
    }
}

/// The rest of a body, eaten from the front.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn record<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, &'static str> {
        let (record, rest) = T::read_from_prefix(self.0).map_err(|_| "body too short")?;
        self.0 = rest;
        Ok(record)
    }

    fn c_str(&mut self) -> Result<&'a CStr, &'static str> {
        let text = CStr::from_bytes_until_nul(self.0).map_err(|_| "string without an end")?;
        self.0 = &self.0[text.count_bytes() + 1..];
        Ok(text)
    }

    /// A name in a folder: one component, and neither `.` nor `..`.
    fn name(&mut self) -> Result<&'a CStr, &'static str> {
        let name = self.c_str()?;
        match name.to_bytes() {
            b"" => Err("empty name"),
            b"." | b".." => Err("name is a dot folder"),
            bytes if bytes.contains(&b'/') => Err("name with a slash"),
            _ => Ok(name),
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let (data, rest) = self
            .0
            .split_at_checked(len)
            .ok_or("less data than announced")?;
        self.0 = rest;
        Ok(data)
    }
}

impl<'a> Request<'a> {
    /// Decodes `message`, which is exactly what one read of the device returned.
    ///
    /// `setxattr_ext` says whether the long SETXATTR record was negotiated at INIT.
    ///
    /// # Errors
    /// [`Malformed`] for anything the protocol does not allow.
    pub fn decode(message: &'a [u8], setxattr_ext: bool) -> Result<Request<'a>, Malformed> {
        let (header, body) = abi::InHeader::read_from_prefix(message)
            .map_err(|_| Malformed::NoHeader(message.len()))?;
        let refuse = |why| Malformed::Body {
            unique: header.unique,
            opcode: header.opcode,
            why,
        };
        if header.len as usize != message.len() {
            return Err(refuse("length in the header differs from the message's"));
        }
        let extensions = usize::from(header.total_extlen) * 8;
        let Some(split) = body.len().checked_sub(extensions) else {
            return Err(refuse("extensions longer than the body"));
        };
        let (body, extensions) = body.split_at(split);
        let group_hint = group_hint(extensions).map_err(refuse)?;
        let operation = operation(header.opcode, Body(body), setxattr_ext).map_err(refuse)?;
        Ok(Request {
            unique: header.unique,
            nodeid: header.nodeid,
            caller: Caller {
                uid: header.uid,
                gid: header.gid,
                tid: header.pid,
                group_hint,
            },
            operation,
        })
    }
}

/// Reads the supplementary group out of the extensions, if there is one.
fn group_hint(mut rest: &[u8]) -> Result<Option<u32>, &'static str> {
    let mut hint = None;
    while !rest.is_empty() {
        let (head, _) =
            abi::ExtHeader::read_from_prefix(rest).map_err(|_| "extension too short")?;
        let size = head.size as usize;
        if size < size_of::<abi::ExtHeader>() || size > rest.len() {
            return Err("extension with a wrong size");
        }
        let (extension, others) = rest.split_at(size);
        if head.kind == abi::EXT_GROUPS {
            let mut body = Body(&extension[size_of::<abi::ExtHeader>()..]);
            let count: u32 = body.record()?;
            if count > 0 {
                hint = Some(body.record::<u32>()?);
            }
        }
        // Records are padded to 8 bytes; the last one may go without.
        rest = others
            .get(size.next_multiple_of(8) - size..)
            .unwrap_or_default();
    }
    Ok(hint)
}

fn operation<'a>(
    opcode: u32,
    mut body: Body<'a>,
    setxattr_ext: bool,
) -> Result<Operation<'a>, &'static str> {
    Ok(match opcode {
        op::INIT => {
            let head: abi::InitIn = body.record()?;
            let mut flags = u64::from(head.flags);
            if flags & abi::init::INIT_EXT != 0 {
                let ext: abi::InitInExt = body.record()?;
                flags |= u64::from(ext.flags2) << 32;
            }
            Operation::Init { head, flags }
        }
        op::DESTROY => Operation::Destroy,
        op::INTERRUPT => Operation::Interrupt {
            unique: body.record::<abi::InterruptIn>()?.unique,
        },
        op::LOOKUP => Operation::Lookup { name: body.name()? },
        op::FORGET => Operation::Forget {
            nlookup: body.record::<abi::ForgetIn>()?.nlookup,
        },
        op::BATCH_FORGET => {
            let head: abi::BatchForgetIn = body.record()?;
            let bytes = (head.count as usize)
                .checked_mul(size_of::<abi::ForgetOne>())
                .ok_or("too many forgets")?;
            Operation::BatchForget {
                items: body.take(bytes)?,
            }
        }
        op::GETATTR => {
            let args: abi::GetattrIn = body.record()?;
            Operation::Getattr {
                fh: (args.getattr_flags & abi::GETATTR_FH != 0).then_some(args.fh),
            }
        }
        op::SETATTR => Operation::Setattr(body.record()?),
        op::READLINK => Operation::Readlink,
        op::SYMLINK => Operation::Symlink {
            name: body.name()?,
            target: body.c_str()?,
        },
        op::MKNOD => Operation::Mknod {
            args: body.record()?,
            name: body.name()?,
        },
        op::MKDIR => Operation::Mkdir {
            args: body.record()?,
            name: body.name()?,
        },
        op::UNLINK => Operation::Unlink { name: body.name()? },
        op::RMDIR => Operation::Rmdir { name: body.name()? },
        op::RENAME => {
            let args: abi::RenameIn = body.record()?;
            let (name, newname) = (body.name()?, body.name()?);
            Operation::Rename {
                newdir: args.newdir,
                flags: 0,
                name,
                newname,
            }
        }
        op::RENAME2 => {
            let args: abi::Rename2In = body.record()?;
            let (name, newname) = (body.name()?, body.name()?);
            Operation::Rename {
                newdir: args.newdir,
                flags: args.flags,
                name,
                newname,
            }
        }
        op::LINK => {
            let args: abi::LinkIn = body.record()?;
            Operation::Link {
                oldnodeid: args.oldnodeid,
                name: body.name()?,
            }
        }
        op::OPEN => Operation::Open(body.record()?),
        op::CREATE => Operation::Create {
            args: body.record()?,
            name: body.name()?,
        },
        // The name that comes with TMPFILE is made up by the kernel and means nothing.
        op::TMPFILE => Operation::Tmpfile {
            args: body.record()?,
        },
        op::READ => Operation::Read(body.record()?),
        op::WRITE => {
            let args: abi::WriteIn = body.record()?;
            Operation::Write {
                args,
                data: body.take(args.size as usize)?,
            }
        }
        op::FLUSH => Operation::Flush(body.record()?),
        op::RELEASE => Operation::Release(body.record()?),
        op::FSYNC => Operation::Fsync(body.record()?),
        op::FALLOCATE => Operation::Fallocate(body.record()?),
        op::LSEEK => Operation::Lseek(body.record()?),
        op::COPY_FILE_RANGE => Operation::CopyFileRange {
            args: body.record()?,
            wide: false,
        },
        op::COPY_FILE_RANGE_64 => Operation::CopyFileRange {
            args: body.record()?,
            wide: true,
        },
        op::STATFS => Operation::Statfs,
        op::SETXATTR => {
            // Without SETXATTR_EXT the record ends after its first two fields.
            let (size, flags): (u32, u32) = (body.record()?, body.record()?);
            if setxattr_ext {
                let _setxattr_flags_and_padding: u64 = body.record()?;
            }
            let name = body.c_str()?;
            Operation::Setxattr {
                flags,
                name,
                value: body.take(size as usize)?,
            }
        }
        op::GETXATTR => {
            let args: abi::GetxattrIn = body.record()?;
            Operation::Getxattr {
                size: args.size,
                name: body.c_str()?,
            }
        }
        op::LISTXATTR => Operation::Listxattr {
            size: body.record::<abi::GetxattrIn>()?.size,
        },
        op::REMOVEXATTR => Operation::Removexattr {
            name: body.c_str()?,
        },
        op::OPENDIR => Operation::Opendir(body.record()?),
        op::READDIR => Operation::Readdir {
            args: body.record()?,
            plus: false,
        },
        op::READDIRPLUS => Operation::Readdir {
            args: body.record()?,
            plus: true,
        },
        op::RELEASEDIR => Operation::Releasedir(body.record()?),
        op::FSYNCDIR => Operation::Fsyncdir(body.record()?),
        op::GETLK => Operation::Getlk(body.record()?),
        op::SETLK => Operation::Setlk {
            args: body.record()?,
            wait: false,
        },
        op::SETLKW => Operation::Setlk {
            args: body.record()?,
            wait: true,
        },
        opcode => Operation::Unknown { opcode },
    })
}

/// The records in the body of a BATCH_FORGET.
pub fn forget_items(items: &[u8]) -> impl Iterator<Item = abi::ForgetOne> + '_ {
    items
        .chunks_exact(size_of::<abi::ForgetOne>())
        .filter_map(|item| abi::ForgetOne::read_from_bytes(item).ok())
}
