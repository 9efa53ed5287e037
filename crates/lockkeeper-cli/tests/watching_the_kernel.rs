//! `locks`, `tree` and `explain` of a plain folder, where real processes hold and wait for the kernel's locks.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Prints a line when all is as it is to be. What it forks ends with it.
const PRELUDE: &str = r#"
import fcntl, os, signal, struct, sys, time
OFD_SETLK, OFD_SETLKW = 37, 38
def record(f, command, kind, start, length):
    fcntl.fcntl(f, command, struct.pack("hhqqi4x", kind, 0, start, length, 0))
children = []
def child(work):
    pid = os.fork()
    if pid == 0:
        try: work()
        finally: os._exit(0)
    children.append(pid)
    return pid
def end():
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
def waits(*pids):
    """Until they sleep in a lock call."""
    for _ in range(5000):
        states = [open("/proc/%d/wchan" % pid).read() for pid in pids]
        if all("lock" in state or "setlk" in state for state in states): return
        time.sleep(0.002)
    end()
    sys.exit("they do not wait: %r" % states)
def ready(*said):
    print(*said, flush=True)
    sys.stdin.read()
    end()
"#;

/// A folder, and processes that lock in it until this is dropped.
struct Scene {
    temp: tempfile::TempDir,
    python: Child,
    /// What the script said.
    said: Vec<String>,
}

impl Scene {
    fn new(script: &str) -> Scene {
        let temp = tempfile::tempdir().expect("temp folder");
        let mut python = Command::new("python3")
            .args(["-c", &format!("{PRELUDE}{script}")])
            .current_dir(temp.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let mut line = String::new();
        let out = python.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("reads");
        let said = line.split_whitespace().map(str::to_owned).collect();
        assert!(!line.is_empty(), "the script failed");
        Scene { temp, python, said }
    }

    fn lockkeeper(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
            .args(arguments)
            .current_dir(self.temp.path())
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::null())
            .output()
            .expect("runs")
    }

    fn said_by(&self, arguments: &[&str]) -> String {
        let output = self.lockkeeper(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {text}{errors}");
        text
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp
            .path()
            .canonicalize()
            .expect("is there")
            .join(name)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // The end of its input is the sign to go.
        drop(self.python.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if let Ok(Some(_)) = self.python.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.python.kill();
        let _ = self.python.wait();
    }
}

const CONTENDED: &str = r#"
f = open("held", "w+"); f.truncate(5120)
fcntl.lockf(f, fcntl.LOCK_EX, 10, 0)
o = open("held", "r+b"); record(o, OFD_SETLK, fcntl.F_WRLCK, 100, 10)
g = open("whole", "w"); fcntl.flock(g, fcntl.LOCK_EX)
def posix(): h = open("held", "r+b"); fcntl.lockf(h, fcntl.LOCK_EX, 1, 5)
def ofd(): h = open("held", "r+b"); record(h, OFD_SETLKW, fcntl.F_WRLCK, 105, 1)
def flock(): h = open("whole"); fcntl.flock(h, fcntl.LOCK_SH)
pids = [child(posix), child(ofd), child(flock)]
waits(*pids)
ready(os.getpid(), *pids)
"#;

#[test]
fn a_tree_shows_who_waits_for_the_kernels_locks() {
    let scene = Scene::new(CONTENDED);
    let [holder, posix, ofd, flock] = &scene.said[..] else {
        panic!("{:?}", scene.said)
    };
    let (held, whole) = (scene.path("held"), scene.path("whole"));
    let (held, whole) = (held.display(), whole.display());
    assert_eq!(
        scene.said_by(&["tree", "."]),
        format!(
            "\
{held}
├─ POSIX write 0-9  {holder} (python3)
│  └─ POSIX write 5  {posix} (python3)  waits
└─ OFD write 100-109  {holder} (python3)
   └─ OFD write 105  {ofd} (python3)  waits
{whole}
└─ flock write  {holder} (python3)
   └─ flock read  {flock} (python3)  waits
3 locks on 2 files, 3 requests wait.
"
        )
    );
    let of_file = scene.said_by(&["tree", ".", "whole"]);
    assert!(
        of_file.ends_with("1 lock on 1 file, 1 request waits.\n"),
        "{of_file}"
    );
    assert_eq!(of_file, scene.said_by(&["tree", "whole"]));
    let listing = scene.said_by(&["locks", "."]);
    assert_eq!(listing.lines().count(), 7, "{listing}");
    let dot = scene.said_by(&["tree", "--dot", "."]);
    assert!(
        dot.starts_with("digraph locks {") && dot.contains("f0w0 -> f0l0;"),
        "{dot}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&scene.said_by(&["tree", "--json", "."])).expect("JSON");
    assert_eq!(json[0]["origin"], "kernel");
    assert_eq!(
        json[0]["files"][0]["locks"][0]["held_for"],
        serde_json::Value::Null
    );
    let explained = scene.said_by(&["explain", ".", ofd]);
    assert!(
        explained.contains(&format!(
            "Process {ofd} (python3) waits for an OFD write lock (byte 105) on {held}. In the way is the OFD write \
             lock (bytes 100-109), held by {holder} (python3)."
        )),
        "{explained}"
    );
    // Another folder has none of them.
    fs::create_dir(scene.path("empty")).expect("folder");
    assert_eq!(
        scene.said_by(&["tree", "empty"]),
        "0 locks on 0 files, nobody waits.\n"
    );
}

#[test]
fn two_programs_that_want_each_others_flock_are_a_deadlock() {
    let scene = Scene::new(
        r#"
def both(first, second, mine, other):
    f = open(first, "w"); fcntl.flock(f, fcntl.LOCK_EX)
    open(mine, "w").close()
    while not os.path.exists(other): time.sleep(0.001)
    g = open(second, "w"); fcntl.flock(g, fcntl.LOCK_EX)
one = child(lambda: both("a", "b", "1", "2"))
two = child(lambda: both("b", "a", "2", "1"))
waits(one, two)
ready(one, two)
"#,
    );
    let tree = scene.said_by(&["tree", "."]);
    assert_eq!(tree.matches("waits  DEADLOCK\n").count(), 2, "{tree}");
    assert!(tree.contains("\nDEADLOCK: "), "{tree}");
    let explained = scene.said_by(&["explain", ".", &scene.said[0]]);
    assert!(explained.contains("this is a deadlock"), "{explained}");
    assert!(
        explained.contains(&format!("`kill {}`", scene.said[1])),
        "{explained}"
    );
}

#[test]
fn a_stopped_holder_and_an_heir_are_told() {
    let scene = Scene::new(
        r#"
def stopped():
    f = open("a", "w"); fcntl.flock(f, fcntl.LOCK_EX)
    os.kill(os.getpid(), signal.SIGSTOP)
holder = child(stopped)
while open("/proc/%d/stat" % holder).read().split()[2] != "T": time.sleep(0.001)
waiter = child(lambda: fcntl.flock(open("a"), fcntl.LOCK_EX))
# A child takes the lock through an open file that its parent keeps.
f = open("b", "w")
gone = os.fork()
if gone == 0:
    fcntl.flock(f, fcntl.LOCK_EX)
    os._exit(0)
os.waitpid(gone, 0)
behind = child(lambda: (f.close(), fcntl.flock(open("b"), fcntl.LOCK_EX)))
waits(waiter, behind)
ready(holder, waiter, behind, os.getpid())
"#,
    );
    let [holder, waiter, behind, heir] = &scene.said[..] else {
        panic!("{:?}", scene.said)
    };
    let explained = scene.said_by(&["explain", ".", waiter]);
    assert!(
        explained.contains(&format!("`kill -CONT {holder}`")),
        "{explained}"
    );
    let explained = scene.said_by(&["explain", ".", behind]);
    assert!(
        explained.contains("which took it, has ended, but the file is still open in")
            && explained.contains(&format!("{heir} (python3)")),
        "{explained}"
    );
    let idle = scene.said_by(&["explain", ".", heir]);
    assert!(
        idle.contains("waits for no lock") && idle.contains("It may share 1 lock with who took it"),
        "{idle}"
    );
}

#[test]
fn what_cannot_be_shown_is_said_and_ends_with_2() {
    let scene = Scene::new("ready('x')");
    for (arguments, said) in [
        (&["tree", "nowhere"][..], "nowhere"),
        (&["explain", ".", "4194305"], "there is no process 4194305"),
        (&["metrics", "."], "of a lockkeeper mount"),
        (&["locks", "--watch", "nowhere"], "nowhere"),
        (&["locks", ".", "--watch=0"], "not a number of seconds"),
    ] {
        let output = scene.lockkeeper(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(said), "{arguments:?}: {errors}");
    }
}

#[test]
fn watching_appends_on_a_pipe_and_ends_with_its_reader_or_a_signal() {
    let scene = Scene::new(CONTENDED);
    let mut watch = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
        .args(["locks", "--watch=0.1", "."])
        .current_dir(scene.temp.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let headings = lines
        .by_ref()
        .take(15)
        .filter(|line| line.as_ref().is_ok_and(|line| line.starts_with("COMMAND")))
        .count();
    assert_eq!(headings, 3);
    let pid = rustix::process::Pid::from_child(&watch);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signalled");
    assert!(watch.wait().expect("ends").success());
}
