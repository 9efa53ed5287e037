//! One mount from beginning to end.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::caller::CallerProbe;
use crate::device::Device;
use crate::fs::{FsOptions, PassthroughFs, open_root};
use crate::locks::{LockDesk, LockService};
use crate::mountpoint::{self, Flags, MountError, Prepared, Unmount};
use crate::reporter::Reporter;
use crate::server::{Negotiated, Observer, Server};
use crate::turn::Turn;

/// What to mount, where, and how.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The folder that is shown.
    pub source: PathBuf,
    /// Where it is shown.
    pub mountpoint: PathBuf,
    /// Refuse every change.
    pub read_only: bool,
    /// Let other users in. Without, only the mounting user gets at the mount, not even root.
    pub allow_other: bool,
    /// Honour set-user-id and set-group-id bits of programs on the mount.
    pub suid: bool,
    /// Honour device files on the mount.
    pub dev: bool,
    /// Let programs on the mount be run.
    pub exec: bool,
    /// Reads and writes obey the record locks of others.
    pub mandatory: bool,
    /// Use backing files where the kernel allows.
    pub passthrough: bool,
    /// How long the kernel may use a name without asking again.
    pub entry_timeout: Duration,
    /// How long the kernel may use attributes without asking again.
    pub attr_timeout: Duration,
}

impl MountOptions {
    /// The defaults, for these two folders.
    pub fn new(source: impl Into<PathBuf>, mountpoint: impl Into<PathBuf>) -> MountOptions {
        MountOptions {
            source: source.into(),
            mountpoint: mountpoint.into(),
            read_only: false,
            allow_other: false,
            suid: false,
            dev: false,
            exec: true,
            mandatory: false,
            passthrough: true,
            entry_timeout: Duration::from_secs(1),
            attr_timeout: Duration::from_secs(1),
        }
    }
}

/// A mount that is in place and waits to be served by [`run`](Self::run). Dropped, it is unmounted; if it was
/// never served, folders that were made for it go, too.
#[derive(Debug)]
pub struct Session {
    server: Server,
    reporter: Reporter,
    source: PathBuf,
    prepared: Prepared,
    served: AtomicBool,
    unmounter: Unmounter,
}

impl Session {
    /// Mounts.
    ///
    /// # Errors
    /// [`MountError`], saying what is missing and what to do.
    pub fn mount(
        options: &MountOptions,
        service: Arc<dyn LockService>,
    ) -> Result<Session, MountError> {
        raise_descriptor_limit();
        let _turn = Turn::take(&options.mountpoint)?;
        let (source, mountpoint, prepared) =
            mountpoint::prepare(&options.source, &options.mountpoint)?;
        let (device, fs, stack_depth) =
            mount_prepared(options, &source, &mountpoint).inspect_err(|_| prepared.undo())?;
        let unmounter = Unmounter { mountpoint };
        let desk = LockDesk::new(service, CallerProbe::default(), device.clone());
        let server = Server::new(device, fs, desk, options.mandatory, stack_depth);
        let reporter = Reporter::new(
            server.observer(),
            source.clone(),
            unmounter.mountpoint.clone(),
        );
        Ok(Session {
            server,
            reporter,
            source,
            prepared,
            served: AtomicBool::new(false),
            unmounter,
        })
    }

    /// What was done to the folders before mounting.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// The source, absolute.
    pub fn source(&self) -> &Path {
        &self.source
    }

    /// The mount point, absolute.
    pub fn mountpoint(&self) -> &Path {
        &self.unmounter.mountpoint
    }

    /// The mount's device number, which stat(2) on anything below it shows.
    pub fn dev(&self) -> Option<u64> {
        let mounts = mountpoint::mounts();
        let own = |mount: &&mountpoint::MountEntry| {
            mount.path == self.unmounter.mountpoint && mount.fs_type == mountpoint::FS_TYPE
        };
        mounts.iter().rfind(own).map(|mount| mount.dev)
    }

    /// For whoever ends the mount, from another thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// For whoever wants to know how it goes.
    pub fn observer(&self) -> Observer {
        self.server.observer()
    }

    /// For whoever wants to know everything.
    pub fn reporter(&self) -> Reporter {
        self.reporter.clone()
    }

    /// Serves until unmounted; `ready` is called once, when programs can use the mount.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(&self, ready: impl FnOnce(Negotiated)) -> io::Result<()> {
        self.served.store(true, Ordering::Relaxed);
        self.server.run(ready).map_err(io::Error::from)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.unmounter.is_mounted() {
            let _ = mountpoint::unmount(&self.unmounter.mountpoint, Unmount::Lazy);
        }
        if !self.served.load(Ordering::Relaxed) {
            self.prepared.undo();
        }
    }
}

/// Mounts where all is prepared; if that fails, nothing is mounted.
fn mount_prepared(
    options: &MountOptions,
    source: &Path,
    mountpoint: &Path,
) -> Result<(Arc<Device>, PassthroughFs, u32), MountError> {
    // Opened before mounting: the source may be the mount point itself.
    let root = open_root(source).map_err(|errno| MountError::Unusable {
        path: source.into(),
        error: errno.into(),
    })?;
    let stack_depth = crate::backing::stack_depth(root.as_fd());
    let flags = Flags {
        read_only: options.read_only,
        allow_other: options.allow_other,
        suid: options.suid,
        dev: options.dev,
        exec: options.exec,
    };
    let fs_options = FsOptions {
        read_only: options.read_only,
        entry_timeout: options.entry_timeout,
        attr_timeout: options.attr_timeout,
        direct_io: options.mandatory,
        passthrough: options.passthrough,
    };
    let device = Arc::new(Device::new(mountpoint::mount(source, mountpoint, &flags)?));
    match PassthroughFs::new(root, device.clone(), fs_options) {
        Ok(fs) => Ok((device, fs, stack_depth)),
        Err(errno) => {
            let _ = mountpoint::unmount(mountpoint, Unmount::Lazy);
            Err(MountError::Prepare(errno.into()))
        }
    }
}

/// Ends a mount.
#[derive(Clone, Debug)]
pub struct Unmounter {
    mountpoint: PathBuf,
}

/// What became of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// It is gone, and the server's loop ends now.
    Cleanly,
    /// It was in use: it is out of the tree, and the loop ends with the last open file.
    Detached,
}

impl Unmounter {
    /// Takes the mount out of the tree at once; who has files open there keeps them.
    ///
    /// # Errors
    /// If it is not mounted, or may not be unmounted.
    pub fn detach(&self) -> io::Result<()> {
        mountpoint::unmount(&self.mountpoint, Unmount::Lazy)
    }

    /// Unmounts, and detaches if somebody still uses the mount after `patience`.
    ///
    /// # Errors
    /// If neither works.
    pub fn unmount(&self, patience: Duration) -> io::Result<Unmounted> {
        let deadline = Instant::now() + patience;
        loop {
            match mountpoint::unmount(&self.mountpoint, Unmount::Plain) {
                Ok(()) => return Ok(Unmounted::Cleanly),
                Err(_) if !self.is_mounted() => return Ok(Unmounted::Cleanly),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(error),
            }
            if Instant::now() >= deadline {
                mountpoint::unmount(&self.mountpoint, Unmount::Lazy)?;
                return Ok(Unmounted::Detached);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether the mount is (still) in the tree.
    pub fn is_mounted(&self) -> bool {
        mountpoint::mounts()
            .iter()
            .any(|mount| mount.path == self.mountpoint && mount.fs_type == mountpoint::FS_TYPE)
    }
}

/// Every inode the kernel knows costs a descriptor: get as many as there are to be had.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const WANTED: u64 = 1 << 20;
    let limit = getrlimit(Resource::Nofile);
    // Root may go beyond the hard limit, up to fs.nr_open.
    let higher = Rlimit {
        current: Some(WANTED),
        maximum: Some(WANTED),
    };
    if limit.maximum.is_some_and(|maximum| maximum < WANTED)
        && setrlimit(Resource::Nofile, higher).is_ok()
    {
        return;
    }
    if let Err(errno) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    ) {
        tracing::debug!(%errno, "cannot raise the limit of open files");
    }
}
