//! The table of steps, and how some of them are selected.

use std::fmt::Write;

/// One check: a line of [`STEPS`].
pub struct Step {
    /// The word that `--only` and `--skip` take.
    pub name: &'static str,
    /// What would go unnoticed without it.
    pub why: &'static str,
    /// A line for `sh`, run in the root of the repository, that exits 0 when the check passes. A
    /// person can paste it into a terminal. It must fail, not pass, when what it checks is missing.
    pub command: &'static str,
}

const fn step(name: &'static str, why: &'static str, command: &'static str) -> Step {
    Step { name, why, command }
}

/// Every step, in the order in which they run. To add one, add a line.
#[rustfmt::skip]
pub const STEPS: &[Step] = &[
    step("packages", "programs that tests start are installed", "cargo xtask packages"),
    step("fmt", "one layout of the code", "cargo fmt --all --check"),
    step("clippy", "no warnings, nor in tests, examples and benches", "cargo clippy --workspace --all-targets -- -D warnings"),
    step("docs", "the documentation builds and its links lead somewhere", "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --workspace"),
    step("no-std", "the table builds for a kernel", "cargo build -p lockkeeper --no-default-features --lib"),
    step("no-std-link", "the table links and runs without std and without a C library", "cargo run --release --manifest-path crates/lockkeeper/tests/no_std/Cargo.toml --target-dir target/no-std"),
    step("tests", "tests that pass on any machine with Rust", "cargo test --workspace --no-fail-fast"),
    step("events", "events have the names and fields of the kernel's tracepoints", "cargo test -p lockkeeper --features tracing --test events"),
    step("examples", "what a newcomer copies works", "cargo xtask examples"),
    step("properties", "the table does what a slow, obvious model does, in 100,000 cases", "LOCKKEEPER_PROPTEST_CASES=100000 cargo test -p lockkeeper --release --test properties"),
    step("loom", "no interleaving of threads loses a wake-up or decides twice", "RUSTFLAGS='--cfg loom' LOOM_MAX_PREEMPTIONS=3 cargo test -p lockkeeper --release --test loom --target-dir target/loom"),
    // Named target kinds, as otherwise code blocks marked `ignore` in the documentation would run.
    // Two threads, as these tests mount and load the machine.
    step("ignored", "tests that need root, FUSE or packages", "cargo test --workspace --no-fail-fast --lib --bins --tests -- --ignored --test-threads=2"),
    step("differ-fixed", "the library answers as the kernel does", "mkdir -p target && cargo run -q -p lockkeeper-cli -- differ --on target --keep target --seed 1 --operations 20000"),
    step("differ-fresh", "the same with scripts that no run has seen", "mkdir -p target && cargo run -q -p lockkeeper-cli -- differ --on /dev/shm --keep target --operations 5000"),
];

/// The steps to run, in the table's order: those that `only` names (all, if it names none) without
/// those that `skip` names.
///
/// # Errors
/// A name that is no step's, and a selection that leaves nothing to run: a run without a check must
/// not count as a success.
pub fn select<'a>(
    steps: &'a [Step],
    only: &[String],
    skip: &[String],
) -> anyhow::Result<Vec<&'a Step>> {
    if let Some(unknown) = only
        .iter()
        .chain(skip)
        .find(|&name| !steps.iter().any(|step| step.name == name))
    {
        anyhow::bail!("there is no step `{unknown}`");
    }
    let names = |list: &[String], step: &Step| list.iter().any(|name| name == step.name);
    let selected: Vec<_> = steps
        .iter()
        .filter(|step| (only.is_empty() || names(only, step)) && !names(skip, step))
        .collect();
    anyhow::ensure!(!selected.is_empty(), "no step is left to run");
    Ok(selected)
}

/// The names of the steps that `selected` does not hold.
pub fn left_out(steps: &[Step], selected: &[&Step]) -> Vec<&'static str> {
    steps
        .iter()
        .map(|step| step.name)
        .filter(|name| !selected.iter().any(|chosen| chosen.name == *name))
        .collect()
}

/// The text of `--list`: two lines a step.
pub fn list(steps: &[&Step]) -> String {
    let width = steps.iter().map(|step| step.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Step { name, why, command } in steps {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:width$}  {why}\n{:width$}  $ {command}", "");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &[Step] = &[
        step("a", "first", "true"),
        step("b", "second", "true"),
        step("c", "third", "true"),
    ];

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn selection_is_only_without_skip_in_the_order_of_the_table() {
        for (only, skip, expected) in [
            (&[][..], &[][..], &["a", "b", "c"][..]),
            (&["b"], &[], &["b"]),
            (&["c", "a"], &[], &["a", "c"]),
            (&["a", "a"], &[], &["a"]),
            (&[], &["b"], &["a", "c"]),
            (&["a", "b"], &["b", "c"], &["a"]),
        ] {
            let selected = select(ABC, &words(only), &words(skip)).expect("a selection");
            let names: Vec<_> = selected.iter().map(|step| step.name).collect();
            assert_eq!(names, expected, "--only {only:?} --skip {skip:?}");
        }
    }

    #[test]
    fn selection_of_nothing_or_of_an_unknown_step_is_an_error() {
        for (only, skip) in [
            (&["a"][..], &["a"][..]),
            (&[], &["a", "b", "c"]),
            (&["d"], &[]),
            (&[], &["d"]),
        ] {
            assert!(
                select(ABC, &words(only), &words(skip)).is_err(),
                "--only {only:?} --skip {skip:?}"
            );
        }
    }

    #[test]
    fn what_is_left_out_is_named() {
        assert_eq!(left_out(ABC, &[&ABC[1]]), ["a", "c"]);
        assert!(left_out(ABC, &[&ABC[0], &ABC[1], &ABC[2]]).is_empty());
    }

    #[test]
    fn the_list_shows_name_reason_and_command() {
        assert_eq!(list(&[&ABC[0]]), "a  first\n   $ true\n");
    }

    #[test]
    fn names_of_steps_are_unique() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(
                STEPS[..index].iter().all(|other| other.name != step.name),
                "two steps are named {}",
                step.name
            );
        }
    }
}
