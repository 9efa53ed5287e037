//! Random operations on a table, each compared with a slow, obvious model.
//!
//! `LOCKKEEPER_PROPTEST_CASES` says how many runs; 256 if it is not set.

mod model;

use proptest::prelude::*;

use model::ops::{Setup, Step, Word};

fn cases() -> u32 {
    std::env::var("LOCKKEEPER_PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(256)
}

fn steps(least: usize, most: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(any::<Word>().prop_map(Step::from_word), least..most)
}

fn setup() -> impl Strategy<Value = Setup> {
    any::<[u8; 2]>().prop_map(Setup::from_bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn a_table_does_what_the_model_does(setup in setup(), steps in steps(1, 80)) {
        model::run_steps(setup, steps);
    }
}
