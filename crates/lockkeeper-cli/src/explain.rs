//! `lockkeeper explain`: why a process waits, and what to do.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use lockkeeper_watch::explain::{Machine, explain};
use lockkeeper_watch::process;

use crate::screen;
use crate::target::Target;

/// What `lockkeeper explain` takes.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// A mount point, its source or status socket, or any other folder, of which the kernel tells
    #[arg(value_name = "MOUNTPOINT|FOLDER")]
    place: PathBuf,
    /// The process
    pid: u32,
}

/// Explains it.
///
/// # Errors
/// No such place or process, no permission, or no server.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let pid = arguments.pid;
    let reports = Target::find(Some(&arguments.place))?.reports()?;
    let mut paragraphs = Vec::new();
    for report in &reports {
        match explain(report, pid, &Machine::now()) {
            Some(told) => paragraphs.extend(told),
            None if process::exists(pid) => bail!("process {pid} cannot be seen from here"),
            None => bail!("there is no process {pid}"),
        }
    }
    screen::print(&(paragraphs.join("\n\n") + "\n"))?;
    Ok(ExitCode::SUCCESS)
}
