//! `cargo xtask test`: every check of the project, on a developer's machine and in CI alike.
//!
//! The checks are the lines of one table ([`steps::STEPS`]); the Debian packages that tests need are
//! the lines of another (`packages::PACKAGES`). A step that fails does not stop the ones after it,
//! so that one run shows everything that is wrong.

#![deny(missing_docs)]

mod examples;
mod packages;
mod room;
mod run;
mod steps;

use std::path::Path;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};

/// The checks of the project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every check and say which failed
    Test(Test),
    /// Install the Debian packages that tests need, or name the missing ones
    Packages,
    /// Run every example of the library; each must exit 0
    Examples,
}

#[derive(Args)]
struct Test {
    /// Run these steps and no others
    #[arg(long, value_name = "STEP", num_args = 1.., value_parser = step_names())]
    only: Vec<String>,
    /// Leave these steps out
    #[arg(long, value_name = "STEP", num_args = 1.., value_parser = step_names())]
    skip: Vec<String>,
    /// Print the steps, why each is there and its command, and run nothing
    #[arg(long)]
    list: bool,
}

fn step_names() -> PossibleValuesParser {
    steps::STEPS.iter().map(|step| step.name).into()
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Test(test) => run_tests(&test),
        Task::Packages => packages::ensure_all().map(|()| true),
        Task::Examples => examples::run_all(repository()).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every selected step passed.
fn run_tests(test: &Test) -> anyhow::Result<bool> {
    let selected = steps::select(steps::STEPS, &test.only, &test.skip)?;
    if test.list {
        print!("{}", steps::list(&selected));
        return Ok(true);
    }
    room::ensure_room(repository())?;
    let outcomes: Vec<_> = selected
        .iter()
        .map(|step| run::run(step, repository()))
        .collect();
    let left_out = steps::left_out(steps::STEPS, &selected);
    print!("{}", run::summary(&outcomes, &left_out));
    Ok(outcomes.iter().all(run::Outcome::passed))
}

/// The root of the repository, where every step's command is run.
fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn only_and_skip_take_several_steps_and_may_be_repeated() {
        let cli = Cli::try_parse_from([
            "xtask", "test", "--only", "fmt", "clippy", "--only", "docs", "--skip", "fmt",
        ]);
        let Ok(Cli {
            task: Task::Test(test),
        }) = cli
        else {
            panic!("not parsed as `test`");
        };
        assert_eq!(test.only, ["fmt", "clippy", "docs"]);
        assert_eq!(test.skip, ["fmt"]);
        assert!(!test.list);
    }

    #[test]
    fn a_step_that_does_not_exist_is_refused() {
        assert!(Cli::try_parse_from(["xtask", "test", "--only", "fnt"]).is_err());
    }
}
