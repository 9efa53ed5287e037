//! Whose locks a command shows: a mount's, asked over its status socket, or a plain folder's, as the kernel
//! tells them.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use lockkeeper_mount::mountpoint::MountEntry;
use lockkeeper_mount::status;
use lockkeeper_watch::ask::{self, AskError};
use lockkeeper_watch::kernel;
use lockkeeper_watch::report::{FileLocks, Lock, Report};

/// What of a report is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All of it.
    Everything,
    /// What a process holds or wants.
    Process(u32),
    /// The file with this inode number.
    File(u64),
}

/// Who is asked.
#[derive(Clone, Debug)]
enum Source {
    /// Every mount that there is when it is asked.
    Mounts,
    /// The server of a mount.
    Mount(MountEntry),
    /// Whoever listens there.
    Socket(PathBuf),
    /// The kernel.
    Kernel(kernel::Place),
}

/// Whose locks are shown, and which of them.
#[derive(Clone, Debug)]
pub struct Target {
    sources: Vec<Source>,
    /// Which of them.
    pub filter: Filter,
}

/// A mount that was watched is no longer there.
#[derive(Debug, thiserror::Error)]
#[error("{0} was unmounted")]
pub struct Unmounted(PathBuf);

impl Target {
    fn all_of(source: Source) -> Target {
        Target {
            sources: vec![source],
            filter: Filter::Everything,
        }
    }

    /// What `target` means; every mount if it is not given.
    ///
    /// # Errors
    /// It means nothing, or may not be looked at.
    pub fn find(target: Option<&Path>) -> anyhow::Result<Target> {
        let Some(target) = target else {
            return Ok(Target::all_of(Source::Mounts));
        };
        let mounts = status::mounts();
        let process = target.to_str().and_then(|text| text.parse::<u32>().ok());
        if let Some(pid) = process
            && fs::symlink_metadata(target).is_err()
        {
            return of_process(&mounts, pid);
        }
        if fs::metadata(target).is_ok_and(|found| found.file_type().is_socket()) {
            return Ok(Target::all_of(Source::Socket(target.to_owned())));
        }
        // A dead mount, or one of another user, cannot be looked at; its name will do.
        let path = target
            .canonicalize()
            .or_else(|_| std::path::absolute(target))
            .with_context(|| format!("{} is no path", target.display()))?;
        let named: Vec<Source> = mounts
            .iter()
            .filter(|mount| mount.path == path || mount.source == path)
            .map(|mount| Source::Mount(mount.clone()))
            .collect();
        if !named.is_empty() {
            return Ok(Target {
                sources: named,
                filter: Filter::Everything,
            });
        }
        let found = match fs::metadata(&path) {
            // Below a dead mount: asked for what is there, the mount says it better.
            Err(error)
                if is_not_connected(&error)
                    && let Some(mount) =
                        mounts.iter().rfind(|mount| path.starts_with(&mount.path)) =>
            {
                return Ok(Target::all_of(Source::Mount(mount.clone())));
            }
            found => found.with_context(|| format!("cannot look at {}", path.display()))?,
        };
        let Some(mount) = mounts.iter().find(|mount| mount.dev == found.dev()) else {
            let place = kernel::Place::new(&path)
                .with_context(|| format!("cannot tell the locks of {}", path.display()))?;
            return Ok(Target::all_of(Source::Kernel(place)));
        };
        if found.is_dir() {
            bail!(
                "{} is a folder of the mount {}; ask for the mount, or for a file",
                path.display(),
                mount.path.display()
            );
        }
        Ok(Target {
            sources: vec![Source::Mount(mount.clone())],
            filter: Filter::File(found.ino()),
        })
    }

    /// A file below `folder`, or by a name of its own; all of `folder` if none is given.
    ///
    /// # Errors
    /// As of [`find`](Target::find).
    pub fn find_in(folder: &Path, file: Option<&Path>) -> anyhow::Result<Target> {
        let Some(file) = file else {
            return Target::find(Some(folder));
        };
        let below = folder.join(file);
        match fs::symlink_metadata(&below) {
            Err(_) if fs::symlink_metadata(file).is_ok() => Target::find(Some(file)),
            _ => Target::find(Some(&below)),
        }
    }

    /// What is locked now.
    ///
    /// # Errors
    /// Who was asked does not tell; [`Unmounted`] where the mount is no longer there.
    pub fn reports(&self) -> anyhow::Result<Vec<Report>> {
        let mut reports = Vec::new();
        for source in &self.sources {
            match source {
                Source::Mounts => reports.extend(ask_all(&status::mounts())?),
                Source::Mount(mount) => {
                    if !is_there(mount) {
                        return Err(Unmounted(mount.path.clone()).into());
                    }
                    reports.push(ask_mount(mount, ask::report)?);
                }
                Source::Socket(socket) => reports.push(ask::report(socket)?),
                Source::Kernel(place) => {
                    let report = place.report();
                    let place = place.path().display();
                    reports
                        .push(report.with_context(|| format!("cannot list the locks of {place}"))?);
                }
            }
        }
        for report in &mut reports {
            report.retain_files(|file| self.filter.concerns(file));
        }
        Ok(reports)
    }

    /// The metrics of the one mount that is meant.
    ///
    /// # Errors
    /// It is no mount, or its server does not tell.
    pub fn metrics(&self) -> anyhow::Result<String> {
        match &self.sources[..] {
            [Source::Mount(mount)] => ask_server(mount, ask::metrics),
            [Source::Socket(socket)] => Ok(ask::metrics(socket)?),
            _ => bail!(
                "metrics are told by the server of a lockkeeper mount; {}",
                known(&status::mounts())
            ),
        }
    }
}

fn is_there(mount: &MountEntry) -> bool {
    status::mounts()
        .iter()
        .any(|other| other.path == mount.path && other.dev == mount.dev)
}

/// The reports of all mounts that tell theirs; of the others why not, on the
/// standard error. An error only where none of them does.
fn ask_all(mounts: &[MountEntry]) -> anyhow::Result<Vec<Report>> {
    let (told, refused): (Vec<_>, Vec<_>) = mounts
        .iter()
        .map(|mount| ask_mount(mount, ask::report))
        .partition(Result::is_ok);
    let mut refused = refused.into_iter().filter_map(Result::err);
    if told.is_empty()
        && let Some(error) = refused.next()
    {
        return Err(error);
    }
    for error in refused {
        eprintln!("warning: {error:#}");
    }
    Ok(told.into_iter().filter_map(Result::ok).collect())
}

/// A server means its mount; any other process what it holds or wants, on whichever mount.
fn of_process(mounts: &[MountEntry], pid: u32) -> anyhow::Result<Target> {
    for mount in mounts {
        if ask_mount(mount, ask::brief).is_ok_and(|report| report.pid == pid) {
            return Ok(Target::all_of(Source::Mount(mount.clone())));
        }
    }
    if fs::metadata(format!("/proc/{pid}")).is_err() {
        bail!("there is no process {pid}");
    }
    Ok(Target {
        sources: vec![Source::Mounts],
        filter: Filter::Process(pid),
    })
}

/// Says which mounts there are.
pub fn known(mounts: &[MountEntry]) -> String {
    match mounts {
        [] => "nothing is mounted by lockkeeper here".into(),
        mounts => {
            let paths: Vec<_> = mounts
                .iter()
                .map(|mount| mount.path.display().to_string())
                .collect();
            format!("these are: {}", paths.join(", "))
        }
    }
}

/// What the server of a mount tells, and the leases, of which only the kernel knows.
pub fn ask_mount(
    mount: &MountEntry,
    ask: impl Fn(&Path) -> Result<Report, AskError>,
) -> anyhow::Result<Report> {
    let mut report = ask_server(mount, ask)?;
    let (major, minor) = (rustix::fs::major(mount.dev), rustix::fs::minor(mount.dev));
    // Where there is no /proc/locks nobody tells of leases.
    let _ = kernel::add_leases(&mut report, major, minor);
    Ok(report)
}

/// What everything on a mount fails with whose server is gone.
fn is_not_connected(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error())
}

/// Asks the server of a mount.
fn ask_server<T>(
    mount: &MountEntry,
    ask: impl Fn(&Path) -> Result<T, AskError>,
) -> anyhow::Result<T> {
    let place = mount.path.display();
    if let Err(error) = fs::symlink_metadata(&mount.path)
        && is_not_connected(&error)
    {
        bail!(
            "the server of {place} is gone: it was killed. `lockkeeper mount` on {place} replaces the dead mount, \
             `umount -l {place}` removes it"
        );
    }
    let caller = rustix::process::getuid();
    if !caller.is_root() && caller.as_raw() != mount.user_id {
        bail!(
            "the locks of {place} are told to root and to the user who mounted it (uid {})",
            mount.user_id
        );
    }
    let mut missing = None;
    for socket in status::sockets_of(mount) {
        match ask(&socket) {
            Err(error @ AskError::NoSocket(_)) => missing = Some(error),
            answer => return answer.with_context(|| format!("cannot list the locks of {place}")),
        }
    }
    match missing {
        Some(error) => Err(error).with_context(|| format!("cannot list the locks of {place}")),
        None => bail!(
            "cannot list the locks of {place}: it has no status socket where one is looked for; if it was mounted \
             with --status, give the socket in place of {place}"
        ),
    }
}

impl Filter {
    /// Whether anything on this file is asked for.
    pub fn concerns(&self, file: &FileLocks) -> bool {
        match self {
            Filter::Everything => true,
            Filter::File(inode) => file.inode == *inode,
            Filter::Process(pid) => {
                let held = file.locks.iter().map(|held| held.lock.pid);
                let wanted = file.waiters.iter().map(|waiting| waiting.lock.pid);
                held.chain(wanted).any(|found| found == *pid)
            }
        }
    }

    /// Whether this lock or request is.
    pub fn shows(&self, lock: &Lock) -> bool {
        match self {
            Filter::Process(pid) => lock.pid == *pid,
            _ => true,
        }
    }
}
