//! What is told about a mount or a folder: every lock and waiting request, and how often what happened.
//!
//! The form of the JSON document is described in `docs/mount.md`, and is these types.

use serde::{Deserialize, Serialize};

/// The version of the document. It grows when a field goes or changes its meaning; new fields may come
/// without.
pub const VERSION: u32 = 1;

/// The whole document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The version of the server.
    pub lockkeeper: String,
    /// The server's process id.
    pub pid: u32,
    /// The folder that is shown.
    pub source: String,
    /// Where it is shown.
    pub mountpoint: String,
    /// How data goes: `backing`, `cached` or `direct`; `None` until the kernel has said hello.
    pub data: Option<String>,
    /// Whether reads and writes obey record locks.
    pub mandatory: bool,
    /// Numbers that tell how the mount is doing.
    pub counts: Counts,
    /// The files on which anything is locked.
    pub files: Vec<FileLocks>,
    /// Who tells.
    #[serde(default)]
    pub origin: Origin,
    /// Of a plain folder: how many more files of its file systems are locked of which it cannot be told
    /// whether they are below it, since those who have them open are hidden.
    #[serde(default)]
    pub unplaced: usize,
    /// How many of the files have no path and size here because there are so many of them; who wants all
    /// of them asks for them ([`Question::Report`](crate::ask::Question)).
    #[serde(default)]
    pub unnamed: usize,
    /// When this was so, in seconds since 1970.
    #[serde(default)]
    pub time: f64,
    /// When the mount began, in seconds since 1970; 0 of a plain folder.
    #[serde(default)]
    pub started: f64,
    /// How often what has happened since the mount began; all 0 of a plain folder.
    #[serde(default)]
    pub totals: Totals,
    /// How long the waits were that have ended since the mount began.
    #[serde(default)]
    pub wait_times: WaitTimes,
    /// Cycles of owners that wait for each other and that nobody is refused for.
    #[serde(default)]
    pub deadlocks: Vec<Deadlock>,
}

/// Who tells what is in a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The server of a lockkeeper mount.
    #[default]
    Mount,
    /// The kernel: /proc/locks and what it shows of processes. It tells no times and no totals.
    Kernel,
}

/// How often what has happened on all files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Locks granted, at once or after a wait.
    pub acquisitions: u64,
    /// Requests that had to wait.
    pub contended: u64,
    /// Waiters that were woken: granted, refused, or sent to try again.
    pub wake_ups: u64,
    /// Waiters that were looked at and had to wait on, beneath another lock.
    pub requeues: u64,
    /// Waits refused with EDEADLK.
    pub deadlocks: u64,
    /// Waits that were interrupted.
    pub cancels: u64,
    /// Requests refused with ENOLCK.
    pub limit_hits: u64,
}

/// How often what has happened on one file since it came to be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileCounters {
    /// Locks granted, at once or after a wait.
    pub acquisitions: u64,
    /// Requests that had to wait.
    pub contended: u64,
    /// Waiters that were woken: granted, refused, or sent to try again.
    pub wake_ups: u64,
    /// Waiters that were looked at and had to wait on, beneath another lock.
    pub requeues: u64,
    /// Waits refused with EDEADLK.
    pub deadlocks: u64,
    /// Waits that were interrupted.
    pub cancels: u64,
}

/// How long waits were, whatever they ended with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitTimes {
    /// The longest time of each bucket in seconds, growing.
    pub bounds: Vec<f64>,
    /// How many waits fall into each bucket and no shorter one; one more than `bounds`: the last is of
    /// those that were longer than any.
    pub counts: Vec<u64>,
    /// All of them together, in seconds.
    pub sum: f64,
    /// How many there were.
    pub count: u64,
}

/// Owners that wait for each other, each for the next and the last for the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlock {
    /// The waits.
    pub steps: Vec<DeadlockStep>,
}

/// One wait of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlockStep {
    /// The place of the file in [`Report::files`].
    pub file: usize,
    /// The place of the request in [`FileLocks::waiters`] of that file.
    pub waiter: usize,
}

/// Numbers that tell how a mount is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Inodes the kernel knows.
    pub inodes: usize,
    /// Files and folders it has open.
    pub handles: usize,
    /// Processes that have, want or had locks in files they still have open.
    pub lock_processes: usize,
    /// Open files that were used to lock.
    pub lock_handles: usize,
    /// Requests whose reply is still owed: waiters.
    pub waiting: usize,
}

/// A file on which something is locked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileLocks {
    /// Where the file is on the mount; `None` if that cannot be told.
    pub path: Option<String>,
    /// Whether it is unlinked: the path is where it was.
    pub deleted: bool,
    /// Its inode number as stat(2) shows it on the mount.
    pub inode: u64,
    /// Its size in bytes; `None` if that cannot be told.
    pub size: Option<u64>,
    /// The device number of the file at the source.
    pub source_device: u64,
    /// The inode number of the file at the source.
    pub source_inode: u64,
    /// The locks held: record locks by their first byte, then flocks.
    pub locks: Vec<Held>,
    /// The requests that wait, in the order of the tree: each is followed by those that hang beneath it.
    pub waiters: Vec<Waiting>,
    /// How often what has happened here; all 0 of a plain folder.
    #[serde(default)]
    pub counters: FileCounters,
}

/// The family of a lock or request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A process's record lock.
    Posix,
    /// A record lock of an open file description.
    Ofd,
    /// flock(2).
    Flock,
    /// A read or write that waits for mandatory locks.
    Access,
    /// A lease; of requests: an open or the like that waits until one is broken.
    Lease,
    /// A lease of a file server's own.
    Delegation,
    /// A kind of another version.
    #[serde(other)]
    Other,
}

/// Shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
}

/// What is locked or asked for, and by whom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lock {
    /// The family.
    pub kind: Kind,
    /// Shared or exclusive.
    #[serde(rename = "type")]
    pub mode: Mode,
    /// The first byte.
    pub start: u64,
    /// The last byte, inclusive; `None` to the end, however the file grows.
    pub end: Option<u64>,
    /// The process that took or wants it, as the server sees it; of several that share an open file
    /// description, the one that called. 0 if it is not visible there.
    pub pid: u32,
    /// The name of its program; `None` if it has ended.
    pub command: Option<String>,
    /// Whose lock it is: equal numbers are one owner, a process or an open file description.
    pub owner: u64,
}

/// A lock that is held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// The lock.
    #[serde(flatten)]
    pub lock: Lock,
    /// For how many seconds; of a lock that was put together from parts, the oldest part. `None` where
    /// that is not told: the kernel does not.
    pub held_for: Option<f64>,
    /// Whether it is a lease whose holder was told to give it up.
    #[serde(default)]
    pub breaking: bool,
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// What is asked for.
    #[serde(flatten)]
    pub lock: Lock,
    /// For how many seconds it has waited; `None` where that is not told.
    pub waits_for: Option<f64>,
    /// How many were granted what it conflicts with since it came.
    pub overtaken: u64,
    /// How many waiters stand between it and the lock that blocks it.
    pub depth: u32,
    /// What it hangs beneath; `None` if it is just being granted.
    pub blocked_by: Option<Blocker>,
}

/// What a request hangs beneath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Blocker {
    /// The lock at this place of `locks`, from 0.
    Lock(usize),
    /// The request at this place of `waiters`, from 0.
    Waiter(usize),
}

impl Kind {
    /// Its name in texts for people: `POSIX`, `OFD`, `flock`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Posix => "POSIX",
            Kind::Ofd => "OFD",
            Kind::Flock => "flock",
            Kind::Access => "access",
            Kind::Lease => "lease",
            Kind::Delegation => "delegation",
            Kind::Other => "lock",
        }
    }

    /// Whether it is a lease or delegation.
    pub fn is_lease(self) -> bool {
        matches!(self, Kind::Lease | Kind::Delegation)
    }
}

impl Lock {
    /// The process, for people: `4711 (sqlite3)`, `4711`, `a hidden process`.
    pub fn who(&self) -> String {
        match (self.pid, &self.command) {
            (0, _) => "a hidden process".into(),
            (pid, Some(command)) => format!("{pid} ({command})"),
            (pid, None) => pid.to_string(),
        }
    }
}

impl FileLocks {
    /// Nothing yet, of this file of the source.
    pub fn new(source_device: u64, source_inode: u64) -> FileLocks {
        FileLocks {
            path: None,
            deleted: false,
            inode: source_inode,
            size: None,
            source_device,
            source_inode,
            locks: Vec::new(),
            waiters: Vec::new(),
            counters: FileCounters::default(),
        }
    }

    /// The lock at the root of the tree in which this request hangs: what must go first, whatever hangs
    /// in between. Or the request there, if it is just being granted.
    pub fn holder(&self, waiting: &Waiting) -> Option<&Lock> {
        let mut blocker = waiting.blocked_by?;
        // No chain is longer than there are waiters; what a server says is not believed blindly.
        for _ in 0..=self.waiters.len() {
            match blocker {
                Blocker::Lock(index) => return self.locks.get(index).map(|held| &held.lock),
                Blocker::Waiter(index) => {
                    let above = self.waiters.get(index)?;
                    match above.blocked_by {
                        Some(next) => blocker = next,
                        None => return Some(&above.lock),
                    }
                }
            }
        }
        None
    }

    /// [`holder`](FileLocks::holder) of each waiter, in one pass: where all are wanted, following each chain
    /// to its end would take the square of their length.
    pub fn holders(&self) -> Vec<Option<&Lock>> {
        // What those beneath a waiter have at their root. Whoever is met again on the way there is in a
        // circle, which has none.
        let mut beneath: Vec<Option<Option<&Lock>>> = vec![None; self.waiters.len()];
        let mut way = Vec::new();
        for start in 0..self.waiters.len() {
            let mut at = start;
            let root = loop {
                let (Some(known), Some(waiting)) = (beneath.get(at), self.waiters.get(at)) else {
                    break None;
                };
                if let Some(known) = known {
                    break *known;
                }
                beneath[at] = Some(None);
                way.push(at);
                match waiting.blocked_by {
                    None => break Some(&waiting.lock),
                    Some(Blocker::Lock(lock)) => break self.locks.get(lock).map(|held| &held.lock),
                    Some(Blocker::Waiter(above)) => at = above,
                }
            };
            for at in way.drain(..) {
                beneath[at] = Some(root);
            }
        }
        let own = self.waiters.iter().zip(beneath);
        own.map(|(waiting, root)| waiting.blocked_by.and(root).flatten())
            .collect()
    }

    /// The lock or request that this one hangs beneath.
    pub fn blocker(&self, waiting: &Waiting) -> Option<&Lock> {
        match waiting.blocked_by? {
            Blocker::Lock(index) => self.locks.get(index).map(|held| &held.lock),
            Blocker::Waiter(index) => self.waiters.get(index).map(|waiting| &waiting.lock),
        }
    }
}

impl Report {
    /// Keeps only these files, and the deadlocks that lie within them.
    pub fn retain_files(&mut self, mut keep: impl FnMut(&FileLocks) -> bool) {
        let mut places = Vec::with_capacity(self.files.len());
        let mut kept = 0;
        self.files.retain(|file| {
            let keeps = keep(file);
            places.push(keeps.then_some(kept));
            kept += usize::from(keeps);
            keeps
        });
        self.deadlocks.retain_mut(|deadlock| {
            deadlock.steps.iter_mut().all(|step| {
                let place = places.get(step.file).copied().flatten();
                step.file = place.unwrap_or(usize::MAX);
                place.is_some()
            })
        });
    }

    /// The wait that is a step of a deadlock, and its file.
    pub fn wait_of(&self, step: DeadlockStep) -> Option<(&FileLocks, &Waiting)> {
        let file = self.files.get(step.file)?;
        Some((file, file.waiters.get(step.waiter)?))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn what_an_older_server_says_is_read() {
        let text = r#"{"version":1,"lockkeeper":"0","pid":1,"source":"/s","mountpoint":"/m","data":null,
            "mandatory":false,"counts":{"inodes":1,"handles":1,"lock_processes":0,"lock_handles":0,"waiting":0},
            "files":[{"path":"/m/a","deleted":false,"inode":2,"size":0,"source_device":1,"source_inode":2,
            "locks":[{"kind":"posix","type":"write","start":0,"end":null,"pid":7,"command":"a","owner":1,
            "held_for":1.5}],"waiters":[]}]}"#;
        let report: Report = serde_json::from_str(text).expect("reads");
        assert_eq!(report.origin, Origin::Mount);
        assert_eq!(report.totals, Totals::default());
        assert_eq!(report.files[0].locks[0].held_for, Some(1.5));
    }

    /// A lock of this owner on the whole file.
    pub(crate) fn lock(owner: u64) -> Lock {
        Lock {
            kind: Kind::Posix,
            mode: Mode::Write,
            start: 0,
            end: None,
            pid: 1,
            command: None,
            owner,
        }
    }

    /// A file with one lock, of owner 100, and a waiter of owner 0, 1, 2... for each of these.
    fn hanging(blockers: &[Option<Blocker>]) -> FileLocks {
        let held = Held {
            lock: lock(100),
            held_for: None,
            breaking: false,
        };
        let waiting = |(owner, &blocked_by): (u64, &Option<Blocker>)| Waiting {
            lock: lock(owner),
            waits_for: None,
            overtaken: 0,
            depth: 0,
            blocked_by,
        };
        FileLocks {
            locks: vec![held],
            waiters: (0..).zip(blockers).map(waiting).collect(),
            ..FileLocks::new(1, 1)
        }
    }

    #[test]
    fn all_holders_at_once_are_those_of_each() {
        use Blocker::{Lock, Waiter};
        let file = hanging(&[
            Some(Lock(0)),
            Some(Waiter(0)),
            Some(Waiter(4)),
            None,
            Some(Waiter(3)),
            Some(Lock(7)),
            Some(Waiter(5)),
            Some(Waiter(99)),
            // A circle, and who hangs beneath it.
            Some(Waiter(9)),
            Some(Waiter(8)),
            Some(Waiter(8)),
        ]);
        let owners = |of: Vec<Option<&super::Lock>>| -> Vec<Option<u64>> {
            of.into_iter()
                .map(|lock| lock.map(|lock| lock.owner))
                .collect()
        };
        let each = file.waiters.iter().map(|waiting| file.holder(waiting));
        assert_eq!(owners(file.holders()), owners(each.collect()));
        assert_eq!(
            owners(file.holders())[..5],
            [Some(100), Some(100), Some(3), None, Some(3)]
        );
    }

    #[test]
    fn deadlocks_follow_their_files_and_go_with_them() {
        let deadlock = |files: &[usize]| Deadlock {
            steps: files
                .iter()
                .map(|&file| DeadlockStep { file, waiter: 3 })
                .collect(),
        };
        let mut report = Report {
            version: VERSION,
            files: (0..4).map(|inode| FileLocks::new(1, inode)).collect(),
            deadlocks: vec![deadlock(&[1, 3]), deadlock(&[0, 3]), deadlock(&[9])],
            ..Report::default()
        };
        report.retain_files(|file| file.inode % 2 == 1);
        assert_eq!(report.files.len(), 2);
        assert_eq!(report.deadlocks, [deadlock(&[0, 1])]);
    }
}
