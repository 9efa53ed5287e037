//! `lockkeeper top`: a live screen of the most contended files of a mount.
//!
//! Three threads tell the main one what happens, over one channel: keys, signals, and what the server says
//! ([`feed`]). The main thread keeps the [`state`], draws it ([`draw`]) and asks for the next report once a
//! second; while the screen is paused it asks nothing. The terminal is given back as it was however this ends
//! ([`terminal`]).

mod draw;
mod feed;
mod state;
mod terminal;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use crossterm::event::{self, KeyEventKind};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use feed::Feed;
use state::{Pressed, State};

use crate::screen;

/// The least time between two questions.
const SECOND: Duration = Duration::from_secs(1);
/// A question is followed by so many times the length of its answer without one.
const REST: u32 = 10;

/// What `lockkeeper top` takes.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// A mount point, its source, or a status socket (default: the only mount)
    #[arg(value_name = "MOUNTPOINT")]
    target: Option<PathBuf>,
}

/// What the main thread is told.
enum Event {
    Key(event::KeyEvent),
    Resized,
    Signal(i32),
    Report(anyhow::Result<Box<lockkeeper_watch::report::Report>>),
    /// The keyboard is gone.
    NoInput(io::Error),
}

/// Shows the screen until the user, a signal or the server ends it.
///
/// # Errors
/// No terminal, no such mount, no permission, or a server that is gone.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("top draws on a terminal, and this is none; `lockkeeper locks` prints what there is");
    }
    if !screen::obeys_commands() {
        bail!(
            "top draws on the whole terminal, and this one (TERM=dumb) cannot be drawn on; `lockkeeper locks --watch` \
             prints what there is"
        );
    }
    // Before the screen is taken: what is wrong is best read on the old one.
    let server = crate::server::Server::find(arguments.target.as_deref())?;
    let first = server.ask()?;
    let (sender, events) = mpsc::channel();
    catch_signals(sender.clone())?;
    let feed = Feed::start(server, sender.clone())?;
    let taken = terminal::Taken::take().context("cannot take the terminal")?;
    read_keys(sender)?;
    let mut screen = Terminal::new(CrosstermBackend::new(io::stdout()))?;
    let mut state = State::new(first, Instant::now(), draw::Look::from_environment());
    let end = follow(&mut screen, &mut state, &events, &feed);
    drop(taken);
    end
}

/// Draws and listens until something ends it.
fn follow(
    screen: &mut Terminal<CrosstermBackend<io::Stdout>>,
    state: &mut State,
    events: &mpsc::Receiver<Event>,
    feed: &Feed,
) -> anyhow::Result<ExitCode> {
    let mut ask_at = Some(Instant::now() + SECOND);
    let mut asked_at = Instant::now();
    loop {
        screen.draw(|frame| draw::draw(frame, state))?;
        let event = match question_at(state, ask_at) {
            Some(at) => events.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Err(RecvTimeoutError::Timeout) => {
                feed.ask();
                asked_at = Instant::now();
                ask_at = None;
            }
            Err(RecvTimeoutError::Disconnected) => bail!("nothing can be heard any more"),
            Ok(Event::Key(key)) => match state.press(key) {
                Pressed::Quit => return Ok(ExitCode::SUCCESS),
                Pressed::Interrupt => return Ok(died_of(SIGINT)),
                Pressed::Handled => {}
            },
            Ok(Event::Resized) => {}
            Ok(Event::Signal(signal)) => return Ok(died_of(signal)),
            Ok(Event::NoInput(error)) => {
                return Err(error).context("cannot read from the terminal");
            }
            Ok(Event::Report(report)) => {
                // However many locks there are, asking takes a small part of the server's time.
                let rest = asked_at.elapsed() * REST;
                ask_at = Some(Instant::now() + rest.max(SECOND));
                state.update(*report?, Instant::now());
            }
        }
    }
}

/// When to ask next: not while a question is under way, nor while the screen is paused.
fn question_at(state: &State, ask_at: Option<Instant>) -> Option<Instant> {
    ask_at.filter(|_| !state.is_paused())
}

/// The status by which a shell knows that a signal ended a program.
fn died_of(signal: i32) -> ExitCode {
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(1))
}

fn catch_signals(events: mpsc::Sender<Event>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot catch signals")?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if events.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })?;
    Ok(())
}

fn read_keys(events: mpsc::Sender<Event>) -> anyhow::Result<()> {
    std::thread::Builder::new()
        .name("keys".into())
        .spawn(move || {
            loop {
                let event = match event::read() {
                    Ok(event::Event::Key(key)) if key.kind != KeyEventKind::Release => {
                        Event::Key(key)
                    }
                    Ok(event::Event::Resize(..)) => Event::Resized,
                    Ok(_) => continue,
                    Err(error) => {
                        let _ = events.send(Event::NoInput(error));
                        return;
                    }
                };
                if events.send(event).is_err() {
                    return;
                }
            }
        })?;
    Ok(())
}

#[cfg(test)]
mod tests;
