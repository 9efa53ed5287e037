//! The lockkeeper command line.

#![deny(missing_docs)]

mod bench;
mod differ;
mod doctor;
mod explain;
mod locks;
mod metrics;
mod mount;
mod mount_listing;
mod page;
mod place;
mod replay;
mod screen;
mod server;
mod target;
mod top;
mod tree;

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
    /// Show a folder elsewhere, with its file locks served by lockkeeper
    Mount(mount::Arguments),
    /// Show who holds locks on a mount, and who waits
    Locks(locks::Arguments),
    /// Watch the most contended files of a mount, live
    Top(top::Arguments),
    /// Draw who waits beneath whom, on a mount or any folder
    Tree(tree::Arguments),
    /// Say in plain words why a process waits, and what to do
    Explain(explain::Arguments),
    /// Print a mount's metrics, as Prometheus reads them
    Metrics(metrics::Arguments),
    /// Say what this machine can do for a mount, and what to install
    Doctor(doctor::Arguments),
    /// Run lock scripts and compare what each call returns
    Replay(replay::Arguments),
    /// Run random lock scripts on a directory and on the library, and compare all that can be seen
    Differ(differ::Arguments),
    /// Measure loads of locks on the library, a kernel and mounts, side by side
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    // Actors of lock scripts and tasks of benchmarks are this program, started again.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(first) if first == lockkeeper_script::directory::ACTOR_COMMAND => {
            return lockkeeper_script::directory::actor_main(arguments);
        }
        Some(first) if first == bench::GROUP_COMMAND => {
            let group = arguments.next().unwrap_or_default();
            return lockkeeper_bench::group::main(&group.to_string_lossy());
        }
        Some(first) if first == bench::ERRAND_COMMAND => {
            let errand = arguments.next().unwrap_or_default();
            return lockkeeper_bench::errand::main(&errand.to_string_lossy());
        }
        Some(first) if first == bench::CACHE_LINES_COMMAND => {
            let how = arguments.next().unwrap_or_default();
            return lockkeeper_bench::cache_lines::main(&how.to_string_lossy());
        }
        _ => {}
    }
    // mount(8) calls its helpers by their name.
    let cli = match mount::helper_arguments(std::env::args_os()) {
        Some(arguments) => Cli::parse_from(arguments),
        None => Cli::parse(),
    };
    let result = match cli.command {
        Command::Mount(arguments) => mount::run(&arguments),
        Command::Locks(arguments) => locks::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Tree(arguments) => tree::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Metrics(arguments) => metrics::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Differ(arguments) => differ::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}
