//! `lockkeeper locks`: who holds which locks on a mount, who waits, and for whom.
//!
//! The columns are those of lslocks(8). The server is asked over its status socket.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use lockkeeper_mount::mountpoint::MountEntry;
use lockkeeper_mount::report::{FileLocks, Kind, Lock, Mode, Report};
use lockkeeper_mount::status::{self, AskError};

/// What `lockkeeper locks` takes.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// A mount point, a source, a file on a mount, a process, or a status socket (default: every mount)
    #[arg(value_name = "MOUNTPOINT|SOURCE|PID")]
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
}

/// What of a report is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Filter {
    Everything,
    Process(u32),
    File(u64),
}

/// Prints the listing.
///
/// # Errors
/// No such mount, no permission, or no server.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (mut reports, filter) = gather(arguments.target.as_deref())?;
    for report in &mut reports {
        report.retain_files(|file| filter.concerns(file));
    }
    let mut out = io::stdout().lock();
    let text = if arguments.json {
        let mut text = serde_json::to_string_pretty(&reports)?;
        text.push('\n');
        text
    } else {
        let rows: Vec<Row> = reports
            .iter()
            .flat_map(|report| rows(report, &filter, arguments.bytes))
            .collect();
        table(&rows, !arguments.noheadings)
    };
    match out.write_all(text.as_bytes()) {
        // Whoever reads us has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        result => result.context("cannot print")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The reports of the mounts that `target` means, and what of them it means.
fn gather(target: Option<&Path>) -> anyhow::Result<(Vec<Report>, Filter)> {
    let mounts = status::mounts();
    let Some(target) = target else {
        return Ok((ask_all(&mounts)?, Filter::Everything));
    };
    let process = target.to_str().and_then(|text| text.parse::<u32>().ok());
    if let Some(pid) = process
        && fs::symlink_metadata(target).is_err()
    {
        return of_process(&mounts, pid);
    }
    match fs::metadata(target) {
        Ok(found) if found.file_type().is_socket() => {
            return Ok((vec![status::ask(target)?], Filter::Everything));
        }
        _ => {}
    }
    // A dead mount, or one of another user, cannot be looked at; its name will do.
    let path = target
        .canonicalize()
        .or_else(|_| std::path::absolute(target))
        .with_context(|| format!("{} is no path", target.display()))?;
    let named: Vec<&MountEntry> = mounts
        .iter()
        .filter(|mount| mount.path == path || mount.source == path)
        .collect();
    if !named.is_empty() {
        let reports = named.into_iter().map(ask_mount).collect::<Result<_, _>>()?;
        return Ok((reports, Filter::Everything));
    }
    let found =
        fs::metadata(&path).with_context(|| format!("cannot look at {}", path.display()))?;
    let Some(mount) = mounts.iter().find(|mount| mount.dev == found.dev()) else {
        bail!(
            "{} is not on a lockkeeper mount; {}",
            path.display(),
            known(&mounts)
        );
    };
    if found.is_dir() {
        bail!(
            "{} is a folder of the mount {}; ask for the mount, or for a file",
            path.display(),
            mount.path.display()
        );
    }
    Ok((vec![ask_mount(mount)?], Filter::File(found.ino())))
}

/// The reports of all mounts that tell theirs; of the others why not, on the
/// standard error. An error only where none of them does.
fn ask_all(mounts: &[MountEntry]) -> anyhow::Result<Vec<Report>> {
    let (told, refused): (Vec<_>, Vec<_>) = mounts.iter().map(ask_mount).partition(Result::is_ok);
    let mut refused = refused.into_iter().filter_map(Result::err);
    if told.is_empty()
        && let Some(error) = refused.next()
    {
        return Err(error);
    }
    for error in refused {
        eprintln!("warning: {error:#}");
    }
    Ok(told.into_iter().filter_map(Result::ok).collect())
}

/// A server means its mount; any other process what it holds or wants, on whichever mount.
fn of_process(mounts: &[MountEntry], pid: u32) -> anyhow::Result<(Vec<Report>, Filter)> {
    let mut reports = ask_all(mounts)?;
    if let Some(own) = reports.iter().position(|report| report.pid == pid) {
        return Ok((vec![reports.swap_remove(own)], Filter::Everything));
    }
    if fs::metadata(format!("/proc/{pid}")).is_err() {
        bail!("there is no process {pid}");
    }
    Ok((reports, Filter::Process(pid)))
}

/// Says which mounts there are.
pub fn known(mounts: &[MountEntry]) -> String {
    match mounts {
        [] => "nothing is mounted by lockkeeper here".into(),
        mounts => {
            let paths: Vec<_> = mounts
                .iter()
                .map(|mount| mount.path.display().to_string())
                .collect();
            format!("these are: {}", paths.join(", "))
        }
    }
}

/// Asks the server of a mount.
pub fn ask_mount(mount: &MountEntry) -> anyhow::Result<Report> {
    let place = mount.path.display();
    if let Err(error) = fs::symlink_metadata(&mount.path)
        && error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error())
    {
        bail!(
            "the server of {place} is gone: it was killed. `lockkeeper mount` on {place} replaces the dead mount, \
             `umount -l {place}` removes it"
        );
    }
    let caller = rustix::process::getuid();
    if !caller.is_root() && caller.as_raw() != mount.user_id {
        bail!(
            "the locks of {place} are told to root and to the user who mounted it (uid {})",
            mount.user_id
        );
    }
    let mut missing = None;
    for socket in status::sockets_of(mount) {
        match status::ask(&socket) {
            Err(error @ AskError::NoSocket(_)) => missing = Some(error),
            answer => return answer.with_context(|| format!("cannot list the locks of {place}")),
        }
    }
    match missing {
        Some(error) => Err(error).with_context(|| format!("cannot list the locks of {place}")),
        None => bail!(
            "cannot list the locks of {place}: it has no status socket where one is looked for; if it was mounted \
             with --status, give the socket in place of {place}"
        ),
    }
}

impl Filter {
    fn concerns(&self, file: &FileLocks) -> bool {
        match self {
            Filter::Everything => true,
            Filter::File(inode) => file.inode == *inode,
            Filter::Process(pid) => {
                let held = file.locks.iter().map(|held| held.lock.pid);
                let wanted = file.waiters.iter().map(|waiting| waiting.lock.pid);
                held.chain(wanted).any(|found| found == *pid)
            }
        }
    }

    fn shows(&self, lock: &Lock) -> bool {
        match self {
            Filter::Process(pid) => lock.pid == *pid,
            _ => true,
        }
    }
}

/// One line: COMMAND PID TYPE SIZE MODE M START END PATH BLOCKER.
type Row = [String; 10];

const HEADINGS: [&str; 10] = [
    "COMMAND", "PID", "TYPE", "SIZE", "MODE", "M", "START", "END", "PATH", "BLOCKER",
];
/// Columns of numbers stand to the right.
const IS_NUMBER: [bool; 10] = [
    false, true, true, true, false, true, true, true, false, true,
];

fn rows(report: &Report, filter: &Filter, bytes: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for file in &report.files {
        let row = |lock: &Lock, blocker: Option<&Lock>, waits: bool| -> Row {
            let mode = match lock.mode {
                Mode::Read => "READ",
                Mode::Write => "WRITE",
            };
            [
                lock.command
                    .as_deref()
                    .map_or_else(|| "(unknown)".into(), printable),
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
                match (&file.path, file.deleted) {
                    (Some(path), false) => printable(path),
                    (Some(path), true) => format!("{} (deleted)", printable(path)),
                    (None, _) => {
                        format!("{} (inode {})", printable(&report.mountpoint), file.inode)
                    }
                },
                blocker.map_or_else(String::new, |lock| lock.pid.to_string()),
            ]
        };
        for held in file.locks.iter().filter(|held| filter.shows(&held.lock)) {
            rows.push(row(&held.lock, None, false));
        }
        for waiting in file.waiters.iter().filter(|one| filter.shows(&one.lock)) {
            rows.push(row(&waiting.lock, file.holder(waiting), true));
        }
    }
    rows
}

/// A name as it may go to a terminal: whoever names a file or a process must not write lines of this table,
/// nor move the cursor. As lslocks(8) does, control characters are shown as `\x0a`.
fn printable(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            control if control.is_control() => {
                let mut bytes = [0; 4];
                for byte in control.encode_utf8(&mut bytes).bytes() {
                    text.push_str(&format!("\\x{byte:02x}"));
                }
            }
            plain => text.push(plain),
        }
    }
    text
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
    use lockkeeper_mount::report::{Blocker, Counts, Held, VERSION, Waiting};

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
COMMAND   PID  TYPE SIZE MODE  M START END PATH BLOCKER
program-7   7 POSIX   5K WRITE 0     0   0 /m/a
program-8   8 POSIX   5K READ* 0     0   9 /m/a       7
program-9   9 POSIX   5K READ* 0     0   9 /m/a       7
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
