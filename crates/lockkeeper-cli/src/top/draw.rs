//! Draws the state. Colours only add: everything is also said by words, signs, bold or reversed text.

use lockkeeper_watch::report::{FileLocks, Kind, Lock, Report};
use lockkeeper_watch::rows::{Row as Place, Rows};
use lockkeeper_watch::words;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line as Text, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState};

use super::state::{COLUMNS, Column, Id, Line, State, View};

/// Smaller than this, and there is nothing to be seen.
const LEAST: (u16, u16) = (60, 10);
/// Deeper than this, rows are not shown further to the right.
const DEEPEST: usize = 8;

/// How things may look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether there are colours.
    pub colour: bool,
}

impl Look {
    /// As <https://no-color.org> wants it.
    pub fn from_environment() -> Look {
        Look {
            colour: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        }
    }

    fn style(self, colour: Color) -> Style {
        match self.colour {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }
}

/// Draws everything.
pub fn draw(frame: &mut Frame, state: &mut State) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = format!(
            "This terminal is too small: {}x{}. At least {}x{} are needed. q quits.",
            area.width, area.height, LEAST.0, LEAST.1
        );
        let paragraph = Paragraph::new(text).wrap(ratatui::widgets::Wrap { trim: true });
        return frame.render_widget(paragraph, area);
    }
    let deadlock = deadlock_line(&state.report);
    let [head, warning, body, foot] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(u16::from(deadlock.is_some())),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame, state, head);
    if let Some(text) = deadlock {
        let style = state.look.style(Color::Red).bold().reversed();
        frame.render_widget(Paragraph::new(text).style(style), warning);
    }
    let view = match &state.view {
        View::Help(over) => (**over).clone(),
        view => view.clone(),
    };
    match view {
        View::Tree(id) => draw_tree(frame, state, id, body),
        _ => draw_files(frame, state, body),
    }
    draw_foot(frame, state, foot);
    if matches!(state.view, View::Help(_)) {
        draw_help(frame, body);
    }
}

fn draw_head(frame: &mut Frame, state: &State, area: Rect) {
    let report = &state.report;
    let (locks, waiting) = report.files.iter().fold((0, 0), |(locks, waiting), file| {
        (locks + file.locks.len(), waiting + file.waiters.len())
    });
    let waits = report.files.iter().flat_map(|file| &file.waiters);
    let oldest = waits
        .filter_map(|waiting| waiting.waits_for)
        .reduce(f64::max);
    let mut title = vec![
        Span::from("lockkeeper top  ").bold(),
        words::clean(&report.mountpoint).into(),
    ];
    if state.is_paused() {
        title.push(Span::from("  PAUSED").bold().reversed());
    }
    let rates = &state.rates;
    let mut second = format!(
        "{} on {}, {waiting} wait",
        count(locks, "lock"),
        count(report.files.len(), "file")
    );
    if let Some(oldest) = oldest {
        second += &format!(", the longest for {}", duration(oldest));
    }
    let mut third = format!(
        "{}/s granted, {}/s had to wait, {}/s woken",
        rate(rates.granted),
        rate(rates.contended),
        rate(rates.woken)
    );
    let times = &report.wait_times;
    if times.count > 0 {
        third += &format!(
            "; waits lasted {} on average",
            duration(times.sum / times.count as f64)
        );
    }
    let lines = vec![Text::from(title), Text::from(second), Text::from(third)];
    frame.render_widget(Paragraph::new(lines), area);
}

fn deadlock_line(report: &Report) -> Option<String> {
    let cycle = report.deadlocks.first()?;
    let steps = cycle.steps.iter().filter_map(|&step| report.wait_of(step));
    let names: Vec<_> = steps.map(|(_, waiting)| who(&waiting.lock)).collect();
    let others = match report.deadlocks.len() {
        1 => String::new(),
        all => format!(" (and {} more)", all - 1),
    };
    Some(format!(
        "DEADLOCK: {} wait for each other for ever{others}",
        names.join(", ")
    ))
}

fn draw_files(frame: &mut Frame, state: &mut State, area: Rect) {
    state.page = usize::from(area.height.saturating_sub(1)).max(1);
    let heading = COLUMNS.map(|(column, _, text)| {
        let sorted = column == state.column;
        let sign = match (sorted, state.reversed) {
            (false, _) => "",
            (true, false) => "▼",
            (true, true) => "▲",
        };
        let text = Text::from(format!("{text}{sign}"));
        let text = match column {
            Column::Name => text,
            _ => text.right_aligned(),
        };
        Cell::from(text).style(match sorted {
            true => Style::new().bold().underlined(),
            false => Style::new().bold(),
        })
    });
    let mut selection = TableState::new().with_selected(state.cursor());
    let rows = state.lines().iter().map(|line| file_row(line, state.look));
    let widths = [6, 5, 9, 9, 8, 8].map(Constraint::Length);
    let table = Table::new(rows, widths.into_iter().chain([Constraint::Min(10)]))
        .header(Row::new(heading))
        .row_highlight_style(Style::new().reversed());
    frame.render_stateful_widget(table, area, &mut selection);
    if state.lines().is_empty() {
        let text = match state.filter.is_empty() {
            true => "Nothing is locked on this mount.",
            false => "No file or process matches the filter. Esc clears it.",
        };
        let [_, rest] = Layout::vertical([Constraint::Length(2), Constraint::Min(1)]).areas(area);
        frame.render_widget(Paragraph::new(text).centered(), rest);
    }
}

fn file_row(line: &Line, look: Look) -> Row<'static> {
    let number = |number: usize| match number {
        0 => "-".to_owned(),
        number => number.to_string(),
    };
    let right = |text: String| Cell::from(Text::from(text).right_aligned());
    let mut name = line.name.clone();
    if line.deadlock {
        name = format!("! {name}");
    }
    let style = match (line.deadlock, line.waiting) {
        (true, _) => look.style(Color::Red).bold(),
        (false, 0) => Style::new(),
        (false, _) => look.style(Color::Yellow),
    };
    Row::new([
        right(number(line.waiting)),
        right(number(line.held)),
        right(line.oldest.map_or("-".into(), duration)),
        right(rate(line.rates.granted)),
        right(rate(line.rates.contended)),
        right(rate(line.rates.woken)),
        Cell::from(name),
    ])
    .style(style)
}

fn draw_tree(frame: &mut Frame, state: &mut State, id: Id, area: Rect) {
    let [title, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    state.page = usize::from(body.height).max(1);
    let name = state.name_of(id);
    let Some(file) = state.open_file(id) else {
        let text = format!("{name}: nothing is locked here now.");
        return frame.render_widget(Paragraph::new(text), title);
    };
    let all = Rows::new(file);
    let length = file.locks.len() + file.waiters.len();
    let scrolled = state.scrolled.min(length.saturating_sub(state.page));
    let shown: Vec<_> = all.all().skip(scrolled).take(state.page).collect();
    let mut heading = name;
    if length > state.page {
        heading += &format!(
            "  (rows {} to {} of {length})",
            scrolled + 1,
            scrolled + shown.len()
        );
    }
    let lines: Vec<_> = shown
        .iter()
        .map(|&place| tree_row(file, place, &all, &state.report, state.look))
        .collect();
    let widths = [
        Constraint::Min(30),
        Constraint::Length(11),
        Constraint::Length(17),
        Constraint::Length(10),
    ];
    frame.render_widget(Paragraph::new(heading).bold(), title);
    frame.render_widget(Table::new(lines, widths), body);
    state.scrolled = scrolled;
}

fn tree_row(
    file: &FileLocks,
    place: Place,
    all: &Rows<'_>,
    report: &Report,
    look: Look,
) -> Row<'static> {
    let (lock, seconds, said, colour) = match place {
        Place::Lock(index) => {
            let held = &file.locks[index];
            (&held.lock, held.held_for, "holds", Color::Green)
        }
        Place::Waiter(index) => {
            let waiting = &file.waiters[index];
            let deadlock = report
                .deadlocks
                .iter()
                .flat_map(|cycle| &cycle.steps)
                .any(|step| {
                    step.waiter == index
                        && report
                            .files
                            .get(step.file)
                            .is_some_and(|other| std::ptr::eq(other, file))
                });
            let (said, colour) = match (deadlock, waiting.blocked_by) {
                (true, _) => ("DEADLOCK, waits", Color::Red),
                (false, None) => ("woken", Color::Yellow),
                (false, Some(_)) => ("waits", Color::Yellow),
            };
            (&waiting.lock, waiting.waits_for, said, colour)
        }
    };
    let depth = all.depth(place);
    let width = 2 * (depth.clamp(1, DEEPEST) - 1);
    let branch = match depth {
        0 => String::new(),
        1..=DEEPEST => format!("{:width$}└ ", ""),
        // Not further to the right: its level stands there.
        depth => format!("{depth:>width$}└ "),
    };
    let who = vec![
        Span::from(branch),
        Span::styled(said, look.style(colour).bold()),
        Span::from(format!(" {}", who(lock))),
    ];
    Row::new([
        Cell::from(Text::from(who)),
        Cell::from(kind(lock)),
        Cell::from(range(lock)),
        Cell::from(Text::from(seconds.map_or(String::new(), duration)).right_aligned()),
    ])
}

fn draw_foot(frame: &mut Frame, state: &State, area: Rect) {
    let text = if state.typing {
        format!(
            "Filter: {}_   Enter keeps it, Esc drops it",
            words::clean(&state.filter)
        )
    } else {
        let filter = match state.filter.as_str() {
            "" => String::new(),
            filter => format!("Filter: {}   ", words::clean(filter)),
        };
        let keys = match state.view {
            View::Tree(_) => "Esc back  ↑↓ scroll  p pause  ? help  q quit",
            _ => "Enter tree  s sort  r reverse  / filter  p pause  ? help  q quit",
        };
        format!("{filter}{keys}")
    };
    frame.render_widget(Paragraph::new(text).reversed(), area);
}

fn draw_help(frame: &mut Frame, area: Rect) {
    let mut lines = vec![
        "↑ ↓ PgUp PgDn Home End   move".to_owned(),
        "Enter   the tree of the file        Esc   back, or drop the filter".into(),
        "/       filter by file or process   p     pause: nothing is asked".into(),
        "s       sort by the next column     r     the other way round".into(),
    ];
    let by: Vec<_> = COLUMNS
        .iter()
        .map(|(_, key, heading)| format!("{key} {heading}"))
        .collect();
    lines.push(format!("Sort by: {}", by.join(", ")));
    lines.push("q       quit                        any other key closes this".into());
    let width = 74.min(area.width);
    let height = (lines.len() as u16 + 2).min(area.height);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y,
        width,
        height,
    };
    let text: Vec<Text> = lines.into_iter().map(Text::from).collect();
    frame.render_widget(Clear, place);
    frame.render_widget(
        Paragraph::new(text).block(Block::bordered().title(" Keys ")),
        place,
    );
}

fn count(number: usize, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {what}{s}")
}

fn who(lock: &Lock) -> String {
    let command = words::clean(lock.command.as_deref().unwrap_or("(ended)"));
    match lock.pid {
        0 => "(not visible here)".into(),
        pid => format!("{command} {pid}"),
    }
}

fn kind(lock: &Lock) -> String {
    let mode = words::mode(lock.mode);
    let kind = match lock.kind {
        Kind::Posix => "POSIX",
        Kind::Ofd => "OFD",
        Kind::Flock => "flock",
        Kind::Access => "access",
        Kind::Lease => "lease",
        Kind::Delegation => "delegation",
        Kind::Other => "other",
    };
    format!("{mode} {kind}")
}

fn range(lock: &Lock) -> String {
    match (lock.kind, lock.start, lock.end) {
        (Kind::Flock, ..) | (_, 0, None) => "whole file".into(),
        (_, start, None) => format!("from {start}"),
        (_, start, Some(end)) if start == end => format!("byte {start}"),
        (_, start, Some(end)) => format!("{start}-{end}"),
    }
}

/// Short, for a column.
pub fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        _ if seconds < 0.001 => format!("{}us", (seconds * 1e6) as u64),
        0 if seconds < 0.1 => format!("{}ms", (seconds * 1e3) as u64),
        0..10 => format!("{seconds:.1}s"),
        10..60 => format!("{whole}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..86400 => format!("{}h{:02}m", whole / 3600, whole % 3600 / 60),
        _ => format!("{}d{:02}h", whole / 86400, whole % 86400 / 3600),
    }
}

fn rate(rate: f64) -> String {
    match rate {
        rate if rate <= 0.0 => "-".into(),
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate if rate < 100_000.0 => format!("{rate:.0}"),
        rate => format!("{:.0}k", rate / 1000.0),
    }
}
