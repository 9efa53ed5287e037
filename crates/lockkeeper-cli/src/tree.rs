//! `lockkeeper tree`: who waits beneath whom, drawn.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use lockkeeper_watch::tree::{self, Style};
use lockkeeper_watch::words;

use crate::screen;
use crate::target::Target;

/// What `lockkeeper tree` takes.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// A mount point, its source or status socket, or any other folder, of which the kernel tells
    #[arg(value_name = "MOUNTPOINT|FOLDER")]
    place: PathBuf,
    /// A file there: only that one
    file: Option<PathBuf>,
    /// Leave nothing out, however many wait
    #[arg(long)]
    all: bool,
    /// Print it for Graphviz (pipe it into `dot -Tsvg`)
    #[arg(long, conflicts_with_all = ["json", "all"])]
    dot: bool,
    /// Print the documents that docs/mount.md describes, in one array
    #[arg(long, conflicts_with = "all")]
    json: bool,
}

/// Draws it.
///
/// # Errors
/// No such place, no permission, or no server.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let target = Target::find_in(&arguments.place, arguments.file.as_deref())?;
    let reports = target.reports()?;
    let text = if arguments.json {
        words::clean_json(&(serde_json::to_string_pretty(&reports)? + "\n"))
    } else {
        let style = Style {
            unicode: speaks_utf8(|name| std::env::var(name).ok()),
            colour: screen::obeys_commands() && is_unset("NO_COLOR"),
            all: arguments.all,
        };
        let draw = |report| match arguments.dot {
            true => tree::dot(report),
            false => tree::draw(report, style),
        };
        reports.iter().map(draw).collect()
    };
    screen::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// <https://no-color.org>: set to anything but nothing.
fn is_unset(name: &str) -> bool {
    std::env::var_os(name).is_none_or(|value| value.is_empty())
}

/// Whether the locale's characters are UTF-8: the first of these that is set says so (locale(7)).
fn speaks_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .filter_map(variable)
        .find(|value| !value.is_empty());
    locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locale_decides_how_lines_are_drawn() {
        for (set, expected) in [
            (&[("LANG", "de_DE.UTF-8")][..], true),
            (&[("LANG", "de_DE.UTF-8"), ("LC_ALL", "C")], false),
            (&[("LANG", "C"), ("LC_CTYPE", "C.utf8")], true),
            (&[("LC_ALL", ""), ("LANG", "C.UTF-8")], true),
            (&[], false),
        ] {
            let variable = |name: &str| {
                let found = set.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(speaks_utf8(variable), expected, "{set:?}");
        }
    }
}
