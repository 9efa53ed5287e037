//! `lockkeeper differ`: random scripts on a directory and on the library at once.
//!
//! Exit code 0: the two agreed. 1: they did not; the shortest script that shows it is printed and kept.
//! 2: the directory cannot be used.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lockkeeper::Fairness;
use lockkeeper_script::differ::{self, Answer, Comparison, Divergence, End, Rules};
use lockkeeper_script::directory::Directory;
use lockkeeper_script::generate::{self, Settings};
use lockkeeper_script::library::Library;
use lockkeeper_script::script::{Script, Statement, Step};
use lockkeeper_script::shrink::shrink;

use crate::place::on_directory;

/// How often a script that differs is run again, to see whether it always does.
const ASKED_AGAIN: usize = 3;

/// What to run, and where.
#[derive(Args)]
pub struct Arguments {
    /// The directory whose file system is compared with the library
    #[arg(long, value_name = "DIR")]
    on: PathBuf,
    /// The same seed gives the same scripts; a fresh one by default
    #[arg(long)]
    seed: Option<u64>,
    /// Stop after so many calls
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    operations: u64,
    /// How many processes a script begins with
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = in_range(1, 64))]
    actors: usize,
    /// How many files a script has
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = in_range(1, 64))]
    files: usize,
    /// How many steps a script has
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = in_range(1, 10_000))]
    steps: usize,
    /// How many scripts in a hundred have leases
    #[arg(long, value_name = "PERCENT", default_value_t = 15, value_parser = in_range(0, 100))]
    leases: usize,
    /// How many newcomers may overtake a waiter of the library: `unlimited`, as on Linux, or a number
    #[arg(long, value_name = "N", default_value = "unlimited")]
    fairness: Overtakers,
    /// The number of the first script of the seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// Where the script that shows a divergence is kept
    #[arg(long, value_name = "DIR", default_value = ".")]
    keep: PathBuf,
}

fn in_range(
    least: usize,
    most: usize,
) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |text| match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("not a number from {least} to {most}")),
    }
}

#[derive(Clone, Copy)]
struct Overtakers(Fairness);

impl FromStr for Overtakers {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "unlimited" => Ok(Self(Fairness::Unlimited)),
            number => number
                .parse()
                .map(|bound| Self(Fairness::Bounded(bound)))
                .map_err(|_| "neither `unlimited` nor a number"),
        }
    }
}

/// Compares until the operations are done or the sides differ.
///
/// # Errors
/// The directory cannot be used, or the script cannot be kept.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    ensure!(
        arguments.keep.is_dir(),
        "cannot keep scripts in {}: it is no directory",
        arguments.keep.display()
    );
    let mut sides = Sides {
        directory: on_directory(&arguments.on, false)?,
        library: Library::new(arguments.fairness.0),
    };
    let seed = arguments.seed.unwrap_or_else(fresh_seed);
    println!("seed {seed}");
    let settings = Settings {
        actors: arguments.actors,
        files: arguments.files,
        steps: arguments.steps,
        leases: arguments.leases,
    };
    let bar = progress_bar(arguments.operations, seed);
    let mut tally = Tally::new();
    for number in arguments.first.. {
        if tally.operations >= arguments.operations {
            break;
        }
        let steps = generate::script(seed, number, &settings);
        let comparison = sides.compare(&steps)?;
        tally.add(&comparison);
        bar.set_position(tally.operations);
        let End::Diverged(divergence) = comparison.end else {
            continue;
        };
        // The library answers the same to the same. Where the directory does not, both answers are its.
        if sides.is_unsteady(&steps)? {
            tally.unsteady += 1;
            let answers = both(&divergence, &arguments.on);
            bar.suspend(|| {
                eprintln!("script {number}: the directory answered otherwise when asked again");
                eprintln!("{answers}");
            });
            continue;
        }
        bar.finish_and_clear();
        println!("{tally}");
        let place = arguments.on.display();
        let name = format!("divergence-{seed}-{number}");
        println!(
            "script {number} differs:\n{}",
            both(&divergence, &arguments.on)
        );
        println!("looking for a shorter one …");
        let found = sides.shorten(steps, comparison.transcript);
        let repeat = format!(
            "lockkeeper differ --on {place} --seed {seed} --first {number} --actors {} --files {} \
             --steps {} --leases {}",
            settings.actors, settings.files, settings.steps, settings.leases
        );
        let kept = found.keep(&arguments.keep, &name, &arguments.on, &repeat)?;
        print!("\n{}", kept.text);
        println!("\nkept as {}", kept.path.display());
        return Ok(ExitCode::from(1));
    }
    bar.finish_and_clear();
    println!("{tally}\nno divergence");
    Ok(ExitCode::SUCCESS)
}

/// A seed that no other run has, short enough to be typed.
fn fresh_seed() -> u64 {
    RandomState::new().hash_one(Instant::now()) % 1_000_000_000
}

fn progress_bar(operations: u64, seed: u64) -> ProgressBar {
    let bar = ProgressBar::new(operations);
    let template = "{bar:40} {human_pos} of {human_len} operations, {per_sec}, {eta} left, {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(format!("seed {seed}"));
    bar
}

/// What both sides said.
fn both(divergence: &Divergence, on: &Path) -> String {
    let show = |answer: &Answer| match answer {
        Ok(outcome) => outcome.to_string(),
        Err(error) => error.to_string(),
    };
    let [directory, library] = &divergence.answers;
    let on = on.display().to_string();
    let width = on.chars().count().max("library".len());
    format!(
        "{}\n  {on:width$} => {}\n  {:width$} => {}",
        divergence.step,
        show(directory),
        "library",
        show(library)
    )
}

/// The two executors.
struct Sides {
    directory: Directory,
    library: Library,
}

impl Sides {
    fn compare(&mut self, steps: &[Step]) -> anyhow::Result<Comparison> {
        // The library finds every deadlock, Linux does not.
        let rules = Rules {
            exact: [false, true],
            ..Rules::default()
        };
        Ok(differ::compare(
            steps,
            &mut self.directory,
            &mut self.library,
            &rules,
        )?)
    }

    /// Whether steps that differed once do not always.
    fn is_unsteady(&mut self, steps: &[Step]) -> anyhow::Result<bool> {
        for _ in 0..ASKED_AGAIN {
            if !matches!(self.compare(steps)?.end, End::Diverged(_)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A shortest script that differs.
    fn shorten(&mut self, steps: Vec<Step>, transcript: Vec<Statement>) -> Found {
        let diverges = |sides: &mut Self, steps: &[Step]| match sides.compare(steps) {
            Ok(Comparison {
                end: End::Diverged(divergence),
                transcript,
                ..
            }) => Some((transcript, divergence)),
            _ => None,
        };
        let short = shrink(steps, |part| diverges(self, part).is_some());
        match diverges(self, &short) {
            Some((transcript, divergence)) => Found {
                transcript,
                divergence: Some(divergence),
            },
            None => Found {
                transcript,
                divergence: None,
            },
        }
    }
}

/// A script that differs, with the results of the directory.
struct Found {
    transcript: Vec<Statement>,
    /// `None` where it was seen only once.
    divergence: Option<Box<Divergence>>,
}

struct Kept {
    path: PathBuf,
    text: String,
}

impl Found {
    /// Writes the script into a file of its own.
    fn keep(self, folder: &Path, name: &str, on: &Path, repeat: &str) -> anyhow::Result<Kept> {
        let mut text = format!("# found by {repeat}\n");
        match &self.divergence {
            Some(divergence) => {
                for line in both(divergence, on).lines() {
                    let _ = writeln!(text, "# {line}");
                }
            }
            None => text.push_str("# seen once, and not again\n"),
        }
        let _ = write!(text, "{}", Script::of(name, self.transcript));
        let path = folder.join(format!("{name}.lk"));
        let written = File::create(&path).and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Kept { path, text })
    }
}

/// What has been compared so far.
struct Tally {
    operations: u64,
    scripts: u64,
    /// Scripts that ended early, where Linux is free.
    ended: u64,
    /// Scripts in which the directory gave both answers.
    unsteady: u64,
    accepted: BTreeMap<differ::Freedom, usize>,
    avoided: BTreeMap<differ::Avoided, usize>,
    begin: Instant,
}

impl Tally {
    /// Nothing counted; the rate counts from now.
    fn new() -> Tally {
        Tally {
            operations: 0,
            scripts: 0,
            ended: 0,
            unsteady: 0,
            accepted: BTreeMap::new(),
            avoided: BTreeMap::new(),
            begin: Instant::now(),
        }
    }

    fn add(&mut self, comparison: &Comparison) {
        self.operations += comparison.operations as u64;
        self.scripts += 1;
        self.ended += u64::from(matches!(comparison.end, End::Free(_)));
        for (rule, count) in &comparison.accepted {
            *self.accepted.entry(*rule).or_default() += count;
        }
        for (rule, count) in &comparison.avoided {
            *self.avoided.entry(*rule).or_default() += count;
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fn rules<R: std::fmt::Display>(counts: &BTreeMap<R, usize>) -> String {
            if counts.is_empty() {
                return "nothing".to_owned();
            }
            let counts = counts.iter().map(|(rule, count)| format!("{rule} {count}"));
            counts.collect::<Vec<_>>().join(", ")
        }
        let elapsed = self.begin.elapsed();
        let rate = self.operations as f64 / elapsed.as_secs_f64().max(0.001);
        writeln!(
            f,
            "{} operations in {} scripts, {rate:.0} a second",
            self.operations, self.scripts
        )?;
        writeln!(
            f,
            "accepted as free: {} ({} scripts ended by it)",
            rules(&self.accepted),
            self.ended
        )?;
        write!(f, "left out as races: {}", rules(&self.avoided))?;
        match self.unsteady {
            0 => Ok(()),
            scripts => write!(f, "\nthe directory gave both answers in {scripts} scripts"),
        }
    }
}
