//! The wait trees as a picture: for a terminal, and for Graphviz.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use crate::report::{Blocker, Deadlock, FileLocks, Report};
use crate::words;

/// How to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// With box characters; without in plain ASCII.
    pub unicode: bool,
    /// With colours.
    pub colour: bool,
    /// Leave nothing out.
    pub all: bool,
}

/// So many waiters beneath one blocker, locks that somebody waits for, and locks that nobody does, are drawn unless all
/// are wanted.
const SHOWN: usize = 50;
/// So many files, and so many waiters of one, are drawn unless all are wanted.
const FILES: usize = 100;
const WAITERS: usize = 500;
/// So many deadlocks are named unless all are wanted.
const DEADLOCKS: usize = 20;
/// So deep the picture goes unless all is wanted.
const DEPTH: usize = 20;
/// Deeper than this nothing is set further to the right: the number of the level stands there instead.
const INDENT: usize = 30;

const BOLD: &str = "1";
const DIM: &str = "2";
const YELLOW: &str = "33";
const ALARM: &str = "1;31";

/// The trees of each file, the deadlocks, and a line that sums up.
pub fn draw(report: &Report, style: Style) -> String {
    let mut dead: HashMap<usize, HashSet<usize>> = HashMap::new();
    for step in report.deadlocks.iter().flat_map(|cycle| &cycle.steps) {
        dead.entry(step.file).or_default().insert(step.waiter);
    }
    let mut picture = Picture {
        out: String::new(),
        style,
        left: 0,
    };
    let none = HashSet::new();
    let (shown, hidden) = if style.all {
        ((0..report.files.len()).collect(), Vec::new())
    } else {
        most_wanted(report.files.len(), FILES, |file| {
            (dead.contains_key(&file), report.files[file].waiters.len())
        })
    };
    for index in shown {
        let file = &report.files[index];
        let forest = Forest::new(file, dead.get(&index).unwrap_or(&none));
        picture.file(report, file, &forest);
    }
    if !hidden.is_empty() {
        picture.more_files(hidden.iter().map(|&file| &report.files[file]));
    }
    let named = if style.all { usize::MAX } else { DEADLOCKS };
    for cycle in report.deadlocks.iter().take(named) {
        let text = deadlock(report, cycle);
        picture.paint(ALARM, "DEADLOCK");
        let _ = writeln!(picture.out, ": {text}");
    }
    if report.deadlocks.len() > named {
        let more = words::count(
            report.deadlocks.len() - named,
            "more deadlock",
            "more deadlocks",
        );
        picture.summed_up(&format!("and {more}"));
    }
    let _ = writeln!(picture.out, "{}", summary(report));
    picture.out
}

/// Of so many, the `most` that matter most and the others, both in their order.
fn most_wanted<K: Ord>(
    count: usize,
    most: usize,
    matters: impl Fn(usize) -> K,
) -> (Vec<usize>, Vec<usize>) {
    let mut places: Vec<usize> = (0..count).collect();
    // Stable: of those that matter as much the first.
    places.sort_by_cached_key(|&place| Reverse(matters(place)));
    let mut hidden = places.split_off(most.min(count));
    places.sort_unstable();
    hidden.sort_unstable();
    (places, hidden)
}

/// `3 locks on 2 files, 1 request waits, the oldest for 12 s.`
pub fn summary(report: &Report) -> String {
    let locks = report.files.iter().map(|file| file.locks.len()).sum();
    let waiters: usize = report.files.iter().map(|file| file.waiters.len()).sum();
    let mut text = format!(
        "{} on {}, ",
        words::count(locks, "lock", "locks"),
        words::count(report.files.len(), "file", "files")
    );
    text += &match waiters {
        0 => "nobody waits".into(),
        count => words::count(count, "request waits", "requests wait"),
    };
    let oldest = report
        .files
        .iter()
        .flat_map(|file| &file.waiters)
        .filter_map(|waiting| waiting.waits_for)
        .reduce(f64::max);
    if let Some(oldest) = oldest {
        let _ = write!(text, ", the oldest for {}", words::duration(oldest));
    }
    if !report.deadlocks.is_empty() {
        let _ = write!(
            text,
            ", {}",
            words::count(report.deadlocks.len(), "deadlock", "deadlocks")
        );
    }
    text.push('.');
    if report.unplaced > 0 {
        let _ = write!(
            text,
            " {} locked by processes that hide their files; root would see more.",
            words::count(
                report.unplaced,
                "file may be here, too:",
                "files may be here, too:"
            )
        );
    }
    text
}

/// Who waits for whom, in a cycle; so many are named.
pub fn deadlock(report: &Report, cycle: &Deadlock) -> String {
    const NAMED: usize = 10;
    let waits: Vec<_> = cycle
        .steps
        .iter()
        .filter_map(|&step| report.wait_of(step))
        .collect();
    let mut text = String::new();
    for (index, (file, waiting)) in waits.iter().enumerate().take(NAMED) {
        let (_, next) = &waits[(index + 1) % waits.len()];
        let _ = write!(
            text,
            "{}{} waits for {} on {}",
            if index > 0 { "; " } else { "" },
            words::who(&waiting.lock),
            words::who(&next.lock),
            words::file(file, report),
        );
    }
    if waits.len() > NAMED {
        let _ = write!(text, "; and so on, {} in all", words::number(waits.len()));
    }
    text += ". Nobody is refused for it; it lasts until one of them is ended.";
    text
}

/// What hangs beneath what, and how much.
struct Forest<'a> {
    file: &'a FileLocks,
    dead: &'a HashSet<usize>,
    beneath_lock: Vec<Vec<usize>>,
    beneath_waiter: Vec<Vec<usize>>,
    /// Waiters that are just being granted, or of whom it is not known what they hang beneath.
    free: Vec<usize>,
    /// Of each waiter, itself and all beneath it: how many, and how long the oldest has waited.
    sizes: Vec<(usize, Option<f64>)>,
}

impl<'a> Forest<'a> {
    fn new(file: &'a FileLocks, dead: &'a HashSet<usize>) -> Forest<'a> {
        let mut forest = Forest {
            file,
            dead,
            beneath_lock: vec![Vec::new(); file.locks.len()],
            beneath_waiter: vec![Vec::new(); file.waiters.len()],
            free: Vec::new(),
            sizes: file.waiters.iter().map(|one| (1, one.waits_for)).collect(),
        };
        for (index, waiting) in file.waiters.iter().enumerate() {
            match waiting.blocked_by {
                Some(Blocker::Lock(lock)) if lock < file.locks.len() => {
                    forest.beneath_lock[lock].push(index);
                }
                // Whatever is said, nothing hangs beneath what comes after it: there is no end otherwise.
                Some(Blocker::Waiter(above)) if above < index => {
                    forest.beneath_waiter[above].push(index);
                }
                _ => forest.free.push(index),
            }
        }
        for index in (0..file.waiters.len()).rev() {
            if let Some(Blocker::Waiter(above)) = file.waiters[index].blocked_by
                && above < index
            {
                let (size, oldest) = forest.sizes[index];
                let (above_size, above_oldest) = &mut forest.sizes[above];
                *above_size += size;
                *above_oldest = longer(*above_oldest, oldest);
            }
        }
        forest
    }

    /// All beneath these, together.
    fn sum(&self, waiters: &[usize]) -> (usize, Option<f64>) {
        waiters.iter().fold((0, None), |(size, oldest), &waiter| {
            let (more, age) = self.sizes[waiter];
            (size + more, longer(oldest, age))
        })
    }
}

fn longer(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (a, b) => a.or(b),
    }
}

struct Picture {
    out: String,
    style: Style,
    /// So many more waiters of the file are drawn.
    left: usize,
}

/// A list of waiters that is being drawn.
struct Level<'a> {
    left: std::slice::Iter<'a, usize>,
    shown: usize,
}

// Writing to a string cannot fail.
impl Picture {
    fn paint(&mut self, colour: &str, text: &str) {
        let _ = match self.style.colour {
            true => write!(self.out, "\x1b[{colour}m{text}\x1b[0m"),
            false => write!(self.out, "{text}"),
        };
    }

    fn ellipsis(&self) -> &'static str {
        if self.style.unicode { "…" } else { "..." }
    }

    fn file(&mut self, report: &Report, file: &FileLocks, forest: &Forest<'_>) {
        let name = words::file(file, report);
        self.paint(BOLD, &name);
        self.out.push('\n');
        let most = if self.style.all { usize::MAX } else { SHOWN };
        self.left = if self.style.all { usize::MAX } else { WAITERS };
        let (waited_for, idle): (Vec<usize>, Vec<usize>) =
            (0..file.locks.len()).partition(|&lock| !forest.beneath_lock[lock].is_empty());
        let size = |lock: usize| forest.sum(&forest.beneath_lock[lock]).0;
        let (mut shown, queues) =
            most_wanted(waited_for.len(), most, |place| size(waited_for[place]));
        for place in &mut shown {
            *place = waited_for[*place];
        }
        shown.extend(idle.iter().take(most));
        shown.sort_unstable();
        let hidden = idle.len().saturating_sub(most);
        let has_free = !forest.free.is_empty();
        for (place, &lock) in shown.iter().enumerate() {
            let is_last = place + 1 == shown.len() && queues.is_empty() && hidden == 0 && !has_free;
            self.branch(&[], is_last);
            self.held(file, lock);
            self.beneath(forest, &forest.beneath_lock[lock], &[!is_last]);
        }
        if !queues.is_empty() {
            self.branch(&[], hidden == 0 && !has_free);
            let waiting: usize = queues.iter().map(|&place| size(waited_for[place])).sum();
            self.summed_up(&format!(
                "and {} for which {}",
                words::count(queues.len(), "more lock", "more locks"),
                words::count(waiting, "request waits", "requests wait")
            ));
        }
        if hidden > 0 {
            self.branch(&[], !has_free);
            self.summed_up(&format!(
                "and {} that nobody waits for",
                words::count(hidden, "more lock", "more locks")
            ));
        }
        if has_free {
            self.branch(&[], true);
            self.out.push_str("free\n");
            self.beneath(forest, &forest.free, &[false]);
        }
    }

    fn more_files<'a>(&mut self, files: impl Iterator<Item = &'a FileLocks>) {
        let (mut count, mut locks, mut waiters) = (0, 0, 0);
        for file in files {
            count += 1;
            locks += file.locks.len();
            waiters += file.waiters.len();
        }
        let waiting = match waiters {
            0 => "nobody waits there".into(),
            waiters => words::count(waiters, "request waits there", "requests wait there"),
        };
        self.summed_up(&format!(
            "and {} with {}; {waiting} (--all shows them)",
            words::count(count, "more file", "more files"),
            words::count(locks, "lock", "locks"),
        ));
    }

    fn summed_up(&mut self, text: &str) {
        let text = format!("{} {text}", self.ellipsis());
        self.paint(DIM, &text);
        self.out.push('\n');
    }

    fn held(&mut self, file: &FileLocks, lock: usize) {
        let held = &file.locks[lock];
        let breaking = if held.breaking {
            ", to be given up"
        } else {
            ""
        };
        let _ = write!(
            self.out,
            "{}{breaking}  {}",
            words::lock(&held.lock),
            words::who(&held.lock)
        );
        if let Some(age) = held.held_for {
            let age = words::duration(age);
            self.paint(DIM, &format!("  for {age}"));
        }
        self.out.push('\n');
    }

    fn waiting(&mut self, forest: &Forest<'_>, waiter: usize, level: usize) {
        if level > INDENT {
            let _ = write!(self.out, "({level} deep) ");
        }
        let waiting = &forest.file.waiters[waiter];
        let text = format!(
            "{}  {}",
            words::lock(&waiting.lock),
            words::who(&waiting.lock)
        );
        self.paint(YELLOW, &text);
        let verb = match waiting.blocked_by {
            Some(_) => "waits",
            None => "is being granted",
        };
        let age = waiting.waits_for.map(words::duration);
        let age = age.map_or(String::new(), |age| format!(" {age}"));
        self.paint(DIM, &format!("  {verb}{age}"));
        if forest.dead.contains(&waiter) {
            self.out.push_str("  ");
            self.paint(ALARM, "DEADLOCK");
        }
        self.out.push('\n');
    }

    /// Draws waiters and all beneath them. Not by recursion: a tree may be as deep as there are waiters.
    fn beneath(&mut self, forest: &Forest<'_>, waiters: &[usize], above: &[bool]) {
        // Whether a line goes down at each level further to the left.
        let mut lines = above.to_vec();
        let mut levels = vec![Level {
            left: waiters.iter(),
            shown: 0,
        }];
        while let Some(level) = levels.last_mut() {
            let limit = if self.style.all { usize::MAX } else { SHOWN };
            let rest = level.left.as_slice();
            let too_many = level.shown == limit && !rest.is_empty();
            let too_deep = !self.style.all && lines.len() > DEPTH && !rest.is_empty();
            let too_long = self.left == 0 && !rest.is_empty();
            if too_many || too_deep || too_long {
                let (count, oldest) = forest.sum(rest);
                level.left = [].iter();
                self.branch(&lines, true);
                let mut text = format!("and {} more", words::number(count));
                if let Some(oldest) = oldest {
                    let _ = write!(text, ", oldest {}", words::duration(oldest));
                }
                self.summed_up(&text);
                continue;
            }
            let Some(&waiter) = level.left.next() else {
                levels.pop();
                lines.pop();
                continue;
            };
            level.shown += 1;
            self.left -= 1;
            let is_last = level.left.as_slice().is_empty();
            self.branch(&lines, is_last);
            self.waiting(forest, waiter, lines.len());
            lines.push(!is_last);
            levels.push(Level {
                left: forest.beneath_waiter[waiter].iter(),
                shown: 0,
            });
        }
    }

    /// The lines to the left of a node.
    fn branch(&mut self, lines: &[bool], is_last: bool) {
        let [down, blank, tee, corner] = match self.style.unicode {
            true => ["│  ", "   ", "├─ ", "└─ "],
            false => ["|  ", "   ", "|- ", "`- "],
        };
        for &line in lines.iter().take(INDENT) {
            self.out.push_str(if line { down } else { blank });
        }
        self.out.push_str(if is_last { corner } else { tee });
    }
}

/// The same for Graphviz: files as boxes, and an arrow from each request to what it hangs beneath. Waits of
/// a deadlock are red.
pub fn dot(report: &Report) -> String {
    let mut out = String::from(
        "digraph locks {\n  rankdir=RL;\n  node [shape=box, fontname=\"sans-serif\"];\n",
    );
    for (index, file) in report.files.iter().enumerate() {
        let name = words::file(file, report);
        let _ = write!(
            out,
            "  subgraph cluster_{index} {{\n    label=\"{}\";\n",
            escape(&name)
        );
        for (lock, held) in file.locks.iter().enumerate() {
            let age = held.held_for.map(words::duration);
            let age = age.map_or(String::new(), |age| format!("\nfor {age}"));
            let label = format!(
                "{}\n{}{age}",
                words::lock(&held.lock),
                words::who(&held.lock)
            );
            let _ = writeln!(out, "    f{index}l{lock} [label=\"{}\"];", escape(&label));
        }
        for (waiter, waiting) in file.waiters.iter().enumerate() {
            let age = waiting.waits_for.map(words::duration);
            let age = age.map_or(String::new(), |age| format!(" {age}"));
            let label = format!(
                "{}\n{}\nwaits{age}",
                words::lock(&waiting.lock),
                words::who(&waiting.lock)
            );
            let _ = writeln!(
                out,
                "    f{index}w{waiter} [label=\"{}\", style=rounded];",
                escape(&label)
            );
            match waiting.blocked_by {
                Some(Blocker::Lock(lock)) => {
                    let _ = writeln!(out, "    f{index}w{waiter} -> f{index}l{lock};");
                }
                Some(Blocker::Waiter(above)) => {
                    let _ = writeln!(out, "    f{index}w{waiter} -> f{index}w{above};");
                }
                None => {}
            }
        }
        out.push_str("  }\n");
    }
    for cycle in &report.deadlocks {
        for (place, step) in cycle.steps.iter().enumerate() {
            let next = cycle.steps[(place + 1) % cycle.steps.len()];
            let _ = write!(
                out,
                "  f{0}w{1} [color=red];\n  f{0}w{1} -> f{2}w{3} [color=red, style=bold, constraint=false, label=deadlock];\n",
                step.file, step.waiter, next.file, next.waiter
            );
        }
    }
    out.push_str("}\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{DeadlockStep, Held, Kind, Lock, Mode, Waiting};

    const PLAIN: Style = Style {
        unicode: true,
        colour: false,
        all: false,
    };

    fn lock(kind: Kind, pid: u32, start: u64, end: Option<u64>) -> Lock {
        Lock {
            kind,
            mode: Mode::Write,
            start,
            end,
            pid,
            command: Some("prog".into()),
            owner: pid.into(),
        }
    }

    fn held(lock: Lock, age: f64) -> Held {
        Held {
            lock,
            held_for: Some(age),
            breaking: false,
        }
    }

    fn waits(lock: Lock, age: f64, blocked_by: Blocker) -> Waiting {
        Waiting {
            lock,
            waits_for: Some(age),
            overtaken: 0,
            depth: 0,
            blocked_by: Some(blocked_by),
        }
    }

    fn file(path: &str, locks: Vec<Held>, waiters: Vec<Waiting>) -> FileLocks {
        FileLocks {
            path: Some(path.into()),
            locks,
            waiters,
            ..FileLocks::new(1, 1)
        }
    }

    fn report() -> Report {
        let posix = |pid, start, end| lock(Kind::Posix, pid, start, end);
        Report {
            files: vec![
                file(
                    "/m/held",
                    vec![
                        held(posix(7, 0, Some(9)), 200.0),
                        held(lock(Kind::Ofd, 8, 100, None), 1.0),
                    ],
                    vec![
                        waits(posix(9, 5, Some(5)), 12.0, Blocker::Lock(0)),
                        waits(posix(10, 5, Some(6)), 3.5, Blocker::Waiter(0)),
                        waits(posix(11, 0, None), 2.0, Blocker::Lock(0)),
                    ],
                ),
                file(
                    "/m/whole",
                    vec![held(lock(Kind::Flock, 7, 0, None), 1.0)],
                    vec![],
                ),
            ],
            ..Report::default()
        }
    }

    #[test]
    fn what_waits_hangs_beneath_what_it_waits_for() {
        assert_eq!(
            draw(&report(), PLAIN),
            "\
/m/held
├─ POSIX write 0-9  7 (prog)  for 3 min 20 s
│  ├─ POSIX write 5  9 (prog)  waits 12 s
│  │  └─ POSIX write 5-6  10 (prog)  waits 3.5 s
│  └─ POSIX write whole file  11 (prog)  waits 2 s
└─ OFD write 100-end  8 (prog)  for 1 s
/m/whole
└─ flock write  7 (prog)  for 1 s
3 locks on 2 files, 3 requests wait, the oldest for 12 s.
"
        );
        let ascii = draw(
            &report(),
            Style {
                unicode: false,
                ..PLAIN
            },
        );
        assert!(ascii.is_ascii(), "{ascii}");
        assert!(ascii.contains("|  |  `- POSIX write 5-6"), "{ascii}");
    }

    #[test]
    fn crowds_are_summed_up_unless_all_are_wanted() {
        let mut report = report();
        let file = &mut report.files[1];
        for pid in 100..10_100 {
            let request = lock(Kind::Flock, pid, 0, None);
            file.waiters.push(waits(request, 0.5, Blocker::Lock(0)));
        }
        for start in 0..100 {
            let lock = lock(Kind::Posix, 7, start * 2, Some(start * 2));
            file.locks.push(held(lock, 1.0));
        }
        let text = draw(&report, PLAIN);
        assert!(
            text.contains("│  └─ … and 9,950 more, oldest 0.5 s\n"),
            "{text}"
        );
        assert!(
            text.contains("└─ … and 50 more locks that nobody waits for\n"),
            "{text}"
        );
        let all = draw(&report, Style { all: true, ..PLAIN });
        assert_eq!(all.matches("waits 0.5 s").count(), 10_000);
    }

    #[test]
    fn a_picture_has_an_end_however_many_files_locks_and_branches_there_are() {
        const MANY: u64 = 100_000;
        let flock = |pid| lock(Kind::Flock, pid, 0, None);
        let byte = |pid, start| lock(Kind::Posix, pid, start, Some(start));
        // A waiter for each of very many locks; and a tree that branches in three everywhere.
        let queues = file(
            "/m/queues",
            (0..MANY).map(|at| held(byte(7, at * 2), 1.0)).collect(),
            (0..MANY as usize)
                .map(|at| waits(byte(8, at as u64 * 2), 1.0, Blocker::Lock(at)))
                .collect(),
        );
        let bush = |at: usize| match at {
            0 => Blocker::Lock(0),
            at => Blocker::Waiter((at - 1) / 3),
        };
        let bush = file(
            "/m/bush",
            vec![held(flock(7), 1.0)],
            (0..MANY as usize)
                .map(|at| waits(flock(8), 1.0, bush(at)))
                .collect(),
        );
        let mut report = Report {
            files: vec![queues, bush],
            ..Report::default()
        };
        let text = draw(&report, PLAIN);
        assert!(text.lines().count() < 3000, "{}", text.lines().count());
        let more = "└─ … and 99,950 more locks for which 99,950 requests wait\n";
        assert!(text.contains(more), "{text}");
        // Nobody is lost: what is not drawn is summed up.
        let of_bush = text.split("/m/bush").nth(1).expect("drawn");
        let summed_up: usize = of_bush
            .lines()
            .filter_map(|line| line.split_once("… and ")?.1.split_once(" more, oldest"))
            .map(|(count, _)| count.replace(',', "").parse::<usize>().expect("a number"))
            .sum();
        let drawn = of_bush.matches("waits 1 s").count();
        assert_eq!((drawn, drawn + summed_up), (WAITERS, MANY as usize));
        // Very many files and deadlocks: those of a deadlock and with waiters are drawn.
        report.files = (0..MANY)
            .map(|number| file(&format!("/m/{number}"), vec![held(flock(7), 1.0)], vec![]))
            .collect();
        report.files[70_000]
            .waiters
            .push(waits(flock(8), 1.0, Blocker::Lock(0)));
        let step = DeadlockStep {
            file: 70_000,
            waiter: 0,
        };
        report.deadlocks = vec![Deadlock { steps: vec![step] }; MANY as usize];
        let text = draw(&report, PLAIN);
        assert!(
            text.contains("/m/0\n") && text.contains("/m/70000\n"),
            "{text}"
        );
        assert!(
            text.contains(
                "… and 99,900 more files with 99,900 locks; nobody waits there (--all shows them)\n"
            ),
            "{text}"
        );
        assert!(text.contains("… and 99,980 more deadlocks\n"), "{text}");
        assert!(text.lines().count() < 300, "{text}");
    }

    #[test]
    fn a_deep_tree_is_drawn_without_going_deep() {
        let mut report = report();
        let file = &mut report.files[1];
        for index in 0..10_000 {
            let request = lock(Kind::Flock, 100, 0, None);
            let blocker = match index {
                0 => Blocker::Lock(0),
                _ => Blocker::Waiter(index - 1),
            };
            file.waiters.push(waits(request, 7.0, blocker));
        }
        let text = draw(&report, PLAIN);
        assert!(text.contains("└─ … and 9,980 more, oldest 7 s\n"), "{text}");
        let all = draw(&report, Style { all: true, ..PLAIN });
        assert!(all.contains("└─ (10000 deep) flock write"));
        assert!(all.len() < 3_000_000, "{}", all.len());
        assert!(dot(&report).contains("f1w9999 -> f1w9998;"));
    }

    #[test]
    fn deadlocks_are_marked_and_named() {
        let flock = |pid, owner| Lock {
            owner,
            ..lock(Kind::Flock, pid, 0, None)
        };
        let mut report = Report {
            files: vec![
                file(
                    "/m/a",
                    vec![held(flock(7, 1), 9.0)],
                    vec![waits(flock(8, 4), 5.0, Blocker::Lock(0))],
                ),
                file(
                    "/m/b",
                    vec![held(flock(8, 2), 9.0)],
                    vec![waits(flock(7, 3), 5.0, Blocker::Lock(0))],
                ),
            ],
            ..Report::default()
        };
        report.deadlocks = vec![Deadlock {
            steps: vec![
                DeadlockStep { file: 0, waiter: 0 },
                DeadlockStep { file: 1, waiter: 0 },
            ],
        }];
        let text = draw(&report, PLAIN);
        assert_eq!(
            text,
            "\
/m/a
└─ flock write  7 (prog)  for 9 s
   └─ flock write  8 (prog)  waits 5 s  DEADLOCK
/m/b
└─ flock write  8 (prog)  for 9 s
   └─ flock write  7 (prog)  waits 5 s  DEADLOCK
DEADLOCK: 8 (prog) waits for 7 (prog) on /m/a; 7 (prog) waits for 8 (prog) on /m/b. Nobody is refused for it; it lasts until one of them is ended.
2 locks on 2 files, 2 requests wait, the oldest for 5 s, 1 deadlock.
"
        );
        let coloured = draw(
            &report,
            Style {
                colour: true,
                ..PLAIN
            },
        );
        assert!(coloured.contains("\x1b[1;31mDEADLOCK\x1b[0m"));
        assert!(dot(&report).contains("f0w0 -> f1w0 [color=red"));
    }

    #[test]
    fn what_is_not_known_is_not_claimed() {
        let mut report = report();
        report.files.truncate(1);
        let file = &mut report.files[0];
        file.locks.truncate(1);
        file.locks[0].held_for = None;
        file.waiters.truncate(1);
        file.waiters[0].waits_for = None;
        file.waiters[0].lock.pid = 0;
        // A blocker that is not there.
        file.waiters[0].blocked_by = Some(Blocker::Lock(9));
        assert_eq!(
            draw(&report, PLAIN),
            "\
/m/held
├─ POSIX write 0-9  7 (prog)
└─ free
   └─ POSIX write 5  a hidden process  waits
1 lock on 1 file, 1 request waits.
"
        );
    }

    #[test]
    fn names_are_escaped_for_graphviz() {
        let mut report = report();
        report.files[0].path = Some("/m/\"quoted\\\n\"".into());
        let text = dot(&report);
        assert!(text.contains(r#"label="/m/\"quoted\\\\x0a\"""#), "{text}");
    }
}
