//! Client processes that open files and lock, told what to do line by line.
//!
//! A client is the test program itself, started again to run its test `client` (see [`client_main`]).

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const VARIABLE: &str = "LOCKKEEPER_TEST_CLIENT";

/// A process that can be told to open, lock and close.
pub struct Client {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
}

impl Client {
    /// Starts one.
    pub fn start() -> Client {
        let mut child = Command::new(std::env::current_exe().expect("has a path"))
            .args([
                "--exact",
                "client",
                "--ignored",
                "--nocapture",
                "--test-threads",
                "1",
            ])
            .env(VARIABLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let commands = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(answer) = line.split("answer: ").nth(1) {
                    let _ = sender.send(answer.to_owned());
                }
            }
        });
        Client {
            child,
            commands,
            answers,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it something; the answer is to be asked for.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("client lives");
    }

    /// The next answer, within 10 seconds.
    pub fn answer(&mut self) -> String {
        self.answers
            .recv_timeout(Duration::from_secs(10))
            .unwrap_or_else(|error| format!("no answer: {error}"))
    }

    /// Tells and waits for the answer.
    pub fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    /// Whether it has not answered after a while: it waits for a lock.
    pub fn waits(&mut self) -> bool {
        self.answers
            .recv_timeout(Duration::from_millis(150))
            .is_err()
    }

    /// SIGKILL, and waits until it is gone; false if that takes more than five seconds.
    pub fn kill(&mut self) -> bool {
        let _ = self.child.kill();
        for _ in 0..500 {
            if let Ok(Some(_)) = self.child.try_wait() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Sends SIGUSR1 to thread `tid` of it.
    pub fn interrupt(&self, tid: &str) {
        let tid: i64 = tid.parse().expect("a thread id");
        // SAFETY: tgkill takes any numbers; the worst is an error.
        let sent =
            unsafe { libc::syscall(libc::SYS_tgkill, i64::from(self.pid()), tid, libc::SIGUSR1) };
        assert_eq!(sent, 0);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The client's side; does nothing when run as a test.
///
/// Commands: `open NAME PATH`, `dup NAME NEW`, `close NAME`, `fork` (a child that holds everything open
/// until `reap`), `reap`, `posix|ofd KIND[w] NAME START LEN`, `get|oget KIND NAME START LEN`,
/// `flock KIND[w] NAME`, `read NAME OFFSET`, `truncate NAME SIZE`, `trunc-open PATH`, `allocate NAME START LEN`,
/// `copy NAME START TO AT LEN`, `nonblock NAME`, `alarm` (SIGUSR1 ends
/// calls from now on; the answer is the thread to send it to). Answers: `ok`, an errno, or what was asked.
pub fn client_main() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let mut files: HashMap<String, File> = HashMap::new();
    let mut holder: Option<i32> = None;
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["open", name, path] => open(Path::new(path)).map(|file| {
                files.insert(name.into(), file);
                "ok".into()
            }),
            ["dup", name, new] => files[name].try_clone().map(|file| {
                files.insert(new.into(), file);
                "ok".into()
            }),
            ["close", name] => {
                files.remove(name);
                Ok("ok".into())
            }
            ["fork"] => {
                holder = Some(fork_holder());
                Ok("ok".into())
            }
            ["reap"] => {
                if let Some(pid) = holder.take() {
                    // SAFETY: the child is ours, and nothing else waits for it.
                    unsafe {
                        libc::kill(pid, libc::SIGKILL);
                        libc::waitpid(pid, std::ptr::null_mut(), 0);
                    }
                }
                Ok("ok".into())
            }
            ["posix", kind, name, start, len] => {
                let command = if kind.len() == 2 {
                    libc::F_SETLKW
                } else {
                    libc::F_SETLK
                };
                record_lock(&files[name], command, kind, start, len)
            }
            ["ofd", kind, name, start, len] => {
                let command = if kind.len() == 2 {
                    libc::F_OFD_SETLKW
                } else {
                    libc::F_OFD_SETLK
                };
                record_lock(&files[name], command, kind, start, len)
            }
            ["get", kind, name, start, len] => {
                record_lock(&files[name], libc::F_GETLK, kind, start, len)
            }
            ["oget", kind, name, start, len] => {
                record_lock(&files[name], libc::F_OFD_GETLK, kind, start, len)
            }
            ["flock", kind, name] => flock(&files[name], kind),
            ["read", name, offset] => read_at(&files[name], offset),
            ["truncate", name, size] => files[name]
                .set_len(size.parse().expect("number"))
                .map(|()| "ok".into()),
            ["trunc-open", path] => File::create(path).map(|_| "ok".into()),
            ["allocate", name, start, len] => rustix::fs::fallocate(
                &files[name],
                rustix::fs::FallocateFlags::KEEP_SIZE,
                start.parse().expect("number"),
                len.parse().expect("number"),
            )
            .map(|()| "ok".into())
            .map_err(Into::into),
            ["copy", from, start, to, at, len] => rustix::fs::copy_file_range(
                &files[from],
                Some(&mut start.parse().expect("number")),
                &files[to],
                Some(&mut at.parse().expect("number")),
                len.parse().expect("number"),
            )
            .map(|_| "ok".into())
            .map_err(Into::into),
            ["nonblock", name] => {
                rustix::fs::fcntl_setfl(&files[name], rustix::fs::OFlags::NONBLOCK)
                    .map(|()| "ok".into())
                    .map_err(Into::into)
            }
            ["alarm"] => {
                interrupt_calls_on_sigusr1();
                Ok(rustix::thread::gettid().as_raw_nonzero().to_string())
            }
            _ => Ok(format!("what is {line}?")),
        };
        let answer = answer.unwrap_or_else(|error: std::io::Error| match error.raw_os_error() {
            Some(libc::EAGAIN) => "AGAIN".into(),
            Some(libc::EINTR) => "INTR".into(),
            _ => format!("{error}"),
        });
        println!("answer: {answer}");
    }
    std::process::exit(0);
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

fn read_at(file: &File, offset: &str) -> std::io::Result<String> {
    use std::os::unix::fs::FileExt;
    let mut byte = [0];
    file.read_at(&mut byte, offset.parse().expect("number"))
        .map(|count| count.to_string())
}

fn flock(file: &File, kind: &str) -> std::io::Result<String> {
    use rustix::fs::FlockOperation as Op;
    let operation = match kind {
        "r" => Op::NonBlockingLockShared,
        "w" => Op::NonBlockingLockExclusive,
        "u" => Op::NonBlockingUnlock,
        "rw" => Op::LockShared,
        "ww" => Op::LockExclusive,
        // As flock(LOCK_UN) without LOCK_NB, which arrives as a request that may wait.
        "uw" => Op::Unlock,
        _ => return Ok("what kind?".into()),
    };
    rustix::fs::flock(file, operation)?;
    Ok("ok".into())
}

fn record_lock(
    file: &File,
    command: i32,
    kind: &str,
    start: &str,
    len: &str,
) -> std::io::Result<String> {
    let l_type = match kind.as_bytes().first() {
        Some(b'r') => libc::F_RDLCK,
        Some(b'w') => libc::F_WRLCK,
        _ => libc::F_UNLCK,
    };
    let mut lock = libc::flock {
        l_type: l_type as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start.parse().expect("number"),
        l_len: len.parse().expect("number"),
        l_pid: 0,
    };
    let fd: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(file);
    // SAFETY: the descriptor is open and `lock` is a flock structure that outlives the call.
    if unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut lock) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(match command {
        libc::F_GETLK | libc::F_OFD_GETLK => {
            let kind = match i32::from(lock.l_type) {
                libc::F_RDLCK => "r",
                libc::F_WRLCK => "w",
                _ => return Ok("free".into()),
            };
            format!("{kind} {} {} {}", lock.l_start, lock.l_len, lock.l_pid)
        }
        _ => "ok".into(),
    })
}

/// A child that shares every open file description and does nothing.
fn fork_holder() -> i32 {
    // SAFETY: the child calls only async-signal-safe functions, and never returns.
    unsafe {
        match libc::fork() {
            0 => loop {
                libc::pause();
            },
            pid => pid,
        }
    }
}

fn interrupt_calls_on_sigusr1() {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: the action is zero but for a handler that does nothing; no SA_RESTART, so calls end.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
}
