//! What the screen looks like, and what keys do.

use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use lockkeeper_watch::report::{
    Blocker, Deadlock, DeadlockStep, FileCounters, FileLocks, Held, Kind, Lock, Mode, Report,
    Totals, WaitTimes, Waiting,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::draw::{self, Look};
use super::question_at;
use super::state::{Column, Pressed, State};

const PLAIN: Look = Look { colour: false };

fn lock(kind: Kind, pid: u32, end: Option<u64>) -> Lock {
    Lock {
        kind,
        mode: Mode::Write,
        start: 0,
        end,
        pid,
        command: Some("python3".into()),
        owner: pid.into(),
    }
}

fn file(inode: u64, name: &str, waiters: u32, acquisitions: u64) -> FileLocks {
    FileLocks {
        path: Some(format!("/mnt/data/{name}")),
        locks: vec![Held {
            lock: lock(Kind::Posix, 100 * inode as u32, Some(99)),
            held_for: Some(75.0),
            breaking: false,
        }],
        waiters: (0..waiters)
            .map(|number| Waiting {
                lock: lock(Kind::Flock, 100 * inode as u32 + number + 1, None),
                waits_for: Some(f64::from(waiters - number)),
                overtaken: 0,
                depth: number,
                blocked_by: Some(match number {
                    0 => Blocker::Lock(0),
                    number => Blocker::Waiter(number as usize - 1),
                }),
            })
            .collect(),
        counters: FileCounters {
            acquisitions,
            ..FileCounters::default()
        },
        ..FileLocks::new(1, inode)
    }
}

fn report(acquisitions: u64) -> Report {
    Report {
        mountpoint: "/mnt/data".into(),
        files: vec![
            file(1, "index", 2, acquisitions),
            file(2, "a/quiet", 0, 5),
            file(3, "mail", 1, 7),
        ],
        totals: Totals {
            acquisitions,
            ..Totals::default()
        },
        wait_times: WaitTimes {
            sum: 3.0,
            count: 2,
            ..WaitTimes::default()
        },
        ..Report::default()
    }
}

fn state() -> State {
    let now = Instant::now();
    let mut state = State::new(report(1000), now, PLAIN);
    state.update(report(3000), now + Duration::from_secs(2));
    state
}

fn press(state: &mut State, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '\u{8}' => KeyCode::Backspace,
            '↓' => KeyCode::Down,
            '↑' => KeyCode::Up,
            '⇣' => KeyCode::End,
            key => KeyCode::Char(key),
        };
        assert_eq!(state.press(KeyEvent::from(code)), Pressed::Handled, "{key}");
    }
}

fn drawn(state: &mut State, width: u16, height: u16) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
    terminal
        .draw(|frame| draw::draw(frame, state))
        .expect("draws");
    terminal.backend().clone()
}

/// The screen without the spaces at the ends of lines.
fn picture(state: &mut State, width: u16, height: u16) -> String {
    let screen = drawn(state, width, height);
    let buffer = screen.buffer();
    let line = |row| {
        let cells = (0..width).map(|col| buffer[(col, row)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    let lines: Vec<_> = (0..height).map(line).collect();
    lines.join("\n").trim_end().to_owned()
}

fn names(state: &State) -> Vec<&str> {
    state
        .lines()
        .iter()
        .map(|line| line.name.as_str())
        .collect()
}

#[test]
fn the_files_at_80_by_24() {
    let text = picture(&mut state(), 80, 24);
    let foot = "Enter tree  s sort  r reverse  / filter  p pause  ? help  q quit";
    let expected = "\
lockkeeper top  /mnt/data
3 locks on 3 files, 3 wait, the longest for 2.0s
1000/s granted, -/s had to wait, -/s woken; waits lasted 1.5s on average
 WAIT▼  HELD    OLDEST   GRANT/s   CONT/s  WOKEN/s FILE
     2     1      2.0s      1000        -        - index
     1     1      1.0s         -        -        - mail
     -     1         -         -        -        - a/quiet";
    assert_eq!(text, format!("{expected}{}{foot}", "\n".repeat(17)));
}

#[test]
fn the_tree_of_a_file() {
    let mut state = state();
    press(&mut state, "\n");
    let text = picture(&mut state, 80, 12);
    let expected = "\
lockkeeper top  /mnt/data
3 locks on 3 files, 3 wait, the longest for 2.0s
1000/s granted, -/s had to wait, -/s woken; waits lasted 1.5s on average
index
holds python3 100                       write POSIX 0-99                   1m15s
└ waits python3 101                     write flock whole file              2.0s
  └ waits python3 102                   write flock whole file              1.0s




Esc back  ↑↓ scroll  p pause  ? help  q quit";
    assert_eq!(text, expected);
    // Nobody has anything there any more.
    state.update(Report::default(), Instant::now());
    assert!(picture(&mut state, 80, 12).contains("index: nothing is locked here now."));
}

#[test]
fn a_long_tree_scrolls_to_its_end_and_no_further() {
    let mut state = State::new(
        Report {
            mountpoint: "/mnt/data".into(),
            files: vec![file(1, "crowd", 10_000, 0)],
            ..Report::default()
        },
        Instant::now(),
        PLAIN,
    );
    press(&mut state, "\n⇣");
    let text = picture(&mut state, 80, 24);
    assert!(
        text.contains("crowd  (rows 9983 to 10001 of 10001)"),
        "{text}"
    );
    assert!(
        text.contains("         10000└ waits python3 10100 "),
        "{text}"
    );
    press(&mut state, "↑");
    assert!(
        picture(&mut state, 80, 24).contains("(rows 9982 to 10000"),
        "{text}"
    );
}

#[test]
fn a_deadlock_is_said_in_words() {
    let mut report = report(0);
    report.deadlocks = vec![Deadlock {
        steps: vec![
            DeadlockStep { file: 0, waiter: 1 },
            DeadlockStep { file: 2, waiter: 0 },
        ],
    }];
    let mut state = State::new(report, Instant::now(), PLAIN);
    let text = picture(&mut state, 80, 24);
    assert!(
        text.contains("DEADLOCK: python3 102, python3 301 wait for each other for ever"),
        "{text}"
    );
    assert!(
        text.contains("! index") && text.contains("! mail") && text.contains(" a/quiet"),
        "{text}"
    );
    press(&mut state, "\n");
    let text = picture(&mut state, 80, 24);
    assert!(text.contains("└ DEADLOCK, waits python3 102"), "{text}");
}

#[test]
fn without_colours_there_are_none() {
    let mut state = state();
    let is_plain = |state: &mut State| {
        let screen = drawn(state, 80, 24);
        let mut cells = screen.buffer().content().iter();
        cells.all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset))
    };
    assert!(is_plain(&mut state));
    state.look = Look { colour: true };
    assert!(!is_plain(&mut state));
}

#[test]
fn a_screen_of_any_size_is_drawn() {
    for (width, height) in [(1, 1), (59, 24), (80, 9), (60, 10), (300, 100)] {
        let mut state = state();
        for keys in ["", "\n", "?"] {
            press(&mut state, keys);
            let text = picture(&mut state, width, height);
            let small = width < 60 || height < 10;
            assert_eq!(
                text.contains("This terminal"),
                small && width > 20,
                "{width}x{height}:\n{text}"
            );
        }
    }
}

#[test]
fn files_are_sorted_filtered_and_the_cursor_stays_on_its_file() {
    let mut state = state();
    assert_eq!(names(&state), ["index", "mail", "a/quiet"]);
    press(&mut state, "↓");
    press(&mut state, "n");
    assert_eq!(
        (state.column, names(&state)),
        (Column::Name, vec!["a/quiet", "index", "mail"])
    );
    assert_eq!(state.cursor(), Some(2));
    press(&mut state, "r");
    assert_eq!(names(&state), ["mail", "index", "a/quiet"]);
    press(&mut state, "s");
    assert_eq!((state.column, state.reversed), (Column::Waiting, false));
    press(&mut state, "/I");
    assert_eq!(names(&state), ["index", "mail", "a/quiet"]);
    press(&mut state, "n\n");
    assert_eq!(names(&state), ["index"]);
    assert_eq!(state.cursor(), Some(0));
    press(&mut state, "\u{1b}/301\n");
    assert_eq!(names(&state), ["mail"], "by a process");
    press(&mut state, "/x");
    assert!(picture(&mut state, 80, 24).contains("No file or process matches"));
    press(&mut state, "\u{1b}");
    assert_eq!(names(&state).len(), 3);
}

#[test]
fn keys_of_a_view_and_those_that_end_it() {
    let mut state = state();
    press(&mut state, "?");
    assert!(picture(&mut state, 80, 24).contains(" Keys "));
    // Any other key closes the help, and does nothing else.
    press(&mut state, "p");
    assert!(!state.is_paused());
    press(&mut state, "p");
    assert!(picture(&mut state, 80, 24).contains("PAUSED"));
    let now = Some(Instant::now());
    assert_eq!(
        question_at(&state, now),
        None,
        "nothing is asked while paused"
    );
    press(&mut state, "p");
    assert_eq!(question_at(&state, now), now);
    // Typed into the filter, q is a letter.
    press(&mut state, "/q\n\u{1b}");
    assert_eq!(
        state.press(KeyEvent::from(KeyCode::Char('q'))),
        Pressed::Quit
    );
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.press(interrupt), Pressed::Interrupt);
}

#[test]
fn a_file_that_is_locked_for_moments_stays_for_a_while_and_rates_never_go_backwards() {
    let begun = Instant::now();
    let at = |seconds| begun + Duration::from_secs(seconds);
    let with = |acquisitions| Report {
        mountpoint: "/mnt/data".into(),
        files: vec![file(1, "moment", 0, acquisitions)],
        ..Report::default()
    };
    let mut state = State::new(with(100), begun, PLAIN);
    state.update(Report::default(), at(1));
    assert_eq!((names(&state), state.lines()[0].held), (vec!["moment"], 0));
    state.update(with(300), at(2));
    assert_eq!(state.lines()[0].rates.granted, 200.0);
    // Its state was freed, and counts anew.
    state.update(with(50), at(3));
    assert_eq!(state.lines()[0].rates.granted, 50.0);
    state.update(Report::default(), at(14));
    assert_eq!(names(&state), [""; 0]);
    assert!(picture(&mut state, 80, 24).contains("Nothing is locked on this mount."));
}

#[test]
fn durations_are_short() {
    for (seconds, text) in [
        (0.000_5, "500us"),
        (0.05, "50ms"),
        (0.5, "0.5s"),
        (59.9, "59s"),
        (60.0, "1m00s"),
        (3661.0, "1h01m"),
        (90_000.0, "1d01h"),
    ] {
        assert_eq!(draw::duration(seconds), text);
    }
}
