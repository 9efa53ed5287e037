//! What the tests of real programs on a mount share: a mount served by the program itself, and scripts.

#![allow(dead_code)] // Each test program uses its part.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockkeeper_mount::{
    Conflict, DeferredReply, Errno, FileId, LockRequest, LockService, MountOptions, Owner,
    RequestId, Session, Unmounter,
};

/// What Python scripts about locks share: locks of each kind, and children.
pub const PRELUDE: &str = r#"
import ctypes, errno, fcntl, os, signal, socket, struct, sys, time
LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
OFD_SETLK, OFD_SETLKW = 37, 38
def record(f, command, kind, start=0, length=0):
    fcntl.fcntl(f, command, struct.pack("hhqqi4x", kind, 0, start, length, 0))
def take(f, kind):
    if kind == "posix": record(f, fcntl.F_SETLKW, fcntl.F_WRLCK)
    elif kind == "ofd": record(f, OFD_SETLKW, fcntl.F_WRLCK)
    else: fcntl.flock(f, fcntl.LOCK_EX)
def child(work):
    """A child that does `work`; returns when it has called its argument, or is about to wait in it."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            # A script that fails leaves nobody behind, and nobody whom the test still listens to.
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
            os.close(ready)
            work(lambda: os.write(tell, b"r"))
            status = 0
        finally:
            os._exit(status)
    os.close(tell)
    assert os.read(ready, 1) == b"r", "the child failed"
    os.close(ready)
    return pid
def holder(name, kind):
    def work(tell):
        f = os.open(name, os.O_RDWR)
        take(f, kind)
        tell()
        signal.pause()
    return child(work)
def waiter(name, kind):
    def work(tell):
        f = os.open(name, os.O_RDWR)
        tell()
        take(f, kind)
        signal.pause()
    return child(work)
def waits(pid):
    """Until it sleeps in a request to the server; what it asked before has been answered."""
    for _ in range(5000):
        with open("/proc/%d/wchan" % pid) as f:
            if f.read() == "request_wait_answer": return
        time.sleep(0.001)
    sys.exit("%d does not wait" % pid)
def end(*pids):
    for pid in pids: os.kill(pid, signal.SIGKILL)
    for pid in pids: os.waitpid(pid, 0)
def refused(call, number):
    try: call()
    except OSError as error: assert error.errno == number, error
    else: sys.exit("not refused")
"#;

/// `lockkeeper`.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// A folder `source`, shown at `mnt`, in a temporary folder. Dropped, also by a panic, the server is told to
/// unmount, and if it does not, the mount is detached and the server killed.
pub struct Mount {
    server: Server,
    temp: tempfile::TempDir,
}

/// Who serves a mount.
enum Server {
    /// The program itself.
    Program(Child),
    /// A thread of the test, without exclusion.
    Here(Unmounter, JoinHandle<()>),
}

/// Gives every lock to everybody.
struct NoExclusion;

impl LockService for NoExclusion {
    fn getlk(&self, _: &LockRequest) -> Result<Option<Conflict>, Errno> {
        Ok(None)
    }

    fn setlk(&self, _: &LockRequest) -> Result<(), Errno> {
        Ok(())
    }

    fn setlkw(&self, _: &LockRequest, reply: DeferredReply) {
        reply.send(Ok(()));
    }

    fn interrupt(&self, _: RequestId) {}

    fn close_owner(&self, _: FileId, _: Owner) {}
}

fn temp_folder() -> tempfile::TempDir {
    let temp = tempfile::Builder::new()
        .prefix("lockkeeper-test-")
        .tempdir()
        .expect("temp folder");
    // Other users must be able to reach the mount.
    set_mode(temp.path(), 0o755);
    temp
}

impl Mount {
    /// Mounts with the defaults.
    pub fn new() -> Mount {
        Mount::with(&[])
    }

    /// Mounts with these options.
    pub fn with(options: &[&str]) -> Mount {
        let temp = temp_folder();
        let said = temp.path().join("server");
        let server = Command::new(PROGRAM)
            .args(["mount", "source", "mnt"])
            .args(options)
            .current_dir(temp.path())
            .stdin(Stdio::null())
            .stdout(fs::File::create(&said).expect("creates"))
            .spawn()
            .expect("starts");
        let mount = Mount {
            server: Server::Program(server),
            temp,
        };
        mount.wait_for("the mount", |_| {
            fs::read_to_string(&said).is_ok_and(|text| text.contains("Ctrl-C"))
        });
        mount
    }

    /// A mount that is like the others, but gives every lock to everybody.
    pub fn without_exclusion() -> Mount {
        let temp = temp_folder();
        let options = MountOptions::new(temp.path().join("source"), temp.path().join("mnt"));
        let session = Session::mount(&options, Arc::new(NoExclusion)).expect("mounts");
        let unmounter = session.unmounter();
        let (sender, ready) = mpsc::channel();
        let server = std::thread::spawn(move || {
            session
                .run(|_| sender.send(()).expect("the test listens"))
                .expect("serves");
        });
        let mount = Mount {
            server: Server::Here(unmounter, server),
            temp,
        };
        ready
            .recv_timeout(Duration::from_secs(10))
            .expect("the kernel says hello");
        mount
    }

    /// A path on the mount; `""` is the mount point.
    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join("mnt").join(name)
    }

    /// A path beside the mount.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// The process that serves it.
    pub fn server_pid(&self) -> u32 {
        match &self.server {
            Server::Program(child) => child.id(),
            Server::Here(..) => std::process::id(),
        }
    }

    /// Sends the server a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let server = rustix::process::Pid::from_raw(self.server_pid().cast_signed());
        rustix::process::kill_process(server.expect("a pid"), signal).expect("it is there");
    }

    /// `lockkeeper`, with these arguments, in the temporary folder.
    pub fn lockkeeper(&self, arguments: &[&str]) -> Output {
        Command::new(PROGRAM)
            .args(arguments)
            .current_dir(self.temp.path())
            .stdin(Stdio::null())
            .output()
            .expect("runs")
    }

    /// The server's own document.
    pub fn report(&self) -> serde_json::Value {
        let output = self.lockkeeper(&["locks", "--json", "mnt"]);
        assert!(output.status.success(), "{}", said(&output));
        let documents: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("one JSON document");
        documents[0].clone()
    }

    /// How many locks are held and how many requests wait.
    pub fn totals(&self) -> (usize, usize) {
        let report = self.report();
        let files = report["files"].as_array().cloned().unwrap_or_default();
        let count = |name: &str| {
            let sizes = files
                .iter()
                .map(|file| file[name].as_array().map_or(0, Vec::len));
            sizes.sum()
        };
        (count("locks"), count("waiters"))
    }

    /// Waits until no lock, waiter, owner or open file is left.
    pub fn nothing_left(&self) {
        self.wait_for("leftovers", |mount| {
            let report = mount.report();
            let zero = |name: &str| report["counts"][name] == 0;
            report["files"] == serde_json::json!([])
                && ["handles", "lock_processes", "lock_handles", "waiting"]
                    .into_iter()
                    .all(zero)
        });
    }

    /// Waits until it is as `wanted`, for at most 20 seconds.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Mount) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !wanted(self) {
            if Instant::now() >= deadline {
                panic!(
                    "waited in vain for {what}: {:?}",
                    self.lockkeeper(&["locks", "--json", "mnt"])
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs a shell script on the mount; it must succeed. Returns what it wrote.
    pub fn sh(&self, script: &str) -> String {
        self.succeed(&["sh", "-euc", script])
    }

    /// The same in Python.
    pub fn python(&self, script: &str) -> String {
        // Debian's own, which has the modules that are packaged.
        self.succeed(&["/usr/bin/python3", "-c", script])
    }

    /// Runs a shell script on the mount: what it wrote, as an error if it failed.
    pub fn try_sh(&self, script: &str) -> Result<String, String> {
        self.attempt(&["sh", "-euc", script])
    }

    /// The same in Python.
    pub fn try_python(&self, script: &str) -> Result<String, String> {
        self.attempt(&["/usr/bin/python3", "-c", script])
    }

    fn attempt(&self, command: &[&str]) -> Result<String, String> {
        let output = self.run(command);
        match output.status.success() {
            true => Ok(said(&output)),
            false => Err(format!("{}\n{}", output.status, said(&output))),
        }
    }

    /// The same with what [`PRELUDE`] defines.
    pub fn locking_python(&self, script: &str) -> String {
        self.python(&format!("{PRELUDE}{script}"))
    }

    /// Runs a Python script, with what [`PRELUDE`] defines, that calls `stage(NAME)`: there it waits until
    /// `check` has looked.
    pub fn staged(&self, script: &str, mut check: impl FnMut(&str)) {
        const STAGE: &str = "
def stage(name):
    print(name, flush=True)
    sys.stdin.readline()
";
        let mut child = Command::new("timeout")
            .args(["--kill-after=5", "100", "/usr/bin/python3", "-c"])
            .arg(format!("{PRELUDE}{STAGE}{script}"))
            .current_dir(self.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        for line in output.lines() {
            check(&line.expect("text"));
            writeln!(input).expect("the script listens");
        }
        assert!(child.wait().expect("ends").success());
    }

    fn succeed(&self, command: &[&str]) -> String {
        self.attempt(command)
            .unwrap_or_else(|seen| panic!("{seen}"))
    }

    /// Runs a program in the mount point, for at most two minutes; what it started ends with it.
    pub fn run(&self, command: &[&str]) -> Output {
        Command::new("timeout")
            .args(["--kill-after=5", "120"])
            .args(command)
            .current_dir(self.path(""))
            .env("LC_ALL", "C.UTF-8")
            .env("MNT", self.path(""))
            .env("BESIDE", self.temp.path())
            .stdin(Stdio::null())
            .output()
            .expect("runs")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        match &mut self.server {
            Server::Program(child) => end_program(child, &self.temp.path().join("mnt")),
            Server::Here(unmounter, server) => {
                if let Err(error) = unmounter.unmount(Duration::from_secs(2)) {
                    eprintln!("cannot unmount: {error}");
                }
                let deadline = Instant::now() + Duration::from_secs(10);
                while !server.is_finished() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(2));
                }
                if !server.is_finished() && !std::thread::panicking() {
                    panic!("the server did not end");
                }
            }
        }
    }
}

fn end_program(server: &mut Child, mountpoint: &Path) {
    let pid = rustix::process::Pid::from_child(server);
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if let Ok(Some(status)) = server.try_wait() {
            // A test that kills its server may have failed before it unmounted.
            if status.code().is_none() {
                let _ = Command::new("umount")
                    .arg("-l")
                    .arg(mountpoint)
                    .stderr(Stdio::null())
                    .status();
            }
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = Command::new("umount").arg("-l").arg(mountpoint).status();
    let _ = server.kill();
    let _ = server.wait();
    if !std::thread::panicking() {
        panic!("the server did not end");
    }
}

/// Both streams of what was run.
pub fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// chmod.
pub fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

/// A port nobody listens on, whose cluster port (10,000 above) exists.
pub fn free_port() -> u16 {
    loop {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = socket.local_addr().expect("bound").port();
        if port < 55_000 {
            return port;
        }
    }
}
