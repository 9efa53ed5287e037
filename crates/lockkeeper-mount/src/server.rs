//! The one reader: takes each message, in order, and sees that it is served.
//!
//! Locks, FLUSH, RELEASE, FORGET and INTERRUPT are served right here, as is everything quick; what may
//! wait for a disk goes to a worker, message and all. With one reader no two messages are ever seen
//! out of order, and no wake-up crosses cpus on the way to a lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::abi::{self, fattr, init};
use crate::device::{Device, ReplyBuffer};
use crate::fs::inode::lock;
use crate::fs::{PassthroughFs, Place, Served};
use crate::locks::{FileId, HandleId, IoAsked, LockDesk, OFFSET_MAX, Range};
use crate::report::{Counts, FileLocks, Totals, WaitTimes};
use crate::request::{Malformed, Operation, Request};
use crate::workers::Workers;

/// The largest WRITE, and the room beside it for headers and names.
const MAX_WRITE: usize = 1 << 20;
const BUFFER: usize = MAX_WRITE + 4096 * 17;

/// Buffers kept for reuse while workers have others.
const SPARE_BUFFERS: usize = 8;

/// How reads and writes of the mount's files go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPath {
    /// The kernel does them by itself on the files below.
    Backing,
    /// Through the server, and the kernel's page cache.
    Cached,
    /// Through the server, each one.
    Direct,
}

/// What INIT settled.
#[derive(Clone, Debug)]
pub struct Negotiated {
    /// Minor version of the protocol that both sides speak.
    pub minor: u32,
    /// How data goes.
    pub data_path: DataPath,
    /// Why not by backing files, where they were wanted and are not to be had.
    pub no_backing: Option<String>,
}

/// Everything that serving needs, shared by the reader and its workers.
#[derive(Debug)]
struct Shared {
    device: Arc<Device>,
    fs: PassthroughFs,
    desk: LockDesk,
    mandatory: bool,
    data_path: OnceLock<DataPath>,
    spare: Mutex<Vec<Vec<u8>>>,
    stopping: AtomicBool,
}

/// The server of one mount.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    workers: Workers,
    stack_depth: u32,
}

/// A view on a running server.
#[derive(Clone, Debug)]
pub struct Observer(Arc<Shared>);

impl Observer {
    /// The present numbers.
    pub fn counts(&self) -> Counts {
        let (inodes, handles) = self.0.fs.counts();
        let (lock_processes, lock_handles, waiting) = self.0.desk.counts();
        Counts {
            inodes,
            handles,
            lock_processes,
            lock_handles,
            waiting,
        }
    }

    /// Every lock and waiting request, with the files as they are seen through `mountpoint`.
    pub fn listing(&self, mountpoint: &Path) -> Vec<FileLocks> {
        let mut files = self.0.desk.service().listing();
        for file in &mut files {
            let Some(place) = self.0.fs.place_of(FileId {
                dev: file.source_device,
                ino: file.source_inode,
            }) else {
                continue;
            };
            file.path = Some(mountpoint.join(place.path).to_string_lossy().into_owned());
            file.deleted = place.deleted;
            file.inode = place.inode;
            file.size = Some(place.size);
        }
        files
    }

    /// How often what has happened.
    pub fn totals(&self) -> Totals {
        self.0.desk.service().totals()
    }

    /// How long the waits were that have ended.
    pub fn wait_times(&self) -> WaitTimes {
        self.0.desk.service().wait_times()
    }

    /// How data goes; `None` until the kernel has said hello.
    pub fn data_path(&self) -> Option<DataPath> {
        self.0.data_path.get().copied()
    }

    /// Whether reads and writes obey record locks.
    pub fn is_mandatory(&self) -> bool {
        self.0.mandatory
    }
}

impl Server {
    /// A server of `fs` and `desk`, both of which answer through `device`.
    pub fn new(
        device: Arc<Device>,
        fs: PassthroughFs,
        desk: LockDesk,
        mandatory: bool,
        stack_depth: u32,
    ) -> Server {
        let shared = Shared {
            device,
            fs,
            desk,
            mandatory,
            data_path: OnceLock::new(),
            spare: Mutex::default(),
            stopping: AtomicBool::new(false),
        };
        Server {
            shared: Arc::new(shared),
            workers: Workers::default(),
            stack_depth,
        }
    }

    /// A view for others.
    pub fn observer(&self) -> Observer {
        Observer(self.shared.clone())
    }

    /// Serves until the mount is gone. `ready` is called once, when the kernel has said hello.
    ///
    /// # Errors
    /// If the device fails, or the kernel speaks a protocol that is too old.
    pub fn run(&self, ready: impl FnOnce(Negotiated)) -> Result<(), Errno> {
        crate::sys::own_umask()?;
        let result = self.read_loop(ready);
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.desk.service().shut_down();
        result
    }

    fn read_loop(&self, ready: impl FnOnce(Negotiated)) -> Result<(), Errno> {
        let shared = &self.shared;
        let mut ready = Some(ready);
        let mut buffer = vec![0; BUFFER];
        let mut out = ReplyBuffer::default();
        while let Some(len) = shared.device.receive(&mut buffer)? {
            let request = match Request::decode(&buffer[..len], shared.fs.setxattr_ext()) {
                Ok(request) => request,
                Err(malformed) => {
                    shared.refuse(&malformed);
                    continue;
                }
            };
            let unique = request.unique;
            match &request.operation {
                Operation::Init { head, flags } => {
                    let settled = self.init(unique, head, *flags)?;
                    if let (Some(settled), Some(ready)) = (settled, ready.take()) {
                        let _ = shared.data_path.set(settled.data_path);
                        ready(settled);
                    }
                }
                // The kernel wants an answer, and then the device reports the end by itself.
                Operation::Destroy => shared.device.reply(unique, Ok(&[])),
                _ if ready.is_some() => shared.device.reply(unique, Err(Errno::IO)),
                _ => {
                    let keep = shared.serve_on_reader(&request, &mut out);
                    if let Keep::Pass(admission) = keep {
                        let message = std::mem::replace(&mut buffer, shared.spare_buffer());
                        self.pass_on(message, len, admission);
                    }
                    if shared.fs.wants_room() {
                        let shared = shared.clone();
                        self.workers
                            .submit(Box::new(move |_| shared.fs.make_room()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Hands a message to a worker, after the mandatory locks have agreed where they are asked.
    fn pass_on(&self, message: Vec<u8>, len: usize, admission: Vec<IoAsked>) {
        let (shared, workers) = (self.shared.clone(), self.workers.clone());
        pass_on_admitted(shared, workers, admission.into_iter(), message, len);
    }

    fn init(
        &self,
        unique: u64,
        head: &abi::InitIn,
        offered: u64,
    ) -> Result<Option<Negotiated>, Errno> {
        let device = &self.shared.device;
        if head.major > abi::KERNEL_VERSION {
            // The kernel will ask again, with our major version.
            let major = abi::KERNEL_VERSION;
            let answer = abi::InitOut {
                major,
                minor: abi::KERNEL_MINOR_VERSION,
                ..Default::default()
            };
            device.reply_record(unique, &answer);
            return Ok(None);
        }
        if head.major < abi::KERNEL_VERSION || head.minor < abi::OLDEST_MINOR_VERSION {
            tracing::error!(
                "the kernel speaks FUSE {}.{}; 7.{} (Linux 5.4) or newer is needed",
                head.major,
                head.minor,
                abi::OLDEST_MINOR_VERSION
            );
            device.reply(unique, Err(Errno::PROTO));
            return Err(Errno::PROTO);
        }
        if offered & init::POSIX_LOCKS == 0 || offered & init::FLOCK_LOCKS == 0 {
            tracing::error!("the kernel does not offer to hand locks to a FUSE server");
            device.reply(unique, Err(Errno::PROTO));
            return Err(Errno::PROTO);
        }
        let options = self.shared.fs.options();
        let mut wanted = init::ASYNC_READ
            | init::POSIX_LOCKS
            | init::ATOMIC_O_TRUNC
            | init::BIG_WRITES
            | init::DONT_MASK
            | init::FLOCK_LOCKS
            | init::AUTO_INVAL_DATA
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::POSIX_ACL
            | init::ABORT_ERROR
            | init::MAX_PAGES
            | init::CACHE_SYMLINKS
            | init::HANDLE_KILLPRIV_V2
            | init::SETXATTR_EXT
            | init::INIT_EXT
            | init::CREATE_SUPP_GROUP
            | init::DIRECT_IO_ALLOW_MMAP;
        let try_backing = options.passthrough && !options.direct_io;
        if try_backing {
            wanted |= init::PASSTHROUGH;
        }
        let granted = wanted & offered;
        let minor = head.minor.min(abi::KERNEL_MINOR_VERSION);
        let passthrough = granted & init::PASSTHROUGH != 0;
        device.reply_record(
            unique,
            &abi::InitOut {
                major: abi::KERNEL_VERSION,
                minor,
                max_readahead: head.max_readahead,
                flags: granted as u32,
                // RELEASE travels in the background: never hold one back behind a limit, or a program
                // that closes and locks again would meet its own old lock.
                max_background: u16::MAX,
                congestion_threshold: u16::MAX / 4 * 3,
                max_write: MAX_WRITE as u32,
                time_gran: 1,
                max_pages: (MAX_WRITE / 4096) as u16,
                flags2: (granted >> 32) as u32,
                max_stack_depth: if passthrough { self.stack_depth } else { 0 },
                ..Default::default()
            },
        );
        let refused = match passthrough {
            true => crate::backing::refused(device),
            false => Some(Errno::OPNOTSUPP),
        };
        self.shared
            .fs
            .negotiated(refused.is_none(), granted & init::SETXATTR_EXT != 0);
        let (data_path, no_backing) = match refused {
            _ if options.direct_io => (DataPath::Direct, None),
            None => (DataPath::Backing, None),
            Some(_) if !options.passthrough => (DataPath::Cached, None),
            Some(Errno::PERM) => (
                DataPath::Cached,
                Some("it takes root in the initial user namespace".into()),
            ),
            Some(Errno::OPNOTSUPP) => (
                DataPath::Cached,
                Some("this kernel has none (Linux 6.9 or newer has)".into()),
            ),
            Some(errno) => (DataPath::Cached, Some(errno.to_string())),
        };
        Ok(Some(Negotiated {
            minor,
            data_path,
            no_backing,
        }))
    }
}

/// Asks the mandatory locks the questions that are left, one after the other, and then has a worker serve
/// the message.
fn pass_on_admitted(
    shared: Arc<Shared>,
    workers: Workers,
    mut questions: std::vec::IntoIter<IoAsked>,
    message: Vec<u8>,
    len: usize,
) {
    let Some(io) = questions.next() else {
        return workers.submit(Box::new(move |out| shared.serve_message(message, len, out)));
    };
    let desk = shared.clone();
    desk.desk.admit_io(
        &io,
        Box::new(move |admitted| match admitted {
            Ok(()) => pass_on_admitted(shared, workers, questions, message, len),
            Err(errno) => shared.device.reply(io.unique, Err(errno)),
        }),
    );
}

/// What the reader does with a message after looking at it.
enum Keep {
    /// Nothing more: it is served.
    Served,
    /// A worker gets it, after these questions to the mandatory locks.
    Pass(Vec<IoAsked>),
}

impl Shared {
    fn refuse(&self, malformed: &Malformed) {
        tracing::warn!(%malformed, "refused a message");
        if let Some((unique, errno)) = malformed.reply() {
            self.device.reply(unique, Err(errno));
        }
    }

    fn serve_on_reader(&self, request: &Request<'_>, out: &mut ReplyBuffer) -> Keep {
        let (unique, caller) = (request.unique, &request.caller);
        match &request.operation {
            Operation::Getlk(args) => match self.fs.file_of(args.fh) {
                Ok(file) => self.desk.getlk(unique, file, caller, args),
                Err(errno) => self.device.reply(unique, Err(errno)),
            },
            Operation::Setlk { args, wait } => match self.fs.file_of(args.fh) {
                Ok(file) => self.desk.setlk(unique, file, caller, args, *wait),
                Err(errno) => self.device.reply(unique, Err(errno)),
            },
            Operation::Interrupt { unique } => self.desk.interrupt(*unique),
            Operation::Flush(args) => {
                self.desk.flush(unique, self.fs.file_of(args.fh), args);
            }
            operation => {
                if let Operation::Release(args) = operation
                    && let Ok(file) = self.fs.file_of(args.fh)
                {
                    self.desk.release(file, args.fh);
                }
                if self.mandatory {
                    let questions = self.io_asked(request);
                    if !questions.is_empty() {
                        return Keep::Pass(questions);
                    }
                }
                return self.serve(request, Place::Reader, out);
            }
        }
        Keep::Served
    }

    /// The questions that mandatory locks must answer before `request` is served.
    fn io_asked(&self, request: &Request<'_>) -> Vec<IoAsked> {
        let nonblocking = |flags| OFlags::from_bits_retain(flags).contains(OFlags::NONBLOCK);
        let of_file = |file: Result<FileId, Errno>, range: Option<Range>, write| {
            Some(IoAsked {
                unique: request.unique,
                file: file.ok()?,
                handle: HandleId(0),
                lock_owner: None,
                range: range?,
                write,
                nonblocking: true,
                tid: request.caller.tid,
            })
        };
        let of_handle = |fh, lock_owner, range, write, nonblocking| {
            Some(IoAsked {
                handle: HandleId(fh),
                lock_owner,
                nonblocking,
                ..of_file(self.fs.file_of(fh), range, write)?
            })
        };
        let questions = match &request.operation {
            Operation::Read(args) => [
                of_handle(
                    args.fh,
                    (args.read_flags & abi::READ_LOCKOWNER != 0).then_some(args.lock_owner),
                    Range::of_len(args.offset, args.size.into()),
                    false,
                    nonblocking(args.flags),
                ),
                None,
            ],
            Operation::Write { args, .. } => [
                of_handle(
                    args.fh,
                    (args.write_flags & abi::WRITE_LOCKOWNER != 0).then_some(args.lock_owner),
                    Range::of_len(args.offset, args.size.into()),
                    true,
                    nonblocking(args.flags),
                ),
                None,
            ],
            // Truncation never waits: whoever asks by name has no handle that could be O_NONBLOCK.
            Operation::Setattr(args) if args.valid & fattr::SIZE != 0 => {
                let size = self.fs.size_of_node(request.nodeid).unwrap_or(0);
                let changed = Some(Range {
                    start: args.size.min(size).min(OFFSET_MAX),
                    end: OFFSET_MAX,
                });
                let lock_owner = (args.valid & fattr::LOCKOWNER != 0).then_some(args.lock_owner);
                match args.valid & fattr::FH {
                    0 => [
                        of_file(self.fs.file_of_node(request.nodeid), changed, true),
                        None,
                    ],
                    _ => [of_handle(args.fh, lock_owner, changed, true, true), None],
                }
            }
            Operation::Open(args)
                if OFlags::from_bits_retain(args.flags).contains(OFlags::TRUNC) =>
            {
                let all = Range::of_len(0, u64::MAX);
                [
                    of_file(self.fs.file_of_node(request.nodeid), all, true),
                    None,
                ]
            }
            Operation::Fallocate(args) => {
                let range = Range::of_len(args.offset, args.length);
                [of_handle(args.fh, None, range, true, false), None]
            }
            Operation::CopyFileRange { args, .. } => {
                let (from, to) = (
                    Range::of_len(args.off_in, args.len),
                    Range::of_len(args.off_out, args.len),
                );
                [
                    of_handle(args.fh_in, None, from, false, false),
                    of_handle(args.fh_out, None, to, true, false),
                ]
            }
            _ => [None, None],
        };
        questions.into_iter().flatten().collect()
    }

    /// Serves a request about files and answers it, unless it must go elsewhere.
    fn serve(&self, request: &Request<'_>, place: Place, out: &mut ReplyBuffer) -> Keep {
        out.clear();
        // A bug in serving one request must cost that request, not the mount. Tests want to see it.
        let served = if cfg!(test) {
            self.fs.serve(request, place, out)
        } else {
            catch_unwind(AssertUnwindSafe(|| self.fs.serve(request, place, out))).unwrap_or_else(
                |_| {
                    tracing::error!(operation = ?request.operation, "panicked while serving");
                    Err(Errno::IO)
                },
            )
        };
        match served {
            Ok(Served::Done) => self.device.reply(request.unique, Ok(out.as_bytes())),
            Ok(Served::Silent) => {}
            Ok(Served::Elsewhere) => return Keep::Pass(Vec::new()),
            Err(errno) => {
                tracing::debug!(unique = request.unique, node = request.nodeid, %errno, "refused");
                self.device.reply(request.unique, Err(errno));
            }
        }
        Keep::Served
    }

    /// Serves, on a worker, a message that the reader passed on.
    fn serve_message(&self, message: Vec<u8>, len: usize, out: &mut ReplyBuffer) {
        match Request::decode(&message[..len], self.fs.setxattr_ext()) {
            Ok(request) => {
                self.serve(&request, Place::Worker, out);
            }
            Err(malformed) => self.refuse(&malformed),
        }
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE_BUFFERS {
            spare.push(message);
        }
    }

    fn spare_buffer(&self) -> Vec<u8> {
        lock(&self.spare).pop().unwrap_or_else(|| vec![0; BUFFER])
    }
}
