//! A result as text, for people.

use std::fmt::Write;

use crate::format::{Cell, ResultFile, stddev_percent};
use crate::load::Load;

/// The tables of a result: one for each load and kind of task.
pub fn render(result: &ResultFile) -> String {
    let mut text = String::new();
    let mut rest = &result.results[..];
    while let Some(first) = rest.first() {
        let same = |cell: &Cell| (cell.load, cell.level) == (first.load, first.level);
        let count = rest.iter().take_while(|cell| same(cell)).count();
        let (cells, more) = rest.split_at(count);
        rest = more;
        if !text.is_empty() {
            text.push('\n');
        }
        render_load(&mut text, cells);
    }
    text.push_str(&key(&result.results));
    text
}

/// What the columns mean, as far as there are any.
fn key(cells: &[Cell]) -> String {
    let mut lines = Vec::new();
    if cells.iter().any(|cell| cell.load.is_loop()) {
        lines.extend([
            "ops/s, ±%: a lock and an unlock are two operations; of all tasks, mean of the rounds, and its standard deviation",
            "per task, scal., least: ops/s of one task; ops/s ÷ (tasks × ops/s of one task alone); least served ÷ mean",
            "user, system: cpus kept busy; vol/s, invol/s: context switches of those that waited, and of those whose time was up",
        ]);
    }
    if cells.iter().any(|cell| cell.load != Load::Chain) {
        lines.extend([
            "wakes/release: sleepers woken; sw: voluntary context switches, where nobody counts wake-ups",
            "wait p50, p99, max: how long a lock call took, in turns of their own; herd: from the release to the grant",
            "× kernel: how many times the kernel's speed, where both did the same work",
        ]);
    }
    if cells.iter().any(|cell| cell.load == Load::Chain) {
        lines.push("found, a check: whether the deadlock was found, and the time of a request that is refused for it");
    }
    let mut text = String::from("\n");
    for line in lines {
        let _ = writeln!(text, "{line}");
    }
    text
}

type Column = (&'static str, fn(&Cell, &[Cell]) -> String);

fn render_load(text: &mut String, cells: &[Cell]) {
    let first = &cells[0];
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{} as {}: {}",
        first.load,
        first.level,
        first.load.about()
    );
    let mut targets: Vec<&Cell> = Vec::new();
    for cell in cells {
        if !targets.iter().any(|known| known.target == cell.target) {
            targets.push(cell);
        }
    }
    for cell in targets {
        let place = cell
            .place
            .as_ref()
            .map_or(String::new(), |place| format!(", {place}"));
        let _ = writeln!(
            text,
            "  {}: {}, by {}{place}",
            cell.target, cell.call, cell.served_by
        );
    }
    let mut columns: Vec<Column> = vec![
        ("tasks", |cell, _| cell.tasks.to_string()),
        ("target", |cell, _| cell.target.clone()),
    ];
    if first.load == Load::Ranges {
        columns.insert(0, ("held", |cell, _| cell.held.to_string()));
    }
    columns.extend_from_slice(columns_of(first.load));
    let rows: Vec<Vec<String>> = cells
        .iter()
        .map(|cell| columns.iter().map(|(_, show)| show(cell, cells)).collect())
        .collect();
    let heads: Vec<String> = columns.iter().map(|(head, _)| (*head).to_owned()).collect();
    let width = |column: usize| {
        let lines = rows.iter().chain([&heads]);
        lines
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    for row in [&heads].into_iter().chain(&rows) {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(n, (cell, width))| {
                if columns[n].0 == "target" {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(text, "  {}", line.trim_end());
    }
    let mut notes: Vec<String> = Vec::new();
    for cell in cells {
        for note in &cell.notes {
            notes.push(format!("{} tasks on {}: {note}", cell.tasks, cell.target));
        }
    }
    if let Some(cell) = cells.iter().find(|cell| cell.target.starts_with("library"))
        && cell.served_by.contains("an owner each")
    {
        notes
            .push("the library has no processes: it served the tasks as threads of one".to_owned());
    }
    if cells.iter().any(|cell| not_comparable(cell, cells)) {
        notes.push("targets did not do the same work, so that they are not compared".to_owned());
    }
    for note in notes {
        let _ = writeln!(text, "  note: {note}");
    }
}

fn columns_of(load: Load) -> &'static [Column] {
    match load {
        Load::Herd => &[
            ("to the last", |cell, _| time(cell, "time_to_last_ns")),
            ("wakes/release", |cell, _| wakes(cell)),
            ("wait p50", |cell, _| time(cell, "wait_p50_ns")),
            ("p99", |cell, _| time(cell, "wait_p99_ns")),
            ("max", |cell, _| time(cell, "wait_max_ns")),
            ("× kernel", |cell, all| {
                // Less is better here, and the kernel's time is the measure.
                ratio(cell, all, "time_to_last_ns", |ours, theirs| theirs / ours)
            }),
        ],
        Load::Chain => &[
            ("found", |cell, _| match cell.mean("deadlock_found") {
                Some(1.0) => "yes".to_owned(),
                Some(0.0) => "NO".to_owned(),
                _ => "sometimes".to_owned(),
            }),
            ("checks/s", |cell, _| number(cell, "checks_per_second")),
            ("a check", |cell, _| match cell.mean("checks_per_second") {
                Some(rate) if rate > 0.0 => nanoseconds(1e9 / rate),
                _ => "-".to_owned(),
            }),
        ],
        _ => &[
            ("ops/s", |cell, _| number(cell, "ops")),
            ("±%", |cell, _| {
                let spread = cell.metrics.get("ops").and_then(|ops| stddev_percent(ops));
                spread.map_or("-".to_owned(), |spread| format!("{spread:.0}"))
            }),
            ("per task", |cell, _| number(cell, cell.level.ops_metric())),
            ("scal.", |cell, _| fraction(cell, "scalability")),
            ("least", |cell, _| fraction(cell, "least_served")),
            ("user", |cell, _| fraction(cell, "user_time")),
            ("system", |cell, _| fraction(cell, "system_time")),
            ("vol/s", |cell, _| {
                number(cell, "voluntary_context_switches")
            }),
            ("invol/s", |cell, _| {
                number(cell, "involuntary_context_switches")
            }),
            ("wakes/release", |cell, _| wakes(cell)),
            ("wait p50", |cell, _| time(cell, "wait_p50_ns")),
            ("p99", |cell, _| time(cell, "wait_p99_ns")),
            ("max", |cell, _| time(cell, "wait_max_ns")),
            ("also", |cell, _| also(cell)),
            ("× kernel", |cell, all| {
                ratio(cell, all, "ops", |ours, theirs| ours / theirs)
            }),
        ],
    }
}

fn also(cell: &Cell) -> String {
    match cell.load {
        Load::Readers => format!("writer {}", time(cell, "writer_wait_max_ns")),
        Load::Lease => format!("{} breaks/s", number(cell, "breaks_per_second")),
        _ => String::new(),
    }
}

/// The cell of the kernel that did the same.
fn kernel_of<'a>(cell: &Cell, all: &'a [Cell]) -> Option<&'a Cell> {
    all.iter().find(|other| {
        other.target.starts_with("kernel") && (other.tasks, other.held) == (cell.tasks, cell.held)
    })
}

fn not_comparable(cell: &Cell, all: &[Cell]) -> bool {
    kernel_of(cell, all).is_some_and(|kernel| kernel.work != cell.work)
}

fn ratio(cell: &Cell, all: &[Cell], metric: &str, compare: fn(f64, f64) -> f64) -> String {
    let kernel = kernel_of(cell, all)
        .filter(|kernel| kernel.work == cell.work && kernel.target != cell.target);
    match (
        cell.mean(metric),
        kernel.and_then(|kernel| kernel.mean(metric)),
    ) {
        (Some(ours), Some(theirs)) if ours > 0.0 && theirs > 0.0 => {
            format!("{:.1}", compare(ours, theirs))
        }
        _ => String::new(),
    }
}

/// Wake-ups a release; the kernel does not count them, so that voluntary switches stand for them.
fn wakes(cell: &Cell) -> String {
    match cell.mean("wake_ups_per_release") {
        Some(wakes) if cell.target.starts_with("library") => format!("{wakes:.3}"),
        Some(switches) => format!("{switches:.3} sw"),
        None => "-".to_owned(),
    }
}

fn number(cell: &Cell, metric: &str) -> String {
    cell.mean(metric).map_or("-".to_owned(), grouped)
}

fn fraction(cell: &Cell, metric: &str) -> String {
    cell.mean(metric)
        .map_or("-".to_owned(), |value| format!("{value:.2}"))
}

fn time(cell: &Cell, metric: &str) -> String {
    cell.mean(metric).map_or("-".to_owned(), nanoseconds)
}

/// A whole number in groups of three.
pub fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in the unit that suits it.
pub fn nanoseconds(value: f64) -> String {
    match value {
        ..1e3 => format!("{value:.0} ns"),
        1e3..1e6 => format!("{:.1} µs", value / 1e3),
        1e6..1e9 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.1} s", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::result;

    #[test]
    fn numbers_and_times_are_legible() {
        for (value, expected) in [
            (0.0, "0"),
            (999.4, "999"),
            (1e3, "1,000"),
            (1234567.0, "1,234,567"),
        ] {
            assert_eq!(grouped(value), expected);
        }
        for (value, expected) in [
            (41.0, "41 ns"),
            (1500.0, "1.5 µs"),
            (2.5e6, "2.5 ms"),
            (3e9, "3.0 s"),
        ] {
            assert_eq!(nanoseconds(value), expected);
        }
    }

    #[test]
    fn targets_are_compared_where_they_did_the_same_work() {
        for (work, expected) in [("same", "2.0"), ("other", "")] {
            let mut both = result(&[("ops", &[200.0])]).results;
            both[0].work = "same".into();
            let mut kernel = both[0].clone();
            kernel.target = "kernel".into();
            kernel.work = work.into();
            kernel.metrics.insert("ops".into(), vec![100.0]);
            both.push(kernel);
            assert_eq!(ratio(&both[0], &both, "ops", |a, b| a / b), expected);
            let mut text = String::new();
            render_load(&mut text, &both);
            assert_eq!(text.contains("not compared"), expected.is_empty(), "{text}");
        }
    }
}
