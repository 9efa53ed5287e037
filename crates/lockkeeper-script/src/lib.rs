//! Lock scripts: the test language for file locks, with executors for the lockkeeper library and for real directories.
//!
//! A script says who opens what, who locks what, and what each call must return. The same script runs on
//! every place that serves locks.
//!
//! - [`script`] holds what a script is made of; `parse` reads the text and `print` writes it.
//! - [`executor`] is the one trait behind which a place stands; [`census`] knows what makes sense in a
//!   run, [`runner`] runs a script and gives the verdict.
//! - [`directory`] is the executor for a folder of a file system: one real process an actor.
//! - [`library`] is the executor for the library: actors are model processes.
//! - [`generate`] makes random scripts, [`differ`] runs them on two executors at once and compares, and
//!   [`shrink`](mod@shrink) makes short what differs.

pub mod census;
pub mod differ;
pub mod directory;
pub mod executor;
pub mod generate;
pub mod library;
mod parse;
mod print;
mod random;
pub mod runner;
pub mod script;
pub mod shrink;

pub use executor::{Executor, ExecutorError};
pub use parse::ParseError;
pub use runner::{Report, run};
pub use script::Script;
