//! What carries out the steps of a script.

use crate::script::{Actor, Outcome, Step};

/// A place that serves locks, to which a script can be put.
///
/// The caller promises that every step makes sense where it stands (see [`Census`](crate::census::Census)):
/// actors live, descriptors are open, an actor whose call has not been collected by `done` gets no other
/// call. An executor may rely on it and answer [`ExecutorError::Misuse`] where it is broken.
///
/// What each step returns:
///
/// - A call that may wait and has not returned once things have settled is [`Outcome::Blocked`]. Its
///   result is kept until [`Verb::Done`](crate::script::Verb::Done) collects it.
/// - `done` returns that result, or [`Outcome::Blocked`] where it does not come within the time that the
///   executor allows (5 s of real time).
/// - `blocked` returns [`Outcome::Blocked`] while the call is blocked, and otherwise the call's result,
///   which stays to be collected.
/// - `notified` returns [`Outcome::Ok`], or [`Outcome::None`] where nothing came since it was last asked.
/// - `held` and `waiting` return [`Outcome::Listing`]: `held` in the order of
///   [`Item::sort`](crate::script::Item::sort), `waiting` in the order in which the requests came. An item
///   names the process; a process is named by the actor that began it, whichever of its threads acts.
/// - All else returns [`Outcome::Ok`] or [`Outcome::Error`], and the queries what they found.
pub trait Executor {
    /// Begins a script: no actor lives and no file exists.
    ///
    /// # Errors
    /// The place cannot be used.
    fn begin(&mut self) -> Result<(), ExecutorError>;

    /// Carries out one step and returns what came of it, once things have settled.
    ///
    /// # Errors
    /// The step could not be carried out at all. The script cannot go on.
    fn step(&mut self, step: &Step) -> Result<Outcome, ExecutorError>;

    /// Ends a script, whatever its state: ends its actors, removes its files, undoes its settings.
    ///
    /// # Errors
    /// Something may be left over.
    fn end(&mut self) -> Result<(), ExecutorError>;

    /// The locks and the wait tree of every file, drawn for a reader, where the executor can do better
    /// than the runner, which otherwise shows `held` and `waiting`.
    fn picture(&mut self) -> Option<String> {
        None
    }
}

impl<E: Executor + ?Sized> Executor for Box<E> {
    fn begin(&mut self) -> Result<(), ExecutorError> {
        (**self).begin()
    }

    fn step(&mut self, step: &Step) -> Result<Outcome, ExecutorError> {
        (**self).step(step)
    }

    fn end(&mut self) -> Result<(), ExecutorError> {
        (**self).end()
    }

    fn picture(&mut self) -> Option<String> {
        (**self).picture()
    }
}

/// Why a step could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecutorError {
    /// A call that cannot wait did not return. Its process has been killed.
    #[error("{actor} hangs in `{call}`: process {pid} has been killed")]
    Hung {
        /// The actor.
        actor: Actor,
        /// The call.
        call: String,
        /// The process that was killed.
        pid: i32,
    },
    /// A process ended that should live.
    #[error("the process of {actor} is gone")]
    Lost {
        /// The actor.
        actor: Actor,
    },
    /// The place cannot do this.
    #[error("{0}")]
    Unsupported(String),
    /// The step makes no sense where it stands.
    #[error("{0}")]
    Misuse(String),
    /// The place has broken a rule of its own.
    #[error("broken: {0}")]
    Broken(String),
    /// The place cannot be used.
    #[error("{what}: {reason}")]
    Place {
        /// What was tried.
        what: String,
        /// What the system said.
        reason: String,
    },
}

impl ExecutorError {
    /// The failure of `what` with `reason`.
    pub fn place(what: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self::Place {
            what: what.into(),
            reason: reason.to_string(),
        }
    }
}
