//! The lockkeeper command line.

#![deny(missing_docs)]

mod place;
mod replay;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// File locks of Linux: served, shown and tested.
#[derive(Parser)]
#[command(name = "lockkeeper", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run lock scripts and compare what each call returns
    Replay(replay::Arguments),
}

fn main() -> ExitCode {
    // Actors of lock scripts are this program, started again.
    let mut arguments = std::env::args_os().skip(1);
    if arguments
        .next()
        .is_some_and(|first| first == lockkeeper_script::directory::ACTOR_COMMAND)
    {
        return lockkeeper_script::directory::actor_main(arguments);
    }
    let result = match Cli::parse().command {
        Command::Replay(arguments) => replay::run(&arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}
