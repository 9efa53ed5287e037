//! The life of `lockkeeper mount`: how it starts, what it leaves, what it says when it cannot.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// A temporary folder whose `mnt` is unmounted before it goes, whatever happens.
struct Place {
    temp: tempfile::TempDir,
    children: Vec<Child>,
}

impl Place {
    fn new() -> Place {
        let temp = tempfile::Builder::new()
            .prefix("lockkeeper-test-")
            .tempdir()
            .expect("temp folder");
        Place {
            temp,
            children: Vec::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// `lockkeeper mount source mnt …` in the temporary folder.
    fn mount(&self, options: &[&str]) -> Output {
        self.command(&[&["mount", "source", "mnt", "--status", "sock"], options].concat())
            .output()
            .expect("runs")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments)
            .current_dir(self.temp.path())
            .stdin(Stdio::null());
        command
    }

    /// The same in the foreground; returns its number among the children.
    fn mount_in_foreground(&mut self) -> usize {
        let out = fs::File::create(self.path("out")).expect("creates");
        let child = self
            .command(&["mount", "source", "mnt", "--status", "sock"])
            .stdout(out)
            .spawn()
            .expect("starts");
        self.children.push(child);
        self.wait_for("Ctrl-C", |place| {
            text(&place.path("out")).contains("Ctrl-C")
        });
        self.children.len() - 1
    }

    fn is_mounted(&self) -> bool {
        let canonical = self
            .temp
            .path()
            .canonicalize()
            .expect("is there")
            .join("mnt");
        text(Path::new("/proc/self/mountinfo")).contains(&format!(" {} ", canonical.display()))
    }

    fn wait_for(&self, what: &str, done: impl Fn(&Place) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(15);
        while !done(self) {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, pid: u32, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a process id");
        rustix::process::kill_process(pid, signal).expect("signalled");
    }

    fn daemon_pid(&self) -> u32 {
        text(&self.path("pid"))
            .trim()
            .parse()
            .expect("a process id")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = Command::new("umount")
                .arg("-l")
                .arg(self.path("mnt"))
                .status();
        }
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn in_the_foreground_it_makes_its_folders_says_what_to_try_and_leaves_on_ctrl_c() {
    use rustix::process::Signal;
    for signal in [Signal::INT, Signal::TERM] {
        let mut place = Place::new();
        let server = place.mount_in_foreground();
        let welcome = text(&place.path("out"));
        assert!(
            welcome.contains("Created the folder source")
                && welcome.contains("Created the folder mnt")
        );
        assert!(
            welcome.contains("Data: ") && welcome.contains("flock -n"),
            "{welcome}"
        );
        assert!(welcome.lines().count() <= 24, "one screen");
        fs::write(place.path("mnt/f"), "through").expect("writes");
        assert_eq!(text(&place.path("source/f")), "through");
        let mut report = String::new();
        UnixStream::connect(place.path("sock"))
            .expect("listens")
            .read_to_string(&mut report)
            .expect("reads");
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        assert_eq!(report["pid"], place.children[server].id());
        place.signal(place.children[server].id(), signal);
        let status = place.children[server].wait().expect("ends");
        assert!(status.success(), "{status}");
        assert!(!place.is_mounted());
        assert!(!place.path("sock").exists());
        assert!(text(&place.path("out")).ends_with("is unmounted.\n"));
    }
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn a_busy_mount_is_detached_and_its_server_ends() {
    let mut place = Place::new();
    let server = place.mount_in_foreground();
    let file = fs::File::create(place.path("mnt/f")).expect("creates");
    place.signal(place.children[server].id(), rustix::process::Signal::TERM);
    place.wait_for("detached", |place| !place.is_mounted());
    assert!(place.children[server].wait().expect("ends").success());
    drop(file);
    assert!(!place.path("sock").exists());
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn a_daemon_is_ready_when_its_starter_returns_and_a_killed_one_is_replaced() {
    let place = Place::new();
    let output = place.mount(&["--daemon", "--pid-file", "pid"]);
    assert!(output.status.success(), "{}", said(&output));
    fs::write(place.path("mnt/f"), "kept").expect("the mount is ready");
    let second = place.mount(&["--daemon"]);
    assert!(!second.status.success());
    assert!(
        said(&second).contains("already a lockkeeper mount"),
        "{}",
        said(&second)
    );
    // Killed, it leaves a mount that answers ENOTCONN, and its files.
    place.signal(place.daemon_pid(), rustix::process::Signal::KILL);
    place.wait_for("dead", |place| {
        fs::metadata(place.path("mnt"))
            .is_err_and(|error| error.raw_os_error() == Some(libc_enotconn()))
    });
    let again = place.mount(&["--daemon", "--pid-file", "pid"]);
    assert!(again.status.success(), "{}", said(&again));
    assert!(
        said(&again).contains("Removed a dead mount"),
        "{}",
        said(&again)
    );
    assert_eq!(text(&place.path("mnt/f")), "kept");
    place.signal(place.daemon_pid(), rustix::process::Signal::TERM);
    place.wait_for("gone", |place| {
        !place.is_mounted() && !place.path("pid").exists()
    });
    place.wait_for("socket gone", |place| !place.path("sock").exists());
}

fn libc_enotconn() -> i32 {
    rustix::io::Errno::NOTCONN.raw_os_error()
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn whoever_waits_when_the_server_ends_is_freed() {
    use std::io::{BufRead, BufReader};
    const WAITER: &str = r#"
import errno, fcntl
held, other = open("f", "w"), open("f", "w")
fcntl.flock(held, fcntl.LOCK_EX)
print("waits", flush=True)
for file in other, held:
    try: fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error: print(errno.errorcode[error.errno], flush=True)
"#;
    for signal in [rustix::process::Signal::KILL, rustix::process::Signal::TERM] {
        let place = Place::new();
        let output = place.mount(&["--daemon", "--pid-file", "pid"]);
        assert!(output.status.success(), "{}", said(&output));
        let mut waiter = Command::new("timeout")
            .args(["60", "/usr/bin/python3", "-c", WAITER])
            .current_dir(place.path("mnt"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut lines = BufReader::new(waiter.stdout.take().expect("piped")).lines();
        let mut next = || lines.next().expect("a line").expect("text");
        assert_eq!(next(), "waits");
        place.wait_for("the request", |place| {
            let output = place.command(&["locks", "mnt"]).output().expect("runs");
            said(&output).contains("WRITE*")
        });
        place.signal(place.daemon_pid(), signal);
        // The one that waited, and one that comes when nobody serves any more.
        assert_eq!(next(), "ECONNABORTED");
        assert_eq!(next(), "ENOTCONN");
        assert!(waiter.wait().expect("ends").success());
    }
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn of_servers_that_start_at_once_on_a_mount_point_one_serves_it() {
    use rustix::process::Signal;
    let mut place = Place::new();
    for round in 0..10 {
        // In every other round a dead mount is there, which one of them removes.
        let servers: Vec<Child> = (0..4)
            .map(|_| {
                place
                    .command(&["mount", "source", "mnt", "--no-status"])
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("starts")
            })
            .collect();
        place.children.extend(servers);
        let ended = |place: &mut Place| {
            let mut ended = 0;
            for child in &mut place.children {
                ended += u32::from(child.try_wait().expect("waits").is_some());
            }
            ended
        };
        let deadline = Instant::now() + Duration::from_secs(15);
        while ended(&mut place) < 3 {
            assert!(Instant::now() < deadline, "two serve in round {round}");
            std::thread::sleep(Duration::from_millis(10));
        }
        // The others may be refused before the one has mounted.
        place.wait_for("served", |place| {
            place.is_mounted() && fs::write(place.path("mnt/f"), "served").is_ok()
        });
        assert_eq!(text(&place.path("source/f")), "served");
        let mounts = text(Path::new("/proc/self/mountinfo"));
        let mountpoint = place.path("mnt");
        assert_eq!(
            mounts
                .matches(&format!(" {} ", mountpoint.display()))
                .count(),
            1,
            "{mounts}"
        );
        for child in place.children.drain(..).collect::<Vec<_>>() {
            let pid = child.id();
            let mut child = child;
            if child.try_wait().expect("waits").is_none() {
                let how = if round % 2 == 0 {
                    Signal::KILL
                } else {
                    Signal::TERM
                };
                place.signal(pid, how);
                child.wait().expect("ends");
                continue;
            }
            let said = said(&child.wait_with_output().expect("ended"));
            assert!(
                said.contains("already a lockkeeper mount") || said.contains("being mounted on"),
                "{said}"
            );
        }
    }
}

#[test]
fn what_cannot_be_mounted_is_named() {
    let place = Place::new();
    fs::write(place.path("file"), "").expect("writes");
    fs::create_dir(place.path("source")).expect("mkdir");
    for (arguments, named) in [
        (&["mount", "source", "source/mnt"][..], "inside the source"),
        (&["mount", "file", "mnt"], "file is not a folder"),
        (&["mount", "source", "file"], "file is not a folder"),
        (&["mount", "source", "/"], "root folder"),
        (&["mount", "source", "mnt", "-o", "colour"], "colour"),
        (&["mount", "source", "mnt", "--cache=-1"], "-1"),
        (
            &["mount", "source", "/proc/nowhere"],
            "cannot create the folder /proc/nowhere",
        ),
        (
            &["mount", "source", "mnt", "--max-locks", "-3"],
            "from 0 to",
        ),
        (
            &["mount", "source", "mnt", "--log-file", "no/such/folder"],
            "no/such/folder",
        ),
        (
            &["mount", "source", "source/mnt", "--daemon"],
            "inside the source",
        ),
    ] {
        let output = place.command(arguments).output().expect("runs");
        assert!(!output.status.success(), "{arguments:?}");
        assert!(
            said(&output).contains(named),
            "{arguments:?}: {}",
            said(&output)
        );
        assert!(!place.is_mounted());
        for left in ["mnt", "source/mnt"] {
            assert!(!place.path(left).exists(), "{arguments:?} leaves {left}");
        }
    }
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn what_fails_after_mounting_leaves_nothing() {
    let place = Place::new();
    for options in [
        &["--pid-file", "no/such/folder"][..],
        &["--status", "/proc/nowhere/sock"],
    ] {
        for daemon in [&[][..], &["--daemon"]] {
            let arguments = [&["mount", "source", "mnt"], options, daemon].concat();
            let output = place.command(&arguments).output().expect("runs");
            assert_eq!(output.status.code(), Some(2), "{}", said(&output));
            assert!(said(&output).contains(options[1]), "{}", said(&output));
            assert!(!place.is_mounted());
            let left: Vec<_> = fs::read_dir(place.path("")).expect("lists").collect();
            assert!(left.is_empty(), "{arguments:?} leaves {left:?}");
        }
    }
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn more_files_than_descriptors_are_refused_and_not_waited_for() {
    const OPEN_MANY: &str = r#"
import fcntl, os
opened, refused = [], 0
for number in range(400):
    try:
        file = os.open(f"mnt/{number}", os.O_RDWR | os.O_CREAT)
        fcntl.flock(file, fcntl.LOCK_EX)
        opened.append(file)
    except OSError as error:
        assert error.errno in (23, 24), error
        refused += 1
assert refused and len(opened) > 20, (len(opened), refused)
for file in opened: os.close(file)
"#;
    let place = Place::new();
    // Without the right to raise it again.
    let output = Command::new("setpriv")
        .args(["--bounding-set=-sys_resource", "--inh-caps=-sys_resource"])
        .args(["prlimit", "--nofile=128:128", PROGRAM])
        .args(["mount", "source", "mnt", "--status", "sock", "--daemon"])
        .current_dir(place.path(""))
        .output()
        .expect("runs");
    assert!(output.status.success(), "{}", said(&output));
    let output = Command::new("timeout")
        .args(["60", "/usr/bin/python3", "-c", OPEN_MANY])
        .current_dir(place.path(""))
        .output()
        .expect("runs");
    assert!(output.status.success(), "{}", said(&output));
    // There is room again.
    fs::write(place.path("mnt/0"), "x").expect("writes");
    place.wait_for("no locks", |place| {
        let output = place
            .command(&["locks", "mnt", "--noheadings"])
            .output()
            .expect("runs");
        output.status.success() && output.stdout.is_empty()
    });
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn the_doctor_proves_that_a_mount_works() {
    let output = Place::new().command(&["doctor"]).output().expect("runs");
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        said(&output).contains("works, with locks"),
        "{}",
        said(&output)
    );
}
