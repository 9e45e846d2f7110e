//! Other implementations against ours: one row per workload, one mark per implementation.

use super::scale::Scale;
use super::{Anchor, CHAR, Canvas, LINE, Shape, WIDTH, cut, width};
use crate::report::number::times_short;

const PITCH: f64 = 31.0;
const TOP: f64 = 20.0;
const NAME: usize = 19;

/// Room for a number left of the line.
const NUMBER: f64 = 48.0;

/// Room at the right for crosses.
const GUTTER: f64 = 18.0;

/// A workload.
pub(in crate::report) struct Row {
    pub name: String,
    /// A text below the name.
    pub time: String,
    pub marks: Vec<Mark>,
    /// Tooltips of implementations that failed their check.
    pub failed: Vec<String>,
}

/// Another implementation.
pub(in crate::report) struct Mark {
    pub class: &'static str,
    pub shape: Shape,
    /// Its place on the axis.
    pub ratio: f64,
    pub title: String,
    /// Whether its number is written in bold above it: one mark of a row.
    pub bold: bool,
}

/// The texts of a chart.
pub(in crate::report) struct Words {
    /// What the vertical line at 1 is.
    pub line: &'static str,
    /// The title of the axis.
    pub axis: &'static str,
}

/// The chart. `label` describes it to screen readers.
pub(in crate::report) fn ratios(rows: &[Row], words: &Words, label: &str) -> String {
    let values = || rows.iter().flat_map(|r| &r.marks).map(|m| m.ratio);
    let (lo, hi) = (values().fold(1.0, f64::min), values().fold(1.0, f64::max));
    let longest = rows.iter().map(|r| r.name.chars().count().max(r.time.chars().count())).max().unwrap_or(0);
    let left = longest.min(NAME) as f64 * CHAR + 12.0;
    let gutter = if rows.iter().any(|r| !r.failed.is_empty()) { GUTTER } else { 0.0 };
    let right = WIDTH - width(&times_short(hi)).max(width("44x")) - 12.0 - gutter;
    let end = (hi * 1.05).max(2.0);
    // Left of the line there is room for a number.
    let share = NUMBER / (right - left);
    let from = if lo < 1.0 { (lo / 1.15).min(end.powf(-share / (1.0 - share))) } else { 0.9 };
    let scale = Scale::log(from, end, left, right);

    let bottom = TOP + rows.len() as f64 * PITCH;
    let mut canvas = Canvas::new(bottom + 38.0);
    canvas.axis(&scale, (TOP, bottom), "x", words.axis);
    let one = scale.at(1.0);
    canvas.text("ours", Anchor::Middle, one.max(left + width(words.line) / 2.0), TOP - 7.0, words.line);
    for (i, row) in rows.iter().enumerate() {
        draw(&mut canvas, row, &scale, TOP + i as f64 * PITCH);
    }
    canvas.line("ours", one, TOP - 2.0, one, bottom);
    canvas.finish(label)
}

fn draw(canvas: &mut Canvas, row: &Row, scale: &Scale, y: f64) {
    let middle = y + PITCH / 2.0 + 3.0;
    canvas.text("name", Anchor::Start, 0.0, middle - 1.0, &cut(&row.name, NAME));
    canvas.text("tick", Anchor::Start, 0.0, middle + LINE - 1.0, &row.time);
    let mut marks: Vec<&Mark> = row.marks.iter().collect();
    marks.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    let at = |mark: &Mark| scale.at(mark.ratio);
    let one = scale.at(1.0);
    if let (Some(first), Some(last)) = (marks.first(), marks.last()) {
        canvas.line("reach", at(first).min(one), middle, at(last).max(one), middle);
        canvas.line("gap", one, middle, at(first), middle);
        // Left of our line it would be written over the gap.
        if marks.len() > 1 && last.ratio >= 1.0 && !last.bold {
            canvas.text("tick", Anchor::Start, at(last) + 8.0, middle + 4.0, &times_short(last.ratio));
        }
    }
    if let Some(bold) = marks.iter().find(|mark| mark.bold) {
        let (text, x) = (times_short(bold.ratio), at(bold));
        // The number must not cross the line.
        let half = width(&text) / 2.0 + 3.0;
        let x = if (x - one).abs() >= half { x } else { one + if x < one { -half } else { half } };
        canvas.text("best", Anchor::Middle, x.max(scale.ends().0 + half), middle - 8.0, &text);
    }
    // The mark whose number is bold is drawn last, over the others.
    let (bold, others): (Vec<&Mark>, Vec<&Mark>) = marks.iter().rev().partition(|mark| mark.bold);
    for mark in others.into_iter().chain(bold) {
        canvas.mark(mark.class, mark.shape, at(mark), middle, &mark.title);
    }
    if !row.failed.is_empty() {
        canvas.mark("cross", Shape::Cross, WIDTH - 7.0, middle, &row.failed.join("; "));
    }
}
