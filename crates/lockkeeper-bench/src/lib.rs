//! `lockkeeper bench`: does it scale?
//!
//! The loads that the field measures ([`load`]), on the library, on a kernel and on mounts
//! ([`target`]) in one run ([`run`]), as a result file ([`format`](mod@format)), tables ([`table`]),
//! comparisons ([`compare`](mod@compare)), pictures ([`plot`]), a model of more cores ([`model`](mod@model))
//! and all of it as a page ([`report`]).
//!
//! Tasks are processes and threads of this program started again ([`group`]), so that what does not end
//! by itself can be ended.

#![deny(missing_docs)]
#![deny(unsafe_code)]

pub mod board;
pub mod cache_lines;
pub mod compare;
pub mod errand;
pub mod error;
pub mod folder;
pub mod format;
pub mod group;
pub mod load;
pub mod machine;
pub mod metric;
pub mod model;
pub mod on_kernel;
pub mod on_library;
mod pipe;
pub mod plot;
pub mod report;
pub mod run;
mod sys;
pub mod table;
pub mod target;
pub mod tasks;

pub use error::Error;
