//! Engines as dots along a row: how far apart they are, at a glance.

use super::bars::{axis, head, room};
use super::scale::Scale;
use super::{Anchor, CHAR, Canvas, NAME, Shape, WIDTH, cut, width};

const PITCH: f64 = 15.0;

/// Rows under a heading.
pub struct Block {
    /// Its heading; empty for none.
    pub heading: String,
    /// Its rows.
    pub rows: Vec<Row>,
}

/// One row of dots.
pub struct Row {
    /// The text on its left.
    pub label: String,
    /// Its dots.
    pub dots: Vec<Dot>,
    /// What to say of the row at its right end.
    pub note: String,
}

/// One dot.
pub struct Dot {
    /// Its classes in the style sheet.
    pub class: String,
    /// Its value.
    pub value: f64,
    /// The text of its tooltip.
    pub title: String,
}

/// What the dots are measured in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Ratios around one, by their logarithms.
    Ratio,
    /// Shares of one, in percent.
    Share,
    /// Numbers from zero on, of that name.
    Number(&'static str),
}

/// The plot; `label` says what it shows to those who do not see it.
pub fn dots(blocks: &[Block], kind: Axis, label: &str) -> String {
    let rows = || blocks.iter().flat_map(|b| &b.rows);
    let values = || rows().flat_map(|r| &r.dots).map(|d| d.value);
    let hi = values().fold(1.0, f64::max);
    let lo = values().fold(1.0, f64::min);

    let longest = rows().map(|r| r.label.chars().count()).max().unwrap_or(0).min(NAME);
    let left = longest as f64 * CHAR + 12.0;
    let right = WIDTH - rows().map(|r| width(&r.note)).fold(24.0, f64::max) - 12.0;
    let (scale, title) = match kind {
        Axis::Ratio => (
            Scale::log(lo / 1.25, (hi * 1.25).max(2.0), left, right),
            "speed-up over the baseline (log scale)",
        ),
        Axis::Share => (Scale::linear(hi * 100.0, left, right), "share of the floor reached, %"),
        Axis::Number(name) => (Scale::linear(values().fold(0.0, f64::max), left, right), name),
    };
    let place = |v: f64| scale.at(if kind == Axis::Share { v * 100.0 } else { v });

    let count = rows().count() as f64;
    let bottom = count * PITCH + blocks.iter().map(|b| room(&b.heading)).sum::<f64>() + 2.0;
    let mut canvas = Canvas::new(bottom + 38.0);
    axis(&mut canvas, &scale, bottom, title);
    if matches!(kind, Axis::Ratio | Axis::Share) {
        canvas.line("one", place(1.0), 0.0, place(1.0), bottom);
    }

    let mut y = 0.0;
    for block in blocks {
        y = head(&mut canvas, y, &block.heading);
        for row in &block.rows {
            let middle = y + PITCH / 2.0;
            canvas.text("tick", Anchor::End, left - 8.0, middle + 4.0, &cut(&row.label, NAME));
            let places = || row.dots.iter().map(|d| place(d.value));
            if !row.dots.is_empty() {
                let (from, to) = (places().fold(right, f64::min), places().fold(left, f64::max));
                canvas.line("reach", from, middle, to, middle);
            }
            for dot in &row.dots {
                canvas.mark(&dot.class, Shape::Circle, place(dot.value), middle, &dot.title);
            }
            canvas.text("value", Anchor::Start, right + 8.0, middle + 4.0, &row.note);
            y += PITCH;
        }
    }
    let says = |b: &Block| {
        let rows = b.rows.iter().map(|r| format!("{} {}: {}", b.heading, r.label, r.note));
        rows.collect::<Vec<_>>()
    };
    canvas.finish(label, &blocks.iter().flat_map(says).collect::<Vec<_>>())
}
