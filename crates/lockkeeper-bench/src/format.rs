//! The result: what a run measured, as a file that later runs are compared with (docs/bench.md).

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::load::{Level, Load};
use crate::machine::Machine;
use crate::model::Model;

/// What the field `format` says.
pub const FORMAT: &str = "lockkeeper-bench";

/// What the field `version` says. It is raised when a reader of the old one would misunderstand a file.
pub const VERSION: u32 = 1;

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
        let text = fs::read_to_string(path).map_err(|source| Error::File {
            what: "read",
            path: path.to_owned(),
            source,
        })?;
        ResultFile::parse(&text).map_err(|why| Error::NoResult {
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
        serde_json::from_value(value).map_err(|error| format!("is a broken result: {error}"))
    }

    /// The text of the file.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("maps of names to numbers are JSON") + "\n"
    }
}

/// A file to be written at the end, of which it is known at the beginning that it can be.
pub struct Output {
    temporary: tempfile::NamedTempFile,
    path: PathBuf,
}

impl Output {
    /// Makes a temporary file beside `path`, whose place it takes when it is complete.
    ///
    /// # Errors
    /// The folder cannot be written in, or `path` is a folder.
    pub fn prepare(path: &Path) -> Result<Output, Error> {
        let failed = |source| Error::File {
            what: "write",
            path: path.to_owned(),
            source,
        };
        if path.is_dir() {
            return Err(failed(std::io::ErrorKind::IsADirectory.into()));
        }
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let temporary = tempfile::Builder::new()
            .prefix(".lockkeeper-bench-")
            .permissions(fs::Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(failed)?;
        Ok(Output {
            temporary,
            path: path.to_owned(),
        })
    }

    /// Writes the file, whole.
    ///
    /// # Errors
    /// What the file system said; nothing has changed then.
    pub fn commit(mut self, content: &[u8]) -> Result<(), Error> {
        let path = self.path;
        let failed = |source| Error::File {
            what: "write",
            path: path.clone(),
            source,
        };
        self.temporary.write_all(content).map_err(failed)?;
        self.temporary
            .persist(&path)
            .map_err(|error| failed(error.error))?;
        Ok(())
    }
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
        let good = result(&[]).to_json();
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
        assert!(Output::prepare(folder.path()).is_err(), "a folder");
        assert!(Output::prepare(&folder.path().join("none/out")).is_err());
    }
}
