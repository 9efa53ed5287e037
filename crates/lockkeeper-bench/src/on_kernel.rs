//! Tasks on the locks of a file system, by the system calls themselves.
//!
//! What is asked is made ready before the loop, so that the loop is the calls and nothing else.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{F_OFD_SETLKW, F_RDLCK, F_SETLKW, F_UNLCK, F_WRLCK};
use rustix::fs::FlockOperation;

use crate::board::{Board, GO, MEASURE, STOP};
use crate::group::{
    Done, Group, GroupReport, LeaseHolder, Strokes, TaskReport, await_next_lease, go_round,
    hold_lease, hold_until_all_wait, keep, run_members, wait_once, write_each_second,
};
use crate::load::{Level, Load};
use crate::sys::{ByteLock, await_break_signal, lock_byte, set_lease};

/// The file that task `task` of a load locks.
pub fn file_of(load: Load, folder: &Path, task: u32) -> PathBuf {
    match load {
        Load::Lock1 => folder.join(format!("file-{task}")),
        _ => folder.join("file"),
    }
}

/// The names of the files of a load.
pub fn files_of(load: Load, tasks: u32) -> Vec<String> {
    match load {
        Load::Lock1 => (0..tasks).map(|task| format!("file-{task}")).collect(),
        _ => vec!["file".to_owned()],
    }
}

/// The call that tasks make on a file system, as results name it.
pub fn call(load: Load, level: Level) -> &'static str {
    match (load, level) {
        (Load::Lock1, _) => "fcntl F_SETLKW",
        (Load::Chain, _) => "fcntl F_SETLKW",
        (Load::Flock, _) => "flock",
        (Load::Lease, _) => "open and close",
        (Load::Ofd, _) | (_, Level::Threads) => "fcntl F_OFD_SETLKW",
        (_, Level::Processes) => "fcntl F_SETLKW",
    }
}

fn command(load: Load, level: Level) -> libc::c_int {
    match call(load, level) {
        "fcntl F_OFD_SETLKW" => F_OFD_SETLKW,
        _ => F_SETLKW,
    }
}

/// A record lock on one byte.
struct Record {
    file: File,
    command: libc::c_int,
    lock: ByteLock,
    unlock: ByteLock,
}

impl Record {
    fn new(file: File, command: libc::c_int, kind: libc::c_int, byte: u64) -> Record {
        Record {
            file,
            command,
            lock: ByteLock::new(kind, byte),
            unlock: ByteLock::new(F_UNLCK, byte),
        }
    }
}

impl Strokes for Record {
    #[inline]
    fn acquire(&self) -> io::Result<()> {
        lock_byte(self.file.as_fd(), self.command, &self.lock)
    }

    #[inline]
    fn release(&self) -> io::Result<()> {
        lock_byte(self.file.as_fd(), self.command, &self.unlock)
    }
}

/// flock(2).
struct WholeFile(File);

impl Strokes for WholeFile {
    #[inline]
    fn acquire(&self) -> io::Result<()> {
        Ok(rustix::fs::flock(&self.0, FlockOperation::LockExclusive)?)
    }

    #[inline]
    fn release(&self) -> io::Result<()> {
        Ok(rustix::fs::flock(&self.0, FlockOperation::Unlock)?)
    }
}

/// Opens for writing, which breaks a read lease, and closes; both in `acquire`. Then the next lease is
/// waited for.
struct OpenAndClose<'a> {
    path: PathBuf,
    board: &'a Board,
}

impl Strokes for OpenAndClose<'_> {
    #[inline]
    fn acquire(&self) -> io::Result<()> {
        OpenOptions::new().write(true).open(&self.path).map(drop)
    }

    #[inline]
    fn release(&self) -> io::Result<()> {
        await_next_lease(self.board);
        Ok(())
    }
}

/// Runs the group's members.
///
/// # Errors
/// What a call gave.
pub fn run(group: &Group, board: &Board) -> io::Result<GroupReport> {
    let folder = group
        .folder
        .as_deref()
        .ok_or_else(|| io::Error::other("no folder"))?;
    run_members(group, board, |task| member(group, folder, board, task))
}

fn member(group: &Group, folder: &Path, board: &Board, task: u32) -> io::Result<Done> {
    let path = file_of(group.load, folder, task);
    let open = || OpenOptions::new().read(true).write(true).open(&path);
    let command = command(group.load, group.level);
    let is_helper = task == group.tasks;
    let record = |kind, byte| Ok::<_, io::Error>(Record::new(open()?, command, kind, byte));
    match group.load {
        Load::Lock1 | Load::Lock2 | Load::Ofd => {
            go_round(board, group.is_timed, &record(F_WRLCK, 0)?)
        }
        Load::Readers if is_helper => write_each_second(board, &record(F_WRLCK, 0)?),
        Load::Readers => go_round(board, group.is_timed, &record(F_RDLCK, 0)?),
        Load::Ranges if is_helper => {
            let file = open()?;
            for n in 0..group.held {
                lock_byte(file.as_fd(), command, &ByteLock::new(F_WRLCK, 2 * n))?;
            }
            Ok(keep(board))
        }
        Load::Ranges => go_round(
            board,
            group.is_timed,
            &record(F_WRLCK, group.byte_of(task))?,
        ),
        Load::Herd if is_helper => hold_until_all_wait(board, &record(F_WRLCK, 0)?),
        Load::Herd => wait_once(board, &record(F_WRLCK, 0)?),
        Load::Chain => chain(group, open()?, board, task),
        Load::Flock => go_round(board, group.is_timed, &WholeFile(open()?)),
        Load::Lease if is_helper => hold_lease(board, group.tasks, &ReadLease(File::open(path)?)),
        Load::Lease => go_round(board, group.is_timed, &OpenAndClose { path, board }),
    }
}

/// A link of the chain holds its byte and waits for the next link's. The last asks for the first one's
/// again and again, and must be refused each time. A link waits until it is killed.
fn chain(group: &Group, file: File, board: &Board, task: u32) -> io::Result<Done> {
    let byte = |task: u32| ByteLock::new(F_WRLCK, 2 * u64::from(task));
    lock_byte(file.as_fd(), F_SETLKW, &byte(task))?;
    board.ready.count();
    if task + 1 < group.tasks {
        board.phase.wait_for(GO);
        board.entered.count();
        lock_byte(file.as_fd(), F_SETLKW, &byte(task + 1))?;
        return Err(io::Error::other("a link of the chain was let go"));
    }
    board.phase.wait_for(MEASURE);
    let mut checks = 0;
    while board.phase.get() < STOP {
        match lock_byte(file.as_fd(), F_SETLKW, &byte(0)) {
            Err(error) if error.raw_os_error() == Some(libc::EDEADLK) => checks += 1,
            Err(error) => return Err(error),
            Ok(()) => return Err(io::Error::other("the end of the chain was granted")),
        }
        board.checks.0.store(checks, Ordering::Release);
    }
    let task = TaskReport {
        pairs: checks,
        ..TaskReport::default()
    };
    Ok(Done {
        task: Some(task),
        ..Done::default()
    })
}

/// A read lease; openers for writing break it.
struct ReadLease(File);

impl LeaseHolder for ReadLease {
    fn take(&self) -> io::Result<bool> {
        match set_lease(self.0.as_fd(), F_RDLCK) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn is_broken(&self) -> bool {
        await_break_signal(Duration::from_millis(20))
    }

    fn give_up(&self) -> io::Result<()> {
        set_lease(self.0.as_fd(), F_UNLCK)
    }
}
