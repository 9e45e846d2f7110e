//! Plots of a report, and the chart that most of them are: a row per subject, a mark per number, on
//! a logarithmic axis.

use super::number::short;
use super::page::{bold, html_escape, small};
use super::svg::scale::Scale;
use super::svg::{CHAR, Canvas, LINE, Shape, WIDTH, cut, swatch, width};
use super::table::Table;

/// Plots side by side, with a common legend. Markdown shows tables of the numbers instead.
#[derive(Default)]
pub struct Plots {
    /// The legend: classes of the style sheet, shape and name. May be empty.
    pub legend: Vec<(String, Shape, String)>,
    /// How to read the plots; may be empty.
    pub note: String,
    /// The charts.
    pub charts: Vec<Chart>,
}

impl Plots {
    /// A block of HTML without an empty line, which would end it.
    pub(super) fn html(&self) -> String {
        let mut out = String::new();
        if !self.legend.is_empty() {
            let key = |(class, shape, name): &(String, Shape, String)| {
                format!("<li>{}{}</li>\n", swatch(class, *shape), html_escape(name))
            };
            let keys: String = self.legend.iter().map(key).collect();
            out += &format!("<ul class=\"legend\">\n{keys}</ul>\n");
        }
        if !self.note.is_empty() {
            out += &format!("<p class=\"note\">{}</p>\n", html_escape(&self.note));
        }
        let plot = |chart: &Chart| {
            let (title, detail) = (html_escape(&chart.title), small(&chart.detail));
            format!("<figure>\n<figcaption>{title}{detail}</figcaption>\n{}</figure>\n", chart.svg())
        };
        let plots: String = self.charts.iter().map(plot).collect();
        out + &format!("<div class=\"plots\">\n{plots}</div>\n")
    }

    pub(super) fn markdown(&self) -> String {
        let tabled = self.charts.iter().filter(|chart| !chart.has_table);
        let shown = |c: &Chart| format!("{}\n\n{}", bold(&c.title, &c.detail), c.table().markdown());
        tabled.map(shown).collect::<Vec<_>>().join("\n")
    }
}

/// A chart.
#[derive(Default)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// Small text beside the title.
    pub detail: String,
    /// What the numbers are, for screen readers.
    pub about: &'static str,
    /// The title of the axis.
    pub axis: &'static str,
    /// The unit of the axis: `x`, ` µs`.
    pub unit: &'static str,
    /// What a vertical line at 1 is; empty for no line.
    pub line: &'static str,
    /// Whether a table with the same numbers follows anyway.
    pub has_table: bool,
    /// The column of our own numbers in the table of the chart; empty for none.
    pub own: String,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A subject and its numbers.
#[derive(Default)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Our own number: with its unit, below the name, and for the table.
    pub own: (String, String),
    /// Its marks.
    pub marks: Vec<Mark>,
}

/// A number.
#[derive(Default)]
pub struct Mark {
    /// The name in legends and tables.
    pub name: String,
    /// The position in legends and tables.
    pub order: (usize, usize),
    /// Classes of the style sheet.
    pub class: &'static str,
    /// The shape.
    pub shape: Shape,
    /// The number, above zero.
    pub value: f64,
    /// The cell of the table.
    pub text: String,
    /// The tooltip.
    pub title: String,
    /// Whether the result is wrong: there is a cross at the right instead of a mark.
    pub failed: bool,
    /// Whether its number is written in bold above it: one mark of a row.
    pub bold: bool,
}

const TOP: f64 = 20.0;
const NAME: usize = 23;

/// Room for a number left of the line.
const NUMBER: f64 = 48.0;

/// Room at the right for crosses.
const GUTTER: f64 = 18.0;

impl Chart {
    /// Charts with a common legend. A cross means what `failed` says.
    pub fn plots(charts: Vec<Self>, failed: &str) -> Plots {
        let mut marks: Vec<&Mark> = charts.iter().flat_map(Self::marks).collect();
        marks.sort_by_key(|m| (m.failed, m.order, &m.name));
        marks.dedup_by_key(|m| (m.failed, &m.name));
        let (wrong, right): (Vec<&Mark>, Vec<&Mark>) = marks.into_iter().partition(|m| m.failed);
        let mut legend: Vec<_> =
            right.iter().map(|m| (m.class.to_owned(), m.shape, m.name.clone())).collect();
        if !wrong.is_empty() {
            let names: Vec<&str> = wrong.iter().map(|m| m.name.as_str()).collect();
            legend.push(("cross".into(), Shape::Cross, format!("{failed}: {}", names.join("; "))));
        }
        Plots { legend, note: String::new(), charts }
    }

    fn marks(&self) -> impl Iterator<Item = &Mark> {
        self.rows.iter().flat_map(|r| &r.marks)
    }

    /// The numbers.
    fn table(&self) -> Table {
        let mut columns: Vec<_> = self.marks().map(|m| (m.order, m.name.as_str())).collect();
        columns.sort_unstable();
        columns.dedup();
        let own = (!self.own.is_empty()).then_some(self.own.as_str());
        let titles = own.into_iter().chain(columns.iter().map(|c| c.1));
        let mut table = Table::default().words(["workload"]).numbers(titles);
        for row in &self.rows {
            let text = |name: &str| row.marks.iter().find(|m| m.name == name).map_or("", |m| m.text.as_str());
            let first = [row.name.as_str()].into_iter().chain(own.map(|_| row.own.1.as_str()));
            table.push(first.chain(columns.iter().map(|c| text(c.1))));
        }
        table
    }

    /// The drawing.
    pub fn svg(&self) -> String {
        let rows = &self.rows;
        let values = || self.marks().filter(|m| !m.failed).map(|m| m.value);
        let start = if self.line.is_empty() { values().next().unwrap_or(1.0) } else { 1.0 };
        let (lo, hi) = (values().fold(start, f64::min), values().fold(start, f64::max));
        let length = |r: &Row| r.name.chars().count().max(r.own.0.chars().count());
        let left = rows.iter().map(length).max().unwrap_or(0).min(NAME) as f64 * CHAR + 12.0;
        let gutter = if self.marks().any(|m| m.failed) { GUTTER } else { 0.0 };
        let right = WIDTH - width(&self.label(hi)).max(width("44x")) - 12.0 - gutter;
        let end = (hi * 1.05).max(2.0 * start.min(lo));
        // Left of the line there is room for a number.
        let share = NUMBER / (right - left);
        let from = match (self.line, lo < 1.0) {
            ("", _) => lo / 1.5,
            (_, true) => (lo / 1.15).min(end.powf(-share / (1.0 - share))),
            (_, false) => 0.9,
        };
        let scale = Scale::new(from, end, left, right);

        // Two lines of text per row, or one.
        let pitch = if rows.iter().all(|r| r.own.0.is_empty()) { 16.0 } else { 31.0 };
        let bottom = TOP + rows.len() as f64 * pitch;
        let mut canvas = Canvas::new(bottom + 38.0);
        // Longer units are in the title of the axis.
        let unit = if self.unit.len() == 1 { self.unit } else { "" };
        canvas.axis(&scale, (TOP, bottom), unit, self.axis);
        let one = if self.line.is_empty() { left } else { scale.at(1.0) };
        if !self.line.is_empty() {
            canvas.text("ours mid", one.max(left + width(self.line) / 2.0), TOP - 7.0, self.line);
        }
        for (i, row) in rows.iter().enumerate() {
            self.draw(&mut canvas, row, (&scale, one), TOP + i as f64 * pitch + (pitch + 6.0) / 2.0);
        }
        if !self.line.is_empty() {
            canvas.line("ours", one, TOP - 2.0, one, bottom);
        }
        let names: Vec<&str> = rows.iter().map(|r| r.name.as_str()).collect();
        canvas.finish(&format!("{}, {}, {}: {}", self.about, self.title, self.detail, names.join(", ")))
    }

    fn label(&self, value: f64) -> String {
        format!("{}{}", short(value), self.unit)
    }

    fn draw(&self, canvas: &mut Canvas, row: &Row, (scale, one): (&Scale, f64), middle: f64) {
        let base = if row.own.0.is_empty() { middle + 4.0 } else { middle - 1.0 };
        canvas.text("name", 0.0, base, &cut(&row.name, NAME));
        canvas.text("tick", 0.0, middle + LINE - 1.0, &row.own.0);
        let (failed, mut marks): (Vec<&Mark>, Vec<&Mark>) = row.marks.iter().partition(|m| m.failed);
        marks.sort_by(|a, b| a.value.total_cmp(&b.value));
        let at = |mark: &Mark| scale.at(mark.value);
        if let (Some(first), Some(last)) = (marks.first(), marks.last()) {
            canvas.line("reach", at(first).min(one), middle, at(last).max(one), middle);
            if !self.line.is_empty() {
                canvas.line("gap", one, middle, at(first), middle);
            }
            // Left of our line it would be written over the gap.
            if !last.bold && at(last) >= one && (marks.len() > 1 || self.line.is_empty()) {
                canvas.text("tick", at(last) + 8.0, middle + 4.0, &self.label(last.value));
            }
        }
        if let Some(bold) = marks.iter().find(|mark| mark.bold) {
            let (text, x) = (self.label(bold.value), at(bold));
            // The number must not cross the line.
            let half = width(&text) / 2.0 + 3.0;
            let x = if (x - one).abs() >= half { x } else { one + if x < one { -half } else { half } };
            canvas.text("best mid", x.max(scale.from + half), middle - 8.0, &text);
        }
        // The mark whose number is bold is drawn last, over the others.
        let (bold, others): (Vec<&Mark>, Vec<&Mark>) = marks.iter().rev().partition(|mark| mark.bold);
        for mark in others.into_iter().chain(bold) {
            canvas.mark(mark.class, mark.shape, at(mark), middle, &mark.title);
        }
        if !failed.is_empty() {
            let titles: Vec<&str> = failed.iter().map(|m| m.title.as_str()).collect();
            canvas.mark("cross", Shape::Cross, WIDTH - 7.0, middle, &titles.join("; "));
        }
    }
}
