//! What a lock call costs on a mount, against an empty round trip of the same mount, with 1,000 waiters, and
//! against bindfs with lock forwarding and the file system below; in one run, as ratios.
//!
//! `cargo run --release -p lockkeeper-mount --example lock_calls`
//!
//! How it is measured is described in docs/performance-mount.md.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::LockManager;
use lockkeeper_mount::{ManagerService, MountOptions, Session};
use rustix::fs::{FlockOperation, fcntl_lock, flock};

type Failure = Box<dyn std::error::Error>;

/// Measurements are taken in turns, so that whatever else the machine does hits all alike; what is shown is
/// the median of the rounds.
const ROUNDS: usize = 60;
const CALLS: u32 = 1000;
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
            .arg("--enable-lock-forwarding")
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

/// One thing that is measured: makes `CALLS` calls.
struct Load<'a> {
    name: &'static str,
    calls: Box<dyn Fn() -> io::Result<()> + 'a>,
    rounds: Vec<f64>,
}

impl<'a> Load<'a> {
    fn new(name: &'static str, calls: impl Fn() -> io::Result<()> + 'a) -> Load<'a> {
        Load {
            name,
            calls: Box::new(calls),
            rounds: Vec::new(),
        }
    }

    fn median(&self) -> f64 {
        let mut sorted = self.rounds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

fn in_turns(loads: &mut [Load<'_>]) -> io::Result<()> {
    for round in 0..=ROUNDS {
        for load in &mut *loads {
            let begin = Instant::now();
            (load.calls)()?;
            let each = begin.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS);
            // The first round is for warming up.
            if round > 0 {
                load.rounds.push(each);
            }
        }
    }
    for load in &*loads {
        println!("{:<58} {:>8.2} µs", load.name, load.median());
    }
    Ok(())
}

/// A lock and an unlock are two calls.
fn pairs(lock: impl Fn(FlockOperation) -> rustix::io::Result<()>) -> io::Result<()> {
    for _ in 0..CALLS / 2 {
        lock(FlockOperation::NonBlockingLockExclusive)?;
        lock(FlockOperation::NonBlockingUnlock)?;
    }
    Ok(())
}

/// An unlock by somebody who holds nothing: the whole way to the server and back, and nothing done there.
fn empty(file: &File) -> io::Result<()> {
    for _ in 0..CALLS {
        flock(file, FlockOperation::NonBlockingUnlock)?;
    }
    Ok(())
}

/// close(2) of a duplicate sends FLUSH, which has nothing to do for whoever holds no lock.
fn flushes(file: &File) -> io::Result<()> {
    for _ in 0..CALLS {
        drop(file.as_fd().try_clone_to_owned()?);
    }
    Ok(())
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

    let mut loads = vec![
        Load::new("empty round trip (an unlock of nothing)", || empty(&other)),
        Load::new("empty round trip (dup, close: FLUSH)", || flushes(&other)),
        Load::new("fcntl lock, unlock: one call", || {
            pairs(|operation| fcntl_lock(&file, operation))
        }),
        Load::new("flock lock, unlock: one call", || {
            pairs(|operation| flock(&file, operation))
        }),
        Load::new("fcntl, the file system below: one call", || {
            pairs(|operation| fcntl_lock(&below, operation))
        }),
    ];
    if let Some(forwarded) = &forwarded {
        loads.push(Load::new(
            "fcntl, bindfs with lock forwarding: one call",
            move || pairs(|operation| fcntl_lock(forwarded, operation)),
        ));
        loads.push(Load::new(
            "flock, bindfs with lock forwarding: one call",
            move || pairs(|operation| flock(forwarded, operation)),
        ));
    }
    in_turns(&mut loads)?;
    let medians: Vec<f64> = loads.iter().map(Load::median).collect();
    drop(loads);

    let (held, contended) = (create(&mountpoint, "held")?, mountpoint.join("held"));
    flock(&held, FlockOperation::LockExclusive)?;
    println!();
    // With and without waiters in turns, too: five times each.
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        for is_waited_for in [false, true] {
            let waiters = match is_waited_for {
                true => Some(Helper::start(&[
                    "wait",
                    &text(&contended),
                    &WAITERS.to_string(),
                ])?),
                false => None,
            };
            let target = if is_waited_for {
                &mut with
            } else {
                &mut without
            };
            for _ in 0..ROUNDS / 5 {
                let begin = Instant::now();
                pairs(|operation| fcntl_lock(&file, operation))?;
                target.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS));
            }
            drop(waiters);
        }
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (without, with) = (median(&mut without), median(&mut with));
    println!("{:<58} {without:>8.2} µs", "fcntl, nobody waits: one call");
    println!(
        "{:<58} {with:>8.2} µs",
        "fcntl, 1,000 wait on another file: one call"
    );

    println!();
    ratio("fcntl call / empty round trip", medians[2], medians[0], 1.2);
    ratio("flock call / empty round trip", medians[3], medians[0], 1.2);
    if let [.., fcntl, flock] = medians[..]
        && forwarded.is_some()
    {
        ratio(
            "fcntl call / bindfs with lock forwarding",
            medians[2],
            fcntl,
            0.5,
        );
        ratio(
            "flock call / bindfs with lock forwarding",
            medians[3],
            flock,
            0.5,
        );
    }
    ratio(
        "fcntl call with 1,000 waiters / with none",
        with,
        without,
        2.0,
    );
    io::stdout().flush()?;
    drop((held, file, other, forwarded, bindfs, server));
    Ok(())
}
