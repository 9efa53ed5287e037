//! The language: what parses, what does not and what is said of it, and that printing loses nothing.

#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::time::Instant;

use lockkeeper_script::script::*;
use proptest::prelude::*;

/// One line of every form, in the words in which it is printed.
const FORMS: &[&str] = &[
    "A open f data r",
    "A open f data w  => EACCES",
    "A open f data rw  => blocked",
    "A opennb f data rw  => EAGAIN",
    "A dup f g",
    "A close f  => EBADF",
    "A seek f 100",
    "A truncate f 0",
    "A resize data 10  => blocked",
    "A link data other",
    "A fork B",
    "A thread T",
    "A exec",
    "A exit",
    "A kill",
    "A signal",
    "A signal restart",
    "A posix f read 0,10",
    "A posix f write cur:-10,20 wait  => blocked",
    "A posix f unlock end:-5,0",
    "A posix f write -1,-9223372036854775808  => EINVAL",
    "A posix f type:7 whence:9:0,1 pid:5 wait  => EINVAL",
    "A posix? f write 0,0  => free",
    "A posix? f write 0,0  => read 0,10 by B",
    "A posix? f unlock 0,0  => EINVAL",
    "A ofd f write 9223372036854775807,1 wait  => EINTR",
    "A ofd? f write 0,0 pid:1  => write 0,9223372036854775807 by ofd",
    "A flock f shared",
    "A flock f exclusive wait  => blocked",
    "A flock f unlock",
    "A lease f read",
    "A lease f unlock  => EAGAIN",
    "A lease? f  => write",
    "A done",
    "A done  => EDEADLK",
    "A blocked",
    "A notified",
    "A notified  => none",
    "break-time 5",
    "pass 1",
    "held data  => none",
    "held data  => posix read 0,5 A; ofd write 5,0 B; flock read C; lease unlock D",
    "waiting data  => lease write A",
    "# a comment",
    "#",
    "A exec  # why",
    "A done  => E4095",
];

#[test]
fn every_form_is_printed_as_it_is_written() {
    for form in FORMS {
        let script = Script::parse("form", form).unwrap();
        assert_eq!(script.lines[0].to_string(), *form);
    }
}

#[test]
fn spelling_is_free_where_it_means_nothing() {
    let same = |a: &str, b: &str| {
        assert_eq!(
            Script::parse("s", a).unwrap(),
            Script::parse("s", b).unwrap()
        );
    };
    same("\tA  open f data\trw   =>  ok  ", "A open f data rw");
    same("A opennb f d r => EWOULDBLOCK", "A opennb f d r => EAGAIN");
    same("A blocked => ok", "A blocked");
    same(
        "held d => flock read A;flock read B",
        "held d => flock read A ; flock read B",
    );
    same("A exit#gone", "A exit # gone");
}

#[test]
fn a_script_keeps_the_numbers_of_its_lines() {
    let script =
        Script::parse("dir/name.lk", "# head\n\nA open f d r\n  # more\nA exit\n").unwrap();
    let lines: Vec<usize> = script.statements().map(|(line, _)| line).collect();
    assert_eq!(lines, [3, 5]);
    assert_eq!(script.name(), "name");
}

/// A text, and what must be said of it.
const MISTAKES: &[(&str, &str)] = &[
    (
        "A open f data rw\nA lokc f",
        "x.lk:2:3: expected a verb (open, opennb, dup, close, seek, truncate, resize, link, fork, thread, \
         exec, exit, kill, signal, posix, posix?, ofd, ofd?, flock, lease, lease?, done, blocked, notified), \
         found `lokc`",
    ),
    (
        "A",
        "x.lk:1:2: expected a verb (open, opennb, dup, close, seek, truncate, resize, link, fork, thread, \
         exec, exit, kill, signal, posix, posix?, ofd, ofd?, flock, lease, lease?, done, blocked, notified), \
         but the line ends here",
    ),
    (
        "A open f data",
        "x.lk:1:14: expected `r`, `w` or `rw`, but the line ends here",
    ),
    (
        "A open f data # rw",
        "x.lk:1:14: expected `r`, `w` or `rw`, but the line ends here",
    ),
    (
        "A open f data x",
        "x.lk:1:15: expected `r`, `w` or `rw`, found `x`",
    ),
    (
        "A open f data rw now",
        "x.lk:1:18: expected `=>` or the end of the line, found `now`",
    ),
    (
        "A open f ../data rw",
        "x.lk:1:10: expected a file (a word), found `../data`",
    ),
    (
        "A close 1",
        "x.lk:1:9: expected a descriptor (a word), found `1`",
    ),
    (
        "A close f =>",
        "x.lk:1:13: expected `ok` or an errno, but the line ends here",
    ),
    (
        "A close f => EFOO",
        "x.lk:1:14: expected `ok` or an errno, found `EFOO`",
    ),
    (
        "A close f => blocked",
        "x.lk:1:14: expected `ok` or an errno, found `blocked`",
    ),
    (
        "A close f => ok ok",
        "x.lk:1:17: expected the end of the line, found `ok`",
    ),
    (
        "A posix f write 0",
        "x.lk:1:17: expected a range (START,LEN, cur:START,LEN or end:START,LEN), found `0`",
    ),
    (
        "A posix f write 0,x",
        "x.lk:1:17: expected a range (START,LEN, cur:START,LEN or end:START,LEN), found `0,x`",
    ),
    (
        "A posix f write 9223372036854775808,1",
        "x.lk:1:17: expected a range (START,LEN, cur:START,LEN or end:START,LEN), found `9223372036854775808,1`",
    ),
    (
        "A posix f lock 0,1",
        "x.lk:1:11: expected `read`, `write` or `unlock`, found `lock`",
    ),
    (
        "A posix f read 0,1 pid:x",
        "x.lk:1:20: expected `pid:` and a number, found `pid:x`",
    ),
    (
        "A posix f read 0,1 wait => blocked extra",
        "x.lk:1:36: expected the end of the line, found `extra`",
    ),
    (
        "A posix f read 0,1 => blocked",
        "x.lk:1:23: expected `ok` or an errno, found `blocked`",
    ),
    (
        "A posix? f read 0,1 => busy",
        "x.lk:1:24: expected `free`, an errno, or `read` or `write`, found `busy`",
    ),
    (
        "A posix? f read 0,1 => read 0,1",
        "x.lk:1:32: expected `by`, but the line ends here",
    ),
    (
        "A posix? f read 0,1 => read -1,1 by B",
        "x.lk:1:29: expected START,LEN, found `-1,1`",
    ),
    (
        "A flock f read",
        "x.lk:1:11: expected `shared`, `exclusive` or `unlock`, found `read`",
    ),
    (
        "A blocked => EINTR",
        "x.lk:1:14: expected `ok`, found `EINTR`",
    ),
    (
        "A fork held",
        "x.lk:1:8: expected the name of the child, found `held`",
    ),
    (
        "ofd open f d r",
        "x.lk:1:1: expected an actor, `held`, `waiting`, `break-time` or `pass`, found `ofd`",
    ),
    (
        "held data",
        "x.lk:1:10: expected `=>` and a list, or `none`, but the line ends here",
    ),
    (
        "held data => posix read 0,1",
        "x.lk:1:28: expected an actor, but the line ends here",
    ),
    (
        "held data => posix read 0,1 A;",
        "x.lk:1:31: expected `posix`, `ofd`, `flock` or `lease`, but the line ends here",
    ),
    (
        "held data => none; flock read A",
        "x.lk:1:18: expected the end of the line, found `;`",
    ),
    (
        "break-time soon",
        "x.lk:1:12: expected a number of seconds, found `soon`",
    ),
    (
        "break-time -1",
        "x.lk:1:12: expected a number of seconds, found `-1`",
    ),
    (
        "é open f d r",
        "x.lk:1:1: expected an actor, `held`, `waiting`, `break-time` or `pass`, found `é`",
    ),
    (
        "A open fé d r",
        "x.lk:1:8: expected a descriptor (a word), found `fé`",
    ),
];

#[test]
fn a_mistake_is_named_with_its_place_and_what_was_expected() {
    for (text, message) in MISTAKES {
        let error = Script::parse("x.lk", text).unwrap_err();
        assert_eq!(error.to_string(), *message, "for {text:?}");
    }
}

#[test]
fn ten_thousand_lines_parse_in_milliseconds() {
    let mut text = String::new();
    for line in 0..10_000 {
        writeln!(
            text,
            "A{} posix f write {line},10 wait   => blocked  # step",
            line % 7
        )
        .unwrap();
    }
    let begin = Instant::now();
    let script = Script::parse("long", &text).unwrap();
    let time = begin.elapsed();
    assert_eq!(script.lines.len(), 10_000);
    // A few milliseconds; the bound leaves room for a machine that does something else as well.
    assert!(time.as_millis() < 200, "{time:?}");
}

fn word() -> impl Strategy<Value = String> {
    "[a-zA-Z][a-zA-Z0-9_.-]{0,7}"
}

fn actor() -> impl Strategy<Value = Actor> {
    word().prop_filter_map("reserved", |word| {
        let reserved = ["held", "waiting", "break-time", "pass", "ofd", "none"];
        (!reserved.contains(&word.as_str()))
            .then(|| Actor::new(&word))
            .flatten()
    })
}

fn fd() -> impl Strategy<Value = Descriptor> {
    word().prop_filter_map("word", |word| Descriptor::new(&word))
}

fn file() -> impl Strategy<Value = FileName> {
    word().prop_filter_map("word", |word| FileName::new(&word))
}

fn lock_type() -> impl Strategy<Value = LockType> {
    prop_oneof![
        Just(LockType::Read),
        Just(LockType::Write),
        Just(LockType::Unlock)
    ]
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![any::<i64>(), -3..100_i64, Just(i64::MAX), Just(i64::MIN)]
}

fn record() -> impl Strategy<Value = Record> {
    let kind = prop_oneof![Just(RecordKind::Posix), Just(RecordKind::Ofd)];
    let request = prop_oneof![
        4 => lock_type().prop_map(RequestType::Known),
        1 => any::<i16>().prop_map(RequestType::Raw),
    ];
    let base = prop_oneof![
        4 => Just(Base::Start),
        1 => Just(Base::Current),
        1 => Just(Base::End),
        1 => any::<i16>().prop_map(Base::Raw),
    ];
    let range =
        (base, number(), number()).prop_map(|(base, start, len)| Range { base, start, len });
    (
        kind,
        fd(),
        request,
        range,
        proptest::option::of(any::<i32>()),
    )
        .prop_map(|(kind, fd, lock_type, range, pid)| Record {
            kind,
            fd,
            lock_type,
            range,
            pid,
        })
}

fn verb() -> impl Strategy<Value = Verb> {
    let access = prop_oneof![
        Just(Access::Read),
        Just(Access::Write),
        Just(Access::ReadWrite)
    ];
    prop_oneof![
        (fd(), file(), access, any::<bool>()).prop_map(|(fd, file, access, nonblock)| Verb::Open {
            fd,
            file,
            access,
            nonblock
        }),
        (fd(), fd()).prop_map(|(fd, new)| Verb::Dup { fd, new }),
        fd().prop_map(|fd| Verb::Close { fd }),
        (fd(), number()).prop_map(|(fd, offset)| Verb::Seek { fd, offset }),
        (fd(), number()).prop_map(|(fd, size)| Verb::Truncate { fd, size }),
        (file(), number()).prop_map(|(file, size)| Verb::Resize { file, size }),
        (file(), file()).prop_map(|(file, new)| Verb::Link { file, new }),
        actor().prop_map(|child| Verb::Fork { child }),
        actor().prop_map(|thread| Verb::Thread { thread }),
        Just(Verb::Exec),
        Just(Verb::Exit),
        Just(Verb::Kill),
        any::<bool>().prop_map(|restart| Verb::Signal { restart }),
        (record(), any::<bool>()).prop_map(|(record, wait)| Verb::Set { record, wait }),
        record().prop_map(|record| Verb::Query { record }),
        (fd(), lock_type(), any::<bool>()).prop_map(|(fd, lock_type, wait)| Verb::Flock {
            fd,
            lock_type,
            wait
        }),
        (fd(), lock_type()).prop_map(|(fd, lock_type)| Verb::Lease { fd, lock_type }),
        fd().prop_map(|fd| Verb::LeaseQuery { fd }),
        Just(Verb::Done),
        Just(Verb::Blocked),
        Just(Verb::Notified),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (actor(), verb()).prop_map(|(actor, verb)| Step::Act { actor, verb }),
        1 => any::<u32>().prop_map(Step::BreakTime),
        1 => any::<u32>().prop_map(Step::Pass),
        1 => file().prop_map(Step::Held),
        1 => file().prop_map(Step::Waiting),
    ]
}

fn errno() -> impl Strategy<Value = Outcome> {
    (1..4096_i32).prop_map(|number| Outcome::Error(Errno(number)))
}

fn span() -> impl Strategy<Value = Span> {
    (0..=i64::MAX, 0..=i64::MAX).prop_map(|(start, len)| Span { start, len })
}

fn item() -> impl Strategy<Value = Item> {
    let kind = prop_oneof![
        Just(ItemKind::Posix),
        Just(ItemKind::Ofd),
        Just(ItemKind::Flock),
        Just(ItemKind::Lease)
    ];
    (kind, lock_type(), span(), actor()).prop_map(|(kind, lock_type, span, actor)| Item {
        kind,
        lock_type,
        span: matches!(kind, ItemKind::Posix | ItemKind::Ofd).then_some(span),
        actor,
    })
}

/// An outcome that the step can have.
fn outcome(step: &Step) -> BoxedStrategy<Outcome> {
    let plain = prop_oneof![Just(Outcome::Ok), errno()];
    match step {
        Step::BreakTime(_) => plain.boxed(),
        Step::Pass(_) => Just(Outcome::Ok).boxed(),
        Step::Held(_) | Step::Waiting(_) => proptest::collection::vec(item(), 0..4)
            .prop_map(Outcome::Listing)
            .boxed(),
        Step::Act { verb, .. } => match verb {
            Verb::Query { .. } => {
                let found = prop_oneof![Just(LockType::Read), Just(LockType::Write)];
                let by = prop_oneof![Just(Holder::Ofd), actor().prop_map(Holder::Actor)];
                let conflict =
                    (found, span(), by).prop_map(|(lock_type, span, by)| Outcome::Conflict {
                        lock_type,
                        span,
                        by,
                    });
                prop_oneof![Just(Outcome::Free), errno(), conflict].boxed()
            }
            Verb::LeaseQuery { .. } => {
                prop_oneof![lock_type().prop_map(Outcome::Lease), errno()].boxed()
            }
            Verb::Notified => prop_oneof![Just(Outcome::Ok), Just(Outcome::None)].boxed(),
            Verb::Blocked => Just(Outcome::Blocked).boxed(),
            verb if verb.may_block() => prop_oneof![plain, Just(Outcome::Blocked)].boxed(),
            _ => plain.boxed(),
        },
    }
}

fn line() -> impl Strategy<Value = Line> {
    let statement = step().prop_flat_map(|step| {
        let expected = outcome(&step);
        expected.prop_map(move |expected| Statement {
            step: step.clone(),
            expected,
        })
    });
    let comment = "[ -~]{0,20}".prop_map(|text| text.trim().to_owned());
    (
        proptest::option::weighted(0.8, statement),
        proptest::option::weighted(0.3, comment),
    )
        .prop_map(|(statement, comment)| Line { statement, comment })
}

proptest! {
    #[test]
    fn what_is_printed_parses_to_what_was_printed(lines in proptest::collection::vec(line(), 0..20)) {
        let script = Script { source: "p".to_owned(), lines };
        let text = script.to_string();
        let again = Script::parse("p", &text).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(again, script);
    }

    #[test]
    fn no_text_makes_the_parser_fail_otherwise_than_by_saying_so(text in "[ -~\n\t;#=>é]{0,80}") {
        if let Err(error) = Script::parse("p", &text) {
            prop_assert!(error.line >= 1 && error.column >= 1);
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
