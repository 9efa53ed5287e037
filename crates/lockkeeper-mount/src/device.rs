//! The FUSE device: one message a read, one reply a write.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::abi;

/// An open connection to the kernel. Shared by all who answer requests.
#[derive(Debug)]
pub struct Device(File);

impl Device {
    /// Wraps the descriptor that `/dev/fuse` or fusermount3 gave.
    pub fn new(fd: OwnedFd) -> Device {
        Device(File::from(fd))
    }

    /// The descriptor, for the ioctls of the device.
    pub fn file(&self) -> &File {
        &self.0
    }

    /// Whether [`receive`](Device::receive) would return at once, with a message or with the news that the mount is
    /// gone. Another reader may come first.
    pub fn has_message(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        // If it cannot be asked, the read tells why.
        !matches!(poll(&mut polled, Some(&Timespec::default())), Ok(0))
    }

    /// Reads the next message into `buffer` and returns its length; `None` once the mount is gone.
    ///
    /// # Errors
    /// What read(2) returns, but for those that only mean "try again".
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        loop {
            match rustix::io::read(self.0.as_fd(), &mut *buffer) {
                // The device never says this; a socket in its place does when the other end is closed.
                Ok(0) => return Ok(None),
                Ok(len) => return Ok(Some(len)),
                // ENOENT: the request was interrupted before it was read.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                // ENODEV: unmounted. ECONNABORTED: somebody aborted the connection.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Answers request `unique`, with `body` or an errno.
    ///
    /// A failure is logged and otherwise ignored: the caller is gone, or the mount is.
    pub fn reply(&self, unique: u64, result: Result<&[u8], Errno>) {
        let (error, body) = match result {
            Ok(body) => (0, body),
            Err(errno) => (-errno.raw_os_error(), &[][..]),
        };
        self.send(unique, error, &[body]);
    }

    /// Answers with one record.
    pub fn reply_record<T: IntoBytes + Immutable>(&self, unique: u64, record: &T) {
        self.reply(unique, Ok(record.as_bytes()));
    }

    /// Tells the kernel something unasked.
    ///
    /// # Errors
    /// `ENOENT` where the kernel does not know the thing named; `EINVAL` if it does not know `code`.
    ///
    /// Never call this on the reader: the kernel may wait for an answer to another request first.
    pub fn notify(&self, code: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        self.write(0, code, parts)
    }

    fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) {
        match self.write(unique, error, parts) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {
                tracing::debug!(unique, "nobody waits for this reply any more");
            }
            Err(errno) => {
                tracing::warn!(unique, %errno, "the kernel refused a reply");
                // A reply that the kernel finds malformed leaves its caller waiting: say EIO.
                if error == 0 {
                    let _ = self.write(unique, -Errno::IO.raw_os_error(), &[]);
                }
            }
        }
    }

    fn write(&self, unique: u64, error: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let header = abi::OutHeader {
            len: u32::try_from(size_of::<abi::OutHeader>() + len).map_err(|_| Errno::OVERFLOW)?,
            error,
            unique,
        };
        // No message has more than three parts, header included.
        let mut slices = [
            IoSlice::new(header.as_bytes()),
            IoSlice::new(&[]),
            IoSlice::new(&[]),
        ];
        let mut used = 1;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            *slices.get_mut(used).ok_or(Errno::INVAL)? = IoSlice::new(part);
            used += 1;
        }
        rustix::io::writev(self.0.as_fd(), &slices[..used]).map(drop)
    }
}

/// The body of a reply while it is put together. One per serving thread, used again and again.
#[derive(Debug, Default)]
pub struct ReplyBuffer {
    // Everything in here is initialised; `len` says how much of it is the reply.
    bytes: Vec<u8>,
    len: usize,
}

impl ReplyBuffer {
    /// Starts a new reply.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// The reply so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Length of the reply so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends one record.
    pub fn push<T: IntoBytes + Immutable>(&mut self, record: &T) {
        self.push_bytes(record.as_bytes());
    }

    /// Appends bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.window(bytes.len()).copy_from_slice(bytes);
        self.commit(bytes.len());
    }

    /// Appends zeros until the length is a multiple of 8.
    pub fn pad(&mut self) {
        let padding = self.len.next_multiple_of(8) - self.len;
        self.push_bytes(&[0; 8][..padding]);
    }

    /// The next `size` bytes, to be filled in place; [`commit`](Self::commit) makes them count.
    pub fn window(&mut self, size: usize) -> &mut [u8] {
        let end = self.len + size;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.len..end]
    }

    /// Makes the first `size` bytes of the last window part of the reply.
    pub fn commit(&mut self, size: usize) {
        self.len = (self.len + size).min(self.bytes.len());
    }
}
