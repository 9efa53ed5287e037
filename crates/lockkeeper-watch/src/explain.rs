//! Why a process waits, in plain words: for what, who stands in the way, whether it can end, what to do.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write;
use std::rc::Rc;

use crate::kernel::{self, Opener};
use crate::process::{self, Process, Uptime};
use crate::report::{Blocker, Deadlock, FileLocks, Held, Kind, Lock, Report, Waiting};
use crate::words;

/// What can be seen of processes. A trait, so that explanations can be tried on processes made up.
pub trait Sight {
    /// The process, if it is there and can be seen.
    fn process(&self, pid: u32) -> Option<Process>;
    /// Who has this file of the report open: one for each descriptor.
    fn openers(&self, report: &Report, file: &FileLocks) -> Vec<Opener>;
    /// The files of the report, by their places, that this process has open.
    fn opened_by(&self, report: &Report, pid: u32) -> Vec<usize>;
    /// The process of a thread.
    fn process_of(&self, thread: u32) -> Option<u32>;
    /// Whether a process that is there began later than `age` seconds ago, and is another one than had its number
    /// then.
    fn is_younger(&self, process: &Process, age: f64) -> bool;
}

/// The processes of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine(Uptime);

impl Machine {
    /// As it is now.
    pub fn now() -> Machine {
        Machine(Uptime::now())
    }
}

impl Sight for Machine {
    fn process(&self, pid: u32) -> Option<Process> {
        Process::of(pid)
    }

    fn openers(&self, report: &Report, file: &FileLocks) -> Vec<Opener> {
        kernel::openers(report, file)
    }

    fn opened_by(&self, report: &Report, pid: u32) -> Vec<usize> {
        kernel::opened_by(report, pid)
    }

    fn process_of(&self, thread: u32) -> Option<u32> {
        process::of_thread(thread)
    }

    fn is_younger(&self, process: &Process, age: f64) -> bool {
        self.0.began_after(process, age)
    }
}

/// A paragraph for each wait of the process; if it waits for nothing, one that says what it holds. `None`
/// if there is no such process.
pub fn explain(report: &Report, pid: u32, sight: &dyn Sight) -> Option<Vec<String>> {
    let teller = Teller::new(report, sight);
    let waits = teller.waits_of(pid);
    let is_known = teller.locks_of(pid).next().is_some() || !waits.is_empty();
    if !is_known && teller.process(pid).is_none() {
        return None;
    }
    if waits.is_empty() {
        return Some(vec![teller.no_wait(pid)]);
    }
    let told = waits.iter().take(WAITS);
    let mut paragraphs: Vec<String> = told.map(|wait| teller.wait(pid, wait)).collect();
    if waits.len() > WAITS {
        paragraphs.push(format!(
            "It waits for {}; `lockkeeper locks {}` lists them all.",
            words::count(waits.len() - WAITS, "more lock", "more locks"),
            words::clean(&report.mountpoint)
        ));
    }
    Some(paragraphs)
}

/// A request, and where it stands in the report.
#[derive(Clone, Copy)]
struct Wait<'a> {
    place: (usize, usize),
    file: &'a FileLocks,
    waiting: &'a Waiting,
}

struct Teller<'a> {
    report: &'a Report,
    sight: &'a dyn Sight,
    /// The waits of each process, in the order of the report: a chain may lead over as many files as there are.
    waits: HashMap<u32, Vec<Wait<'a>>>,
    /// The deadlock in which a wait is, by the places of its file and itself.
    dead: HashMap<(usize, usize), &'a Deadlock>,
    /// What has been seen already: a look takes system calls, for who has a file open those of all processes, and
    /// there may be very many locks of one process or file.
    processes: RefCell<HashMap<u32, Option<Process>>>,
    open: RefCell<HashMap<*const FileLocks, Rc<Open>>>,
}

/// Who has a file open.
struct Open {
    /// In the order in which they were seen.
    pids: Vec<u32>,
    /// The signs of each one's descriptors.
    signs: HashMap<u32, HashSet<String>>,
    /// Who waits for a lock of the file.
    waiting: HashSet<u32>,
}

impl Open {
    /// Whether this process may have a lock that another one took: its descriptors look like those of the open
    /// file with the lock, which lasts until all have closed it. Where its taker has ended, there is nothing to
    /// compare, and all who have the file open may. Nobody waits for a lock that he has himself.
    fn shares(&self, pid: u32, lock: &Lock, is_taker_alive: bool) -> bool {
        let looks_alike = |signs: &HashSet<String>| {
            let of_taker = self.signs.get(&lock.pid);
            !is_taker_alive || of_taker.is_some_and(|of_taker| !of_taker.is_disjoint(signs))
        };
        matches!(lock.kind, Kind::Flock | Kind::Ofd)
            && pid != lock.pid
            && !self.waiting.contains(&pid)
            && self.signs.get(&pid).is_some_and(looks_alike)
    }
}

/// So many steps of a chain, or processes, are told one by one.
const NAMED: usize = 6;
/// So many waits of a process have a paragraph each.
const WAITS: usize = 10;

// Writing to a string cannot fail.
impl<'a> Teller<'a> {
    fn new(report: &'a Report, sight: &'a dyn Sight) -> Teller<'a> {
        let mut teller = Teller {
            report,
            sight,
            waits: HashMap::new(),
            dead: HashMap::new(),
            processes: RefCell::default(),
            open: RefCell::default(),
        };
        for (index, file) in report.files.iter().enumerate() {
            for (waiter, waiting) in file.waiters.iter().enumerate() {
                let lock = &waiting.lock;
                let wait = Wait {
                    place: (index, waiter),
                    file,
                    waiting,
                };
                teller.waits.entry(lock.pid).or_default().push(wait);
                // Of reads and writes the thread is named.
                if lock.kind == Kind::Access
                    && let Some(process) = sight.process_of(lock.pid)
                    && process != lock.pid
                {
                    teller.waits.entry(process).or_default().push(wait);
                }
            }
        }
        for cycle in &report.deadlocks {
            for step in &cycle.steps {
                teller.dead.insert((step.file, step.waiter), cycle);
            }
        }
        teller
    }

    fn waits_of(&self, pid: u32) -> &[Wait<'a>] {
        self.waits.get(&pid).map_or(&[], Vec::as_slice)
    }

    fn locks_of(&self, pid: u32) -> impl Iterator<Item = (&'a FileLocks, &'a Held)> {
        let files = self.report.files.iter();
        files.flat_map(move |file| {
            let locks = file.locks.iter();
            locks
                .filter(move |held| held.lock.pid == pid)
                .map(move |held| (file, held))
        })
    }

    /// The process, looked at once.
    fn process(&self, pid: u32) -> Option<Process> {
        let mut known = self.processes.borrow_mut();
        let look = || self.sight.process(pid);
        known.entry(pid).or_insert_with(look).clone()
    }

    /// Who has this file of the report open, looked for once.
    fn open(&self, file: &FileLocks) -> Rc<Open> {
        let mut known = self.open.borrow_mut();
        let look = || {
            let mut open = Open {
                pids: Vec::new(),
                signs: HashMap::new(),
                waiting: file.waiters.iter().map(|one| one.lock.pid).collect(),
            };
            for Opener { pid, sign } in self.sight.openers(self.report, file) {
                open.pids.push(pid);
                open.signs.entry(pid).or_default().insert(sign);
            }
            open.pids.dedup();
            Rc::new(open)
        };
        known
            .entry(std::ptr::from_ref(file))
            .or_insert_with(look)
            .clone()
    }

    fn name(&self, pid: u32) -> String {
        match self.process(pid) {
            Some(process) => format!("{pid} ({})", words::clean(&process.command)),
            None => pid.to_string(),
        }
    }

    fn wait(&self, pid: u32, wait: &Wait<'a>) -> String {
        let Wait { file, waiting, .. } = *wait;
        let since = match waiting.waits_for {
            Some(age) => format!("has waited {} for", words::duration(age)),
            None => "waits for".into(),
        };
        let mut text = format!(
            "Process {} {since} {} on {}.",
            self.name(pid),
            asked(&waiting.lock),
            words::file(file, self.report)
        );
        match waiting.blocked_by {
            None => text += " It is just being granted.",
            Some(_) => match file.holder(waiting) {
                None => text += " What is in the way has gone while this was looked at.",
                Some(holder) => {
                    self.in_the_way(&mut text, wait, holder);
                    text.push(' ');
                    text += &self.verdict(wait, holder);
                }
            },
        }
        text
    }

    /// What it hangs beneath, and what is at the root.
    fn in_the_way(&self, text: &mut String, wait: &Wait<'a>, holder: &Lock) {
        let age = held_for(wait.file, holder);
        let age = age.map_or(String::new(), |age| {
            format!(" for {}", words::duration(age))
        });
        let holder_name = words::who(holder);
        if let Some(Blocker::Waiter(_)) = wait.waiting.blocked_by {
            let above = self.above(wait);
            let direct = above
                .first()
                .map_or_else(String::new, |lock| words::who(lock));
            let _ = write!(
                text,
                " It stands behind the request of {direct}{}; the lock that must go first is the {}, held by \
                 {holder_name}{age}.",
                match above.len() {
                    0 | 1 => String::new(),
                    count => format!(" and {} before that", words::number(count - 1)),
                },
                held(holder)
            );
        } else {
            let _ = write!(
                text,
                " In the way is the {}, held by {holder_name}{age}.",
                held(holder)
            );
        }
    }

    /// The requests between this one and the lock at the root, the nearest first.
    fn above(&self, wait: &Wait<'a>) -> Vec<&'a Lock> {
        let mut above = Vec::new();
        let mut blocker = wait.waiting.blocked_by;
        while let Some(Blocker::Waiter(index)) = blocker
            && above.len() <= wait.file.waiters.len()
            && let Some(waiting) = wait.file.waiters.get(index)
        {
            above.push(&waiting.lock);
            blocker = waiting.blocked_by;
        }
        above
    }

    /// Whether it can end, and what to do.
    fn verdict(&self, wait: &Wait<'a>, mut holder: &'a Lock) -> String {
        let mut text = String::new();
        let mut at = *wait;
        let mut seen = HashSet::from([at.place]);
        // By the place of the file: a chain may come back to one again and again.
        let mut holders: HashMap<usize, Vec<Option<&'a Lock>>> = HashMap::new();
        let and_so_on = |text: &mut String, steps: usize| {
            if steps > NAMED {
                let _ = write!(text, "And so on, {} in all. ", words::number(steps));
            }
        };
        // Who stands in the way may wait himself, on another file.
        loop {
            if let Some(cycle) = self.deadlock_of(at.place) {
                and_so_on(&mut text, seen.len() - 1);
                return text + &self.in_deadlock(wait, cycle);
            }
            let Some(next) = self.stuck_in(holder) else {
                break;
            };
            if !seen.insert(next.place) {
                and_so_on(&mut text, seen.len() - 1);
                text += "That leads in a circle: each waits for the next, but another thread may still let go.";
                return text;
            }
            let (file, waiter) = next.place;
            let all = holders.entry(file).or_insert_with(|| next.file.holders());
            let Some(further) = all.get(waiter).copied().flatten() else {
                break;
            };
            let age = next.waiting.waits_for;
            let age = age.map_or(String::new(), |age| {
                format!(" for {}", words::duration(age))
            });
            if seen.len() - 1 <= NAMED {
                let _ = write!(
                    text,
                    "{} itself waits{age} for {} on {}, which {} holds. ",
                    words::who(holder),
                    asked(&next.waiting.lock),
                    words::file(next.file, self.report),
                    words::who(further)
                );
            }
            holder = further;
            at = next;
        }
        and_so_on(&mut text, seen.len() - 1);
        text + &self.holder_state(at.file, holder)
    }

    fn holder_state(&self, file: &FileLocks, holder: &Lock) -> String {
        let pid = holder.pid;
        if pid == 0 {
            return "Its process cannot be seen from here (another user's, or in another container): root may \
                    see it."
                .into();
        }
        let Some(process) = self.taker(holder, held_for(file, holder)) else {
            return self.holder_gone(file, holder);
        };
        let who = words::who(holder);
        let sharers = self.sharers(file, holder, true);
        let kill = kill(pid, &sharers);
        if process.is_stopped() {
            let kill = kill.replacen("kill", "kill -KILL", 1);
            let ends = match sharers.is_empty() {
                true => format!("`{kill}` ends it and with it the lock."),
                false => format!(
                    "{} to share the open file, and only when all have ended is the lock free (`{kill}`).",
                    self.seem(&sharers)
                ),
            };
            return format!(
                "{who} is stopped, and lets go of nothing until it goes on: `kill -CONT {pid}` lets it go on, {ends}"
            );
        }
        let frees = match holder.kind {
            Kind::Posix => "unlocks, closes the file, or ends",
            Kind::Lease | Kind::Delegation => "gives the lease up, or its time is over",
            _ => "unlocks, or the last process that has this open file closes it or ends",
        };
        let state = match process.state {
            'D' => " It is in an uninterruptible wait, as for a disk: look there first.",
            _ => "",
        };
        let otherwise = match sharers.is_empty() {
            true => format!("If that does not come, `{kill}` frees the lock."),
            false => format!(
                "{} to share the open file. If nobody unlocks, `{kill}` frees the lock.",
                self.seem(&sharers)
            ),
        };
        format!(
            "It can end: {who} is alive, and the wait is over when it {frees}.{state} {otherwise}"
        )
    }

    /// The process that took a lock `age` seconds ago, if it is alive. Whoever began after that has its taker's
    /// number, and is not to be killed for it.
    fn taker(&self, lock: &Lock, age: Option<f64>) -> Option<Process> {
        self.process(lock.pid).filter(|process| {
            !process.is_dead() && age.is_none_or(|age| !self.sight.is_younger(process, age))
        })
    }

    /// The others that may have this lock: see [`Open::shares`].
    fn sharers(&self, file: &FileLocks, lock: &Lock, is_taker_alive: bool) -> Vec<u32> {
        if !matches!(lock.kind, Kind::Flock | Kind::Ofd) {
            return Vec::new();
        }
        let open = self.open(file);
        let pids = open.pids.iter().copied();
        pids.filter(|&pid| open.shares(pid, lock, is_taker_alive))
            .collect()
    }

    /// `3 (prog), 4 (prog) and 7 more processes`.
    fn names(&self, pids: &[u32]) -> String {
        let names: Vec<String> = pids.iter().take(NAMED).map(|&pid| self.name(pid)).collect();
        let more = match pids.len() - names.len() {
            0 => String::new(),
            more => format!(
                " and {}",
                words::count(more, "more process", "more processes")
            ),
        };
        names.join(", ") + &more
    }

    /// `3 (prog) seems`, `3 (prog), 4 (prog) seem`.
    fn seem(&self, pids: &[u32]) -> String {
        let verb = if pids.len() == 1 { "seems" } else { "seem" };
        format!("{} {verb}", self.names(pids))
    }

    /// A lock outlives its taker where others share the open file.
    fn holder_gone(&self, file: &FileLocks, holder: &Lock) -> String {
        let pid = holder.pid;
        match &self.sharers(file, holder, false)[..] {
            [] => format!(
                "Process {pid}, which took it, has ended, but the open file lives on somewhere: in a process \
                 that inherited it and cannot be seen from here, or in a message on its way."
            ),
            [first, others @ ..] => format!(
                "Process {pid}, which took it, has ended, but the file is still open in {}, which may have \
                 inherited the lock with it: it lasts until they unlock, close the file, or end (`{}`).",
                self.names(&[&[*first], others].concat()),
                kill(*first, others)
            ),
        }
    }

    fn deadlock_of(&self, place: (usize, usize)) -> Option<&'a Deadlock> {
        self.dead.get(&place).copied()
    }

    fn in_deadlock(&self, wait: &Wait<'a>, cycle: &Deadlock) -> String {
        // One more than are named, as each is told with the next.
        let steps = cycle.steps.iter().take(NAMED + 1);
        let named: Vec<(&FileLocks, &Waiting)> = steps
            .filter_map(|&step| self.report.wait_of(step))
            .collect();
        let mut pids: Vec<u32> = Vec::new();
        let mut sharers: HashMap<u32, BTreeSet<u32>> = HashMap::new();
        for (file, waiting) in named.iter().take(NAMED) {
            let pid = waiting.lock.pid;
            if pid != 0 && !pids.contains(&pid) {
                pids.push(pid);
            }
            if let Some(holder) = file.holder(waiting) {
                let is_alive = self.taker(holder, held_for(file, holder)).is_some();
                let of_holder = sharers.entry(holder.pid).or_default();
                of_holder.extend(self.sharers(file, holder, is_alive));
            }
        }
        let mut text = match self.deadlock_of(wait.place) {
            Some(_) => "It never ends by itself: this is a deadlock.".to_owned(),
            None => "It never ends by itself: what it waits for is in a deadlock.".to_owned(),
        };
        for (index, (file, waiting)) in named.iter().enumerate().take(NAMED) {
            let (_, next) = named[(index + 1) % named.len()];
            let separator = if index == 0 { " " } else { ", " };
            let _ = write!(
                text,
                "{separator}{} waits for {} on {}",
                words::who(&waiting.lock),
                words::who(&next.lock),
                words::file(file, self.report)
            );
        }
        if cycle.steps.len() > NAMED {
            let all = words::number(cycle.steps.len());
            let _ = write!(text, ", and so on, {all} in all");
        }
        let sharers_of = |pid| sharers.get(pid).into_iter().flatten();
        let kills: Vec<String> = pids
            .iter()
            .map(|pid| format!("`{}`", kill(*pid, sharers_of(pid))))
            .collect();
        let _ = write!(
            text,
            ". Nobody is refused for a cycle of open files, so one must be ended: {}.",
            kills.join(" or ")
        );
        let heirs: BTreeSet<u32> = pids.iter().flat_map(sharers_of).copied().collect();
        if !heirs.is_empty() {
            let _ = write!(
                text,
                " {} to share an open file with its taker.",
                self.seem(&Vec::from_iter(heirs))
            );
        }
        text
    }

    /// The wait in which the holder of a lock is stuck: all of its threads wait.
    fn stuck_in(&self, holder: &Lock) -> Option<Wait<'a>> {
        if holder.pid == 0 {
            return None;
        }
        let waits = self.waits_of(holder.pid);
        let threads = self.sight.process(holder.pid)?.threads;
        waits.first().copied().filter(|_| waits.len() >= threads)
    }

    fn no_wait(&self, pid: u32) -> String {
        let name = self.name(pid);
        let mount = words::clean(&self.report.mountpoint);
        let locks: Vec<(&FileLocks, &Held)> = self.locks_of(pid).collect();
        let shared = self.may_share(pid);
        let mut text = match (locks.is_empty(), shared.is_empty()) {
            (true, true) => {
                return format!("Process {name} waits for no lock on {mount}, and holds none.");
            }
            (true, false) => {
                format!("Process {name} waits for no lock on {mount}, and has taken none.")
            }
            (false, _) => format!("Process {name} waits for no lock on {mount}."),
        };
        // A number may be another process's by now: then each lock is looked at.
        let left = locks
            .iter()
            .find(|(_, held)| self.taker(&held.lock, held.held_for).is_none());
        if !locks.is_empty() {
            let _ = write!(
                text,
                " It {} {}: {}.",
                if left.is_some() { "took" } else { "holds" },
                words::count(locks.len(), "lock", "locks"),
                list(&locks, self.report)
            );
            text += &self.who_waits_for(&|lock| lock.pid == pid);
        }
        if let Some((file, held)) = left {
            text.push(' ');
            text += &self.holder_gone(file, &held.lock);
        }
        if !shared.is_empty() {
            let owners: HashSet<u64> = shared.iter().map(|(_, held)| held.lock.owner).collect();
            let _ = write!(
                text,
                " It may share {} with who took {}: {}.",
                words::count(shared.len(), "lock", "locks"),
                if shared.len() == 1 { "it" } else { "them" },
                list(&shared, self.report)
            );
            text += &self.who_waits_for(&|lock| owners.contains(&lock.owner));
        }
        let process = self.process(pid);
        if process.is_some_and(|process| process.is_stopped()) {
            let _ = write!(text, " It is stopped: `kill -CONT {pid}` lets it go on.");
        }
        text
    }

    /// The locks that others took and this process may have inherited with the open file; of few files.
    fn may_share(&self, pid: u32) -> Vec<(&'a FileLocks, &'a Held)> {
        let files = self.sight.opened_by(self.report, pid).into_iter();
        let files = files.take(NAMED).map(|place| &self.report.files[place]);
        let mut shared = Vec::new();
        for file in files {
            let open = self.open(file);
            shared.extend(
                file.locks
                    .iter()
                    .map(|held| (file, held))
                    .filter(|(_, held)| {
                        let is_alive = self.taker(&held.lock, held.held_for).is_some();
                        open.shares(pid, &held.lock, is_alive)
                    }),
            );
        }
        shared
    }

    /// ` 2 requests wait for it, the oldest of 2 (prog), for 12 s.`
    fn who_waits_for(&self, is_meant: &dyn Fn(&Lock) -> bool) -> String {
        let mut waiting: Vec<&Waiting> = Vec::new();
        for file in &self.report.files {
            if !file.waiters.is_empty() && file.locks.iter().any(|held| is_meant(&held.lock)) {
                let all = file.waiters.iter().zip(file.holders());
                waiting.extend(
                    all.filter_map(|(waiter, holder)| {
                        holder.is_some_and(is_meant).then_some(waiter)
                    }),
                );
            }
        }
        let age = |waiting: &Waiting| waiting.waits_for.unwrap_or(0.0);
        let Some(first) = waiting
            .iter()
            .copied()
            .reduce(|a, b| if age(b) > age(a) { b } else { a })
        else {
            return " Nobody waits for it.".into();
        };
        let requests = words::count(waiting.len(), "request waits", "requests wait");
        let who = words::who(&first.lock);
        let oldest = match (waiting.len(), first.waits_for) {
            (1, _) => "of",
            (_, Some(_)) => "the oldest of",
            // The kernel tells no times.
            (_, None) => "one of",
        };
        let age = first.waits_for;
        let age = age.map_or(String::new(), |age| {
            format!(", for {}", words::duration(age))
        });
        format!(" {requests} for it, {oldest} {who}{age}.")
    }
}

/// `kill 1 2 3`: this process and those that share its open file.
fn kill<'a>(pid: u32, sharers: impl IntoIterator<Item = &'a u32>) -> String {
    let all = std::iter::once(pid)
        .chain(sharers.into_iter().copied())
        .take(NAMED);
    all.fold("kill".to_owned(), |text, pid| format!("{text} {pid}"))
}

/// `flock write lock on /m/a, flock write lock on /m/b, 3 more`.
fn list(locks: &[(&FileLocks, &Held)], report: &Report) -> String {
    let named = locks.iter().take(NAMED);
    let mut named: Vec<String> = named
        .map(|(file, one)| format!("{} on {}", held(&one.lock), words::file(file, report)))
        .collect();
    if locks.len() > NAMED {
        named.push(format!("{} more", words::number(locks.len() - NAMED)));
    }
    named.join(", ")
}

/// For how many seconds this lock of the file has been held.
fn held_for(file: &FileLocks, lock: &Lock) -> Option<f64> {
    let mut locks = file.locks.iter();
    let held = locks.find(|held| std::ptr::eq(&raw const held.lock, lock))?;
    held.held_for
}

/// `a POSIX write lock (bytes 0-9)`.
fn asked(lock: &Lock) -> String {
    match lock.kind {
        Kind::Access => format!("its turn to access ({})", words::lock(lock)),
        Kind::Lease | Kind::Delegation => "a lease to be given up".into(),
        _ => {
            let article = if lock.kind == Kind::Ofd { "an" } else { "a" };
            format!("{article} {}", held(lock))
        }
    }
}

/// `POSIX write lock (bytes 0-9)`, `flock read lock`, `lease read`.
fn held(lock: &Lock) -> String {
    let mode = words::mode(lock.mode);
    let noun = if lock.kind.is_lease() { "" } else { " lock" };
    let range = match (words::range(lock), lock.start, lock.end) {
        (range, ..) if range.is_empty() => range,
        (range, 0, None) => format!(" ({range})"),
        (range, start, end) if end == Some(start) => format!(" (byte {range})"),
        (range, ..) => format!(" (bytes {range})"),
    };
    format!("{} {mode}{noun}{range}", lock.kind.name())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ops::Range;

    use super::*;
    use crate::report::{DeadlockStep, Mode};

    fn opener(pid: u32, sign: &str) -> Opener {
        Opener {
            pid,
            sign: sign.into(),
        }
    }

    /// Processes 1 to 9 run; those named are in other states.
    struct MadeUp(Vec<(u32, char)>);

    impl Sight for MadeUp {
        fn process(&self, pid: u32) -> Option<Process> {
            let state = self.0.iter().find(|(other, _)| *other == pid);
            let state = state.map_or('S', |&(_, state)| state);
            (pid < 10 && state != 'X').then(|| Process {
                command: "prog".into(),
                state,
                parent: 1,
                threads: 1,
                started: pid.into(),
            })
        }

        /// Processes 3 and 4 have every file open, and process 7 shares what 6 has opened.
        fn openers(&self, _: &Report, _: &FileLocks) -> Vec<Opener> {
            [(3, "a"), (4, "b"), (6, "c"), (7, "c")]
                .map(|(pid, sign)| opener(pid, sign))
                .to_vec()
        }

        fn opened_by(&self, report: &Report, pid: u32) -> Vec<usize> {
            let files = 0..report.files.len();
            files.filter(|_| [3, 4, 6, 7].contains(&pid)).collect()
        }

        fn process_of(&self, _: u32) -> Option<u32> {
            None
        }

        /// The number of process 8 has been used before.
        fn is_younger(&self, process: &Process, _: f64) -> bool {
            process.started == 8
        }
    }

    /// As many processes as are wanted, of which these have every file open.
    struct Crowd {
        process: fn(u32) -> Option<Process>,
        openers: Range<u32>,
        /// So often it was looked at a process, and for who has a file open.
        looks: [Cell<usize>; 2],
    }

    impl Crowd {
        fn new(process: fn(u32) -> Option<Process>, openers: Range<u32>) -> Crowd {
            let looks = Default::default();
            Crowd {
                process,
                openers,
                looks,
            }
        }
    }

    impl Sight for Crowd {
        fn process(&self, pid: u32) -> Option<Process> {
            self.looks[0].update(|looks| looks + 1);
            (self.process)(pid)
        }

        fn openers(&self, _: &Report, _: &FileLocks) -> Vec<Opener> {
            self.looks[1].update(|looks| looks + 1);
            self.openers.clone().map(|pid| opener(pid, "")).collect()
        }

        fn opened_by(&self, report: &Report, pid: u32) -> Vec<usize> {
            let files = 0..report.files.len();
            files.filter(|_| self.openers.contains(&pid)).collect()
        }

        fn process_of(&self, _: u32) -> Option<u32> {
            None
        }

        fn is_younger(&self, _: &Process, _: f64) -> bool {
            false
        }
    }

    fn lock(pid: u32, owner: u64) -> Lock {
        Lock {
            kind: Kind::Flock,
            mode: Mode::Write,
            start: 0,
            end: None,
            pid,
            command: Some("prog".into()),
            owner,
        }
    }

    fn file(path: &str, holder: u32, waiters: &[(u32, Blocker)]) -> FileLocks {
        let waiting = |&(pid, blocker): &(u32, Blocker)| Waiting {
            lock: lock(pid, 100 + u64::from(pid)),
            waits_for: Some(12.0),
            overtaken: 0,
            depth: 0,
            blocked_by: Some(blocker),
        };
        FileLocks {
            path: Some(path.into()),
            locks: vec![Held {
                lock: lock(holder, holder.into()),
                held_for: Some(200.0),
                breaking: false,
            }],
            waiters: waiters.iter().map(waiting).collect(),
            ..FileLocks::new(1, 1)
        }
    }

    fn report(files: Vec<FileLocks>) -> Report {
        Report {
            mountpoint: "/m".into(),
            files,
            ..Report::default()
        }
    }

    const ROOT: Blocker = Blocker::Lock(0);

    fn told(report: &Report, pid: u32, states: &[(u32, char)]) -> String {
        explain(report, pid, &MadeUp(states.to_vec()))
            .expect("known")
            .join("\n")
    }

    #[test]
    fn a_simple_wait() {
        let report = report(vec![file("/m/a", 1, &[(2, ROOT)])]);
        assert_eq!(
            told(&report, 2, &[]),
            "Process 2 (prog) has waited 12 s for a flock write lock on /m/a. In the way is the flock write lock, \
             held by 1 (prog) for 3 min 20 s. It can end: 1 (prog) is alive, and the wait is over when it \
             unlocks, or the last process that has this open file closes it or ends. If that does not come, \
             `kill 1` frees the lock."
        );
        assert!(told(&report, 2, &[(1, 'T')]).contains("1 (prog) is stopped"));
        assert!(told(&report, 2, &[(1, 'T')]).contains("`kill -CONT 1`"));
        assert!(told(&report, 2, &[(1, 'D')]).contains("uninterruptible"));
    }

    #[test]
    fn a_lock_whose_taker_has_ended_is_its_heirs() {
        let report = report(vec![file("/m/a", 1, &[(4, ROOT)])]);
        let text = told(&report, 4, &[(1, 'X')]);
        assert!(
            text.contains("Process 1, which took it, has ended"),
            "{text}"
        );
        // Process 4 has it open, too, but waits itself.
        assert!(
            text.contains("still open in 3 (prog), 6 (prog), 7 (prog), which"),
            "{text}"
        );
        assert!(text.contains("`kill 3 6 7`"), "{text}");
        assert_eq!(told(&report, 4, &[(1, 'Z')]), text);
    }

    #[test]
    fn who_shares_an_open_file_is_named_with_its_taker() {
        let mut report = report(vec![file("/m/a", 6, &[(4, ROOT)])]);
        let text = told(&report, 4, &[]);
        assert!(
            text.ends_with(
                "7 (prog) seems to share the open file. If nobody unlocks, `kill 6 7` frees the lock."
            ),
            "{text}"
        );
        let text = told(&report, 4, &[(6, 'T')]);
        assert!(text.ends_with("(`kill -KILL 6 7`)."), "{text}");
        assert_eq!(
            told(&report, 7, &[]),
            "Process 7 (prog) waits for no lock on /m, and has taken none. It may share 1 lock with who took it: \
             flock write lock on /m/a. 1 request waits for it, of 4 (prog), for 12 s."
        );
        // Process 3 has opened the file itself.
        assert!(told(&report, 3, &[]).ends_with("holds none."));
        // A POSIX lock is nobody else's.
        report.files[0].locks[0].lock.kind = Kind::Posix;
        let text = told(&report, 4, &[]);
        assert!(text.ends_with("`kill 6` frees the lock."), "{text}");
        assert!(told(&report, 7, &[]).ends_with("holds none."));
    }

    #[test]
    fn in_a_deadlock_who_shares_the_open_file_is_to_be_ended_too() {
        let mut report = report(vec![
            file("/m/a", 1, &[(6, ROOT)]),
            file("/m/b", 6, &[(1, ROOT)]),
        ]);
        let steps = [0, 1].map(|file| DeadlockStep { file, waiter: 0 });
        report.deadlocks = vec![Deadlock {
            steps: steps.to_vec(),
        }];
        let text = told(&report, 1, &[]);
        assert!(
            text.ends_with(
                "`kill 6 7` or `kill 1`. 7 (prog) seems to share an open file with its taker."
            ),
            "{text}"
        );
    }

    #[test]
    fn of_a_taker_that_has_ended_it_is_told_who_has_its_lock() {
        let report = report(vec![file("/m/a", 1, &[(4, ROOT)])]);
        let text = told(&report, 1, &[(1, 'X')]);
        assert!(
            text.starts_with(
                "Process 1 waits for no lock on /m. It took 1 lock: flock write lock on /m/a. 1 request waits for \
                 it, of 4 (prog), for 12 s. Process 1, which took it, has ended, but the file is still open in 3 \
                 (prog), 6 (prog), 7 (prog), which"
            ),
            "{text}"
        );
    }

    #[test]
    fn without_times_nobody_is_the_oldest() {
        let mut report = report(vec![file("/m/a", 1, &[(2, ROOT), (5, ROOT)])]);
        for waiter in &mut report.files[0].waiters {
            waiter.waits_for = None;
        }
        let text = told(&report, 1, &[]);
        assert!(
            text.ends_with("2 requests wait for it, one of 2 (prog)."),
            "{text}"
        );
        report.files[0].waiters.pop();
        let text = told(&report, 1, &[]);
        assert!(
            text.ends_with("1 request waits for it, of 2 (prog)."),
            "{text}"
        );
    }

    #[test]
    fn who_has_the_number_of_a_taker_that_has_ended_is_not_to_be_killed() {
        let report = report(vec![file("/m/a", 8, &[(2, ROOT)])]);
        let text = told(&report, 2, &[]);
        assert!(
            text.contains("Process 8, which took it, has ended"),
            "{text}"
        );
        assert!(!text.contains("`kill 8`"), "{text}");
    }

    #[test]
    fn a_chain_over_many_files_is_summed_up() {
        // Process 1 waits for 2 on one file, 2 for 3 on another one, and so on, all alive.
        let all = Crowd::new(|_| MadeUp(vec![]).process(1), 0..0);
        let last = 20_000;
        let name = |pid: u32| format!("/m/{pid}");
        let file_of = |pid| file(&name(pid), pid + 1, &[(pid, ROOT)]);
        let report = report((1..last).map(file_of).collect());
        let text = explain(&report, 1, &all).expect("known").join("");
        assert!(text.len() < 2000, "{text}");
        assert!(
            text.contains("And so on, 19,998 in all. It can end: 20000 (prog) is alive"),
            "{text}"
        );
        // A chain within one file, of which each waits elsewhere for the one before.
        let mut deep = file("/m/deep", 1, &[(2, ROOT)]);
        for pid in 3..last {
            let mut waiter = deep.waiters[0].clone();
            waiter.lock.pid = pid;
            waiter.blocked_by = Some(Blocker::Waiter(pid as usize - 3));
            deep.waiters.push(waiter);
        }
        let report = Report {
            files: vec![deep],
            ..Report::default()
        };
        let text = explain(&report, last - 1, &all).expect("known").join("");
        assert!(text.contains("and 19,996 before that"), "{text}");
        let text = explain(&report, 1, &all).expect("known").join("");
        assert!(text.contains("19,998 requests wait for it"), "{text}");
    }

    #[test]
    fn what_is_told_has_an_end_however_many_there_are() {
        const MANY: u32 = 100_000;
        // A process with very many threads that wait, one beneath the other.
        let mut deep = file("/m/deep", 1, &[(2, ROOT)]);
        for at in 1..MANY as usize {
            let above = Blocker::Waiter(at - 1);
            deep.waiters.push(Waiting {
                blocked_by: Some(above),
                ..deep.waiters[0].clone()
            });
        }
        let paragraphs = explain(&report(vec![deep]), 2, &MadeUp(vec![])).expect("known");
        assert_eq!(paragraphs.len(), WAITS + 1);
        assert_eq!(
            paragraphs[WAITS],
            "It waits for 99,990 more locks; `lockkeeper locks /m` lists them all."
        );
        // A deadlock of very many processes.
        let file_of = |pid| file("/m/a", pid % MANY + 1, &[(pid, ROOT)]);
        let mut circle = report((1..=MANY).map(file_of).collect());
        let steps = (0..MANY as usize).map(|file| DeadlockStep { file, waiter: 0 });
        circle.deadlocks = vec![Deadlock {
            steps: steps.collect(),
        }];
        let text = told(&circle, 3, &[]);
        assert!(text.len() < 1500, "{text}");
        assert!(
            text.contains("6 (prog) waits for 7 (prog) on /m/a, and so on, 100,000 in all"),
            "{text}"
        );
        // Very many heirs of a lock.
        let heirs = Crowd::new(|pid| MadeUp(vec![(1, 'X')]).process(pid), 10..MANY);
        let waiters: Vec<(u32, Blocker)> = (1000..MANY).map(|pid| (pid, ROOT)).collect();
        let report = report(vec![file("/m/a", 1, &waiters)]);
        let text = explain(&report, 1000, &heirs).expect("known").join("");
        assert!(
            text.contains("open in 10, 11, 12, 13, 14, 15 and 984 more processes, which"),
            "{text}"
        );
        assert!(text.contains("(`kill 10 11 12 13 14 15`)"), "{text}");
    }

    #[test]
    fn however_many_locks_there_are_each_process_and_file_is_looked_at_once() {
        const MANY: usize = 10_000;
        let mut of_many = file("/m/a", 6, &[]);
        let first = of_many.locks[0].clone();
        of_many.locks = vec![first; MANY];
        let report = report(vec![of_many]);
        // Who took them, and who may share them with him.
        for (pid, said) in [(6, "It holds 10,000 locks"), (7, "may share 10,000 locks")] {
            let crowd = Crowd::new(|_| MadeUp(vec![]).process(1), 6..8);
            let text = explain(&report, pid, &crowd).expect("known").join("");
            assert!(text.contains(said), "{text}");
            let [processes, openers] = crowd.looks.map(Cell::into_inner);
            assert!(processes <= 3 && openers <= 1, "{processes}, {openers}");
        }
    }

    #[test]
    fn a_chain_is_followed_to_who_can_act() {
        let report = report(vec![
            file(
                "/m/a",
                1,
                &[(5, ROOT), (6, Blocker::Waiter(0)), (2, Blocker::Waiter(1))],
            ),
            file("/m/b", 9, &[(1, ROOT)]),
        ]);
        let text = told(&report, 2, &[]);
        assert!(
            text.contains(
                "It stands behind the request of 6 (prog) and 1 before that; the lock that must go first is the \
                 flock write lock, held by 1 (prog) for 3 min 20 s. 1 (prog) itself waits for 12 s for a flock write \
                 lock on /m/b, which 9 (prog) holds. It can end: 9 (prog) is alive"
            ),
            "{text}"
        );
        assert!(text.ends_with("`kill 9` frees the lock."), "{text}");
    }

    #[test]
    fn a_range_is_told_as_one_would_say_it() {
        let told = |kind, start, end| {
            held(&Lock {
                kind,
                start,
                end,
                ..lock(1, 1)
            })
        };
        for (kind, start, end, expected) in [
            (Kind::Flock, 0, None, "flock write lock"),
            (Kind::Posix, 0, None, "POSIX write lock (whole file)"),
            (Kind::Ofd, 5, Some(9), "OFD write lock (bytes 5-9)"),
            (Kind::Posix, 5, Some(5), "POSIX write lock (byte 5)"),
            (Kind::Posix, 5, None, "POSIX write lock (bytes 5-end)"),
            (Kind::Lease, 0, None, "lease write"),
        ] {
            assert_eq!(told(kind, start, end), expected);
        }
    }

    #[test]
    fn a_deadlock_never_ends() {
        let mut report = report(vec![
            file("/m/a", 1, &[(2, ROOT), (3, Blocker::Waiter(0))]),
            file("/m/b", 2, &[(1, ROOT)]),
        ]);
        report.deadlocks = vec![Deadlock {
            steps: vec![
                DeadlockStep { file: 0, waiter: 0 },
                DeadlockStep { file: 1, waiter: 0 },
            ],
        }];
        let text = told(&report, 2, &[]);
        assert!(
            text.ends_with(
                "It never ends by itself: this is a deadlock. 2 (prog) waits for 1 (prog) on /m/a, 1 (prog) waits \
                 for 2 (prog) on /m/b. Nobody is refused for a cycle of open files, so one must be ended: `kill 2` \
                 or `kill 1`."
            ),
            "{text}"
        );
        let behind = told(&report, 3, &[]);
        assert!(
            behind.contains("what it waits for is in a deadlock"),
            "{behind}"
        );
    }

    #[test]
    fn who_waits_for_nothing_is_told_what_it_holds() {
        let report = report(vec![file("/m/a", 1, &[(2, ROOT)]), file("/m/b", 1, &[])]);
        assert_eq!(
            told(&report, 1, &[]),
            "Process 1 (prog) waits for no lock on /m. It holds 2 locks: flock write lock on /m/a, flock write lock on /m/b. \
             1 request waits for it, of 2 (prog), for 12 s."
        );
        assert_eq!(
            told(&report, 9, &[]),
            "Process 9 (prog) waits for no lock on /m, and holds none."
        );
        assert_eq!(explain(&report, 4_000_000, &MadeUp(vec![])), None);
    }
}
