//! Printing: once, or again and again in the same place.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::target::Unmounted;

/// Prints a text. Whoever reads it may stop reading at any time.
///
/// # Errors
/// It cannot be written, but for that.
pub fn print(text: &str) -> anyhow::Result<()> {
    write(text).map(|_| ()).context("cannot print")
}

/// Whether anybody still reads.
fn write(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether there is a terminal that takes more than text: TERM=dumb takes nothing else (term(7)).
pub fn obeys_commands() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

/// The pause between two looks, as it is given on the command line.
///
/// # Errors
/// It is none.
pub fn pause(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|pause| *pause >= Duration::from_millis(100))
        .ok_or_else(|| "not a number of seconds from 0.1 on".into())
}

/// Shows what `look` says, again and again, until a signal, or until nobody reads, or until there is
/// nothing more to see. Nothing is done to the terminal that would have to be undone.
///
/// # Errors
/// What `look` gives, but for the end of a mount.
pub fn watch(
    pause: Duration,
    look: impl Fn() -> anyhow::Result<String>,
) -> anyhow::Result<ExitCode> {
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, is_over.clone()).context("cannot catch signals")?;
    }
    let is_terminal = obeys_commands();
    let mut first = true;
    while !is_over.load(Ordering::Relaxed) {
        let text = match look() {
            Ok(text) => text,
            Err(error) if error.is::<Unmounted>() && !first => {
                eprintln!("{error}.");
                break;
            }
            Err(error) => return Err(error),
        };
        let shown = match is_terminal {
            true => in_place(&text, size(), first),
            false => text,
        };
        if !write(&shown).context("cannot print")? {
            break;
        }
        first = false;
        let until = Instant::now() + pause;
        while !is_over.load(Ordering::Relaxed) && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Rows and columns of the terminal.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
        _ => (24, 80),
    }
}

/// The text over what was there before, as much as fits.
fn in_place(text: &str, (rows, columns): (usize, usize), first: bool) -> String {
    let mut shown = String::from(if first { "\x1b[2J\x1b[H" } else { "\x1b[H" });
    let lines: Vec<&str> = text.lines().collect();
    let room = rows.saturating_sub(1).max(1);
    let fits = lines.len() <= room;
    let count = if fits { lines.len() } else { room - 1 };
    let mut put = |line: &str| {
        shown.extend(line.chars().take(columns));
        shown.push_str("\x1b[K\r\n");
    };
    for line in &lines[..count] {
        put(line);
    }
    if !fits {
        put(&format!("({} more lines)", lines.len() - count));
    }
    shown.push_str("\x1b[J");
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted() {
        let shown = in_place("a\nbcdef\nc\nd\n", (4, 3), false);
        assert_eq!(shown, "\x1b[Ha\x1b[K\r\nbcd\x1b[K\r\n(2 \x1b[K\r\n\x1b[J");
        assert!(in_place("a\n", (24, 80), true).starts_with("\x1b[2J"));
        assert!(!in_place("", (1, 1), false).contains("more"));
    }

    #[test]
    fn pauses_are_not_too_short() {
        assert_eq!(pause("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "soon", "inf", "nan"] {
            assert!(pause(text).is_err(), "{text}");
        }
    }
}
