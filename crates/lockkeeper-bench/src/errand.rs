//! Errands: whatever is done in a target's folder, by a process of its own.
//!
//! Who asks a file system whose server hangs may never come back, and no signal reaches him there. So the
//! bench itself asks none: it starts this program again for each errand, and waits as long as it will.

use std::io::{self, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::folder;
use crate::pipe::{Patience, read_line, told, write_line};
use crate::run::Program;
use crate::target::{Probed, look};

/// What is to be done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Errand {
    /// Remove what dead benches left in a folder, and see what its file system can do.
    Look(PathBuf),
    /// Make a folder, and files in it.
    Make {
        /// The folder.
        path: PathBuf,
        /// Names.
        files: Vec<String>,
    },
    /// Remove a folder and all that is in it.
    Remove(PathBuf),
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// What a look found.
    Found(Probed),
    /// It failed.
    Failed {
        /// What the system said.
        said: String,
        /// Its number.
        errno: i32,
    },
}

impl Errand {
    fn path(&self) -> &Path {
        match self {
            Errand::Look(path) | Errand::Make { path, .. } | Errand::Remove(path) => path,
        }
    }

    fn perform(&self) -> io::Result<Answer> {
        match self {
            Errand::Look(path) => look(path).map(Answer::Found),
            Errand::Make { path, files } => folder::make(path, files).map(|()| Answer::Done),
            Errand::Remove(path) => std::fs::remove_dir_all(path).map(|()| Answer::Done),
        }
    }

    /// Has it done. With `stop`, the user can end the wait.
    ///
    /// # Errors
    /// It failed, or was not done in time.
    pub fn run(
        &self,
        program: &Program,
        within: Duration,
        stop: Option<&AtomicBool>,
    ) -> Result<Answer, Error> {
        let starting = "start this program again";
        let argument = serde_json::to_string(self).expect("paths have been checked to be text");
        let mut child = Command::new(&program.path)
            .args([&program.errand_command, &argument])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // The terminal's Ctrl-C is for the bench.
            .process_group(0)
            .spawn()
            .map_err(Error::start(starting))?;
        let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
        let patience = Patience::new(stop, self.path(), within);
        let line = read_line(&mut out, || patience.check());
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                let _ = child.kill();
                std::thread::sleep(Duration::from_millis(50));
                // It may hang where no signal reaches it; then whoever inherits it reaps it.
                let _ = child.try_wait();
                return Err(error);
            }
        };
        let status = child.wait().map_err(Error::system("wait for a process"))?;
        let path = || self.path().to_owned();
        match serde_json::from_str(&line) {
            Ok(Answer::Failed { said, errno }) => Err(match errno {
                libc::ENOTCONN | libc::ESTALE => Error::Dead { path: path(), said },
                _ => Error::Place {
                    path: path(),
                    source: io::Error::from_raw_os_error(errno),
                },
            }),
            Ok(answer) => Ok(answer),
            Err(_) => Err(Error::Task(format!(
                "who was sent to {} did not report: {status}",
                self.path().display()
            ))),
        }
    }
}

/// What the hidden command does: one errand, from its JSON.
pub fn main(argument: &str) -> ExitCode {
    let Some(errand) = told::<Errand>(argument) else {
        return ExitCode::from(2);
    };
    // What is to be removed is removed, even if the bench is killed meanwhile.
    if !matches!(errand, Errand::Remove(_)) {
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    }
    let answer = errand.perform().unwrap_or_else(|error| Answer::Failed {
        said: error.to_string(),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    });
    match write_line(&answer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(2),
    }
}
