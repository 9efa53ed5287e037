//! What the screen shows, and what keys do to it. Knows neither terminal nor server.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use lockkeeper_watch::report::{FileCounters, FileLocks, Report, Totals};
use lockkeeper_watch::words;

use super::draw::Look;

/// So long a file on which nothing is locked any more stays in the list: many are locked for moments only.
const REMEMBERED: Duration = Duration::from_secs(10);

/// By what files are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Waiting,
    Held,
    Oldest,
    Granted,
    Contended,
    Woken,
    Name,
}

/// All of them, in the order of the screen; each with its key and heading.
pub const COLUMNS: [(Column, char, &str); 7] = [
    (Column::Waiting, 'w', "WAIT"),
    (Column::Held, 'l', "HELD"),
    (Column::Oldest, 'o', "OLDEST"),
    (Column::Granted, 'g', "GRANT/s"),
    (Column::Contended, 'c', "CONT/s"),
    (Column::Woken, 'u', "WOKEN/s"),
    (Column::Name, 'n', "FILE"),
];

/// A file, by device and inode.
pub type Id = (u64, u64);

/// A line of the list.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub id: Id,
    pub name: String,
    pub waiting: usize,
    pub held: usize,
    /// The longest wait of now, in seconds.
    pub oldest: Option<f64>,
    pub rates: Rates,
    /// Whether a wait here is part of a deadlock.
    pub deadlock: bool,
}

/// How often a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub granted: f64,
    pub contended: f64,
    pub woken: f64,
}

/// What is known of a file from before.
#[derive(Debug)]
struct Known {
    name: String,
    counters: FileCounters,
    rates: Rates,
    seen: Instant,
}

/// What is on the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// The list of files.
    Files,
    /// The tree of one.
    Tree(Id),
    /// The keys, over one of the others.
    Help(Box<View>),
}

/// What a key was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressed {
    Handled,
    Quit,
    Interrupt,
}

/// Everything that is shown.
pub struct State {
    pub report: Report,
    pub rates: Rates,
    pub look: Look,
    pub view: View,
    pub column: Column,
    pub reversed: bool,
    pub filter: String,
    /// Whether keys go into the filter.
    pub typing: bool,
    paused: bool,
    lines: Vec<Line>,
    known: HashMap<Id, Known>,
    seen: Instant,
    /// The file under the cursor.
    selected: Option<Id>,
    /// The first row of the tree that is shown.
    pub scrolled: usize,
    /// How many rows fit; told by who draws.
    pub page: usize,
}

impl State {
    /// As `report` says, which has just come.
    pub fn new(report: Report, now: Instant, look: Look) -> State {
        let mut state = State {
            report: Report::default(),
            rates: Rates::default(),
            look,
            view: View::Files,
            column: Column::Waiting,
            reversed: false,
            filter: String::new(),
            typing: false,
            paused: false,
            lines: Vec::new(),
            known: HashMap::new(),
            seen: now,
            selected: None,
            scrolled: 0,
            page: 10,
        };
        state.known = known(&report, &HashMap::new(), None, now);
        state.report = report;
        state.arrange();
        state
    }

    /// The next report.
    pub fn update(&mut self, report: Report, now: Instant) {
        let seconds = now.duration_since(self.seen).as_secs_f64();
        self.rates = rates_of_totals(&self.report.totals, &report.totals, seconds);
        self.known = known(&report, &self.known, Some(seconds), now);
        self.report = report;
        self.seen = now;
        self.arrange();
    }

    /// Whether nothing is to be asked.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// The files, as they are filtered and sorted.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// The place of the cursor in the list.
    pub fn cursor(&self) -> Option<usize> {
        let selected = self.selected?;
        self.lines.iter().position(|line| line.id == selected)
    }

    /// The file whose tree is open; `None` if nothing is locked there now.
    pub fn open_file(&self, id: Id) -> Option<&FileLocks> {
        self.report.files.iter().find(|file| id_of(file) == id)
    }

    /// The name of a file, also of one on which nothing is locked now.
    pub fn name_of(&self, id: Id) -> String {
        let known = self.known.get(&id).map(|known| known.name.clone());
        known.unwrap_or_else(|| format!("inode {}", id.1))
    }

    /// What a key does.
    pub fn press(&mut self, key: KeyEvent) -> Pressed {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Pressed::Interrupt,
                _ => Pressed::Handled,
            };
        }
        if self.typing {
            self.type_into_filter(key.code);
            return Pressed::Handled;
        }
        if let View::Help(over) = &self.view {
            if key.code == KeyCode::Char('q') {
                return Pressed::Quit;
            }
            self.view = (**over).clone();
            return Pressed::Handled;
        }
        match key.code {
            KeyCode::Char('q') => return Pressed::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => {
                self.view = View::Help(Box::new(self.view.clone()));
            }
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Esc | KeyCode::Backspace if self.view != View::Files => {
                self.view = View::Files;
            }
            KeyCode::Esc => {
                self.filter.clear();
                self.arrange();
            }
            code => self.press_in_view(code),
        }
        Pressed::Handled
    }

    fn press_in_view(&mut self, code: KeyCode) {
        let page = isize::try_from(self.page).unwrap_or(1);
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.walk(-1),
            KeyCode::Down | KeyCode::Char('j') => self.walk(1),
            KeyCode::PageUp => self.walk(-page),
            KeyCode::PageDown => self.walk(page),
            KeyCode::Home => self.walk(isize::MIN),
            KeyCode::End => self.walk(isize::MAX),
            _ if self.view != View::Files => {}
            KeyCode::Enter | KeyCode::Right => {
                if let Some(id) = self.selected {
                    self.view = View::Tree(id);
                    self.scrolled = 0;
                }
            }
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('r') => {
                self.reversed = !self.reversed;
                self.arrange();
            }
            KeyCode::Char('s') => {
                let at = COLUMNS
                    .iter()
                    .position(|(column, ..)| *column == self.column);
                let next = at.map_or(0, |at| (at + 1) % COLUMNS.len());
                self.sort_by(COLUMNS[next].0);
            }
            KeyCode::Char(pressed) => {
                if let Some((column, ..)) = COLUMNS.iter().find(|(_, key, _)| *key == pressed) {
                    self.sort_by(*column);
                }
            }
            _ => {}
        }
    }

    fn type_into_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(typed) => self.filter.push(typed),
            _ => {}
        }
        self.arrange();
    }

    fn sort_by(&mut self, column: Column) {
        self.column = column;
        self.reversed = false;
        self.arrange();
    }

    /// Moves the cursor in the list, or the tree under it, so many rows.
    fn walk(&mut self, by: isize) {
        if self.view == View::Files {
            let at = self.cursor().unwrap_or(0).saturating_add_signed(by);
            let at = at.min(self.lines.len().saturating_sub(1));
            self.selected = self.lines.get(at).map(|line| line.id);
        } else {
            // Who draws knows how far it goes.
            self.scrolled = self.scrolled.saturating_add_signed(by);
        }
    }

    /// Filters and sorts; the cursor stays on its file, or goes to the first.
    fn arrange(&mut self) {
        let mut lines = self.all_lines();
        let filter = self.filter.to_lowercase();
        let number = self.filter.parse::<u64>().ok();
        lines.retain(|line| {
            line.name.to_lowercase().contains(&filter)
                || number
                    .is_some_and(|number| line.id.1 == number || self.concerns(line.id, number))
        });
        let column = self.column;
        lines.sort_by(|a, b| {
            let by = |value: fn(&Line) -> f64| value(b).total_cmp(&value(a));
            let order = match column {
                Column::Waiting => by(|line| line.waiting as f64),
                Column::Held => by(|line| line.held as f64),
                Column::Oldest => by(|line| line.oldest.unwrap_or(-1.0)),
                Column::Granted => by(|line| line.rates.granted),
                Column::Contended => by(|line| line.rates.contended),
                Column::Woken => by(|line| line.rates.woken),
                Column::Name => std::cmp::Ordering::Equal,
            };
            order.then_with(|| a.name.cmp(&b.name))
        });
        if self.reversed {
            lines.reverse();
        }
        self.lines = lines;
        if self.cursor().is_none() {
            self.selected = self.lines.first().map(|line| line.id);
        }
    }

    fn all_lines(&self) -> Vec<Line> {
        let mut present: HashMap<Id, (usize, &FileLocks)> = HashMap::new();
        for (place, file) in self.report.files.iter().enumerate() {
            present.insert(id_of(file), (place, file));
        }
        let in_deadlock = |place| {
            let steps = self.report.deadlocks.iter().flat_map(|cycle| &cycle.steps);
            steps.into_iter().any(|step| step.file == place)
        };
        self.known
            .iter()
            .map(|(&id, known)| {
                let file = present.get(&id);
                let waits = file.map(|(_, file)| file.waiters.iter().filter_map(|w| w.waits_for));
                Line {
                    id,
                    name: known.name.clone(),
                    waiting: file.map_or(0, |(_, file)| file.waiters.len()),
                    held: file.map_or(0, |(_, file)| file.locks.len()),
                    oldest: waits.and_then(|waits| waits.reduce(f64::max)),
                    rates: known.rates,
                    deadlock: file.is_some_and(|&(place, _)| in_deadlock(place)),
                }
            })
            .collect()
    }

    /// Whether the process has or wants a lock there.
    fn concerns(&self, id: Id, number: u64) -> bool {
        self.open_file(id).is_some_and(|file| {
            let held = file.locks.iter().map(|held| held.lock.pid);
            let wanted = file.waiters.iter().map(|waiting| waiting.lock.pid);
            held.chain(wanted).any(|pid| u64::from(pid) == number)
        })
    }
}

fn id_of(file: &FileLocks) -> Id {
    (file.source_device, file.source_inode)
}

/// What is known of the files of this report, and of those that have just gone; the rates are of the last
/// `seconds`, 0 where there is no time before.
fn known(
    report: &Report,
    before: &HashMap<Id, Known>,
    seconds: Option<f64>,
    now: Instant,
) -> HashMap<Id, Known> {
    let mut known: HashMap<Id, Known> = report
        .files
        .iter()
        .map(|file| {
            let id = id_of(file);
            let rates = match (before.get(&id), seconds) {
                (Some(old), Some(seconds)) => {
                    rates_of_files(&old.counters, &file.counters, seconds)
                }
                // Come since: all that it has counted was within this time.
                (None, Some(seconds)) => {
                    rates_of_files(&FileCounters::default(), &file.counters, seconds)
                }
                (_, None) => Rates::default(),
            };
            let known = Known {
                name: name_of(report, file),
                counters: file.counters,
                rates,
                seen: now,
            };
            (id, known)
        })
        .collect();
    for (&id, old) in before {
        if now.duration_since(old.seen) < REMEMBERED {
            known.entry(id).or_insert_with(|| Known {
                name: old.name.clone(),
                counters: old.counters,
                rates: Rates::default(),
                seen: old.seen,
            });
        }
    }
    known
}

fn name_of(report: &Report, file: &FileLocks) -> String {
    let Some(path) = &file.path else {
        return format!("inode {}", file.inode);
    };
    let below = path
        .strip_prefix(report.mountpoint.as_str())
        .and_then(|rest| rest.strip_prefix('/'));
    // A name may hold anything, and a terminal obeys some of it.
    let name = words::clean(below.unwrap_or(path));
    match file.deleted {
        true => format!("{name} (unlinked)"),
        false => name,
    }
}

fn rates_of_files(from: &FileCounters, to: &FileCounters, seconds: f64) -> Rates {
    // The state of a file that nobody uses is freed, and counts anew.
    let from = match to.acquisitions < from.acquisitions {
        true => &FileCounters::default(),
        false => from,
    };
    let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / seconds.max(0.001);
    Rates {
        granted: rate(from.acquisitions, to.acquisitions),
        contended: rate(from.contended, to.contended),
        woken: rate(from.wake_ups, to.wake_ups),
    }
}

fn rates_of_totals(from: &Totals, to: &Totals, seconds: f64) -> Rates {
    let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / seconds.max(0.001);
    Rates {
        granted: rate(from.acquisitions, to.acquisitions),
        contended: rate(from.contended, to.contended),
        woken: rate(from.wake_ups, to.wake_ups),
    }
}
