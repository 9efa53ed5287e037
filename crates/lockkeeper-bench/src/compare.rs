//! Two results beside each other, as the table that kernel testers (lkp) know.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use crate::format::{Cell, ResultFile, mean, stddev_percent};
use crate::metric::{Better, METRICS, Metric};

/// One line: a metric of a cell that both results have.
#[derive(Clone, Debug)]
pub struct Change {
    /// `lock2 threads 8 on library`.
    pub what: String,
    /// Which metric.
    pub metric: Metric,
    /// The base's values.
    pub base: Vec<f64>,
    /// The head's values.
    pub head: Vec<f64>,
}

impl Change {
    /// In percent of the base; `None` where that is 0 and the head is not.
    pub fn percent(&self) -> Option<f64> {
        percent(mean(&self.base)?, mean(&self.head)?)
    }

    /// Whether it is worse by more than `threshold` percent. From nothing to something counts as that.
    pub fn is_regression(&self, threshold: f64) -> bool {
        let worse = match (self.metric.better, self.percent()) {
            (Better::Higher, Some(percent)) => -percent,
            (Better::Lower, Some(percent)) => percent,
            (Better::Lower, None) => f64::INFINITY,
            _ => return false,
        };
        self.metric.is_judged && worse > threshold
    }
}

fn percent(base: f64, head: f64) -> Option<f64> {
    match base {
        _ if base == head => Some(0.0),
        0.0 => None,
        _ => Some(100.0 * (head - base) / base.abs()),
    }
}

/// Two results, beside each other.
#[derive(Debug)]
pub struct Comparison {
    /// What both have.
    pub changes: Vec<Change>,
    /// Geometric means over all cells of operations a task: metric, base, head, over how many.
    pub geo_means: Vec<(&'static str, f64, f64, usize)>,
    /// What only the base has.
    pub only_base: Vec<String>,
    /// What only the head has.
    pub only_head: Vec<String>,
    /// What makes the two unlike each other beside the program.
    pub warnings: Vec<String>,
    threshold: f64,
}

fn by_name(result: &ResultFile) -> HashMap<String, &Cell> {
    let cells = result.results.iter();
    cells.map(|cell| (cell.name(), cell)).collect()
}

/// Compares two results; a change for the worse by more than `threshold` percent is a regression.
pub fn compare(base: &ResultFile, head: &ResultFile, threshold: f64) -> Comparison {
    let mut changes = Vec::new();
    let mut missing = [Vec::new(), Vec::new()];
    let mut warnings = warnings(base, head);
    let mut moved = BTreeSet::new();
    let (in_base, in_head) = (by_name(base), by_name(head));
    for cell in &base.results {
        let Some(other) = in_head.get(&cell.name()) else {
            missing[0].push(cell.name());
            continue;
        };
        if (&cell.work, &cell.call) != (&other.work, &other.call) {
            warnings.push(format!(
                "{} is not compared, as it is not the same work: {} ({}) and {} ({})",
                cell.name(),
                cell.work,
                cell.call,
                other.work,
                other.call
            ));
            continue;
        }
        if cell.place != other.place {
            let place = |cell: &Cell| cell.place.clone().unwrap_or_default();
            moved.insert(format!(
                "{} was measured in different places: {} and {}",
                cell.target,
                place(cell),
                place(other)
            ));
        }
        for metric in METRICS {
            let values = |cell: &Cell| cell.metrics.get(metric.name).cloned();
            match (values(cell), values(other)) {
                (Some(base), Some(head)) => changes.push(Change {
                    what: cell.name(),
                    metric: *metric,
                    base,
                    head,
                }),
                (Some(_), None) => missing[0].push(format!("{} of {}", metric.name, cell.name())),
                (None, Some(_)) => missing[1].push(format!("{} of {}", metric.name, cell.name())),
                (None, None) => {}
            }
        }
    }
    for cell in &head.results {
        if !in_base.contains_key(&cell.name()) {
            missing[1].push(cell.name());
        }
    }
    warnings.extend(moved);
    // All of a metric together, as lkp lists them.
    let place = |change: &Change| METRICS.iter().position(|m| m.name == change.metric.name);
    changes.sort_by_key(place);
    let [only_base, only_head] = missing;
    Comparison {
        geo_means: geo_means(&changes),
        changes,
        only_base,
        only_head,
        warnings,
        threshold,
    }
}

fn warnings(base: &ResultFile, head: &ResultFile) -> Vec<String> {
    let mut warnings = Vec::new();
    let machine = |result: &ResultFile| {
        let machine = &result.machine;
        format!(
            "{}, {} cpus, Linux {}",
            machine.cpu, machine.cpus, machine.kernel
        )
    };
    if machine(base) != machine(head) {
        warnings.push(format!(
            "measured on different machines: {} and {}",
            machine(base),
            machine(head)
        ));
    }
    if base.settings != head.settings {
        warnings.push("measured with different settings (rounds, seconds, affinity)".to_owned());
    }
    warnings
}

/// Geometric means of operations a task. Cells with none have no place in one.
fn geo_means(changes: &[Change]) -> Vec<(&'static str, f64, f64, usize)> {
    let mut means = Vec::new();
    for name in ["per_process_ops", "per_thread_ops"] {
        let pairs: Vec<(f64, f64)> = changes
            .iter()
            .filter(|change| change.metric.name == name)
            .filter_map(|change| Some((mean(&change.base)?, mean(&change.head)?)))
            .filter(|&(base, head)| base > 0.0 && head > 0.0)
            .collect();
        if pairs.is_empty() {
            continue;
        }
        let of = |side: fn(&(f64, f64)) -> f64| {
            let logs: f64 = pairs.iter().map(|pair| side(pair).ln()).sum();
            (logs / pairs.len() as f64).exp()
        };
        means.push((name, of(|pair| pair.0), of(|pair| pair.1), pairs.len()));
    }
    means
}

impl Comparison {
    /// What became worse by more than the threshold.
    pub fn regressions(&self) -> impl Iterator<Item = &Change> {
        let threshold = self.threshold;
        self.changes
            .iter()
            .filter(move |change| change.is_regression(threshold))
    }

    /// The table.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        for warning in &self.warnings {
            let _ = writeln!(text, "warning: {warning}");
        }
        let _ = writeln!(text, "{:>16} {:>27}", "base", "head");
        text.push_str("---------------- ---------------------------\n");
        text.push_str("         %stddev     %change         %stddev\n");
        text.push_str("             \\          |                \\\n");
        for change in &self.changes {
            let mark = if change.is_regression(self.threshold) {
                "  REGRESSION"
            } else {
                ""
            };
            let name = format!("{}  {}{mark}", change.metric.name, change.what);
            line(
                &mut text,
                (&change.base, &change.head),
                change.percent(),
                &name,
            );
        }
        for (metric, base, head, count) in &self.geo_means {
            let name = format!("GEO-MEAN {metric} of {count}");
            line(
                &mut text,
                (&[*base], &[*head]),
                percent(*base, *head),
                &name,
            );
        }
        for (side, list) in [("base", &self.only_base), ("head", &self.only_head)] {
            for what in list {
                let _ = writeln!(text, "only in {side}: {what}");
            }
        }
        let worse = self.regressions().count();
        let _ = match worse {
            0 => writeln!(text, "no regression past {}%", self.threshold),
            1 => writeln!(text, "1 regression past {}%", self.threshold),
            _ => writeln!(text, "{worse} regressions past {}%", self.threshold),
        };
        text
    }
}

fn line(text: &mut String, (base, head): (&[f64], &[f64]), percent: Option<f64>, name: &str) {
    let change = percent.map_or("new".to_owned(), |percent| format!("{percent:+.1}%"));
    let _ = writeln!(
        text,
        "{} {change:>11} {}  {name}",
        value_and_spread(base),
        value_and_spread(head)
    );
}

/// `    449960 ±  2%`, in 16 columns; a spread under 2 % is not shown, as lkp does.
fn value_and_spread(values: &[f64]) -> String {
    let value = mean(values).unwrap_or_default();
    let shown = match value.abs() {
        1000.0.. => format!("{value:.0}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    };
    let spread = match stddev_percent(values) {
        Some(percent) if percent >= 1.5 => format!("±{percent:3.0}%"),
        _ => String::new(),
    };
    format!("{shown:>10} {spread:<5}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::result;
    use crate::load::Load;

    fn change(name: &str, base: &[f64], head: &[f64]) -> Comparison {
        compare(&result(&[(name, base)]), &result(&[(name, head)]), 5.0)
    }

    #[test]
    fn a_change_is_in_percent_of_the_base_and_judged_by_its_direction() {
        for (name, base, head, percent, is_regression) in [
            (
                "per_thread_ops",
                &[100.0][..],
                &[94.0][..],
                Some(-6.0),
                true,
            ),
            ("per_thread_ops", &[100.0], &[95.0], Some(-5.0), false),
            (
                "per_thread_ops",
                &[90.0, 110.0],
                &[150.0, 50.0],
                Some(0.0),
                false,
            ),
            ("per_thread_ops", &[100.0], &[200.0], Some(100.0), false),
            ("per_process_ops", &[100.0], &[0.0], Some(-100.0), true),
            ("per_process_ops", &[0.0], &[0.0], Some(0.0), false),
            ("per_process_ops", &[0.0], &[1.0], None, false),
            ("time_to_last_ns", &[100.0], &[106.0], Some(6.0), true),
            ("time_to_last_ns", &[100.0], &[50.0], Some(-50.0), false),
            ("time_to_last_ns", &[0.0], &[1.0], None, true),
            (
                "deadlock_found",
                &[1.0, 1.0],
                &[1.0, 0.0],
                Some(-50.0),
                true,
            ),
            // What explains, and what swings, is shown and not judged.
            ("wait_max_ns", &[100.0], &[900.0], Some(800.0), false),
            ("system_time", &[1.0], &[2.0], Some(100.0), false),
        ] {
            let comparison = change(name, base, head);
            let found = &comparison.changes[0];
            assert_eq!(found.percent(), percent, "{name} {base:?} {head:?}");
            let regressions = comparison.regressions().count();
            assert_eq!(regressions == 1, is_regression, "{name} {base:?} {head:?}");
            let text = comparison.render();
            assert_eq!(text.contains("REGRESSION"), is_regression, "{text}");
        }
    }

    #[test]
    fn the_geometric_mean_is_over_what_both_have() {
        let mut base = result(&[("per_thread_ops", &[100.0])]);
        let mut head = result(&[("per_thread_ops", &[200.0])]);
        for (result, ops) in [(&mut base, 400.0), (&mut head, 200.0)] {
            let mut cell = result.results[0].clone();
            cell.load = Load::Lock1;
            cell.metrics.insert("per_thread_ops".into(), vec![ops]);
            result.results.push(cell);
        }
        let comparison = compare(&base, &head, 5.0);
        let [(name, of_base, of_head, count)] = comparison.geo_means[..] else {
            panic!("one mean: {:?}", comparison.geo_means);
        };
        assert_eq!((name, count), ("per_thread_ops", 2));
        // √(100 · 400) and √(200 · 200)
        assert!((of_base - 200.0).abs() < 1e-9 && (of_head - 200.0).abs() < 1e-9);
        assert!(comparison.render().contains("GEO-MEAN per_thread_ops of 2"));
    }

    /// By hand: (90, 110, 130) has the mean 110 and deviates by √((400 + 0 + 400) / 3) = 16.33, 14.8 %;
    /// (50, 60, 70) has 60 and √(200 / 3) = 8.165, 13.6 %; from 110 to 60 it is −45.5 %. With cells of
    /// (30, 30) and (10, 1000), the geometric means are ∛(110 · 30 · 10) = 32.08 and ∛(60 · 30 · 1000) = 121.6,
    /// +279.2 %.
    #[test]
    fn spread_change_and_geometric_mean_are_those_computed_by_hand() {
        let of = |cells: &[&[f64]]| {
            let mut result = result(&[("per_process_ops", cells[0])]);
            for (n, values) in cells.iter().enumerate().skip(1) {
                let mut cell = result.results[0].clone();
                cell.tasks += n as u32;
                cell.metrics
                    .insert("per_process_ops".into(), values.to_vec());
                result.results.push(cell);
            }
            result
        };
        let base = of(&[&[90.0, 110.0, 130.0], &[30.0], &[10.0]]);
        let head = of(&[&[50.0, 60.0, 70.0], &[30.0], &[1000.0]]);
        let text = compare(&base, &head, 5.0).render();
        for line in [
            "    110.00 ± 15%      -45.5%      60.00 ± 14%  per_process_ops  lock2 threads 2 on library  REGRESSION",
            "     32.08           +279.2%     121.64        GEO-MEAN per_process_ops of 3",
            "1 regression past 5%",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn what_is_not_the_same_work_is_not_compared() {
        let base = result(&[("per_thread_ops", &[100.0])]);
        let mut head = result(&[("per_thread_ops", &[1.0])]);
        head.results[0].work = "flock".to_owned();
        let comparison = compare(&base, &head, 5.0);
        assert!(comparison.changes.is_empty());
        assert!(comparison.render().contains("not the same work"));
        let mut head = result(&[("per_thread_ops", &[100.0])]);
        head.results[0].place = Some("/a (ext4)".to_owned());
        let comparison = compare(&base, &head, 5.0);
        assert_eq!(comparison.changes.len(), 1);
        assert!(comparison.render().contains("different places"));
    }

    #[test]
    fn what_has_no_counterpart_is_said() {
        let base = result(&[("per_thread_ops", &[1.0]), ("scalability", &[1.0])]);
        let mut head = result(&[("per_thread_ops", &[1.0])]);
        let mut other = head.results[0].clone();
        other.tasks = 8;
        head.results.push(other);
        let comparison = compare(&base, &head, 5.0);
        assert_eq!(
            comparison.only_base,
            ["scalability of lock2 threads 2 on library"]
        );
        assert_eq!(comparison.only_head, ["lock2 threads 8 on library"]);
        assert!(
            comparison
                .render()
                .contains("only in head: lock2 threads 8 on library")
        );
    }

    #[test]
    fn a_line_is_laid_out_as_lkp_does() {
        let text = change("per_thread_ops", &[449960.0], &[306036.0]).render();
        let expected = "    449960            -32.0%     306036        per_thread_ops  lock2 threads 2 on \
                        library  REGRESSION";
        assert!(text.lines().any(|line| line == expected), "{text}");
        let text = change("per_thread_ops", &[90.0, 110.0], &[90.0, 110.0]).render();
        assert!(
            text.contains("    100.00 ± 10%       +0.0%     100.00 ± 10%"),
            "{text}"
        );
    }
}
