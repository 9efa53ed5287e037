//! What is told about the locks of a mount: by `lockkeeper locks`, and to lock scripts.

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use support::{Mount, said, set_mode};

const HOLD: &str = r#"
import fcntl, os, struct, time
f = open("held", "r+b"); f.truncate(5120)
fcntl.lockf(f, fcntl.LOCK_EX, 10, 0)
g = open("whole", "w"); fcntl.flock(g, fcntl.LOCK_SH)
o = open("held", "r+b"); fcntl.fcntl(o, 37, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 100, 0, 0))
if os.fork() == 0:
    h = open("held", "r+b"); fcntl.lockf(h, fcntl.LOCK_EX, 1, 5)
else:
    open(os.environ["BESIDE"] + "/ready", "w").close()
    time.sleep(100)
"#;

/// A mount on which two processes hold and wait, and their ids.
fn contended() -> (Mount, std::process::Child, u32, u32) {
    let mount = Mount::new();
    fs::write(mount.path("held"), "").expect("writes");
    let holder = Command::new("python3")
        .args(["-c", HOLD])
        .current_dir(mount.path(""))
        .env("BESIDE", mount.beside(""))
        .spawn()
        .expect("starts");
    mount.wait_for("a waiter", |mount| mount.totals() == (3, 1));
    let report = mount.report();
    let files = report["files"].as_array().expect("files");
    let waiter = files
        .iter()
        .find_map(|file| file["waiters"][0]["pid"].as_u64())
        .expect("a waiter");
    let pid = holder.id();
    (mount, holder, pid, u32::try_from(waiter).expect("a pid"))
}

fn end(mut holder: std::process::Child, waiter: u32) {
    holder.kill().expect("killed");
    holder.wait().expect("waited for");
    // The waiter gets its lock, and ends.
    for _ in 0..500 {
        if !Path::new(&format!("/proc/{waiter}/stat")).exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the waiter is still there");
}

/// The words of a listing without the number and unit that tell how long.
fn untimed(listing: &str) -> Vec<Vec<&str>> {
    listing
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words[..words.len() - 2].to_vec()
        })
        .collect()
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn in_05_locks_are_listed_by_mount_source_process_and_file() {
    let (mount, holder, pid, waiter) = contended();
    let by_mount = said(&mount.lockkeeper(&["locks", "mnt"]));
    let lines: Vec<Vec<&str>> = by_mount
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        lines[0],
        [
            "COMMAND", "PID", "TYPE", "SIZE", "MODE", "M", "START", "END", "PATH", "BLOCKER", "FOR"
        ]
    );
    let (held, whole) = (mount.path("held"), mount.path("whole"));
    let (held, whole) = (held.to_str().expect("text"), whole.to_str().expect("text"));
    let (pid_text, waiter_text) = (pid.to_string(), waiter.to_string());
    for expected in [
        &[
            "python3", &pid_text, "POSIX", "5K", "WRITE", "0", "0", "9", held,
        ][..],
        &[
            "python3", &pid_text, "OFDLCK", "5K", "READ", "0", "100", "0", held,
        ],
        &[
            "python3", &pid_text, "FLOCK", "0B", "READ", "0", "0", "0", whole,
        ],
        &[
            "python3",
            &waiter_text,
            "POSIX",
            "5K",
            "WRITE*",
            "0",
            "5",
            "5",
            held,
            &pid_text,
        ],
    ] {
        assert!(
            // After it, for how long.
            lines
                .iter()
                .any(|line| line.starts_with(expected) && line.len() == expected.len() + 2),
            "{expected:?}\n{by_mount}"
        );
    }
    assert_eq!(lines.len(), 5, "{by_mount}");
    let of_server = mount.server_pid().to_string();
    for target in ["source", &of_server] {
        let listing = said(&mount.lockkeeper(&["locks", target]));
        assert_eq!(untimed(&by_mount), untimed(&listing));
    }
    // It is looked for on every mount of the machine, and those that do not answer are
    // told on the standard error.
    let of_waiter = mount.lockkeeper(&["locks", "-n", &waiter_text]);
    let of_waiter = String::from_utf8_lossy(&of_waiter.stdout);
    assert_eq!(of_waiter.lines().count(), 1, "{of_waiter}");
    assert!(of_waiter.contains("WRITE*"), "{of_waiter}");
    let of_file = said(&mount.lockkeeper(&["locks", "mnt/whole", "--noheadings", "--bytes"]));
    assert_eq!(of_file.lines().count(), 1, "{of_file}");
    // The kernel's own file has nothing of all this.
    let dev = fs::metadata(mount.path("")).expect("is there").dev();
    let place = format!(
        " {:02x}:{:02x}:",
        rustix::fs::major(dev),
        rustix::fs::minor(dev)
    );
    assert!(
        !fs::read_to_string("/proc/locks")
            .expect("reads")
            .contains(&place)
    );
    end(holder, waiter);
    mount.nothing_left();
    assert_eq!(
        said(&mount.lockkeeper(&["locks", "mnt"])).lines().count(),
        1
    );
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn the_document_is_what_is_documented() {
    let (mount, holder, pid, waiter) = contended();
    fs::rename(mount.path("held"), mount.path("renamed")).expect("renames");
    fs::remove_file(mount.path("whole")).expect("unlinks");
    let report = mount.report();
    assert_eq!(report["version"], 1);
    assert_eq!(
        report["mountpoint"],
        mount
            .path("")
            .canonicalize()
            .expect("is there")
            .to_str()
            .expect("text")
    );
    assert_eq!(report["counts"]["waiting"], 1);
    let files = report["files"].as_array().expect("files");
    let named = |name: &str| {
        let path = mount.path(name);
        let path = path.to_str().expect("text");
        files
            .iter()
            .find(|file| file["path"] == path)
            .expect("listed")
    };
    let (renamed, whole) = (named("renamed"), named("whole"));
    assert_eq!(
        renamed["inode"],
        fs::metadata(mount.path("renamed")).expect("is there").ino()
    );
    assert_eq!(
        (&renamed["deleted"], &renamed["size"]),
        (&false.into(), &5120.into())
    );
    assert_eq!(whole["deleted"], true);
    let lock = &renamed["locks"][0];
    assert_eq!(
        (
            &lock["kind"],
            &lock["type"],
            &lock["start"],
            &lock["end"],
            &lock["pid"],
            &lock["command"]
        ),
        (
            &"posix".into(),
            &"write".into(),
            &0.into(),
            &9.into(),
            &pid.into(),
            &"python3".into()
        )
    );
    assert!(
        lock["held_for"]
            .as_f64()
            .is_some_and(|seconds| (0.0..60.0).contains(&seconds))
    );
    assert_eq!(
        (&renamed["locks"][1]["kind"], &renamed["locks"][1]["end"]),
        (&"ofd".into(), &serde_json::Value::Null)
    );
    let wait = &renamed["waiters"][0];
    assert_eq!((&wait["pid"], &wait["depth"]), (&waiter.into(), &0.into()));
    assert_eq!(wait["blocked_by"], serde_json::json!({"lock": 0}));
    end(holder, waiter);
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn who_cannot_be_told_is_told_why() {
    let mount = Mount::with(&["--allow-other", "--status", "elsewhere.sock"]);
    let refused = |arguments: &[&str], named: &str| {
        let output = mount.lockkeeper(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(
            said(&output).contains(named),
            "{arguments:?}: {}",
            said(&output)
        );
    };
    // A socket that was put elsewhere is found all the same, and can be named.
    for target in ["mnt", "elsewhere.sock"] {
        let output = mount.lockkeeper(&["locks", target]);
        assert!(output.status.success(), "{}", said(&output));
    }
    refused(&["metrics", "/proc"], "these are: ");
    // What is on no mount of lockkeeper's is asked of the kernel.
    let elsewhere = mount.lockkeeper(&["locks", "/proc", "--noheadings"]);
    assert!(elsewhere.status.success(), "{}", said(&elsewhere));
    refused(&["locks", "nowhere"], "nowhere");
    refused(&["locks", "4194305"], "there is no process 4194305");
    // Another user, by the mount's name and by the socket, which he cannot even see is there.
    set_mode(&mount.beside("source"), 0o755);
    let as_nobody = |target: &str| {
        let script = format!(
            "cp {} prog && setpriv --reuid=65534 --regid=65534 --clear-groups ./prog locks {target} 2>&1; rm -f prog",
            env!("CARGO_BIN_EXE_lockkeeper")
        );
        let output = Command::new("sh")
            .args(["-c", &script])
            .current_dir(mount.beside(""))
            .output();
        said(&output.expect("runs"))
    };
    let told = as_nobody("mnt");
    assert!(
        told.contains("to root and to the user who mounted it (uid 0)"),
        "{told}"
    );
    let told = as_nobody("elsewhere.sock");
    assert!(
        told.contains("answers only root and the user who mounted"),
        "{told}"
    );
    // Even where the file lets him through, his uid does not.
    set_mode(&mount.beside("elsewhere.sock"), 0o666);
    let told = as_nobody("elsewhere.sock");
    assert!(
        told.contains("answers only root and the user who mounted"),
        "{told}"
    );
    // A server that was killed.
    mount.signal(rustix::process::Signal::KILL);
    mount.wait_for("the end", |mount| fs::metadata(mount.path("")).is_err());
    refused(&["locks", "mnt"], "is gone: it was killed");
    refused(&["locks", "elsewhere.sock"], "the server was killed");
    // What it left, which the next server on this device number would replace.
    assert!(
        Command::new("umount")
            .arg("-l")
            .arg(mount.path(""))
            .status()
            .expect("runs")
            .success()
    );
    for socket in fs::read_dir("/run/lockkeeper").expect("is there").flatten() {
        if fs::read_link(socket.path())
            .is_ok_and(|to| to.starts_with(mount.beside("").canonicalize().expect("is there")))
        {
            fs::remove_file(socket.path()).expect("removes");
        }
    }
}

fn replay(mount: &Mount, folder: &str) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/scripts")
        .join(folder);
    let scripts = scripts.to_str().expect("text");
    let output = mount.lockkeeper(&["replay", "--on", "mnt", scripts]);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn every_lock_script_agrees_with_the_kernel() {
    let mount = Mount::with(&["--fairness", "unlimited"]);
    replay(&mount, "");
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE and packages: run by cargo xtask test"]
fn random_scripts_agree_with_the_library() {
    let mount = Mount::with(&["--fairness", "unlimited"]);
    let output = mount.lockkeeper(&["differ", "--on", "mnt", "--operations", "5000"]);
    assert!(output.status.success(), "{}", said(&output));
    mount.nothing_left();
}
