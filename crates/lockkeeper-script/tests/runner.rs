//! The runner, over an executor that answers from a list.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use lockkeeper_script::executor::{Executor, ExecutorError};
use lockkeeper_script::runner::{self, Observer};
use lockkeeper_script::script::{Outcome, Script, Statement, Step};

/// Answers every step with what the list has for it, and `ok` where the list has ended.
#[derive(Default)]
struct Fake {
    answers: VecDeque<Result<Outcome, ExecutorError>>,
    steps: Vec<Step>,
    begun: usize,
    ended: usize,
    refuses: bool,
}

impl Executor for Fake {
    fn begin(&mut self) -> Result<(), ExecutorError> {
        self.begun += 1;
        match self.refuses {
            true => Err(ExecutorError::place("no place", "it is closed")),
            false => Ok(()),
        }
    }

    fn step(&mut self, step: &Step) -> Result<Outcome, ExecutorError> {
        self.steps.push(step.clone());
        self.answers.pop_front().unwrap_or(Ok(Outcome::Ok))
    }

    fn end(&mut self) -> Result<(), ExecutorError> {
        self.ended += 1;
        Ok(())
    }
}

/// The report on a script whose steps are answered by what it expects, up to the answers given here.
fn report(text: &str, answers: &[Outcome]) -> String {
    let script = Script::parse("t.lk", text).unwrap();
    let mut fake = Fake {
        answers: answers.iter().cloned().map(Ok).collect(),
        ..Fake::default()
    };
    let report = runner::run(&script, &mut fake, &mut ()).to_string();
    assert_eq!((fake.begun, fake.ended), (1, 1), "begun and ended once");
    report
}

#[test]
fn a_script_passes_when_every_answer_is_the_expected_one() {
    assert_eq!(report("A open f d r\nA close f", &[]), "PASS t");
    assert_eq!(report("", &[]), "PASS t");
}

#[test]
fn the_first_other_answer_fails_it() {
    assert_eq!(
        report("A open f d r\n\nA flock f shared => EAGAIN\nA exit", &[]),
        "FAIL t:3 expected EAGAIN, got ok"
    );
    let listing = Outcome::Listing(Vec::new());
    assert_eq!(
        report(
            "A open f d r\nheld d => flock read A",
            &[Outcome::Ok, listing]
        ),
        "FAIL t:2 expected flock read A, got none"
    );
}

#[test]
fn steps_that_make_no_sense_are_named() {
    let blocked = &[Outcome::Ok, Outcome::Blocked];
    let wait = "A open f d rw\nA posix f write 0,0 wait => blocked\n";
    let table: &[(&str, &[Outcome], &str)] = &[
        (
            "A open f d r\nA kill\nA close f",
            &[],
            "FAIL t:3 A is dead: its process was killed in line 2",
        ),
        (
            "A thread T\nT exit\nA open f d r",
            &[],
            "FAIL t:3 A is dead: its process exited in line 2",
        ),
        (
            "A thread T\nT exec\nA exit",
            &[],
            "FAIL t:3 A is dead: its process was replaced by `exec` in line 2",
        ),
        (
            "A open f d r\nA close f\nA close f",
            &[],
            "FAIL t:3 descriptor `f` of A was closed in line 2",
        ),
        ("A close f", &[], "FAIL t:1 A has no descriptor `f`"),
        (
            "A open f d r\nA open f e r",
            &[],
            "FAIL t:2 A has a descriptor `f` already",
        ),
        (
            "A open f d r\nA dup f f",
            &[],
            "FAIL t:2 A has a descriptor `f` already",
        ),
        (
            "A fork B\nB fork A",
            &[],
            "FAIL t:2 A is the name of an earlier actor",
        ),
        (
            "A fork A",
            &[],
            "FAIL t:1 A is the name of an earlier actor",
        ),
        (
            "held d => none",
            &[],
            "FAIL t:1 no line above opens or names a file `d`",
        ),
        (
            "A resize d 1",
            &[],
            "FAIL t:1 no line above opens or names a file `d`",
        ),
        (
            "A open f d r\nA open g e r\nA link d e",
            &[],
            "FAIL t:3 `e` is the name of an earlier file",
        ),
        (
            "A open f d r\nA done",
            &[],
            "FAIL t:2 A has no call out: no earlier line says `=> blocked`",
        ),
        (
            &format!("{wait}A close f"),
            blocked,
            "FAIL t:3 A has a call out since line 2: `A done` must collect its result before another call",
        ),
        (
            &format!("{wait}A flock f shared wait => blocked"),
            blocked,
            "FAIL t:3 A has a call out since line 2: `A done` must collect its result before another call",
        ),
        (
            &format!("{wait}A done\nA done"),
            blocked,
            "FAIL t:4 A has no call out: no earlier line says `=> blocked`",
        ),
        (
            "A open f d r => blocked\nA done => EINTR\nA close f",
            &[
                Outcome::Blocked,
                Outcome::Error(lockkeeper_script::script::Errno::EINTR),
            ],
            "FAIL t:3 A has no descriptor `f`",
        ),
    ];
    for (text, answers, expected) in table {
        assert_eq!(report(text, answers), *expected, "for {text}");
    }
}

#[test]
fn steps_that_make_sense_are_let_through() {
    let blocked = &[Outcome::Ok, Outcome::Blocked];
    let wait = "A open f d rw\nA posix f write 0,0 wait => blocked\n";
    for text in [
        "A signal",
        "A exit",
        "A kill",
        "A done",
        "A thread B\n# not yet",
    ] {
        let text = format!("{wait}{text}");
        let ends = report(&text, blocked);
        let fine = !text.contains("thread");
        assert_eq!(ends == "PASS t", fine, "{text}: {ends}");
    }
    // A forked child has its parent's descriptors; a failed open gives none; a name may be used again.
    assert_eq!(
        report(
            "A open f d r\nA fork B\nB close f\nA close f\nA open f d r",
            &[]
        ),
        "PASS t"
    );
    // A descriptor that a blocked open brings is there once it is collected.
    let opens = &[Outcome::Blocked];
    assert_eq!(
        report("A open f d r => blocked\nA done\nA close f", opens),
        "PASS t"
    );
}

#[test]
fn an_executor_that_cannot_go_on_fails_the_line() {
    let script = Script::parse("t.lk", "A open f d r\nA close f\nA exit").unwrap();
    let hung = ExecutorError::Hung {
        actor: lockkeeper_script::script::Actor::new("A").unwrap(),
        call: "close f".to_owned(),
        pid: 42,
    };
    let mut fake = Fake {
        answers: VecDeque::from([Ok(Outcome::Ok), Err(hung)]),
        ..Fake::default()
    };
    let report = runner::run(&script, &mut fake, &mut ());
    assert_eq!(
        report.to_string(),
        "FAIL t:2 A hangs in `close f`: process 42 has been killed"
    );
    assert_eq!((fake.steps.len(), fake.ended), (2, 1));
}

#[test]
fn an_executor_that_cannot_begin_fails_the_script() {
    let script = Script::parse("t.lk", "A exit").unwrap();
    let mut fake = Fake {
        refuses: true,
        ..Fake::default()
    };
    let report = runner::run(&script, &mut fake, &mut ());
    assert_eq!(report.to_string(), "FAIL t no place: it is closed");
    assert_eq!((fake.steps.len(), fake.ended), (0, 1));
}

#[test]
fn an_observer_sees_every_step_and_what_it_left() {
    struct Seen(Vec<String>);
    impl Observer for Seen {
        fn stepped(
            &mut self,
            line: usize,
            statement: &Statement,
            got: &Outcome,
            picture: &mut dyn FnMut() -> String,
        ) {
            self.0
                .push(format!("{line} {} {got} {:?}", statement.step, picture()));
        }
    }
    let held = Script::parse("h", "held d => flock write A").unwrap();
    let listing = held.statements().next().unwrap().1.expected.clone();
    let script = Script::parse("t.lk", "A open f d r\n\nA exit => EIO").unwrap();
    let mut fake = Fake {
        answers: [
            Outcome::Ok,
            listing,
            Outcome::Listing(Vec::new()),
            Outcome::Ok,
            Outcome::Listing(Vec::new()),
            Outcome::Listing(Vec::new()),
        ]
        .into_iter()
        .map(Ok)
        .collect(),
        ..Fake::default()
    };
    let mut seen = Seen(Vec::new());
    runner::run(&script, &mut fake, &mut seen);
    assert_eq!(
        seen.0,
        [
            "1 A open f d r ok \"held d: flock write A\\n\"",
            "3 A exit ok \"\""
        ]
    );
}
