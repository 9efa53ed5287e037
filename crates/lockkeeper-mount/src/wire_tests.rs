//! The server at the end of a socket instead of the device: what it answers to messages that no
//! well-meaning kernel would send, or that are hard to make one send.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{self, op};
use crate::caller::CallerProbe;
use crate::device::Device;
use crate::fs::{FsOptions, PassthroughFs, open_root};
use crate::locks::{Conflict, DeferredReply, LockDesk, LockKind, LockRequest, LockService, Range};
use crate::server::{Observer, Server};
use crate::{Errno, FileId, LockClass, ManagerService, OFFSET_MAX, Owner, OwnerKind, RequestId};

struct Wire {
    kernel: Option<OwnedFd>,
    observer: Observer,
    server: Option<JoinHandle<()>>,
    unique: u64,
    /// Replies that came while another was waited for.
    early: HashMap<u64, (i32, Vec<u8>)>,
    _folder: tempfile::TempDir,
}

impl Wire {
    fn new(service: Arc<dyn LockService>) -> Wire {
        let (kernel, server_end) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("socket pair");
        let timeout = Some(Duration::from_secs(5));
        rustix::net::sockopt::set_socket_timeout(
            &kernel,
            rustix::net::sockopt::Timeout::Recv,
            timeout,
        )
        .expect("sets a timeout");
        let folder = tempfile::tempdir().expect("temp folder");
        let device = Arc::new(Device::new(server_end));
        let options = FsOptions {
            read_only: false,
            entry_timeout: Duration::ZERO,
            attr_timeout: Duration::ZERO,
            direct_io: false,
            passthrough: false,
        };
        let root = open_root(folder.path()).expect("opens");
        let fs = PassthroughFs::new(root, device.clone(), options).expect("file system");
        let desk = LockDesk::new(service, CallerProbe::blind(), device.clone());
        let server = Server::new(device, fs, desk, false, 1);
        let observer = server.observer();
        let thread = std::thread::spawn(move || match server.run(|_| {}) {
            // A socket closed with replies unread resets the connection.
            Ok(()) | Err(Errno::CONNRESET) => {}
            Err(errno) => panic!("serving failed: {errno}"),
        });
        let mut wire = Wire {
            kernel: Some(kernel),
            observer,
            server: Some(thread),
            unique: 100,
            early: HashMap::new(),
            _folder: folder,
        };
        let flags = u32::MAX;
        let head = abi::InitIn {
            major: 7,
            minor: 45,
            max_readahead: 1 << 17,
            flags,
        };
        let ext = abi::InitInExt {
            flags2: u32::MAX,
            ..Default::default()
        };
        let (error, body) = wire.ask(op::INIT, 0, &[head.as_bytes(), ext.as_bytes()].concat());
        assert_eq!(error, 0);
        let out = abi::InitOut::read_from_bytes(&body).expect("an INIT reply");
        for flag in [abi::init::POSIX_LOCKS, abi::init::FLOCK_LOCKS] {
            assert!(u64::from(out.flags) & flag != 0, "locks are taken");
        }
        // FU-09: a timeout of requests would cut waits for locks short. (FUSE_REQUEST_TIMEOUT, bit 42.)
        assert_eq!(out.flags2 & 1 << (42 - 32), 0, "no request times out");
        wire
    }

    fn send_raw(&self, bytes: &[u8]) {
        let kernel = self.kernel.as_ref().expect("connected");
        rustix::net::send(kernel, bytes, rustix::net::SendFlags::NOSIGNAL).expect("sends");
    }

    fn send(&mut self, opcode: u32, nodeid: u64, body: &[u8]) -> u64 {
        self.unique += 2;
        let header = abi::InHeader {
            len: (40 + body.len()) as u32,
            opcode,
            unique: self.unique,
            nodeid,
            pid: std::process::id(),
            ..Default::default()
        };
        self.send_raw(&[header.as_bytes(), body].concat());
        self.unique
    }

    fn next(&self) -> Option<(u64, i32, Vec<u8>)> {
        let mut bytes = vec![0; 1 << 17];
        let kernel = self.kernel.as_ref().expect("connected");
        let (_, len) = rustix::net::recv(
            kernel.as_fd(),
            &mut bytes[..],
            rustix::net::RecvFlags::empty(),
        )
        .ok()?;
        let (header, body) = abi::OutHeader::read_from_prefix(&bytes[..len]).ok()?;
        assert_eq!(header.len as usize, len);
        Some((header.unique, header.error, body.to_vec()))
    }

    fn reply(&mut self, unique: u64) -> (i32, Vec<u8>) {
        loop {
            if let Some(reply) = self.early.remove(&unique) {
                return reply;
            }
            let (from, error, body) = self.next().expect("a reply in time");
            assert!(
                self.early.insert(from, (error, body)).is_none(),
                "{from} answered twice"
            );
        }
    }

    fn ask(&mut self, opcode: u32, nodeid: u64, body: &[u8]) -> (i32, Vec<u8>) {
        let unique = self.send(opcode, nodeid, body);
        self.reply(unique)
    }

    /// Nothing comes but the answer to a question asked now.
    fn silent(&mut self) -> bool {
        let unique = self.send(op::STATFS, 1, &[]);
        let (from, ..) = self.next().expect("a reply in time");
        from == unique && self.early.is_empty()
    }

    fn create(&mut self, name: &str) -> (u64, u64) {
        let args = abi::CreateIn {
            flags: (libc::O_RDWR | libc::O_CREAT) as u32,
            mode: 0o100_644,
            ..Default::default()
        };
        let body = [args.as_bytes(), name.as_bytes(), b"\0"].concat();
        let (error, body) = self.ask(op::CREATE, 1, &body);
        assert_eq!(error, 0);
        let (entry, rest) = abi::EntryOut::read_from_prefix(&body).expect("an entry");
        let open = abi::OpenOut::read_from_bytes(rest).expect("an open file");
        (entry.nodeid, open.fh)
    }

    fn lock(&mut self, opcode: u32, node: u64, args: &abi::LkIn) -> (i32, Vec<u8>) {
        self.ask(opcode, node, args.as_bytes())
    }

    fn interrupt(&mut self, unique: u64) {
        self.send(op::INTERRUPT, 0, abi::InterruptIn { unique }.as_bytes());
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.kernel = None;
        let served = self.server.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(served, Some(Ok(()))), "the server panicked");
        }
    }
}

fn lk(fh: u64, owner: u64, kind: i32, start: u64, end: u64) -> abi::LkIn {
    let lk = abi::FileLock {
        start,
        end,
        kind: kind as u32,
        pid: 77,
    };
    abi::LkIn {
        fh,
        owner,
        lk,
        lk_flags: 0,
        padding: 0,
    }
}

fn flock(fh: u64, owner: u64, kind: i32) -> abi::LkIn {
    abi::LkIn {
        lk_flags: abi::LK_FLOCK,
        ..lk(fh, owner, kind, 0, i64::MAX as u64)
    }
}

fn lists() -> Arc<dyn LockService> {
    Arc::new(ManagerService::new(lockkeeper::LockManager::new()))
}

#[test]
fn fu_19_the_end_of_a_range_is_never_above_offset_max() {
    let mut wire = Wire::new(lists());
    let (node, fh) = wire.create("f");
    assert_eq!(
        wire.lock(op::SETLK, node, &lk(fh, 1, libc::F_WRLCK, 200, u64::MAX))
            .0,
        0
    );
    let (error, body) = wire.lock(op::GETLK, node, &lk(fh, 2, libc::F_RDLCK, 0, u64::MAX));
    assert_eq!(error, 0);
    let found = abi::LkOut::read_from_bytes(&body).expect("a lock").lk;
    assert_eq!((found.start, found.end, found.pid), (200, OFFSET_MAX, 77));
    assert_eq!(found.kind, libc::F_WRLCK as u32);
}

#[test]
fn lock_messages_that_mean_nothing_are_einval_and_unknown_handles_ebadf() {
    let mut wire = Wire::new(lists());
    let (node, fh) = wire.create("f");
    for opcode in [op::GETLK, op::SETLK, op::SETLKW] {
        assert_eq!(
            wire.lock(opcode, node, &lk(fh, 1, 9, 0, 1)).0,
            -libc::EINVAL
        );
        assert_eq!(
            wire.lock(opcode, node, &lk(fh, 1, libc::F_RDLCK, 5, 4)).0,
            -libc::EINVAL
        );
        assert_eq!(
            wire.lock(opcode, node, &lk(fh, 1, libc::F_RDLCK, u64::MAX, u64::MAX))
                .0,
            -libc::EINVAL
        );
        assert_eq!(
            wire.lock(opcode, node, &lk(999, 1, libc::F_RDLCK, 0, 1)).0,
            -libc::EBADF
        );
    }
}

#[test]
fn fu_07_a_flock_unlock_that_may_wait_is_answered_at_once() {
    let mut wire = Wire::new(lists());
    let (node, fh) = wire.create("f");
    assert_eq!(
        wire.lock(op::SETLKW, node, &flock(fh, 5, libc::F_UNLCK)).0,
        0,
        "nothing held"
    );
    assert_eq!(
        wire.lock(op::SETLKW, node, &flock(fh, 5, libc::F_WRLCK)).0,
        0
    );
    assert_eq!(
        wire.lock(op::SETLKW, node, &flock(fh, 5, libc::F_UNLCK)).0,
        0
    );
    assert_eq!(wire.observer.listing(), []);
}

#[test]
fn fu_17_an_interrupt_for_anything_but_a_waiter_means_nothing() {
    let mut wire = Wire::new(lists());
    let (node, fh) = wire.create("f");
    let (node2, fh2) = wire.create("f");
    assert_eq!(node, node2, "one inode, one node");
    for unknown in [0, 1, 424_242, u64::MAX] {
        wire.interrupt(unknown);
    }
    assert!(wire.silent());
    assert_eq!(
        wire.lock(op::SETLKW, node, &lk(fh, 1, libc::F_WRLCK, 0, 9))
            .0,
        0
    );
    // One that waits, interrupted twice: one EINTR.
    let waiting = wire.send(op::SETLKW, node, lk(fh2, 2, libc::F_WRLCK, 0, 9).as_bytes());
    assert!(wire.silent(), "held off");
    assert_eq!(wire.observer.counts().waiting, 1);
    wire.interrupt(waiting);
    wire.interrupt(waiting);
    assert_eq!(wire.reply(waiting).0, -libc::EINTR);
    assert!(wire.silent());
    // The grant wins: the interrupt comes after it.
    let waiting = wire.send(op::SETLKW, node, lk(fh2, 2, libc::F_WRLCK, 0, 9).as_bytes());
    assert_eq!(
        wire.lock(op::SETLK, node, &lk(fh, 1, libc::F_UNLCK, 0, 9))
            .0,
        0
    );
    wire.interrupt(waiting);
    assert_eq!(wire.reply(waiting).0, 0);
    assert!(wire.silent());
}

#[test]
fn closing_messages_for_unknown_handles_do_no_harm() {
    let mut wire = Wire::new(lists());
    let flush = abi::FlushIn {
        fh: 5,
        lock_owner: 9,
        ..Default::default()
    };
    assert_eq!(wire.ask(op::FLUSH, 1, flush.as_bytes()).0, -libc::EBADF);
    let release = abi::ReleaseIn {
        fh: 5,
        ..Default::default()
    };
    assert_eq!(wire.ask(op::RELEASE, 1, release.as_bytes()).0, 0);
    let (node, fh) = wire.create("f");
    let release = abi::ReleaseIn {
        fh,
        release_flags: 2,
        lock_owner: 3,
        ..Default::default()
    };
    assert_eq!(wire.ask(op::RELEASE, node, release.as_bytes()).0, 0);
    assert_eq!(
        wire.ask(op::RELEASE, node, release.as_bytes()).0,
        0,
        "twice"
    );
    wire.send(
        op::FORGET,
        node,
        abi::ForgetIn { nlookup: u64::MAX }.as_bytes(),
    );
    wire.send(
        op::FORGET,
        1,
        abi::ForgetIn { nlookup: u64::MAX }.as_bytes(),
    );
    wire.send(op::FORGET, 4711, abi::ForgetIn { nlookup: 1 }.as_bytes());
    assert!(wire.silent(), "the root is never forgotten");
    assert_eq!(wire.observer.counts().inodes, 1);
}

/// Remembers requests, keeps their replies.
#[derive(Default)]
struct Recorder {
    requests: Mutex<Vec<LockRequest>>,
    replies: Mutex<Vec<DeferredReply>>,
    closed: Mutex<Vec<(FileId, Owner)>>,
}

impl LockService for Recorder {
    fn getlk(&self, query: &LockRequest) -> Result<Option<Conflict>, Errno> {
        self.requests.lock().expect("not poisoned").push(*query);
        let range = Range {
            start: 1,
            end: u64::MAX,
        };
        Ok(Some(Conflict {
            kind: LockKind::Read,
            range,
            pid: 0,
        }))
    }
    fn setlk(&self, request: &LockRequest) -> Result<(), Errno> {
        self.requests.lock().expect("not poisoned").push(*request);
        Ok(())
    }
    fn setlkw(&self, request: &LockRequest, reply: DeferredReply) {
        self.requests.lock().expect("not poisoned").push(*request);
        self.replies.lock().expect("not poisoned").push(reply);
    }
    fn interrupt(&self, _: RequestId) {}
    fn close_owner(&self, file: FileId, owner: Owner) {
        self.closed
            .lock()
            .expect("not poisoned")
            .push((file, owner));
    }
}

#[test]
fn what_the_lock_manager_is_told() {
    let recorder = Arc::new(Recorder::default());
    let mut wire = Wire::new(recorder.clone());
    let (node, fh) = wire.create("f");
    assert_eq!(
        wire.lock(op::SETLK, node, &lk(fh, 0, libc::F_WRLCK, 3, 7))
            .0,
        0
    );
    // flock ignores the range that comes with it.
    let odd = abi::LkIn {
        lk_flags: abi::LK_FLOCK,
        ..lk(fh, 8, libc::F_RDLCK, 3, 7)
    };
    assert_eq!(wire.lock(op::SETLK, node, &odd).0, 0);
    // The flock has shown that value 8 is this open file.
    assert_eq!(
        wire.lock(op::SETLK, node, &lk(fh, 8, libc::F_RDLCK, 3, 7))
            .0,
        0
    );
    // An unlock by somebody who never locked is nobody's business.
    assert_eq!(
        wire.lock(op::SETLK, node, &lk(fh, 33, libc::F_UNLCK, 0, OFFSET_MAX))
            .0,
        0
    );
    let requests = recorder.requests.lock().expect("not poisoned").clone();
    let seen: Vec<_> = requests
        .iter()
        .map(|request| {
            (
                request.class,
                request.owner.kind,
                request.kind,
                request.range,
            )
        })
        .collect();
    let (some, all) = (
        Range { start: 3, end: 7 },
        Range {
            start: 0,
            end: OFFSET_MAX,
        },
    );
    assert_eq!(
        seen,
        [
            (LockClass::Posix, OwnerKind::Process, LockKind::Write, some),
            (LockClass::Flock, OwnerKind::OpenFile, LockKind::Read, all),
            (LockClass::Ofd, OwnerKind::OpenFile, LockKind::Read, some),
        ]
    );
    assert_eq!((requests[0].pid, requests[0].tid), (77, std::process::id()));
    assert_eq!(requests[1].owner, requests[2].owner);
    // FLUSH by the process, then RELEASE with owner 0 and no flags.
    let flush = abi::FlushIn {
        fh,
        lock_owner: 0,
        ..Default::default()
    };
    assert_eq!(wire.ask(op::FLUSH, node, flush.as_bytes()).0, 0);
    let release = abi::ReleaseIn {
        fh,
        ..Default::default()
    };
    assert_eq!(wire.ask(op::RELEASE, node, release.as_bytes()).0, 0);
    let closed: Vec<Owner> = recorder
        .closed
        .lock()
        .expect("not poisoned")
        .iter()
        .map(|(_, owner)| *owner)
        .collect();
    assert_eq!(closed, [requests[0].owner, requests[1].owner]);
}

#[test]
fn fu_08_an_unprompted_eintr_never_reaches_the_program() {
    let recorder = Arc::new(Recorder::default());
    let mut wire = Wire::new(recorder.clone());
    let (node, fh) = wire.create("f");
    for (result, expected) in [
        (Err(Errno::INTR), -libc::EIO),
        (Err(Errno::DEADLK), -libc::EDEADLK),
        (Ok(()), 0),
    ] {
        let unique = wire.send(op::SETLKW, node, lk(fh, 1, libc::F_WRLCK, 0, 0).as_bytes());
        assert!(wire.silent(), "held off");
        let reply = recorder
            .replies
            .lock()
            .expect("not poisoned")
            .pop()
            .expect("a reply is owed");
        assert_eq!(reply.id(), RequestId(unique));
        // From another thread.
        std::thread::spawn(move || reply.send(result))
            .join()
            .expect("sends");
        assert_eq!(wire.reply(unique).0, expected);
    }
    // Dropped, it is an error, and the books are clean.
    let unique = wire.send(op::SETLKW, node, lk(fh, 1, libc::F_WRLCK, 0, 0).as_bytes());
    assert!(wire.silent());
    recorder.replies.lock().expect("not poisoned").clear();
    assert_eq!(wire.reply(unique).0, -libc::EIO);
    assert_eq!(wire.observer.counts().waiting, 0);
}

#[test]
fn names_that_lead_out_of_the_source_are_refused() {
    let mut wire = Wire::new(lists());
    for name in [&b"..\0"[..], b"../..\0", b"/etc\0", b".\0", b"\0"] {
        assert_eq!(wire.ask(op::LOOKUP, 1, name).0, -libc::EINVAL);
        assert_eq!(wire.ask(op::UNLINK, 1, name).0, -libc::EINVAL);
    }
}

fn hostile_message() -> impl Strategy<Value = Vec<u8>> {
    // Left out, for the sake of the disk and the folder they run in: what allocates space by the
    // number, and what takes the test's own rights to its folder away.
    let opcode = (0..60_u32).prop_filter("harmful to the tester", |opcode| {
        ![op::FALLOCATE, op::SETATTR, op::INIT].contains(opcode)
    });
    let number = prop_oneof![3 => 0..4_u64, 1 => any::<u64>()];
    let name = prop_oneof![
        Just(b"a\0".to_vec()),
        Just(b"b\0c\0".to_vec()),
        prop::collection::vec(any::<u8>(), 0..20),
    ];
    (
        opcode,
        number.clone(),
        prop::collection::vec(number, 0..8),
        name,
        0..3_u16,
        any::<bool>(),
    )
        .prop_map(|(opcode, nodeid, numbers, name, extlen, honest)| {
            let body = [numbers.as_bytes(), &name].concat();
            let header = abi::InHeader {
                len: if honest { (40 + body.len()) as u32 } else { 41 },
                opcode,
                unique: 1_000_001,
                nodeid,
                total_extlen: if extlen == 1 { 1 } else { 0 },
                ..Default::default()
            };
            [header.as_bytes(), &body].concat()
        })
}

/// How many cases to run: `LOCKKEEPER_PROPTEST_CASES`, if it is set.
fn cases(usual: u32) -> u32 {
    std::env::var("LOCKKEEPER_PROPTEST_CASES")
        .map_or(usual, |cases| cases.parse().expect("a number of cases"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(64)))]

    /// Whatever comes, the server serves the next request.
    #[test]
    fn hostile_messages_never_take_the_server_down(
        messages in prop::collection::vec(hostile_message(), 1..40),
        garbage in prop::collection::vec(any::<u8>(), 1..100),
    ) {
        let mut wire = Wire::new(lists());
        wire.create("a");
        for message in messages {
            wire.send_raw(&message);
        }
        wire.send_raw(&garbage);
        let unique = wire.send(op::STATFS, 1, &[]);
        loop {
            let (from, error, _) = wire.next().expect("the server lives");
            if from == unique {
                prop_assert_eq!(error, 0);
                break;
            }
        }
    }
}
