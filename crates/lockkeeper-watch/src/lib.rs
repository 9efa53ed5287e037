//! What can be seen of file locks: who holds what, who waits for whom, since when, and why.
//!
//! A [`Report`](report::Report) is what is known at one moment, wherever it comes from. Nothing here
//! knows FUSE or the lock manager.

#![deny(missing_docs)]

pub mod ask;
pub mod deadlock;
pub mod explain;
mod in_the_way;
pub mod kernel;
pub mod metrics;
pub mod process;
pub mod report;
pub mod rows;
pub mod timeline;
pub mod tree;
pub mod words;
