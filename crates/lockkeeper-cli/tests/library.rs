//! `lockkeeper replay` on the library, and `lockkeeper differ`.

#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

fn lockkeeper(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
        .stdin(Stdio::null())
        .args(arguments)
        .output()
        .unwrap()
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn scripts(folder: &str) -> PathBuf {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scripts");
    scripts.join(folder)
}

/// Replays a text on the library.
fn replay(text: &str, options: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("s.lk");
    fs::write(&script, text).unwrap();
    let mut arguments = vec!["replay"];
    arguments.extend(options);
    arguments.push(script.to_str().unwrap());
    lockkeeper(&arguments)
}

#[test]
fn every_script_passes_on_the_library() {
    for folder in ["", "library-only"] {
        let folder = scripts(folder);
        let run = lockkeeper(&["replay", folder.to_str().unwrap()]);
        assert_eq!(run.status.code(), Some(0), "{}{}", out(&run), err(&run));
        assert!(out(&run).ends_with(" passed, 0 failed\n"), "{}", out(&run));
    }
}

#[test]
fn the_library_refuses_what_linux_does_not_look_for() {
    let folder = scripts("kernel-only");
    let run = lockkeeper(&["replay", folder.to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(1), "{}{}", out(&run), err(&run));
    let failed = out(&run).lines().filter(|line| line.starts_with("FAIL "));
    let mut failed = failed.peekable();
    assert!(failed.peek().is_some());
    for line in failed {
        assert!(line.ends_with("expected blocked, got EDEADLK"), "{line}");
    }
}

#[test]
fn explain_draws_locks_waiters_and_ranges() {
    let text = "\
A open f d rw
B open f d rw
C open f d rw
A posix f read 0,10
B flock f shared
B fork D
B ofd f write 5,10 wait => blocked
C posix f write 0,1 wait => blocked
D posix f write 20,0
";
    let run = replay(text, &["--explain"]);
    let last = "
   9  D posix f write 20,0  => ok
          d                      0     1     5     10    15    20
          posix read 0,10 A      ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
          ├─ ofd write 5,10 B                ════════════
          └─ posix write 0,1 C   ══════
          posix write 20,0 D                                   ██▶
          flock read B
PASS s
1 passed, 0 failed
";
    assert!(out(&run).ends_with(last), "{}", out(&run));
}

#[test]
fn a_script_of_ten_thousand_lines_replays_on_the_library() {
    let mut text = String::new();
    for actor in 0..100 {
        let _ = writeln!(text, "P{actor} open f d{} rw", actor % 10);
    }
    // Each waits for the one before on the same file, and lets the next go.
    for round in 0..110 {
        for file in 0..10 {
            let actors: Vec<usize> = (0..9).map(|member| file + 10 * member).collect();
            let byte = round % 7;
            let _ = writeln!(text, "P{} posix f write {byte},2 wait", actors[0]);
            for actor in &actors[1..3] {
                let _ = writeln!(text, "P{actor} posix f read 0,0 wait => blocked");
            }
            let _ = writeln!(text, "P{} ofd f read 50,{}", actors[3], round + 1);
            let _ = writeln!(text, "P{} posix f unlock 0,0", actors[0]);
            for actor in &actors[1..3] {
                let _ = writeln!(text, "P{actor} done\nP{actor} posix f unlock 0,0");
            }
        }
    }
    let lines = text.lines().count();
    assert!(lines >= 9_000, "{lines}");
    for file in 0..10 {
        let _ = writeln!(text, "held d{file} => ofd read 50,110 P{}", file + 30);
    }
    while text.lines().count() < 10_000 {
        text.push_str("waiting d0 => none\n");
    }
    let begin = Instant::now();
    let run = replay(&text, &[]);
    println!("10,000 lines in {:?}", begin.elapsed());
    assert_eq!(out(&run), "PASS s\n1 passed, 0 failed\n", "{}", err(&run));
}

#[test]
fn what_is_wrong_with_a_script_is_said_with_its_line() {
    let waits =
        "A open f d rw\nB open f d rw\nA flock f exclusive\nB flock f shared wait => blocked\n";
    let two_results = format!("{waits}B flock f shared wait => blocked");
    let table: &[(&str, i32, &str)] = &[
        ("A open f d r\nA lokc f", 2, "s.lk:2:3: expected a verb ("),
        ("A open f d", 2, "s.lk:1:"),
        ("A posix f write 1;2", 2, "s.lk:1:"),
        (
            "A exit\nA open f d r",
            1,
            "FAIL s:2 A is dead: its process exited in line 1",
        ),
        (
            "A open f d r\nA close f\nA close f",
            1,
            "FAIL s:3 descriptor `f` of A was closed in line 2",
        ),
        (
            two_results.as_str(),
            1,
            "FAIL s:5 B has a call out since line 4",
        ),
        ("A done", 1, "FAIL s:1 A has no call out"),
        (
            "A open f d r\nA lease f read\nbreak-time 7",
            1,
            "FAIL s:3 the library's lease break time cannot change while something is locked",
        ),
    ];
    for (text, code, message) in table {
        let run = replay(text, &[]);
        assert_eq!(run.status.code(), Some(*code), "{text}");
        let said = if *code == 2 { err(&run) } else { out(&run) };
        assert!(said.contains(message), "{text}: {said}");
        let silent = if *code == 2 { out(&run) } else { err(&run) };
        assert_eq!(silent, "", "{text}");
    }
}

#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_place_or_a_setting_that_is_not_allowed_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("lockkeeper");
    fs::copy(env!("CARGO_BIN_EXE_lockkeeper"), &program).unwrap();
    let script = folder.path().join("s.lk");
    fs::write(&script, "break-time 7\nA exit\n").unwrap();
    let closed = folder.path().join("closed");
    let open = folder.path().join("open");
    for (place, mode) in [(&closed, 0o700), (&open, 0o777)] {
        fs::create_dir(place).unwrap();
        fs::set_permissions(place, Permissions::from_mode(mode)).unwrap();
    }
    let as_nobody = |place: &Path| {
        let mut command = Command::new(&program);
        command.args(["replay", "--on"]).arg(place).arg(&script);
        command.uid(65534).gid(65534).output().unwrap()
    };
    let run = as_nobody(&closed);
    assert_eq!(run.status.code(), Some(2), "{}{}", out(&run), err(&run));
    let what = "error: cannot make a folder for the script's files in ";
    assert!(err(&run).starts_with(what), "{}", err(&run));
    assert!(err(&run).contains("Permission denied"), "{}", err(&run));
    let run = as_nobody(&open);
    assert_eq!(run.status.code(), Some(1), "{}{}", out(&run), err(&run));
    let what = "FAIL s:1 cannot set /proc/sys/fs/lease-break-time (it needs root): ";
    assert!(out(&run).starts_with(what), "{}", out(&run));
}

fn differ(seed: &str, on: &Path, options: &[&str]) -> Output {
    let mut arguments = vec!["differ", "--seed", seed, "--on", on.to_str().unwrap()];
    arguments.extend(options);
    lockkeeper(&arguments)
}

#[test]
fn the_directory_and_the_library_agree_and_the_rules_used_are_counted() {
    let place = tempfile::tempdir().unwrap();
    let run = differ("7", place.path(), &["--operations", "1500"]);
    assert_eq!(run.status.code(), Some(0), "{}{}", out(&run), err(&run));
    let lines: Vec<&str> = out(&run).lines().collect();
    assert_eq!(lines[0], "seed 7");
    assert!(lines[1].contains(" operations in "), "{}", lines[1]);
    assert!(lines[2].starts_with("accepted as free: "), "{}", lines[2]);
    assert!(lines[3].starts_with("left out as races: "), "{}", lines[3]);
    assert_eq!(lines.last(), Some(&"no divergence"));
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_divergence_is_shrunk_kept_and_shown_from_both_sides() {
    let place = tempfile::tempdir().unwrap();
    let kept = tempfile::tempdir().unwrap();
    // First come, first served is not Linux's way: newcomers queue.
    let keep = ["--fairness", "0", "--keep", kept.path().to_str().unwrap()];
    let run = differ("1", place.path(), &keep);
    assert_eq!(run.status.code(), Some(1), "{}{}", out(&run), err(&run));
    let files: Vec<PathBuf> = fs::read_dir(kept.path())
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    let [file] = files.as_slice() else {
        panic!("{files:?}");
    };
    assert!(out(&run).ends_with(&format!("kept as {}\n", file.display())));
    let text = fs::read_to_string(file).unwrap();
    assert!(text.starts_with("# found by lockkeeper differ "), "{text}");
    assert!(text.contains("#   library "), "{text}");
    assert!(out(&run).contains(&text), "{}", out(&run));

    // The results are the directory's, so it passes there; and on the library that is as Linux is.
    let file = file.to_str().unwrap();
    let on = place.path().to_str().unwrap();
    for options in [&["--on", on][..], &[]] {
        let mut arguments = vec!["replay"];
        arguments.extend(options);
        arguments.push(file);
        let run = lockkeeper(&arguments);
        assert_eq!(run.status.code(), Some(0), "{}{text}", out(&run));
    }
}

#[test]
fn what_differ_cannot_use_is_named() {
    let place = tempfile::tempdir().unwrap();
    let none = place.path().join("none");
    let none = none.to_str().unwrap();
    let on = place.path().to_str().unwrap();
    let table = [
        (&["--on", none][..], "No such file or directory"),
        (&["--on", on, "--keep", none], "it is no directory"),
        (&["--on", on, "--actors", "0"], "not a number from 1 to 64"),
        (&["--on", on, "--operations", "0"], "invalid value '0'"),
        (
            &["--on", on, "--fairness", "some"],
            "neither `unlimited` nor",
        ),
        (&[], "--on <DIR>"),
    ];
    for (options, message) in table {
        let mut arguments = vec!["differ"];
        arguments.extend(options);
        let run = lockkeeper(&arguments);
        assert_eq!(run.status.code(), Some(2), "{options:?}");
        assert!(err(&run).contains(message), "{options:?}: {}", err(&run));
    }
}
