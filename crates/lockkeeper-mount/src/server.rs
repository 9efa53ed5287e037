//! The one reader: takes each message, in order, and sees that it is served.
//!
//! Locks, FLUSH, RELEASE, FORGET and INTERRUPT are served right here, as is everything quick; what may
//! wait for a disk goes to a worker, message and all. With one reader no two messages are ever seen
//! out of order, and no wake-up crosses cpus on the way to a lock. Which thread it is may change: see
//! [`relay`](crate::relay).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use crossbeam_channel::Sender;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::abi::{self, fattr, init};
use crate::device::{Device, ReplyBuffer};
use crate::fs::inode::lock;
use crate::fs::{PassthroughFs, Place, Served};
use crate::locks::{FileId, HandleId, IoAsked, LockDesk, OFFSET_MAX, Range};
use crate::polling::Polling;
use crate::relay::{LateVisit, Relay, Watched};
use crate::report::{Counts, FileLocks, Totals, WaitTimes};
use crate::request::{Malformed, Operation, Request};
use crate::workers::Workers;

/// The largest WRITE, and the room beside it for headers and names.
const MAX_WRITE: usize = 1 << 20;
const BUFFER: usize = MAX_WRITE + 4096 * 17;

/// Buffers kept for reuse while workers have others.
const SPARE_BUFFERS: usize = 8;
/// A message up to this size goes to a worker as a copy, since a thousand opens at once are not to take a thousand buffers
/// for the largest WRITE.
const SMALL: usize = 64 << 10;

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
    workers: Workers,
    relay: Relay,
}

/// The server of one mount.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
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

    /// Every lock and waiting request. Where the files are is not said.
    pub fn listing(&self) -> Vec<FileLocks> {
        self.0.desk.service().listing()
    }

    /// Says of each file where it is, seen through `mountpoint`. It takes two system calls a file.
    pub fn name<'a>(&self, files: impl IntoIterator<Item = &'a mut FileLocks>, mountpoint: &Path) {
        let places = self.0.fs.places();
        for file in files {
            let Some(place) = places.of(FileId {
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
            workers: Workers::default(),
            relay: Relay::default(),
        };
        Server {
            shared: Arc::new(shared),
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
        let result = match self.greet()? {
            None => Ok(()),
            Some(settled) => {
                let _ = self.shared.data_path.set(settled.data_path);
                ready(settled);
                self.serve_all()
            }
        };
        self.shared.desk.service().shut_down();
        result
    }

    /// Serves until the kernel has said hello and something is settled; `None` if the mount is gone before.
    fn greet(&self) -> Result<Option<Negotiated>, Errno> {
        let shared = &self.shared;
        let mut buffer = vec![0; BUFFER];
        while let Some(len) = shared.device.receive(&mut buffer)? {
            match Request::decode(&buffer[..len], false) {
                Ok(Request {
                    unique,
                    operation: Operation::Init { head, flags },
                    ..
                }) => {
                    if let Some(settled) = self.init(unique, &head, flags)? {
                        return Ok(Some(settled));
                    }
                }
                Ok(request) => shared.device.reply(request.unique, Err(Errno::IO)),
                Err(malformed) => shared.refuse(&malformed),
            }
        }
        Ok(None)
    }

    /// Has everything served by other threads, and waits for the end.
    ///
    /// By others, since a reader that is late may be so for good, and this must return all the same.
    fn serve_all(&self) -> Result<(), Errno> {
        let (ended, end) = crossbeam_channel::unbounded();
        let crew = Crew {
            shared: self.shared.clone(),
            ended,
        };
        let watching = crew.clone();
        thread::Builder::new()
            .name("watcher".into())
            .spawn(move || watching.shared.relay.watch(&watching))
            .and_then(|_| crew.start(|_| true))
            .map_err(|error| {
                self.shared.relay.end();
                Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)
            })?;
        // Whoever reads last sends one, whatever happens.
        let outcome = end.recv().unwrap_or(Ok(Err(Errno::IO)));
        self.shared.relay.end();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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

/// How serving ended: the panic is a test's.
type Outcome = thread::Result<Result<(), Errno>>;

/// Those who take turns at reading.
#[derive(Clone)]
struct Crew {
    shared: Arc<Shared>,
    ended: Sender<Outcome>,
}

impl Crew {
    /// Starts a thread that reads, if it `may` once it runs.
    fn start(&self, may: impl FnOnce(&Relay) -> bool + Send + 'static) -> std::io::Result<()> {
        let crew = self.clone();
        thread::Builder::new()
            .name("reader".into())
            .spawn(move || {
                if may(&crew.shared.relay) {
                    crew.read();
                }
            })
            .map(drop)
    }

    fn read(&self) {
        let outcome = match catch_unwind(AssertUnwindSafe(|| read_loop(&self.shared))) {
            Ok(Ok(TurnEnd::Lost)) => return,
            Ok(Ok(TurnEnd::Unmounted)) => Ok(Ok(())),
            Ok(Err(errno)) => Ok(Err(errno)),
            Err(panic) => Err(panic),
        };
        // Nobody listens where a late reader panics after the end.
        let _ = self.ended.send(outcome);
    }
}

impl Watched for Crew {
    fn start_reader(&self, late: LateVisit) -> bool {
        self.start(move |relay| relay.take(late)).is_ok()
    }

    fn tend_workers(&self) -> bool {
        self.shared.workers.tend()
    }
}

/// Why a reader stopped.
enum TurnEnd {
    /// The mount is gone.
    Unmounted,
    /// It was late, and another one reads.
    Lost,
}

/// Serves one message after the other.
fn read_loop(shared: &Arc<Shared>) -> Result<TurnEnd, Errno> {
    crate::sys::own_umask()?;
    let mut buffer = shared.spare_buffer();
    let mut out = ReplyBuffer::default();
    let mut polling = Polling::default();
    loop {
        polling.await_message(&shared.device);
        let Some(len) = shared.device.receive(&mut buffer)? else {
            return Ok(TurnEnd::Unmounted);
        };
        let request = match Request::decode(&buffer[..len], shared.fs.setxattr_ext()) {
            Ok(request) => request,
            Err(malformed) => {
                shared.refuse(&malformed);
                continue;
            }
        };
        if shared.serve_without_a_visit(&request) {
            continue;
        }
        let visit = shared.relay.visit();
        let next = shared.serve_on_reader(&request, &mut out);
        shared.go_on(next, &mut buffer, len);
        if shared.fs.wants_room() {
            let sharing = shared.clone();
            shared
                .workers
                .submit(Box::new(move |_| sharing.fs.make_room()));
        }
        if !shared.relay.is_still_ours(visit) {
            return Ok(TurnEnd::Lost);
        }
    }
}

/// What is left of a message after the reader has looked at it.
enum Next {
    /// Nothing: it is served.
    Nothing,
    /// A worker serves it, after these questions to the mandatory locks.
    Serve(Vec<IoAsked>),
    /// A worker finds out what to ask the mandatory locks, and then it is as above.
    Ask,
}

/// Asks the mandatory locks the questions that are left, one after the other, and then has a worker serve
/// the message.
fn serve_admitted(
    shared: Arc<Shared>,
    mut questions: std::vec::IntoIter<IoAsked>,
    message: Vec<u8>,
    len: usize,
) {
    let Some(io) = questions.next() else {
        let serving = shared.clone();
        return shared.workers.submit(Box::new(move |out| {
            serving.serve_message(message, len, out);
        }));
    };
    let asking = shared.clone();
    asking.desk.admit_io(
        &io,
        Box::new(move |admitted| match admitted {
            Ok(()) => serve_admitted(shared, questions, message, len),
            Err(errno) => shared.device.reply(io.unique, Err(errno)),
        }),
    );
}

impl Shared {
    fn refuse(&self, malformed: &Malformed) {
        tracing::warn!(%malformed, "refused a message");
        if let Some((unique, errno)) = malformed.reply() {
            self.device.reply(unique, Err(errno));
        }
    }

    /// Serves what has nothing to do with the source, locks above all; false if there is more to do.
    fn serve_without_a_visit(&self, request: &Request<'_>) -> bool {
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
            // The kernel wants an answer, and then the device reports the end by itself.
            Operation::Destroy => self.device.reply(unique, Ok(&[])),
            Operation::Release(args) => {
                if let Ok(file) = self.fs.file_of(args.fh) {
                    self.desk.release(file, args.fh);
                }
                return false;
            }
            _ => return false,
        }
        true
    }

    /// Serves on the reader what is not to be served elsewhere.
    fn serve_on_reader(&self, request: &Request<'_>, out: &mut ReplyBuffer) -> Next {
        if self.mandatory {
            // What a truncation cuts off depends on the size, and that is to be had from the source.
            if matches!(&request.operation, Operation::Setattr(args) if args.valid & fattr::SIZE != 0)
            {
                return Next::Ask;
            }
            let questions = self.io_asked(request);
            if !questions.is_empty() {
                return Next::Serve(questions);
            }
        }
        let forgets = matches!(
            request.operation,
            Operation::Forget { .. } | Operation::BatchForget { .. }
        );
        match self.relay.hesitates() && !forgets {
            true => Next::Serve(Vec::new()),
            false => self.serve(request, Place::Reader, out),
        }
    }

    /// Gives what is left of the message to a worker: a copy, or another buffer takes the message's place.
    fn go_on(self: &Arc<Self>, next: Next, buffer: &mut Vec<u8>, len: usize) {
        if matches!(next, Next::Nothing) {
            return;
        }
        let message = match len {
            0..=SMALL => buffer[..len].to_vec(),
            _ => std::mem::replace(buffer, self.spare_buffer()),
        };
        let shared = self.clone();
        match next {
            Next::Nothing => {}
            Next::Serve(questions) => {
                serve_admitted(shared, questions.into_iter(), message, len);
            }
            Next::Ask => self.workers.submit(Box::new(move |_| {
                let questions = match Request::decode(&message[..len], shared.fs.setxattr_ext()) {
                    Ok(request) => shared.io_asked(&request),
                    Err(malformed) => return shared.refuse(&malformed),
                };
                serve_admitted(shared, questions.into_iter(), message, len);
            })),
        }
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

    /// Serves a request about files and answers it, unless a worker must.
    fn serve(&self, request: &Request<'_>, place: Place, out: &mut ReplyBuffer) -> Next {
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
            Ok(Served::Elsewhere) => return Next::Serve(Vec::new()),
            Err(errno) => {
                tracing::debug!(unique = request.unique, node = request.nodeid, %errno, "refused");
                self.device.reply(request.unique, Err(errno));
            }
        }
        Next::Nothing
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
        if message.len() == BUFFER && spare.len() < SPARE_BUFFERS {
            spare.push(message);
        }
    }

    fn spare_buffer(&self) -> Vec<u8> {
        lock(&self.spare).pop().unwrap_or_else(|| vec![0; BUFFER])
    }
}
