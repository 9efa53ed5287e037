//! What watching costs the watched: lock calls on a mount with nobody watching, with top and a page open, and with
//! the page open at the very file that is locked; in one run, in turns.
//!
//! `cargo bench -p lockkeeper-cli --bench watching`
//!
//! How it is measured is described in docs/performance-mount.md.

use std::error::Error;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use portable_pty::{CommandBuilder, PtySize, native_pty_system};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

type Failure = Box<dyn Error>;

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");
/// Each load has its turn in each.
const PHASES: usize = 10;
/// Long enough for top and the page to look several times.
const TURN: Duration = Duration::from_secs(2);
/// Files on which something is locked meanwhile, so that there is something to be looked at.
const OTHERS: usize = 100;

/// Who watches.
#[derive(Clone, Copy, PartialEq)]
enum Watchers {
    Nobody,
    /// Top, and a page open at the busiest files.
    Mount,
    /// Top, and a page open at the file that is locked.
    File,
}

fn main() -> Result<(), Failure> {
    // Where the scheduler puts caller and server makes more of a difference than anything here. So they, and all
    // who watch, share one processor: what watching takes, the lock calls lose.
    let mut one = CpuSet::new();
    let any = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| any.is_set(cpu));
    one.set(first.ok_or("no processor")?);
    sched_setaffinity(None, &one)?;
    let mount = Mount::start()?;
    let mut held = Vec::new();
    for number in 0..OTHERS {
        let file = File::create(mount.path(&format!("other-{number}")))?;
        fcntl_lock(&file, FlockOperation::LockExclusive)?;
        held.push(file);
    }
    let file = File::create(mount.path("locked"))?;
    let id = {
        let source = fs::metadata(mount.temp.path().join("source/locked"))?;
        format!("{}-{}", source.dev(), source.ino())
    };
    let loads = [Watchers::Nobody, Watchers::Mount, Watchers::File];
    let mut figures = loads.map(|_| Vec::new());
    for _ in 0..PHASES {
        for (load, figures) in loads.iter().zip(&mut figures) {
            let watching = Watching::start(*load, &mount, &id)?;
            figures.push(lock_calls(&file)?);
            watching.end();
        }
    }
    for (load, name) in [
        "nobody watches",
        "top, and a page at the busiest files",
        "top, and a page at this file",
    ]
    .iter()
    .enumerate()
    {
        let (median, mean) = middle(&figures[load]);
        let (without, without_mean) = middle(&figures[0]);
        println!(
            "{name:38} median {:6.0} ns ({:.3})   mean {:6.0} ns ({:.3})",
            median,
            median / without,
            mean,
            mean / without_mean
        );
    }
    Ok(())
}

/// The middle one of the phases' medians, and of their means.
fn middle(phases: &[(f64, f64)]) -> (f64, f64) {
    let of = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    (
        of(phases.iter().map(|phase| phase.0).collect()),
        of(phases.iter().map(|phase| phase.1).collect()),
    )
}

/// Locks and unlocks for one turn: the median and the mean of a call, in nanoseconds.
fn lock_calls(file: &File) -> Result<(f64, f64), Failure> {
    let mut calls = Vec::new();
    let end = Instant::now() + TURN;
    while Instant::now() < end {
        let begun = Instant::now();
        fcntl_lock(file, FlockOperation::LockExclusive)?;
        fcntl_lock(file, FlockOperation::Unlock)?;
        calls.push(begun.elapsed().as_nanos() as f64 / 2.0);
    }
    let mean = calls.iter().sum::<f64>() / calls.len() as f64;
    calls.sort_by(f64::total_cmp);
    Ok((calls[calls.len() / 2], mean))
}

/// A mount with a page, of a server in a process of its own.
struct Mount {
    server: Child,
    temp: tempfile::TempDir,
    page: String,
}

impl Mount {
    fn start() -> Result<Mount, Failure> {
        let temp = tempfile::tempdir()?;
        let said = temp.path().join("said");
        let server = Command::new(PROGRAM)
            .args(["mount", "source", "mnt", "--http", "0"])
            .current_dir(temp.path())
            .stdin(Stdio::null())
            .stdout(File::create(&said)?)
            .spawn()?;
        let mut mount = Mount {
            server,
            temp,
            page: String::new(),
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let text = fs::read_to_string(&said)?;
            if text.contains("Ctrl-C") {
                let page = text
                    .lines()
                    .find_map(|line| line.strip_prefix("Page: http://"));
                mount.page = page.ok_or("no page")?.into();
                return Ok(mount);
            }
            if Instant::now() > deadline {
                return Err("the mount does not come".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.temp.path().join("mnt").join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let mountpoint = self.temp.path().join("mnt");
        let _ = Command::new("umount").arg("-l").arg(&mountpoint).status();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Those who watch, until they are told to end.
struct Watching {
    top: Option<Top>,
    page: Option<TcpStream>,
}

type Top = (
    Box<dyn portable_pty::Child + Send + Sync>,
    Box<dyn portable_pty::MasterPty + Send>,
);

impl Watching {
    fn start(watchers: Watchers, mount: &Mount, file: &str) -> Result<Watching, Failure> {
        let query = match watchers {
            Watchers::Nobody => {
                return Ok(Watching {
                    top: None,
                    page: None,
                });
            }
            Watchers::Mount => String::new(),
            Watchers::File => format!("file={file}&"),
        };
        let (host, token) = mount.page.split_once("/?").ok_or("no token")?;
        let mut page = TcpStream::connect(host)?;
        write!(
            page,
            "GET /events?{query}{token} HTTP/1.1\r\nHost: {host}\r\n\r\n"
        )?;
        let reader = page.try_clone()?;
        let mut first = [0; 12];
        page.read_exact(&mut first)?;
        if &first != b"HTTP/1.1 200" {
            return Err("the page does not answer".into());
        }
        swallow(reader);
        Ok(Watching {
            top: Some(start_top(&mount.path(""))?),
            page: Some(page),
        })
    }

    fn end(self) {
        if let Some((mut top, _)) = self.top {
            let _ = top.kill();
            let _ = top.wait();
        }
        if let Some(page) = self.page {
            let _ = page.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn start_top(mountpoint: &Path) -> Result<Top, Failure> {
    let pair = native_pty_system().openpty(PtySize {
        rows: 24,
        cols: 80,
        pixel_width: 0,
        pixel_height: 0,
    })?;
    let mut command = CommandBuilder::new(PROGRAM);
    command.arg("top");
    command.arg(mountpoint);
    let top = pair.slave.spawn_command(command)?;
    swallow(pair.master.try_clone_reader()?);
    Ok((top, pair.master))
}

fn swallow(mut reader: impl Read + Send + 'static) {
    std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
}
