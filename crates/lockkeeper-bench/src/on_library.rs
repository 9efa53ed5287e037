//! Tasks on the library: owners that threads of one process stand for.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::Duration;

use lockkeeper::{
    BreakScope, CallbackId, Errno, Fairness, FileHandle, FileId, Flock, LockError, LockManager,
    LockType, OpenFileId, Openers, Owner, ProcessId, Range, Records, Started, WaitOptions,
};

use crate::board::{Board, MEASURE, STOP};
use crate::group::{
    Done, Group, GroupReport, LeaseHolder, LibraryReport, Strokes, TaskReport, await_next_lease,
    go_round, hold_lease, hold_until_all_wait, keep, run_members, wait_once, write_each_second,
};
use crate::load::{Level, Load};

/// The call that tasks make, as results name it.
pub fn call(load: Load, level: Level) -> &'static str {
    match (load, level) {
        (Load::Lock1, _) => "Records::lock of a process",
        (Load::Chain, _) => "Records::lock_callback of a process",
        (Load::Flock, _) => "Flock::lock",
        (Load::Lease, _) => "Opening::wait",
        (Load::Ofd, _) | (_, Level::Threads) => "Records::lock of an open file",
        (_, Level::Processes) => "Records::lock of a process",
    }
}

#[cold]
fn failed(error: LockError) -> io::Error {
    io::Error::other(error.to_string())
}

fn byte(number: u64) -> io::Result<Range> {
    Range::byte(number).map_err(|error| io::Error::other(error.to_string()))
}

struct Record<'a> {
    records: Records<'a>,
    lock_type: LockType,
    range: Range,
}

impl Strokes for Record<'_> {
    #[inline]
    fn acquire(&self) -> io::Result<()> {
        self.records
            .lock(self.lock_type, self.range)
            .map_err(failed)
    }

    #[inline]
    fn release(&self) -> io::Result<()> {
        self.records.unlock(self.range).map_err(failed)
    }
}

struct WholeFile<'a>(Flock<'a>);

impl Strokes for WholeFile<'_> {
    #[inline]
    fn acquire(&self) -> io::Result<()> {
        self.0.lock(LockType::Write).map_err(failed)
    }

    #[inline]
    fn release(&self) -> io::Result<()> {
        self.0.unlock();
        Ok(())
    }
}

/// What an open does to leases; nothing is opened. Then the next lease is waited for.
struct Open<'a> {
    file: &'a FileHandle,
    opener: OpenFileId,
    board: &'a Board,
}

impl Strokes for Open<'_> {
    #[inline]
    fn acquire(&self) -> io::Result<()> {
        self.file
            .opening(self.opener, LockType::Write, BreakScope::Leases)
            .wait(WaitOptions::default())
            .map_err(failed)
    }

    #[inline]
    fn release(&self) -> io::Result<()> {
        await_next_lease(self.board);
        Ok(())
    }
}

/// Tells the holder of the lease that it is being broken.
#[derive(Default)]
struct Broken {
    is_told: AtomicBool,
    holder: Mutex<Option<Thread>>,
}

impl Broken {
    fn tell(&self) {
        self.is_told.store(true, Ordering::SeqCst);
        if let Ok(holder) = self.holder.lock()
            && let Some(thread) = &*holder
        {
            thread.unpark();
        }
    }
}

/// Runs the group's members.
///
/// # Errors
/// What a call gave.
pub fn run(group: &Group, fairness: Fairness, board: &Board) -> io::Result<GroupReport> {
    let broken = Arc::new(Broken::default());
    let told = broken.clone();
    let manager = LockManager::builder()
        .fairness(fairness)
        .on_lease_break(move |_, _| told.tell())
        .build();
    let file_id = |task: u32| match group.load {
        Load::Lock1 => FileId::new(0, 1 + u64::from(task)),
        _ => FileId::new(0, 0),
    };
    // Open until the end, so that the counters stay.
    let files: Vec<_> = group
        .members
        .iter()
        .map(|&task| manager.file(file_id(task)))
        .collect();
    let mut report = if group.load == Load::Chain {
        chain(group, &files[0], board)?
    } else {
        run_members(group, board, |task| {
            let file = manager.file(file_id(task));
            member(group, &file, board, task, &broken)
        })?
    };
    let counted = if group.load == Load::Lock1 {
        &files[..]
    } else {
        &files[..1]
    };
    let mut sum = LibraryReport::default();
    for file in counted {
        let counters = file.counters();
        sum.acquisitions += counters.acquisitions;
        sum.wake_ups += counters.wake_ups;
    }
    report.library = Some(sum);
    Ok(report)
}

fn member(
    group: &Group,
    file: &FileHandle,
    board: &Board,
    task: u32,
    broken: &Broken,
) -> io::Result<Done> {
    let number = 1 + u64::from(task);
    let owner = match call(group.load, group.level) {
        "Records::lock of an open file" => Owner::from(OpenFileId(number)),
        _ => Owner::from(ProcessId(number)),
    };
    let record = |lock_type, number| {
        Ok::<_, io::Error>(Record {
            records: file.records(owner.clone()),
            lock_type,
            range: byte(number)?,
        })
    };
    let is_helper = task == group.tasks;
    match group.load {
        Load::Lock1 | Load::Lock2 | Load::Ofd => {
            go_round(board, group.is_timed, &record(LockType::Write, 0)?)
        }
        Load::Readers if is_helper => write_each_second(board, &record(LockType::Write, 0)?),
        Load::Readers => go_round(board, group.is_timed, &record(LockType::Read, 0)?),
        Load::Ranges if is_helper => {
            for n in 0..group.held {
                record(LockType::Write, 2 * n)?.acquire()?;
            }
            Ok(keep(board))
        }
        Load::Ranges => go_round(
            board,
            group.is_timed,
            &record(LockType::Write, group.byte_of(task))?,
        ),
        Load::Herd if is_helper => hold_until_all_wait(board, &record(LockType::Write, 0)?),
        Load::Herd => wait_once(board, &record(LockType::Write, 0)?),
        Load::Flock => {
            let flock = file.flock(OpenFileId(number));
            go_round(board, group.is_timed, &WholeFile(flock))
        }
        Load::Lease if is_helper => hold_lease(board, group.tasks, &ReadLease { file, broken }),
        Load::Lease => {
            let opener = OpenFileId(number);
            let open = Open {
                file,
                opener,
                board,
            };
            go_round(board, group.is_timed, &open)
        }
        Load::Chain => Err(io::Error::other("a chain has no members")),
    }
}

/// All owners of the chain wait with callbacks; one thread asks for what closes it, again and again.
fn chain(group: &Group, file: &FileHandle, board: &Board) -> io::Result<GroupReport> {
    let owners = u64::from(group.tasks);
    for owner in 0..owners {
        let records = file.posix(ProcessId(owner + 1));
        records
            .try_lock(LockType::Write, byte(2 * owner)?)
            .map_err(failed)?;
    }
    // From the end, so that each new wait is the start of the chain.
    for owner in (0..owners - 1).rev() {
        let records = file.posix(ProcessId(owner + 1));
        let waits = records.lock_callback(
            CallbackId(owner),
            LockType::Write,
            byte(2 * (owner + 1))?,
            |_| {},
        );
        if !matches!(waits, Ok(Started::Waiting(_))) {
            return Err(io::Error::other("a link of the chain does not wait"));
        }
    }
    for _ in 0..owners {
        board.ready.count();
    }
    for _ in 0..owners - 1 {
        board.entered.count();
    }
    board.phase.wait_for(MEASURE);
    let last = file.posix(ProcessId(owners));
    let first = byte(0)?;
    let found = Arc::new(AtomicBool::new(false));
    let mut checks = 0;
    while board.phase.get() < STOP {
        let finds = found.clone();
        found.store(false, Ordering::Relaxed);
        last.lock_callback(CallbackId(u64::MAX), LockType::Write, first, move |end| {
            let is_deadlock = end.is_err_and(|error| error.errno() == Errno::EDEADLK);
            finds.store(is_deadlock, Ordering::Release);
        })
        .map_err(failed)?;
        if !found.load(Ordering::Acquire) {
            break;
        }
        checks += 1;
        board.checks.0.store(checks, Ordering::Release);
    }
    board.done.count();
    Ok(GroupReport {
        tasks: vec![TaskReport {
            pairs: checks,
            ..TaskReport::default()
        }],
        ..GroupReport::default()
    })
}

/// A read lease; openers for writing break it.
struct ReadLease<'a> {
    file: &'a FileHandle,
    broken: &'a Broken,
}

impl LeaseHolder for ReadLease<'_> {
    fn take(&self) -> io::Result<bool> {
        if let Ok(mut holder) = self.broken.holder.lock() {
            *holder = Some(std::thread::current());
        }
        self.broken.is_told.store(false, Ordering::SeqCst);
        let lease = self.file.lease(OpenFileId(0));
        lease
            .set(LockType::Read, Openers::default())
            .map_err(failed)?;
        Ok(true)
    }

    fn is_broken(&self) -> bool {
        if !self.broken.is_told.load(Ordering::SeqCst) {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        self.broken.is_told.load(Ordering::SeqCst)
    }

    fn give_up(&self) -> io::Result<()> {
        self.file.lease(OpenFileId(0)).unlock().map_err(failed)
    }
}
