//! Looks once a second for what somebody should know of, and logs it: deadlocks, long waits, refusals.
//!
//! A look visits only files on which somebody has waited for a while, so that it costs nothing where
//! nobody does, and lock calls never; and reads /proc/locks for the leases ([`leases`](crate::leases)). Each deadlock and each long wait is told once; what comes in crowds
//! is told by its first few and their number.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use lockkeeper_watch::report::{Deadlock, FileLocks};
use lockkeeper_watch::{deadlock, process, words};

use crate::leases::{Leases, TimedOut};
use crate::locks::FileId;
use crate::server::Observer;
use crate::service::ManagerService;
use crate::session::Session;
use crate::tally::{Asker, LongWait, Refusals};

/// How often to look.
const PERIOD: Duration = Duration::from_secs(1);
/// A file is looked at once somebody has waited on it for so long.
const PAUSE: Duration = Duration::from_millis(500);
/// So many long waits are told of in one look, one by one, and so many owners of a deadlock.
const CROWD: usize = 20;

/// A thread that looks; dropped, it ends.
#[derive(Debug)]
pub struct Sentinel {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sentinel {
    /// Watches the locks of `session`, which `service` serves. A wait of `slow` is worth a line.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(
        session: &Session,
        service: Arc<ManagerService>,
        slow: Duration,
    ) -> io::Result<Sentinel> {
        let mut look = Look {
            service,
            observer: session.observer(),
            mountpoint: session.mountpoint().to_owned(),
            slow,
            suspected: HashSet::new(),
            told: HashSet::new(),
            leases: session.dev().map(Leases::of_mount),
        };
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("sentinel".into())
            .spawn(move || {
                while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                    for event in look.events() {
                        event.log();
                    }
                }
            })?;
        Ok(Sentinel {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Something worth a line.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    /// Owners that wait for each other for ever.
    Deadlock {
        /// The first of them.
        owners: Vec<String>,
        pids: Vec<u32>,
        files: Vec<String>,
        /// How many there are.
        count: usize,
    },
    /// A wait has become long.
    SlowWait {
        file: String,
        waiter: String,
        pid: u32,
        waits_for: Duration,
        holder: Option<String>,
        holder_pid: u32,
    },
    /// So many more have become long.
    MoreSlowWaits(usize),
    /// Requests were refused with ENOLCK.
    LimitHit {
        file: String,
        pid: u32,
        reason: String,
        count: u64,
    },
    /// A request was refused with EDEADLK.
    Refused {
        file: String,
        pid: u32,
        reason: String,
    },
    /// So many more were.
    MoreRefused(u64),
    /// The kernel took a lease away.
    LeaseTimedOut(TimedOut),
}

impl Event {
    fn log(&self) {
        match self {
            Event::Deadlock {
                owners,
                pids,
                files,
                count,
            } => {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                tracing::warn!(
                    event = "deadlock",
                    owners = owners.join(", "),
                    pids = pids.join(" "),
                    files = files.join(", "),
                    count,
                    "deadlock: these wait for each other, and nobody is refused for it; one must be ended"
                );
            }
            Event::SlowWait {
                file,
                waiter,
                pid,
                waits_for,
                holder,
                holder_pid,
            } => tracing::warn!(
                event = "slow_wait",
                file,
                waiter,
                pid,
                waits_for = waits_for.as_secs_f64(),
                holder,
                holder_pid,
                "a request waits for long"
            ),
            Event::MoreSlowWaits(count) => {
                tracing::warn!(event = "slow_waits", count, "more requests wait for long");
            }
            Event::LimitHit {
                file,
                pid,
                reason,
                count,
            } => tracing::warn!(
                event = "limit_hit",
                file,
                pid,
                reason,
                count,
                "refused with ENOLCK in the last second"
            ),
            Event::Refused { file, pid, reason } => tracing::warn!(
                event = "deadlock_refused",
                file,
                pid,
                reason,
                "refused with EDEADLK"
            ),
            Event::MoreRefused(count) => tracing::warn!(
                event = "deadlocks_refused",
                count,
                "more requests refused with EDEADLK in the last second"
            ),
            Event::LeaseTimedOut(TimedOut {
                file,
                holder,
                pid,
                after,
            }) => tracing::warn!(
                event = "lease_timed_out",
                file,
                holder,
                pid,
                after = after.as_secs_f64(),
                "a lease was not given up in time, and was taken away"
            ),
        }
    }
}

/// What makes a wait the same in two looks: the file, the owner, and the bytes.
type WaitKey = (u64, u64, u64, u64, Option<u64>);

/// What the looks remember.
struct Look {
    service: Arc<ManagerService>,
    observer: Observer,
    mountpoint: PathBuf,
    slow: Duration,
    /// Cycles of the last look. What is there a second time is none that only seems so.
    suspected: HashSet<Vec<WaitKey>>,
    /// Those told of that still are there.
    told: HashSet<Vec<WaitKey>>,
    leases: Option<Leases>,
}

impl Look {
    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let tally = self.service.tally();
        let (limits, deadlocks) = tally.take_refusals();
        let slow = tally.newly_long(self.slow);
        let waited_on = tally.files_waited_on(PAUSE);
        let mut files = self.service.listing_of(&waited_on);
        self.observer.name(&mut files, &self.mountpoint);
        let mut names = Names {
            look: self,
            known: files
                .iter()
                .map(|file| (file_id(file), words::name(file)))
                .collect(),
        };
        names.refusals(&limits, &deadlocks, &mut events);
        for wait in slow.iter().take(CROWD) {
            events.push(names.slow_wait(wait, &files));
        }
        if slow.len() > CROWD {
            events.push(Event::MoreSlowWaits(slow.len() - CROWD));
        }
        self.deadlocks(&files, &mut events);
        if let Some(leases) = &mut self.leases {
            events.extend(leases.timed_out().into_iter().map(Event::LeaseTimedOut));
        }
        events
    }

    fn deadlocks(&mut self, files: &[FileLocks], events: &mut Vec<Event>) {
        let mut now = HashSet::new();
        for cycle in deadlock::find(files, process::threads) {
            let key = key_of(&cycle, files);
            if self.suspected.contains(&key) && !self.told.contains(&key) {
                self.told.insert(key.clone());
                events.push(described(&cycle, files));
            }
            now.insert(key);
        }
        self.told.retain(|key| now.contains(key));
        self.suspected = now;
    }
}

/// Names of files, each looked up once.
struct Names<'a> {
    look: &'a Look,
    known: HashMap<FileId, String>,
}

impl Names<'_> {
    fn of(&mut self, file: FileId) -> String {
        let look = self.look;
        let find = || {
            let mut found = [FileLocks::new(file.dev, file.ino)];
            look.observer.name(&mut found, &look.mountpoint);
            words::name(&found[0])
        };
        self.known.entry(file).or_insert_with(find).clone()
    }

    fn refusals(&mut self, limits: &Refusals, deadlocks: &Refusals, events: &mut Vec<Event>) {
        if let Some((asker, reason)) = limits.first.first() {
            events.push(Event::LimitHit {
                file: self.of(asker.file),
                pid: asker.pid,
                reason: reason.clone(),
                count: limits.count,
            });
        }
        for (asker, reason) in &deadlocks.first {
            events.push(Event::Refused {
                file: self.of(asker.file),
                pid: asker.pid,
                reason: reason.clone(),
            });
        }
        let more = deadlocks.count - deadlocks.first.len() as u64;
        if more > 0 {
            events.push(Event::MoreRefused(more));
        }
    }

    fn slow_wait(&mut self, wait: &LongWait, files: &[FileLocks]) -> Event {
        let Asker { file, pid } = wait.asker;
        let listed = files.iter().find(|listed| file_id(listed) == file);
        let waiter = listed.and_then(|listed| {
            let mut waiters = listed.waiters.iter();
            waiters.find(|waiter| waiter.lock.pid == pid)
        });
        let holder = listed
            .zip(waiter)
            .and_then(|(listed, waiter)| listed.holder(waiter));
        Event::SlowWait {
            file: self.of(file),
            waiter: waiter.map_or_else(|| pid.to_string(), |waiter| words::who(&waiter.lock)),
            pid,
            waits_for: wait.waits_for,
            holder: holder.map(words::who),
            holder_pid: holder.map_or(0, |holder| holder.pid),
        }
    }
}

fn file_id(file: &FileLocks) -> FileId {
    FileId {
        dev: file.source_device,
        ino: file.source_inode,
    }
}

/// The same for one cycle, wherever it was found to begin.
fn key_of(cycle: &Deadlock, files: &[FileLocks]) -> Vec<WaitKey> {
    let mut key: Vec<WaitKey> = cycle
        .steps
        .iter()
        .map(|step| {
            let file = &files[step.file];
            let lock = &file.waiters[step.waiter].lock;
            (
                file.source_device,
                file.source_inode,
                lock.owner,
                lock.start,
                lock.end,
            )
        })
        .collect();
    key.sort_unstable();
    key
}

fn described(cycle: &Deadlock, files: &[FileLocks]) -> Event {
    let waits = cycle.steps.iter().take(CROWD).map(|step| {
        let file = &files[step.file];
        (file, &file.waiters[step.waiter].lock)
    });
    let mut names: Vec<String> = waits.clone().map(|(file, _)| words::name(file)).collect();
    names.sort_unstable();
    names.dedup();
    Event::Deadlock {
        owners: waits.clone().map(|(_, lock)| words::who(lock)).collect(),
        pids: waits.map(|(_, lock)| lock.pid).collect(),
        files: names,
        count: cycle.steps.len(),
    }
}
