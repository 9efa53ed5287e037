//! The result: what a run measured, as a file that later runs are compared with (docs/bench.md).

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{Read, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::load::{Level, Load};
use crate::machine::Machine;
use crate::model::{CORES, Model};
use crate::tasks::MOST_TASKS;

/// What the field `format` says.
pub const FORMAT: &str = "lockkeeper-bench";

/// What the field `version` says. It is raised when a reader of the old one would misunderstand a file.
pub const VERSION: u32 = 1;

/// What a metric can be, if it is not 0: from a wake-up in a year's releases to a century in nanoseconds.
const MEASURABLE: RangeInclusive<f64> = 1e-17..=1e19;

/// More than any run has.
const MOST_CELLS: usize = 100_000;
/// The same of the file's bytes: one that has no end must not take all memory.
const MOST_BYTES: u64 = 256 << 20;
/// The same of a text: a path, and a few words beside it.
const LONGEST_TEXT: usize = 8192;

/// A result file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultFile {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The version of the program that measured.
    pub program: String,
    /// When, in seconds since 1970, UTC.
    pub made: u64,
    /// What was measured on.
    pub machine: Machine,
    /// How it was measured.
    pub settings: Settings,
    /// What was measured.
    pub results: Vec<Cell>,
    /// A model of more cores, in reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
}

/// How a run measures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// How often each target has its turn.
    pub rounds: u32,
    /// How long a turn is measured, in seconds.
    pub seconds: f64,
    /// How long tasks run before it, in seconds.
    pub warm_up: f64,
    /// Whether tasks are pinned to cpus, in order.
    pub affinity: bool,
}

/// One load, at one number of tasks, on one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// What the tasks did.
    pub load: Load,
    /// What the tasks were.
    pub level: Level,
    /// How many.
    pub tasks: u32,
    /// How many ranges were held beside (ranges; else 0).
    pub held: u64,
    /// Who granted the locks: `library`, `library first-come`, `kernel` or `mount /a/b`.
    pub target: String,
    /// Where the files were, on what file system; nothing for the library.
    pub place: Option<String>,
    /// The call that the tasks made.
    pub call: String,
    /// What the tasks really were.
    pub served_by: String,
    /// What was done. Targets are compared where it is the same.
    pub work: String,
    /// What is to be known beside the figures.
    pub notes: Vec<String>,
    /// A value a round.
    pub metrics: BTreeMap<String, Vec<f64>>,
}

impl Cell {
    /// The mean of a metric over the rounds.
    pub fn mean(&self, metric: &str) -> Option<f64> {
        self.metrics.get(metric).and_then(|values| mean(values))
    }

    /// What it is of: `lock2 threads 8 on library`.
    pub fn name(&self) -> String {
        format!("{} on {}", self.what(), self.target)
    }

    /// What it is of, but for the target: `lock2 threads 8`.
    pub fn what(&self) -> String {
        let Cell {
            load,
            level,
            tasks,
            held,
            ..
        } = self;
        match load {
            Load::Ranges => format!("{load} held={held} {level} {tasks}"),
            _ => format!("{load} {level} {tasks}"),
        }
    }
}

/// The mean, unless there is no value.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The standard deviation (of the values, as lkp gives it) in percent of the mean.
pub fn stddev_percent(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    if values.len() < 2 || mean == 0.0 {
        return None;
    }
    let variance = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / values.len() as f64;
    Some(100.0 * variance.sqrt() / mean.abs())
}

impl ResultFile {
    /// A result of now and of this machine.
    pub fn new(settings: Settings, results: Vec<Cell>) -> ResultFile {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        ResultFile {
            format: FORMAT.to_owned(),
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            made: now.map_or(0, |time| time.as_secs()),
            machine: Machine::this(),
            settings,
            results,
            model: None,
        }
    }

    /// Reads a result.
    ///
    /// # Errors
    /// It cannot be read, is no JSON, no result, or one of another version.
    pub fn load(path: &Path) -> Result<ResultFile, Error> {
        let mut text = String::new();
        fs::File::open(path)
            .and_then(|file| file.take(MOST_BYTES + 1).read_to_string(&mut text))
            .map_err(|source| Error::File {
                what: "read",
                path: path.to_owned(),
                source,
            })?;
        let result = match text.len() as u64 {
            ..=MOST_BYTES => ResultFile::parse(&text),
            _ => Err("is larger than any result".to_owned()),
        };
        result.map_err(|why| Error::NoResult {
            path: path.to_owned(),
            why,
        })
    }

    fn parse(text: &str) -> Result<ResultFile, String> {
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
        if value["format"] != FORMAT {
            return Err("is not a result of `lockkeeper bench`".to_owned());
        }
        let version = &value["version"];
        if *version != VERSION {
            return Err(format!(
                "is a result of version {version}, and this program reads version {VERSION}: measure again, or \
                 use the lockkeeper that wrote it"
            ));
        }
        if let Some(fault) = fault_of_texts(&value) {
            return Err(format!("is a broken result: {fault}"));
        }
        let result: ResultFile = serde_json::from_value(value)
            .map_err(|error| format!("is a broken result: {error}"))?;
        match result.fault() {
            Some(fault) => Err(format!("is a broken result: {fault}")),
            None => Ok(result),
        }
    }

    /// What no run could have written.
    fn fault(&self) -> Option<String> {
        if self.results.len() > MOST_CELLS {
            return Some(format!(
                "{} results, and {MOST_CELLS} at most",
                self.results.len()
            ));
        }
        let designs = self.model.iter().flat_map(|model| &model.designs);
        if designs
            .clone()
            .any(|design| design.ops.len() != CORES.len())
        {
            return Some("a model of other numbers of cores".to_owned());
        }
        let mut seen = HashSet::new();
        self.results.iter().find_map(|cell| {
            let what = cell.name();
            if !(1..=MOST_TASKS).contains(&cell.tasks) {
                return Some(format!("{what}: {} tasks", cell.tasks));
            }
            let bad = cell.metrics.iter().find(|(_, values)| {
                values.is_empty()
                    || values
                        .iter()
                        .any(|value| *value != 0.0 && !MEASURABLE.contains(value))
            });
            if let Some((name, values)) = bad {
                return Some(format!("{what}: {name:?} is {values:?}"));
            }
            let is_new = seen.insert((cell.load, cell.level, cell.tasks, cell.held, &cell.target));
            (!is_new).then(|| format!("{what} is there twice"))
        })
    }

    /// The text of the file.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("maps of names to numbers are JSON") + "\n"
    }
}

/// What no text of a run has in it: what a terminal would obey, and more than anybody would read. serde_json
/// bounds how deep a document may be.
fn fault_of_texts(value: &serde_json::Value) -> Option<String> {
    use serde_json::Value;
    let of_text = |text: &str| {
        if text.len() > LONGEST_TEXT {
            return Some(format!("a text of {} bytes", text.len()));
        }
        let is_bad = text.chars().any(char::is_control);
        is_bad.then(|| format!("{text:?} has control characters"))
    };
    match value {
        Value::String(text) => of_text(text),
        Value::Array(list) => list.iter().find_map(fault_of_texts),
        Value::Object(fields) => fields
            .iter()
            .find_map(|(name, value)| of_text(name).or_else(|| fault_of_texts(value))),
        _ => None,
    }
}

/// A file to be written at the end, of which it is known at the beginning that it can be.
pub struct Output {
    /// What the user called it.
    name: PathBuf,
    /// Where it really is: behind symbolic links, which stay.
    place: PathBuf,
}

impl Output {
    /// Looks whether a file can be made beside `path`. None is left: a run that is killed leaves nothing.
    ///
    /// # Errors
    /// The folder cannot be written in, or something at `path` is no regular file.
    pub fn prepare(path: &Path) -> Result<Output, Error> {
        let failed = |source| Error::File {
            what: "write",
            path: path.to_owned(),
            source: plain(source),
        };
        let place = behind_links(path).map_err(failed)?;
        match place.metadata() {
            Ok(there) if there.is_dir() => {
                return Err(failed(std::io::ErrorKind::IsADirectory.into()));
            }
            // Its place would be taken, be it /dev/null.
            Ok(there) if !there.is_file() => {
                return Err(Error::Refused(format!(
                    "{} is no regular file; `--json` prints a result",
                    path.display()
                )));
            }
            _ => {}
        }
        let output = Output {
            name: path.to_owned(),
            place,
        };
        output.temporary().map_err(failed)?;
        Ok(output)
    }

    fn temporary(&self) -> std::io::Result<tempfile::NamedTempFile> {
        let mode = self.place.metadata().map_or(0o666, |there| there.mode());
        tempfile::Builder::new()
            .prefix(".lockkeeper-bench-")
            .permissions(fs::Permissions::from_mode(mode & 0o777))
            .tempfile_in(folder_of(&self.place))
    }

    /// Writes the file, whole.
    ///
    /// # Errors
    /// What the file system said; nothing has changed then.
    pub fn commit(self, content: &[u8]) -> Result<(), Error> {
        let write = || {
            let mut temporary = self.temporary()?;
            temporary.write_all(content)?;
            temporary.persist(&self.place)?;
            Ok(())
        };
        write().map_err(|source| Error::File {
            what: "write",
            path: self.name.clone(),
            source: plain(source),
        })
    }
}

/// The error without the name of a temporary file, which says nothing to a user: tempfile puts it behind.
pub(crate) fn plain(error: std::io::Error) -> std::io::Error {
    match error.to_string().split_once(" at path ") {
        Some((said, _)) => std::io::Error::new(error.kind(), said.to_owned()),
        None => error,
    }
}

/// The folder that something is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Where a path leads, whether or not there is anything.
pub(crate) fn behind_links(path: &Path) -> std::io::Result<PathBuf> {
    // As many as Linux follows.
    let mut path = path.to_owned();
    for _ in 0..40 {
        match path.read_link() {
            Ok(target) => path = folder_of(&path).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A result of one cell whose metrics have these values.
    pub(crate) fn result(metrics: &[(&str, &[f64])]) -> ResultFile {
        let cell = Cell {
            load: Load::Lock2,
            level: Level::Threads,
            tasks: 2,
            held: 0,
            target: "library".into(),
            place: None,
            call: String::new(),
            served_by: String::new(),
            work: String::new(),
            notes: Vec::new(),
            metrics: metrics
                .iter()
                .map(|(name, values)| ((*name).to_owned(), values.to_vec()))
                .collect(),
        };
        let settings = Settings {
            rounds: 1,
            seconds: 1.0,
            warm_up: 0.0,
            affinity: true,
        };
        ResultFile::new(settings, vec![cell])
    }

    #[test]
    fn a_result_is_read_as_it_was_written() {
        let result = result(&[("per_thread_ops", &[1.5, 2.5])]);
        assert_eq!(ResultFile::parse(&result.to_json()), Ok(result));
    }

    #[test]
    fn what_is_no_result_is_refused_with_the_reason() {
        let mut twice = result(&[("ops", &[12.5])]);
        let good = twice.to_json();
        twice.results.push(twice.results[0].clone());
        for (text, said) in [
            (String::new(), "is not JSON"),
            ("ops: 12".into(), "is not JSON"),
            (good[..good.len() / 2].into(), "is not JSON"),
            ("[]".into(), "is not a result"),
            ("{}".into(), "is not a result"),
            (r#"{"format": "fio"}"#.into(), "is not a result"),
            (
                good.replace("\"version\": 1", "\"version\": 2"),
                "of version 2",
            ),
            (
                good.replace("\"version\": 1", "\"version\": \"1\""),
                "of version",
            ),
            (
                good.replace("\"results\"", "\"rows\""),
                "is a broken result",
            ),
            (good.replace("\"lock2\"", "\"lock9\""), "is a broken result"),
            (good.replace("\"tasks\": 2", "\"tasks\": 0"), "0 tasks"),
            (good.replace("\"tasks\": 2", "\"tasks\": -2"), "broken"),
            (good.replace("12.5", "-1"), "\"ops\" is [-1.0]"),
            (good.replace("12.5", "1e20"), "\"ops\" is"),
            (good.replace("12.5", "1e-320"), "\"ops\" is"),
            (good.replace("12.5", "1e400"), "number out of range"),
            (good.replace("12.5", "NaN"), "is not JSON"),
            (good.replace("12.5", "null"), "broken"),
            (good.replace("12.5", ""), "\"ops\" is []"),
            (
                good.replace("\"library\"", "\"\\u001b[2J\""),
                "control characters",
            ),
            (
                good.replace("\"governor\": \"", "\"governor\": \"\\u0007"),
                "control characters",
            ),
            (
                good.replace("\"ops\"", "\"\\u001b[2J\""),
                "control characters",
            ),
            (
                good.replace(
                    "\"library\"",
                    &format!("{:?}", "x".repeat(LONGEST_TEXT + 1)),
                ),
                "a text of 8193 bytes",
            ),
            (twice.to_json(), "is there twice"),
        ] {
            let refused = ResultFile::parse(&text).expect_err(said);
            assert!(refused.contains(said), "{said}: {refused}");
        }
    }

    #[test]
    fn spread_is_in_percent_of_the_mean() {
        assert_eq!(mean(&[]), None);
        assert_eq!(stddev_percent(&[]), None);
        assert_eq!(stddev_percent(&[5.0]), None);
        assert_eq!(stddev_percent(&[0.0, 0.0]), None);
        assert_eq!(stddev_percent(&[90.0, 110.0]), Some(10.0));
        assert_eq!(stddev_percent(&[-90.0, -110.0]), Some(10.0));
    }

    #[test]
    fn an_output_is_whole_or_not_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.json");
        let count = || fs::read_dir(folder.path()).expect("readable").count();
        drop(Output::prepare(&path).expect("a place"));
        assert_eq!(count(), 0, "an output that was given up leaves nothing");
        let output = Output::prepare(&path).expect("a place");
        output.commit(b"all").expect("written");
        assert_eq!(fs::read(&path).expect("readable"), b"all");
        assert_eq!(count(), 1);
        let link = folder.path().join("link");
        for (target, there) in [("out.json", "out.json"), ("new.json", "new.json")] {
            std::os::unix::fs::symlink(target, &link).expect("made");
            let output = Output::prepare(&link).expect("a place");
            output.commit(there.as_bytes()).expect("written");
            let written = fs::read_to_string(folder.path().join(there)).expect("readable");
            assert_eq!(written, there, "what a link names is written");
            fs::remove_file(&link).expect("the link is there still");
        }
        std::os::unix::fs::symlink("link", &link).expect("made");
        assert!(Output::prepare(&link).is_err(), "a loop");
        let device = Output::prepare(Path::new("/dev/null"));
        assert!(device.is_err(), "whose place would be taken");
        assert!(Output::prepare(folder.path()).is_err(), "a folder");
        assert!(Output::prepare(&folder.path().join("none/out")).is_err());
    }
}
