//! What an administrator writes down: mount(8), a line in fstab, a systemd unit.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");
const UNIT: &str = include_str!("../../../contrib/lockkeeper@.service");

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("lockkeeper-test-")
        .tempdir()
        .expect("temp folder")
}

fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Runs a shell script as root of a mount namespace of its own, where `/sbin` has the helper and /etc/fstab
/// is the file `fstab`. All of it goes with the namespace, and the servers with the script.
fn in_a_namespace(temp: &Path, script: &str) -> String {
    const BEGIN: &str = r#"
mkdir -p helper source 'with space'
ln -sf "$PROGRAM" helper/mount.fuse.lockkeeper
sbin=$(readlink -f /sbin)
mount -t overlay overlay -o "lowerdir=$PWD/helper:$sbin" "$sbin"
[ -e fstab ] && mount --bind fstab /etc/fstab
gone() { for try in $(seq 500); do [ -e "$1" ] || return 0; sleep 0.02; done; echo "$1 is still there"; exit 1; }
trap 'for pid in pid*; do [ -e $pid ] && kill -9 $(cat $pid); done; umount -l mnt 2>/dev/null || :' EXIT
"#;
    let output = Command::new("timeout")
        .args(["--kill-after=5", "60", "unshare", "--mount"])
        .args(["--propagation", "private", "sh", "-euc"])
        .arg(format!("{BEGIN}{script}"))
        .env("PROGRAM", PROGRAM)
        .env("LC_ALL", "C")
        .current_dir(temp)
        .stdin(Stdio::null())
        .output()
        .expect("runs");
    let said = said(&output);
    assert!(output.status.success(), "{}\n{said}", output.status);
    said
}

#[test]
#[ignore = "needs FUSE and root: run by cargo xtask test"]
fn mount_8_starts_a_server_with_its_options() {
    let temp = folder();
    let out = in_a_namespace(
        temp.path(),
        r#"
mount -t fuse.lockkeeper "$PWD/source" "$PWD/mnt" -o allow_other,noexec,cache=0,max_locks=1,pid_file="$PWD/pid",status="$PWD/sock"
# It returns when the mount can be used, and has passed everything on.
echo through > mnt/f; cat source/f
findmnt -no FSTYPE,SOURCE mnt
findmnt -no OPTIONS mnt | grep -o 'noexec\|allow_other' | sort
flock -n mnt/f sh -c 'flock -n mnt/g true && exit 1 || echo at the limit'
"$PROGRAM" locks "$PWD/mnt" --noheadings | wc -l
mount -t fuse.lockkeeper "$PWD/source" "$PWD/mnt" 2>&1 | grep -o 'already a lockkeeper mount'
umount mnt
gone pid; gone sock
mount -t fuse.lockkeeper "$PWD/source" "$PWD/mnt" -o colour && exit 1 || echo refused
"#,
    );
    let source = temp.path().canonicalize().expect("there").join("source");
    let shown = format!("fuse.lockkeeper {}", source.display());
    for expected in [
        "through\n",
        &shown,
        "allow_other\nnoexec\n",
        "at the limit\n0\n",
        "already a lockkeeper mount",
        "unknown mount option \"colour\"",
        "refused\n",
    ] {
        assert!(out.contains(expected), "{expected} is missing in\n{out}");
    }
}

#[test]
#[ignore = "needs FUSE and root: run by cargo xtask test"]
fn a_line_in_fstab_is_mounted() {
    let temp = folder();
    let root = temp.path().canonicalize().expect("there");
    let root = root.display();
    fs::write(
        temp.path().join("fstab"),
        format!(
            "{root}/source {root}/mnt fuse.lockkeeper \
             ro,nofail,x-systemd.requires-mounts-for=/srv,pid_file={root}/pid,no_status 0 0\n\
             {root}/with\\040space {root}/mnt\\0402 fuse.lockkeeper defaults,noauto,pid_file={root}/pid2 0 0\n"
        ),
    )
    .expect("writes");
    let out = in_a_namespace(
        temp.path(),
        r#"
echo x > source/f
mount "$PWD/mnt"
cat mnt/f
sh -c 'echo y > mnt/f' 2>&1 | grep -o 'Read-only file system'
mount "$PWD/mnt 2"
echo spaced > 'mnt 2/f'; cat 'with space/f'
umount mnt 'mnt 2'
gone pid; gone pid2
mount -a
cat mnt/f
findmnt 'mnt 2' > /dev/null && exit 1 || echo noauto
umount mnt
gone pid
"#,
    );
    // As with any file system: not a word but where folders were made.
    let made = |name: &str| format!("Created the folder {root}/{name}.\n");
    assert_eq!(
        out,
        format!(
            "{}x\nRead-only file system\n{}spaced\nx\nnoauto\n",
            made("mnt"),
            made("mnt 2")
        )
    );
}

/// What the unit has for this key.
fn unit(key: &str) -> &'static str {
    let line = |line: &'static str| line.strip_prefix(key)?.strip_prefix('=');
    UNIT.lines().find_map(line).expect(key)
}

#[test]
#[ignore = "needs systemd: run by cargo xtask test"]
fn the_unit_is_one_that_systemd_understands() {
    let temp = folder();
    let file = temp.path().join("lockkeeper@data.service");
    fs::write(&file, UNIT.replace("/usr/bin/lockkeeper", PROGRAM)).expect("writes");
    let output = Command::new("systemd-analyze")
        // Its manual pages need not be installed.
        .args(["verify", "--man=no"])
        .arg(&file)
        .output()
        .expect("the package systemd is installed");
    assert!(output.status.success(), "{}", said(&output));
    assert!(output.stderr.is_empty(), "{}", said(&output));
}

/// A server, killed and unmounted if it is still there when dropped.
struct Served(Child, PathBuf);

impl Drop for Served {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
            let _ = Command::new("umount").arg("-l").arg(&self.1).status();
        }
    }
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn what_the_unit_runs_serves_tells_systemd_and_ends_on_sigterm() {
    assert_eq!(unit("Type"), "notify");
    let temp = folder();
    let (source, mnt) = (temp.path().join("the source"), temp.path().join("mnt"));
    let socket = UnixDatagram::bind(temp.path().join("notify")).expect("binds");
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a timeout");
    let told = || {
        let mut text = [0; 64];
        let len = socket.recv(&mut text).expect("tells systemd");
        String::from_utf8_lossy(&text[..len]).into_owned()
    };
    // As systemd.service(5) reads it: `${X}` is one word, `$X` is split.
    let mut words = unit("ExecStart").split(' ').flat_map(|word| match word {
        "/usr/bin/lockkeeper" => vec![PROGRAM.into()],
        "$OPTIONS" => vec!["--allow-other".into(), "--no-status".into()],
        "${SOURCE}" => vec![source.clone().into_os_string()],
        "${MOUNTPOINT}" => vec![mnt.clone().into_os_string()],
        word => vec![word.into()],
    });
    let server = Command::new(words.next().expect("a program"))
        .args(words)
        .env("NOTIFY_SOCKET", temp.path().join("notify"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    let mut server = Served(server, mnt.clone());
    assert_eq!(told(), "READY=1");
    fs::write(mnt.join("f"), "x").expect("it can be used once systemd is told");
    assert!(source.join("f").exists());
    kill_process(Pid::from_child(&server.0), Signal::TERM).expect("signalled");
    assert_eq!(told(), "STOPPING=1");
    assert!(server.0.wait().expect("ends").success());
    assert!(!mnt.join("f").exists(), "unmounted");
}
