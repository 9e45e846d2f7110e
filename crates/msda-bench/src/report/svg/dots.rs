//! Rows of dots: the values of one thing side by side.

use super::bars::{head, room};
use super::scale::Scale;
use super::{Anchor, CHAR, Canvas, NAME, WIDTH, cut, width};

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
    /// The text at its right end.
    pub note: String,
}

/// One dot.
pub struct Dot {
    /// Its classes in the style sheet.
    pub class: String,
    /// Its value.
    pub value: f64,
}

/// The plot with the title of its axis, which starts at zero. `label` describes it to screen
/// readers.
pub fn dots(blocks: &[Block], title: &str, label: &str) -> String {
    let rows = || blocks.iter().flat_map(|b| &b.rows);
    let hi = rows().flat_map(|r| &r.dots).map(|d| d.value).fold(0.0, f64::max);
    let longest = rows().map(|r| r.label.chars().count()).max().unwrap_or(0).min(NAME);
    let left = longest as f64 * CHAR + 12.0;
    let right = WIDTH - rows().map(|r| width(&r.note)).fold(24.0, f64::max) - 12.0;
    let scale = Scale::linear(hi, left, right);

    let count = rows().count() as f64;
    let bottom = count * PITCH + blocks.iter().map(|b| room(&b.heading)).sum::<f64>() + 2.0;
    let mut canvas = Canvas::new(bottom + 38.0);
    canvas.axis(&scale, (0.0, bottom), "", title);

    let mut reaches = Vec::new();
    let mut marks: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    let mut y = 0.0;
    for block in blocks {
        y = head(&mut canvas, y, &block.heading);
        for row in &block.rows {
            let middle = y + PITCH / 2.0;
            canvas.text("tick", Anchor::End, left - 8.0, middle + 4.0, &cut(&row.label, NAME));
            canvas.text("value", Anchor::Start, right + 8.0, middle + 4.0, &row.note);
            let places = || row.dots.iter().map(|d| scale.at(d.value));
            let (from, to) = (places().fold(right, f64::min), places().fold(left, f64::max));
            if from < to {
                reaches.push((from, middle, to, middle));
            }
            for dot in &row.dots {
                let place = (scale.at(dot.value), middle);
                match marks.iter_mut().find(|(class, _)| *class == dot.class) {
                    Some((_, places)) => places.push(place),
                    None => marks.push((&dot.class, vec![place])),
                }
            }
            y += PITCH;
        }
    }
    canvas.lines("reach", &reaches);
    for (class, places) in marks {
        canvas.circles(class, &places);
    }
    canvas.finish(label)
}
