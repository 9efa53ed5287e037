//! A report as metrics, in the text form that Prometheus reads (version 0.0.4).
//!
//! Written by hand: what there is to say is in the report already, and three kinds of lines say it.

use std::fmt::{Display, Write};

use crate::report::{FileLocks, Kind, Lock, Mode, Report};

/// The media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text.
pub fn render(report: &Report) -> String {
    let mut out = Text::default();
    out.metric(
        "lockkeeper_info",
        "gauge",
        "The mount that these metrics are about; always 1.",
    );
    let data = report.data.as_deref().unwrap_or("unknown");
    out.sample(
        "lockkeeper_info",
        &[
            ("version", &report.lockkeeper),
            ("mountpoint", &report.mountpoint),
            ("source", &report.source),
            ("data", data),
        ],
        1,
    );
    out.single(
        "lockkeeper_start_time_seconds",
        "gauge",
        "When the mount began, in seconds since 1970.",
        report.started,
    );
    totals(&mut out, report);
    present(&mut out, report);
    wait_times(&mut out, report);
    out.0
}

fn totals(out: &mut Text, report: &Report) {
    let totals = &report.totals;
    for (name, help, value) in [
        (
            "lockkeeper_acquisitions_total",
            "Locks granted, at once or after a wait.",
            totals.acquisitions,
        ),
        (
            "lockkeeper_contended_total",
            "Requests that had to wait.",
            totals.contended,
        ),
        (
            "lockkeeper_wake_ups_total",
            "Waiters that were woken: granted, refused, or sent to try again.",
            totals.wake_ups,
        ),
        (
            "lockkeeper_requeues_total",
            "Waiters that were looked at and had to wait on, beneath another lock.",
            totals.requeues,
        ),
        (
            "lockkeeper_deadlocks_refused_total",
            "Waits refused with EDEADLK.",
            totals.deadlocks,
        ),
        (
            "lockkeeper_cancels_total",
            "Waits that were interrupted.",
            totals.cancels,
        ),
        (
            "lockkeeper_limit_hits_total",
            "Requests refused with ENOLCK.",
            totals.limit_hits,
        ),
    ] {
        out.single(name, "counter", help, value);
    }
}

fn present(out: &mut Text, report: &Report) {
    let held = || held_of(&report.files);
    let waiting = || waiting_of(&report.files);
    for (name, help, kinds, count) in [
        (
            "lockkeeper_locks",
            "Locks held now.",
            &[Kind::Posix, Kind::Ofd, Kind::Flock][..],
            &(|kind, mode| held().filter(|&lock| is(lock, kind, mode)).count())
                as &dyn Fn(Kind, Mode) -> usize,
        ),
        (
            "lockkeeper_waiters",
            "Requests that wait now.",
            &[Kind::Posix, Kind::Ofd, Kind::Flock, Kind::Access],
            &|kind, mode| waiting().filter(|&lock| is(lock, kind, mode)).count(),
        ),
    ] {
        out.metric(name, "gauge", help);
        for &kind in kinds {
            for (mode, mode_name) in [(Mode::Read, "read"), (Mode::Write, "write")] {
                let kind_name = kind.name().to_ascii_lowercase();
                let labels = [("kind", kind_name.as_str()), ("type", mode_name)];
                out.sample(name, &labels, count(kind, mode));
            }
        }
    }
    let oldest = report
        .files
        .iter()
        .flat_map(|file| &file.waiters)
        .filter_map(|waiter| waiter.waits_for)
        .fold(0.0, f64::max);
    out.single(
        "lockkeeper_oldest_wait_seconds",
        "gauge",
        "How long the request has waited that has waited longest; 0 if none waits.",
        oldest,
    );
    let counts = &report.counts;
    for (name, help, value) in [
        (
            "lockkeeper_locked_files",
            "Files on which anything is locked or waited for.",
            report.files.len(),
        ),
        (
            "lockkeeper_deadlocks",
            "Cycles of owners that wait for each other now and that nobody is refused for.",
            report.deadlocks.len(),
        ),
        (
            "lockkeeper_inodes",
            "Inodes that the kernel knows.",
            counts.inodes,
        ),
        (
            "lockkeeper_open_handles",
            "Files and folders that the kernel has open.",
            counts.handles,
        ),
        (
            "lockkeeper_lock_processes",
            "Processes that have, want or had locks in files that they have open.",
            counts.lock_processes,
        ),
        (
            "lockkeeper_lock_handles",
            "Open files that were used to lock.",
            counts.lock_handles,
        ),
    ] {
        out.single(name, "gauge", help, value);
    }
}

fn held_of(files: &[FileLocks]) -> impl Iterator<Item = &Lock> {
    let held = files.iter().flat_map(|file| &file.locks);
    held.map(|held| &held.lock)
}

fn waiting_of(files: &[FileLocks]) -> impl Iterator<Item = &Lock> {
    let waiting = files.iter().flat_map(|file| &file.waiters);
    waiting.map(|waiting| &waiting.lock)
}

fn is(lock: &Lock, kind: Kind, mode: Mode) -> bool {
    (lock.kind, lock.mode) == (kind, mode)
}

fn wait_times(out: &mut Text, report: &Report) {
    const NAME: &str = "lockkeeper_wait_duration_seconds";
    let times = &report.wait_times;
    out.metric(
        NAME,
        "histogram",
        "How long the waits were that have ended, whatever they ended with.",
    );
    let mut up_to = 0;
    for (bound, count) in times.bounds.iter().zip(&times.counts) {
        up_to += count;
        let le = bound.to_string();
        out.sample(&format!("{NAME}_bucket"), &[("le", &le)], up_to);
    }
    out.sample(&format!("{NAME}_bucket"), &[("le", "+Inf")], times.count);
    out.sample(&format!("{NAME}_sum"), &[], times.sum);
    out.sample(&format!("{NAME}_count"), &[], times.count);
}

#[derive(Default)]
struct Text(String);

// Writing to a string cannot fail.
impl Text {
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.metric(name, kind, help);
        self.sample(name, &[], value);
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.0, "{before}{label}=\"{text}\"");
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::report::{Totals, WaitTimes};

    fn report() -> Report {
        Report {
            mountpoint: "/a \"quoted\" \\ path".into(),
            started: 1_700_000_000.5,
            totals: Totals {
                acquisitions: u64::MAX,
                ..Totals::default()
            },
            wait_times: WaitTimes {
                bounds: vec![0.001, 1.0, 3000.0],
                counts: vec![5, 3, 0, 1],
                sum: 4001.25,
                count: 9,
            },
            ..Report::default()
        }
    }

    fn parsed(text: &str) -> prometheus_parse::Scrape {
        let lines = text.lines().map(|line| Ok(line.to_owned()));
        prometheus_parse::Scrape::parse(lines).expect("parses")
    }

    #[test]
    fn the_text_is_understood_by_others() {
        let text = render(&report());
        let scrape = parsed(&text);
        let find = |name: &str| {
            let mut samples = scrape.samples.iter();
            let sample = samples.find(|sample| sample.metric == name);
            sample.unwrap_or_else(|| panic!("{name} in\n{text}"))
        };
        assert!(matches!(
            find("lockkeeper_acquisitions_total").value,
            prometheus_parse::Value::Counter(_)
        ));
        assert!(text.contains("lockkeeper_acquisitions_total 18446744073709551615\n"));
        assert!(
            text.contains(r#"mountpoint="/a \"quoted\" \\ path""#),
            "{text}"
        );
        let prometheus_parse::Value::Histogram(buckets) =
            &find("lockkeeper_wait_duration_seconds").value
        else {
            panic!("no histogram in\n{text}");
        };
        let buckets: Vec<_> = buckets
            .iter()
            .map(|bucket| (bucket.less_than, bucket.count))
            .collect();
        assert_eq!(
            buckets,
            [
                (0.001, 5.0),
                (1.0, 8.0),
                (3000.0, 8.0),
                (f64::INFINITY, 9.0)
            ]
        );
    }

    #[test]
    fn names_and_types_follow_the_conventions() {
        let text = render(&report());
        for line in text.lines().filter(|line| line.starts_with("# TYPE")) {
            let words: Vec<&str> = line.split(' ').collect();
            let (name, kind) = (words[2], words[3]);
            assert!(name.starts_with("lockkeeper_"), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(text.contains(&format!("# HELP {name} ")), "{line}");
        }
    }

    #[test]
    fn the_dashboard_shows_only_what_there_is() {
        let text = render(&report());
        let known: BTreeSet<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split(['{', ' ']).next())
            .collect();
        let dashboard = include_str!("../../../contrib/grafana-dashboard.json");
        let document: serde_json::Value = serde_json::from_str(dashboard).expect("JSON");
        let panels = document["panels"].as_array().expect("panels");
        let mut named = 0;
        let targets = panels.iter().flat_map(|panel| panel["targets"].as_array());
        for target in targets.flatten() {
            let query = target["expr"].as_str().expect("a query");
            for word in query.split(|c: char| !c.is_alphanumeric() && c != '_') {
                if word.starts_with("lockkeeper_") {
                    assert!(known.contains(word), "{word} in {query}");
                    named += 1;
                }
            }
        }
        assert!(named >= 10, "the dashboard shows next to nothing");
    }
}
