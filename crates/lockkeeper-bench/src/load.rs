//! Loads: what tasks do to the locks of a file, and the words for them.

use std::fmt;
use std::str::FromStr;

use lockkeeper::Fairness;
use serde::{Deserialize, Serialize};

/// What tasks do in a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// Each task locks and unlocks one byte of a file of its own, as will-it-scale's lock1.
    Lock1,
    /// All tasks lock and unlock the same byte of one file, as will-it-scale's lock2.
    Lock2,
    /// All tasks take a shared lock on one byte; one more takes it exclusively once a second.
    Readers,
    /// Each task locks a byte of its own in one file, in which others hold ranges.
    Ranges,
    /// All tasks wait for one lock; it is released, and each passes it on.
    Herd,
    /// The tasks wait for each other in a chain; the last asks for what closes it.
    Chain,
    /// All tasks take the same file's lock with flock(2).
    Flock,
    /// All tasks lock the same byte with open-file-description locks.
    Ofd,
    /// All tasks open a file on which one more holds a lease; when all have closed it, he takes it again.
    Lease,
}

impl Load {
    /// Every load, as help texts list them.
    pub const ALL: [Load; 9] = [
        Load::Lock1,
        Load::Lock2,
        Load::Readers,
        Load::Ranges,
        Load::Herd,
        Load::Chain,
        Load::Flock,
        Load::Ofd,
        Load::Lease,
    ];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Load::Lock1 => "lock1",
            Load::Lock2 => "lock2",
            Load::Readers => "readers",
            Load::Ranges => "ranges",
            Load::Herd => "herd",
            Load::Chain => "chain",
            Load::Flock => "flock",
            Load::Ofd => "ofd",
            Load::Lease => "lease",
        }
    }

    /// One line on what the tasks do.
    pub fn about(self) -> &'static str {
        match self {
            Load::Lock1 => "each task its own file",
            Load::Lock2 => "all tasks one byte of one file",
            Load::Readers => "all tasks share one byte, one writer a second",
            Load::Ranges => "each task its own byte of one file, beside ranges that are held",
            Load::Herd => "all tasks wait for one lock, each passes it on",
            Load::Chain => "tasks wait in a chain, and the last is refused with EDEADLK",
            Load::Flock => "all tasks one file's flock",
            Load::Ofd => "all tasks one byte, locks of open file descriptions",
            Load::Lease => "all tasks open one file against a lease",
        }
    }

    /// Whether one task more is at work: the writer, the holder of ranges, of the lock, of the lease.
    pub fn has_helper(self) -> bool {
        matches!(
            self,
            Load::Readers | Load::Ranges | Load::Herd | Load::Lease
        )
    }

    /// Whether tasks go round until they are stopped, and their rate is what is measured.
    pub fn is_loop(self) -> bool {
        !matches!(self, Load::Herd | Load::Chain)
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Load, String> {
        let found = Load::ALL.into_iter().find(|load| load.name() == text);
        found.ok_or_else(|| {
            let names = Load::ALL.map(Load::name).join(", ");
            format!("there is no load `{text}`; there are {names}")
        })
    }
}

/// What a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A process of its own.
    Processes,
    /// A thread of one process.
    Threads,
}

impl Level {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Level::Processes => "processes",
            Level::Threads => "threads",
        }
    }

    /// will-it-scale's name for the operations of one task in a second.
    pub fn ops_metric(self) -> &'static str {
        match self {
            Level::Processes => "per_process_ops",
            Level::Threads => "per_thread_ops",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Level, String> {
        match text {
            "processes" => Ok(Level::Processes),
            "threads" => Ok(Level::Threads),
            _ => Err(format!("tasks are `processes` or `threads`, not `{text}`")),
        }
    }
}

/// The library's fairness setting, as the command line says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct FairnessSetting(pub Fairness);

impl fmt::Display for FairnessSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Fairness::Unlimited => f.write_str("unlimited"),
            Fairness::FIFO => f.write_str("first-come"),
            Fairness::Bounded(bound) => write!(f, "bound {bound}"),
        }
    }
}

impl FromStr for FairnessSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<FairnessSetting, String> {
        let fairness = match text.trim() {
            "unlimited" => Fairness::Unlimited,
            "first-come" => Fairness::FIFO,
            bound => {
                let number = bound
                    .strip_prefix("bound")
                    .map_or(bound, |rest| rest.trim_start_matches([' ', ':', '=']));
                Fairness::Bounded(number.parse().map_err(|_| {
                    format!("fairness is `first-come`, `unlimited` or `bound N`, not `{text}`")
                })?)
            }
        };
        Ok(FairnessSetting(fairness))
    }
}

impl From<FairnessSetting> for String {
    fn from(setting: FairnessSetting) -> String {
        setting.to_string()
    }
}

impl TryFrom<String> for FairnessSetting {
    type Error = String;

    fn try_from(text: String) -> Result<FairnessSetting, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_known_by_its_name_alone() {
        for load in Load::ALL {
            assert_eq!(load.name().parse(), Ok(load));
        }
        let refused = "lock3".parse::<Load>();
        assert!(refused.is_err_and(|said| said.contains("lock1, lock2")));
    }

    #[test]
    fn a_fairness_setting_is_read_as_it_is_printed() {
        for (text, expected) in [
            ("first-come", Fairness::Bounded(0)),
            ("unlimited", Fairness::Unlimited),
            ("bound 100", Fairness::Bounded(100)),
            ("bound:7", Fairness::Bounded(7)),
            ("bound=7", Fairness::Bounded(7)),
            ("12", Fairness::Bounded(12)),
        ] {
            let setting: FairnessSetting = text.parse().expect(text);
            assert_eq!(setting.0, expected, "{text}");
            assert_eq!(setting.to_string().parse(), Ok(setting), "{text}");
        }
        for text in ["", "bound", "bound -1", "fair", "4294967296"] {
            assert!(text.parse::<FairnessSetting>().is_err(), "{text}");
        }
    }
}
