//! What a few cores cannot show: a model of many, from costs that are measured on a few.
//!
//! A closed queueing network, solved exactly by mean value analysis. Each core has one task, which spends
//! some time by itself and then visits the one thing that all cores share, if the design has one: a cache
//! line, or a lock. There it queues. What it costs to be served is made of measured parts: the pair of calls
//! on one core, and the move of a cache line between two.

use std::fmt::Write;
use std::fs::File;
use std::hint::{black_box, spin_loop};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::format::{Cell, mean};
use crate::load::{Level, Load};
use crate::machine::cpus_allowed;
use crate::plot::{Curve, Panel, Row, Style, Unit};
use crate::sys;

/// Numbers of cores that are modelled.
pub const CORES: [u32; 14] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 288];

/// Cache lines that move with a file's lock: the mutex or spinlock, the head of the file's locks, and the
/// lock itself.
const LINES_OF_A_FILE: f64 = 3.0;

/// Measured costs, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// An atomic addition to a cache line that this core has.
    pub local_line: f64,
    /// The move of a cache line from one core to another, one way.
    pub remote_line: f64,
    /// A system call that does nothing, on the way of fcntl(2).
    pub system_call: f64,
    /// A pair of the kernel on one core (lock1, one task).
    pub kernel_pair: f64,
    /// A pair of the library on one core (lock1, one task).
    pub library_pair: f64,
    /// From the release of a lock to its taking by a sleeper (herd of one, library).
    pub hand_over: f64,
    /// Hand-overs to a sleeper in each pair of the library (lock2, two tasks).
    pub hand_overs_a_pair: f64,
}

/// Where the model can be checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Which curve.
    pub what: String,
    /// At how many cores.
    pub cores: u32,
    /// Operations a second, by the model.
    pub modelled: f64,
    /// Operations a second, as measured.
    pub measured: f64,
}

/// A modelled design.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Design {
    /// What it is.
    pub name: String,
    /// Of which load.
    pub load: Load,
    /// Operations a second at each of [`CORES`].
    pub ops: Vec<f64>,
}

/// A model and what it came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// What was measured.
    pub costs: Costs,
    /// What was modelled.
    pub designs: Vec<Design>,
    /// How well it fits what can be measured.
    pub checks: Vec<Check>,
    /// What it takes for granted.
    pub assumptions: Vec<String>,
}

// ---- Measuring -------------------------------------------------------------

fn pin_to(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // Where it is refused, the scheduler's own choice is measured.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

#[repr(align(128))]
struct Line(AtomicU64);

fn median_of(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

const TIMES: usize = 7;

fn each(count: u32, mut call: impl FnMut()) -> f64 {
    let once = |call: &mut dyn FnMut()| {
        let begin = Instant::now();
        for _ in 0..count {
            call();
        }
        begin.elapsed().as_nanos() as f64 / f64::from(count)
    };
    median_of((0..TIMES).map(|_| once(&mut call)).collect())
}

fn local_line() -> f64 {
    let line = Line(AtomicU64::new(0));
    each(2_000_000, || {
        black_box(&line).0.fetch_add(1, Ordering::AcqRel);
    })
}

/// Two pinned threads pass a word to and fro: the line moves twice in each round, once each way, and each
/// move carries the word.
fn remote_line(cpus: [usize; 2]) -> f64 {
    const ROUNDS: u64 = 50_000;
    let once = || {
        let line = Line(AtomicU64::new(0));
        let pass = |cpu: usize, mine: u64| {
            pin_to(cpu);
            for round in 0..ROUNDS {
                while line.0.load(Ordering::Acquire) != 2 * round + mine {
                    spin_loop();
                }
                line.0.store(2 * round + mine + 1, Ordering::Release);
            }
        };
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| pass(cpus[0], 0));
            scope.spawn(|| pass(cpus[1], 1));
        });
        begin.elapsed().as_nanos() as f64 / (2 * ROUNDS) as f64
    };
    median_of((0..TIMES).map(|_| once()).collect())
}

fn system_call() -> Result<f64, Error> {
    let failed = Error::system("open /dev/null");
    let file = File::open("/dev/null").map_err(failed)?;
    Ok(each(200_000, || {
        let _ = black_box(sys::no_op(file.as_fd()));
    }))
}

/// The model for what a run has measured: lock1 and lock2 of one and two threads, and a herd of one, on
/// library and kernel.
///
/// # Errors
/// There is one cpu only, or one of these is missing.
pub fn model(cells: &[Cell]) -> Result<Model, Error> {
    let cpus = cpus_allowed();
    let [first, second, ..] = cpus[..] else {
        return Err(Error::Refused(
            "the model needs two cpus: with one no cache line moves".to_owned(),
        ));
    };
    let measured = |load: Load, tasks: u32, target: &str, metric: &str| {
        let found = cells.iter().find(|cell| {
            (cell.load, cell.level, cell.tasks) == (load, Level::Threads, tasks)
                && cell.target == target
        });
        let value = found.and_then(|cell| mean(cell.metrics.get(metric)?));
        value.filter(|value| *value > 0.0).ok_or_else(|| {
            Error::Refused(format!(
                "the model needs {metric} of {load}, {tasks} threads on {target}"
            ))
        })
    };
    // Two operations a pair.
    let pair = |target| Ok::<_, Error>(2e9 / measured(Load::Lock1, 1, target, "ops")?);
    let costs = Costs {
        local_line: local_line(),
        remote_line: remote_line([first, second]),
        system_call: system_call()?,
        kernel_pair: pair("kernel")?,
        library_pair: pair("library")?,
        hand_over: measured(Load::Herd, 1, "library", "time_to_last_ns")?,
        hand_overs_a_pair: measured(Load::Lock2, 2, "library", "wake_ups_per_release")
            .unwrap_or_default(),
    };
    let designs = designs(&costs);
    let mut checks = Vec::new();
    for (design, target) in designs.iter().filter_map(|design| {
        let target = match design.name.as_str() {
            LIBRARY => "library",
            KERNEL => "kernel",
            _ => return None,
        };
        Some((design, target))
    }) {
        for cores in [1, 2] {
            checks.push(Check {
                what: format!("{} of {}", design.load, design.name),
                cores,
                modelled: design.at(cores),
                measured: measured(design.load, cores, target, "ops")?,
            });
        }
    }
    Ok(Model {
        assumptions: assumptions(&costs),
        costs,
        designs,
        checks,
    })
}

// ---- The queueing network --------------------------------------------------

/// Pairs in a nanosecond of `cores` tasks that each spend `alone` by themselves and `shared` at the one
/// station, by exact mean value analysis.
pub fn throughput(cores: u32, alone: f64, shared: f64) -> f64 {
    let (mut queue, mut rate) = (0.0, 0.0);
    for n in 1..=cores {
        let at_station = shared * (1.0 + queue);
        rate = f64::from(n) / (alone + at_station);
        queue = rate * at_station;
    }
    rate
}

const LIBRARY: &str = "library";
const KERNEL: &str = "kernel";
const SPINLOCK: &str = "kernel, with one spinlock that every unlock takes";
const COUNT: &str = "kernel, with one reference count that every request takes";

impl Design {
    fn new(name: &str, load: Load, pairs: impl Fn(u32) -> f64) -> Design {
        Design {
            name: name.to_owned(),
            load,
            ops: CORES.map(|cores| 2e9 * pairs(cores)).to_vec(),
        }
    }

    fn at(&self, cores: u32) -> f64 {
        let place = CORES.iter().position(|&known| known == cores);
        place.map_or(0.0, |place| self.ops[place])
    }
}

fn designs(costs: &Costs) -> Vec<Design> {
    let Costs {
        remote_line,
        system_call,
        kernel_pair,
        library_pair,
        ..
    } = *costs;
    // Moves of shared lines: none while there is one core.
    let moves = |cores: u32, lines: f64| if cores == 1 { 0.0 } else { lines * remote_line };
    // The kernel enters and leaves by itself; what is left of the pair is done under the file's spinlock.
    let kernel_alone = (2.0 * system_call).min(kernel_pair);
    let hand_over = costs.hand_overs_a_pair * (costs.hand_over + LINES_OF_A_FILE * remote_line);
    vec![
        Design::new(LIBRARY, Load::Lock1, |cores| {
            throughput(cores, library_pair, 0.0)
        }),
        Design::new(KERNEL, Load::Lock1, |cores| {
            throughput(cores, kernel_pair, 0.0)
        }),
        // The lock's word, its queue's hand-over, and the list that it guards.
        Design::new(SPINLOCK, Load::Lock1, |cores| {
            throughput(cores, kernel_pair, moves(cores, 3.0))
        }),
        // Once up and once down.
        Design::new(COUNT, Load::Lock1, |cores| {
            throughput(cores, kernel_pair, moves(cores, 2.0))
        }),
        // One task runs, and the others sleep until it is overtaking no more.
        Design::new(LIBRARY, Load::Lock2, |cores| {
            let idle = if cores == 1 { 0.0 } else { hand_over };
            throughput(cores, 0.0, library_pair + idle)
        }),
        // Both calls of a pair find the file's lines with another core.
        Design::new(KERNEL, Load::Lock2, |cores| {
            let shared = kernel_pair - kernel_alone + moves(cores, 2.0 * LINES_OF_A_FILE);
            throughput(cores, kernel_alone, shared)
        }),
    ]
}

fn assumptions(costs: &Costs) -> Vec<String> {
    let Costs {
        local_line,
        remote_line,
        system_call,
        kernel_pair,
        library_pair,
        hand_over,
        hand_overs_a_pair,
    } = costs;
    vec![
        format!(
            "Measured here: an atomic addition to a local line {local_line:.1} ns, the move of a line between \
             two cores {remote_line:.0} ns one way, a system call that does nothing {system_call:.0} ns, a \
             lock1 pair on one core {library_pair:.0} ns (library) and {kernel_pair:.0} ns (kernel), a \
             hand-over to a sleeper {:.1} µs, {hand_overs_a_pair:.4} hand-overs a pair in lock2 of two tasks.",
            hand_over / 1000.0
        ),
        "Every move of a line costs what it costs between these two cores. Between sockets it costs two to four \
         times that, so that designs which share a line come out too well."
            .to_owned(),
        "lock1, library and kernel: nothing is shared, so that cores add up. Memory bandwidth, turbo clocks and \
         sibling hyperthreads are left out."
            .to_owned(),
        "lock1, one spinlock: three lines move in each pair (the lock's word, its queue's hand-over, the list \
         that it guards). lock1, one reference count: two moves, up and down. No time for the work itself. \
         They stand for two regressions that Linux had, not for today's kernel."
            .to_owned(),
        format!(
            "lock2, kernel: all of a pair but two bare system calls is done under the file's spinlock; in both \
             calls {LINES_OF_A_FILE} lines come from another core. Tasks spin and do not sleep."
        ),
        "lock2, library: one task runs, the others sleep; a hand-over leaves the lock idle for its whole length. \
         Tasks on other cores that meet at the mutex for a moment are left out."
            .to_owned(),
        "Service times are exponential and cores are alike (mean value analysis of a closed network). The shape \
         is what to take from it: what is bounded and where, not the third digit."
            .to_owned(),
    ]
}

// ---- Showing it ------------------------------------------------------------

impl Model {
    /// The picture: a panel a load, what was measured as larger points.
    pub fn row(&self) -> Row {
        let names = [LIBRARY, KERNEL, SPINLOCK, COUNT];
        let colour = |name: &str| names.iter().position(|known| *known == name).unwrap_or(0);
        let panel = |load: Load| {
            let modelled = self
                .designs
                .iter()
                .filter(|design| design.load == load)
                .map(|design| Curve {
                    colour: colour(&design.name),
                    style: Style::Dashed,
                    points: CORES
                        .iter()
                        .zip(&design.ops)
                        .map(|(cores, ops)| (f64::from(*cores), [*ops; 3]))
                        .collect(),
                });
            let measured = self
                .checks
                .iter()
                .filter(|check| check.what.starts_with(load.name()))
                .map(|check| Curve {
                    colour: usize::from(check.what.ends_with(KERNEL)),
                    style: Style::Points,
                    points: vec![(f64::from(check.cores), [check.measured; 3])],
                });
            Panel {
                y_label: format!("{load}: operations a second"),
                x_label: "cores, one task each".to_owned(),
                unit: Unit::Number,
                curves: modelled.chain(measured).collect(),
            }
        };
        Row {
            heading: "A model of many cores: dashed as modelled, points as measured".to_owned(),
            legend: names
                .iter()
                .map(|name| (colour(name), Style::Solid, (*name).to_owned()))
                .collect(),
            panels: vec![panel(Load::Lock1), panel(Load::Lock2)],
        }
    }

    /// Everything, for people.
    pub fn render(&self) -> String {
        let mut text = String::new();
        let shown = [1, 2, 8, 32, 96, 288];
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "million operations a second by the number of cores\n\n{:62}",
            ""
        );
        for cores in shown {
            let _ = write!(text, "{cores:>9}");
        }
        text.push('\n');
        for design in &self.designs {
            let _ = write!(text, "{:62}", format!("{}: {}", design.load, design.name));
            for cores in shown {
                let _ = write!(text, "{:>9.2}", design.at(cores) / 1e6);
            }
            text.push('\n');
        }
        text.push_str("\nas modelled, and as measured\n");
        for check in &self.checks {
            let _ = writeln!(
                text,
                "{:24} {} cores {:>9.2} {:>9.2}  {:+.0}%",
                check.what,
                check.cores,
                check.modelled / 1e6,
                check.measured / 1e6,
                100.0 * (check.modelled - check.measured) / check.measured
            );
        }
        text.push('\n');
        for assumption in &self.assumptions {
            let _ = writeln!(text, "- {assumption}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shares_nothing_adds_up_and_what_shares_is_bounded() {
        for cores in CORES {
            let n = f64::from(cores);
            assert!((throughput(cores, 100.0, 0.0) - n / 100.0).abs() < 1e-9);
            let shared = throughput(cores, 100.0, 50.0);
            assert!(shared <= 1.0 / 50.0 + 1e-12, "{cores}");
            assert!(shared <= n / 150.0 + 1e-12, "{cores}");
        }
        // Two customers, Z = 1, S = 1, by hand: R(1) = 1, X(1) = 1/2, Q(1) = 1/2; R(2) = 3/2, X(2) = 2/2.5.
        assert!((throughput(2, 1.0, 1.0) - 0.8).abs() < 1e-12);
    }

    #[test]
    fn one_core_is_modelled_as_it_was_measured() {
        let costs = Costs {
            local_line: 5.0,
            remote_line: 60.0,
            system_call: 50.0,
            kernel_pair: 400.0,
            library_pair: 40.0,
            hand_over: 20_000.0,
            hand_overs_a_pair: 0.001,
        };
        for design in designs(&costs) {
            let pair = if design.name == LIBRARY { 40.0 } else { 400.0 };
            let error = design.at(1) / (2e9 / pair) - 1.0;
            assert!(error.abs() < 1e-9, "{design:?}");
            assert_eq!(design.ops.len(), CORES.len());
        }
    }
}
