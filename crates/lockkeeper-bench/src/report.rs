//! The report: every load in one go, as a page with its pictures, and the result file beside it.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lockkeeper::Fairness;

use crate::error::Error;
use crate::format::{Cell, ResultFile, Settings, behind_links, folder_of, plain};
use crate::load::{FairnessSetting, Level, Load};
use crate::machine::cpus_allowed;
use crate::model::{Model, model};
use crate::plot;
use crate::run::{Plan, Program, default_library, run};
use crate::table::{grouped, nanoseconds, render};
use crate::target::{TMPFS, Target};

const PAGE: &str = "report.html";
const RESULT: &str = "results.json";

/// How many times as long the turns of the most tasks are. At 1,000 tasks each comes up to the front
/// some 14 times a second: too seldom in a short turn to tell how evenly they are served.
const LONGER: f64 = 4.0;

/// What to put into a report.
#[derive(Clone, Debug)]
pub struct Request {
    /// How it is measured.
    pub settings: Settings,
    /// Loads with more tasks than this are left out.
    pub most_tasks: u32,
    /// A mount point that has its turn too.
    pub mount: Option<PathBuf>,
    /// How long a file system may take to answer.
    pub answer_within: Duration,
}

impl Request {
    /// What is measured, in order.
    pub fn plans(&self) -> Vec<Plan> {
        use Level::{Processes, Threads};
        let cpus = cpus_allowed().len() as u32;
        let kernel = || Target::Kernel(TMPFS.into());
        let mut both = vec![default_library(), kernel()];
        both.extend(self.mount.clone().map(Target::Mount));
        let fairness = [Fairness::FIFO, Fairness::Bounded(100), Fairness::Unlimited];
        let of_each = fairness.map(|fairness| Target::Library(FairnessSetting(fairness)));
        let no_mount = vec![default_library(), kernel()];
        let plan = |loads: &[Load], levels: &[Level], tasks: &[u32], targets: &[Target]| {
            let mut tasks: Vec<u32> = tasks.to_vec();
            tasks.retain(|&tasks| tasks <= self.most_tasks.max(2));
            tasks.sort_unstable();
            tasks.dedup();
            Plan {
                loads: loads.to_vec(),
                levels: levels.to_vec(),
                tasks,
                targets: targets.to_vec(),
                held: vec![0],
                settings: self.settings.clone(),
                answer_within: self.answer_within,
            }
        };
        let mut plans = vec![
            plan(&[Load::Lock1], &[Threads, Processes], &[1, 2, cpus], &both),
            plan(&[Load::Lock2], &[Threads], &[1, 2, 8, 20, 100], &both),
            Plan {
                settings: Settings {
                    seconds: (self.settings.seconds * LONGER).min(3600.0),
                    ..self.settings.clone()
                },
                ..plan(&[Load::Lock2], &[Threads], &[500, 1000], &both)
            },
            plan(&[Load::Lock2], &[Processes], &[1, 2, 8, 20, 100], &both),
            plan(&[Load::Lock2], &[Threads], &[2, 8, 20, 100], &of_each),
            plan(&[Load::Flock], &[Threads], &[1, 2, 8, 20], &both),
            plan(&[Load::Ofd], &[Processes], &[1, 2, 8, 20], &both),
            plan(&[Load::Readers], &[Threads], &[1, 2, 8, 20], &both),
            Plan {
                held: vec![0, 1_000, 10_000],
                ..plan(&[Load::Ranges], &[Threads], &[1, 2], &no_mount)
            },
            plan(&[Load::Herd], &[Threads], &[1, 10, 100, 1000], &both),
            plan(&[Load::Herd], &[Processes], &[1, 10, 100], &both),
            plan(&[Load::Chain], &[Processes], &[2, 8, 50], &no_mount),
            plan(&[Load::Lease], &[Processes], &[1, 2, 8], &no_mount),
        ];
        plans.retain(|plan| !plan.tasks.is_empty());
        plans
    }
}

/// What `bench model` measures: as little as it needs.
pub fn plan_of_model(settings: &Settings, answer_within: Duration) -> Plan {
    Plan {
        loads: vec![Load::Lock1, Load::Lock2],
        levels: vec![Level::Processes],
        tasks: vec![1, 2],
        targets: vec![default_library(), Target::Kernel(TMPFS.into())],
        held: vec![0],
        settings: settings.clone(),
        answer_within,
    }
}

/// The folder of a report, made beside its place at the end, and moved there when it is complete.
pub struct Folder {
    /// What the user called it.
    name: PathBuf,
    /// Where it really is: behind symbolic links, which stay.
    place: PathBuf,
    may_replace: bool,
}

impl Folder {
    /// Looks whether a folder can be made there. None is left: a run that is killed leaves nothing.
    ///
    /// # Errors
    /// There is something at `path` (with `force`: that is no report), or nothing can be made beside it.
    pub fn prepare(path: &Path, force: bool) -> Result<Folder, Error> {
        let failed = |source| Error::File {
            what: "write",
            path: path.to_owned(),
            source: plain(source),
        };
        let folder = Folder {
            name: path.to_owned(),
            place: behind_links(path).map_err(failed)?,
            may_replace: force,
        };
        if folder.place.symlink_metadata().is_ok() {
            if !force {
                return Err(Error::Refused(format!(
                    "{} is there already: name another folder, or replace it with `--force`",
                    path.display()
                )));
            }
            if !is_report(&folder.place) {
                return Err(Error::Refused(format!(
                    "{} is not a report alone, and is not replaced",
                    path.display()
                )));
            }
        }
        folder.temporary().map_err(failed)?;
        Ok(folder)
    }

    fn temporary(&self) -> std::io::Result<tempfile::TempDir> {
        tempfile::Builder::new()
            .prefix(".lockkeeper-bench-")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .tempdir_in(folder_of(&self.place))
    }

    /// Writes the report and moves it to its place.
    ///
    /// # Errors
    /// What the file system said; then everything is as it was.
    pub fn commit(self, result: &ResultFile) -> Result<(), Error> {
        let page = page(result)?;
        self.put(&page, &result.to_json())
            .map_err(|source| Error::File {
                what: "write",
                path: self.name.clone(),
                source: plain(source),
            })
    }

    fn put(&self, page: &str, json: &str) -> std::io::Result<()> {
        let temporary = self.temporary()?;
        let inside = temporary.path().join("new");
        fs::create_dir(&inside)?;
        fs::write(inside.join(RESULT), json)?;
        fs::write(inside.join(PAGE), page)?;
        if self.place.symlink_metadata().is_err() {
            return fs::rename(&inside, &self.place);
        }
        // Looked at again: a run takes minutes.
        if !self.may_replace || !is_report(&self.place) {
            return Err(std::io::ErrorKind::AlreadyExists.into());
        }
        // The old one goes with the temporary folder.
        let old = temporary.path().join("old");
        fs::rename(&self.place, &old)?;
        fs::rename(&inside, &self.place).inspect_err(|_| {
            let _ = fs::rename(&old, &self.place);
        })
    }
}

/// Whether a folder holds a report and nothing else.
fn is_report(path: &Path) -> bool {
    let Ok(entries) = fs::read_dir(path) else {
        return false;
    };
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    names == [PAGE, RESULT]
}

/// Measures all of it.
///
/// # Errors
/// As [`run`].
pub fn measure(
    request: &Request,
    program: &Program,
    stop: &AtomicBool,
    mut progress: impl FnMut(&str),
) -> Result<ResultFile, Error> {
    let mut cells = Vec::new();
    for plan in request.plans() {
        cells.extend(run(&plan, program, stop, &mut progress)?.results);
    }
    progress("the model");
    // On one cpu there is no model, and the rest stands.
    let model = match model(&cells) {
        Ok(model) => Some(model),
        Err(Error::Refused(_)) => None,
        Err(error) => return Err(error),
    };
    let mut result = ResultFile::new(request.settings.clone(), cells);
    result.model = model;
    Ok(result)
}

// ---- The page --------------------------------------------------------------

const STYLE: &str = "
:root { color-scheme: light dark; --paper: #fff; --ink: #222; --grid: #ddd; --faint: #666; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e4e4e4; --grid: #3a3d42; --faint: #9a9a9a; }
}
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 3rem; }
figure { margin: 1.5rem 0 0; } figcaption { font-size: 1.1rem; }
.legend { margin: .3rem 0; font-size: .9rem; } .legend span { margin-right: 1.6rem; }
.legend i { display: inline-block; width: 1.6rem; height: .25rem; margin-right: .5rem; vertical-align: middle; }
.panels { display: flex; flex-wrap: wrap; }
.panels svg { flex: 1 1 420px; min-width: 0; max-width: 590px; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; } td, th { padding: .2rem .9rem .2rem 0; text-align: left;
  vertical-align: top; border-bottom: 1px solid var(--grid); }
td.n, th.n { text-align: right; white-space: nowrap; }
pre { overflow-x: auto; font-size: 12px; line-height: 1.4; }
summary { cursor: pointer; color: var(--faint); }
";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A row of panels in the page's own colours. Heading and legend are the page's, so that panels can stand beneath
/// each other where it is narrow.
fn picture(row: &plot::Row) -> Result<String, Error> {
    let mut text = format!(
        "<figure><figcaption>{}</figcaption>\n<p class=legend>",
        escape(&row.heading)
    );
    // Writing to a string cannot fail.
    for (colour, _, name) in &row.legend {
        let css = plot::colour_in_css(*colour);
        let _ = write!(
            text,
            "<span><i style=\"background:{css}\"></i>{}</span> ",
            escape(name)
        );
    }
    if row.panels.iter().any(plot::Panel::has_bands) {
        text.push_str("<span>bands: least to greatest</span>");
    }
    text.push_str("</p>\n<div class=panels>\n");
    for panel in &row.panels {
        let drawn = plot::panel_svg(panel)?
            .replace("#222222", "currentColor")
            .replace("#DDDDDD", "var(--grid)");
        let _ = writeln!(text, "{drawn}");
    }
    text.push_str("</div></figure>\n");
    Ok(text)
}

/// A table that can be moved sideways where the page is narrower.
fn table(head: &str, rows: &str) -> String {
    format!("<div class=wide><table>\n<tr>{head}\n{rows}</table></div>\n")
}

fn page(result: &ResultFile) -> Result<String, Error> {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>File locks: does it scale?</title>\n<style>{STYLE}</style>\n\
         <h1>File locks: does it scale?</h1>\n<p>lockkeeper {} beside the kernel, {} UTC. Means of {} rounds \
         of {} s ({LONGER} times as long from 500 tasks on), bands from the least to the greatest. A lock and an unlock are two operations. What each \
         load and figure means: docs/bench.md.</p>\n",
        escape(&result.program),
        date(result.made),
        result.settings.rounds,
        result.settings.seconds
    );
    machine_facts(&mut page, result);
    let (settings, others): (Vec<Cell>, Vec<Cell>) = result
        .results
        .iter()
        .cloned()
        .partition(|cell| cell.target.starts_with("library "));
    let main = ResultFile {
        results: others,
        ..result.clone()
    };
    page.push_str("<h2>Loads</h2>\n");
    for row in plot::rows_of(&main) {
        page.push_str(&picture(&row)?);
    }
    let _ = writeln!(
        page,
        "<details><summary>All figures</summary><pre>{}</pre></details>",
        escape(&render(&main))
    );
    fairness(&mut page, result, &settings)?;
    if let Some(model) = &result.model {
        show_model(&mut page, model)?;
    }
    page.push_str("</html>\n");
    Ok(page)
}

fn machine_facts(page: &mut String, result: &ResultFile) {
    let machine = &result.machine;
    let place = result.results.iter().find_map(|cell| cell.place.clone());
    let kind = if machine.virtualised {
        "a virtual machine"
    } else {
        "no sign of a hypervisor"
    };
    let mitigations: Vec<String> = machine
        .mitigations
        .iter()
        .filter(|(_, state)| *state != "Not affected")
        .map(|(name, state)| format!("{name}: {state}"))
        .collect();
    page.push_str("<h2>Machine</h2>\n<table>\n");
    for (name, value) in [
        ("kernel", machine.kernel.clone()),
        ("processor", format!("{} ({kind})", machine.cpu)),
        ("cpus", machine.cpus.to_string()),
        ("memory", machine.memory.clone()),
        ("governor", machine.governor.clone()),
        ("the kernel's files", place.unwrap_or_default()),
        ("mitigations", mitigations.join("\n")),
    ] {
        let value = escape(&value).replace('\n', "<br>");
        let _ = writeln!(page, "<tr><th>{name}<td>{value}");
    }
    page.push_str("</table>\n");
}

/// The longest wait beside the throughput, for each setting.
fn fairness(page: &mut String, result: &ResultFile, settings: &[Cell]) -> Result<(), Error> {
    if settings.is_empty() {
        return Ok(());
    }
    let tasks: Vec<u32> = settings.iter().map(|cell| cell.tasks).collect();
    let mut cells: Vec<Cell> = result
        .results
        .iter()
        .filter(|cell| {
            (cell.load, cell.level) == (Load::Lock2, Level::Threads)
                && cell.target.starts_with("library")
                && tasks.contains(&cell.tasks)
        })
        .cloned()
        .collect();
    for cell in &mut cells {
        if cell.target == "library" {
            cell.target = "library bound 1000 (default)".to_owned();
        }
    }
    page.push_str(
        "<h2>Fairness</h2>\n<p>How many newcomers may overtake the waiter that is first in its queue: none, a \
         bound, or any number, as in Linux. The longest wait beside the throughput.</p>\n",
    );
    let only = ResultFile {
        results: cells.clone(),
        ..result.clone()
    };
    for row in plot::rows_of(&only) {
        page.push_str(&picture(&row)?);
    }
    let head = "<th class=n>tasks<th>setting<th class=n>ops/s<th class=n>least served<th class=n>p99 \
                wait<th class=n>longest wait";
    let mut rows = String::new();
    cells.sort_by_key(|cell| cell.tasks);
    for cell in &cells {
        let show = |metric: &str, as_text: fn(f64) -> String| {
            cell.mean(metric).map_or("-".to_owned(), as_text)
        };
        let _ = writeln!(
            rows,
            "<tr><td class=n>{}<td>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}",
            cell.tasks,
            escape(&cell.target),
            show("ops", grouped),
            show("least_served", |value| format!("{value:.2}")),
            show("wait_p99_ns", nanoseconds),
            show("wait_max_ns", nanoseconds)
        );
    }
    page.push_str(&table(head, &rows));
    Ok(())
}

fn show_model(page: &mut String, model: &Model) -> Result<(), Error> {
    let _ = writeln!(page, "<h2>Many cores</h2>\n{}<ul>", picture(&model.row())?);
    for assumption in &model.assumptions {
        let _ = writeln!(page, "<li>{}", escape(assumption));
    }
    page.push_str("</ul>\n");
    let head = "<th>check<th class=n>cores<th class=n>modelled, ops/s<th class=n>measured<th class=n>error";
    let mut rows = String::new();
    for check in &model.checks {
        let error = check.percent_off();
        let _ = writeln!(
            rows,
            "<tr><td>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{error:+.0} %",
            escape(&check.what),
            check.cores,
            grouped(check.modelled),
            grouped(check.measured)
        );
    }
    page.push_str(&table(head, &rows));
    Ok(())
}

/// `2026-11-30 21:05`, of seconds since 1970.
fn date(seconds: u64) -> String {
    let (mut days, of_day) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute) = (of_day / 3600, of_day / 60 % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02}", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::result;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00"),
            (951_782_400, "2000-02-29 00:00"),
            (1_735_689_599, "2024-12-31 23:59"),
            (1_735_689_600, "2025-01-01 00:00"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn a_report_takes_its_place_whole_and_replaces_nothing_but_a_report() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("report");
        let result = result(&[("ops", &[1e6]), ("wait_p99_ns", &[50.0])]);
        let names = || {
            let entries = fs::read_dir(place.path()).expect("readable");
            entries.count()
        };
        drop(Folder::prepare(&path, false).expect("made"));
        assert_eq!(names(), 0, "one that was given up leaves nothing");
        let folder = Folder::prepare(&path, false).expect("made");
        folder.commit(&result).expect("written");
        assert_eq!(names(), 1);
        assert!(is_report(&path));
        assert!(Folder::prepare(&path, false).is_err(), "is there already");
        let folder = Folder::prepare(&path, true).expect("a report may be replaced");
        folder.commit(&result).expect("written");
        assert_eq!(
            ResultFile::load(&path.join(RESULT)).expect("readable"),
            result
        );
        let link = place.path().join("link");
        std::os::unix::fs::symlink("report", &link).expect("made");
        let folder = Folder::prepare(&link, true).expect("a report may be replaced");
        folder.commit(&result).expect("written");
        assert!(link.is_symlink() && is_report(&path) && !path.is_symlink());
        fs::remove_file(link).expect("it is there");
        assert_eq!(names(), 1);
        let folder = Folder::prepare(&path, true).expect("a report may be replaced");
        fs::write(path.join("notes"), "mine").expect("written");
        assert!(folder.commit(&result).is_err(), "meanwhile it is no report");
        assert!(path.join("notes").exists() && names() == 1);
        assert!(
            Folder::prepare(&path, true).is_err(),
            "holds what is not ours"
        );
    }

    #[test]
    fn a_page_has_its_pictures_inside_and_the_pages_colours() {
        let result = result(&[("ops", &[1e6]), ("wait_p99_ns", &[50.0])]);
        let page = page(&result).expect("made");
        assert!(page.contains("<svg") && page.contains("currentColor"));
        assert!(page.contains("prefers-color-scheme: dark"));
        for outside in ["src=", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
