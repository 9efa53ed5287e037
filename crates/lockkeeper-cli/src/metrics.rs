//! `lockkeeper metrics`: the numbers of a mount, as Prometheus reads them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::screen;
use crate::target::Target;

/// What `lockkeeper metrics` takes.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// A mount point, its source or its status socket
    #[arg(value_name = "MOUNTPOINT")]
    mount: PathBuf,
}

/// Prints them.
///
/// # Errors
/// No such mount, no permission, or no server.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    screen::print(&Target::find(Some(&arguments.mount))?.metrics()?)?;
    Ok(ExitCode::SUCCESS)
}
