//! `lockkeeper doctor`: what this machine can and cannot do for a mount, and what to install.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use lockkeeper_mount::{
    Conflict, DataPath, DeferredReply, Errno, FileId, LockRequest, LockService, MountOptions,
    Negotiated, Owner, RequestId, Session,
};

use crate::mount::say;

/// What `lockkeeper doctor` takes.
#[derive(Args, Clone, Debug)]
pub struct Arguments {}

/// What came of one check.
enum Finding {
    /// All is well.
    Good(String),
    /// It works, but something is worth knowing.
    Note(String),
    /// It does not work, and this is what to do.
    Bad(String),
}

use Finding::{Bad, Good, Note};

/// Prints what was found; fails if a mount cannot work here.
pub fn run(_arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut works = true;
    for (name, finding) in [
        ("kernel", kernel()),
        ("fuse device", fuse_device()),
        ("fusermount3", fusermount()),
        ("other users", allow_other()),
        ("user namespace", user_namespace()),
        ("open files", open_files()),
        ("callers", callers()),
        ("idle cpus", idle_cpus()),
        ("mount", trial_mount()),
    ] {
        let (mark, text) = match finding {
            Good(text) => ("ok  ", text),
            Note(text) => ("note", text),
            Bad(text) => {
                works = false;
                ("BAD ", text)
            }
        };
        say(&format!("{mark} {name:<15} {text}\n"));
    }
    say(match works {
        true => "\nlockkeeper mount works here.\n",
        false => "\nlockkeeper mount does not work here until what is marked BAD is mended.\n",
    });
    Ok(if works {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn kernel() -> Finding {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version {
        (0..=4, _) | (5, 0..=3) => Bad(format!("Linux {release}: 5.4 or newer is needed")),
        (5, _) | (6, 0..=8) => Note(format!(
            "Linux {release}: no backing files before 6.9, data goes through the server"
        )),
        _ => Good(format!("Linux {release}")),
    }
}

fn fuse_device() -> Finding {
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Good("/dev/fuse can be opened".into()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Bad("/dev/fuse may not be opened by you: as root, chmod 666 /dev/fuse".into())
        }
        Err(error) => Bad(format!(
            "/dev/fuse: {error}; load the module (modprobe fuse), or pass the device into the container (--device /dev/fuse)"
        )),
    }
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

fn fusermount() -> Finding {
    let Some(path) = find_program("fusermount3") else {
        let advice = "not found: install the package fuse3 (apt install fuse3, dnf install fuse3)";
        return match is_root() {
            true => Note(format!("{advice}; only ordinary users need it")),
            false => Bad(advice.into()),
        };
    };
    let set_uid =
        fs::metadata(&path).is_ok_and(|metadata| metadata.permissions().mode() & 0o4000 != 0);
    if !set_uid && !is_root() {
        return Bad(format!(
            "{} is not set-user-id root: reinstall the package fuse3",
            path.display()
        ));
    }
    let version = Command::new(&path)
        .arg("-V")
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    Good(format!(
        "{} ({})",
        path.display(),
        String::from_utf8_lossy(&version).trim()
    ))
}

/// A guest whose processors sleep at once takes 16 µs for a call that could take 5 (docs/performance-mount.md).
fn idle_cpus() -> Finding {
    const POLL: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
    let governor = fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_governor");
    let polls = fs::read_to_string(POLL).map(|text| text.trim().to_owned());
    match (governor.as_deref().map(str::trim), polls.as_deref()) {
        (Ok("haltpoll"), Ok("0")) => Note(format!(
            "this virtual machine's processors sleep as soon as they idle, and calls wait for them: echo 200000 > {POLL}"
        )),
        _ => Good("nothing known that slows calls down".into()),
    }
}

fn allow_other() -> Finding {
    if is_root() {
        return Good("--allow-other is yours to give".into());
    }
    let allowed = fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"));
    match allowed {
        true => Good("/etc/fuse.conf has user_allow_other".into()),
        false => Note("--allow-other needs the line user_allow_other in /etc/fuse.conf".into()),
    }
}

fn user_namespace() -> Finding {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let words: Vec<&str> = map.split_ascii_whitespace().collect();
    match words[..] {
        ["0", "0", "4294967295"] => Good("the initial one".into()),
        [] => Note("cannot tell: /proc is not mounted".into()),
        _ => Note(
            "not the initial one: no backing files, and only the mapped users can be served".into(),
        ),
    }
}

fn open_files() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let able = rustix::thread::capabilities(None).is_ok_and(|sets| {
        sets.effective
            .contains(rustix::thread::CapabilitySet::SYS_RESOURCE)
    });
    match limit.maximum {
        Some(most) if most < 65_536 && !able => Note(format!(
            "at most {most}: the kernel is made to forget files beyond; raise it for large trees (ulimit -Hn, LimitNOFILE=)"
        )),
        Some(most) => Good(format!(
            "at most {most}{}",
            if able { ", and may be raised" } else { "" }
        )),
        None => Good("without limit".into()),
    }
}

/// Whether a caller's system call can be seen, by which OFD locks are told from POSIX locks. Root's right to
/// look is a capability; for others it depends on what they look at, so another process of theirs is tried.
fn callers() -> Finding {
    const LOSS: &str = "locks exclude all the same, but an OFD lock may count as a process's in deadlock detection";
    let told = || Good("OFD locks can be told from POSIX locks".into());
    if !Path::new("/proc/self/syscall").exists() {
        return Note(format!(
            "/proc does not show system calls (it is not mounted, or hides them): {LOSS}"
        ));
    }
    let able = rustix::thread::capabilities(None).is_ok_and(|sets| {
        sets.effective
            .contains(rustix::thread::CapabilitySet::SYS_PTRACE)
    });
    if able {
        return told();
    }
    // Where it is missing, the kernel has no such restriction.
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !matches!(yama.trim(), "" | "0") {
        return Note(format!(
            "the system calls of others cannot be seen (kernel.yama.ptrace_scope is {}): {LOSS}; \
             sysctl kernel.yama.ptrace_scope=0, or mount as root",
            yama.trim()
        ));
    }
    match another_process() {
        None => told(),
        Some(process) if fs::read(process.join("syscall")).is_ok() => told(),
        Some(process) => Note(format!(
            "the system calls of others cannot be seen ({}/syscall is closed): {LOSS}; mount as root",
            process.display()
        )),
    }
}

/// A process of the same user that is not this one, as its folder in /proc.
fn another_process() -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let (user, own) = (rustix::process::geteuid().as_raw(), std::process::id());
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let is_theirs = entry.metadata().ok()?.uid() == user;
        (is_theirs && pid != own).then(|| entry.path())
    })
}

/// Grants everything and counts it: to see that locks come through.
#[derive(Default)]
struct Counter(AtomicUsize);

impl LockService for Counter {
    fn getlk(&self, _: &LockRequest) -> Result<Option<Conflict>, Errno> {
        Ok(None)
    }
    fn setlk(&self, _: &LockRequest) -> Result<(), Errno> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn setlkw(&self, request: &LockRequest, reply: DeferredReply) {
        reply.send(self.setlk(request));
    }
    fn interrupt(&self, _: RequestId) {}
    fn close_owner(&self, _: FileId, _: Owner) {}
}

/// The proof: mounts a folder below the temporary folder, locks a file there, unmounts.
fn trial_mount() -> Finding {
    let folder = std::env::temp_dir().join(format!("lockkeeper-doctor-{}", std::process::id()));
    let outcome = try_mount(&folder);
    let _ = fs::remove_dir_all(folder.join("source"));
    let _ = fs::remove_dir(folder.join("mnt"));
    let _ = fs::remove_dir(&folder);
    match outcome {
        Ok(Negotiated {
            data_path: DataPath::Backing,
            minor,
            ..
        }) => Good(format!(
            "works, with locks and backing files (FUSE 7.{minor})"
        )),
        Ok(Negotiated {
            no_backing: Some(why),
            ..
        }) => Note(format!("works, with locks, without backing files: {why}")),
        Ok(_) => Good("works, with locks".into()),
        Err(error) => Bad(format!("{error:#}")),
    }
}

fn try_mount(folder: &Path) -> anyhow::Result<Negotiated> {
    let counter = Arc::new(Counter::default());
    let options = MountOptions::new(folder.join("source"), folder.join("mnt"));
    let session = Session::mount(&options, counter.clone())?;
    let (unmounter, mountpoint) = (session.unmounter(), session.mountpoint().to_owned());
    let (sender, ready) = mpsc::channel();
    let server = std::thread::spawn(move || {
        session.run(|settled| {
            let _ = sender.send(settled);
        })
    });
    let outcome = ready
        .recv_timeout(Duration::from_secs(10))
        .context("the kernel does not talk to the mount")
        .and_then(|settled| {
            let file =
                File::create(mountpoint.join("file")).context("cannot create a file on a mount")?;
            rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
                .context("cannot lock on a mount")?;
            drop(file);
            anyhow::ensure!(
                counter.0.load(Ordering::Relaxed) == 1,
                "locks do not reach the server"
            );
            Ok(settled)
        });
    unmounter
        .unmount(Duration::from_secs(2))
        .context("cannot unmount")?;
    match server.join() {
        Ok(served) => served.context("serving failed")?,
        Err(_) => anyhow::bail!("the server panicked"),
    }
    outcome
}
