//! Random scripts: the same for the same seed, and made of what the language has.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use lockkeeper_script::generate::{self, Settings};
use lockkeeper_script::script::{Script, Statement, Step};

#[test]
fn a_seed_and_a_number_mean_one_script() {
    let settings = Settings::default();
    let script = |seed, number| generate::script(seed, number, &settings);
    assert_eq!(script(1, 2), script(1, 2));
    assert_ne!(script(1, 2), script(1, 3));
    assert_ne!(script(1, 2), script(2, 2));
}

#[test]
fn scripts_are_as_the_settings_say() {
    for (actors, files, steps) in [(0, 0, 0), (1, 1, 10), (8, 3, 200)] {
        let settings = Settings {
            actors,
            files,
            steps,
            leases: 0,
        };
        let script = generate::script(7, 7, &settings);
        let opens = actors.max(1) * files.max(1);
        assert!(script.len() >= opens + steps, "{} steps", script.len());
    }
}

#[test]
fn every_verb_is_reached_and_every_step_is_one_of_the_language() {
    let mut verbs = HashSet::new();
    for number in 0..200 {
        let steps = generate::script(1, number, &Settings::default());
        let statements = steps.iter().map(|step| Statement {
            step: step.clone(),
            expected: step.usual().unwrap(),
        });
        let script = Script::of("random", statements);
        assert_eq!(
            Script::parse("random", &script.to_string()).unwrap(),
            script
        );
        for step in &steps {
            let Step::Act { verb, .. } = step else {
                panic!("{step} has no actor");
            };
            verbs.insert(verb.to_string().split(' ').next().unwrap().to_owned());
        }
    }
    let never = ["link", "done", "blocked"];
    let all = "open opennb dup close seek truncate resize fork thread exec exit kill signal posix posix? ofd \
        ofd? flock lease lease? notified";
    for verb in all.split_whitespace() {
        assert!(verbs.contains(verb), "{verb} is never generated");
    }
    assert!(never.iter().all(|verb| !verbs.contains(*verb)));
}
