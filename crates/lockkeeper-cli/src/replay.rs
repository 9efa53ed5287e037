//! `lockkeeper replay`: runs lock scripts and says which passed.
//!
//! Exit code 0: all passed. 1: a script failed. 2: nothing was run, because a file is no script or the
//! place cannot be used.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use lockkeeper_script::Script;
use lockkeeper_script::library::LEGEND;
use lockkeeper_script::runner::{self, Observer};
use lockkeeper_script::script::{Outcome, Statement};

use crate::place::Place;

/// What to run, and where.
#[derive(Args)]
pub struct Arguments {
    /// Where the scripts run: `library`, or a directory whose file system serves the locks
    #[arg(long, value_name = "library|DIR", default_value_t = Place::Library)]
    on: Place,
    /// Show each step, what it returned, and the locks and waiters after it
    #[arg(long)]
    explain: bool,
    /// On a directory, call blocked only what has not returned for 100 ms
    #[arg(long)]
    strict: bool,
    /// Lock scripts; a folder stands for its *.lk files
    #[arg(required = true, value_name = "SCRIPT")]
    scripts: Vec<PathBuf>,
}

/// Runs the scripts and reports.
///
/// # Errors
/// Something that is no script, or a place that cannot be used.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let scripts = read_all(&arguments.scripts)?;
    let mut executor = arguments.on.executor(arguments.strict)?;
    let mut out = io::stdout().lock();
    let (mut passed, mut failed) = (0, 0);
    for script in &scripts {
        let report = if arguments.explain {
            writeln!(out, "{}:", script.name())?;
            if arguments.on == Place::Library {
                writeln!(out, "      {LEGEND}")?;
            }
            runner::run(script, &mut executor, &mut Explainer { out: &mut out })
        } else {
            runner::run(script, &mut executor, &mut ())
        };
        match report.passed() {
            true => passed += 1,
            false => failed += 1,
        }
        writeln!(out, "{report}")?;
    }
    writeln!(out, "{passed} passed, {failed} failed")?;
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// All scripts, none of which may have a mistake.
fn read_all(paths: &[PathBuf]) -> anyhow::Result<Vec<Script>> {
    let mut scripts = Vec::new();
    let mut mistakes = Vec::new();
    for path in paths {
        for file in scripts_of(path)? {
            let text = fs::read_to_string(&file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            match Script::parse(&file.to_string_lossy(), &text) {
                Ok(script) if script.statements().next().is_none() => {
                    mistakes.push(format!("{}: no steps: nothing to run", file.display()));
                }
                Ok(script) => scripts.push(script),
                Err(mistake) => mistakes.push(mistake.to_string()),
            }
        }
    }
    if !mistakes.is_empty() {
        bail!("{}", mistakes.join("\n"));
    }
    Ok(scripts)
}

/// The path itself, or the *.lk files of a folder in the order of their names.
fn scripts_of(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let cannot_read = || format!("cannot read {}", path.display());
    if !fs::metadata(path).with_context(cannot_read)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).with_context(cannot_read)? {
        let file = entry.with_context(cannot_read)?.path();
        if file.extension().is_some_and(|extension| extension == "lk") {
            files.push(file);
        }
    }
    if files.is_empty() {
        bail!("{} has no *.lk files", path.display());
    }
    files.sort();
    Ok(files)
}

/// Prints each step with what it returned and what it left.
struct Explainer<'a, W> {
    out: &'a mut W,
}

impl<W: Write> Observer for Explainer<'_, W> {
    fn stepped(
        &mut self,
        line: usize,
        statement: &Statement,
        got: &Outcome,
        picture: &mut dyn FnMut() -> String,
    ) {
        // Output that nobody reads any more does not stop a run.
        let _ = writeln!(self.out, "{line:4}  {}  => {got}", statement.step);
        for drawn in picture().lines() {
            let _ = writeln!(self.out, "          {drawn}");
        }
    }
}
