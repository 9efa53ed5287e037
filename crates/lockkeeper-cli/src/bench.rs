//! `lockkeeper bench`: loads of file locks, measured on the library, a kernel and mounts side by side.
//!
//! Exit code 0: done. 1: `compare` found a regression. 2: it could not be done; nothing was written.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use lockkeeper_bench::Error;
use lockkeeper_bench::compare::compare;
use lockkeeper_bench::format::{Output, ResultFile, Settings};
use lockkeeper_bench::load::{FairnessSetting, Level, Load};
use lockkeeper_bench::model;
use lockkeeper_bench::plot;
use lockkeeper_bench::report::{self, Folder, Request};
use lockkeeper_bench::run::{self, Plan, Program};
use lockkeeper_bench::table;
use lockkeeper_bench::target::{TMPFS, Target};
use lockkeeper_bench::tasks::TaskList;

/// Starts a group of tasks; for `bench` alone.
pub const GROUP_COMMAND: &str = "bench-group";
/// Does something in a folder; for `bench` alone.
pub const ERRAND_COMMAND: &str = "bench-errand";
/// Locks files in two threads for who traces it; for tests alone.
pub const CACHE_LINES_COMMAND: &str = "bench-cache-lines";

/// What to measure, or what to make of what was measured.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArguments,
}

#[derive(Subcommand)]
enum Command {
    /// Draw a result: throughput over the number of tasks with its spread, and waits
    Plot {
        /// A result of `bench --output`
        result: PathBuf,
        /// The picture: its name ends in .svg or .png
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
        /// Only these loads
        #[arg(long, value_name = "LOAD,…", value_delimiter = ',')]
        load: Vec<Load>,
        /// Only tasks that are these
        #[arg(long = "as", value_name = "WHAT,…", value_delimiter = ',')]
        levels: Vec<Level>,
        /// Only these targets, as the result names them: `library`, `kernel`, `mount /mnt/data`
        #[arg(long = "on", value_name = "TARGET,…", value_delimiter = ',')]
        targets: Vec<String>,
    },
    /// Compare two results, as kernel testers do; exit status 1 for a regression
    Compare {
        /// The result to compare with
        base: PathBuf,
        /// The result to compare
        head: PathBuf,
        /// A change for the worse by more than this is a regression
        #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
        threshold: f64,
    },
    /// Model many cores from costs that are measured here, the kernel's design beside ours
    Model {
        /// A picture of it: its name ends in .svg or .png
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        measuring: Measuring,
    },
    /// Run every load, and write a page with pictures and the result, in less than ten minutes
    Report {
        /// The folder to write
        #[arg(long, short, value_name = "FOLDER")]
        output: PathBuf,
        /// Replace a report that is there
        #[arg(long)]
        force: bool,
        /// A mount point that is measured, too
        #[arg(long, value_name = "MOUNTPOINT")]
        mount: Option<PathBuf>,
        /// Leave out loads with more tasks
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        most_tasks: u32,
        #[command(flatten)]
        measuring: Measuring,
    },
}

/// How long reports and models measure.
#[derive(Args)]
struct Measuring {
    /// How often each target has its turn
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
    /// How long a turn is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 0.4)]
    seconds: f64,
}

impl Measuring {
    fn settings(&self) -> Settings {
        Settings {
            rounds: self.rounds,
            seconds: self.seconds,
            warm_up: self.seconds.min(0.05),
            affinity: true,
        }
    }
}

/// How long a file system may take to answer, in reports.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

#[derive(Args)]
struct RunArguments {
    /// Loads: lock1, lock2, readers, ranges, herd, chain, flock, ofd, lease
    #[arg(value_name = "LOAD", default_values = ["lock1", "lock2"])]
    loads: Vec<Load>,
    /// Who grants the locks: `library`, `kernel` (on a tmpfs), `kernel=FOLDER`, `mount=MOUNTPOINT`
    #[arg(long = "on", value_name = "TARGET,…", value_delimiter = ',', default_values = ["library", "kernel"])]
    targets: Vec<TargetWord>,
    /// Numbers of tasks: `1,2,8`, `1..8`, `n` for the number of cpus
    #[arg(long, value_name = "LIST", default_value = "1…n")]
    tasks: TaskList,
    /// What tasks are: `threads`, `processes`
    #[arg(long = "as", value_name = "WHAT,…", value_delimiter = ',', default_values = ["threads"])]
    levels: Vec<Level>,
    /// How the library treats waiters that newcomers overtake: `first-come`, `bound N`, `unlimited`
    #[arg(long, value_name = "SETTING,…", value_delimiter = ',')]
    fairness: Vec<FairnessSetting>,
    /// How many ranges others hold in the file (ranges), up to 100,000
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=100_000))]
    held: Vec<u64>,
    /// How often each target has its turn
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
    /// How long a turn is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
    /// How long tasks run before it
    #[arg(long, value_name = "SECONDS", default_value_t = 0.1)]
    warm_up: f64,
    /// Let the scheduler choose the cpus
    #[arg(long)]
    no_affinity: bool,
    /// How long a file system may take to answer
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    answer_within: f64,
    /// Where the result goes, as JSON
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the result as JSON in place of tables
    #[arg(long)]
    json: bool,
}

/// A target as the command line names it.
#[derive(Clone, Debug)]
enum TargetWord {
    Library,
    Folder(Target),
}

impl FromStr for TargetWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "library" => Ok(Self::Library),
            None if text == "kernel" => Ok(Self::Folder(Target::Kernel(TMPFS.into()))),
            Some(("kernel", folder)) if !folder.is_empty() => {
                Ok(Self::Folder(Target::Kernel(folder.into())))
            }
            Some(("mount", folder)) if !folder.is_empty() => {
                Ok(Self::Folder(Target::Mount(folder.into())))
            }
            _ => {
                Err("a target is `library`, `kernel`, `kernel=FOLDER` or `mount=MOUNTPOINT`".into())
            }
        }
    }
}

impl RunArguments {
    fn plan(&self) -> anyhow::Result<Plan> {
        let mut targets = Vec::new();
        for word in &self.targets {
            match word {
                TargetWord::Folder(target) => targets.push(target.clone()),
                TargetWord::Library if self.fairness.is_empty() => {
                    targets.push(run::default_library());
                }
                TargetWord::Library => {
                    targets.extend(self.fairness.iter().copied().map(Target::Library));
                }
            }
        }
        ensure!(
            self.fairness.is_empty() || targets.iter().any(|t| matches!(t, Target::Library(_))),
            "--fairness is a setting of the library, which is not among the targets"
        );
        ensure!(
            self.held.is_empty() || self.loads.contains(&Load::Ranges),
            "--held is for the load `ranges`, which is not to be run"
        );
        for (n, target) in targets.iter().enumerate() {
            ensure!(!targets[..n].contains(target), "{target} is named twice");
        }
        Ok(Plan {
            loads: once(&self.loads),
            levels: once(&self.levels),
            tasks: self.tasks.0.clone(),
            targets,
            held: if self.held.is_empty() {
                vec![0]
            } else {
                once(&self.held)
            },
            settings: Settings {
                rounds: self.rounds,
                seconds: self.seconds,
                warm_up: self.warm_up,
                affinity: !self.no_affinity,
            },
            answer_within: seconds(self.answer_within)?,
        })
    }
}

fn once<T: Clone + PartialEq>(list: &[T]) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for item in list {
        if !kept.contains(item) {
            kept.push(item.clone());
        }
    }
    kept
}

fn seconds(value: f64) -> anyhow::Result<Duration> {
    let duration = Duration::try_from_secs_f64(value).ok();
    duration
        .filter(|time| !time.is_zero() && *time <= Duration::from_secs(3600))
        .context("--answer-within is a number of seconds, more than 0 and at most 3600")
}

/// How the bench starts this program again.
fn this_program() -> anyhow::Result<Program> {
    Ok(Program {
        path: std::env::current_exe().context("cannot find this program")?,
        group_command: GROUP_COMMAND.to_owned(),
        errand_command: ERRAND_COMMAND.to_owned(),
    })
}

/// Set when the user wants it to end: by Ctrl-C, by kill, or by closing the terminal.
fn ended_by_user() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // nohup(1) means it.
        if !is_ignored(signal) {
            signal_hook::flag::register(signal, stop.clone()).context("cannot catch signals")?;
        }
    }
    Ok(stop)
}

/// Whether who started this program had a signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// A bar, where there is somebody to see it.
fn bar(turns: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(turns);
    let template = "{bar:40} {pos} of {len} turns, {eta} left, {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Calls `measure` with what it needs: this program, when to stop, and whom to tell of each turn.
fn measure<T>(
    turns: u64,
    measure: impl FnOnce(&Program, &AtomicBool, &mut dyn FnMut(&str)) -> Result<T, Error>,
) -> anyhow::Result<T> {
    let bar = bar(turns);
    let stop = ended_by_user()?;
    let mut turn = 0;
    let result = measure(&this_program()?, &stop, &mut |what| {
        bar.set_position(turn);
        bar.set_message(what.to_owned());
        turn += 1;
    });
    bar.finish_and_clear();
    Ok(result?)
}

/// Prints, and takes a closed pipe for the end.
fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot print"),
    }
}

/// Measures, or does what the subcommand says.
///
/// # Errors
/// It cannot be done; nothing has been written then.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        None => measure_and_print(&arguments.run),
        Some(Command::Plot {
            result,
            output,
            load,
            levels,
            targets,
        }) => draw(result, output, load, levels, targets),
        Some(Command::Compare {
            base,
            head,
            threshold,
        }) => compare_files(base, head, *threshold),
        Some(Command::Model { output, measuring }) => show_model(output.as_deref(), measuring),
        Some(Command::Report {
            output,
            force,
            mount,
            most_tasks,
            measuring,
        }) => {
            let request = Request {
                settings: measuring.settings(),
                most_tasks: *most_tasks,
                mount: mount.clone(),
                answer_within: ANSWER_WITHIN,
            };
            write_report(&request, output, *force)
        }
    }
}

fn measure_and_print(arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let plan = arguments.plan()?;
    plan.check()?;
    let output = arguments
        .output
        .as_deref()
        .map(Output::prepare)
        .transpose()?;
    let result = measure(plan.turns(), |program, stop, progress| {
        run::run(&plan, program, stop, progress)
    })?;
    let json = result.to_json();
    if let Some(output) = output {
        output.commit(json.as_bytes())?;
    }
    if arguments.json {
        print(&json)?;
    } else {
        print(&table::render(&result))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn draw(
    result: &Path,
    picture: &Path,
    loads: &[Load],
    levels: &[Level],
    targets: &[String],
) -> anyhow::Result<ExitCode> {
    let mut result = ResultFile::load(result)?;
    result.results.retain(|cell| {
        (loads.is_empty() || loads.contains(&cell.load))
            && (levels.is_empty() || levels.contains(&cell.level))
            && (targets.is_empty() || targets.contains(&cell.target))
    });
    ensure!(
        !result.results.is_empty(),
        "the result has nothing of that kind"
    );
    let output = picture_file(picture)?;
    let rows = plot::rows_of(&result);
    output.commit(&plot::for_file(&rows, picture)?)?;
    Ok(ExitCode::SUCCESS)
}

fn compare_files(base: &Path, head: &Path, threshold: f64) -> anyhow::Result<ExitCode> {
    ensure!(
        threshold.is_finite() && threshold >= 0.0,
        "--threshold is a percentage, 0 or more"
    );
    let (base, head) = (ResultFile::load(base)?, ResultFile::load(head)?);
    let comparison = compare(&base, &head, threshold);
    ensure!(
        !comparison.changes.is_empty(),
        "the two results have nothing in common"
    );
    print(&comparison.render())?;
    Ok(match comparison.regressions().next() {
        Some(_) => ExitCode::from(1),
        None => ExitCode::SUCCESS,
    })
}

fn show_model(picture: Option<&Path>, measuring: &Measuring) -> anyhow::Result<ExitCode> {
    let plan = report::plan_of_model(&measuring.settings(), ANSWER_WITHIN);
    plan.check()?;
    let output = picture
        .map(|path| Ok::<_, Error>((path, picture_file(path)?)))
        .transpose()?;
    let result = measure(plan.turns(), |program, stop, progress| {
        run::run(&plan, program, stop, progress)
    })?;
    let model = model::model(&result.results)?;
    if let Some((path, output)) = output {
        output.commit(&plot::for_file(&[model.row()], path)?)?;
    }
    print(&model.render())?;
    Ok(ExitCode::SUCCESS)
}

/// A place for a picture, of a format that can be drawn.
fn picture_file(path: &Path) -> Result<Output, Error> {
    plot::check_name(path)?;
    Output::prepare(path)
}

fn write_report(request: &Request, path: &Path, force: bool) -> anyhow::Result<ExitCode> {
    let plans = request.plans();
    plans.iter().try_for_each(Plan::check)?;
    let folder = Folder::prepare(path, force)?;
    let turns = plans.iter().map(Plan::turns).sum();
    let result = measure(turns, |program, stop, progress| {
        report::measure(request, program, stop, progress)
    })?;
    folder.commit(&result)?;
    print(&format!(
        "{} written, with results.json beside it\n",
        path.join("report.html").display()
    ))?;
    Ok(ExitCode::SUCCESS)
}
