//! What the tests on real mounts share: a mount that always goes away, and clients of it.

#![allow(dead_code)] // Each test program uses its part.

pub mod client;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockkeeper::LockManager;
use lockkeeper_mount::report::FileLocks;
use lockkeeper_mount::{
    Counts, ManagerService, MountOptions, Negotiated, Observer, Session, Unmounter,
};

/// A folder `source`, shown at `mnt`, in a temporary folder. Dropped, also by a panic, it unmounts,
/// ends its server and removes everything.
pub struct TestMount {
    unmounter: Unmounter,
    observer: Observer,
    server: Option<JoinHandle<()>>,
    /// What INIT settled.
    pub settled: Negotiated,
    /// Removed last.
    temp: tempfile::TempDir,
}

impl TestMount {
    /// Mounts with the defaults.
    pub fn new() -> TestMount {
        TestMount::with(|_| {})
    }

    /// Mounts with options changed by `change`.
    pub fn with(change: impl FnOnce(&mut MountOptions)) -> TestMount {
        TestMount::served_by(LockManager::new(), change)
    }

    /// The same, with the locks kept by `manager`.
    pub fn served_by(manager: LockManager, change: impl FnOnce(&mut MountOptions)) -> TestMount {
        let temp = tempfile::Builder::new()
            .prefix("lockkeeper-test-")
            .tempdir()
            .expect("temp folder");
        // Other users must be able to reach the mount.
        set_mode(temp.path(), 0o755);
        let mut options = MountOptions::new(temp.path().join("source"), temp.path().join("mnt"));
        change(&mut options);
        let session =
            Session::mount(&options, Arc::new(ManagerService::new(manager))).expect("mounts");
        let (unmounter, observer) = (session.unmounter(), session.observer());
        let (sender, ready) = mpsc::channel();
        let server = std::thread::spawn(move || {
            session
                .run(|settled| sender.send(settled).expect("test listens"))
                .expect("serves");
        });
        let settled = ready
            .recv_timeout(Duration::from_secs(10))
            .expect("kernel says hello");
        TestMount {
            unmounter,
            observer,
            server: Some(server),
            settled,
            temp,
        }
    }

    /// A path on the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join("mnt").join(name)
    }

    /// The same path at the source.
    pub fn source(&self, name: &str) -> PathBuf {
        self.temp.path().join("source").join(name)
    }

    /// What the server has in its tables.
    pub fn counts(&self) -> Counts {
        self.observer.counts()
    }

    /// Locks held and waited for, by file.
    pub fn listing(&self) -> Vec<FileLocks> {
        let mut files = self.observer.listing();
        self.observer
            .name(&mut files, &self.temp.path().join("mnt"));
        files
    }

    /// Waits until the server's tables are as `wanted`, for at most 10 seconds.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&TestMount) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !wanted(self) {
            assert!(
                Instant::now() < deadline,
                "{what}: {:?} {:?}",
                self.counts(),
                self.listing()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        if let Err(error) = self.unmounter.unmount(Duration::from_secs(2)) {
            eprintln!("cannot unmount: {error}");
        }
        if let Some(server) = self.server.take() {
            // Files that the test still has open are closed after this; the server ends then.
            let deadline = Instant::now() + Duration::from_secs(2);
            while !server.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
            if server.is_finished() && server.join().is_err() && !std::thread::panicking() {
                panic!("the server panicked");
            }
        }
    }
}

/// chmod.
pub fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}

/// Runs a shell script in `folder` and returns what it wrote, both streams, with its exit code.
pub fn sh(folder: &Path, script: &str) -> String {
    run(Command::new("sh").arg("-c").arg(script).current_dir(folder))
}

/// The same as user and group `id`, with these supplementary groups.
pub fn sh_as(id: u32, groups: &str, folder: &Path, script: &str) -> String {
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--reuid={id}"))
        .arg(format!("--regid={id}"));
    match groups {
        "" => command.arg("--clear-groups"),
        groups => command.arg(format!("--groups={groups}")),
    };
    run(command.arg("sh").arg("-c").arg(script).current_dir(folder))
}

fn run(command: &mut Command) -> String {
    let Output {
        status,
        mut stdout,
        stderr,
    } = command
        .stdin(Stdio::null())
        .env("LC_ALL", "C")
        .output()
        .expect("runs");
    stdout.extend(stderr);
    let code = status
        .code()
        .map_or("killed".into(), |code| code.to_string());
    format!("{}[{code}]", String::from_utf8_lossy(&stdout))
}
