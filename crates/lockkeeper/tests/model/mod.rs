//! A slow, obvious model of one file's locks, and a run of it beside the table.
//!
//! [`state`] is the model: lists, searched from end to end, written from what
//! the documentation promises and from nothing else. [`ops`] says what can be
//! done to a file and decodes it from bytes. [`run`] does it to a table and to
//! the model and compares all there is to see after every step.
//!
//! Where the table may choose, as it may among waiters of which any could be
//! next, the model follows its choice after it has made sure that it was legal.

#![allow(dead_code)] // Each test binary uses a part of it.

pub mod ops;
pub mod run;
pub mod state;

use ops::{Setup, Step, Word};

/// Decodes bytes and runs them; panics where the table is wrong.
pub fn run_bytes(bytes: &[u8]) {
    let Some((setup, words)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let (words, _) = words.as_chunks::<{ size_of::<Word>() }>();
    run_words(*setup, words.iter().take(200).copied());
}

/// The same, of what is already in words.
pub fn run_words(setup: [u8; 2], words: impl IntoIterator<Item = Word>) {
    run_steps(
        Setup::from_bytes(setup),
        words.into_iter().map(Step::from_word),
    );
}

/// Runs these steps beside the model.
pub fn run_steps(setup: Setup, steps: impl IntoIterator<Item = Step>) {
    let mut run = run::Run::new(setup);
    for step in steps {
        run.step(&step);
    }
    run.finish();
}
