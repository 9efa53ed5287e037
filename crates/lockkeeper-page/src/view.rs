//! What one client is sent: of however many locks, as many rows as he can look at.
//!
//! A file's locks and waiters are one list of rows, in the order of the tree: each lock is followed by what
//! hangs beneath it. A page of that list is sent of the file that is open, and the beginning of it of the busiest
//! files. Everything is text and numbers; what it looks like is the page's business.

use lockkeeper_watch::report::{Deadlock, FileCounters, FileLocks, Lock, Report, Totals};
use lockkeeper_watch::rows::{self, Rows};
use lockkeeper_watch::timeline::Span;
use serde::{Deserialize, Serialize};

use crate::sampler::Sample;
use crate::source::FileId;

/// Rows of the page of a file.
const PAGE_ROWS: usize = 200;
/// Files of the overview.
const FILES: usize = 24;
/// How many of these show the beginning of their tree.
const TREES: usize = 6;
/// Rows of that beginning.
const TREE_ROWS: usize = 8;
/// Deadlocks that are told, and waits of each.
const DEADLOCKS: usize = 5;
const DEADLOCK_STEPS: usize = 12;

/// What a client wants to see.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Wanted {
    /// A file, as `DEVICE-INODE`.
    file: Option<String>,
    /// The page of its rows, from 0.
    page: usize,
    /// A process id, an inode number, or a part of the name of a file or program.
    find: String,
}

impl Wanted {
    /// The file that is open.
    pub fn file(&self) -> Option<FileId> {
        FileId::parse(self.file.as_deref()?)
    }
}

/// All that a client is sent at a time.
#[derive(Debug, Serialize)]
pub struct View<'a> {
    /// The time of it all, in seconds since 1970.
    now: f64,
    mount: Mount<'a>,
    totals: Totals,
    waits: Waits,
    counts: Numbers,
    deadlocks: Vec<Circle<'a>>,
    deadlocks_in_all: usize,
    files: Vec<File<'a>>,
    file: Option<OpenFile<'a>>,
    /// Whether `samples` are all that there are.
    first: bool,
    samples: Vec<Sample>,
}

#[derive(Debug, Serialize)]
struct Mount<'a> {
    mountpoint: &'a str,
    source: &'a str,
    pid: u32,
    version: &'a str,
    data: Option<&'a str>,
    mandatory: bool,
    started: f64,
}

/// How long the waits were that have ended.
#[derive(Debug, Serialize)]
struct Waits {
    count: u64,
    sum: f64,
    /// Half of them were no longer than this; `None` if there were none, or it is longer than any bound.
    median: Option<f64>,
    /// And 99 of 100.
    most: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Numbers {
    files: usize,
    /// Files that are as was asked for.
    found: usize,
    locks: usize,
    waiting: usize,
    /// The longest wait of now, in seconds.
    oldest: Option<f64>,
}

/// A deadlock: each waits for the next, and the last for the first.
#[derive(Debug, Serialize)]
struct Circle<'a> {
    steps: Vec<CircleStep<'a>>,
    /// Waits beyond those.
    more: usize,
}

#[derive(Debug, Serialize)]
struct CircleStep<'a> {
    file: FileId,
    path: Option<&'a str>,
    #[serde(flatten)]
    lock: &'a Lock,
    waits_for: Option<f64>,
}

/// A file, and the beginning of its tree.
#[derive(Debug, Serialize)]
struct File<'a> {
    id: FileId,
    path: Option<&'a str>,
    deleted: bool,
    inode: u64,
    size: Option<u64>,
    locks: usize,
    waiters: usize,
    oldest: Option<f64>,
    counters: FileCounters,
    deadlock: bool,
    rows: Vec<Row<'a>>,
    rows_in_all: usize,
}

/// The file that is open; without `file` if nothing is locked there.
#[derive(Debug, Serialize)]
struct OpenFile<'a> {
    id: FileId,
    file: Option<File<'a>>,
    page: usize,
    pages: usize,
    timeline: Option<Timeline>,
}

/// The grants and waits of a file.
#[derive(Debug, Serialize)]
pub struct Timeline {
    now: f64,
    spans: Vec<Span>,
}

impl Timeline {
    pub fn new(now: f64, spans: Vec<Span>) -> Timeline {
        Timeline { now, spans }
    }
}

/// A lock that is held, or a request that waits.
#[derive(Debug, Serialize)]
struct Row<'a> {
    /// The lock or request.
    #[serde(flatten)]
    lock: &'a Lock,
    is: Is,
    /// 0 of what is held, and of what hangs beneath nothing.
    depth: usize,
    /// For how long it is so, in seconds.
    seconds: Option<f64>,
    /// How many wait beneath it.
    beneath: usize,
    overtaken: u64,
    /// Whether it waits in a circle.
    deadlock: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Is {
    Held,
    /// A lease whose holder was told to give it up.
    Breaking,
    Waits,
    /// About to have what it waited for.
    Woken,
}

impl<'a> View<'a> {
    /// What `wanted` means in `report`.
    pub fn new(
        report: &'a Report,
        wanted: &Wanted,
        timeline: Option<Timeline>,
        samples: Vec<Sample>,
        first: bool,
    ) -> View<'a> {
        let find = Find::new(&wanted.find);
        let in_deadlock = in_deadlock(report);
        let mut found: Vec<(usize, &FileLocks)> = report
            .files
            .iter()
            .enumerate()
            .filter(|(_, file)| find.finds_file(file))
            .collect();
        let in_all = found.len();
        // The longest queues first; where there are none, what is used most.
        let by_business = |(_, a): &(usize, &FileLocks), (_, b): &(usize, &FileLocks)| {
            let business = |file: &FileLocks| {
                let counters = &file.counters;
                (file.waiters.len(), counters.contended, file.locks.len())
            };
            business(b)
                .cmp(&business(a))
                .then_with(|| a.path.cmp(&b.path))
        };
        if in_all > FILES {
            found.select_nth_unstable_by(FILES, by_business);
            found.truncate(FILES);
        }
        found.sort_by(by_business);
        let open = wanted.file();
        View {
            now: report.time,
            mount: Mount {
                mountpoint: &report.mountpoint,
                source: &report.source,
                pid: report.pid,
                version: &report.lockkeeper,
                data: report.data.as_deref(),
                mandatory: report.mandatory,
                started: report.started,
            },
            totals: report.totals,
            waits: waits(report),
            counts: Numbers {
                files: report.files.len(),
                found: in_all,
                locks: report.files.iter().map(|file| file.locks.len()).sum(),
                waiting: report.files.iter().map(|file| file.waiters.len()).sum(),
                oldest: report.files.iter().filter_map(oldest).reduce(f64::max),
            },
            deadlocks: report
                .deadlocks
                .iter()
                .take(DEADLOCKS)
                .map(|deadlock| Circle::new(report, deadlock))
                .collect(),
            deadlocks_in_all: report.deadlocks.len(),
            files: found
                .iter()
                .enumerate()
                .map(|(place, &(index, file))| {
                    let rows = match open.is_none() && place < TREES {
                        true => TREE_ROWS,
                        false => 0,
                    };
                    File::new(file, &find, &in_deadlock[index], 0, rows)
                })
                .collect(),
            file: open.map(|id| OpenFile::new(report, id, wanted, &in_deadlock, timeline)),
            first,
            samples,
        }
    }
}

impl<'a> OpenFile<'a> {
    fn new(
        report: &'a Report,
        id: FileId,
        wanted: &Wanted,
        in_deadlock: &[Vec<usize>],
        timeline: Option<Timeline>,
    ) -> OpenFile<'a> {
        let find = Find::new(&wanted.find).within_file();
        let place = report.files.iter().position(|file| id_of(file) == id);
        let rows_of = |page: usize| {
            place.map(|index| {
                let first = page.saturating_mul(PAGE_ROWS);
                let file = &report.files[index];
                File::new(file, &find, &in_deadlock[index], first, PAGE_ROWS)
            })
        };
        let mut page = wanted.page;
        let mut file = rows_of(page);
        let pages = file
            .as_ref()
            .map_or(1, |file| file.rows_in_all.div_ceil(PAGE_ROWS).max(1));
        // The list has become shorter.
        if page >= pages {
            page = pages - 1;
            file = rows_of(page);
        }
        OpenFile {
            id,
            file,
            page,
            pages,
            timeline,
        }
    }
}

impl<'a> File<'a> {
    /// `count` rows from `first` on, of those that `find` finds.
    fn new(
        file: &'a FileLocks,
        find: &Find,
        in_deadlock: &[usize],
        first: usize,
        count: usize,
    ) -> File<'a> {
        let (rows, rows_in_all) = match count {
            0 => (Vec::new(), file.locks.len() + file.waiters.len()),
            count => rows(file, find, in_deadlock, first, count),
        };
        File {
            id: id_of(file),
            path: file.path.as_deref(),
            deleted: file.deleted,
            inode: file.inode,
            size: file.size,
            locks: file.locks.len(),
            waiters: file.waiters.len(),
            oldest: oldest(file),
            counters: file.counters,
            deadlock: !in_deadlock.is_empty(),
            rows,
            rows_in_all,
        }
    }
}

impl<'a> Circle<'a> {
    fn new(report: &'a Report, deadlock: &Deadlock) -> Circle<'a> {
        let steps: Vec<_> = deadlock
            .steps
            .iter()
            .take(DEADLOCK_STEPS)
            .filter_map(|&step| report.wait_of(step))
            .map(|(file, waiting)| CircleStep {
                file: id_of(file),
                path: file.path.as_deref(),
                lock: &waiting.lock,
                waits_for: waiting.waits_for,
            })
            .collect();
        Circle {
            more: deadlock.steps.len() - steps.len(),
            steps,
        }
    }
}

/// What is looked for.
enum Find {
    Everything,
    /// A process or an inode.
    Number(u64),
    Text(String),
}

impl Find {
    fn new(text: &str) -> Find {
        let text = text.trim();
        match text.parse() {
            _ if text.is_empty() => Find::Everything,
            Ok(number) => Find::Number(number),
            Err(_) => Find::Text(text.to_lowercase()),
        }
    }

    /// In a file that is open, its name finds nothing.
    fn within_file(self) -> Find {
        match self {
            Find::Text(_) => Find::Everything,
            other => other,
        }
    }

    fn finds_lock(&self, lock: &Lock) -> bool {
        match self {
            Find::Everything => true,
            Find::Number(number) => u64::from(lock.pid) == *number,
            Find::Text(text) => lock
                .command
                .as_ref()
                .is_some_and(|command| command.to_lowercase().contains(text)),
        }
    }

    /// A file without a path is called by its inode.
    fn finds_name(&self, file: &FileLocks) -> bool {
        let part = match self {
            Find::Everything => return true,
            Find::Number(number) if [file.inode, file.source_inode].contains(number) => {
                return true;
            }
            Find::Number(number) => &number.to_string(),
            Find::Text(text) => text,
        };
        match &file.path {
            Some(path) => path.to_lowercase().contains(part),
            None => format!("inode {}", file.inode).contains(part),
        }
    }

    fn finds_file(&self, file: &FileLocks) -> bool {
        self.finds_name(file)
            || file.locks.iter().any(|held| self.finds_lock(&held.lock))
            || file
                .waiters
                .iter()
                .any(|waiting| self.finds_lock(&waiting.lock))
    }
}

/// The rows of a file that are found, from `first` on, and how many there are. Where a waiter is found, the lock
/// that it hangs beneath in the end is, too.
fn rows<'a>(
    file: &'a FileLocks,
    find: &Find,
    in_deadlock: &[usize],
    first: usize,
    count: usize,
) -> (Vec<Row<'a>>, usize) {
    let all = Rows::new(file);
    let mut places = Vec::new();
    let mut total = 0;
    let mut add = |place| {
        if (first..first.saturating_add(count)).contains(&total) {
            places.push(place);
        }
        total += 1;
    };
    let everything = find.finds_name(file);
    for (lock, waiters) in all.trees() {
        let found: Vec<usize> = waiters
            .filter(|&waiter| everything || find.finds_lock(&file.waiters[waiter].lock))
            .collect();
        if let Some(lock) = lock
            && (everything || !found.is_empty() || find.finds_lock(&file.locks[lock].lock))
        {
            add(rows::Row::Lock(lock));
        }
        found.into_iter().map(rows::Row::Waiter).for_each(&mut add);
    }
    let rows = places
        .into_iter()
        .map(|place| row(file, place, &all, in_deadlock))
        .collect();
    (rows, total)
}

fn row<'a>(
    file: &'a FileLocks,
    place: rows::Row,
    all: &Rows<'_>,
    in_deadlock: &[usize],
) -> Row<'a> {
    let (depth, beneath) = (all.depth(place), all.beneath(place));
    match place {
        rows::Row::Lock(index) => {
            let held = &file.locks[index];
            Row {
                lock: &held.lock,
                is: match held.breaking {
                    true => Is::Breaking,
                    false => Is::Held,
                },
                depth,
                seconds: held.held_for,
                beneath,
                overtaken: 0,
                deadlock: false,
            }
        }
        rows::Row::Waiter(index) => {
            let waiting = &file.waiters[index];
            Row {
                lock: &waiting.lock,
                is: match waiting.blocked_by {
                    None => Is::Woken,
                    Some(_) => Is::Waits,
                },
                depth,
                seconds: waiting.waits_for,
                beneath,
                overtaken: waiting.overtaken,
                deadlock: in_deadlock.binary_search(&index).is_ok(),
            }
        }
    }
}

/// Of each file, the waiters that are steps of a deadlock, in order.
fn in_deadlock(report: &Report) -> Vec<Vec<usize>> {
    let mut places = vec![Vec::new(); report.files.len()];
    for step in report.deadlocks.iter().flat_map(|deadlock| &deadlock.steps) {
        if let Some(waiters) = places.get_mut(step.file) {
            waiters.push(step.waiter);
        }
    }
    for waiters in &mut places {
        waiters.sort_unstable();
    }
    places
}

fn id_of(file: &FileLocks) -> FileId {
    FileId {
        device: file.source_device,
        inode: file.source_inode,
    }
}

fn oldest(file: &FileLocks) -> Option<f64> {
    let waits = file.waiters.iter().filter_map(|waiting| waiting.waits_for);
    waits.reduce(f64::max)
}

fn waits(report: &Report) -> Waits {
    let times = &report.wait_times;
    let quantile = |part: f64| {
        let rank = (times.count as f64 * part).ceil();
        let mut sum = 0;
        let bucket = times.counts.iter().position(|count| {
            sum += count;
            sum > 0 && sum as f64 >= rank
        });
        bucket.and_then(|bucket| times.bounds.get(bucket).copied())
    };
    Waits {
        count: times.count,
        sum: times.sum,
        median: quantile(0.5),
        most: quantile(0.99),
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_watch::report::{Blocker, DeadlockStep, Held, Kind, Mode, WaitTimes, Waiting};
    use serde_json::{Value, json};

    use super::*;

    fn lock(pid: u32, mode: Mode) -> Lock {
        Lock {
            kind: Kind::Posix,
            mode,
            start: 0,
            end: None,
            pid,
            command: Some(format!("<b>program</b>-{pid}")),
            owner: u64::from(pid),
        }
    }

    fn held(pid: u32) -> Held {
        Held {
            lock: lock(pid, Mode::Write),
            held_for: Some(9.0),
            breaking: false,
        }
    }

    fn waiting(pid: u32, depth: u32, blocked_by: Option<Blocker>) -> Waiting {
        Waiting {
            lock: lock(pid, Mode::Read),
            waits_for: Some(f64::from(pid)),
            overtaken: 0,
            depth,
            blocked_by,
        }
    }

    /// Two locks: beneath the first 3, beneath 3 are 4 and 5, 6 is beneath 5; beneath the second 7; 8 is being
    /// woken.
    fn file(inode: u64) -> FileLocks {
        FileLocks {
            path: Some(format!("/m/file-{inode}")),
            locks: vec![held(1), held(2)],
            waiters: vec![
                waiting(3, 0, Some(Blocker::Lock(0))),
                waiting(4, 1, Some(Blocker::Waiter(0))),
                waiting(5, 1, Some(Blocker::Waiter(0))),
                waiting(6, 2, Some(Blocker::Waiter(2))),
                waiting(7, 0, Some(Blocker::Lock(1))),
                waiting(8, 0, None),
            ],
            ..FileLocks::new(1, inode)
        }
    }

    fn report(files: Vec<FileLocks>) -> Report {
        Report {
            mountpoint: "/m".into(),
            files,
            ..Report::default()
        }
    }

    fn view(report: &Report, wanted: &Wanted) -> Value {
        let view = View::new(report, wanted, None, Vec::new(), true);
        serde_json::to_value(&view).expect("JSON")
    }

    fn find(text: &str) -> Wanted {
        Wanted {
            find: text.into(),
            ..Wanted::default()
        }
    }

    fn open(inode: u64, page: usize) -> Wanted {
        Wanted {
            file: Some(format!("1-{inode}")),
            page,
            ..Wanted::default()
        }
    }

    /// `PID@DEPTH+BENEATH` of each row.
    fn picture(file: &Value) -> String {
        let rows = file["rows"].as_array().expect("rows");
        let row = |row: &Value| format!("{}@{}+{}", row["pid"], row["depth"], row["beneath"]);
        rows.iter().map(row).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rows_are_in_the_order_of_the_tree() {
        let report = report(vec![file(7)]);
        let view = view(&report, &open(7, 0));
        let file = &view["file"]["file"];
        assert_eq!(
            picture(file),
            "1@0+4 3@1+3 4@2+0 5@2+1 6@3+0 2@0+1 7@1+0 8@0+0"
        );
        let is: Vec<_> = file["rows"]
            .as_array()
            .expect("rows")
            .iter()
            .map(|row| &row["is"])
            .collect();
        assert_eq!(
            is,
            [
                "held", "waits", "waits", "waits", "waits", "held", "waits", "woken"
            ]
        );
        assert_eq!(file["oldest"], 8.0);
        assert_eq!(view["file"]["id"], "1-7");
    }

    #[test]
    fn a_process_is_found_with_the_lock_that_it_waits_for() {
        let report = report(vec![file(7), file(9), FileLocks::new(1, 5)]);
        for (text, rows, files) in [
            ("6", "1@0+4 6@3+0", 2),
            (" 2 ", "2@0+1", 2),
            ("</B>-7", "2@0+1 7@1+0", 2),
            (
                "FILE-9",
                "1@0+4 3@1+3 4@2+0 5@2+1 6@3+0 2@0+1 7@1+0 8@0+0",
                1,
            ),
        ] {
            let view = view(&report, &find(text));
            assert_eq!(picture(&view["files"][0]), rows, "{text}");
            assert_eq!(view["counts"]["found"], files, "{text}");
        }
        // A file without a path is called by its inode; a path may hold a number, too.
        for (text, ids) in [
            ("5", &["1-7", "1-9", "1-5"][..]),
            ("inode 5", &["1-5"]),
            ("INODE", &["1-5"]),
            ("9", &["1-9"]),
        ] {
            let view = view(&report, &find(text));
            let files = view["files"].as_array().expect("files");
            let found: Vec<_> = files.iter().map(|file| &file["id"]).collect();
            assert_eq!(found, ids, "{text}");
        }
        let nobody = view(&report, &find("nobody"));
        assert_eq!(
            (&nobody["files"], &nobody["counts"]["found"]),
            (&json!([]), &json!(0))
        );
        // Within a file the name of it finds everything.
        let wanted = Wanted {
            find: "file-7".into(),
            ..open(7, 0)
        };
        assert_eq!(view(&report, &wanted)["file"]["file"]["rows_in_all"], 8);
    }

    #[test]
    fn of_many_a_page_is_sent() {
        let mut many = file(7);
        many.waiters = (0..10_000)
            .map(|index| {
                let above = match index {
                    0 => Blocker::Lock(0),
                    index => Blocker::Waiter(index as usize - 1),
                };
                waiting(index + 10, index, Some(above))
            })
            .collect();
        let report = report(vec![file(1), many]);
        let overview = view(&report, &Wanted::default());
        assert_eq!(overview["files"][0]["waiters"], 10_000);
        assert_eq!(picture(&overview["files"][0]).split(' ').count(), TREE_ROWS);
        let first = view(&report, &open(7, 0));
        assert_eq!(first["file"]["pages"], 51);
        assert!(
            first["file"]["file"]["rows"]
                .as_array()
                .expect("rows")
                .len()
                == PAGE_ROWS
        );
        assert!(
            first.to_string().len() < 64 << 10,
            "{}",
            first.to_string().len()
        );
        // A page that is gone is the last one.
        for page in [50, 51, usize::MAX] {
            let last = view(&report, &open(7, page));
            assert_eq!(last["file"]["page"], 50);
            assert_eq!(picture(&last["file"]["file"]), "10009@10000+0 2@0+0");
        }
    }

    #[test]
    fn the_busiest_files_come_first_and_a_file_may_be_gone() {
        let files = (0..100_u32)
            .map(|inode| FileLocks {
                waiters: (0..inode % 50)
                    .map(|pid| waiting(pid, 0, Some(Blocker::Lock(0))))
                    .collect(),
                ..FileLocks::new(1, inode.into())
            })
            .collect();
        let report = report(files);
        let view = view(&report, &open(1000, 0));
        let files = view["files"].as_array().expect("files");
        let waiters: Vec<_> = files.iter().map(|file| file["waiters"].as_u64()).collect();
        assert_eq!(waiters.len(), FILES);
        assert!(waiters.is_sorted_by(|a, b| a >= b), "{waiters:?}");
        assert_eq!(waiters[0], Some(49));
        assert_eq!(view["file"]["file"], Value::Null);
        assert_eq!(view["file"]["pages"], 1);
    }

    #[test]
    fn a_deadlock_names_its_owners_and_marks_their_rows() {
        let mut report = report(vec![file(7), file(9)]);
        report.deadlocks = vec![Deadlock {
            steps: vec![
                DeadlockStep { file: 0, waiter: 2 },
                DeadlockStep { file: 1, waiter: 4 },
                // Of no file: another moment's.
                DeadlockStep { file: 5, waiter: 0 },
            ],
        }];
        let view = view(&report, &Wanted::default());
        let steps = &view["deadlocks"][0]["steps"];
        assert_eq!(
            (
                &steps[0]["pid"],
                &steps[0]["path"],
                &steps[1]["pid"],
                &steps[1]["file"]
            ),
            (&json!(5), &json!("/m/file-7"), &json!(7), &json!("1-9"))
        );
        assert_eq!(view["deadlocks"][0]["more"], 1);
        let rows = view["files"][0]["rows"].as_array().expect("rows");
        let marked: Vec<_> = rows
            .iter()
            .filter(|row| row["deadlock"] == true)
            .map(|row| &row["pid"])
            .collect();
        assert_eq!(marked, [5]);
        assert_eq!(view["files"][0]["deadlock"], true);
    }

    #[test]
    fn a_tree_that_makes_no_sense_is_shown_all_the_same() {
        let mut broken = file(7);
        broken.waiters = vec![
            waiting(3, 0, Some(Blocker::Waiter(1))),
            waiting(4, 9, Some(Blocker::Waiter(7))),
            waiting(5, 0, Some(Blocker::Lock(7))),
        ];
        let report = report(vec![broken]);
        assert_eq!(view(&report, &open(7, 0))["file"]["file"]["waiters"], 3);
    }

    #[test]
    fn half_and_nearly_all_waits_are_told_by_their_bounds() {
        let mut report = report(Vec::new());
        assert_eq!(
            view(&report, &Wanted::default())["waits"]["median"],
            Value::Null
        );
        report.wait_times = WaitTimes {
            bounds: vec![0.1, 1.0],
            counts: vec![60, 39, 1],
            sum: 12.5,
            count: 100,
        };
        let waits = &view(&report, &Wanted::default())["waits"];
        assert_eq!(
            (&waits["median"], &waits["most"]),
            (&json!(0.1), &json!(1.0))
        );
    }
}
