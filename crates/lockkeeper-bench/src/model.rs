//! What a few cores cannot show: a model of many, from costs that are measured on a few.
//!
//! A closed queueing network, solved exactly by mean value analysis. Each core has one task, which spends
//! some time by itself and then visits the one thing that all cores share, if the design has one: a cache
//! line, or a lock. There it queues. What it costs to be served is made of measured parts: the pair of calls
//! on one core, the move of a cache line between two, and how often a lock goes to a sleeper and how long that
//! takes. The kernel's tasks are processes, as two threads of one pay for the descriptors that they share.

use std::fmt::Write;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::board::Word;
use crate::error::Error;
use crate::format::{Cell, mean};
use crate::load::{Level, Load};
use crate::machine::cpus_allowed;
use crate::plot::{Curve, Panel, Row, Style, Unit};

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
    /// A pair of the kernel on one core (lock1, one task).
    pub kernel_pair: f64,
    /// A pair of the library on one core (lock1, one task).
    pub library_pair: f64,
    /// What it costs to wake a thread that has just fallen asleep on another core: the call, for who makes it.
    pub wake_up: f64,
    /// Wake-ups in each pair of the kernel (lock2, two tasks; what is seen are voluntary switches).
    pub kernel_wake_ups: f64,
    /// Wake-ups in each pair of the library (lock2, two tasks).
    pub library_wake_ups: f64,
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

impl Check {
    /// By how many percent the model is off: more than 0 where it promises too much.
    pub fn percent_off(&self) -> f64 {
        100.0 * (self.modelled - self.measured) / self.measured
    }
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

/// Two pinned threads pass a word to and fro, and sleep until it is their turn. What is timed is the call that
/// wakes the other.
fn wake_up(cpus: [usize; 2]) -> f64 {
    const ROUNDS: u32 = 2_000;
    let once = || {
        let word = Word::default();
        let pass = |cpu: usize, mine: u32| {
            pin_to(cpu);
            let mut time = Duration::ZERO;
            for round in 0..ROUNDS {
                word.wait_for(2 * round + mine);
                let begin = Instant::now();
                word.set(2 * round + mine + 1);
                time += begin.elapsed();
            }
            time
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| pass(cpus[1], 1));
            let one = scope.spawn(|| pass(cpus[0], 0));
            let times = [one, other].map(|thread| thread.join().unwrap_or_default());
            times.iter().sum::<Duration>().as_nanos() as f64 / f64::from(2 * ROUNDS)
        })
    };
    median_of((0..TIMES).map(|_| once()).collect())
}

/// The model for what a run has measured: lock1 and lock2 of one and two processes, on library and kernel.
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
            (cell.load, cell.level, cell.tasks) == (load, Level::Processes, tasks)
                && cell.target == target
        });
        let value = found.and_then(|cell| mean(cell.metrics.get(metric)?));
        value.filter(|value| *value > 0.0).ok_or_else(|| {
            Error::Refused(format!(
                "the model needs {metric} of {load}, {tasks} processes on {target}"
            ))
        })
    };
    // Two operations a pair.
    let pair = |target| Ok::<_, Error>(2e9 / measured(Load::Lock1, 1, target, "ops")?);
    let wake_ups =
        |target| measured(Load::Lock2, 2, target, "wake_ups_per_release").unwrap_or_default();
    let costs = Costs {
        local_line: local_line(),
        remote_line: remote_line([first, second]),
        kernel_pair: pair("kernel")?,
        library_pair: pair("library")?,
        wake_up: wake_up([first, second]),
        // None is a number, too.
        kernel_wake_ups: wake_ups("kernel"),
        library_wake_ups: wake_ups("library"),
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
        kernel_pair,
        library_pair,
        wake_up,
        kernel_wake_ups,
        library_wake_ups,
        ..
    } = *costs;
    // Moves of shared lines: none while there is one core.
    let moves = |cores: u32, lines: f64| if cores == 1 { 0.0 } else { lines * remote_line };
    // Who runs takes the lock many times before a sleeper has come to its senses, and goes on after it has woken
    // him: it is the call that costs. When the lock changes hands the file's lines follow.
    let one_at_a_time = |cores: u32, pair: f64, wake_ups: f64| {
        let change = match cores {
            1 => 0.0,
            _ => wake_ups * (wake_up + LINES_OF_A_FILE * remote_line),
        };
        throughput(cores, 0.0, pair + change)
    };
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
        Design::new(LIBRARY, Load::Lock2, |cores| {
            one_at_a_time(cores, library_pair, library_wake_ups)
        }),
        Design::new(KERNEL, Load::Lock2, |cores| {
            one_at_a_time(cores, kernel_pair, kernel_wake_ups)
        }),
    ]
}

fn assumptions(costs: &Costs) -> Vec<String> {
    let Costs {
        local_line,
        remote_line,
        kernel_pair,
        library_pair,
        wake_up,
        kernel_wake_ups,
        library_wake_ups,
    } = costs;
    vec![
        format!(
            "Measured here: an atomic addition to a line of one's own {local_line:.1} ns, the move of a line \
             between two cores {remote_line:.0} ns one way, a lock1 pair on one core {library_pair:.0} ns \
             (library) and {kernel_pair:.0} ns (kernel), the call that wakes a sleeper on another core {:.1} µs, wake-ups in a lock2 pair of two tasks {library_wake_ups:.4} (library) and \
             {kernel_wake_ups:.4} (kernel).",
            wake_up / 1000.0
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
            "lock2, library and kernel: one task runs and the others sleep. It takes the lock many times before \
             the one that it has woken comes, so that a pair costs itself, and its share of the call that wakes \
             and of {LINES_OF_A_FILE} moves of a line. How many wake-ups there are in a pair is measured at two \
             tasks and taken for any number, so that the lines are flat from two cores on."
        ),
        "Left out in lock2: that a lock and an unlock in front of a waiter look at the queue and that two cores meet \
         at the lock's word, which makes what is measured slower; and whatever two tasks do at once, which makes it \
         faster. Where the model was made, the two cancelled out for the library (within 5 %); the kernel, which \
         wakes once in 44 pairs and kept 1.2 cores busy instead of one, came out 10 to 20 % too slow: see the check \
         at two cores."
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
            notes: self.assumptions.clone(),
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
        let _ = writeln!(
            text,
            "\n{:30}{:>10}{:>10}{:>8}",
            "check", "modelled", "measured", "off by"
        );
        for check in &self.checks {
            let _ = writeln!(
                text,
                "{:30}{:>10.2}{:>10.2}{:>7.0}%",
                format!("{}, {}", check.what, cores(check.cores)),
                check.modelled / 1e6,
                check.measured / 1e6,
                check.percent_off()
            );
        }
        text.push('\n');
        for assumption in &self.assumptions {
            let _ = writeln!(text, "- {assumption}");
        }
        text
    }
}

fn cores(count: u32) -> String {
    match count {
        1 => "1 core".to_owned(),
        _ => format!("{count} cores"),
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
            kernel_pair: 400.0,
            library_pair: 40.0,
            wake_up: 10_000.0,
            kernel_wake_ups: 0.02,
            library_wake_ups: 0.001,
        };
        for design in designs(&costs) {
            let pair = if design.name == LIBRARY { 40.0 } else { 400.0 };
            let error = design.at(1) / (2e9 / pair) - 1.0;
            assert!(error.abs() < 1e-9, "{design:?}");
            assert_eq!(design.ops.len(), CORES.len());
        }
        // By hand: 40 ns and a thousandth of 10,180; 400 ns and a fiftieth of that.
        for (name, pair) in [(LIBRARY, 50.18), (KERNEL, 603.6)] {
            let designs = designs(&costs);
            let found = designs
                .iter()
                .find(|design| (design.load, design.name.as_str()) == (Load::Lock2, name));
            let modelled = found.expect("it is modelled").at(2);
            assert!(
                (modelled / (2e9 / pair) - 1.0).abs() < 1e-9,
                "{name}: {modelled}"
            );
        }
    }
}
