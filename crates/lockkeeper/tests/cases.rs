//! Faults that lock managers, file systems and programs have had in the field,
//! each as a test by the number of its case.
//!
//! `=>` in a comment is what Linux was seen to do, where that is not what the
//! test itself says. The same cases as scripts, run on the kernel as well, are
//! in `tests/scripts` of the repository.

mod common;

#[path = "cases/blocking.rs"]
mod blocking;
#[path = "cases/core_table.rs"]
mod core_table;
#[path = "cases/deadlock.rs"]
mod deadlock;
#[path = "cases/introspection.rs"]
mod introspection;
#[path = "cases/lease.rs"]
mod lease;
#[path = "cases/performance.rs"]
mod performance;
