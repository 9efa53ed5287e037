//! What a report costs: 100,000 locks on one file, and over as many files, asked of the status socket of a mount.
//!
//! `cargo bench -p lockkeeper-cli --bench reporting`
//!
//! Needs root and python3. The server has two descriptors for each file, and the holder of the locks one: where the
//! limit (`ulimit -Hn`, which root may raise unless it was told not to) allows fewer than 100,000 files, it takes as
//! many as it allows, and says so. Of 100,000 files without a mount the server's part is measured in any case: what it
//! takes to visit them, to look for deadlocks, and to write it all down.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper::LockManager;
use lockkeeper_mount::{
    FileId, HandleId, LockClass, LockKind, LockRequest, LockService, ManagerService, Owner,
    OwnerKind, Range, RequestId,
};
use lockkeeper_watch::report::Report;
use lockkeeper_watch::{deadlock, process};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

type Failure = Box<dyn Error>;

/// Each question is asked so often; the middle one counts.
const TIMES: usize = 7;

/// Locks bytes that are not beside each other, as those would be one lock; or a byte of each file.
const HOLD: &str = r#"
import fcntl, sys
count = int(sys.argv[2])
files = []
if sys.argv[1] == "one":
    f = open("one", "w")
    for start in range(count): fcntl.lockf(f, fcntl.LOCK_EX, 1, start * 2)
else:
    for number in range(count):
        f = open("file-%d" % number, "w")
        fcntl.lockf(f, fcntl.LOCK_EX, 1, 0)
        files.append(f)
print("ready", flush=True)
sys.stdin.read()
"#;

/// So many locks there are.
const LOCKS: usize = 100_000;

fn main() -> Result<(), Failure> {
    let descriptors = raise_limit()?;
    // Two of the server's a file, and some for the rest; it gives back what is unused from three quarters on.
    let files = LOCKS.min(descriptors.saturating_sub(1000) as usize / 8 * 3);
    if files < LOCKS {
        println!(
            "Only {descriptors} descriptors are allowed, so a mount has locks on {files} files."
        );
    }
    let mount = Mount::start()?;
    for (how, count, name) in [
        ("one", LOCKS, "on one file".to_owned()),
        ("many", files, format!("over {files} files")),
    ] {
        let mut holder = Command::new("python3")
            .args(["-c", HOLD, how, &count.to_string()])
            .current_dir(mount.temp.path().join("mnt"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let out = holder.stdout.take().ok_or("no pipe")?;
        BufReader::new(out).read_line(&mut line)?;
        if line != "ready\n" {
            return Err("the locks are not to be had".into());
        }
        for question in ["brief", "report", "metrics"] {
            let mut first = Vec::new();
            let mut all = Vec::new();
            let mut size = 0;
            for _ in 0..TIMES {
                let (begun, ended, length) = mount.ask(question)?;
                first.push(begun);
                all.push(ended);
                size = length;
            }
            println!(
                "{count:6} locks {name:17} {question:8} {:6.1} ms until it is there, {:6.1} ms with {:.1} MB of text",
                middle(&mut first),
                middle(&mut all),
                size as f64 / 1e6
            );
        }
        drop(holder.stdin.take());
        holder.wait()?;
    }
    without_a_mount()
}

/// The server's part of a report on very many files: all but their paths and sizes.
fn without_a_mount() -> Result<(), Failure> {
    let service = ManagerService::new(LockManager::new());
    for number in 0..LOCKS as u64 {
        service.setlk(&LockRequest {
            id: RequestId(number),
            file: FileId {
                dev: 1,
                ino: number,
            },
            handle: HandleId(number + 1),
            owner: Owner {
                kind: OwnerKind::Process,
                id: 1,
            },
            class: LockClass::Posix,
            kind: LockKind::Write,
            range: Range { start: 0, end: 0 },
            pid: std::process::id(),
            tid: std::process::id(),
        })?;
    }
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..TIMES {
        let begun = Instant::now();
        let mut report = Report {
            files: service.listing(),
            ..Report::default()
        };
        times[0].push(begun.elapsed());
        report.deadlocks = deadlock::find(&report.files, process::threads);
        times[1].push(begun.elapsed());
        let text = serde_json::to_vec(&report)?;
        times[2].push(begun.elapsed());
        assert!(text.len() > LOCKS);
    }
    println!(
        "{LOCKS} locks over as many files without a mount: {:.1} ms until all were visited, {:.1} ms with the search for \
         deadlocks, {:.1} ms with the text",
        middle(&mut times[0]),
        middle(&mut times[1]),
        middle(&mut times[2])
    );
    Ok(())
}

/// So many descriptors this process and those it starts may have from now on.
fn raise_limit() -> Result<u64, Failure> {
    const WANTED: u64 = 400_000;
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: Some(WANTED),
        maximum: Some(limit.maximum.map_or(WANTED, |most| most.max(WANTED))),
    };
    if setrlimit(Resource::Nofile, all).is_ok() {
        return Ok(WANTED);
    }
    let maximum = limit.maximum;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    )?;
    Ok(maximum.unwrap_or(WANTED))
}

/// In milliseconds.
fn middle(times: &mut [Duration]) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

struct Mount {
    server: Child,
    temp: tempfile::TempDir,
}

impl Mount {
    fn start() -> Result<Mount, Failure> {
        let temp = tempfile::tempdir()?;
        let said = temp.path().join("said");
        let server = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
            .args(["mount", "source", "mnt"])
            .current_dir(temp.path())
            .stdin(Stdio::null())
            .stdout(File::create(&said)?)
            .spawn()?;
        let mount = Mount { server, temp };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !fs::read_to_string(&said)?.contains("Ctrl-C") {
            if Instant::now() > deadline {
                return Err("the mount does not come".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(mount)
    }

    /// The times until the first byte of the answer, when the report is there, and until the last; and its length.
    fn ask(&self, question: &str) -> Result<(Duration, Duration, usize), Failure> {
        let device = fs::metadata(self.temp.path().join("mnt"))?.dev();
        let mut stream = UnixStream::connect(lockkeeper_mount::status::default_path(device))?;
        let begun = Instant::now();
        writeln!(stream, "{question}")?;
        stream.shutdown(Shutdown::Write)?;
        let mut first = [0];
        stream.read_exact(&mut first)?;
        let there = begun.elapsed();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest)?;
        Ok((there, begun.elapsed(), rest.len() + 1))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.temp.path().join("mnt"))
            .status();
        // It ends with its mount, and takes its socket away.
        let _ = self.server.wait();
    }
}
