//! The places on which lock scripts run: the library, or a directory.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use lockkeeper::Fairness;
use lockkeeper_script::Executor;
use lockkeeper_script::directory::{Directory, Options};
use lockkeeper_script::library::Library;

/// How the library is named among the places.
const LIBRARY: &str = "library";

/// Where a script runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The library's own table, in this process.
    Library,
    /// A folder of a file system, by real processes.
    Directory(PathBuf),
}

impl FromStr for Place {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            LIBRARY => Self::Library,
            directory => Self::Directory(directory.into()),
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library => f.write_str(LIBRARY),
            Self::Directory(directory) => write!(f, "{}", directory.display()),
        }
    }
}

impl Place {
    /// The executor for this place. With `strict`, a directory decides by the clock alone that a call is
    /// blocked.
    ///
    /// # Errors
    /// The place cannot be used.
    pub fn executor(&self, strict: bool) -> anyhow::Result<Box<dyn Executor>> {
        match self {
            Self::Library => Ok(Box::new(Library::new(Fairness::Unlimited))),
            Self::Directory(directory) if !directory.is_dir() => {
                let name = directory.to_string_lossy();
                let meant = match strsim::damerau_levenshtein(&name, LIBRARY) <= 2 {
                    true => "; did you mean `library`?",
                    false => "",
                };
                bail!("{name} is neither `{LIBRARY}` nor a folder{meant}")
            }
            Self::Directory(directory) => Ok(Box::new(on_directory(directory, strict)?)),
        }
    }
}

/// The executor for a folder of a file system.
///
/// # Errors
/// The folder cannot be used.
pub fn on_directory(directory: &Path, strict: bool) -> anyhow::Result<Directory> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let options = Options {
        strict,
        ..Options::new(program)
    };
    crate::mount_listing::directory_on(directory, options)
}
