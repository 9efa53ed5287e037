//! Files as a person would draw them: locks, beneath each the requests that wait for it, and the ranges
//! side by side.
//!
//! ```text
//! data                      0     5     10    15
//! posix read 0,10 A         ▒▒▒▒▒▒▒▒▒▒▒▒
//! ├─ posix write 0,0 C      ═══════════════════▶
//! │  └─ ofd read 15,1 D                       ──
//! └─ posix write 0,1 E      ══════
//! posix read 5,10 B               ▒▒▒▒▒▒▒▒▒▒▒▒
//! ```

use std::fmt::Write as _;

use lockkeeper::table::{BlockedBy, GrantedView, Snapshot, WaiterView};
use lockkeeper::{LockKind, LockType as Type, Range};

use super::*;

/// What the strokes of a picture mean.
pub const LEGEND: &str = "held: █ write, ▒ read; waiting: ═ write, ─ read; ▶ to the end";

/// A picture that would be wider is left out.
const WIDEST: usize = 120;

/// A line of a picture: words, and a range where there is one to draw.
struct Row {
    words: String,
    stroke: Option<(Range, char)>,
}

impl Library {
    pub(super) fn draw(&self) -> String {
        let mut names: Vec<(&FileName, usize)> = self.names.iter().map(|(n, f)| (n, *f)).collect();
        names.sort();
        let mut seen = Vec::new();
        let mut text = String::new();
        for (name, file) in names {
            let snapshot = self.files[file].handle.snapshot();
            let is_idle = snapshot.granted.is_empty() && snapshot.waiting.is_empty();
            // Of several names of a file the first stands for it.
            if is_idle || seen.contains(&file) {
                continue;
            }
            seen.push(file);
            let rows = self.rows(&snapshot);
            text.push_str(&lay_out(name.as_str(), &rows));
        }
        text
    }

    fn rows(&self, snapshot: &Snapshot) -> Vec<Row> {
        let Snapshot { granted, waiting } = snapshot;
        let mut rows = Vec::new();
        // Waiters stand in the order of the tree, those of one lock together.
        let mut rest = waiting.as_slice();
        for (index, lock) in granted.iter().enumerate() {
            rows.push(self.lock(lock));
            let is_other = |waiter: &WaiterView| {
                waiter.depth == 0 && waiter.blocked_by != BlockedBy::Lock(index)
            };
            let count = rest.iter().position(is_other).unwrap_or(rest.len());
            let (beneath, others) = rest.split_at(count);
            rest = others;
            for (waiter, branches) in beneath.iter().zip(branches(beneath)) {
                rows.push(self.waiter(waiter, &branches));
            }
        }
        // Those that hang beneath nothing are about to be granted.
        rows.extend(rest.iter().map(|waiter| self.waiter(waiter, "… ")));
        rows
    }

    fn lock(&self, view: &GrantedView) -> Row {
        let lock = &view.lock;
        let item = self.item(lock, Some(lock.lock_type));
        let end = match view.breaking {
            None => "",
            Some(None) => ", is to be given up",
            Some(Some(_)) => ", is to become a read lease",
        };
        Row {
            words: format!("{item}{end}"),
            stroke: stroke(
                lock.kind,
                lock.range,
                [('█', Type::Write), ('▒', Type::Read)],
                lock.lock_type,
            ),
        }
    }

    fn waiter(&self, view: &WaiterView, branches: &str) -> Row {
        let lock = &view.lock;
        let item = self.item(lock, Some(lock.lock_type));
        Row {
            words: format!("{branches}{item}"),
            stroke: stroke(
                lock.kind,
                lock.range,
                [('═', Type::Write), ('─', Type::Read)],
                lock.lock_type,
            ),
        }
    }
}

fn stroke(
    kind: LockKind,
    range: Range,
    strokes: [(char, Type); 2],
    lock_type: Type,
) -> Option<(Range, char)> {
    let is_record = matches!(kind, LockKind::Posix | LockKind::Ofd | LockKind::Access);
    let stroke = strokes.into_iter().find(|(_, of)| *of == lock_type)?.0;
    is_record.then_some((range, stroke))
}

/// The lines that lead to each of these waiters, which hang beneath one lock.
fn branches(waiters: &[WaiterView]) -> Vec<String> {
    let mut lines = Vec::with_capacity(waiters.len());
    // By depth: whether a further one hangs at the same place, below in the picture.
    let mut further: Vec<bool> = Vec::new();
    for waiter in waiters.iter().rev() {
        let depth = waiter.depth as usize;
        further.resize(depth + 1, false);
        let mut line = String::new();
        for &is_further in &further[..depth] {
            line.push_str(if is_further { "│  " } else { "   " });
        }
        line.push_str(if further[depth] { "├─ " } else { "└─ " });
        further[depth] = true;
        lines.push(line);
    }
    lines.reverse();
    lines
}

/// The words in one column and the ranges in another, beneath a ruler.
///
/// The ruler has a mark where any range begins, and behind each end, and is as long between two marks as
/// their numbers need: what touches and overlaps shows, how far it is does not.
fn lay_out(title: &str, rows: &[Row]) -> String {
    let ranges = || {
        rows.iter()
            .filter_map(|row| row.stroke.map(|(range, _)| range))
    };
    let mut marks: Vec<u64> = ranges()
        .flat_map(|range| [Some(range.start()), behind(range)])
        .flatten()
        .collect();
    marks.sort_unstable();
    marks.dedup();
    // Where each mark stands, in columns.
    let mut columns = Vec::with_capacity(marks.len());
    let mut ruler = String::new();
    for mark in &marks {
        columns.push(ruler.len());
        let _ = write!(ruler, "{mark:<5} ");
    }
    let ruler = ruler.trim_end();
    let column = |mark: u64| {
        let at = marks.binary_search(&mark).unwrap_or_default();
        columns.get(at).copied().unwrap_or_default()
    };
    let words = rows.iter().map(|row| row.words.chars().count());
    let width = words.max().unwrap_or(0).max(title.chars().count());
    let is_drawn = width + ruler.len() <= WIDEST;
    let mut text = String::new();
    let mut add = |words: &str, picture: &str| {
        let line = format!("{words:width$}   {picture}");
        text.push_str(line.trim_end());
        text.push('\n');
    };
    add(title, if is_drawn { ruler } else { "" });
    for row in rows {
        let mut picture = String::new();
        if let Some((range, stroke)) = row.stroke.filter(|_| is_drawn) {
            let from = column(range.start());
            picture.push_str(&" ".repeat(from));
            let strokes = match behind(range) {
                Some(behind) => column(behind) - from,
                None => ruler.len().max(from + 2) - from,
            };
            picture.extend(std::iter::repeat_n(stroke, strokes));
            if behind(range).is_none() {
                picture.push('▶');
            }
        }
        add(&row.words, &picture);
    }
    text
}

/// The first byte behind a range; `None` where it reaches to the end of the offset space.
fn behind(range: Range) -> Option<u64> {
    (!range.reaches_end()).then(|| range.end() + 1)
}
