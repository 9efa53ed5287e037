//! `lockkeeper replay`, as it is called, on a folder of a kernel file system.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn lockkeeper() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.stdin(Stdio::null());
    command
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scripts")
}

struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

fn finish(output: Output) -> Run {
    Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Replays files on a fresh folder, of which nothing may be left.
fn replay_files(files: &[PathBuf], options: &[&str]) -> Run {
    replay_files_in(&std::env::temp_dir(), files, options)
}

fn replay_files_in(folder: &Path, files: &[PathBuf], options: &[&str]) -> Run {
    let place = tempfile::tempdir_in(folder).unwrap();
    let run = finish(
        lockkeeper()
            .arg("replay")
            .arg("--on")
            .arg(place.path())
            .args(options)
            .args(files)
            .output()
            .unwrap(),
    );
    assert!(is_empty(place.path()), "files are left over");
    run
}

/// The usual place for files, and a tmpfs where the machine has one at its usual place.
fn file_systems() -> Vec<PathBuf> {
    let shm = PathBuf::from("/dev/shm");
    let mut places = vec![std::env::temp_dir()];
    places.extend(shm.is_dir().then_some(shm));
    places
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

fn replay_text(text: &str) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("s.lk");
    fs::write(&script, text).unwrap();
    replay_files(&[script], &[])
}

/// The scripts of a folder that do or do not set the lease break time, which only root can.
fn scripts_in(folder: &Path, break_time: bool) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "lk"))
        .filter(|path| fs::read_to_string(path).unwrap().contains("\nbreak-time") == break_time)
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

#[track_caller]
fn assert_all_pass(files: &[PathBuf], run: &Run) {
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    assert_eq!(run.err, "");
    let last = run.out.lines().last().unwrap();
    assert_eq!(last, format!("{} passed, 0 failed", files.len()));
    assert!(
        run.out
            .lines()
            .rev()
            .skip(1)
            .all(|line| line.starts_with("PASS "))
    );
}

#[test]
fn every_script_passes_on_a_kernel_directory() {
    let files = scripts_in(&scripts(), false);
    for place in file_systems() {
        assert_all_pass(&files, &replay_files_in(&place, &files, &[]));
    }
}

#[test]
fn every_script_passes_by_the_clock_alone() {
    // All but those that block dozens of calls, each of which takes its tenth of a second.
    let mut files = scripts_in(&scripts(), false);
    files.retain(|file| !file.to_string_lossy().contains("/dl-0"));
    assert_all_pass(&files, &replay_files(&files, &["--strict"]));
}

#[test]
fn what_only_the_kernel_does_is_as_the_scripts_say() {
    let files = scripts_in(&scripts().join("kernel-only"), false);
    assert_all_pass(&files, &replay_files(&files, &[]));
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn leases_time_out_as_the_scripts_say() {
    let setting = "/proc/sys/fs/lease-break-time";
    let files = scripts_in(&scripts(), true);
    let before = fs::read_to_string(setting).unwrap();
    for place in file_systems() {
        assert_all_pass(&files, &replay_files_in(&place, &files, &[]));
    }
    assert_eq!(fs::read_to_string(setting).unwrap(), before);

    // Also after a failure, and when the run is killed in the middle of a script.
    let run = replay_text("break-time 7\nA open f d r\nA close f => EIO\n");
    assert_eq!(run.code, Some(1), "{}{}", run.out, run.err);
    assert_eq!(fs::read_to_string(setting).unwrap(), before);
    kill_in_the_middle("break-time 7\n", "KILL", |_| {
        assert_eq!(fs::read_to_string(setting).unwrap().trim(), "7");
    });
    assert_eq!(fs::read_to_string(setting).unwrap(), before);
}

#[test]
fn a_folder_stands_for_its_scripts() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("b.lk"), "A fork B").unwrap();
    fs::write(folder.path().join("a.lk"), "A fork B => EAGAIN").unwrap();
    fs::write(folder.path().join("notes.txt"), "no script").unwrap();
    let run = replay_files(&[folder.path().to_owned()], &[]);
    assert_eq!(
        run.out,
        "FAIL a:1 expected EAGAIN, got ok\nPASS b\n1 passed, 1 failed\n"
    );
    assert_eq!((run.code, run.err.as_str()), (Some(1), ""));
}

#[test]
fn explain_shows_each_step_and_what_it_left() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("s.lk");
    let text = "A open f d rw\nB open f d rw\nA flock f exclusive\nB flock f shared wait => blocked\nA exit\nB done";
    fs::write(&script, text).unwrap();
    let run = replay_files(&[script], &["--explain"]);
    let expected = "\
s:
   1  A open f d rw  => ok
   2  B open f d rw  => ok
   3  A flock f exclusive  => ok
          held d: flock write A
   4  B flock f shared wait  => blocked
          held d: flock write A
          waiting d: flock read B
   5  A exit  => ok
          held d: flock read B
   6  B done  => ok
          held d: flock read B
PASS s
1 passed, 0 failed
";
    assert_eq!(run.out, expected);
}

#[test]
fn what_makes_no_sense_fails_the_script_at_its_line() {
    let table = [
        (
            "A open f d r\nA exit\nA close f",
            "FAIL s:3 A is dead: its process exited in line 2",
        ),
        (
            "A open f d r\nA close f\nA flock f shared",
            "FAIL s:3 descriptor `f` of A was closed in line 2",
        ),
        (
            "A open f d rw\nB open f d rw\nA flock f exclusive\nB flock f shared wait => blocked\n\
             B posix f read 0,0 wait => blocked",
            "FAIL s:5 B has a call out since line 4: `B done` must collect its result before another call",
        ),
    ];
    for (text, message) in table {
        let run = replay_text(text);
        assert_eq!(run.out, format!("{message}\n0 passed, 1 failed\n"));
        assert_eq!((run.code, run.err.as_str()), (Some(1), ""));
    }
}

#[test]
fn what_is_no_script_is_not_run_nor_is_anything_else() {
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good.lk");
    let bad = folder.path().join("bad.lk");
    fs::write(&good, "A exit").unwrap();
    fs::write(&bad, "A open f d r\nA look f").unwrap();
    let run = replay_files(&[good, bad.clone()], &[]);
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""));
    let place = format!("error: {}:2:3: expected a verb (", bad.display());
    assert!(run.err.starts_with(&place), "{}", run.err);
    assert!(run.err.ends_with("found `look`\n"), "{}", run.err);

    let run = replay_files(&[folder.path().join("none.lk")], &[]);
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""));
    assert!(run.err.contains("none.lk: No such file"), "{}", run.err);

    let nothing = tempfile::tempdir().unwrap();
    let run = replay_files(&[nothing.path().to_owned()], &[]);
    assert_eq!(run.code, Some(2));
    assert!(run.err.contains("has no *.lk files"), "{}", run.err);
}

fn replay_on(place: &Path, text: &str) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("s.lk");
    fs::write(&script, text).unwrap();
    finish(
        lockkeeper()
            .arg("replay")
            .arg("--on")
            .arg(place)
            .arg(&script)
            .output()
            .unwrap(),
    )
}

#[test]
fn a_place_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for (place, advice) in [
        (folder.path().join("none"), ""),
        (file, ""),
        ("libary".into(), "; did you mean `library`?"),
    ] {
        let run = replay_on(&place, "A exit");
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{}", run.err);
        let what = format!(
            "error: {} is neither `library` nor a folder{advice}\n",
            place.display()
        );
        assert_eq!(run.err, what);
    }
}

#[test]
fn a_script_without_steps_is_no_run_that_passes() {
    for text in ["", "\n\n", "# only a remark\n"] {
        let run = replay_text(text);
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{}", run.err);
        assert!(run.err.contains("no steps"), "{}", run.err);
    }
}

#[test]
fn a_place_where_nothing_can_be_created_is_named() {
    // Nobody, root included, can create a folder there.
    let run = replay_on(Path::new("/proc/self"), "A exit");
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{}", run.err);
    assert!(
        run.err
            .starts_with("error: cannot make a folder for the script's files in /proc/"),
        "{}",
        run.err
    );
}

/// Runs a script that blocks for ever, ends it by a signal, and returns once nothing of it is left.
fn kill_in_the_middle(head: &str, signal: &str, look: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    let place = tempfile::tempdir().unwrap();
    let script = folder.path().join("s.lk");
    // A cycle of OFD locks, which nobody refuses: each waits for the other.
    let text = format!(
        "{head}A open f d rw\nB open f d rw\nA fork C\nA exit\nC ofd f write 0,1\nB ofd f write 1,1\n\
         C ofd f write 1,1 wait => blocked\nB ofd f write 0,1 wait => blocked\npass 600\n"
    );
    fs::write(&script, text).unwrap();
    let mut run = lockkeeper()
        .arg("replay")
        .arg("--on")
        .arg(place.path())
        .arg(&script)
        .spawn()
        .unwrap();
    let waits = || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let folder = fs::read_dir(place.path()).unwrap().next()?.ok()?.path();
        let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(folder.join("d")).ok()?);
        let waiting = locks.lines().filter(|line| {
            line.contains("->") && line.contains("OFDLCK") && line.contains(&format!(":{inode} "))
        });
        (waiting.count() == 2).then_some(folder)
    };
    let begin = Instant::now();
    let its_folder = loop {
        if let Some(folder) = waits() {
            break folder;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "it does not come to wait"
        );
        std::thread::sleep(Duration::from_millis(5));
    };
    look(&its_folder);
    let pids = processes_with(&its_folder);
    assert!(pids.len() >= 2, "{pids:?}");
    let status = Command::new("kill")
        .args(["-s", signal, &run.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
    run.wait().unwrap();
    let begin = Instant::now();
    while !is_empty(place.path()) || pids.iter().any(|pid| is_alive(*pid)) {
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "something is left over"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The processes that have a file of the folder open.
fn processes_with(folder: &Path) -> Vec<u32> {
    let has_one = |pid: &u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
        descriptors.is_ok_and(|mut descriptors| {
            descriptors.any(|descriptor| {
                descriptor
                    .and_then(|descriptor| fs::read_link(descriptor.path()))
                    .is_ok_and(|file| file.starts_with(folder))
            })
        })
    };
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(has_one)
        .collect()
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
}

#[test]
fn nothing_is_left_when_a_run_is_interrupted_or_killed() {
    for signal in ["INT", "TERM", "KILL"] {
        kill_in_the_middle("", signal, |_| {});
    }
}

#[test]
fn a_call_that_hangs_is_reported_and_its_process_killed() {
    let place = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("s.lk");
    fs::write(&script, "A open f d rw\npass 1\nA close f\n").unwrap();
    let run = lockkeeper()
        .arg("replay")
        .arg("--on")
        .arg(place.path())
        .arg(&script)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // A stopped process answers as little as one that hangs in the kernel.
    let begin = Instant::now();
    let pid = loop {
        let inside = fs::read_dir(place.path()).unwrap().next();
        let pids = inside.map(|entry| processes_with(&entry.unwrap().path()));
        if let Some([pid]) = pids.as_deref() {
            break *pid;
        }
        assert!(begin.elapsed() < Duration::from_secs(1), "A is not found");
    };
    let status = Command::new("kill")
        .args(["-s", "STOP", &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
    let run = finish(run.wait_with_output().unwrap());
    assert_eq!(
        run.out,
        format!(
            "FAIL s:3 A hangs in `close f`: process {pid} has been killed\n0 passed, 1 failed\n"
        )
    );
    assert_eq!(run.code, Some(1));
    assert!(!is_alive(pid) && is_empty(place.path()));
}
