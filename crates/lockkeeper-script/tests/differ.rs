//! What a comparison accepts and what it does not, over two sides that answer as two scripts say.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use lockkeeper_script::differ::{self, Comparison, End, Freedom, Rules};
use lockkeeper_script::executor::{Executor, ExecutorError};
use lockkeeper_script::script::{Outcome, Script, Statement, Step, Verb};

/// Answers as a script says: by its next statement where that is the step, and otherwise as if nothing had
/// changed.
struct Told {
    statements: Vec<Statement>,
    at: usize,
    listings: HashMap<String, Outcome>,
}

impl Told {
    fn new(text: &str) -> Self {
        let script = Script::parse("told", text).unwrap();
        let statements = script.statements().map(|(_, statement)| statement.clone());
        Self {
            statements: statements.collect(),
            at: 0,
            listings: HashMap::new(),
        }
    }
}

impl Executor for Told {
    fn begin(&mut self) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<Outcome, ExecutorError> {
        let next = self.statements.get(self.at);
        let outcome = match (step, next) {
            (_, Some(next)) if next.step == *step => {
                self.at += 1;
                next.expected.clone()
            }
            (Step::Held(_) | Step::Waiting(_), _) => {
                let nothing = Outcome::Listing(Vec::new());
                self.listings
                    .get(&step.to_string())
                    .cloned()
                    .unwrap_or(nothing)
            }
            (
                Step::Act {
                    actor,
                    verb: Verb::Blocked,
                },
                _,
            ) => {
                // The call has returned if the script collects it before anything else is done.
                let done = self.statements[self.at..]
                    .iter()
                    .take_while(|statement| {
                        matches!(
                            &statement.step,
                            Step::Act {
                                verb: Verb::Done,
                                ..
                            }
                        )
                    })
                    .find(|statement| statement.step.actor() == Some(actor));
                done.map_or(Outcome::Blocked, |done| done.expected.clone())
            }
            (step, next) => panic!("asked for {step}, told {next:?}"),
        };
        if matches!(step, Step::Held(_) | Step::Waiting(_)) {
            self.listings.insert(step.to_string(), outcome.clone());
        }
        Ok(outcome)
    }

    fn end(&mut self) -> Result<(), ExecutorError> {
        Ok(())
    }
}

/// Compares two sides that answer as told. The steps are those of the left side.
fn compare(left: &str, right: &str, rules: &Rules<'_>) -> Comparison {
    let steps: Vec<Step> = Script::parse("steps", left)
        .unwrap()
        .statements()
        .map(|(_, statement)| statement.step.clone())
        .filter(|step| {
            !matches!(
                step,
                Step::Held(_)
                    | Step::Waiting(_)
                    | Step::Act {
                        verb: Verb::Done,
                        ..
                    }
            )
        })
        .collect();
    differ::compare(&steps, &mut Told::new(left), &mut Told::new(right), rules).unwrap()
}

fn exact(exact: [bool; 2]) -> Rules<'static> {
    Rules {
        exact,
        ..Rules::default()
    }
}

fn end(left: &str, right: &str, rules: &Rules<'_>) -> String {
    match compare(left, right, rules).end {
        End::Agreed => "agreed".to_owned(),
        End::Free(freedom) => format!("{freedom:?}"),
        End::Diverged(divergence) => divergence.to_string(),
    }
}

const CYCLE: &str = "\
A open f d rw
B open f d rw
A posix f write 0,1
held d => posix write 0,1 A
B posix f write 1,1
held d => posix write 0,1 A; posix write 1,1 B
A posix f write 1,1 wait => blocked
waiting d => posix write 1,1 A
";

#[test]
fn a_side_that_is_not_exact_may_overlook_a_cycle() {
    let left = format!("{CYCLE}B posix f write 0,1 wait => EDEADLK");
    let right = format!(
        "{CYCLE}B posix f write 0,1 wait => blocked\nwaiting d => posix write 1,1 A; posix write 0,1 B"
    );
    let diverged = "line 9: B posix f write 0,1 wait\n  left:  EDEADLK\n  right: blocked";
    assert_eq!(end(&left, &right, &Rules::default()), "Cycle");
    assert_eq!(end(&left, &right, &exact([true, false])), "Cycle");
    assert_eq!(end(&left, &right, &exact([false, true])), diverged);
    let nobody = Rules {
        exact: [false, false],
        cycle: &|_, _, _| false,
    };
    assert_eq!(end(&left, &right, &nobody), diverged);
    assert_eq!(end(&left, &left, &Rules::default()), "agreed");
}

#[test]
fn edeadlk_without_a_cycle_is_a_fault() {
    let head = "A open f d rw\nB open f d rw\nA posix f write 0,1\nheld d => posix write 0,1 A\n";
    let left = format!("{head}B posix f write 0,1 wait => EDEADLK");
    let right = format!("{head}B posix f write 0,1 wait => blocked");
    let diverged = "line 5: B posix f write 0,1 wait\n  left:  EDEADLK\n  right: blocked";
    assert_eq!(end(&left, &right, &Rules::default()), diverged);
}

#[test]
fn a_query_may_name_any_lock_in_the_way_and_no_other() {
    let head = "\
A open f d rw
B open f d rw
C open f d rw
A posix f read 0,5
held d => posix read 0,5 A
B ofd f read 3,5
held d => posix read 0,5 A; ofd read 3,5 B
";
    let answer = |answer: &str| format!("{head}C posix? f write 0,0 => {answer}\nC exit");
    let agree = |left: &str, right: &str| end(&answer(left), &answer(right), &Rules::default());
    assert_eq!(agree("read 0,5 by A", "read 3,5 by ofd"), "agreed");
    for wrong in ["read 0,4 by A", "write 0,5 by A", "read 0,5 by B", "free"] {
        assert!(
            agree("read 0,5 by A", wrong).starts_with("line 8: C posix?"),
            "{wrong}"
        );
    }
}

#[test]
fn a_query_may_name_a_lock_of_another_description_of_the_same_process() {
    let told = |answer: &str| {
        format!(
            "\
A open f d r
B open f d rw
B open g d rw
A posix f read 20,1
held d => posix read 20,1 A
B ofd f read 0,10
held d => ofd read 0,10 B; posix read 20,1 A
B ofd g read 0,5
held d => ofd read 0,5 B; ofd read 0,10 B; posix read 20,1 A
B ofd? g write 0,0 => {answer}
"
        )
    };
    let (left, right) = (told("read 20,1 by A"), told("read 0,10 by ofd"));
    assert_eq!(end(&left, &right, &Rules::default()), "agreed");
}

/// B and C wait for two locks of A, and one unlock lets both go.
fn race(b: &str, c: &str, winner: &str) -> String {
    format!(
        "\
A open f d rw
B open f d rw
C open f d rw
A posix f write 0,5
held d => posix write 0,5 A
A posix f read 10,5
held d => posix write 0,5 A; posix read 10,5 A
B posix f write {b} wait => blocked
C posix f write {c} wait => blocked
A posix f unlock 0,0
{winner} done
"
    )
}

#[test]
fn of_two_that_wake_at_once_either_may_win() {
    let told = |winner| race("4,4", "7,4", winner);
    assert_eq!(end(&told("B"), &told("C"), &Rules::default()), "WakeRace");
    assert_eq!(end(&told("C"), &told("B"), &Rules::default()), "WakeRace");
}

/// B and C wait for two locks of A; A's lock of all bytes lets both go, and both wait again for it.
#[test]
fn of_two_that_were_queued_anew_at_once_either_may_win() {
    let told = |winner| {
        let waits = race("4,4", "7,4", "B");
        let head = waits
            .strip_suffix("A posix f unlock 0,0\nB done\n")
            .unwrap();
        format!(
            "{head}A posix f write 0,20\nheld d => posix write 0,20 A\nA posix f unlock 0,0\n{winner} done\n"
        )
    };
    assert_eq!(end(&told("B"), &told("C"), &Rules::default()), "WakeRace");
}

#[test]
fn of_two_behind_the_same_lock_the_first_wins() {
    let told = |winner| race("4,2", "4,3", winner);
    let diverged = "line 11: B done\n  left:  ok\n  right: blocked";
    assert_eq!(end(&told("B"), &told("C"), &Rules::default()), diverged);
}

/// C waits beneath B, and D beside it: A's unlock lets B and D go, and B, which must wait again, C.
#[test]
fn who_waits_behind_another_waiter_races_with_who_does_not() {
    let told = |winner| {
        format!(
            "\
A open f d rw
B open f d rw
C open f d rw
D open f d rw
E open f d rw
A posix f write 0,5
held d => posix write 0,5 A
E posix f read 5,20
held d => posix write 0,5 A; posix read 5,20 E
B posix f write 1,10 wait => blocked
C posix f read 0,5 wait => blocked
D posix f write 0,1 wait => blocked
A posix f unlock 0,0
{winner} done
"
        )
    };
    assert_eq!(end(&told("C"), &told("D"), &Rules::default()), "WakeRace");
    assert_eq!(end(&told("D"), &told("C"), &Rules::default()), "WakeRace");
}

/// B waits for one lock; A takes another that is in its way as well. C may hang beneath either.
#[test]
fn who_was_queued_beneath_another_lock_may_be_before_or_after() {
    let told = |winner| {
        format!(
            "\
A open f d rw
B open f d rw
C open f d rw
E open f d rw
E posix f read 1,1
held d => posix read 1,1 E
B posix f write 0,10 wait => blocked
A posix f write 0,1
held d => posix write 0,1 A; posix read 1,1 E
C posix f write 0,5 wait => blocked
E posix f unlock 0,0
held d => posix write 0,1 A
A posix f unlock 0,0
{winner} done
"
        )
    };
    assert_eq!(end(&told("B"), &told("C"), &Rules::default()), "WakeRace");
}

/// T, a thread of A, waits for B, and B for C. Then A takes a lock that is in B's way as well.
#[test]
fn a_cycle_that_a_grant_closes_may_be_overlooked() {
    let told = |answer: &str, grant: &str| {
        format!(
            "\
A open f d rw
B open f d rw
A thread T
B posix f write 0,1
held d => posix write 0,1 B
T posix f write 0,1 wait => blocked
A posix f write 9,1
held d => posix write 0,1 B; posix write 9,1 A
C open f d rw
C ofd f read 20,1
held d => posix write 0,1 B; posix write 9,1 A; ofd read 20,1 C
B posix f write 20,1 wait => blocked
A posix f read {grant},1
{answer}"
        )
    };
    let all =
        "held d => posix write 0,1 B; posix write 9,1 A; ofd read 20,1 C; posix read 20,1 A\n";
    let waits = told(all, "20");
    let refused = told(&format!("B done => EDEADLK\n{all}"), "20");
    assert_eq!(end(&waits, &refused, &exact([false, true])), "Cycle");
    let diverged = "line 14: B done\n  left:  EDEADLK\n  right: blocked";
    assert_eq!(end(&refused, &waits, &exact([false, true])), diverged);
}

#[test]
fn a_waiter_that_is_granted_on_one_side_only_is_a_fault() {
    let told = |winner| race("4,4", "8,4", winner);
    let both = format!("{}C done\n", told("B"));
    let diverged = "line 11: C blocked\n  left:  blocked\n  right: ok";
    assert_eq!(end(&told("B"), &both, &Rules::default()), diverged);
}

#[test]
fn a_listing_that_differs_is_a_fault() {
    let head = "A open f d rw\nA posix f write 0,5\n";
    let left = format!("{head}held d => posix write 0,5 A");
    let right = format!("{head}held d => posix write 0,6 A");
    let diverged = "line 3: held d\n  left:  posix write 0,5 A\n  right: posix write 0,6 A";
    assert_eq!(end(&left, &right, &Rules::default()), diverged);
}

#[test]
fn steps_after_which_linux_is_free_are_left_out() {
    let waits = "\
A open f d rw
B open f d rw
A flock f exclusive
held d => flock write A
B flock f shared wait => blocked
waiting d => flock read B
";
    let count = |text: &str| compare(text, text, &Rules::default()).operations;
    assert_eq!(count(&format!("{waits}B signal\nB done => EINTR")), 6);
    assert_eq!(
        count(&format!("{waits}A flock f shared")),
        4,
        "a conversion while another waits"
    );
    assert_eq!(
        count(&format!("{waits}B signal restart")),
        5,
        "nobody else waits"
    );
    let third = format!("{waits}C open g d rw\nC flock g shared wait => blocked\n");
    assert_eq!(
        count(&format!("{third}B signal restart")),
        6,
        "C waits as well"
    );
    let with_thread = waits.replace("B flock", "B thread T\nB flock");
    let closed = format!("{with_thread}T dup f g\nT close f\n");
    assert_eq!(count(&closed), 7);
    assert_eq!(
        count(&format!("{closed}B signal restart\nT dup g h")),
        7,
        "the number of the closed descriptor may be another's"
    );
    assert_eq!(
        count(&format!("{waits}B close f\nD fork D")),
        4,
        "what makes no sense"
    );
}

#[test]
fn what_was_run_is_a_script() {
    let told = race("4,2", "4,3", "B");
    let comparison = compare(&told, &told, &Rules::default());
    assert_eq!(comparison.end, End::Agreed);
    let script = Script::of("told", comparison.transcript);
    assert_eq!(script, Script::parse("told", &told).unwrap());
    assert_ne!(comparison.end, End::Free(Freedom::WakeRace));
}
