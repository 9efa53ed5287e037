//! `tree`, `explain`, `metrics`, `locks --watch` and the log of a mount on which real processes hold and wait.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::{Mount, PROGRAM, said, set_mode};

/// Who holds `held` and who waits for it, one beneath the other; an OFD lock among POSIX ones; and a flock.
const CONTENDED: &str = r#"
for name in "held", "whole": open(name, "w").close()
h = holder("held", "posix")
w = waiter("held", "ofd"); waits(w)
v = waiter("held", "posix"); waits(v)
g = holder("whole", "flock")
stage("%d %d %d %d" % (h, w, v, g))
end(v, w, h, g)
"#;

/// Two processes, each of which holds the flock on one file and waits for the other's.
const CROSSED: &str = r#"
def crossed(first, second, mine, other):
    def work(tell):
        f = open(first, "w"); fcntl.flock(f, fcntl.LOCK_EX)
        open(mine, "w").close()
        while not os.path.exists(other): time.sleep(0.001)
        tell()
        g = open(second, "w"); fcntl.flock(g, fcntl.LOCK_EX)
    pid = os.fork()
    if pid == 0:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        work(lambda: None)
        os._exit(0)
    return pid
one, two = crossed("a", "b", "1", "2"), crossed("b", "a", "2", "1")
waits(one); waits(two)
stage("%d %d" % (one, two))
end(one, two)
"#;

fn ok(mount: &Mount, arguments: &[&str]) -> String {
    let output = mount.lockkeeper(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    String::from_utf8(output.stdout).expect("text")
}

fn failed(output: &Output, named: &str) {
    assert_eq!(output.status.code(), Some(2), "{}", said(output));
    assert!(output.stdout.is_empty(), "{}", said(output));
    assert!(said(output).contains(named), "{}", said(output));
}

/// What `dot` says of this text: an SVG.
fn drawn(text: &str) -> String {
    let mut dot = Command::new("dot")
        .arg("-Tsvg")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("dot starts");
    let mut input = dot.stdin.take().expect("piped");
    input.write_all(text.as_bytes()).expect("dot reads");
    drop(input);
    let output = dot.wait_with_output().expect("ends");
    assert!(output.status.success(), "{text}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_tree_an_explanation_and_metrics_of_a_mount() {
    let mount = Mount::new();
    mount.staged(CONTENDED, |pids| {
        let pids: Vec<&str> = pids.split(' ').collect();
        let [holder, waiter, behind, flock] = pids[..] else {
            panic!("{pids:?}")
        };
        let tree = ok(&mount, &["tree", "mnt"]);
        for expected in [
            format!("POSIX write whole file  {holder} (python3)  for "),
            format!("OFD write whole file  {waiter} (python3)  waits "),
            format!("POSIX write whole file  {behind} (python3)  waits "),
            format!("flock write  {flock} (python3)  for "),
            "2 locks on 2 files, 2 requests wait, the oldest for ".into(),
        ] {
            assert!(tree.contains(&expected), "{expected}\n{tree}");
        }
        assert!(
            !tree.contains('\x1b'),
            "no colours where there is no terminal"
        );
        let of_file = ok(&mount, &["tree", "mnt", "whole"]);
        assert!(
            of_file.contains("1 lock on 1 file, nobody waits"),
            "{of_file}"
        );

        let json: serde_json::Value =
            serde_json::from_str(&ok(&mount, &["tree", "--json", "mnt"])).expect("JSON");
        assert_eq!(json[0]["origin"], "mount");
        assert_eq!(json[0]["unnamed"], 0);
        let svg = drawn(&ok(&mount, &["tree", "--dot", "mnt"]));
        assert!(
            svg.contains("<svg") && svg.contains(&format!("{waiter} (python3)")),
            "{svg}"
        );

        let explained = ok(&mount, &["explain", "mnt", waiter]);
        assert!(
            explained.starts_with(&format!("Process {waiter} (python3) has waited "))
                && explained.contains(&format!("held by {holder} (python3) for "))
                && explained.contains(&format!("`kill {holder}` frees the lock")),
            "{explained}"
        );
        let explained = ok(&mount, &["explain", "mnt", holder]);
        assert!(explained.contains("2 requests wait for it"), "{explained}");
        failed(
            &mount.lockkeeper(&["explain", "mnt", "4194305"]),
            "there is no process 4194305",
        );
        // A holder that is stopped holds everybody up.
        let pid = Pid::from_raw(holder.parse().expect("a pid")).expect("a pid");
        kill_process(pid, Signal::STOP).expect("signalled");
        mount.wait_for("the stop", |mount| {
            ok(mount, &["explain", "mnt", waiter]).contains(&format!("`kill -CONT {holder}`"))
        });

        let metrics = ok(&mount, &["metrics", "mnt"]);
        let lines = metrics.lines().map(|line| Ok(line.to_owned()));
        let scraped = prometheus_parse::Scrape::parse(lines).expect("metrics");
        let sum = |name: &str| -> f64 {
            let samples = scraped
                .samples
                .iter()
                .filter(|sample| sample.metric == name);
            let value = |value: &prometheus_parse::Value| match value {
                prometheus_parse::Value::Counter(value)
                | prometheus_parse::Value::Gauge(value)
                | prometheus_parse::Value::Untyped(value) => *value,
                _ => 0.0,
            };
            samples.map(|sample| value(&sample.value)).sum()
        };
        assert_eq!(
            (sum("lockkeeper_locks"), sum("lockkeeper_waiters")),
            (2.0, 2.0)
        );
        assert_eq!(sum("lockkeeper_contended_total"), 2.0);
    });
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn names_reach_no_terminal_as_they_are() {
    let mount = Mount::new();
    let script = r#"
evil = "x\x1b[2J\n\u009b31m\u202etxt"
open(evil, "w").close()
def named(work):
    def renamed(tell):
        LIBC.prctl(15, b"\x1b]0;p\x07", 0, 0, 0)
        work(tell)
    return child(renamed)
def hold(tell):
    f = open(evil, "w"); fcntl.flock(f, fcntl.LOCK_EX); tell(); signal.pause()
def wait(tell):
    f = open(evil, "w"); tell(); fcntl.flock(f, fcntl.LOCK_EX)
h = named(hold); w = named(wait); waits(w)
stage("%d" % w)
end(w, h)
"#;
    mount.staged(script, |waiter| {
        for arguments in [
            &["tree", "mnt"][..],
            &["tree", "--json", "mnt"],
            &["tree", "--dot", "mnt"],
            &["explain", "mnt", waiter],
            &["locks", "mnt"],
            &["locks", "--json", "mnt"],
            &["metrics", "mnt"],
        ] {
            let text = ok(&mount, arguments);
            let bad = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
            assert!(!text.chars().any(bad), "{arguments:?}: {text:?}");
        }
    });
}

/// The lines of this event in a log, once there are any.
fn events(mount: &Mount, event: &str) -> Vec<serde_json::Value> {
    let all = |mount: &Mount| -> Vec<serde_json::Value> {
        let text = fs::read_to_string(mount.beside("log")).unwrap_or_default();
        // The last line may be half written.
        let lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let lines = lines.map(|line| serde_json::from_str(line).expect("a JSON object a line"));
        lines
            .filter(|line: &serde_json::Value| line["event"] == event)
            .collect()
    };
    mount.wait_for(event, |mount| !all(mount).is_empty());
    all(mount)
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn what_somebody_should_know_of_is_a_line_of_the_log() {
    let mount = Mount::with(&[
        "--log",
        "json",
        "--log-file",
        "log",
        "--slow-wait",
        "0.6",
        "--max-locks-per-file",
        "3",
    ]);
    mount.staged(CROSSED, |pids| {
        let found = events(&mount, "deadlock");
        assert_eq!(found.len(), 1, "{found:?}");
        let of_line = found[0]["pids"].as_str().expect("text");
        for pid in pids.split(' ') {
            assert!(of_line.split(' ').any(|other| other == pid), "{found:?}");
        }
        assert_eq!(
            (
                &found[0]["level"],
                found[0]["files"]
                    .as_str()
                    .map(|files| files.matches("mnt/").count())
            ),
            (&"WARN".into(), Some(2))
        );
        // Both have waited long, each once.
        mount.wait_for("two slow waits", |mount| {
            events(mount, "slow_wait").len() == 2
        });
        let explained = ok(
            &mount,
            &["explain", "mnt", pids.split(' ').next().expect("two")],
        );
        assert!(explained.contains("this is a deadlock"), "{explained}");
    });
    mount.locking_python(
        r#"
f = open("full", "w")
for start in 0, 2, 4: record(f, fcntl.F_SETLK, fcntl.F_WRLCK, start, 1)
refused(lambda: record(f, fcntl.F_SETLK, fcntl.F_WRLCK, 6, 1), errno.ENOLCK)
"#,
    );
    let found = events(&mount, "limit_hit");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["count"], 1);
    assert!(
        found[0]["file"]
            .as_str()
            .is_some_and(|file| file.ends_with("mnt/full")),
        "{found:?}"
    );
    assert_eq!(events(&mount, "deadlock").len(), 1);
    assert_eq!(events(&mount, "slow_wait").len(), 2);
}

/// The kernel's lease break time, made short for as long as this lives.
struct ShortLeases(String);

const LEASE_BREAK_TIME: &str = "/proc/sys/fs/lease-break-time";

impl ShortLeases {
    fn new() -> ShortLeases {
        let before = fs::read_to_string(LEASE_BREAK_TIME).expect("reads");
        fs::write(LEASE_BREAK_TIME, "2").expect("writes");
        ShortLeases(before)
    }
}

impl Drop for ShortLeases {
    fn drop(&mut self) {
        fs::write(LEASE_BREAK_TIME, &self.0).expect("writes");
    }
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_lease_that_is_taken_away_is_a_line_of_the_log_and_one_given_up_is_not() {
    let _short = ShortLeases::new();
    let mount = Mount::with(&["--log", "json", "--log-file", "log"]);
    let pid = mount.python(
        r#"
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, lambda *_: None)
for name in "kept", "given": open(name, "w").close()
kept = os.open("kept", os.O_RDONLY)
fcntl.fcntl(kept, fcntl.F_SETLEASE, fcntl.F_RDLCK)
given = os.open("given", os.O_RDONLY)
fcntl.fcntl(given, fcntl.F_SETLEASE, fcntl.F_RDLCK)
def opened(name):
    pid = os.fork()
    if pid == 0:
        os.open(name, os.O_WRONLY)
        os._exit(0)
    return pid
writer = opened("given")
while fcntl.fcntl(given, fcntl.F_GETLEASE) != fcntl.F_UNLCK: pass
fcntl.fcntl(given, fcntl.F_SETLEASE, fcntl.F_UNLCK)
os.waitpid(writer, 0)
os.waitpid(opened("kept"), 0)
print(os.getpid())
"#,
    );
    let found = events(&mount, "lease_timed_out");
    assert_eq!(found.len(), 1, "{found:?}");
    let event = &found[0];
    assert_eq!(event["pid"].to_string(), pid.trim(), "{event}");
    let is_of_file = |name: &str| {
        event["file"]
            .as_str()
            .is_some_and(|file| file.ends_with(name))
    };
    assert!(is_of_file("mnt/kept"), "{event}");
    assert!(
        event["after"].as_f64().is_some_and(|after| after >= 2.0),
        "{event}"
    );
    assert_eq!(event["level"], "WARN");
}

/// `lockkeeper locks --watch` on a pipe, of which a listing has been read.
fn watching(mount: &Mount) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut watch = Command::new(PROGRAM)
        .args(["locks", "--watch=0.1", "mnt"])
        .current_dir(mount.beside(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut out = BufReader::new(watch.stdout.take().expect("piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("reads");
    assert!(line.starts_with("COMMAND"), "{line}");
    (watch, out)
}

/// How it ended, and what it said then.
fn end_of(
    (mut watch, mut out): (Child, BufReader<std::process::ChildStdout>),
) -> (ExitStatus, String) {
    let mut text = String::new();
    out.read_to_string(&mut text).expect("text");
    assert!(
        text.lines().all(|line| line.starts_with("COMMAND")),
        "{text}"
    );
    let mut errors = String::new();
    let mut stderr = watch.stderr.take().expect("piped");
    stderr.read_to_string(&mut errors).expect("text");
    (watch.wait().expect("ends"), errors)
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_server_that_is_killed_while_it_is_watched_is_named() {
    let mount = Mount::new();
    let device = fs::metadata(mount.path("")).expect("is there").dev();
    let watch = watching(&mount);
    mount.signal(Signal::KILL);
    let (status, said) = end_of(watch);
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(
        said.contains("is gone: it was killed") || said.contains("cannot list the locks"),
        "{said}"
    );
    mount.wait_for("the end", |mount| fs::metadata(mount.path("")).is_err());
    for arguments in [
        &["tree", "mnt"][..],
        &["tree", "mnt", "file"],
        &["explain", "mnt", "1"],
        &["metrics", "mnt"],
    ] {
        failed(&mount.lockkeeper(arguments), "is gone: it was killed");
    }
    let unmounted = Command::new("umount")
        .arg("-l")
        .arg(mount.path(""))
        .status();
    assert!(unmounted.expect("runs").success());
    // What it left, which the next server on this device number would replace.
    fs::remove_file(lockkeeper_mount::status::default_path(device)).expect("removes");
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn a_mount_that_ends_while_it_is_watched_is_no_failure() {
    let mount = Mount::new();
    let watch = watching(&mount);
    assert!(
        Command::new("umount")
            .arg(mount.path(""))
            .status()
            .expect("runs")
            .success()
    );
    let (status, said) = end_of(watch);
    assert!(status.success(), "{said}");
    assert!(said.contains("was unmounted"), "{said}");
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn other_users_are_told_nothing() {
    let mount = Mount::with(&["--allow-other"]);
    set_mode(&mount.beside("source"), 0o755);
    fs::copy(PROGRAM, mount.beside("prog")).expect("copies");
    set_mode(&mount.beside("prog"), 0o755);
    for arguments in [
        &["tree", "mnt"][..],
        &["explain", "mnt", "1"],
        &["metrics", "mnt"],
    ] {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "./prog"])
            .args(arguments)
            .current_dir(mount.beside(""))
            .output()
            .expect("runs");
        failed(&output, "to root and to the user who mounted it (uid 0)");
    }
}
