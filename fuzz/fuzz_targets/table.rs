//! Runs the operations that bytes decode to on a table and on the model.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/lockkeeper/tests/model/mod.rs"]
mod model;

fuzz_target!(|bytes: &[u8]| model::run_bytes(bytes));
