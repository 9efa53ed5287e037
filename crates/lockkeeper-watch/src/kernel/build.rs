//! Puts files together from what /proc/locks and the processes say.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;

use super::Key;
use super::open_files::{Blocked, Call, OpenFile, blocked_threads};
use super::proc_locks::{Line, Record};
use crate::process;
use crate::report::{Blocker, FileLocks, Held, Kind, Lock, Mode, Waiting};

/// Numbers of owners begin here, so that they are none of a mount's.
const PROCESSES: u64 = 1 << 62;
const OPEN_FILES: u64 = 1 << 63;

/// The files of these records that have a name, by their names.
pub(crate) fn files(
    records: &[Record],
    open: &[OpenFile],
    names: &HashMap<Key, (PathBuf, bool)>,
) -> Vec<FileLocks> {
    let mut by_file: HashMap<Key, Vec<&Record>> = HashMap::new();
    for record in records {
        if let Some(key) = record.key()
            && names.contains_key(&key)
        {
            by_file.entry(key).or_default().push(record);
        }
    }
    let mut open_by_file: HashMap<Key, Vec<&OpenFile>> = HashMap::new();
    for file in open {
        open_by_file.entry(file.key).or_default().push(file);
    }
    let mut commands = HashMap::new();
    let mut next_owner = OPEN_FILES;
    let mut files: Vec<FileLocks> = by_file
        .into_iter()
        .map(|(key, mut records)| {
            // As a mount lists them; the kernel's order is of the processors that took them.
            records.sort_by_key(|record| (rank(record.held.kind), record.held.start));
            let open = open_by_file.remove(&key).unwrap_or_default();
            let builder = Builder {
                owners: Owners::new(&records, &open, &mut next_owner),
                blocked: AllBlocked::new(blocked(&records, &open)),
                commands: &mut commands,
            };
            let (path, is_deleted) = &names[&key];
            let path = path.to_string_lossy().into_owned();
            FileLocks {
                path: (!path.is_empty()).then_some(path),
                deleted: *is_deleted,
                size: open.iter().find_map(|file| file.size),
                ..builder.file(key, &records)
            }
        })
        .collect();
    files.sort_by(|a, b| (&a.path, a.inode).cmp(&(&b.path, b.inode)));
    files
}

/// Adds what another listing says of a file.
pub(crate) fn append(file: &mut FileLocks, other: FileLocks) {
    let (locks, waiters) = (file.locks.len(), file.waiters.len());
    file.locks.extend(other.locks);
    file.waiters
        .extend(other.waiters.into_iter().map(|mut waiting| {
            waiting.blocked_by = waiting.blocked_by.map(|blocker| match blocker {
                Blocker::Lock(index) => Blocker::Lock(index + locks),
                Blocker::Waiter(index) => Blocker::Waiter(index + waiters),
            });
            waiting
        }));
}

/// The file of this key, by its device and inode as in a report.
pub(crate) fn id_of((major, minor, inode): Key) -> (u64, u64) {
    (rustix::fs::makedev(major, minor), inode)
}

fn rank(kind: Kind) -> u8 {
    match kind {
        Kind::Posix | Kind::Ofd | Kind::Access => 0,
        Kind::Flock => 1,
        Kind::Lease | Kind::Delegation | Kind::Other => 2,
    }
}

/// The threads that wait for a lock of an open file here.
fn blocked(records: &[&Record], open: &[&OpenFile]) -> Vec<Blocked> {
    let mut waiters = records.iter().flat_map(|record| &record.waiters);
    if !waiters.any(|line| matches!(line.kind, Kind::Ofd | Kind::Flock)) {
        return Vec::new();
    }
    let mut pids: Vec<u32> = open.iter().map(|file| file.pid).collect();
    pids.dedup();
    let descriptors: HashSet<(u32, u32)> = open.iter().map(|file| (file.pid, file.fd)).collect();
    pids.into_iter()
        .flat_map(blocked_threads)
        .filter(|blocked| descriptors.contains(&(blocked.pid, blocked.fd)))
        .collect()
}

/// Threads in lock calls, by what they ask for, each until it is taken for a waiter.
#[derive(Default)]
struct AllBlocked {
    ofd: HashMap<(Mode, u64, Option<u64>), Vec<Blocked>>,
    /// Those of which it cannot be read what they ask for.
    unread: Vec<Blocked>,
    /// By their process.
    flock: HashMap<u32, Vec<Blocked>>,
}

impl AllBlocked {
    fn new(threads: Vec<Blocked>) -> AllBlocked {
        let mut all = AllBlocked::default();
        // Taken from the end: the first comes first.
        for blocked in threads.into_iter().rev() {
            match blocked.call {
                Call::Ofd(Some(wanted)) => all.ofd.entry(wanted).or_default().push(blocked),
                Call::Ofd(None) => all.unread.push(blocked),
                Call::Flock => all.flock.entry(blocked.pid).or_default().push(blocked),
            }
        }
        all
    }

    /// One that may be this waiter.
    fn take(&mut self, line: &Line) -> Option<Blocked> {
        match line.kind {
            Kind::Ofd => {
                let asking = self.ofd.get_mut(&(line.mode, line.start, line.end));
                let known = asking.and_then(Vec::pop);
                known.or_else(|| self.unread.pop())
            }
            Kind::Flock => self.flock.get_mut(&line.pid)?.pop(),
            _ => None,
        }
    }
}

/// Which open file each descriptor is of.
struct Owners<'a> {
    by_descriptor: HashMap<(u32, u32), u64>,
    /// By the text of a lock: who holds such, one entry for each lock.
    holders: HashMap<&'a str, VecDeque<(u64, u32)>>,
    next: &'a mut u64,
}

impl<'a> Owners<'a> {
    fn new(records: &[&'a Record], open: &[&OpenFile], next: &'a mut u64) -> Owners<'a> {
        let mut owners = Owners {
            by_descriptor: HashMap::new(),
            holders: HashMap::new(),
            next,
        };
        let mut times: HashMap<&'a str, usize> = HashMap::new();
        for record in records {
            if matches!(record.held.kind, Kind::Ofd | Kind::Flock) {
                *times.entry(record.held.text.as_str()).or_default() += 1;
            }
        }
        // Sorted, so that the same processes give the same answer.
        let mut texts: Vec<(&'a str, usize)> = times.into_iter().collect();
        texts.sort_unstable();
        let mut having: HashMap<&str, Vec<&OpenFile>> = HashMap::new();
        for &file in open {
            for lock in &file.locks {
                let having = having.entry(lock).or_default();
                if having.last().is_none_or(|&last| !std::ptr::eq(last, file)) {
                    having.push(file);
                }
            }
        }
        for (text, times) in texts {
            let having = having.get(text).map_or(&[][..], Vec::as_slice);
            owners.add(text, times, having);
        }
        owners
    }

    fn new_owner(&mut self) -> u64 {
        *self.next += 1;
        *self.next
    }

    fn of(&mut self, pid: u32, fd: u32) -> u64 {
        if let Some(&owner) = self.by_descriptor.get(&(pid, fd)) {
            return owner;
        }
        let owner = self.new_owner();
        self.by_descriptor.insert((pid, fd), owner);
        owner
    }

    /// A lock that is listed once is of one open file, whoever shares it. Of locks that look alike
    /// each is given to another open file of those that say they have one.
    fn add(&mut self, text: &'a str, times: usize, having: &[&OpenFile]) {
        let mut holders: VecDeque<(u64, u32)> = VecDeque::new();
        let mut counted: HashSet<u64> = HashSet::new();
        let mut shared: HashMap<&str, u64> = HashMap::new();
        for file in having {
            let known = self.by_descriptor.get(&(file.pid, file.fd)).copied();
            let state = file.state.as_str();
            let owner = known.unwrap_or_else(|| match shared.get(state) {
                Some(&owner) if holders.len() >= times => owner,
                _ => self.new_owner(),
            });
            shared.insert(state, owner);
            self.by_descriptor.insert((file.pid, file.fd), owner);
            if counted.insert(owner) {
                holders.push_back((owner, file.pid));
            }
        }
        self.holders.insert(text, holders);
    }

    /// Whose this lock is, and a process that has it.
    fn holder(&mut self, text: &str) -> (u64, u32) {
        let taken = self.holders.get_mut(text).and_then(VecDeque::pop_front);
        taken.unwrap_or_else(|| (self.new_owner(), 0))
    }
}

struct Builder<'a> {
    owners: Owners<'a>,
    blocked: AllBlocked,
    commands: &'a mut HashMap<u32, Option<String>>,
}

impl Builder<'_> {
    fn file(mut self, key: Key, records: &[&Record]) -> FileLocks {
        let (device, inode) = id_of(key);
        let mut file = FileLocks::new(device, inode);
        for record in records {
            let index = file.locks.len();
            let lock = self.held(&record.held);
            file.locks.push(Held {
                lock,
                held_for: None,
                breaking: record.held.is_breaking,
            });
            // The last waiter at each depth.
            let mut above: Vec<usize> = Vec::new();
            for line in &record.waiters {
                let depth = (line.depth.unwrap_or(0) as usize).min(above.len());
                above.truncate(depth);
                let blocked_by = match above.last() {
                    Some(&waiter) => Blocker::Waiter(waiter),
                    None => Blocker::Lock(index),
                };
                above.push(file.waiters.len());
                let lock = self.waiting(line);
                file.waiters.push(Waiting {
                    lock,
                    waits_for: None,
                    overtaken: 0,
                    depth: u32::try_from(depth).unwrap_or(u32::MAX),
                    blocked_by: Some(blocked_by),
                });
            }
        }
        file
    }

    fn held(&mut self, line: &Line) -> Lock {
        match line.kind {
            Kind::Ofd => {
                let (owner, pid) = self.owners.holder(&line.text);
                self.lock(line, owner, pid)
            }
            Kind::Flock => {
                let (owner, pid) = self.owners.holder(&line.text);
                let taker = if line.pid == 0 { pid } else { line.pid };
                self.lock(line, owner, taker)
            }
            Kind::Lease | Kind::Delegation => {
                let owner = self.owners.new_owner();
                self.lock(line, owner, line.pid)
            }
            _ => self.lock(line, PROCESSES | u64::from(line.pid), line.pid),
        }
    }

    fn waiting(&mut self, line: &Line) -> Lock {
        let found = self.blocked.take(line);
        let (owner, pid) = match (line.kind, found) {
            (Kind::Ofd | Kind::Flock, Some(Blocked { pid, fd, .. })) => {
                (self.owners.of(pid, fd), pid)
            }
            (Kind::Posix, _) => (PROCESSES | u64::from(line.pid), line.pid),
            _ => (self.owners.new_owner(), line.pid),
        };
        self.lock(line, owner, pid)
    }

    fn lock(&mut self, line: &Line, owner: u64, pid: u32) -> Lock {
        let command = self.commands.entry(pid);
        Lock {
            kind: line.kind,
            mode: line.mode,
            start: line.start,
            end: line.end,
            pid,
            command: command.or_insert_with(|| process::command(pid)).clone(),
            owner,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::proc_locks::parse;

    fn build(text: &str, open: &[OpenFile]) -> FileLocks {
        let records = parse(text);
        let names = HashMap::from([((8, 2, 7), (PathBuf::from("/d/f"), false))]);
        let mut files = files(&records, open, &names);
        assert_eq!(files.len(), 1);
        files.remove(0)
    }

    fn open(pid: u32, fd: u32, state: &str, locks: &[&str]) -> OpenFile {
        OpenFile {
            key: (8, 2, 7),
            pid,
            fd,
            path: None,
            is_deleted: false,
            size: Some(3),
            locks: locks.iter().map(|&lock| lock.to_owned()).collect(),
            state: state.into(),
        }
    }

    #[test]
    fn waiters_hang_as_they_are_nested() {
        let file = build(
            "\
1: FLOCK  ADVISORY  WRITE 4000001 08:02:7 0 EOF
2: POSIX  ADVISORY  WRITE 4000001 08:02:7 5 9
2: -> POSIX  ADVISORY  WRITE 4000002 08:02:7 0 EOF
2:  -> POSIX  ADVISORY  READ 4000003 08:02:7 5 5
2: -> POSIX  ADVISORY  READ 4000004 08:02:7 6 6
3: POSIX  ADVISORY  READ 4000005 08:02:9 6 6
",
            &[],
        );
        assert_eq!(file.path.as_deref(), Some("/d/f"));
        // Record locks first.
        assert_eq!(file.locks[0].lock.kind, Kind::Posix);
        let blockers: Vec<_> = file.waiters.iter().map(|one| one.blocked_by).collect();
        assert_eq!(
            blockers,
            [
                Some(Blocker::Lock(0)),
                Some(Blocker::Waiter(0)),
                Some(Blocker::Lock(0))
            ]
        );
        assert_eq!(file.locks[0].held_for, None);
    }

    #[test]
    fn a_lock_that_is_listed_once_is_of_one_open_file_whoever_shares_it() {
        let text = "1: OFDLCK ADVISORY  WRITE -1 08:02:7 0 9\n2: OFDLCK ADVISORY  WRITE -1 08:02:7 20 29\n";
        let locks = [
            "OFDLCK ADVISORY WRITE -1 08:02:7 0 9",
            "OFDLCK ADVISORY WRITE -1 08:02:7 20 29",
        ];
        let shared = [
            open(4_000_010, 3, "a", &locks),
            open(4_000_011, 3, "a", &locks),
        ];
        let file = build(text, &shared);
        assert_eq!(file.locks[0].lock.owner, file.locks[1].lock.owner);
        assert_eq!(file.locks[0].lock.pid, 4_000_010);
    }

    #[test]
    fn locks_that_look_alike_are_of_different_open_files() {
        let line = "OFDLCK ADVISORY READ -1 08:02:7 0 9";
        let text = format!("1: {line}\n2: {line}\n");
        let file = build(
            &text,
            &[
                open(4_000_010, 3, "a", &[line]),
                open(4_000_011, 3, "a", &[line]),
            ],
        );
        assert_ne!(file.locks[0].lock.owner, file.locks[1].lock.owner);
        assert_eq!(
            [file.locks[0].lock.pid, file.locks[1].lock.pid],
            [4_000_010, 4_000_011]
        );
        // Nobody whom we may look at.
        let file = build(&text, &[]);
        assert_eq!(file.locks[0].lock.pid, 0);
    }

    #[test]
    fn very_many_locks_and_open_files_are_put_together_in_one_pass() {
        const MANY: usize = 20_000;
        let alike = "OFDLCK ADVISORY READ -1 08:02:7 0 9";
        let own = |at: usize| {
            format!(
                "OFDLCK ADVISORY WRITE -1 08:02:7 {} {}",
                at * 2 + 10,
                at * 2 + 10
            )
        };
        let mut text = format!("1: {alike}\n").repeat(MANY);
        let mut locks = vec![alike.to_owned()];
        for at in 0..MANY {
            locks.push(own(at));
            text += &format!("1: {}\n", own(at));
            text += &format!(
                "1: -> OFDLCK ADVISORY  WRITE -1 08:02:7 {} EOF\n",
                at * 2 + 10
            );
        }
        let mut all = vec![OpenFile {
            locks,
            ..open(4_000_000, 3, "a", &[])
        }];
        all.extend((1..MANY as u32).map(|fd| open(4_000_000, fd + 3, "a", &[alike])));
        let file = build(&text, &all);
        let owners: HashSet<u64> = file.locks.iter().map(|held| held.lock.owner).collect();
        assert_eq!((file.locks.len(), owners.len()), (2 * MANY, MANY));
        assert_eq!(file.waiters.len(), MANY);
    }

    #[test]
    fn a_waiter_is_a_thread_that_asks_for_the_same_or_may() {
        let line = |text: &str| {
            let mut records = parse(&format!(
                "1: FLOCK  ADVISORY  WRITE 1 08:02:7 0 EOF\n{text}\n"
            ));
            records.remove(0).waiters.remove(0)
        };
        let ofd = line("1: -> OFDLCK ADVISORY  WRITE -1 08:02:7 5 EOF");
        let flock = line("1: -> FLOCK  ADVISORY  WRITE 8 08:02:7 0 EOF");
        let thread = |pid, call| Blocked { pid, fd: 3, call };
        let mut all = AllBlocked::new(vec![
            thread(5, Call::Ofd(None)),
            thread(6, Call::Ofd(Some((Mode::Write, 5, None)))),
            thread(7, Call::Ofd(Some((Mode::Read, 5, None)))),
            thread(8, Call::Flock),
            thread(6, Call::Ofd(Some((Mode::Write, 5, None)))),
        ]);
        let mut taken = |line| all.take(line).map(|blocked| blocked.pid);
        assert_eq!(
            [(); 4].map(|()| taken(&ofd)),
            [Some(6), Some(6), Some(5), None]
        );
        assert_eq!([(); 2].map(|()| taken(&flock)), [Some(8), None]);
    }

    #[test]
    fn what_is_appended_keeps_what_it_hangs_beneath() {
        let text = "1: LEASE  BREAKING  READ 4000001 08:02:7 0 EOF\n1: -> LEASE  BREAKER   WRITE 4000002 <none>:0 0 EOF\n";
        let leases = build(text, &[]);
        let mut file = build("1: FLOCK  ADVISORY  WRITE 4000001 08:02:7 0 EOF\n", &[]);
        append(&mut file, leases);
        assert!(file.locks[1].breaking);
        assert_eq!(file.waiters[0].blocked_by, Some(Blocker::Lock(1)));
    }
}
