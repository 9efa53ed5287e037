//! `lockkeeper bench`: small runs from end to end, and all that it must refuse. Counts, never times.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

mod support;

use lockkeeper_bench::cache_lines::from_trace;
use support::{Mount, said};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// A temporary folder, and runs in it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let folder = tempfile::Builder::new()
            .prefix("lockkeeper-test-")
            .tempdir();
        Place(folder.expect("temp folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .arg("bench")
            .args(arguments)
            .current_dir(self.0.path())
            .stdin(Stdio::null());
        command
    }

    fn bench(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("runs")
    }

    /// Runs, which must do, and returns the result file's document.
    fn measure(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.bench(&[arguments, QUICK, &["--json"]].concat());
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).expect("one JSON document")
    }

    /// What is in the folder.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("readable");
        let mut names: Vec<_> = entries
            .map(|entry| {
                entry
                    .expect("readable")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    }
}

const QUICK: &[&str] = &["--rounds", "1", "--seconds", "0.02", "--warm-up", "0.005"];

fn values(cell: &serde_json::Value, metric: &str) -> Vec<f64> {
    let values = cell["metrics"][metric].as_array();
    let values = values.unwrap_or_else(|| panic!("no {metric} in {cell}"));
    values
        .iter()
        .filter_map(serde_json::Value::as_f64)
        .collect()
}

#[test]
fn every_load_runs_on_the_library_and_the_kernel() {
    let place = Place::new();
    fs::create_dir(place.path("files")).expect("made");
    for level in ["threads", "processes"] {
        let loads = [
            "lock1", "lock2", "readers", "ranges", "herd", "flock", "ofd", "lease",
        ];
        let common = [
            "--tasks",
            "1,3",
            "--as",
            level,
            "--on",
            "library,kernel=files",
            "--held",
            "0,50",
        ];
        let result = place.measure(&[&loads[..], &common].concat());
        let cells = result["results"].as_array().expect("a list");
        // Two numbers of tasks on two targets, and ranges beside two numbers of held ones.
        assert_eq!(cells.len(), (loads.len() + 1) * 4, "{level}");
        let mut at_work = HashSet::new();
        for cell in cells {
            let what = format!(
                "{} {} {level} on {}",
                cell["load"], cell["tasks"], cell["target"]
            );
            if cell["load"] == "herd" {
                assert!(values(cell, "time_to_last_ns")[0] > 0.0, "{what}");
                // All slept when the holder let go: one wake-up a waiter, or the one switch that it took to sleep;
                // and one release more than there are waiters.
                let waiters = cell["tasks"].as_f64().expect("a number");
                let wakes = values(cell, "wake_ups_per_release")[0];
                assert!(wakes >= waiters / (waiters + 1.0) - 1e-9, "{what}: {wakes}");
            } else {
                let metric = match level {
                    "threads" => "per_thread_ops",
                    _ => "per_process_ops",
                };
                if did_nothing(cell) {
                    continue;
                }
                at_work.insert(format!("{} on {}", cell["load"], cell["target"]));
                assert!(values(cell, metric)[0] > 0.0, "{what}");
                if cell["tasks"] == 1 {
                    assert_eq!(values(cell, "scalability"), [1.0], "{what}");
                    assert_eq!(values(cell, "least_served"), [1.0], "{what}");
                }
            }
            if cell["notes"].to_string().contains("no wait was measured") {
                assert!(cell["metrics"]["wait_max_ns"].is_null(), "{cell}");
                continue;
            }
            assert!(
                values(cell, "wait_max_ns")[0] >= values(cell, "wait_p50_ns")[0] * 0.99,
                "{what}"
            );
        }
        // All but the herd, on both; one number of tasks will have had its turn.
        assert_eq!(at_work.len(), (loads.len() - 1) * 2, "{at_work:?}");
    }
    assert_eq!(
        fs::read_dir(place.path("files")).expect("readable").count(),
        0
    );
}

/// A busy machine may give a task no turn in the short time of a test; the result says so.
fn did_nothing(cell: &serde_json::Value) -> bool {
    let said = cell["notes"].to_string().contains("nothing was done");
    assert_eq!(values(cell, "ops")[0] == 0.0, said, "{cell}");
    said
}

#[test]
fn a_chain_within_the_kernel_s_depth_is_found_and_the_library_finds_any() {
    let place = Place::new();
    fs::create_dir(place.path("files")).expect("made");
    let chain = [
        "chain",
        "--tasks",
        "2,40",
        "--as",
        "processes",
        "--on",
        "library,kernel=files",
    ];
    let result = place.measure(&chain);
    let cells = result["results"].as_array().expect("a list");
    for (cell, found) in cells.iter().zip([1.0, 1.0, 1.0, 0.0]) {
        // Linux gives up after ten steps, and lets the last one wait: it is freed all the same.
        assert_eq!(values(cell, "deadlock_found"), [found], "{cell}");
    }
    assert_eq!(
        fs::read_dir(place.path("files")).expect("readable").count(),
        0
    );
}

#[test]
fn each_fairness_setting_is_a_target_of_its_own() {
    let place = Place::new();
    let result = place.measure(&[
        "lock2",
        "--tasks",
        "3",
        "--on",
        "library",
        "--fairness",
        "first-come,bound 10,unlimited",
    ]);
    let cells = result["results"].as_array().expect("a list");
    let names: Vec<_> = cells
        .iter()
        .map(|cell| cell["target"].as_str().expect("a name"))
        .collect();
    assert_eq!(
        names,
        [
            "library first-come",
            "library bound 10",
            "library unlimited"
        ]
    );
}

#[test]
fn a_result_is_drawn_and_compared() {
    let place = Place::new();
    let run = place.bench(
        &[
            &["lock1", "--on", "library", "--tasks", "1,2", "-o", "a.json"],
            QUICK,
        ]
        .concat(),
    );
    assert!(run.status.success(), "{}", said(&run));
    assert!(said(&run).contains("lock1 as threads"), "{}", said(&run));
    let none = place.bench(&["plot", "a.json", "-o", "a.svg", "--on", "kernel"]);
    assert_eq!(none.status.code(), Some(2), "{}", said(&none));
    for picture in ["a.svg", "a.png"] {
        let plot = place.bench(&["plot", "a.json", "-o", picture, "--on", "library"]);
        assert!(plot.status.success(), "{}", said(&plot));
        assert!(fs::metadata(place.path(picture)).expect("is there").len() > 1000);
    }
    // Known rates, as a busy machine may have given a task no turn.
    let text = fs::read_to_string(place.path("a.json")).expect("readable");
    let mut result: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for (name, ops) in [("a.json", 10.0), ("worse.json", 1.0)] {
        for cell in result["results"].as_array_mut().expect("a list") {
            cell["metrics"]["per_thread_ops"] = serde_json::json!([ops]);
        }
        fs::write(place.path(name), result.to_string()).expect("written");
    }
    let same = place.bench(&["compare", "a.json", "a.json", "--threshold", "0"]);
    assert!(same.status.success(), "{}", said(&same));
    assert!(
        said(&same).contains("GEO-MEAN per_thread_ops of 2"),
        "{}",
        said(&same)
    );
    let compared = place.bench(&["compare", "a.json", "worse.json"]);
    assert_eq!(compared.status.code(), Some(1), "{}", said(&compared));
    assert!(
        said(&compared).contains("REGRESSION"),
        "{}",
        said(&compared)
    );
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason_and_leaves_nothing() {
    let place = Place::new();
    fs::write(place.path("file"), "").expect("written");
    fs::create_dir(place.path("folder")).expect("made");
    fs::write(place.path("text.json"), "ops: 12").expect("written");
    fs::write(place.path("other.json"), r#"{"format": "fio"}"#).expect("written");
    let newer = r#"{"format": "lockkeeper-bench", "version": 99, "results": []}"#;
    fs::write(place.path("newer.json"), newer).expect("written");
    let endless = fs::File::create(place.path("endless")).expect("made");
    endless.set_len(1 << 40).expect("a file with a hole");
    let before = place.names();
    for (arguments, reason) in [
        (&["lock1", "--tasks", "0"][..], "at least 1"),
        (&["lock1", "--tasks", "4..2"], "ends before it begins"),
        (&["lock1", "--tasks", "many"], "no number of tasks"),
        (&["lock3"], "there is no load `lock3`"),
        (&["lock1", "--as", "fibres"], "`processes` or `threads`"),
        (&["lock1", "--on", "nowhere"], "a target is"),
        (&["lock1", "--on", "kernel=missing"], "No such file"),
        (&["lock1", "--on", "kernel=file"], "Not a directory"),
        (&["lock1", "--on", "kernel=/proc"], "cannot use /proc"),
        (
            &["lock1", "--on", "mount=folder"],
            "nothing is mounted at folder",
        ),
        (
            &["lock1", "--on", "kernel=a\u{1b}[31m"],
            "control characters",
        ),
        (&["lock1", "--on", "library,library"], "named twice"),
        (
            &["lock1", "--on", "kernel", "--fairness", "first-come"],
            "a setting of the library",
        ),
        (&["lock1", "--fairness", "fair"], "fairness is"),
        (&["lock1", "--held", "10"], "is for the load `ranges`"),
        (&["ranges", "--held", "100001"], "100001"),
        (&["lock1", "--rounds", "0"], "0 rounds"),
        (&["lock1", "--seconds", "0"], "0.001 to 3600"),
        (&["lock1", "--seconds", "nan"], "0.001 to 3600"),
        (&["lock1", "--answer-within=-1"], "--answer-within"),
        (
            &["chain", "--tasks", "1", "--as", "processes"],
            "at least 2 tasks",
        ),
        (
            &["chain", "--tasks", "2", "--as", "threads"],
            "use `--as processes`",
        ),
        (
            &["lock1", "-o", "missing/a.json"],
            "cannot write missing/a.json",
        ),
        (&["lock1", "-o", "folder"], "cannot write folder"),
        (&["lock1", "-o", "/dev/null"], "no regular file"),
        (
            &["plot", "missing.json", "-o", "a.svg"],
            "cannot read missing.json",
        ),
        (&["plot", "text.json", "-o", "a.svg"], "is not JSON"),
        (&["model", "-o", "a.gif"], "neither .svg nor .png"),
        (&["model", "--rounds", "0"], "0 rounds"),
        (&["report", "-o", "folder"], "is there already"),
        (
            &["report", "-o", "folder", "--force"],
            "is not a report alone",
        ),
        (
            &["report", "-o", "missing/report"],
            "cannot write missing/report",
        ),
        (
            &["report", "-o", "new", "--mount", "missing"],
            "cannot use missing",
        ),
        (&["plot", "other.json", "-o", "a.svg"], "is not a result"),
        (&["plot", "newer.json", "-o", "a.svg"], "version 99"),
        (&["compare", "newer.json", "newer.json"], "version 99"),
        (&["compare", "endless", "endless"], "larger than any result"),
        (&["compare", "text.json", "other.json"], "is not JSON"),
        (&["compare", "a", "b", "--threshold=-1"], "--threshold"),
    ] {
        let output = place.bench(arguments);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?}: {}",
            said(&output)
        );
        assert!(
            said(&output).contains(reason),
            "{arguments:?}: {}",
            said(&output)
        );
        assert_eq!(place.names(), before, "{arguments:?}");
    }
}

/// The processes that `parent` started.
fn processes_of(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // After the name, which may have anything in it: the state, and the parent.
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        rest.split(' ').nth(1) == Some(&parent.to_string())
    };
    let entries = fs::read_dir("/proc").expect("readable").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_child).collect()
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_run_that_is_ended_leaves_no_process_and_no_file() {
    use rustix::process::{Pid, Signal, kill_process};
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL] {
        let place = Place::new();
        fs::create_dir(place.path("files")).expect("made");
        let mut run = place
            .command(&[
                "lock2",
                "--tasks",
                "3",
                "--as",
                "processes",
                "--on",
                "kernel=files",
                "--seconds",
                "60",
                "-o",
                "a.json",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("starts");
        wait_until("three tasks", || processes_of(run.id()).len() == 3);
        let tasks = processes_of(run.id());
        kill_process(Pid::from_child(&run), signal).expect("it runs");
        let status = run.wait().expect("it ends");
        assert_eq!(place.names(), ["files"], "{signal:?}");
        wait_until("the end of the tasks", || {
            tasks
                .iter()
                .all(|pid| !Path::new(&format!("/proc/{pid}/exe")).exists())
        });
        let left = || fs::read_dir(place.path("files")).expect("readable").count();
        if signal == Signal::KILL {
            assert_eq!(left(), 1, "it had no time to remove its files");
            place.measure(&["lock1", "--tasks", "1", "--on", "kernel=files"]);
        } else {
            assert_eq!(status.code(), Some(2), "{signal:?}");
        }
        assert_eq!(left(), 0, "{signal:?}");
    }
}

#[test]
fn a_program_started_by_nohup_outlives_its_terminal() {
    use rustix::process::{Pid, Signal, kill_process};
    let place = Place::new();
    let script =
        "trap '' HUP; exec \"$0\" bench lock1 --tasks 1 --on library --rounds 1 --seconds 1";
    let mut run = Command::new("sh")
        .args(["-c", script, PROGRAM])
        .current_dir(place.path(""))
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    wait_until("a task", || processes_of(run.id()).len() == 1);
    kill_process(Pid::from_child(&run), Signal::HUP).expect("it runs");
    assert!(run.wait().expect("it ends").success());
}

#[test]
fn limits_of_the_system_are_named_with_what_to_do() {
    let place = Place::new();
    let files = ["--on", "kernel=.", "--rounds", "1", "--seconds", "0.02"];
    for level in ["threads", "processes"] {
        let run = Command::new("sh")
            .args(["-c", "ulimit -n 40; exec \"$0\" \"$@\"", PROGRAM])
            .args(["bench", "lock1", "--tasks", "100", "--as", level])
            .args(files)
            .current_dir(place.path(""))
            .output()
            .expect("runs");
        assert_eq!(run.status.code(), Some(2), "{level}: {}", said(&run));
        assert!(said(&run).contains("ulimit -n"), "{level}: {}", said(&run));
        assert_eq!(place.names(), [""; 0], "{level}");
    }
}

#[test]
fn on_one_cpu_there_is_no_model_and_everything_else() {
    let place = Place::new();
    let allowed = rustix::thread::sched_getaffinity(None).expect("a mask");
    let one = (0..1024).find(|&cpu| allowed.is_set(cpu)).expect("a cpu");
    let on_one = |arguments: &[&str]| {
        Command::new("taskset")
            .args(["-c", &one.to_string(), PROGRAM, "bench"])
            .args(arguments)
            .current_dir(place.path(""))
            .output()
            .expect("taskset runs")
    };
    let run = on_one(&[&["lock1", "lock2"][..], QUICK].concat());
    assert!(run.status.success(), "{}", said(&run));
    let model = on_one(&["model", "--rounds", "1", "--seconds", "0.01"]);
    assert_eq!(model.status.code(), Some(2), "{}", said(&model));
    assert!(said(&model).contains("two cpus"), "{}", said(&model));
}

#[test]
fn a_reader_that_has_gone_is_the_end() {
    let place = Place::new();
    let mut run = place
        .command(&[&["lock1", "--tasks", "1", "--on", "library"][..], QUICK].concat())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    drop(run.stdout.take());
    assert!(run.wait().expect("it ends").success());
}

/// A run on a mount whose server gets a signal when the tasks are at work: how it ended, and what it said.
fn signalled_on_the_way(mount: &Mount, place: &Place, signal: rustix::process::Signal) -> Output {
    let target = format!("mount={}", mount.path("").display());
    let run = place
        .command(&[
            "lock1",
            "--tasks",
            "2",
            "--as",
            "processes",
            "--on",
            &target,
        ])
        .args(["--seconds", "1", "--answer-within", "0.5", "-o", "a.json"])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    wait_until("two tasks", || processes_of(run.id()).len() == 2);
    mount.signal(signal);
    run.wait_with_output().expect("it ends")
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn a_mount_that_hangs_or_dies_on_the_way_is_said_to() {
    use rustix::process::Signal;
    let place = Place::new();
    let mount = Mount::new();
    let output = signalled_on_the_way(&mount, &place, Signal::STOP);
    mount.signal(Signal::CONT);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(
        said(&output).contains("did not answer within"),
        "{}",
        said(&output)
    );
    assert_eq!(place.names(), [""; 0]);
    // What could not be removed, the next run removes.
    let target = format!("mount={}", mount.path("").display());
    place.measure(&["lock1", "--tasks", "1", "--on", &target]);
    let left = fs::read_dir(mount.path("")).expect("it answers").count();
    assert_eq!(left, 0);
    let output = signalled_on_the_way(&mount, &place, Signal::KILL);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("nobody serves"), "{}", said(&output));
    assert_eq!(place.names(), [""; 0]);
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn a_mount_is_a_target() {
    let mount = Mount::new();
    let place = Place::new();
    let target = format!("library,mount={}", mount.path("").display());
    let run = [
        "lock1", "lock2", "flock", "ofd", "ranges", "readers", "herd", "--tasks", "1,3", "--on",
        &target,
    ];
    for level in ["threads", "processes"] {
        let result = place.measure(&[&run[..], &["--as", level]].concat());
        let cells = result["results"].as_array().expect("a list");
        assert_eq!(cells.len(), 7 * 4);
        let loops = cells.iter().filter(|cell| cell["load"] != "herd");
        assert!(loops.filter(|cell| !did_nothing(cell)).count() > 0);
    }
    mount.nothing_left();
}

#[test]
#[ignore = "needs FUSE: run by cargo xtask test"]
fn a_mount_that_does_not_answer_is_said_to() {
    use rustix::process::Signal;
    let mount = Mount::new();
    let place = Place::new();
    let target = format!("mount={}", mount.path("").display());
    mount.signal(Signal::STOP);
    let output = place.bench(&[
        "lock1",
        "--on",
        &target,
        "--answer-within",
        "0.5",
        "-o",
        "a.json",
    ]);
    mount.signal(Signal::CONT);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(
        said(&output).contains("did not answer within 0.5 s"),
        "{}",
        said(&output)
    );
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn a_report_is_a_page_and_its_result() {
    let place = Place::new();
    let quick = ["--rounds", "1", "--seconds", "0.01", "--most-tasks", "2"];
    let run = place.bench(&[&["report", "-o", "report"][..], &quick].concat());
    assert!(run.status.success(), "{}", said(&run));
    assert_eq!(place.names(), ["report"]);
    let page = fs::read_to_string(place.path("report/report.html")).expect("readable");
    for part in [
        "<svg",
        "Machine",
        "Fairness",
        "lock2 as processes",
        "chain as processes",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let text = fs::read_to_string(place.path("report/results.json")).expect("readable");
    let result: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let model = &result["model"];
    let cells = result["results"].as_array().expect("a list");
    let mut loops = cells
        .iter()
        .filter(|cell| cell["load"] != "herd" && cell["load"] != "chain");
    // Other work may have had both processors in a turn, so that there is nothing to model.
    let is_busy = loops.any(did_nothing);
    let has_two_cpus = result["machine"]["cpus"].as_u64() >= Some(2);
    if has_two_cpus && !is_busy {
        assert_eq!(model["checks"].as_array().expect("a list").len(), 8);
        assert!(model["costs"]["remote_line"].as_f64() > Some(0.0));
    } else if !has_two_cpus {
        assert!(model.is_null());
    }
}

#[test]
#[ignore = "needs valgrind: run by cargo xtask test"]
fn a_lock_and_an_unlock_write_no_line_that_another_file_s_touch() {
    let touched = |how: &str| {
        let mut traced = Command::new("valgrind")
            .args(["--tool=lackey", "--trace-mem=yes", "--log-fd=2", PROGRAM])
            .args(["bench-cache-lines", how])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("valgrind starts");
        let mut mark = String::new();
        let (out, trace) = (
            traced.stdout.take().expect("piped"),
            traced.stderr.take().expect("piped"),
        );
        let reader = std::thread::spawn(move || {
            std::io::read_to_string(BufReader::new(trace)).expect("a trace")
        });
        BufReader::new(out)
            .read_line(&mut mark)
            .expect("its address");
        assert!(traced.wait().expect("ends").success(), "{how}");
        let mark = u64::from_str_radix(mark.trim(), 16).expect("an address");
        let trace = reader.join().expect("read");
        from_trace(trace.as_bytes(), mark).expect("a whole trace")
    };
    let [first, second] = touched("apart");
    println!(
        "lines written: {} and {}",
        first.written.len(),
        second.written.len()
    );
    assert!(!first.written.is_empty() && !second.written.is_empty());
    for (one, other) in [(&first, &second), (&second, &first)] {
        assert!(
            one.disturbs(other).is_empty(),
            "shared: {:x?}",
            one.disturbs(other)
        );
    }
    // The same on one file, to see that it can be seen.
    let [first, second] = touched("together");
    println!("on one file, shared: {}", first.disturbs(&second).len());
    assert!(!first.disturbs(&second).is_empty());
}
