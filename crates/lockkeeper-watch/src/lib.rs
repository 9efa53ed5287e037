//! What can be seen of file locks: who holds what, who waits for whom, since when, and why.
//!
//! A [`Report`](report::Report) is what is known at one moment, wherever it comes from. Nothing here
//! knows FUSE or the lock manager.

#![deny(missing_docs)]

pub mod report;
pub mod rows;
pub mod timeline;
