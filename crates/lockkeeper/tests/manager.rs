//! The manager: many files, threads, tasks, callbacks, timers.

mod common;

#[path = "manager/callbacks.rs"]
mod callbacks;
#[path = "manager/deadlocks.rs"]
mod deadlocks;
#[path = "manager/files.rs"]
mod files;
#[path = "manager/futures.rs"]
mod futures;
#[path = "manager/limits.rs"]
mod limits;
#[path = "manager/timeouts.rs"]
mod timeouts;
