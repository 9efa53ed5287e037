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

/// A crowd that comes, and goes.
fn crowd() -> impl Strategy<Value = Vec<Step>> {
    let comes = proptest::collection::vec(any::<Word>().prop_map(Step::of_crowd), 1..300);
    let goes = proptest::collection::vec(any::<Word>().prop_map(Step::of_dispersal), 1..100);
    (comes, goes).prop_map(|(mut comes, goes)| {
        comes.extend(goes);
        comes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn a_table_does_what_the_model_does(setup in setup(), steps in steps(1, 80)) {
        model::run_steps(setup, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases((cases() / 500).max(8)))]

    #[test]
    fn a_crowd_of_waiters_is_served_as_the_model_serves_it(
        fairness in any::<u8>(),
        steps in crowd(),
    ) {
        model::run_steps(Setup::new(model::ops::fairness_from(fairness)), steps);
    }
}

#[test]
fn random_bytes_are_operations_too() {
    // What the fuzz target does, on bytes of a fixed generator.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..2_000 {
        let bytes: Vec<u8> = (0..2 + 7 * 60)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            })
            .collect();
        model::run_bytes(&bytes);
    }
}
