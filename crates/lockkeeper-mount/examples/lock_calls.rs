//! What a lock call costs on a mount, against an empty round trip of the same mount, with 1,000 waiters, and
//! against bindfs with lock forwarding and the file system below; in one run, as ratios.
//!
//! `cargo run --release -p lockkeeper-mount --example lock_calls`
//!
//! How it is measured is described in docs/performance-mount.md.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::LockManager;
use lockkeeper_mount::{ManagerService, MountOptions, Session};
use rustix::fs::{FlockOperation, fcntl_lock, flock};

type Failure = Box<dyn std::error::Error>;

/// Measurements are taken in phases, in each of which every load has its turn, so that whatever else the
/// machine does hits all alike. A load's figure is the median of its calls in a phase, and of the phases the
/// quietest.
const PHASES: usize = 10;
/// How many measurements of a load there are in a phase.
const TURNS: usize = 2000;
/// How many calls of one load follow each other where they are not to be mixed with another's.
const RUN: usize = 200;
const WAITERS: usize = 1000;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [word, source, mountpoint] if word == "serve" => serve(source, mountpoint),
        [word, file, count] if word == "wait" => wait(Path::new(file), count.parse()?),
        [] => measure(),
        _ => Err("usage: lock_calls".into()),
    }
}

/// A server in a process of its own, as in life.
fn serve(source: &str, mountpoint: &str) -> Result<(), Failure> {
    let service = Arc::new(ManagerService::new(LockManager::new()));
    let session = Session::mount(&MountOptions::new(source, mountpoint), service)?;
    let unmounter = session.unmounter();
    // Whoever started us closes our input to end us.
    std::thread::spawn(move || {
        let _ = io::stdin().lines().next();
        if let Err(error) = unmounter.unmount(Duration::from_secs(2)) {
            eprintln!("cannot unmount: {error}");
        }
    });
    session.run(|_| println!("ready"))?;
    Ok(())
}

/// Many threads that wait for one lock, each on a description of its own.
fn wait(file: &Path, count: usize) -> Result<(), Failure> {
    for _ in 0..count {
        let file = File::open(file)?;
        std::thread::Builder::new()
            .stack_size(64 * 1024)
            .spawn(move || flock(&file, FlockOperation::LockExclusive))?;
    }
    // Time for the last ones to get there.
    std::thread::sleep(Duration::from_secs(1));
    println!("ready");
    let _ = io::stdin().lines().next();
    // Threads in the middle of a wait end with the process.
    std::process::exit(0);
}

/// A process that ends when its input is closed. Dropped, it is told, and killed if it does not listen.
struct Helper(Child);

impl Helper {
    fn start(arguments: &[&str]) -> Result<Helper, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let helper = Helper(child);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        match line.trim() {
            "ready" => Ok(helper),
            _ => Err(format!("{} did not start", arguments.join(" ")).into()),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        for _ in 0..500 {
            if let Ok(Some(_)) = self.0.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// bindfs with lock forwarding; unmounted when dropped.
struct Bindfs(PathBuf);

impl Bindfs {
    fn mount(source: &Path, mountpoint: &Path) -> Result<Bindfs, Failure> {
        fs::create_dir_all(mountpoint)?;
        let status = Command::new("bindfs")
            .args(["--multithreaded", "--enable-lock-forwarding"])
            .args([source, mountpoint])
            .status()?;
        match status.success() {
            true => Ok(Bindfs(mountpoint.into())),
            false => Err(format!("bindfs ended with {status}").into()),
        }
    }
}

impl Drop for Bindfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// One thing that is measured.
struct Load<'a> {
    name: &'static str,
    /// How many calls `make` makes.
    calls: f64,
    make: Box<dyn Fn() -> rustix::io::Result<()> + 'a>,
    microseconds: Vec<f64>,
    phases: Vec<f64>,
}

impl<'a> Load<'a> {
    fn new(
        name: &'static str,
        calls: f64,
        make: impl Fn() -> rustix::io::Result<()> + 'a,
    ) -> Load<'a> {
        Load {
            name,
            calls,
            make: Box::new(make),
            microseconds: Vec::with_capacity(TURNS),
            phases: Vec::new(),
        }
    }

    /// A lock and an unlock, which are two calls.
    fn pair(
        name: &'static str,
        lock: impl Fn(FlockOperation) -> rustix::io::Result<()> + 'a,
    ) -> Load<'a> {
        Load::new(name, 2.0, move || {
            lock(FlockOperation::NonBlockingLockExclusive)?;
            lock(FlockOperation::NonBlockingUnlock)
        })
    }

    fn turn(&mut self) -> rustix::io::Result<()> {
        let begin = Instant::now();
        (self.make)()?;
        let took = begin.elapsed().as_secs_f64() * 1e6;
        self.microseconds.push(took / self.calls);
        Ok(())
    }

    fn end_phase(&mut self) {
        self.microseconds.sort_by(f64::total_cmp);
        let middle = self.microseconds.get(self.microseconds.len() / 2);
        self.phases.extend(middle);
        self.microseconds.clear();
    }

    fn result(&self) -> f64 {
        self.phases.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// What it is in the middle one of the phases.
    fn typical(&self) -> f64 {
        let mut sorted = self.phases.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn print(&self) {
        println!(
            "{:<58} {:>8.2} µs  (middle phase {:.2} µs)",
            self.name,
            self.result(),
            self.typical()
        );
    }
}

/// Measures the loads, each `run` times in a row and then the next, and returns what came of each.
fn in_turns(loads: &mut [Load<'_>], run: usize) -> rustix::io::Result<Vec<f64>> {
    for load in loads.iter_mut() {
        // To warm up, and to make the caller known to the server.
        (load.make)()?;
    }
    for _ in 0..PHASES {
        for _ in 0..TURNS / run {
            for load in loads.iter_mut() {
                for _ in 0..run {
                    load.turn()?;
                }
            }
        }
        loads.iter_mut().for_each(Load::end_phase);
    }
    loads.iter().for_each(Load::print);
    Ok(loads.iter().map(Load::result).collect())
}

fn ratio(what: &str, of: f64, to: f64, goal: f64) {
    let met = if of / to <= goal { "met" } else { "MISSED" };
    println!(
        "{what:<58} {:>8.2} ×  (goal at most {goal} ×: {met})",
        of / to
    );
}

fn measure() -> Result<(), Failure> {
    let temp = tempfile::tempdir()?;
    let (source, mountpoint) = (temp.path().join("source"), temp.path().join("mnt"));
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let server = Helper::start(&["serve", &text(&source), &text(&mountpoint)])?;
    let create = |folder: &Path, name: &str| File::create(folder.join(name));
    let (file, other) = (create(&mountpoint, "a")?, create(&mountpoint, "b")?);
    let below = create(&source, "c")?;
    let bindfs = Bindfs::mount(&source, &temp.path().join("bindfs"));
    let forwarded = match &bindfs {
        Ok(bindfs) => Some(create(&bindfs.0, "d")?),
        Err(error) => {
            println!("without bindfs: {error}");
            None
        }
    };

    // An unlock by somebody who holds nothing goes the whole way to the server and back, and nothing is done
    // there. So does the FLUSH that closing a duplicate sends.
    let medians = in_turns(
        &mut [
            Load::new("empty round trip: flock unlock of nothing", 1.0, || {
                flock(&other, FlockOperation::NonBlockingUnlock)
            }),
            Load::new("empty round trip: fcntl unlock of nothing", 1.0, || {
                fcntl_lock(&other, FlockOperation::NonBlockingUnlock)
            }),
            Load::new("empty round trip: dup, close (FLUSH)", 1.0, || {
                rustix::io::dup(&other).map(drop)
            }),
            Load::pair("fcntl lock, unlock: one call", |operation| {
                fcntl_lock(&file, operation)
            }),
            Load::pair("flock lock, unlock: one call", |operation| {
                flock(&file, operation)
            }),
        ],
        1,
    )?;
    let [empty, _, _, by_fcntl, by_flock] = medians[..] else {
        return Err("not all was measured".into());
    };

    println!();
    let mut loads = vec![
        Load::pair("fcntl, the file system below: one call", |operation| {
            fcntl_lock(&below, operation)
        }),
        Load::pair("fcntl, this mount: one call", |operation| {
            fcntl_lock(&file, operation)
        }),
    ];
    if let Some(forwarded) = &forwarded {
        loads.push(Load::pair(
            "fcntl, bindfs with lock forwarding: one call",
            move |operation| fcntl_lock(forwarded, operation),
        ));
    }
    let beside = in_turns(&mut loads, RUN)?;
    let typical: Vec<f64> = loads.iter().map(Load::typical).collect();
    drop(loads);

    let (held, contended) = (create(&mountpoint, "held")?, mountpoint.join("held"));
    flock(&held, FlockOperation::LockExclusive)?;
    println!();
    // With and without waiters in turns, too.
    let mut alone = Load::pair("fcntl, nobody waits: one call", |operation| {
        fcntl_lock(&file, operation)
    });
    let mut crowded = Load::pair(
        "fcntl, 1,000 wait for another lock: one call",
        |operation| fcntl_lock(&file, operation),
    );
    for _ in 0..PHASES {
        for _ in 0..TURNS {
            alone.turn()?;
        }
        alone.end_phase();
        let waiters = Helper::start(&["wait", &text(&contended), &WAITERS.to_string()])?;
        for _ in 0..TURNS {
            crowded.turn()?;
        }
        crowded.end_phase();
        drop(waiters);
    }
    alone.print();
    crowded.print();

    println!();
    ratio("fcntl call / empty round trip", by_fcntl, empty, 1.2);
    ratio("flock call / empty round trip", by_flock, empty, 1.2);
    for (phase, figures) in [("middle", &typical), ("quietest", &beside)] {
        if let [_, here, there] = figures[..] {
            let what = format!("fcntl call / bindfs with lock forwarding, {phase} phase");
            ratio(&what, here, there, 0.5);
        }
    }
    ratio(
        "fcntl call with 1,000 waiters / with none",
        crowded.result(),
        alone.result(),
        2.0,
    );
    io::stdout().flush()?;
    drop((alone, crowded));
    drop((held, file, other, forwarded, bindfs, server));
    Ok(())
}
