//! `lockkeeper top` on a real terminal: what it shows, and that it gives the terminal back.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockkeeper_mount::status::StatusSocket;
use lockkeeper_watch::report::{
    Blocker, FileCounters, FileLocks, Held, Kind, Lock, Mode, Report, Totals, VERSION, Waiting,
};
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// A server that answers on a socket, as a mount does.
struct Server {
    temp: tempfile::TempDir,
    socket: Option<StatusSocket>,
    asked: Arc<Mutex<u64>>,
}

fn lock(pid: u32) -> Lock {
    Lock {
        kind: Kind::Flock,
        mode: Mode::Write,
        start: 0,
        end: None,
        pid,
        command: Some("program".into()),
        owner: pid.into(),
    }
}

/// What it says when it is asked for this time.
fn report(asked: u64) -> Report {
    let file = |inode, name: &str, waiters| FileLocks {
        path: Some(format!("/m/{name}")),
        locks: vec![Held {
            lock: lock(100),
            held_for: Some(4000.0),
            breaking: false,
        }],
        waiters: (0..waiters)
            .map(|number: usize| Waiting {
                lock: lock(200 + number as u32),
                waits_for: Some(65.0),
                overtaken: 0,
                depth: number as u32,
                blocked_by: Some(match number {
                    0 => Blocker::Lock(0),
                    number => Blocker::Waiter(number - 1),
                }),
            })
            .collect(),
        counters: FileCounters {
            acquisitions: 1000 * asked,
            ..FileCounters::default()
        },
        ..FileLocks::new(1, inode)
    };
    Report {
        version: VERSION,
        mountpoint: "/m".into(),
        files: vec![file(1, "quiet\u{1b}[2J\u{202e}", 0), file(2, "busy", 3)],
        totals: Totals {
            acquisitions: 2000 * asked,
            ..Totals::default()
        },
        ..Report::default()
    }
}

impl Server {
    fn start() -> Server {
        let temp = tempfile::Builder::new()
            .prefix("lockkeeper-test-")
            .tempdir()
            .expect("temp folder");
        let asked = Arc::new(Mutex::new(0));
        let counted = asked.clone();
        let socket = StatusSocket::listen(&temp.path().join("socket"), move |_| {
            let mut asked = counted.lock().unwrap_or_else(PoisonError::into_inner);
            *asked += 1;
            report(*asked)
        })
        .expect("listens");
        Server {
            temp,
            socket: Some(socket),
            asked,
        }
    }

    fn path(&self) -> PathBuf {
        self.temp.path().join("socket")
    }

    fn asked(&self) -> u64 {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A program on a terminal of its own.
struct Terminal {
    master: Box<dyn MasterPty + Send>,
    keys: Box<dyn Write + Send>,
    screen: Arc<Mutex<vt100::Parser>>,
    program: Box<dyn Child + Send + Sync>,
    /// Reads what the program writes, and ends when nobody has the terminal open any more.
    reader: JoinHandle<()>,
    before: String,
}

impl Terminal {
    fn run(command: CommandBuilder, rows: u16, cols: u16) -> Terminal {
        let size = PtySize {
            rows,
            cols,
            pixel_width: 0,
            pixel_height: 0,
        };
        let pair = native_pty_system().openpty(size).expect("a terminal");
        let before = format!("{:?}", pair.master.get_termios());
        let program = pair.slave.spawn_command(command).expect("starts");
        let mut output = pair.master.try_clone_reader().expect("its output");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, cols, 0)));
        let shown = screen.clone();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                shown
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .process(&bytes[..read]);
            }
        });
        let keys = pair.master.take_writer().expect("its keys");
        Terminal {
            master: pair.master,
            keys,
            screen,
            program,
            reader,
            before,
        }
    }

    fn top(server: &Server, rows: u16, cols: u16) -> Terminal {
        Terminal::run(top(server), rows, cols)
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("types");
    }

    fn text(&self) -> String {
        self.screen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .screen()
            .contents()
    }

    /// Waits until the screen is so.
    fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so(&self.text()) {
            assert!(
                Instant::now() < deadline,
                "waited in vain for {what}:\n{}",
                self.text()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn shows(&self, text: &str) {
        self.until(text, |screen| screen.contains(text));
    }

    /// Waits for its end; the terminal is as it was. Returns the status and what is left on the screen.
    fn ends(mut self) -> (u32, String) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let status = loop {
            match self.program.try_wait().expect("waits") {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    let _ = self.program.kill();
                    panic!("it does not end:\n{}", self.text());
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        while !self.reader.is_finished() {
            assert!(
                Instant::now() < deadline,
                "the terminal stays open:\n{}",
                self.text()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let text = self.text();
        {
            let parser = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
            assert!(!parser.screen().alternate_screen(), "{text}");
            assert!(!parser.screen().hide_cursor(), "{text}");
        }
        assert_eq!(format!("{:?}", self.master.get_termios()), self.before);
        (status.exit_code(), text)
    }
}

fn top(server: &Server) -> CommandBuilder {
    let mut command = CommandBuilder::new(PROGRAM);
    command.arg("top");
    command.arg(server.path());
    command.env("TERM", "xterm-256color");
    command.env_remove("NO_COLOR");
    command
}

#[test]
fn it_shows_sorts_opens_and_quits() {
    let server = Server::start();
    let mut terminal = Terminal::top(&server, 24, 80);
    terminal.shows("busy");
    // The second report has come: there are rates.
    terminal.until("rates", |screen| {
        screen.contains("/s granted") && !screen.contains("-/s granted")
    });
    assert!(
        terminal.text().contains(r"quiet\x1b[2J\xe2\x80\xae"),
        "{}",
        terminal.text()
    );
    terminal.press("\r");
    terminal.shows("waits program 202");
    terminal.shows("holds program 100");
    terminal.press("\u{1b}");
    terminal.shows("quiet");
    terminal.press("/qui");
    terminal.until("the filter", |screen| {
        screen.contains("Filter: qui_") && !screen.contains("busy")
    });
    terminal.press("\r?");
    terminal.shows(" Keys ");
    terminal.press("xq");
    let (status, left) = terminal.ends();
    assert_eq!((status, left.trim()), (0, ""));
}

#[test]
fn a_pause_ends_and_questions_go_on() {
    let server = Server::start();
    let mut terminal = Terminal::top(&server, 24, 80);
    terminal.shows("busy");
    terminal.press("p");
    terminal.shows("PAUSED");
    let asked = server.asked();
    terminal.press("p");
    terminal.until("more questions", |screen| {
        !screen.contains("PAUSED") && server.asked() > asked + 1
    });
    terminal.press("q");
    assert_eq!(terminal.ends().0, 0);
}

#[test]
fn signals_and_keys_give_the_terminal_back() {
    let server = Server::start();
    for (signal, expected) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let terminal = Terminal::top(&server, 24, 80);
        terminal.shows("busy");
        let pid = terminal.program.process_id().expect("a pid").to_string();
        let sent = Command::new("kill")
            .args(["-s", signal, &pid])
            .status()
            .expect("runs");
        assert!(sent.success());
        assert_eq!(terminal.ends().0, expected, "{signal}");
    }
    let mut terminal = Terminal::top(&server, 24, 80);
    terminal.shows("busy");
    terminal.press("\u{3}");
    assert_eq!(terminal.ends().0, 130);
}

#[test]
fn a_server_that_goes_is_named_on_the_old_screen() {
    let mut server = Server::start();
    let terminal = Terminal::top(&server, 24, 100);
    terminal.shows("busy");
    drop(server.socket.take());
    let (status, left) = terminal.ends();
    assert_eq!(status, 2);
    assert!(
        left.contains("error: ") && left.contains("its server is gone"),
        "{left}"
    );
}

#[test]
fn a_small_terminal_and_no_colours_are_no_trouble() {
    let server = Server::start();
    let mut terminal = Terminal::top(&server, 8, 40);
    terminal.shows("too small: 40x8");
    terminal.press("q");
    assert_eq!(terminal.ends().0, 0);
    let mut command = top(&server);
    command.env("NO_COLOR", "1");
    let mut terminal = Terminal::run(command, 24, 80);
    terminal.shows("busy");
    {
        let parser = terminal.screen.lock().expect("unharmed");
        let cells = (0..24)
            .flat_map(|row| (0..80).map(move |col| (row, col)))
            .filter_map(|(row, col)| parser.screen().cell(row, col));
        for cell in cells {
            assert_eq!(
                (cell.fgcolor(), cell.bgcolor()),
                (vt100::Color::Default, vt100::Color::Default)
            );
        }
    }
    terminal.press("q");
    assert_eq!(terminal.ends().0, 0);
}

#[test]
fn what_is_no_terminal_or_no_mount_is_refused() {
    let server = Server::start();
    let refused = |target: &std::path::Path| {
        let output = Command::new(PROGRAM)
            .arg("top")
            .arg(target)
            .stdin(Stdio::null())
            .output()
            .expect("runs");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (status, text) = refused(&server.path());
    assert_eq!(status, Some(2));
    assert!(text.contains("this is none"), "{text}");
    for target in [
        server.temp.path().join("nothing"),
        server.temp.path().to_owned(),
    ] {
        let mut command = top(&server);
        command.get_argv_mut()[2] = target.into();
        let terminal = Terminal::run(command, 24, 200);
        terminal.shows("error: ");
        assert_eq!(terminal.ends().0, 2);
    }
    let dead = server.temp.path().join("dead");
    drop(UnixListener::bind(&dead).expect("a socket"));
    let mut command = top(&server);
    command.get_argv_mut()[2] = dead.into();
    let terminal = Terminal::run(command, 24, 200);
    terminal.shows("nobody answers");
    assert_eq!(terminal.ends().0, 2);
    let mut command = top(&server);
    command.env("TERM", "dumb");
    let terminal = Terminal::run(command, 24, 200);
    terminal.shows("TERM=dumb");
    assert_eq!(terminal.ends().0, 2);
}
