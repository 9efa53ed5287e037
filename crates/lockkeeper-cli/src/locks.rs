//! `lockkeeper locks`: who holds which locks on a mount, who waits, and for whom.
//!
//! The columns are those of lslocks(8), and for how long.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use lockkeeper_watch::report::{Kind, Lock, Mode, Report};
use lockkeeper_watch::words;

use crate::screen;
use crate::target::{Filter, Target};

/// What `lockkeeper locks` takes.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// A mount point, a source, a file on a mount, a process, a status socket, or any other folder or file,
    /// of which the kernel tells (default: every mount)
    #[arg(value_name = "MOUNTPOINT|SOURCE|PID|FOLDER")]
    target: Option<PathBuf>,
    /// Print the documents of the servers, as docs/mount.md describes them, in one array
    #[arg(long)]
    json: bool,
    /// Print sizes in bytes
    #[arg(long, short)]
    bytes: bool,
    /// Print no line of headings
    #[arg(long, short)]
    noheadings: bool,
    /// Show it again every so many seconds: in place on a terminal, one after the other elsewhere
    // With `=` only: what follows `--watch` is where to look.
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", value_parser = screen::pause)]
    watch: Option<Duration>,
}

/// Prints the listing, once or again and again.
///
/// # Errors
/// No such mount, no permission, or no server.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let target = Target::find(arguments.target.as_deref())?;
    match arguments.watch {
        None => {
            let text = arguments.listing(&target)?;
            screen::print(&text)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(pause) => screen::watch(pause, || arguments.listing(&target)),
    }
}

impl Arguments {
    fn listing(&self, target: &Target) -> anyhow::Result<String> {
        let reports = target.reports()?;
        if self.json {
            // When watched, a line each time.
            let mut text = match self.watch {
                None => serde_json::to_string_pretty(&reports)?,
                Some(_) => serde_json::to_string(&reports)?,
            };
            text.push('\n');
            return Ok(words::clean_json(&text));
        }
        let rows: Vec<Row> = reports
            .iter()
            .flat_map(|report| rows(report, &target.filter, self.bytes))
            .collect();
        Ok(table(&rows, !self.noheadings))
    }
}

/// One line: COMMAND PID TYPE SIZE MODE M START END PATH BLOCKER FOR.
type Row = [String; 11];

const HEADINGS: [&str; 11] = [
    "COMMAND", "PID", "TYPE", "SIZE", "MODE", "M", "START", "END", "PATH", "BLOCKER", "FOR",
];
/// Columns of numbers stand to the right.
const IS_NUMBER: [bool; 11] = [
    false, true, true, true, false, true, true, true, false, true, true,
];

fn rows(report: &Report, filter: &Filter, bytes: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for file in &report.files {
        let row = |lock: &Lock, blocker: Option<&Lock>, waits: bool, age: Option<f64>| -> Row {
            let mode = match lock.mode {
                Mode::Read => "READ",
                Mode::Write => "WRITE",
            };
            [
                lock.command
                    .as_deref()
                    .map_or_else(|| "(unknown)".into(), words::clean),
                lock.pid.to_string(),
                match lock.kind {
                    Kind::Posix => "POSIX",
                    Kind::Ofd => "OFDLCK",
                    Kind::Flock => "FLOCK",
                    Kind::Access => "ACCESS",
                    Kind::Lease => "LEASE",
                    Kind::Delegation => "DELEG",
                    Kind::Other => "OTHER",
                }
                .into(),
                match (file.size, bytes) {
                    (None, _) => String::new(),
                    (Some(size), true) => size.to_string(),
                    (Some(size), false) => human(size),
                },
                format!("{mode}{}", if waits { "*" } else { "" }),
                u8::from(report.mandatory && lock.kind != Kind::Flock).to_string(),
                lock.start.to_string(),
                // As lslocks(8): 0 is the end, wherever it is.
                lock.end.unwrap_or(0).to_string(),
                words::file(file, report),
                blocker.map_or_else(String::new, |lock| lock.pid.to_string()),
                age.map_or_else(String::new, words::duration),
            ]
        };
        for held in file.locks.iter().filter(|held| filter.shows(&held.lock)) {
            rows.push(row(&held.lock, None, false, held.held_for));
        }
        let with_holders = file.waiters.iter().zip(file.holders());
        for (waiting, holder) in with_holders.filter(|(one, _)| filter.shows(&one.lock)) {
            rows.push(row(&waiting.lock, holder, true, waiting.waits_for));
        }
    }
    rows
}

/// 0B, 512B, 4K, 1.5M.
fn human(size: u64) -> String {
    let mut unit = 0;
    let mut scaled = size as f64;
    while scaled >= 1024.0 && unit < 6 {
        scaled /= 1024.0;
        unit += 1;
    }
    let letter = ["B", "K", "M", "G", "T", "P", "E"][unit];
    let rounded = (scaled * 10.0).round() / 10.0;
    match rounded.fract() == 0.0 {
        true => format!("{rounded:.0}{letter}"),
        false => format!("{rounded:.1}{letter}"),
    }
}

fn table(rows: &[Row], with_headings: bool) -> String {
    let mut widths = HEADINGS.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let headings = HEADINGS.map(str::to_owned);
    for row in with_headings.then_some(&headings).into_iter().chain(rows) {
        let mut line = String::new();
        for ((cell, &width), is_number) in row.iter().zip(&widths).zip(IS_NUMBER) {
            // Writing to a string cannot fail.
            let _ = match is_number {
                true => write!(line, "{cell:>width$} "),
                false => write!(line, "{cell:width$} "),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use lockkeeper_watch::report::{Blocker, Counts, FileLocks, Held, VERSION, Waiting};

    use super::*;

    fn lock(kind: Kind, mode: Mode, end: Option<u64>, pid: u32) -> Lock {
        Lock {
            kind,
            mode,
            start: 0,
            end,
            pid,
            command: Some(format!("program-{pid}")),
            owner: pid.into(),
        }
    }

    fn report() -> Report {
        let waiting = |pid, depth, blocked_by| Waiting {
            lock: lock(Kind::Posix, Mode::Read, Some(9), pid),
            waits_for: Some(0.5),
            overtaken: 0,
            depth,
            blocked_by: Some(blocked_by),
        };
        Report {
            version: VERSION,
            lockkeeper: "0".into(),
            pid: 1,
            source: "/s".into(),
            mountpoint: "/m".into(),
            data: None,
            mandatory: false,
            counts: Counts {
                inodes: 1,
                handles: 1,
                lock_processes: 1,
                lock_handles: 0,
                waiting: 2,
            },
            files: vec![FileLocks {
                path: Some("/m/a".into()),
                size: Some(5120),
                locks: vec![Held {
                    lock: lock(Kind::Posix, Mode::Write, None, 7),
                    held_for: Some(1.0),
                    breaking: false,
                }],
                waiters: vec![
                    waiting(8, 0, Blocker::Lock(0)),
                    waiting(9, 1, Blocker::Waiter(0)),
                ],
                ..FileLocks::new(1, 2)
            }],
            ..Report::default()
        }
    }

    #[test]
    fn a_name_cannot_forge_a_line_or_move_the_cursor() {
        let mut report = report();
        report.files[0].path = Some("/m/a\nb\x1b[2J\u{9b}é".into());
        report.files[0].locks[0].lock.command = Some("x\ty".into());
        let rows = rows(&report, &Filter::Everything, false);
        assert_eq!(rows[0][0], r"x\x09y");
        assert_eq!(rows[0][8], r"/m/a\x0ab\x1b[2J\xc2\x9bé");
    }

    #[test]
    fn the_columns_are_those_of_lslocks() {
        let rows = rows(&report(), &Filter::Everything, false);
        assert_eq!(
            table(&rows, true),
            "\
COMMAND   PID  TYPE SIZE MODE  M START END PATH BLOCKER   FOR
program-7   7 POSIX   5K WRITE 0     0   0 /m/a           1 s
program-8   8 POSIX   5K READ* 0     0   9 /m/a       7 0.5 s
program-9   9 POSIX   5K READ* 0     0   9 /m/a       7 0.5 s
"
        );
    }

    #[test]
    fn a_process_is_shown_what_is_its_own() {
        let rows = rows(&report(), &Filter::Process(9), true);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0][1].as_str(), rows[0][3].as_str()), ("9", "5120"));
        assert!(Filter::Process(9).concerns(&report().files[0]));
        assert!(!Filter::Process(10).concerns(&report().files[0]));
    }

    #[test]
    fn sizes_are_short() {
        for (size, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (4096, "4K"),
            (1536 * 1024, "1.5M"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human(size), text);
        }
    }

    #[test]
    fn a_chain_that_leads_nowhere_ends() {
        let mut report = report();
        report.files[0].waiters[0].blocked_by = Some(Blocker::Waiter(1));
        let file = &report.files[0];
        assert_eq!(file.holder(&file.waiters[1]), None);
        report.files[0].waiters[0].blocked_by = Some(Blocker::Lock(5));
        let file = &report.files[0];
        assert_eq!(file.holder(&file.waiters[0]), None);
    }

    #[test]
    fn a_report_survives_its_document() {
        let text = serde_json::to_string(&report()).expect("writes");
        assert!(text.contains(r#""kind":"posix","type":"write""#), "{text}");
        assert!(text.contains(r#""blocked_by":{"lock":0}"#), "{text}");
        let again: Report = serde_json::from_str(&text).expect("reads");
        assert_eq!(again, report());
    }
}
