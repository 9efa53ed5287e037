//! Running the steps and summing them up.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::steps::Step;

/// How a step ended.
pub struct Outcome {
    name: &'static str,
    time: Duration,
    /// None if it passed, else what its shell ended with.
    failure: Option<String>,
}

impl Outcome {
    /// Whether the step's command exited with 0.
    pub fn passed(&self) -> bool {
        self.failure.is_none()
    }

    fn result(&self) -> String {
        match &self.failure {
            None => "passed".to_owned(),
            Some(how) => format!("FAILED ({how})"),
        }
    }
}

/// Runs a step in `directory`. Its output goes where ours goes, as it comes, and it reads nothing.
pub fn run(step: &Step, directory: &Path) -> Outcome {
    println!("\n=== {}: {}\n$ {}", step.name, step.why, step.command);
    let start = Instant::now();
    let status = Command::new("sh")
        .args(["-c", step.command])
        .current_dir(directory)
        .stdin(Stdio::null())
        .status();
    let outcome = Outcome {
        name: step.name,
        time: start.elapsed(),
        failure: match status {
            Ok(status) if status.success() => None,
            Ok(status) => Some(status.to_string()),
            Err(error) => Some(format!("cannot start sh: {error}")),
        },
    };
    println!(
        "=== {}: {} after {}",
        outcome.name,
        outcome.result(),
        seconds(outcome.time)
    );
    outcome
}

/// A table of the outcomes, the steps that were left out if any were, and the closing line
/// `N passed, N failed`.
pub fn summary(outcomes: &[Outcome], left_out: &[&str]) -> String {
    let total: Duration = outcomes.iter().map(|outcome| outcome.time).sum();
    let width = outcomes
        .iter()
        .map(|outcome| outcome.name.len())
        .max()
        .unwrap_or(0)
        .max("total".len());
    let mut text = String::from("\n");
    // Writing to a string cannot fail.
    for outcome in outcomes {
        let (name, time) = (outcome.name, seconds(outcome.time));
        let _ = writeln!(text, "{name:width$}  {time:>9}  {}", outcome.result());
    }
    let _ = writeln!(text, "{:width$}  {:>9}", "total", seconds(total));
    if !left_out.is_empty() {
        let _ = writeln!(text, "not selected: {}", left_out.join(", "));
    }
    let passed = outcomes.iter().filter(|outcome| outcome.passed()).count();
    let failed = outcomes.len() - passed;
    let _ = writeln!(text, "\n{passed} passed, {failed} failed");
    text
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(command: &'static str) -> Outcome {
        let step = Step {
            name: "step",
            why: "a test of the runner",
            command,
        };
        run(&step, Path::new("/"))
    }

    #[test]
    fn a_step_passes_only_when_its_command_exits_with_0() {
        for (line, expected) in [
            ("exit 0", "passed"),
            ("exit 3", "FAILED (exit status: 3)"),
            ("kill -KILL $$", "FAILED (signal: 9 (SIGKILL))"),
            (
                "exec no-such-program-anywhere 2>/dev/null",
                "FAILED (exit status: 127)",
            ),
        ] {
            let outcome = command(line);
            assert_eq!(outcome.result(), expected, "{line}");
            assert_eq!(outcome.passed(), expected == "passed", "{line}");
        }
    }

    #[test]
    fn a_step_runs_in_the_given_directory_and_reads_nothing() {
        assert!(command("test \"$(pwd)\" = /").passed());
        assert!(command("test -z \"$(cat)\"").passed());
    }

    #[test]
    fn the_summary_ends_with_the_counts_of_steps() {
        let outcomes = [
            Outcome {
                name: "fmt",
                time: Duration::from_millis(1_240),
                failure: None,
            },
            Outcome {
                name: "clippy",
                time: Duration::from_secs(100),
                failure: Some("exit status: 101".to_owned()),
            },
        ];
        assert_eq!(
            summary(&outcomes, &["docs", "tests"]),
            "\n\
             fmt         1.2 s  passed\n\
             clippy    100.0 s  FAILED (exit status: 101)\n\
             total     101.2 s\n\
             not selected: docs, tests\n\
             \n\
             1 passed, 1 failed\n"
        );
        assert!(summary(&outcomes[..1], &[]).ends_with("1.2 s\n\n1 passed, 0 failed\n"));
    }
}
