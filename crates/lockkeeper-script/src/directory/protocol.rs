//! What the executor and its actors say to each other.
//!
//! One `SOCK_SEQPACKET` channel an actor: a packet is a request or its reply, eight numbers and, for some
//! requests, a path and a descriptor. Both ends are the same program, so that the form may change freely.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// What an actor is asked to do. Descriptors are numbers of the actor's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub enum Call {
    /// open(2): flags; the path.
    Open,
    /// dup(2): descriptor.
    Dup,
    /// close(2): descriptor.
    Close,
    /// lseek(2): descriptor, offset.
    Seek,
    /// ftruncate(2): descriptor, size.
    Truncate,
    /// truncate(2): size; the path.
    Resize,
    /// link(2): the two paths, parted by a zero byte.
    Link,
    /// fcntl(2): descriptor, command, l_type, l_whence, l_start, l_len, l_pid. Returns the structure.
    Record,
    /// flock(2): descriptor, operation.
    Flock,
    /// F_SETLEASE: descriptor, type.
    SetLease,
    /// F_GETLEASE: descriptor. Returns the type.
    GetLease,
    /// fork(2); with the child's channel, on which it says hello.
    Fork,
    /// A new thread; with its channel, on which it says hello.
    Thread,
    /// execve(2). The new program says hello on the same channel.
    Exec,
    /// _exit(2). No reply.
    Exit,
    /// Takes the pending notifications: milliseconds to wait for one. Returns whether there was one.
    Notified,
    /// To the caretaker: its folder; with the channel of the first actor.
    Start,
    /// To the caretaker: the lease break time in seconds, or -1 to restore it.
    BreakTime,
}

const CALLS: [Call; 18] = [
    Call::Open,
    Call::Dup,
    Call::Close,
    Call::Seek,
    Call::Truncate,
    Call::Resize,
    Call::Link,
    Call::Record,
    Call::Flock,
    Call::SetLease,
    Call::GetLease,
    Call::Fork,
    Call::Thread,
    Call::Exec,
    Call::Exit,
    Call::Notified,
    Call::Start,
    Call::BreakTime,
];

/// How many numbers a packet has.
const NUMBERS: usize = 8;
/// The longest path, as of the kernel's PATH_MAX, twice for link(2).
const LONGEST_PATH: usize = 2 * 4096;

/// A request.
#[derive(Debug)]
pub struct Request {
    pub call: Call,
    pub numbers: [i64; NUMBERS - 1],
    pub path: Vec<u8>,
    pub channel: Option<OwnedFd>,
}

/// A reply: the numbers that the call returned, or its errno.
pub type Reply = Result<[i64; NUMBERS - 1], Errno>;

/// Both ends of a new channel.
pub fn channel() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

fn send(
    channel: impl AsFd,
    numbers: [i64; NUMBERS],
    path: &[u8],
    passed: Option<&OwnedFd>,
) -> Result<(), Errno> {
    let mut head = [0; NUMBERS * 8];
    for (bytes, number) in head.chunks_exact_mut(8).zip(numbers) {
        bytes.copy_from_slice(&number.to_ne_bytes());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let passed = passed.map(|descriptor| [descriptor.as_fd()]);
    if let Some(passed) = &passed {
        ancillary.push(SendAncillaryMessage::ScmRights(passed));
    }
    let parts = [IoSlice::new(&head), IoSlice::new(path)];
    loop {
        match sendmsg(&channel, &parts, &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            result => return result.map(drop),
        }
    }
}

type Packet = ([i64; NUMBERS], Vec<u8>, Option<OwnedFd>);

/// The next packet, or `None` where the other end is gone.
fn receive(channel: impl AsFd, flags: RecvFlags) -> Result<Option<Packet>, Errno> {
    let mut head = [0; NUMBERS * 8];
    let mut path = [0; LONGEST_PATH];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut path)];
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(&channel, &mut parts, &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            result => break result?.bytes,
        }
    };
    let Some(path_length) = received.checked_sub(head.len()) else {
        return if received == 0 {
            Ok(None)
        } else {
            Err(Errno::BADMSG)
        };
    };
    let passed = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let mut numbers = [0; NUMBERS];
    for (number, bytes) in numbers.iter_mut().zip(head.chunks_exact(8)) {
        let mut value = [0; 8];
        value.copy_from_slice(bytes);
        *number = i64::from_ne_bytes(value);
    }
    Ok(Some((numbers, path[..path_length].to_vec(), passed)))
}

/// Sends a request. `numbers` may be fewer than there is room for.
pub fn send_request(
    channel: impl AsFd,
    call: Call,
    numbers: &[i64],
    path: &[u8],
    passed: Option<&OwnedFd>,
) -> Result<(), Errno> {
    let mut packet = [0; NUMBERS];
    packet[0] = call as i64;
    for (to, from) in packet[1..].iter_mut().zip(numbers) {
        *to = *from;
    }
    send(channel, packet, path, passed)
}

/// Waits for a request; `None` where the executor is gone.
pub fn receive_request(channel: impl AsFd) -> Result<Option<Request>, Errno> {
    let Some((packet, path, channel)) = receive(channel, RecvFlags::empty())? else {
        return Ok(None);
    };
    let [call, numbers @ ..] = packet;
    let call = usize::try_from(call)
        .ok()
        .and_then(|call| CALLS.get(call).copied())
        .ok_or(Errno::BADMSG)?;
    Ok(Some(Request {
        call,
        numbers,
        path,
        channel,
    }))
}

/// Sends a reply.
pub fn send_reply(channel: impl AsFd, reply: Reply) -> Result<(), Errno> {
    let mut packet = [0; NUMBERS];
    match reply {
        Ok(numbers) => packet[1..].copy_from_slice(&numbers),
        Err(errno) => packet[0] = errno.raw_os_error().into(),
    }
    send(channel, packet, &[], None)
}

/// Takes a reply that has come: `Err(AGAIN)` where none has, `None` where the actor is gone.
pub fn take_reply(channel: impl AsFd) -> Result<Option<Reply>, Errno> {
    let Some((packet, _, _)) = receive(channel, RecvFlags::DONTWAIT)? else {
        return Ok(None);
    };
    let [errno, numbers @ ..] = packet;
    Ok(Some(match i32::try_from(errno) {
        Ok(0) => Ok(numbers),
        Ok(errno) => Err(Errno::from_raw_os_error(errno)),
        Err(_) => Err(Errno::BADMSG),
    }))
}
