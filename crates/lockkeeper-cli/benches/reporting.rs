//! What a report costs: 100,000 locks on one file, and over as many files, asked of the status socket of a mount.
//!
//! `cargo bench -p lockkeeper-cli --bench reporting`
//!
//! Needs root, as the server and the holder of the locks have a descriptor for each file, and python3.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

type Failure = Box<dyn Error>;

/// Each question is asked so often; the middle one counts.
const TIMES: usize = 7;

/// Locks bytes that are not beside each other, as those would be one lock; or a byte of each file.
const HOLD: &str = r#"
import fcntl, sys
files = []
if sys.argv[1] == "one":
    f = open("one", "w")
    for start in range(100000): fcntl.lockf(f, fcntl.LOCK_EX, 1, start * 2)
else:
    for number in range(100000):
        f = open("file-%d" % number, "w")
        fcntl.lockf(f, fcntl.LOCK_EX, 1, 0)
        files.append(f)
print("ready", flush=True)
sys.stdin.read()
"#;

fn main() -> Result<(), Failure> {
    let mount = Mount::start()?;
    for (how, name) in [("one", "on one file"), ("many", "over as many files")] {
        let mut holder = with_descriptors("python3")
            .args(["-c", HOLD, how])
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
                "100,000 locks {name:20} {question:8} {:6.1} ms until it is there, {:6.1} ms with {:.1} MB of text",
                middle(&mut first),
                middle(&mut all),
                size as f64 / 1e6
            );
        }
        drop(holder.stdin.take());
        holder.wait()?;
    }
    Ok(())
}

/// In milliseconds.
fn middle(times: &mut [Duration]) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

/// A program that may have as many files open as these loads take.
fn with_descriptors(program: &str) -> Command {
    let mut command = Command::new("prlimit");
    command.args(["--nofile=400000:400000", program]);
    command
}

struct Mount {
    server: Child,
    temp: tempfile::TempDir,
}

impl Mount {
    fn start() -> Result<Mount, Failure> {
        let temp = tempfile::tempdir()?;
        let said = temp.path().join("said");
        let server = with_descriptors(env!("CARGO_BIN_EXE_lockkeeper"))
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
