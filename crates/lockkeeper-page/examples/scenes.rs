//! Serves the page about a made-up mount, for whoever works on the page:
//! `cargo run -p lockkeeper-page --example scenes -- empty|busy|deadlock|crowd [PORT]`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use lockkeeper_page::{Bound, FileId, Limits, Source, TotalsNow, Watched};
use lockkeeper_watch::report::{
    Blocker, Counts, Deadlock, DeadlockStep, FileCounters, FileLocks, Held, Kind, Lock, Mode,
    Report, Totals, VERSION, WaitTimes, Waiting,
};
use lockkeeper_watch::timeline::Span;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let scene = arguments.next().unwrap_or_else(|| "busy".into());
    let port = arguments.next().map_or(Ok(0), |port| port.parse())?;
    let bound = Bound::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), false)?;
    println!("{}", bound.url());
    let made_up = MadeUp {
        scene,
        begun: Instant::now(),
    };
    bound.serve(Arc::new(made_up), Limits::default())?;
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

struct MadeUp {
    scene: String,
    begun: Instant,
}

impl Source for MadeUp {
    fn report(&self) -> Report {
        let age = self.begun.elapsed().as_secs_f64();
        let files = match self.scene.as_str() {
            "empty" => Vec::new(),
            "deadlock" => vec![
                file(1, "accounts.db", 2, 3, age),
                file(2, "ledger.db", 1, 2, age),
            ],
            "crowd" => vec![
                file(1, "spool/queue.lock", 1, 10_000, age),
                file(2, "state.json", 1, 4, age),
            ],
            _ => (0..40_u64)
                .map(|inode| {
                    let name = [
                        "orders.sqlite",
                        "cache/index",
                        "mail/inbox.mbox",
                        "a rather long name that goes on and on/with more of it.txt",
                        "<b>bold</b>.txt",
                    ];
                    let name = name
                        .get(inode as usize)
                        .map_or_else(|| format!("jobs/{inode:04}.lock"), |name| (*name).into());
                    file(
                        inode + 1,
                        &name,
                        1 + inode as usize % 3,
                        12_usize.saturating_sub(inode as usize * 2),
                        age,
                    )
                })
                .collect(),
        };
        let deadlocks = match self.scene.as_str() {
            "deadlock" => vec![Deadlock {
                steps: vec![
                    DeadlockStep { file: 0, waiter: 1 },
                    DeadlockStep { file: 1, waiter: 0 },
                ],
            }],
            _ => Vec::new(),
        };
        let now = self.totals();
        Report {
            version: VERSION,
            lockkeeper: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            source: "/srv/data".into(),
            mountpoint: "/mnt/data".into(),
            data: Some("backing".into()),
            counts: Counts {
                waiting: now.waiting,
                ..Counts::default()
            },
            files,
            time: unix_time(),
            totals: now.totals,
            wait_times: WaitTimes {
                bounds: vec![0.001, 0.01, 0.1],
                counts: vec![50, 30, 15, 5],
                sum: 12.0,
                count: 100,
            },
            deadlocks,
            ..Report::default()
        }
    }

    fn totals(&self) -> TotalsNow {
        if self.scene == "empty" {
            return TotalsNow::default();
        }
        let age = self.begun.elapsed().as_secs_f64();
        let count = |rate: f64| (age * rate + 40.0 * rate.sqrt() * (age / 3.0).sin().abs()) as u64;
        TotalsNow {
            totals: Totals {
                acquisitions: count(2400.0),
                contended: count(90.0),
                wake_ups: count(85.0),
                ..Totals::default()
            },
            waiting: 6 + (6.0 * (age / 5.0).sin()) as usize,
        }
    }

    fn watch(&self, _: FileId) -> Box<dyn Watched> {
        Box::new(Line { begun: self.begun })
    }
}

struct Line {
    begun: Instant,
}

impl Watched for Line {
    fn spans(&self) -> (f64, Vec<Span>) {
        let now = unix_time();
        let begun = now - self.begun.elapsed().as_secs_f64() - 60.0;
        let mut spans = Vec::new();
        let span = |owner: u64, what, from, to| Span {
            what,
            kind: Kind::Posix,
            mode: Mode::Write,
            start: 0,
            end: None,
            pid: 4000 + owner as u32,
            owner,
            from,
            to,
        };
        use lockkeeper_watch::timeline::What;
        let mut at = begun;
        let mut turn = 0;
        while at + 7.0 < now {
            turn += 1;
            let what = match turn % 7 {
                0 => What::Cancelled,
                3 => What::Refused,
                _ => What::Granted,
            };
            spans.push(span(10 + turn % 5, what, at - 3.0, Some(at)));
            if what == What::Granted {
                spans.push(span(10 + turn % 5, What::Held, at, Some(at + 3.5)));
            }
            at += 4.0;
        }
        spans.push(span(10, What::Held, at, None));
        spans.push(span(11, What::Waits, at + 1.0, None));
        (now, spans)
    }
}

fn file(inode: u64, name: &str, locks: usize, waiters: usize, age: f64) -> FileLocks {
    let programs = [
        "postgres",
        "python3",
        "sqlite3",
        "dovecot",
        "<script>alert(1)</script>",
    ];
    let lock = |number: usize, mode| Lock {
        kind: [Kind::Posix, Kind::Flock, Kind::Ofd][(inode as usize + number / 9) % 3],
        mode,
        start: if number.is_multiple_of(2) {
            0
        } else {
            100 * number as u64
        },
        end: (number % 2 == 1).then_some(100 * number as u64 + 99),
        pid: 4000 + (inode as u32 * 20_000) % 30_000 + number as u32,
        command: Some(programs[number % programs.len()].into()),
        owner: inode * 100_000 + number as u64,
    };
    FileLocks {
        path: Some(format!("/mnt/data/{name}")),
        size: Some(8192),
        locks: (0..locks)
            .map(|number| Held {
                lock: lock(number, Mode::Write),
                held_for: Some(age + 65.0 + number as f64),
                breaking: false,
            })
            .collect(),
        waiters: (0..waiters)
            .map(|number| Waiting {
                lock: lock(
                    locks + number,
                    if number % 4 == 3 {
                        Mode::Read
                    } else {
                        Mode::Write
                    },
                ),
                waits_for: Some(age + 60.0 - 0.005 * number as f64),
                overtaken: (number % 5 == 4).into(),
                depth: number.saturating_sub(number / 5) as u32,
                blocked_by: Some(match number {
                    0 => Blocker::Lock(0),
                    number => Blocker::Waiter(if number % 5 == 0 {
                        number.saturating_sub(2)
                    } else {
                        number - 1
                    }),
                }),
            })
            .collect(),
        counters: FileCounters {
            acquisitions: 1000 * inode + age as u64,
            contended: 3 * inode,
            ..FileCounters::default()
        },
        ..FileLocks::new(1, inode)
    }
}

fn unix_time() -> f64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}
