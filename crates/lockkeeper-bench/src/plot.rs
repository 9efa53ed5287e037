//! Pictures of results: panels of curves, as SVG or PNG.
//!
//! Each row of a figure has a heading, a legend in a strip of its own (so that it covers no data) and panels
//! side by side. Logarithms are taken here, and the drawing crate sees plain coordinates.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::error::Error;
use crate::format::{Cell, ResultFile, mean};
use crate::load::Load;
use crate::table::nanoseconds;

/// The colour of text and axes; the report puts the page's own in its place.
pub const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// The colour of the grid.
pub const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// Colours that stay apart for every kind of sight (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x77, 0x77, 0x77),
];

/// How a curve is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A line with points.
    Solid,
    /// Long dashes.
    Dashed,
    /// Dots.
    Dotted,
    /// Points alone: what was measured, beside a model.
    Points,
}

/// One curve: x, and the least, middle and greatest of y.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The number of its colour.
    pub colour: usize,
    /// How it is drawn.
    pub style: Style,
    /// Its points, by x.
    pub points: Vec<(f64, [f64; 3])>,
}

/// The unit of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// `2 M`.
    Number,
    /// `2 ms`, from nanoseconds.
    Time,
}

/// Axes with curves.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What the y axis shows.
    pub y_label: String,
    /// What the x axis shows.
    pub x_label: String,
    /// The unit of y.
    pub unit: Unit,
    /// The curves.
    pub curves: Vec<Curve>,
}

impl Panel {
    /// Whether a spread is drawn.
    pub fn has_bands(&self) -> bool {
        let spreads = |(_, [least, _, greatest]): &(f64, [f64; 3])| least < greatest;
        self.curves
            .iter()
            .any(|curve| curve.style == Style::Solid && curve.points.iter().any(spreads))
    }
}

/// Panels side by side, with a heading and a legend.
#[derive(Clone, Debug)]
pub struct Row {
    /// What is shown.
    pub heading: String,
    /// One entry a colour.
    pub legend: Vec<(usize, Style, String)>,
    /// Left to right.
    pub panels: Vec<Panel>,
    /// What is to be known beside it, beneath.
    pub notes: Vec<String>,
}

const WIDTH: u32 = 1180;
const ROW_HEIGHT: u32 = 430;
const STRIP: u32 = 62;
const NOTE_LINE: u32 = 20;
/// Letters in a line of a note.
const NOTE_WIDTH: usize = 150;
/// Letters of a name, at most; who shortens a name letter by letter begins here.
const LONGEST_NAME: usize = 200;
/// What a picture has room for, and memory.
const MOST_ROWS: usize = 40;

/// The rows of a result: one for each load, kind of task and number of held ranges.
pub fn rows_of(result: &ResultFile) -> Vec<Row> {
    let mut rows: Vec<(String, Vec<&Cell>)> = Vec::new();
    for cell in &result.results {
        let held = match cell.load {
            Load::Ranges => format!(", {} ranges held", cell.held),
            _ => String::new(),
        };
        let heading = format!(
            "{} as {}{held}: {}",
            cell.load,
            cell.level,
            cell.load.about()
        );
        match rows.iter_mut().find(|(known, _)| *known == heading) {
            Some((_, cells)) => cells.push(cell),
            None => rows.push((heading, vec![cell])),
        }
    }
    rows.into_iter()
        .map(|(heading, cells)| row_of(heading, &cells))
        .filter(|row| !row.panels.is_empty())
        .collect()
}

fn row_of(heading: String, cells: &[&Cell]) -> Row {
    let mut targets: Vec<&str> = Vec::new();
    for cell in cells {
        if !targets.contains(&cell.target.as_str()) {
            targets.push(&cell.target);
        }
    }
    let curves = |metric: &str, style: Style| -> Vec<Curve> {
        let of_target = |(colour, target): (usize, &&str)| {
            let points: Vec<_> = cells
                .iter()
                .filter(|cell| cell.target == *target)
                .filter_map(|cell| {
                    Some((f64::from(cell.tasks), spread(cell.metrics.get(metric)?)?))
                })
                .collect();
            (!points.is_empty()).then_some(Curve {
                colour,
                style,
                points,
            })
        };
        targets.iter().enumerate().filter_map(of_target).collect()
    };
    let (metric, y_label, unit) = match cells[0].load {
        Load::Herd => ("time_to_last_ns", "until the last is served", Unit::Time),
        Load::Chain => (
            "checks_per_second",
            "deadlock checks a second",
            Unit::Number,
        ),
        _ => ("ops", "operations a second, all tasks", Unit::Number),
    };
    let panel = |y_label: &str, unit, curves: Vec<Curve>| Panel {
        y_label: y_label.to_owned(),
        x_label: "tasks".to_owned(),
        unit,
        curves,
    };
    let mut waits = curves("wait_p50_ns", Style::Dotted);
    waits.extend(curves("wait_p99_ns", Style::Solid));
    waits.extend(curves("wait_max_ns", Style::Dashed));
    let panels = vec![
        panel(y_label, unit, curves(metric, Style::Solid)),
        panel("wait: p50 dotted, p99 solid, max dashed", Unit::Time, waits),
    ];
    Row {
        heading,
        legend: targets
            .iter()
            .enumerate()
            .map(|(colour, target)| (colour, Style::Solid, (*target).to_owned()))
            .collect(),
        panels: panels
            .into_iter()
            .filter(|panel| !panel.curves.is_empty())
            .collect(),
        notes: Vec::new(),
    }
}

/// The least, the mean and the greatest.
fn spread(values: &[f64]) -> Option<[f64; 3]> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some([least, mean(values)?, greatest])
}

/// Draws rows as SVG.
///
/// # Errors
/// There is nothing to draw, or the drawing failed.
pub fn svg(rows: &[Row]) -> Result<String, Error> {
    check(rows)?;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size(rows, 1)).into_drawing_area();
        draw(&root, rows, 1)?;
    }
    Ok(text)
}

/// Draws rows as PNG, at twice the size for sharp text. The bytes of the file.
///
/// # Errors
/// There is nothing to draw, or the drawing or the packing failed.
pub fn png(rows: &[Row]) -> Result<Vec<u8>, Error> {
    check(rows)?;
    // The drawing crate writes PNG to paths alone.
    let failed = |error: std::io::Error| Error::Drawing(error.to_string());
    let folder = tempfile::tempdir().map_err(failed)?;
    let path = folder.path().join("plot.png");
    {
        let root = BitMapBackend::new(&path, size(rows, 2)).into_drawing_area();
        root.fill(&WHITE).map_err(drawing)?;
        draw(&root, rows, 2)?;
    }
    std::fs::read(&path).map_err(failed)
}

/// Refuses a name that says no format.
///
/// # Errors
/// The name ends in neither `.svg` nor `.png`.
pub fn check_name(path: &Path) -> Result<(), Error> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg" | "png") => Ok(()),
        _ => Err(Error::Refused(format!(
            "{} is neither .svg nor .png",
            path.display()
        ))),
    }
}

/// Draws as the file's name says.
///
/// # Errors
/// The name ends in neither `.svg` nor `.png`, or as [`svg`] and [`png`].
pub fn for_file(rows: &[Row], path: &Path) -> Result<Vec<u8>, Error> {
    check_name(path)?;
    match path.extension() {
        Some(extension) if extension == "png" => png(rows),
        _ => Ok(on_white(&svg(rows)?).into_bytes()),
    }
}

/// A viewer may show what has no background on black.
fn on_white(svg: &str) -> String {
    match svg.find('>') {
        Some(end) => format!(
            "{}\n<rect width=\"100%\" height=\"100%\" fill=\"#FFFFFF\"/>{}",
            &svg[..=end],
            &svg[end + 1..]
        ),
        None => svg.to_owned(),
    }
}

/// One panel as SVG, for a page that has a heading and a legend of its own.
///
/// # Errors
/// The drawing failed.
pub fn panel_svg(panel: &Panel) -> Result<String, Error> {
    register_face()?;
    let mut text = String::new();
    {
        let size = (WIDTH / 2, ROW_HEIGHT - STRIP);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        draw_panel(&root, panel, 1)?;
        root.present().map_err(drawing)?;
    }
    Ok(text)
}

/// A colour as CSS writes it.
pub fn colour_in_css(colour: usize) -> String {
    let RGBColor(red, green, blue) = COLOURS[colour % COLOURS.len()];
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// A note as lines, the first with a dash before it.
fn lines_of(note: &str) -> Vec<String> {
    let mut lines = vec!["–".to_owned()];
    for word in note.split_whitespace() {
        let last = lines.last_mut().expect("there is one");
        if last.chars().count() + 1 + word.chars().count() > NOTE_WIDTH {
            lines.push(format!("  {word}"));
        } else {
            last.push(' ');
            last.push_str(word);
        }
    }
    lines
}

fn height(row: &Row) -> u32 {
    let lines: usize = row.notes.iter().map(|note| lines_of(note).len()).sum();
    let beneath = if lines == 0 { 0 } else { NOTE_LINE };
    ROW_HEIGHT + NOTE_LINE * lines as u32 + beneath
}

fn size(rows: &[Row], scale: u32) -> (u32, u32) {
    let height: u32 = rows.iter().map(height).sum();
    (WIDTH * scale, height * scale)
}

fn drawing(error: impl std::fmt::Display) -> Error {
    Error::Drawing(error.to_string())
}

fn check(rows: &[Row]) -> Result<(), Error> {
    if rows.is_empty() {
        return Err(Error::Drawing("the result has nothing to show".to_owned()));
    }
    if rows.len() > MOST_ROWS {
        return Err(Error::Refused(format!(
            "{} rows of panels are no picture: choose with `--load` and `--as`, {MOST_ROWS} at most",
            rows.len()
        )));
    }
    let most = COLOURS.len();
    if let Some(row) = rows.iter().find(|row| row.legend.len() > most) {
        return Err(Error::Refused(format!(
            "{} targets cannot be told apart in one picture: choose with `--on`, {most} at most",
            row.legend.len()
        )));
    }
    Ok(())
}

type Area<'a, B> = DrawingArea<B, Shift>;

fn register_face() -> Result<(), Error> {
    static DONE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    let done = DONE.get_or_init(|| {
        let face = epaint_default_fonts::UBUNTU_LIGHT;
        plotters::style::register_font("sans-serif", FontStyle::Normal, face).is_ok()
    });
    if *done {
        Ok(())
    } else {
        Err(Error::Drawing(
            "the built-in face cannot be read".to_owned(),
        ))
    }
}

fn draw<B: DrawingBackend>(root: &Area<'_, B>, rows: &[Row], scale: u32) -> Result<(), Error> {
    register_face()?;
    let mut rest = root.clone();
    for row in rows {
        let (area, beneath) = rest.split_vertically(height(row) * scale);
        draw_row(&area, row, scale)?;
        rest = beneath;
    }
    root.present().map_err(drawing)
}

/// A name, shortened in its middle until it fits.
fn fitting(name: &str, fits: impl Fn(&str) -> Result<bool, Error>) -> Result<String, Error> {
    let letters: Vec<char> = name.chars().collect();
    let with = |kept: usize| -> String {
        if kept == letters.len() {
            return name.to_owned();
        }
        let (head, tail) = (kept.div_ceil(2), letters.len() - kept / 2);
        let (head, tail) = (&letters[..head], &letters[tail..]);
        head.iter().chain(&['…']).chain(tail).collect()
    };
    let mut kept = letters.len().min(LONGEST_NAME);
    while kept > 0 && !fits(&with(kept))? {
        kept -= 1;
    }
    Ok(with(kept))
}

/// How wide a name may be, so that all have room: nobody gives up more than he must.
fn widest(mut widths: Vec<i32>, mut room: i32) -> i32 {
    widths.sort_unstable();
    let count = widths.len();
    for (n, width) in widths.into_iter().enumerate() {
        let share = room / (count - n) as i32;
        if width > share {
            return share;
        }
        room -= width;
    }
    i32::MAX
}

fn text_style(size: u32, scale: u32) -> TextStyle<'static> {
    ("sans-serif", size * scale).into_font().color(&INK)
}

fn draw_row<B: DrawingBackend>(area: &Area<'_, B>, row: &Row, scale: u32) -> Result<(), Error> {
    let (above, beneath) = area.split_vertically(ROW_HEIGHT * scale);
    let (strip, rest) = above.split_vertically(STRIP * scale);
    let s = scale as i32;
    let heading = text_style(19, scale).pos(Pos::new(HPos::Left, VPos::Center));
    strip
        .draw(&Text::new(row.heading.clone(), (22 * s, 20 * s), heading))
        .map_err(drawing)?;
    let label = text_style(15, scale).pos(Pos::new(HPos::Left, VPos::Center));
    let (mut x, y) = (24 * s, 48 * s);
    let has_bands = row.panels.iter().any(Panel::has_bands);
    // What is beside the names: a sample of the line each, and the word on bands.
    let beside = 62 * row.legend.len() as i32 + if has_bands { 240 } else { 24 };
    let room = (WIDTH as i32 - beside).max(0) * s;
    let width_of = |name: &str| {
        let size = strip.estimate_text_size(name, &label).map_err(drawing)?;
        Ok::<_, Error>(size.0 as i32)
    };
    let names = row.legend.iter().map(|(_, _, name)| width_of(name));
    let widest = widest(names.collect::<Result<_, _>>()?, room);
    for (colour, style, name) in &row.legend {
        let name = &fitting(name, |name| Ok(width_of(name)? <= widest))?;
        let colour = COLOURS[colour % COLOURS.len()];
        let middle = (x + 14 * s, y);
        if *style != Style::Points {
            let stroke = colour.stroke_width(2 * scale);
            strip
                .draw(&PathElement::new(vec![(x, y), (x + 28 * s, y)], stroke))
                .map_err(drawing)?;
        }
        strip
            .draw(&Circle::new(middle, 4 * s, colour.filled()))
            .map_err(drawing)?;
        strip
            .draw(&Text::new(name.clone(), (x + 36 * s, y), label.clone()))
            .map_err(drawing)?;
        x += 36 * s + width_of(name)? + 26 * s;
    }
    if has_bands {
        let text = "bands: least to greatest";
        strip
            .draw(&Text::new(text, (x, y), label.clone()))
            .map_err(drawing)?;
    }
    let note = text_style(14, scale).pos(Pos::new(HPos::Left, VPos::Center));
    let lines = row.notes.iter().flat_map(|note| lines_of(note));
    for (n, line) in (0..).zip(lines) {
        let y = (n * NOTE_LINE as i32 + 10) * s;
        beneath
            .draw(&Text::new(line, (24 * s, y), note.clone()))
            .map_err(drawing)?;
    }
    for (panel, area) in row
        .panels
        .iter()
        .zip(rest.split_evenly((1, row.panels.len().max(2))))
    {
        draw_panel(&area, panel, scale)?;
    }
    Ok(())
}

// ---- Axes ------------------------------------------------------------------

/// How values become places.
struct Axis {
    is_log: bool,
    places: Range<f64>,
    /// Values.
    ticks: Vec<f64>,
}

impl Axis {
    fn place(&self, value: f64) -> f64 {
        if self.is_log { value.log10() } else { value }
    }

    fn value(&self, place: f64) -> f64 {
        if self.is_log {
            10_f64.powf(place)
        } else {
            place
        }
    }

    fn coordinates(&self) -> Places {
        Places {
            range: self.places.clone(),
            ticks: self.ticks.iter().map(|&tick| self.place(tick)).collect(),
        }
    }

    /// For numbers of tasks: ticks where something was measured, as many as have room.
    fn of_tasks(values: &[f64]) -> Axis {
        let mut ticks = values.to_vec();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let (least, most) = (ticks[0], ticks[ticks.len() - 1]);
        let is_log = most > 8.0 * least;
        let place = |value: f64| if is_log { value.log10() } else { value };
        let (first, last) = (place(least), place(most));
        let margin = if first == last {
            0.5
        } else {
            (last - first) * 0.04
        };
        let mut kept: Vec<f64> = Vec::new();
        for &tick in &ticks {
            let room = kept
                .last()
                .is_none_or(|&last_kept| place(tick) - place(last_kept) >= margin * 1.4);
            if room {
                kept.push(tick);
            }
        }
        Axis {
            is_log,
            places: first - margin..last + margin,
            ticks: kept,
        }
    }

    /// For what was measured: logarithmic where it spans more than a factor of eight.
    fn of_values(values: &[f64]) -> Axis {
        let most = values.iter().copied().fold(0.0, f64::max);
        let least = values
            .iter()
            .copied()
            .filter(|&value| value > 0.0)
            .fold(f64::INFINITY, f64::min);
        if most <= 0.0 || most <= 8.0 * least {
            let top = if most > 0.0 { most * 1.08 } else { 1.0 };
            let step = nice_step(top / 5.0);
            let ticks = (0..20)
                .map(|n| f64::from(n) * step)
                .take_while(|&tick| tick < top);
            return Axis {
                is_log: false,
                places: 0.0..top,
                ticks: ticks.collect(),
            };
        }
        let (low, high) = (least.log10() - 0.08, most.log10() + 0.08);
        let steps: &[f64] = match high - low {
            ..2.2 => &[1.0, 2.0, 5.0],
            2.2..5.0 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let decades = low.floor() as i32..=high.ceil() as i32;
        let ticks = decades
            .flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)))
            .filter(|tick| (low..high).contains(&tick.log10()));
        Axis {
            is_log: true,
            places: low..high,
            ticks: ticks.collect(),
        }
    }
}

/// An axis as the drawing crate wants it: plain, with ticks of our choice.
struct Places {
    range: Range<f64>,
    ticks: Vec<f64>,
}

impl Ranged for Places {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        low + (f64::from(high - low) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.ticks.clone(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// 1, 2 or 5 times a power of ten, not below `step`.
fn nice_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let found = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|factor| factor * power >= step * 0.999);
    found.unwrap_or(10.0) * power
}

fn number(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        1e9.. => (value / 1e9, " G"),
        1e6.. => (value / 1e6, " M"),
        1e3.. => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let rounded = (scaled * 100.0).round() / 100.0;
    format!("{rounded}{suffix}")
}

fn time(value: f64) -> String {
    nanoseconds(value).replace(".0 ", " ")
}

// ---- Curves ----------------------------------------------------------------

fn draw_panel<B: DrawingBackend>(
    area: &Area<'_, B>,
    panel: &Panel,
    scale: u32,
) -> Result<(), Error> {
    let points = || panel.curves.iter().flat_map(|curve| &curve.points);
    let xs: Vec<f64> = points().map(|(x, _)| *x).collect();
    if xs.is_empty() {
        return Ok(());
    }
    let ys: Vec<f64> = points().flat_map(|(_, ys)| *ys).collect();
    let (x_axis, y_axis) = (Axis::of_tasks(&xs), Axis::of_values(&ys));
    let unit = panel.unit;
    let mut chart = ChartBuilder::on(area)
        .margin(8 * scale)
        .margin_right(20 * scale)
        .x_label_area_size(46 * scale)
        .y_label_area_size(78 * scale)
        .build_cartesian_2d(x_axis.coordinates(), y_axis.coordinates())
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID.stroke_width(scale))
        .axis_style(INK.stroke_width(scale))
        .label_style(text_style(14, scale))
        .axis_desc_style(text_style(15, scale))
        .x_desc(panel.x_label.clone())
        .y_desc(match y_axis.is_log {
            true => format!("{} (log)", panel.y_label),
            false => panel.y_label.clone(),
        })
        .x_label_formatter(&|place| format!("{}", x_axis.value(*place).round()))
        .y_label_formatter(&|place| match unit {
            Unit::Number => number(y_axis.value(*place)),
            Unit::Time => time(y_axis.value(*place)),
        })
        .draw()
        .map_err(drawing)?;
    for curve in &panel.curves {
        let colour = COLOURS[curve.colour % COLOURS.len()];
        let at = |x: f64, y: f64| {
            (
                x_axis.place(x),
                y_axis.place(y.max(y_axis.value(y_axis.places.start))),
            )
        };
        let stroke = colour.stroke_width(2 * scale);
        // A logarithm has no 0: it is written at the axis, and the line ends before it.
        let is_nothing = |ys: &[f64; 3]| y_axis.is_log && ys[1] <= 0.0;
        for (x, _) in curve.points.iter().filter(|(_, ys)| is_nothing(ys)) {
            let s = scale as i32;
            let zero = text_style(15, scale).color(&colour);
            let mark = EmptyElement::at(at(*x, 0.0))
                + Cross::new((0, 0), 5 * s, stroke)
                + Text::new("0", (-18 * s, -17 * s), zero);
            chart.draw_series([mark]).map_err(drawing)?;
        }
        for points in curve.points.split(|(_, ys)| is_nothing(ys)) {
            let line: Vec<_> = points.iter().map(|(x, ys)| at(*x, ys[1])).collect();
            if curve.style == Style::Solid && points.len() > 1 {
                let low = points.iter().map(|(x, ys)| at(*x, ys[0]));
                let high = points.iter().rev().map(|(x, ys)| at(*x, ys[2]));
                let band: Vec<_> = low.chain(high).collect();
                chart
                    .draw_series([Polygon::new(band, colour.mix(0.18))])
                    .map_err(drawing)?;
            }
            match curve.style {
                Style::Solid => {
                    chart
                        .draw_series(LineSeries::new(line.clone(), stroke))
                        .map_err(drawing)?;
                }
                Style::Dashed => {
                    let dashes = DashedLineSeries::new(line.clone(), 9 * scale, 6 * scale, stroke);
                    chart.draw_series(dashes).map_err(drawing)?;
                }
                Style::Dotted => {
                    let dots = DashedLineSeries::new(line.clone(), 2 * scale, 5 * scale, stroke);
                    chart.draw_series(dots).map_err(drawing)?;
                }
                Style::Points => {}
            }
            let radius = if curve.style == Style::Points { 6 } else { 4 };
            if matches!(curve.style, Style::Solid | Style::Points) && curve.points.len() <= 40 {
                let marks = line
                    .iter()
                    .map(|&place| Circle::new(place, radius * scale as i32, colour.filled()));
                chart.draw_series(marks).map_err(drawing)?;
            }
        }
        // One number of tasks alone has no line that would show its spread.
        if curve.points.len() == 1 && curve.style != Style::Points {
            let (x, ys) = curve.points[0];
            let bar = vec![at(x, ys[0]), at(x, ys[2])];
            chart
                .draw_series([PathElement::new(bar, stroke)])
                .map_err(drawing)?;
            chart
                .draw_series([Circle::new(at(x, ys[1]), 4 * scale as i32, colour.filled())])
                .map_err(drawing)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::result;

    #[test]
    fn ticks_are_round_and_lie_within_the_axis() {
        for values in [
            &[1.0, 2.0][..],
            &[5e6, 4e7],
            &[40.0, 9e9],
            &[0.0, 0.0],
            &[3.0],
            &[0.0, 7e3],
            &[1e-300],
            &[1e19],
        ] {
            let axis = Axis::of_values(values);
            assert!(axis.ticks.len() >= 2, "{values:?}: {:?}", axis.ticks);
            assert!(axis.ticks.len() <= 12, "{values:?}: {:?}", axis.ticks);
            for tick in &axis.ticks {
                let place = axis.place(*tick);
                assert!(axis.places.contains(&place), "{values:?}: {tick}");
            }
        }
    }

    #[test]
    fn tasks_are_logarithmic_where_they_span_much() {
        assert!(!Axis::of_tasks(&[1.0, 2.0, 8.0]).is_log);
        let axis = Axis::of_tasks(&[1.0, 2.0, 8.0, 1000.0]);
        assert!(axis.is_log);
        assert_eq!(axis.ticks, [1.0, 2.0, 8.0, 1000.0]);
        let dense: Vec<f64> = (1..=200).map(f64::from).collect();
        assert!(Axis::of_tasks(&dense).ticks.len() < 30);
    }

    #[test]
    fn a_figure_is_drawn_in_both_formats() {
        let result = result(&[("ops", &[1e6, 2e6]), ("wait_p99_ns", &[50.0, 90.0])]);
        let rows = rows_of(&result);
        assert_eq!(rows.len(), 1);
        let svg = svg(&rows).expect("drawn");
        for said in [
            "lock2 as threads",
            "library",
            "operations a second",
            "tasks",
        ] {
            assert!(svg.contains(said), "{said}");
        }
        assert!(png(&rows).expect("drawn").starts_with(b"\x89PNG"));
        assert!(for_file(&rows, Path::new("plot.gif")).is_err());
        assert!(super::svg(&[]).is_err(), "nothing to show");
        let many = vec![rows[0].clone(); MOST_ROWS + 1];
        assert!(super::png(&many).is_err(), "more than memory has room for");
    }

    #[test]
    fn nothing_is_written_as_0_where_the_axis_is_logarithmic() {
        let curve = |points: &[f64]| Curve {
            colour: 0,
            style: Style::Solid,
            points: (1..)
                .map(f64::from)
                .zip(points.iter().map(|y| [*y; 3]))
                .collect(),
        };
        let panel = |points: &[f64]| Panel {
            y_label: "checks".to_owned(),
            x_label: "tasks".to_owned(),
            unit: Unit::Number,
            curves: vec![curve(points)],
        };
        for (points, zeros) in [
            (&[5e6, 1e3, 0.0][..], 1),
            (&[0.0, 5e6, 0.0, 1e3], 2),
            (&[5e6, 1e3, 1e3], 0),
        ] {
            let svg = panel_svg(&panel(points)).expect("drawn");
            assert_eq!(svg.matches("\n0\n").count(), zeros, "{points:?}");
            let marks = svg.matches("<circle").count();
            assert_eq!(marks, points.len() - zeros, "{points:?}");
        }
    }

    #[test]
    fn names_give_up_room_only_where_it_is_short() {
        for (widths, room, expected) in [
            (&[10, 20, 30][..], 60, i32::MAX),
            (&[10, 20, 30], 50, 20),
            (&[50, 10, 50], 50, 20),
            (&[40, 40], 50, 25),
            (&[], 50, i32::MAX),
        ] {
            assert_eq!(widest(widths.to_vec(), room), expected, "{widths:?}");
        }
    }

    #[test]
    fn what_cannot_be_told_apart_is_refused_and_notes_are_all_drawn() {
        let mut row = rows_of(&result(&[("ops", &[1e6])])).remove(0);
        row.notes = vec!["a word ".repeat(60), "the second".to_owned()];
        assert_eq!(lines_of(&row.notes[0]).len(), 3);
        let drawn = svg(std::slice::from_ref(&row)).expect("drawn");
        assert_eq!(drawn.matches("word").count(), 60);
        assert!(drawn.contains("the second"));
        row.legend = vec![row.legend[0].clone(); COLOURS.len() + 1];
        let refused = svg(&[row]).expect_err("too many").to_string();
        assert!(refused.contains("--on"), "{refused}");
    }

    #[test]
    fn a_long_name_is_shortened_in_its_middle() {
        for (name, room, expected) in [
            ("kernel", 6, "kernel"),
            ("mount /a/very/long/way", 11, "mount…g/way"),
            ("kernel", 1, "…"),
        ] {
            let fits = |shown: &str| Ok(shown.chars().count() <= room);
            assert_eq!(fitting(name, fits).expect("measured"), expected);
        }
    }
}
