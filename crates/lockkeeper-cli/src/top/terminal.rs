//! The terminal: taken for the screen, and given back as it was.
//!
//! Given back when [`Taken`] is dropped, and by the hook of a panic, before its message: written to the screen
//! that goes away, nobody would read it. A panic of another thread ends the program at once, as the main one
//! would go on drawing.

use std::io::{self, Write};
use std::panic;

use crossterm::cursor::{Hide, Show};
use crossterm::execute;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

/// The terminal is ours for as long as this lives.
pub struct Taken(());

impl Taken {
    /// Takes it: a screen of its own, keys as they are pressed, no cursor.
    ///
    /// # Errors
    /// If it cannot be set so. Then it is as it was.
    pub fn take() -> io::Result<Taken> {
        let main = std::thread::current().id();
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            give_back();
            before(panicked);
            if std::thread::current().id() != main {
                std::process::exit(101);
            }
        }));
        enable_raw_mode()?;
        let taken = Taken(());
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives it back; does no harm a second time.
fn give_back() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = io::stdout().flush();
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use portable_pty::{CommandBuilder, PtySize, native_pty_system};

    use super::*;

    /// Tells the test below, started again on a terminal of its own, which thread panics.
    const PANICS: &str = "LOCKKEEPER_TEST_PANICS";

    #[test]
    fn a_panic_gives_the_terminal_back() {
        match std::env::var(PANICS).as_deref() {
            Ok("here") => {
                let _taken = Taken::take().expect("a terminal");
                panic!("as told");
            }
            Ok(_) => {
                let _taken = Taken::take().expect("a terminal");
                let thread = std::thread::spawn(|| panic!("as told"));
                let _ = thread.join();
                println!("went on");
            }
            Err(_) => {
                for place in ["here", "elsewhere"] {
                    on_a_terminal(place);
                }
            }
        }
    }

    fn on_a_terminal(place: &str) {
        let size = PtySize {
            rows: 24,
            cols: 100,
            pixel_width: 0,
            pixel_height: 0,
        };
        let pair = native_pty_system().openpty(size).expect("a terminal");
        let settings = || format!("{:?}", pair.master.get_termios());
        let before = settings();
        let mut command = CommandBuilder::new(std::env::current_exe().expect("this program"));
        command.args([
            "top::terminal::tests::a_panic_gives_the_terminal_back",
            "--exact",
            "--nocapture",
        ]);
        command.env(PANICS, place);
        command.env("RUST_BACKTRACE", "0");
        let mut program = pair.slave.spawn_command(command).expect("starts");
        let mut output = pair.master.try_clone_reader().expect("its output");
        let status = program.wait().expect("ends");
        let after = settings();
        drop(pair.slave);
        let mut screen = vt100::Parser::new(24, 100, 0);
        let mut bytes = [0; 4096];
        // The last of a terminal's output comes as an error.
        while let Ok(read @ 1..) = output.read(&mut bytes) {
            screen.process(&bytes[..read]);
        }
        let text = screen.screen().contents();
        assert_eq!(status.exit_code(), 101, "{place}: {text}");
        assert!(
            text.contains("as told") && !text.contains("went on"),
            "{place}: {text}"
        );
        assert!(
            !screen.screen().alternate_screen() && !screen.screen().hide_cursor(),
            "{place}"
        );
        assert_eq!(after, before, "{place}");
    }
}
