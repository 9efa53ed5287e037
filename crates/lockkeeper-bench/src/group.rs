//! A group: the process in which some tasks of a run are at work.
//!
//! Tasks that are processes are a group each; tasks that are threads are one group; the library serves
//! all tasks in one group. Who runs the benchmark starts this program again for each, so that he can end
//! what does not end by itself. A group is told what to do by its argument, has the board as its standard
//! input, and writes one line of JSON, its report.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use hdrhistogram::Histogram;
use rustix::process::{Pid, Signal};
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

use crate::board::Board;
use crate::error::explained;
use crate::load::{FairnessSetting, Level, Load};
use crate::pipe::{told, write_line};
use crate::sys::{self, SharedBoard, Usage};
use crate::{on_kernel, on_library};

/// Who grants the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The library, in the group's own process.
    Library(FairnessSetting),
    /// The file system of a folder.
    Files,
}

/// What a group has to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Who starts it; it ends with him.
    pub parent: u32,
    /// Who grants the locks.
    pub side: Side,
    /// What the tasks do.
    pub load: Load,
    /// What the tasks are.
    pub level: Level,
    /// How many there are, in all groups; the helper is one more.
    pub tasks: u32,
    /// Those in this group; the helper has the number `tasks`.
    pub members: Vec<u32>,
    /// Where the files are; none for the library.
    pub folder: Option<PathBuf>,
    /// Task t is pinned to the cpu number t of these, beginning again at the end. Empty: pinned to none.
    pub cpus: Vec<usize>,
    /// Whether each lock call is timed.
    pub is_timed: bool,
    /// How many ranges are held beside (ranges).
    pub held: u64,
}

impl Group {
    /// The byte that a task of its own byte locks; those below are held by the helper.
    pub fn byte_of(&self, task: u32) -> u64 {
        2 * (self.held + u64::from(task)) + 1
    }
}

/// What a group has done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GroupReport {
    /// Its tasks' work, without helpers.
    pub tasks: Vec<TaskReport>,
    /// How long lock calls took: nanoseconds and how often.
    pub waits: Vec<(u64, u64)>,
    /// The longest of them, to three digits as all of them.
    pub longest: u64,
    /// The helper's work.
    pub helper: Option<HelperReport>,
    /// The library's counters of all files.
    pub library: Option<LibraryReport>,
    /// Why it failed.
    pub error: Option<String>,
}

/// What a task has done while it was measured.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct TaskReport {
    /// Pairs of a lock and an unlock (an open and a close, a deadlock check).
    pub pairs: u64,
    /// What it used.
    pub usage: Usage,
    /// When it was granted its one lock, by the monotonic clock (herd).
    pub granted_at: u64,
}

/// What the helper has done.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct HelperReport {
    /// Locks or leases that it got.
    pub grants: u64,
    /// The longest time that it waited for one.
    pub longest: u64,
    /// When it released its lock, by the monotonic clock (herd).
    pub released_at: u64,
}

/// What the library counted since its files were made.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct LibraryReport {
    /// Locks granted.
    pub acquisitions: u64,
    /// Waiters woken.
    pub wake_ups: u64,
}

/// The monotonic clock, which all processes share.
#[inline]
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What one task hands in.
#[derive(Default)]
pub struct Done {
    /// Its work, unless it is the helper.
    pub task: Option<TaskReport>,
    /// Its work, if it is the helper.
    pub helper: Option<HelperReport>,
    /// How long its lock calls took, where they are timed.
    pub waits: Option<Histogram<u64>>,
}

/// One of the two calls of a pair.
pub trait Strokes {
    /// Locks, waiting if it must.
    ///
    /// # Errors
    /// What the call gave.
    fn acquire(&self) -> io::Result<()>;

    /// Unlocks.
    ///
    /// # Errors
    /// What the call gave.
    fn release(&self) -> io::Result<()>;
}

/// A histogram of waits up to an hour, exact to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds that are in order")
}

/// The loop: pairs until the phase is `end`; how many. The same code for every side.
#[inline]
fn pairs_until(board: &Board, end: u32, strokes: &impl Strokes) -> io::Result<u64> {
    let mut pairs = 0;
    while board.phase.get() < end {
        strokes.acquire()?;
        strokes.release()?;
        pairs += 1;
    }
    Ok(pairs)
}

/// The same with the time that each lock call takes.
fn timed_until(
    board: &Board,
    end: u32,
    strokes: &impl Strokes,
    waits: &mut Histogram<u64>,
) -> io::Result<u64> {
    let mut pairs = 0;
    while board.phase.get() < end {
        let begin = now();
        strokes.acquire()?;
        let wait = now() - begin;
        strokes.release()?;
        waits.saturating_record(wait.max(1));
        pairs += 1;
    }
    Ok(pairs)
}

/// A task that goes round: ready, at work, measured, stopped.
///
/// # Errors
/// What a call gave.
pub fn go_round(board: &Board, is_timed: bool, strokes: &impl Strokes) -> io::Result<Done> {
    let mut waits = is_timed.then(histogram);
    board.ready.count();
    board.phase.wait_for(crate::board::GO);
    pairs_until(board, crate::board::MEASURE, strokes)?;
    let before = Usage::of_this_thread();
    let pairs = match &mut waits {
        None => pairs_until(board, crate::board::STOP, strokes)?,
        Some(waits) => timed_until(board, crate::board::STOP, strokes, waits)?,
    };
    let task = TaskReport {
        pairs,
        usage: Usage::of_this_thread().since(before),
        granted_at: 0,
    };
    Ok(Done {
        task: Some(task),
        helper: None,
        waits,
    })
}

/// A task of the herd: waits once, and passes the lock on.
///
/// # Errors
/// What a call gave.
pub fn wait_once(board: &Board, strokes: &impl Strokes) -> io::Result<Done> {
    board.ready.count();
    board.phase.wait_for(crate::board::GO);
    let before = Usage::of_this_thread();
    board.entered.count();
    strokes.acquire()?;
    let granted_at = now();
    strokes.release()?;
    let task = TaskReport {
        pairs: 1,
        usage: Usage::of_this_thread().since(before),
        granted_at,
    };
    Ok(Done {
        task: Some(task),
        ..Done::default()
    })
}

/// The holder for whom the herd waits.
///
/// # Errors
/// What a call gave.
pub fn hold_until_all_wait(board: &Board, strokes: &impl Strokes) -> io::Result<Done> {
    strokes.acquire()?;
    board.ready.count();
    board.phase.wait_for(crate::board::MEASURE);
    let released_at = now();
    strokes.release()?;
    let helper = HelperReport {
        grants: 1,
        released_at,
        longest: 0,
    };
    Ok(Done {
        helper: Some(helper),
        ..Done::default()
    })
}

/// The writer among readers: one lock a second, beginning with the measurement.
///
/// # Errors
/// What a call gave.
pub fn write_each_second(board: &Board, strokes: &impl Strokes) -> io::Result<Done> {
    use crate::board::{MEASURE, STOP};
    use std::time::Duration;
    board.ready.count();
    board.phase.wait_for(MEASURE);
    let mut helper = HelperReport::default();
    let mut next = now();
    while board.phase.get() < STOP {
        let time = now();
        if time < next {
            let patience = Duration::from_nanos(next - time);
            board.phase.wait_while(MEASURE, patience);
            continue;
        }
        strokes.acquire()?;
        let granted = now();
        strokes.release()?;
        helper.longest = helper.longest.max(granted - time);
        // A writer that readers kept out until they were stopped has not been served.
        if board.phase.get() < STOP {
            helper.grants += 1;
        }
        next = time + 1_000_000_000;
    }
    Ok(Done {
        helper: Some(helper),
        ..Done::default()
    })
}

/// What the holder of a lease does: takes it, waits until it is being broken, gives it up.
pub trait LeaseHolder {
    /// Takes it; `false` if somebody has the file open still.
    ///
    /// # Errors
    /// What the call gave.
    fn take(&self) -> io::Result<bool>;

    /// Whether it is being broken, after a short wait for it.
    fn is_broken(&self) -> bool;

    /// Gives it up.
    ///
    /// # Errors
    /// What the call gave.
    fn give_up(&self) -> io::Result<()>;
}

/// The holder of the lease: takes it, lets all tasks open the file against it, gives it up, and waits until
/// all have closed the file.
///
/// # Errors
/// What a call gave.
pub fn hold_lease(board: &Board, tasks: u32, holder: &impl LeaseHolder) -> io::Result<Done> {
    use crate::board::{GO, MEASURE, STOP};
    let is_over = || board.phase.get() >= STOP;
    let take = || -> io::Result<()> {
        while !holder.take()? {
            std::thread::yield_now();
        }
        board.leases.count();
        Ok(())
    };
    let mut helper = HelperReport::default();
    take()?;
    board.ready.count();
    board.phase.wait_for(GO);
    loop {
        while !is_over() && !holder.is_broken() {}
        holder.give_up()?;
        if board.phase.get() == MEASURE {
            helper.grants += 1;
        }
        let all_closed = board.leases.get().wrapping_mul(tasks);
        loop {
            let closed = board.closed.get();
            if is_over() || closed == all_closed {
                break;
            }
            board.closed.wait_while(closed, PATIENCE);
        }
        if is_over() {
            break;
        }
        take()?;
    }
    Ok(Done {
        helper: Some(helper),
        ..Done::default()
    })
}

/// After a task has closed the file: waits for the next lease.
pub fn await_next_lease(board: &Board) {
    let lease = board.leases.get();
    board.closed.count();
    while board.phase.get() < crate::board::STOP && board.leases.get() == lease {
        board.leases.wait_while(lease, PATIENCE);
    }
}

/// How long a sleeper sleeps before it looks at the phase.
const PATIENCE: std::time::Duration = std::time::Duration::from_millis(20);

/// Keeps what it holds until all is over.
pub fn keep(board: &Board) -> Done {
    board.ready.count();
    board.phase.wait_for(crate::board::STOP);
    Done {
        helper: Some(HelperReport::default()),
        ..Done::default()
    }
}

/// Pins this thread as will-it-scale does: tasks to cpus in order.
fn pin(cpus: &[usize], task: u32) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    set.set(cpus[task as usize % cpus.len()]);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Runs each member, in this thread if it is one, and gathers what they did.
///
/// # Errors
/// What the first that failed says.
pub fn run_members(
    group: &Group,
    board: &Board,
    member: impl Fn(u32) -> io::Result<Done> + Sync,
) -> io::Result<GroupReport> {
    let one = |task: u32| {
        let done = pin(&group.cpus, task).and_then(|()| member(task));
        match &done {
            Ok(_) => board.done.count(),
            // The others of this group would wait for it; the parent ends them all.
            Err(error) => report_failure(board, error),
        }
        done
    };
    let all = match group.members[..] {
        [task] => vec![one(task)],
        _ => std::thread::scope(|scope| {
            let threads: Vec<_> = group
                .members
                .iter()
                .map(|&task| {
                    std::thread::Builder::new()
                        .stack_size(128 << 10)
                        .spawn_scoped(scope, move || one(task))
                        .unwrap_or_else(|error| report_failure(board, &error))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|_| Err(io::Error::other("a task panicked")))
                })
                .collect()
        }),
    };
    gather(all)
}

pub(crate) fn gather(all: Vec<io::Result<Done>>) -> io::Result<GroupReport> {
    let mut report = GroupReport::default();
    let mut waits: Option<Histogram<u64>> = None;
    for done in all {
        let done = done?;
        report.tasks.extend(done.task);
        report.helper = report.helper.or(done.helper);
        match (&mut waits, done.waits) {
            (Some(sum), Some(more)) => sum.add(more).map_err(io::Error::other)?,
            (None, more) => waits = more,
            (Some(_), None) => {}
        }
    }
    if let Some(waits) = waits.filter(|waits| !waits.is_empty()) {
        report.longest = waits.max();
        report.waits = waits
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect();
    }
    Ok(report)
}

fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => explained(io::Error::from_raw_os_error(errno)).to_string(),
        None => error.to_string(),
    }
}

/// Says what went wrong and ends the process, of which other threads may wait for ever.
fn report_failure(board: &Board, error: &io::Error) -> ! {
    let report = GroupReport {
        error: Some(explain(error)),
        ..GroupReport::default()
    };
    // Before the parent looks: it reads what is there when it learns of the failure.
    let _ = write_line(&report);
    board.failed.count();
    std::process::exit(2)
}

/// What the hidden command does: a group, from its JSON.
pub fn main(argument: &str) -> ExitCode {
    let Some(group) = told::<Group>(argument) else {
        return ExitCode::from(2);
    };
    let run = || -> io::Result<()> {
        // It must not outlive whoever would stop it.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        let parent = rustix::process::getppid().map(Pid::as_raw_nonzero);
        if parent.map(|pid| pid.get() as u32) != Some(group.parent) {
            return Err(io::Error::other("who started it has gone"));
        }
        sys::block_break_signal();
        crate::run::raise_file_limit();
        let board = SharedBoard::map(io::stdin())?;
        let report = match group.side {
            Side::Files => on_kernel::run(&group, &board),
            Side::Library(fairness) => on_library::run(&group, fairness.0, &board),
        };
        match report {
            Ok(report) => write_line(&report),
            Err(error) => report_failure(&board, &error),
        }
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
