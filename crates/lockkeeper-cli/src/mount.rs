//! `lockkeeper mount`: serves a mount until it is unmounted or told to stop.
//!
//! In the foreground by default. `--daemon` starts this program once more, detached, and waits until that
//! one says that the mount can be used: so whoever started it never meets an empty folder, and errors
//! are still shown where they can be read.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use lockkeeper::{Fairness, Limits, LockManager};
use lockkeeper_mount::status::{self, StatusSocket};
use lockkeeper_mount::{
    DataPath, ManagerService, MountOptions, Negotiated, Sentinel, Session, Unmounted, Unmounter,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::page::{self, PageOptions};

/// Tells the second process of `--daemon` that it is the one that serves.
const DETACHED: &str = "LOCKKEEPER_DETACHED";
/// What it writes last, once the mount can be used.
const READY: u8 = 0;
/// How long a busy mount may take to become idle before it is detached.
const PATIENCE: Duration = Duration::from_secs(3);

/// What `lockkeeper mount` takes.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// The folder to show; made if it is missing
    source: PathBuf,
    /// Where to show it; made if it is missing
    mountpoint: PathBuf,
    /// Refuse every change
    #[arg(long)]
    read_only: bool,
    /// Let other users in (an ordinary user needs user_allow_other in /etc/fuse.conf)
    #[arg(long)]
    allow_other: bool,
    /// Make reads and writes obey the record locks of others
    #[arg(long)]
    mandatory: bool,
    /// Do not use backing files: send all data through the server
    #[arg(long)]
    no_backing: bool,
    /// Seconds for which the kernel may use names and attributes without asking again
    #[arg(long, value_name = "SECONDS", value_parser = cache_time, allow_negative_numbers = true, default_value = "1")]
    cache: Duration,
    /// The same for names alone
    #[arg(long, value_name = "SECONDS", value_parser = cache_time, allow_negative_numbers = true)]
    entry_cache: Option<Duration>,
    /// The same for attributes alone
    #[arg(long, value_name = "SECONDS", value_parser = cache_time, allow_negative_numbers = true)]
    attr_cache: Option<Duration>,
    /// How many newcomers may overtake a waiting request: `unlimited` (as Linux), `fifo` (none), or a number
    #[arg(long, value_name = "unlimited|fifo|N", value_parser = fairness, allow_negative_numbers = true, default_value = "1000")]
    fairness: Fairness,
    #[command(flatten)]
    limits: LimitOptions,
    /// Serve in the background; returns when the mount can be used
    #[arg(long)]
    daemon: bool,
    /// Say only what was created or removed, not what is mounted and what to try
    #[arg(long)]
    quiet: bool,
    /// Write the server's process id to this file
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// Where to listen for `lockkeeper locks` (default: below /run or $XDG_RUNTIME_DIR)
    #[arg(long, value_name = "SOCKET")]
    status: Option<PathBuf>,
    /// Do not listen
    #[arg(long, conflicts_with = "status")]
    no_status: bool,
    #[command(flatten)]
    page: PageOptions,
    /// What to log: error, warn, info, debug or trace; `json` or `json:LEVEL` as one JSON object a line
    #[arg(long, value_name = "LEVEL|json[:LEVEL]", value_parser = log_form, default_value = "warn")]
    log: LogForm,
    /// Log to this file instead of the standard error
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Log each request that has waited for so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = positive_seconds, default_value = "10")]
    slow_wait: Duration,
    /// Options as mount(8) and fstab write them, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Honour set-user-id programs (-o suid)
    #[arg(skip)]
    suid: bool,
    /// Honour device files (-o dev)
    #[arg(skip)]
    dev: bool,
    /// Run no programs (-o noexec)
    #[arg(skip)]
    noexec: bool,
}

/// How many locks and waiting requests there may be; without end if not given. What is over a limit is
/// refused with ENOLCK.
#[derive(Args, Clone, Debug, Default)]
struct LimitOptions {
    /// Locks of one owner (a process or an open file) on all files
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    max_locks_per_owner: Option<u32>,
    /// Locks on one file
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    max_locks_per_file: Option<u32>,
    /// Locks on the whole mount
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    max_locks: Option<u32>,
    /// Waiting requests of one owner on all files
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    max_waiters_per_owner: Option<u32>,
    /// Waiting requests on one file
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    max_waiters_per_file: Option<u32>,
    /// Waiting requests on the whole mount
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    max_waiters: Option<u32>,
}

impl LimitOptions {
    fn limits(&self) -> Limits {
        Limits {
            locks_per_owner: self.max_locks_per_owner,
            locks_per_file: self.max_locks_per_file,
            locks_in_all: self.max_locks,
            waiters_per_owner: self.max_waiters_per_owner,
            waiters_per_file: self.max_waiters_per_file,
            waiters_in_all: self.max_waiters,
        }
    }

    /// The limit that the mount option `name` sets.
    fn by_mount_option(&mut self, name: &str) -> Option<&mut Option<u32>> {
        Some(match name {
            "max_locks_per_owner" => &mut self.max_locks_per_owner,
            "max_locks_per_file" => &mut self.max_locks_per_file,
            "max_locks" => &mut self.max_locks,
            "max_waiters_per_owner" => &mut self.max_waiters_per_owner,
            "max_waiters_per_file" => &mut self.max_waiters_per_file,
            "max_waiters" => &mut self.max_waiters,
            _ => return None,
        })
    }
}

fn fairness(text: &str) -> Result<Fairness, String> {
    match text {
        "unlimited" => Ok(Fairness::Unlimited),
        "fifo" => Ok(Fairness::FIFO),
        number => number.parse().map(Fairness::Bounded).map_err(|_| {
            format!(
                "neither `unlimited` nor `fifo` nor a whole number from 0 to {}",
                u32::MAX
            )
        }),
    }
}

/// How much to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Level {
    /// What went wrong for good.
    Error,
    /// What went wrong.
    Warn,
    /// What happens to the mount.
    Info,
    /// Each request that was refused.
    Debug,
    /// Everything.
    Trace,
}

/// How much to log, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogForm {
    level: Level,
    is_json: bool,
}

fn log_form(text: &str) -> Result<LogForm, String> {
    let (is_json, level) = match text.split_once(':') {
        Some(("json", level)) => (true, level),
        None if text == "json" => (true, "warn"),
        _ => (false, text),
    };
    match Level::from_str(level, true) {
        Ok(level) => Ok(LogForm { level, is_json }),
        Err(_) => Err("neither error, warn, info, debug, trace, nor json, nor json:LEVEL".into()),
    }
}

fn positive_seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "not a number of seconds above 0".into())
}

/// Mounts and serves; returns when the mount is gone.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let arguments = arguments.clone().with_mount_options()?;
    let detached = std::env::var_os(DETACHED).is_some();
    if arguments.daemon && !detached {
        return start_daemon();
    }
    if detached {
        rustix::process::setsid().context("cannot leave the terminal")?;
    }
    start_log(&arguments)?;
    serve(&arguments, detached)
}

/// The lock manager that serves the mount.
fn lock_manager(arguments: &Arguments) -> Arc<ManagerService> {
    let manager = LockManager::builder()
        .fairness(arguments.fairness)
        .limits(arguments.limits.limits())
        .build();
    Arc::new(ManagerService::new(manager))
}

fn serve(arguments: &Arguments, detached: bool) -> anyhow::Result<ExitCode> {
    let page = arguments.page.bind()?;
    let service = lock_manager(arguments);
    let session = Session::mount(&arguments.mount_options(), service.clone())?;
    let pid_file = arguments
        .pid_file
        .as_deref()
        .map(PidFile::write)
        .transpose()?;
    let status = match arguments.no_status {
        true => None,
        false => listen(arguments, &session)?,
    };
    let sentinel = Sentinel::start(&session, service.clone(), arguments.slow_wait)
        .context("cannot start the thread that looks for deadlocks")?;
    end_on_signal(session.unmounter(), pid_file.clone(), status.clone())?;
    let mut about_page = String::new();
    if let Some(page) = page {
        about_page = page::welcome(&page.url(), page.address());
        page::serve(page, &session, service).context("cannot serve the page")?;
    }
    let result = session.run(|settled| {
        let text = welcome(&session, &settled, status.as_ref(), &about_page, arguments);
        if detached {
            report_ready(&text, arguments.log_file.is_some());
        } else {
            say(&text);
        }
        notify_systemd("READY=1");
    });
    notify_systemd("STOPPING=1");
    drop(sentinel);
    // The thread that waits for signals has these too, so dropping them would do nothing.
    if let Some(file) = &pid_file {
        file.remove();
    }
    if let Some(socket) = &status {
        socket.close();
    }
    result.with_context(|| format!("serving {} failed", session.mountpoint().display()))?;
    if !detached && !arguments.quiet {
        say(&format!(
            "{} is unmounted.\n",
            session.mountpoint().display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes to the standard output; nothing fails because nobody reads what is said.
pub fn say(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Unmounts on SIGINT, SIGTERM and SIGHUP; a second signal does not wait for anybody.
fn end_on_signal(
    unmounter: Unmounter,
    pid_file: Option<Arc<PidFile>>,
    status: Option<Arc<StatusSocket>>,
) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot catch signals")?;
    // Leaves nothing behind, though the main thread does not return.
    let exit_now = move |code| {
        if let Some(file) = &pid_file {
            file.remove();
        }
        if let Some(socket) = &status {
            socket.close();
        }
        std::process::exit(code)
    };
    let exit_later = exit_now.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let mut signals = signals.forever();
            if signals.next().is_none() {
                return;
            }
            let first = unmounter.clone();
            std::thread::spawn(move || match first.unmount(PATIENCE) {
                // The reader finds the device gone, and the program ends by itself.
                Ok(Unmounted::Cleanly) => {}
                Ok(Unmounted::Detached) => {
                    tracing::warn!(
                        "programs still use the mount: it is detached, and they lose it"
                    );
                    std::thread::sleep(PATIENCE);
                    exit_later(0);
                }
                Err(error) => {
                    tracing::error!(%error, "cannot unmount");
                    exit_later(1);
                }
            });
            if signals.next().is_some() {
                let _ = unmounter.detach();
                exit_now(130);
            }
        })?;
    Ok(())
}

/// Listens for `lockkeeper locks`: where it was told to, or it fails; else where it can.
fn listen(arguments: &Arguments, session: &Session) -> anyhow::Result<Option<Arc<StatusSocket>>> {
    let default_path = session.dev().map(status::default_path);
    let Some(path) = arguments.status.clone().or_else(|| default_path.clone()) else {
        return Ok(None);
    };
    let reporter = session.reporter();
    let mut socket = match StatusSocket::listen(&path, move |question| reporter.report(question)) {
        Ok(socket) => socket,
        Err(error) if arguments.status.is_some() => {
            return Err(error).with_context(|| format!("cannot listen on {}", path.display()));
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "no status socket");
            return Ok(None);
        }
    };
    if let Some(default_path) = default_path
        && arguments.status.is_some()
        && let Err(error) = socket.announce(&default_path)
    {
        tracing::info!(path = %default_path.display(), %error, "the status socket is not linked here");
    }
    Ok(Some(Arc::new(socket)))
}

/// One screen: what is where, and what to try.
fn welcome(
    session: &Session,
    settled: &Negotiated,
    status: Option<&Arc<StatusSocket>>,
    about_page: &str,
    arguments: &Arguments,
) -> String {
    let mut text = String::new();
    let (source, mountpoint) = (session.source().display(), session.mountpoint().display());
    let for_status = status.map_or(&[][..], |socket| socket.created());
    for folder in session.prepared().created.iter().chain(for_status) {
        let _ = writeln!(text, "Created the folder {}.", folder.display());
    }
    if session.prepared().replaced_dead_mount {
        let _ = writeln!(
            text,
            "Removed a dead mount from {mountpoint}: its server was killed."
        );
    }
    if arguments.quiet {
        return text;
    }
    let _ = writeln!(
        text,
        "{source} is mounted at {mountpoint}; lockkeeper serves its locks."
    );
    let _ = match (settled.data_path, &settled.no_backing) {
        (DataPath::Backing, _) => writeln!(
            text,
            "Data: backing files (reads and writes at the source's own speed)."
        ),
        (DataPath::Direct, _) => writeln!(
            text,
            "Data: through the server, uncached, so that mandatory locks hold."
        ),
        (DataPath::Cached, Some(why)) => writeln!(
            text,
            "Data: through the server, cached. No backing files: {why}."
        ),
        (DataPath::Cached, None) => writeln!(text, "Data: through the server, cached."),
    };
    if arguments.daemon {
        text += about_page;
        let _ = writeln!(
            text,
            "Unmount: umount {mountpoint} (or fusermount3 -u {mountpoint})."
        );
        return text;
    }
    let _ = write!(
        text,
        "
Try, from another terminal:
  flock {mountpoint}/a sleep 30 &        hold a lock
  flock -n {mountpoint}/a echo mine      be refused
  flock -w 5 {mountpoint}/a echo mine    wait for it, at most five seconds
  lockkeeper locks {mountpoint}          see who holds, and who waits
  sqlite3 {mountpoint}/test.db           or any program that locks
"
    );
    if let Some(status) = status {
        let _ = writeln!(text, "Status socket: {}", status.path().display());
    }
    text += about_page;
    let _ = writeln!(text, "Ctrl-C unmounts.");
    text
}

/// Starts this program again in the background and waits until it serves.
fn start_daemon() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "lockkeeper".into());
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let mut child = Command::new(program)
        .arg0(name)
        .args(arguments)
        .env(DETACHED, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start in the background")?;
    let mut said = Vec::new();
    if let Some(mut output) = child.stdout.take() {
        output
            .read_to_end(&mut said)
            .context("lost the background process")?;
    }
    if said.pop_if(|last| *last == READY).is_some() {
        io::stdout().write_all(&said)?;
        return Ok(ExitCode::SUCCESS);
    }
    // It has said why, on the standard error that it shares with us.
    let status = child.wait()?;
    Ok(ExitCode::from(
        status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1)
            .max(1),
    ))
}

/// Tells the process that waits in [`start_daemon`], and lets go of what it shares with us.
fn report_ready(text: &str, keep_stderr: bool) {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(READY);
    let _ = io::stdout()
        .write_all(&bytes)
        .and_then(|()| io::stdout().flush());
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else {
        return;
    };
    let _ = rustix::stdio::dup2_stdout(null.as_fd());
    if !keep_stderr {
        let _ = rustix::stdio::dup2_stderr(null.as_fd());
    }
    let _ = std::env::set_current_dir("/");
}

/// sd_notify(3), without the library.
fn notify_systemd(state: &str) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let sent = UnixDatagram::unbound().and_then(|socket| {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::ffi::OsStrExt;
        let address = match address.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&address)?,
        };
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = sent {
        tracing::warn!(%error, "cannot tell systemd");
    }
}

fn start_log(arguments: &Arguments) -> anyhow::Result<()> {
    let level = match arguments.log.level {
        Level::Error => tracing::Level::ERROR,
        Level::Warn => tracing::Level::WARN,
        Level::Info => tracing::Level::INFO,
        Level::Debug => tracing::Level::DEBUG,
        Level::Trace => tracing::Level::TRACE,
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false);
    match &arguments.log_file {
        Some(path) => {
            let file = File::options()
                .create(true)
                .append(true)
                .open(path)
                .with_context(|| format!("cannot open the log file {}", path.display()))?;
            let log = log.with_ansi(false).with_writer(Arc::new(file));
            match arguments.log.is_json {
                true => log.json().flatten_event(true).init(),
                false => log.init(),
            }
        }
        None => {
            let log = log
                .with_ansi(io::stderr().is_terminal())
                .with_writer(io::stderr);
            match arguments.log.is_json {
                true => log.json().flatten_event(true).init(),
                false => log.init(),
            }
        }
    }
    Ok(())
}

/// A file that holds our process id for as long as we run.
#[derive(Debug)]
struct PidFile(PathBuf);

impl PidFile {
    fn write(path: &Path) -> anyhow::Result<Arc<PidFile>> {
        if let Ok(text) = fs::read_to_string(path)
            && let Ok(pid) = text.trim().parse::<u32>()
            && pid != std::process::id()
            && fs::read_link(format!("/proc/{pid}/exe"))
                .is_ok_and(|exe| Some(exe) == std::env::current_exe().ok())
        {
            bail!(
                "{} names a lockkeeper that runs: process {pid}",
                path.display()
            );
        }
        fs::write(path, format!("{}\n", std::process::id()))
            .with_context(|| format!("cannot write the pid file {}", path.display()))?;
        // The daemon leaves this folder.
        Ok(Arc::new(PidFile(std::path::absolute(path)?)))
    }

    fn remove(&self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Arguments {
    fn mount_options(&self) -> MountOptions {
        let mut options = MountOptions::new(&self.source, &self.mountpoint);
        options.read_only = self.read_only;
        options.allow_other = self.allow_other;
        options.mandatory = self.mandatory;
        options.passthrough = !self.no_backing;
        options.suid = self.suid;
        options.dev = self.dev;
        options.exec = !self.noexec;
        options.entry_timeout = self.entry_cache.unwrap_or(self.cache);
        options.attr_timeout = self.attr_cache.unwrap_or(self.cache);
        options
    }

    /// Takes in what came as `-o`.
    fn with_mount_options(mut self) -> anyhow::Result<Arguments> {
        for option in std::mem::take(&mut self.options)
            .iter()
            .flat_map(|list| list.split(','))
        {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            match (name, value) {
                ("ro", None) => self.read_only = true,
                ("rw", None) => self.read_only = false,
                ("allow_other", None) => self.allow_other = true,
                ("mandatory" | "mand", None) => self.mandatory = true,
                ("no_backing", None) => self.no_backing = true,
                ("suid", None) => self.suid = true,
                ("nosuid", None) => self.suid = false,
                ("dev", None) => self.dev = true,
                ("nodev", None) => self.dev = false,
                ("noexec", None) => self.noexec = true,
                ("exec", None) => self.noexec = false,
                ("no_status", None) => self.no_status = true,
                ("cache", Some(value)) => self.cache = read(option, value, cache_time)?,
                ("entry_timeout", Some(value)) => {
                    self.entry_cache = Some(read(option, value, cache_time)?);
                }
                ("attr_timeout", Some(value)) => {
                    self.attr_cache = Some(read(option, value, cache_time)?);
                }
                ("fairness", Some(value)) => self.fairness = read(option, value, fairness)?,
                (name, Some(value)) if self.limits.by_mount_option(name).is_some() => {
                    let limit = read(option, value, limit)?;
                    if let Some(slot) = self.limits.by_mount_option(name) {
                        *slot = Some(limit);
                    }
                }
                ("pid_file", Some(value)) => self.pid_file = Some(value.into()),
                ("status", Some(value)) => self.status = Some(value.into()),
                ("http", Some(value)) => {
                    let address = page::address(value)
                        .map_err(|error| anyhow::anyhow!("-o {option}: {error}"))?;
                    self.page.http = Some(address);
                }
                ("http_any_address", None) => self.page.http_any_address = true,
                ("log_file", Some(value)) => self.log_file = Some(value.into()),
                ("log", Some(value)) => {
                    self.log = read(option, value, log_form)?;
                }
                ("slow_wait", Some(value)) => {
                    self.slow_wait = read(option, value, positive_seconds)?;
                }
                // What mount(8) and fstab say to each other, and defaults that hold anyway.
                (
                    ""
                    | "defaults"
                    | "auto"
                    | "noauto"
                    | "nofail"
                    | "user"
                    | "users"
                    | "nouser"
                    | "owner"
                    | "group"
                    | "_netdev"
                    | "async"
                    | "atime"
                    | "relatime"
                    | "noatime"
                    | "diratime"
                    | "nodiratime"
                    | "default_permissions",
                    None,
                ) => {}
                ("comment" | "fsname" | "subtype", Some(_)) => {}
                (name, _) if name.starts_with("x-") || name.starts_with("X-") => {}
                _ => bail!(
                    "unknown mount option {option:?}; known are ro, rw, allow_other, mandatory, no_backing, \
                     suid, dev, noexec, cache=SECONDS, entry_timeout=SECONDS, attr_timeout=SECONDS, \
                     fairness=unlimited|fifo|N, max_locks=N, max_locks_per_file=N, max_locks_per_owner=N, \
                     max_waiters=N, max_waiters_per_file=N, max_waiters_per_owner=N, \
                     pid_file=FILE, status=SOCKET, no_status, \
                     http=ADDRESS:PORT, http_any_address, log=LEVEL|json[:LEVEL], log_file=FILE, slow_wait=SECONDS"
                ),
            }
        }
        Ok(self)
    }
}

/// Reads the value of a mount option as its long option reads it.
fn read<T>(
    option: &str,
    value: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> anyhow::Result<T> {
    parse(value).map_err(|error| anyhow::anyhow!("-o {option}: {error}"))
}

/// The longest cache time: more seconds than anybody waits, and the kernel can still add them to its clock.
const LONGEST_CACHE: f64 = 1e9;

fn cache_time(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.0..=LONGEST_CACHE).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "not a number of seconds from 0 to 1000000000, such as 0.5".into())
}

fn limit(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("not a whole number from 0 to {}", u32::MAX))
}

/// What this program would be called with instead, if it is called as mount(8) calls its helpers
/// (`mount.fuse.lockkeeper SOURCE MOUNTPOINT [-sfnv] [-N NAMESPACE] [-t TYPE] [-o OPTIONS]`).
pub fn helper_arguments(arguments: impl IntoIterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut arguments = arguments.into_iter();
    let program = arguments.next()?;
    let name = Path::new(&program).file_name()?;
    if name != OsStr::new("mount.fuse.lockkeeper") && name != OsStr::new("mount.lockkeeper") {
        return None;
    }
    let mut rewritten: Vec<OsString> = vec![program, "mount".into(), "--daemon".into()];
    // Like other helpers it says nothing where all is well, but for -v.
    let mut verbose = false;
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("-o") => {
                rewritten.push("-o".into());
                rewritten.extend(arguments.next());
            }
            Some("-t" | "-N") => drop(arguments.next()),
            // -s: sloppy, -n: no mtab, -v: verbose.
            Some(flags)
                if flags.len() > 1
                    && flags.starts_with('-')
                    && flags[1..].chars().all(|flag| "snv".contains(flag)) =>
            {
                verbose |= flags.contains('v');
            }
            _ => rewritten.push(argument),
        }
    }
    if !verbose {
        rewritten.insert(3, "--quiet".into());
    }
    Some(rewritten)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(words: &str) -> anyhow::Result<Arguments> {
        Cli::try_parse_from(words.split(' '))?
            .arguments
            .with_mount_options()
    }

    #[test]
    fn mount_options_mean_what_the_long_options_mean() {
        let arguments = parse(
            "mount s m -o ro,allow_other,nofail,x-systemd.automount,cache=2.5 -o attr_timeout=0,log=debug,noexec",
        )
        .expect("known options");
        assert!(arguments.read_only && arguments.allow_other && arguments.noexec);
        let log = |level, is_json| LogForm { level, is_json };
        assert_eq!(arguments.log, log(Level::Debug, false));
        for (words, expected) in [
            ("mount s m", log(Level::Warn, false)),
            ("mount s m --log json", log(Level::Warn, true)),
            (
                "mount s m -o log=json:info,slow_wait=0.5",
                log(Level::Info, true),
            ),
        ] {
            assert_eq!(parse(words).expect(words).log, expected, "{words}");
        }
        for words in [
            "--log yaml",
            "--log json:loud",
            "--slow-wait 0",
            "--slow-wait soon",
        ] {
            assert!(parse(&format!("mount s m {words}")).is_err(), "{words}");
        }
        let options = arguments.mount_options();
        assert_eq!(options.entry_timeout, Duration::from_millis(2500));
        assert_eq!(options.attr_timeout, Duration::ZERO);
        assert!(!options.suid && !options.dev && !options.exec);
        for (words, expected) in [
            ("mount s m", Fairness::Bounded(1000)),
            ("mount s m --fairness unlimited", Fairness::Unlimited),
            ("mount s m -o fairness=fifo", Fairness::Bounded(0)),
            ("mount s m --fairness 7", Fairness::Bounded(7)),
        ] {
            assert_eq!(parse(words).expect(words).fairness, expected, "{words}");
        }
        let limits = parse("mount s m --max-locks 9 -o max_waiters_per_file=3")
            .expect("numbers")
            .limits
            .limits();
        assert_eq!(
            (limits.locks_in_all, limits.waiters_per_file),
            (Some(9), Some(3))
        );
    }

    #[test]
    fn wrong_options_are_named() {
        for (words, named) in [
            ("mount s m -o colour", "colour"),
            ("mount s m -o cache=soon", "cache=soon"),
            ("mount s m -o log=loud", "log=loud"),
            ("mount s m -o fairness=fair", "fairness=fair"),
            ("mount s m -o max_locks=many", "max_locks=many"),
        ] {
            let error = parse(words).map(drop).expect_err("wrong").to_string();
            assert!(error.contains(named), "{error}");
        }
        // Values out of range are told what the range is, however they are given.
        for (words, told) in [
            ("mount s m --cache -1", "seconds from 0"),
            ("mount s m --cache=-1", "seconds from 0"),
            ("mount s m --cache abc", "seconds from 0"),
            ("mount s m --attr-cache nan", "seconds from 0"),
            ("mount s m -o entry_timeout=1e10", "seconds from 0"),
            ("mount s m --max-locks -3", "from 0 to 4294967295"),
            ("mount s m --max-waiters 1.5", "from 0 to 4294967295"),
            ("mount s m -o max_locks=-3", "from 0 to 4294967295"),
            ("mount s m --fairness -1", "from 0 to 4294967295"),
        ] {
            let error = parse(words).map(drop).expect_err(words).to_string();
            assert!(error.contains(told), "{words}: {error}");
        }
    }

    #[test]
    fn called_as_a_mount_helper() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(
            helper_arguments(words(
                "/sbin/mount.fuse.lockkeeper /s /m -sn -v -t fuse.lockkeeper -o rw,x-y"
            )),
            Some(words(
                "/sbin/mount.fuse.lockkeeper mount --daemon /s /m -o rw,x-y"
            ))
        );
        assert_eq!(
            helper_arguments(words("mount.lockkeeper /s /m")),
            Some(words("mount.lockkeeper mount --daemon --quiet /s /m"))
        );
        assert_eq!(helper_arguments(words("lockkeeper mount s m")), None);
        assert_eq!(helper_arguments(Vec::new()), None);
    }
}
