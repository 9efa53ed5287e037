//! Runs a script over an executor and gives the verdict.

use std::fmt;

use crate::census::{Census, Misuse};
use crate::executor::{Executor, ExecutorError};
use crate::script::{Outcome, Script, Statement, Step};

/// What became of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The script's name.
    pub name: String,
    /// Where it failed and why; `None` where it passed.
    pub failure: Option<Failure>,
}

/// Where a script failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The line; `None` where it failed outside of any, at the beginning or the end.
    pub line: Option<usize>,
    /// Why.
    pub fault: Fault,
}

/// Why a script failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A step returned something else.
    #[error("expected {expected}, got {got}")]
    Mismatch {
        /// What the script says.
        expected: Outcome,
        /// What came.
        got: Outcome,
    },
    /// A step makes no sense where it stands.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// A step could not be carried out.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
}

impl Report {
    /// Whether the script passed.
    pub fn passed(&self) -> bool {
        self.failure.is_none()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failure {
            None => write!(f, "PASS {}", self.name),
            Some(Failure {
                line: Some(line),
                fault,
            }) => write!(f, "FAIL {}:{line} {fault}", self.name),
            Some(Failure { line: None, fault }) => write!(f, "FAIL {} {fault}", self.name),
        }
    }
}

/// Is shown every step of a run.
pub trait Observer {
    /// A step was carried out. `picture` draws the files as they are now.
    fn stepped(
        &mut self,
        line: usize,
        statement: &Statement,
        got: &Outcome,
        picture: &mut dyn FnMut() -> String,
    );
}

/// Looks at nothing.
impl Observer for () {
    fn stepped(&mut self, _: usize, _: &Statement, _: &Outcome, _: &mut dyn FnMut() -> String) {}
}

/// Runs `script` on `executor` up to the first line that fails.
pub fn run(script: &Script, executor: &mut dyn Executor, observer: &mut dyn Observer) -> Report {
    let failure = executor
        .begin()
        .map_err(|error| Failure {
            line: None,
            fault: error.into(),
        })
        .and_then(|()| run_statements(script, executor, observer));
    // What the end of the run has to say is of interest only where nothing went wrong before it.
    let end = executor.end().map_err(|error| Failure {
        line: None,
        fault: error.into(),
    });
    Report {
        name: script.name().to_owned(),
        failure: failure.and(end).err(),
    }
}

fn run_statements(
    script: &Script,
    executor: &mut dyn Executor,
    observer: &mut dyn Observer,
) -> Result<(), Failure> {
    let mut census = Census::default();
    for (line, statement) in script.statements() {
        let fail = |fault: Fault| Failure {
            line: Some(line),
            fault,
        };
        let Statement { step, expected } = statement;
        census.check(step).map_err(|misuse| fail(misuse.into()))?;
        let got = executor.step(step).map_err(|error| fail(error.into()))?;
        census.record(line, step, &got);
        observer.stepped(line, statement, &got, &mut || picture(executor, &census));
        if got != *expected {
            let expected = expected.clone();
            return Err(fail(Fault::Mismatch { expected, got }));
        }
    }
    Ok(())
}

/// The executor's own picture, or else `held` and `waiting` of every file.
fn picture(executor: &mut dyn Executor, census: &Census) -> String {
    if let Some(picture) = executor.picture() {
        return picture;
    }
    let mut text = String::new();
    for file in census.files() {
        for step in [Step::Held(file.clone()), Step::Waiting(file.clone())] {
            let line = match executor.step(&step) {
                Ok(Outcome::Listing(items)) if items.is_empty() => continue,
                Ok(outcome) => format!("{step}: {outcome}\n"),
                Err(error) => format!("{step}: {error}\n"),
            };
            text.push_str(&line);
        }
    }
    text
}
