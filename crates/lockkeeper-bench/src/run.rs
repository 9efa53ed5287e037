//! Running: every load, number of tasks and target in turn, several times, and what came of it.
//!
//! Targets take turns within each round, so that a machine that becomes slower or faster meanwhile does so
//! for all of them. Throughput and waits are measured in turns of their own: no clock is read while
//! throughput is measured, and each lock call is timed while waits are.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lockkeeper::Fairness;
use lockkeeper_watch::process::Process;
use rustix::fs::MemfdFlags;

use crate::board::{Board, GO, MEASURE, STOP, Word};
use crate::error::Error;
use crate::folder::Folder;
use crate::format::{Cell, ResultFile, Settings, mean};
use crate::group::{Group, GroupReport, HelperReport, LibraryReport, Side, TaskReport, histogram};
use crate::load::{FairnessSetting, Level, Load};
use crate::machine::cpus_allowed;
use crate::on_kernel::files_of;
use crate::pipe::{Patience, go_on, read_line};
use crate::sys::SharedBoard;
use crate::target::{Probed, Target, probe};

/// How to start this program again.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// The hidden command that is [`group::main`](crate::group::main).
    pub group_command: String,
    /// The hidden command that is [`errand::main`](crate::errand::main).
    pub errand_command: String,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The loads.
    pub loads: Vec<Load>,
    /// What tasks are.
    pub levels: Vec<Level>,
    /// How many tasks, ascending.
    pub tasks: Vec<u32>,
    /// Who grants the locks.
    pub targets: Vec<Target>,
    /// How many ranges are held (ranges).
    pub held: Vec<u64>,
    /// How it is measured.
    pub settings: Settings,
    /// How long a file system may take to answer.
    pub answer_within: Duration,
}

/// One line of the plan: what all targets do in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    load: Load,
    level: Level,
    held: u64,
    tasks: u32,
}

impl Plan {
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for &load in &self.loads {
            for &level in &self.levels {
                let held = if load == Load::Ranges {
                    &self.held[..]
                } else {
                    &[0]
                };
                for &held in held {
                    rows.extend(self.tasks.iter().map(|&tasks| Row {
                        load,
                        level,
                        held,
                        tasks,
                    }));
                }
            }
        }
        rows
    }

    /// How many turns it takes.
    pub fn turns(&self) -> u64 {
        let rows = self.rows();
        let each: u64 = rows
            .iter()
            .map(|row| if row.load.is_loop() { 2 } else { 1 })
            .sum();
        each * self.targets.len() as u64 * u64::from(self.settings.rounds)
    }

    /// Refuses what makes no sense, before anything is started.
    ///
    /// # Errors
    /// What does not, and what to do.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |said: &str| Err(Error::Refused(said.to_owned()));
        let Settings {
            rounds,
            seconds,
            warm_up,
            ..
        } = self.settings;
        if self.loads.is_empty()
            || self.levels.is_empty()
            || self.tasks.is_empty()
            || self.targets.is_empty()
        {
            return refuse("there is nothing to run: name a load, a target and a number of tasks");
        }
        if self.tasks.contains(&0) {
            return refuse("0 tasks do nothing: at least 1");
        }
        if rounds == 0 {
            return refuse("0 rounds measure nothing: at least 1");
        }
        if !(0.001..=3600.0).contains(&seconds) || !(0.0..=3600.0).contains(&warm_up) {
            return refuse("a turn is measured for 0.001 to 3600 seconds");
        }
        for target in &self.targets {
            let is_text = |folder: &Path| {
                let name = folder.to_str();
                name.is_some_and(|name| !name.chars().any(char::is_control))
            };
            if target.folder().is_some_and(|folder| !is_text(folder)) {
                return refuse(
                    "a folder whose name is no UTF-8 text, or has control characters, cannot be named in a result",
                );
            }
        }
        for row in self.rows() {
            for target in &self.targets {
                if let Some(said) = target.refusal(row.load, row.level, row.tasks) {
                    return Err(Error::Refused(said));
                }
            }
        }
        Ok(())
    }
}

/// Measures all of it. `stop` ends it early; `progress` is told before each turn.
///
/// # Errors
/// A plan that makes no sense, a folder that cannot be used, a task that failed or did not end. No
/// process and no file is left behind then.
pub fn run(
    plan: &Plan,
    program: &Program,
    stop: &AtomicBool,
    progress: impl FnMut(&str),
) -> Result<ResultFile, Error> {
    run_all(plan, program, stop, progress).map_err(|error| match stop.load(Ordering::Relaxed) {
        // Whatever else happened because of it.
        true => Error::Interrupted,
        false => error,
    })
}

fn run_all(
    plan: &Plan,
    program: &Program,
    stop: &AtomicBool,
    mut progress: impl FnMut(&str),
) -> Result<ResultFile, Error> {
    plan.check()?;
    raise_file_limit();
    let probed = probe_all(plan, program, stop)?;
    let runner = Runner {
        plan,
        program,
        stop,
    };
    let mut cells = Vec::new();
    for row in plan.rows() {
        let mut of_row: Vec<Cell> = plan
            .targets
            .iter()
            .zip(&probed)
            .map(|(target, probed)| new_cell(row, target, probed.as_ref()))
            .collect();
        for _ in 0..plan.settings.rounds {
            for is_timed in [false, true] {
                if is_timed && !row.load.is_loop() {
                    continue;
                }
                for (target, cell) in plan.targets.iter().zip(&mut of_row) {
                    if stop.load(Ordering::Relaxed) {
                        return Err(Error::Interrupted);
                    }
                    progress(&format!("{} on {target}", cell.what()));
                    let turn = runner.turn(row, target, is_timed)?;
                    add_turn(cell, row, target, &turn, is_timed);
                }
            }
        }
        cells.extend(of_row);
    }
    add_scalability(&mut cells);
    Ok(ResultFile::new(plan.settings.clone(), cells))
}

/// Descriptors for as many tasks as there may be, where the system lets us.
pub(crate) fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

fn probe_all(
    plan: &Plan,
    program: &Program,
    stop: &AtomicBool,
) -> Result<Vec<Option<Probed>>, Error> {
    let mut all = Vec::new();
    for target in &plan.targets {
        let probed = probe(program, target, plan.answer_within, stop)?;
        for &load in &plan.loads {
            let refusal = |probed| Some((probed, Probed::refusal(probed, load)?));
            if let Some((probed, said)) = probed.as_ref().and_then(refusal) {
                return Err(Error::Refused(format!(
                    "{load} cannot be run on {target}: its file system ({}) says: {said}",
                    probed.file_system
                )));
            }
        }
        all.push(probed);
    }
    Ok(all)
}

fn new_cell(row: Row, target: &Target, probed: Option<&Probed>) -> Cell {
    let Row { load, level, .. } = row;
    Cell {
        load,
        level,
        tasks: row.tasks,
        held: row.held,
        target: target.to_string(),
        place: target
            .folder()
            .zip(probed)
            .map(|(folder, probed)| format!("{} ({})", folder.display(), probed.file_system)),
        call: target.call(load, level).to_owned(),
        served_by: target.served_by(load, level).to_owned(),
        work: target.work(load, level).to_owned(),
        notes: Vec::new(),
        metrics: BTreeMap::new(),
    }
}

// ---- One turn --------------------------------------------------------------

struct Runner<'a> {
    plan: &'a Plan,
    program: &'a Program,
    stop: &'a AtomicBool,
}

/// What came of a turn.
struct Turn {
    /// How long was measured.
    window: Duration,
    tasks: Vec<TaskReport>,
    waits: Histogram<u64>,
    longest: u64,
    helper: Option<HelperReport>,
    library: Option<LibraryReport>,
    /// Deadlock checks that came back.
    checks: u64,
}

impl Runner<'_> {
    fn turn(&self, row: Row, target: &Target, is_timed: bool) -> Result<Turn, Error> {
        let make = |place: &Path| {
            let files = files_of(row.load, row.tasks);
            let within = self.plan.answer_within + Duration::from_millis(1) * row.tasks;
            Folder::make(place, files, self.program, within, self.stop)
        };
        let folder = target.folder().map(make).transpose()?;
        let board_file = board_file()?;
        let board = SharedBoard::map(&board_file).map_err(Error::system("map shared memory"))?;
        let side = match target {
            Target::Library(fairness) => Side::Library(*fairness),
            _ => Side::Files,
        };
        let members = row.tasks + u32::from(row.load.has_helper());
        let group = Group {
            parent: std::process::id(),
            side,
            load: row.load,
            level: row.level,
            tasks: row.tasks,
            members: (0..members).collect(),
            folder: folder.as_ref().map(|folder| folder.path().to_owned()),
            cpus: if self.plan.settings.affinity {
                cpus_allowed()
            } else {
                Vec::new()
            },
            is_timed,
            held: row.held,
        };
        let apart = side == Side::Files && row.level == Level::Processes;
        let mut crew = Crew::default();
        for first in 0..if apart { members } else { 1 } {
            let mut group = group.clone();
            if apart {
                group.members = vec![first];
            }
            crew.start(self.program, &group, &board_file)?;
        }
        let place = target.folder().unwrap_or(Path::new("the library"));
        let watch = Watch {
            stop: self.stop,
            place,
            board: &board,
        };
        let is_library = side != Side::Files;
        let turn = self.conduct(row, is_library, members, &watch, &mut crew)?;
        drop(crew);
        folder.map_or(Ok(()), Folder::remove)?;
        Ok(turn)
    }

    /// Takes the tasks through the phases.
    fn conduct(
        &self,
        row: Row,
        is_library: bool,
        members: u32,
        watch: &Watch<'_>,
        crew: &mut Crew,
    ) -> Result<Turn, Error> {
        let board = watch.board;
        let within = self.plan.answer_within;
        let start_up = within + Duration::from_millis(20) * members + filling_time(row.held);
        watch.wait(&board.ready, members, start_up, crew)?;
        board.phase.set(GO);
        let seconds = Duration::from_secs_f64(self.plan.settings.seconds);
        let begin;
        match row.load {
            Load::Herd | Load::Chain => {
                let waiters = row.tasks - u32::from(row.load == Load::Chain);
                watch.wait(&board.entered, waiters, within, crew)?;
                // The library's links of a chain are callbacks, which wait from the call on.
                if !(row.load == Load::Chain && is_library) {
                    watch.all_asleep(within, crew)?;
                }
                begin = Instant::now();
                board.phase.set(MEASURE);
                match row.load {
                    Load::Chain => watch.pause(seconds, crew)?,
                    _ => watch.wait(&board.done, members, start_up, crew)?,
                }
            }
            _ => {
                watch.pause(Duration::from_secs_f64(self.plan.settings.warm_up), crew)?;
                begin = Instant::now();
                board.phase.set(MEASURE);
                watch.pause(seconds, crew)?;
            }
        }
        board.phase.set(STOP);
        let window = begin.elapsed();
        if row.load == Load::Chain {
            // The kernel may not see the cycle; then whoever closes it waits for ever, and so does every
            // link in any case. They are killed with the crew.
            let closed = watch.wait(&board.done, 1, Duration::from_millis(500), crew);
            if matches!(closed, Err(Error::Interrupted | Error::Task(_))) {
                closed?;
            }
            return Ok(Turn::of_checks(board, window));
        }
        watch.wait(&board.done, members, start_up, crew)?;
        Turn::gather(window, crew.reports(within, watch)?)
    }
}

/// Filling a list that is scanned takes the kernel quadratic time: 24 s for 50,000 ranges here.
fn filling_time(held: u64) -> Duration {
    Duration::from_secs_f64((held as f64).powi(2) * 4e-8)
}

fn board_file() -> Result<OwnedFd, Error> {
    let file = rustix::fs::memfd_create("lockkeeper-bench", MemfdFlags::CLOEXEC)
        .map_err(Error::system("make shared memory"))?;
    rustix::fs::ftruncate(&file, size_of::<Board>() as u64)
        .map_err(Error::system("make shared memory"))?;
    Ok(file)
}

// ---- The processes ---------------------------------------------------------

/// The processes of a turn. Dropped, they are killed and reaped, each by its id.
#[derive(Default)]
struct Crew {
    children: Vec<(Child, BufReader<ChildStdout>)>,
}

impl Crew {
    fn start(&mut self, program: &Program, group: &Group, board: &OwnedFd) -> Result<(), Error> {
        let starting = "start a task";
        let argument = serde_json::to_string(group).expect("numbers and words are JSON");
        let stdin = board.try_clone().map_err(Error::start(starting))?;
        let mut child = Command::new(&program.path)
            .args([&program.group_command, &argument])
            .stdin(Stdio::from(stdin))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // The terminal's Ctrl-C is for the bench, which then ends its tasks.
            .process_group(0)
            .spawn()
            .map_err(Error::start(starting))?;
        let out = child.stdout.take().expect("it is piped");
        self.children.push((child, BufReader::new(out)));
        Ok(())
    }

    /// What ended before its time, if anything did.
    fn fallen(&mut self) -> Option<String> {
        self.children
            .iter_mut()
            .find_map(|(child, _)| match child.try_wait() {
                Ok(Some(status)) if !status.success() => Some(status.to_string()),
                _ => None,
            })
    }

    /// Why those that failed did.
    fn complaint(&mut self) -> Option<String> {
        for (child, out) in &mut self.children {
            let Ok(Some(status)) = child.try_wait() else {
                continue;
            };
            if status.success() {
                continue;
            }
            let mut line = String::new();
            let _ = out.read_line(&mut line);
            let report: Option<GroupReport> = serde_json::from_str(&line).ok();
            if let Some(said) = report.and_then(|report| report.error) {
                return Some(said);
            }
        }
        None
    }

    /// All reports. Only when all have said that they are done.
    fn reports(&mut self, within: Duration, watch: &Watch<'_>) -> Result<Vec<GroupReport>, Error> {
        let patience = watch.patience(within);
        self.children
            .iter_mut()
            .map(|(_, out)| {
                // One may hang when it closes its file.
                let line = read_line(out, || patience.check())?;
                let report: GroupReport = serde_json::from_str(&line)
                    .map_err(|_| Error::Task("a task ended without its report".to_owned()))?;
                match report.error {
                    Some(said) => Err(Error::Task(format!("a task failed: {said}"))),
                    None => Ok(report),
                }
            })
            .collect()
    }

    /// Whether all threads of all processes sleep.
    fn is_asleep(&self) -> bool {
        let sleeps = |thread: fs::DirEntry| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            Process::parse(&stat).is_some_and(|thread| matches!(thread.state, 'S' | 'D'))
        };
        self.children.iter().all(|(child, _)| {
            let folder = format!("/proc/{}/task", child.id());
            let mut threads = fs::read_dir(folder).into_iter().flatten().flatten();
            threads.all(sleeps)
        })
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (child, _) in &mut self.children {
            let _ = child.kill();
        }
        let deadline = Instant::now() + Duration::from_secs(2);
        for (child, _) in &mut self.children {
            // One that hangs in a dead file system, where no signal reaches it, is left to init.
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Waiting for tasks: with a limit, and ended by the user or by a task that fails.
struct Watch<'a> {
    stop: &'a AtomicBool,
    place: &'a Path,
    board: &'a Board,
}

impl Watch<'_> {
    /// How often it looks whether it should go on.
    const GLANCE: Duration = Duration::from_millis(20);

    /// For a wait that begins now.
    fn patience(&self, within: Duration) -> Patience<'_> {
        Patience::new(Some(self.stop), self.place, within)
    }

    fn glance(&self, crew: &mut Crew) -> Result<(), Error> {
        go_on(self.stop)?;
        if self.board.failed.get() != 0 {
            // Its report is on its way, and then its end.
            std::thread::sleep(Self::GLANCE);
            let said = crew.complaint();
            let said = said.unwrap_or_else(|| "it did not say why".to_owned());
            return Err(Error::Task(format!("a task failed: {said}")));
        }
        Ok(())
    }

    fn wait(
        &self,
        word: &Word,
        wanted: u32,
        within: Duration,
        crew: &mut Crew,
    ) -> Result<(), Error> {
        let patience = self.patience(within);
        let mut looked = Instant::now();
        loop {
            let now = word.get();
            if now >= wanted {
                return Ok(());
            }
            self.glance(crew)?;
            patience.check()?;
            if looked.elapsed() > 10 * Self::GLANCE {
                looked = Instant::now();
                if let Some(status) = crew.fallen() {
                    return Err(Error::Task(format!(
                        "a task ended before its time: {status}"
                    )));
                }
            }
            word.wait_while(now, Self::GLANCE);
        }
    }

    /// Lets the tasks work.
    fn pause(&self, time: Duration, crew: &mut Crew) -> Result<(), Error> {
        let begin = Instant::now();
        while let Some(left) = time.checked_sub(begin.elapsed()) {
            self.glance(crew)?;
            std::thread::sleep(left.min(5 * Self::GLANCE));
        }
        Ok(())
    }

    /// Until all sleep, seen twice: those who wait have said that they are about to, and everybody else, the
    /// holder among them, waits for the next phase.
    fn all_asleep(&self, within: Duration, crew: &mut Crew) -> Result<(), Error> {
        let patience = self.patience(within);
        let mut seen = 0;
        while seen < 2 {
            self.glance(crew)?;
            patience.check()?;
            seen = if crew.is_asleep() { seen + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

// ---- What came of it -------------------------------------------------------

impl Turn {
    fn of_checks(board: &Board, window: Duration) -> Turn {
        Turn {
            window,
            tasks: Vec::new(),
            waits: histogram(),
            longest: 0,
            helper: None,
            library: None,
            checks: board.checks.0.load(Ordering::Acquire),
        }
    }

    fn gather(window: Duration, reports: Vec<GroupReport>) -> Result<Turn, Error> {
        let mut turn = Turn {
            window,
            tasks: Vec::new(),
            waits: histogram(),
            longest: 0,
            helper: None,
            library: None,
            checks: 0,
        };
        for report in reports {
            turn.tasks.extend(report.tasks);
            turn.helper = turn.helper.or(report.helper);
            turn.library = turn.library.or(report.library);
            turn.longest = turn.longest.max(report.longest);
            for (value, count) in report.waits {
                turn.waits.saturating_record_n(value, count);
            }
        }
        // Of the herd, the wait is from the release to the grant.
        if let Some(released) = turn.helper.map(|helper| helper.released_at)
            && released > 0
        {
            for task in &turn.tasks {
                let wait = task.granted_at.saturating_sub(released).max(1);
                turn.waits.saturating_record_n(wait, 1);
                turn.longest = turn.longest.max(wait);
            }
        }
        Ok(turn)
    }
}

fn add_turn(cell: &mut Cell, row: Row, target: &Target, turn: &Turn, is_timed: bool) {
    let has_waits = is_timed || row.load == Load::Herd;
    if has_waits && turn.waits.is_empty() {
        // Which is not the same as waits of 0 ns.
        let note =
            "no wait was measured in a turn: the machine is busy, or `--seconds` are too few";
        add_note(cell, note);
    }
    let mut add = |name: &str, value: f64| {
        let values = cell.metrics.entry(name.to_owned()).or_default();
        values.push(value);
    };
    let seconds = turn.window.as_secs_f64();
    if row.load == Load::Chain {
        add("checks_per_second", turn.checks as f64 / seconds);
        add("deadlock_found", f64::from(u8::from(turn.checks > 0)));
        if turn.checks == 0 {
            let note = "the deadlock was not found: the task that closed the cycle waited for ever";
            add_note(cell, note);
        }
        return;
    }
    if has_waits && !turn.waits.is_empty() {
        for (name, quantile) in [("wait_p50_ns", 0.5), ("wait_p99_ns", 0.99)] {
            add(name, turn.waits.value_at_quantile(quantile) as f64);
        }
        add("wait_max_ns", turn.longest as f64);
    }
    let pairs: Vec<f64> = turn.tasks.iter().map(|task| task.pairs as f64).collect();
    let sum: f64 = pairs.iter().sum();
    let voluntary: u64 = turn.tasks.iter().map(|task| task.usage.voluntary).sum();
    let wake_ups = match (turn.library, target) {
        (Some(library), Target::Library(_)) => {
            library.wake_ups as f64 / (library.acquisitions as f64).max(1.0)
        }
        // The holder's release is one more, and each task releases once.
        _ if row.load == Load::Herd => voluntary as f64 / (sum + 1.0),
        _ => voluntary as f64 / sum.max(1.0),
    };
    if row.load == Load::Herd {
        add("time_to_last_ns", turn.longest as f64);
        add("wake_ups_per_release", wake_ups);
    }
    if is_timed || row.load == Load::Herd {
        return;
    }
    let ops = 2.0 * sum / seconds;
    add(row.level.ops_metric(), ops / f64::from(row.tasks));
    add("ops", ops);
    let least = pairs.iter().copied().fold(f64::INFINITY, f64::min);
    let of_mean = if sum > 0.0 {
        least / (sum / f64::from(row.tasks))
    } else {
        0.0
    };
    add("least_served", of_mean);
    let total = |part: fn(&TaskReport) -> u64| turn.tasks.iter().map(part).sum::<u64>() as f64;
    add(
        "user_time",
        total(|task| task.usage.user_us) / 1e6 / seconds,
    );
    add(
        "system_time",
        total(|task| task.usage.system_us) / 1e6 / seconds,
    );
    add("voluntary_context_switches", voluntary as f64 / seconds);
    let involuntary = total(|task| task.usage.involuntary);
    add("involuntary_context_switches", involuntary / seconds);
    add("wake_ups_per_release", wake_ups);
    if let Some(helper) = turn.helper {
        match row.load {
            Load::Readers => {
                add("writer_grants_per_second", helper.grants as f64 / seconds);
                add("writer_wait_max_ns", helper.longest as f64);
            }
            Load::Lease => add("breaks_per_second", helper.grants as f64 / seconds),
            _ => {}
        }
    }
    if sum == 0.0 {
        let note = "nothing was done in a turn: the machine is busy, or `--seconds` are too few";
        add_note(cell, note);
    }
    if row.load == Load::Readers && turn.helper.is_some_and(|helper| helper.grants == 0) {
        add_note(
            cell,
            "the writer was kept out by readers until they were stopped",
        );
    }
}

fn add_note(cell: &mut Cell, note: &str) {
    if !cell.notes.iter().any(|known| known == note) {
        cell.notes.push(note.to_owned());
    }
}

/// Operations at N tasks, divided by N times those of one task, as will-it-scale's users compute it.
fn add_scalability(cells: &mut [Cell]) {
    let of_one: Vec<(Cell, f64)> = cells
        .iter()
        .filter(|cell| cell.tasks == 1)
        .filter_map(|cell| Some((cell.clone(), mean(cell.metrics.get("ops")?)?)))
        .collect();
    for cell in cells {
        let same = |other: &Cell| {
            (other.load, other.level, other.held) == (cell.load, cell.level, cell.held)
                && other.target == cell.target
        };
        let one = of_one.iter().find(|(other, _)| same(other));
        if let (Some((_, one)), Some(ops)) = (one, cell.metrics.get("ops"))
            && *one > 0.0
        {
            let scale = f64::from(cell.tasks) * one;
            let values = ops.iter().map(|ops| ops / scale).collect();
            cell.metrics.insert("scalability".to_owned(), values);
        }
    }
}

/// The library under its default fairness.
pub fn default_library() -> Target {
    Target::Library(FairnessSetting(Fairness::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{Done, gather};
    use crate::sys::Usage;

    fn row(load: Load, tasks: u32) -> Row {
        let level = Level::Processes;
        Row {
            load,
            level,
            held: 0,
            tasks,
        }
    }

    fn cell_of(row: Row, target: &Target, turn: &Turn, is_timed: bool) -> Cell {
        let mut cell = new_cell(row, target, None);
        add_turn(&mut cell, row, target, turn, is_timed);
        cell
    }

    fn kernel() -> Target {
        Target::Kernel("/tmp".into())
    }

    /// Three processes of two tasks each, whose waits span six decades.
    #[test]
    fn percentiles_are_those_of_all_waits_sorted() {
        let mut raw = Vec::new();
        let mut state = 1u64;
        let mut reports = Vec::new();
        for _ in 0..3 {
            let mut all = Vec::new();
            for _ in 0..2 {
                let mut waits = histogram();
                for _ in 0..5000 {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    let decade = 10u64.pow((state >> 60) as u32 % 6);
                    let wait = decade * (10 + (state >> 33) % 90);
                    waits.saturating_record(wait);
                    raw.push(wait);
                }
                all.push(Ok(Done {
                    waits: Some(waits),
                    ..Done::default()
                }));
            }
            reports.push(gather(all).expect("no task failed"));
        }
        raw.sort_unstable();
        let turn = Turn::gather(Duration::from_secs(1), reports).expect("gathered");
        let cell = cell_of(row(Load::Lock2, 6), &kernel(), &turn, true);
        for (name, place) in [
            ("wait_p50_ns", raw.len() / 2 - 1),
            ("wait_p99_ns", raw.len() * 99 / 100 - 1),
            ("wait_max_ns", raw.len() - 1),
        ] {
            let (found, exact) = (cell.mean(name).expect(name), raw[place] as f64);
            assert!(
                (found / exact - 1.0).abs() < 1e-3,
                "{name}: {found} {exact}"
            );
        }
    }

    #[test]
    fn a_turn_in_which_no_call_came_back_has_no_percentiles() {
        let turn = Turn::gather(Duration::from_secs(1), Vec::new()).expect("gathered");
        for load in [Load::Lock2, Load::Herd] {
            let cell = cell_of(row(load, 2), &kernel(), &turn, true);
            assert_eq!(cell.mean("wait_p99_ns"), None);
            assert!(cell.notes[0].contains("no wait was measured"));
        }
    }

    /// Two tasks in half a second: 3000 and 1000 pairs; 40 and 60 switches; 0.1 and 0.3 s of user time.
    #[test]
    fn rates_are_those_computed_by_hand() {
        let task = |pairs, voluntary, user_us| TaskReport {
            pairs,
            usage: Usage {
                voluntary,
                user_us,
                system_us: 50_000,
                involuntary: 5,
            },
            granted_at: 0,
        };
        let report = GroupReport {
            tasks: vec![task(3000, 40, 100_000), task(1000, 60, 300_000)],
            library: Some(LibraryReport {
                acquisitions: 5000,
                wake_ups: 10,
            }),
            ..GroupReport::default()
        };
        let turn = Turn::gather(Duration::from_millis(500), vec![report]).expect("gathered");
        for (target, wake_ups) in [
            (kernel(), 100.0 / 4000.0),
            (default_library(), 10.0 / 5000.0),
        ] {
            let cell = cell_of(row(Load::Lock2, 2), &target, &turn, false);
            for (name, by_hand) in [
                // A lock and an unlock are two.
                ("ops", 16_000.0),
                ("per_process_ops", 8000.0),
                ("least_served", 0.5),
                ("user_time", 0.8),
                ("system_time", 0.2),
                ("voluntary_context_switches", 200.0),
                ("involuntary_context_switches", 20.0),
                ("wake_ups_per_release", wake_ups),
            ] {
                let found = cell.mean(name).expect(name);
                assert!((found - by_hand).abs() < 1e-9, "{name}: {found}");
            }
        }
    }

    #[test]
    fn scalability_is_of_the_mean_of_one_task() {
        let target = kernel();
        let mut cells = [(1, [90.0, 110.0]), (4, [100.0, 300.0])].map(|(tasks, ops)| {
            let mut cell = new_cell(row(Load::Lock2, tasks), &target, None);
            cell.metrics.insert("ops".to_owned(), ops.to_vec());
            cell
        });
        add_scalability(&mut cells);
        assert_eq!(cells[0].metrics["scalability"], [0.9, 1.1]);
        assert_eq!(cells[1].metrics["scalability"], [0.25, 0.75]);
    }
}
