//! Random scripts on two executors at once: a kernel against itself, and against a faulty place.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use lockkeeper_script::differ::{self, End, Rules};
use lockkeeper_script::directory::{Directory, Options};
use lockkeeper_script::executor::{Executor, ExecutorError};
use lockkeeper_script::generate::{self, Settings};
use lockkeeper_script::runner;
use lockkeeper_script::script::{LockType, Outcome, Record, RequestType, Script, Step, Verb};
use lockkeeper_script::shrink::shrink;

fn directory(path: &Path) -> Directory {
    Directory::new(path, Options::new(env!("CARGO_BIN_EXE_lockkeeper"))).unwrap()
}

/// A tmpfs, where the machine has one at the usual place.
fn other_file_system(fallback: &Path) -> Directory {
    let shm = Path::new("/dev/shm");
    directory(if shm.is_dir() { shm } else { fallback })
}

#[test]
fn two_file_systems_of_one_kernel_agree() {
    let folder = tempfile::tempdir().unwrap();
    let mut left = directory(folder.path());
    let mut right = other_file_system(folder.path());
    let wanted: usize = std::env::var("LOCKKEEPER_OPERATIONS")
        .ok()
        .and_then(|operations| operations.parse().ok())
        .unwrap_or(20_000);
    let seed = std::env::var("LOCKKEEPER_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    let (mut operations, mut number, mut free) = (0, 0, 0);
    let begin = std::time::Instant::now();
    while operations < wanted {
        let steps = generate::script(seed, number, &Settings::default());
        let comparison = differ::compare(&steps, &mut left, &mut right, &Rules::default()).unwrap();
        operations += comparison.operations;
        match &comparison.end {
            End::Agreed => {}
            End::Free(_) => free += 1,
            End::Diverged(divergence) => panic!(
                "seed {seed}, script {number}:\n{}\n{divergence}",
                Script::of("divergence", comparison.transcript)
            ),
        }
        number += 1;
    }
    let rate = operations as f64 / begin.elapsed().as_secs_f64();
    println!("{operations} operations in {number} scripts, {free} ended early, {rate:.0}/s");
    assert!(
        free * 10 < number,
        "too many scripts end where Linux is free"
    );
}

/// Forgets every POSIX unlock of five bytes.
struct Faulty<E>(E);

impl<E: Executor> Executor for Faulty<E> {
    fn begin(&mut self) -> Result<(), ExecutorError> {
        self.0.begin()
    }

    fn step(&mut self, step: &Step) -> Result<Outcome, ExecutorError> {
        let forgets = |record: &Record| {
            record.lock_type == RequestType::Known(LockType::Unlock) && record.range.len == 5
        };
        match step {
            Step::Act {
                verb: Verb::Set { record, .. },
                ..
            } if forgets(record) => Ok(Outcome::Ok),
            _ => self.0.step(step),
        }
    }

    fn end(&mut self) -> Result<(), ExecutorError> {
        self.0.end()
    }
}

#[test]
fn a_planted_fault_is_found_and_shrunk() {
    let folder = tempfile::tempdir().unwrap();
    let mut left = directory(folder.path());
    let mut right = Faulty(directory(folder.path()));
    let mut diverges = |steps: &[Step]| {
        let comparison = differ::compare(steps, &mut left, &mut right, &Rules::default()).unwrap();
        matches!(comparison.end, End::Diverged(_)).then_some(comparison)
    };
    let found = (0..100)
        .map(|number| generate::script(3, number, &Settings::default()))
        .find(|steps| diverges(steps).is_some())
        .unwrap();
    let short = shrink(found, |steps| diverges(steps).is_some());
    let comparison = diverges(&short).unwrap();
    assert!(short.len() <= 6, "{short:?}");
    let script = Script::of("fault", comparison.transcript);
    let text = script.to_string();
    assert!(text.contains("unlock"), "{text}");

    // The left side is right, so that what was found passes there and fails on the other.
    assert!(runner::run(&script, &mut left, &mut ()).passed(), "{text}");
    assert!(
        !runner::run(&script, &mut right, &mut ()).passed(),
        "{text}"
    );
}

#[test]
fn what_was_run_replays_with_the_same_results() {
    let folder = tempfile::tempdir().unwrap();
    let mut left = directory(folder.path());
    let mut right = other_file_system(folder.path());
    for number in 0..20 {
        let steps = generate::script(5, number, &Settings::default());
        let comparison = differ::compare(&steps, &mut left, &mut right, &Rules::default()).unwrap();
        let text = Script::of("transcript", comparison.transcript).to_string();
        let script = Script::parse("transcript", &text).unwrap();
        let report = runner::run(&script, &mut left, &mut ());
        assert!(report.passed(), "{report}\n{text}");
    }
}
