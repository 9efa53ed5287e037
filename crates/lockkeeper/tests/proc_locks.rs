//! The text of /proc/locks, beside what the kernel prints for the same scene.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use lockkeeper::{Fairness, FileId, LockManager, Openers, PidIsId, ProcessId};

use common::*;

/// The kernel's lines about a file, without their ordinals and the device.
fn kernel(inode: u64) -> Vec<String> {
    let text = fs::read_to_string("/proc/locks").expect("a Linux with /proc");
    bare(&text, inode)
}

fn bare(text: &str, inode: u64) -> Vec<String> {
    let end = format!(":{inode}");
    let lines = text.lines().filter_map(|line| {
        let (_, line) = line.split_once(": ")?;
        let place = line.split(' ').find(|word| word.ends_with(&end))?;
        Some(line.replace(place, "FILE"))
    });
    lines.collect()
}

/// flock(1), which holds the lock until its input ends.
fn flock(file: &Path, option: &str) -> Child {
    Command::new("flock")
        .arg(option)
        .arg(file)
        .arg("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("flock(1) of util-linux")
}

#[test]
fn real_processes_that_lock_a_file_are_listed_as_the_kernel_does() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("proc_locks");
    let metadata = File::create(&path)
        .and_then(|file| file.metadata())
        .expect("a file");
    let inode = metadata.ino();
    let manager = LockManager::builder().fairness(Fairness::Unlimited).build();
    let file = manager.file(FileId::new(metadata.dev(), inode));

    let mut children = Vec::new();
    let mut waits = Vec::new();
    for (option, lock_type) in [("-x", W), ("-x", W), ("-s", R), ("-s", R)] {
        let child = flock(&path, option);
        let pid = u64::from(child.id());
        children.push(child);
        let lines = children.len();
        until("the kernel lists it", || kernel(inode).len() == lines);
        let request = file.flock(o(pid)).taken_by(ProcessId(pid));
        waits.push(Asked::start(|id, callback| {
            request.lock_callback(id, lock_type, callback)
        }));
        file.check_invariants();
        assert_eq!(bare(&manager.proc_locks(&PidIsId), inode), kernel(inode));
    }
    for mut child in children {
        drop(child.stdin.take());
        child.wait().expect("it ends with its input");
    }
    fs::remove_file(path).expect("it is there");
}

/// As seen on Linux 6.18 from another pid namespace: a lock that cannot be seen
/// is left out with all that waits for it, and still counted; a waiter that
/// cannot be seen has the pid 0.
#[test]
fn what_the_reader_cannot_see_is_left_out_or_has_no_pid() {
    let stage = Stage::linux();
    assert_eq!(stage.set(p(1), W, byte(1)), Ok(()));
    assert_eq!(stage.set(p(2), W, byte(2)), Ok(()));
    let _hidden = stage.wait(p(5), W, byte(1));
    let _waits = [stage.wait(p(3), W, byte(2)), stage.wait(p(4), R, byte(2))];
    let sees =
        |hidden: u64| move |process: ProcessId| (process.0 != hidden).then_some(process.0 as i32);
    assert_eq!(
        stage.manager.proc_locks(&sees(1)),
        "2: POSIX  ADVISORY  WRITE 2 08:01:100 2 2\n\
         2: -> POSIX  ADVISORY  WRITE 3 08:01:100 2 2\n\
         2:  -> POSIX  ADVISORY  READ 4 08:01:100 2 2\n"
    );
    assert!(stage.manager.proc_locks(&sees(3)).contains(
        "2: POSIX  ADVISORY  WRITE 2 08:01:100 2 2\n\
         2: -> POSIX  ADVISORY  WRITE 0 08:01:100 2 2\n\
         2:  -> POSIX  ADVISORY  READ 4 08:01:100 2 2\n"
    ));
}

#[test]
fn leases_and_delegations_tell_what_must_be_left_of_them() {
    let stage = Stage::with(LockManager::builder().manual_clock());
    let lease = stage.file.lease(o(1)).taken_by(p(5));
    lease.set(W, Openers::default()).expect("alone");
    let other = stage.on(101);
    let delegation = other.file.delegation(o(2)).taken_by(p(6));
    delegation.set(R, Openers::default()).expect("alone");
    let _reader = stage.wait_open(p(7), R);
    assert_eq!(
        stage.manager.proc_locks(&PidIsId),
        "1: LEASE  BREAKING  READ 5 08:01:100 0 EOF\n\
         1: -> LEASE  BREAKER   READ 7 <none>:0 0 EOF\n\
         2: DELEG  ACTIVE    READ 6 08:01:101 0 EOF\n"
    );
}
