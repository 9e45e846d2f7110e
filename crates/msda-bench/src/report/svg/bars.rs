//! Horizontal bars in blocks with headings; dots if the axis is logarithmic.

use super::scale::Scale;
use super::{Anchor, CHAR, Canvas, LINE, NAME, Shape, WIDTH, cut, width};

/// With a larger ratio of values the axis is logarithmic.
const LOG_FROM: f64 = 20.0;

const PITCH: f64 = 16.0;
const THICK: f64 = 10.0;

/// Bars under a heading.
pub struct Block {
    /// Its heading; empty for none.
    pub heading: String,
    /// Its bars.
    pub bars: Vec<Bar>,
}

/// One bar.
pub struct Bar {
    /// The text on its left.
    pub label: String,
    /// Its classes in the style sheet.
    pub class: String,
    /// None draws no bar.
    pub value: Option<f64>,
    /// The value as text.
    pub text: String,
    /// The ends of the spread.
    pub spread: Option<(f64, f64)>,
    /// A mark across the bar: the least time that the machine allows.
    pub floor: Option<f64>,
}

/// The chart with the title of its axis. `label` describes it to screen readers.
pub fn bars(blocks: &[Block], title: &str, label: &str) -> String {
    let all = || blocks.iter().flat_map(|b| &b.bars);
    let values = || all().flat_map(|b| [b.value, b.floor.filter(|_| b.value.is_some())]).flatten();
    let hi = values().fold(0.0, f64::max);
    // The spread fits too, unless an outlier would shorten all bars.
    let hi = all().filter_map(|b| b.spread).map(|s| s.1.min(hi * 1.25)).fold(hi, f64::max);
    let lo = values().filter(|&v| v > 0.0).fold(f64::INFINITY, f64::min);
    let log = lo > 0.0 && hi / lo > LOG_FROM;

    let longest = all().map(|b| b.label.chars().count()).max().unwrap_or(0).min(NAME);
    let left = longest as f64 * CHAR + 10.0;
    let right = WIDTH - all().map(|b| width(&b.text)).fold(30.0, f64::max) - 8.0;
    let scale = if log { Scale::log(lo / 1.5, hi, left, right) } else { Scale::linear(hi, left, right) };

    let rows: usize = blocks.iter().map(|b| b.bars.len()).sum();
    let bottom = rows as f64 * PITCH + blocks.iter().map(|b| room(&b.heading)).sum::<f64>() + 2.0;
    let mut canvas = Canvas::new(bottom + 38.0);
    canvas.axis(&scale, (0.0, bottom), "", &if log { format!("{title} (log scale)") } else { title.into() });

    let mut y = 0.0;
    for block in blocks {
        y = head(&mut canvas, y, &block.heading);
        for bar in &block.bars {
            draw(&mut canvas, &scale, bar, left, y, log);
            y += PITCH;
        }
    }
    canvas.finish(label)
}

/// The height of a heading.
pub(super) fn room(heading: &str) -> f64 {
    if heading.is_empty() { 4.0 } else { LINE + 10.0 }
}

/// Writes a heading and returns the position below it.
pub(super) fn head(canvas: &mut Canvas, y: f64, text: &str) -> f64 {
    if !text.is_empty() {
        let most = (WIDTH / CHAR) as usize;
        canvas.text("head", Anchor::Start, 0.0, y + LINE + 4.0, &cut(text, most));
    }
    y + room(text)
}

fn draw(canvas: &mut Canvas, scale: &Scale, bar: &Bar, left: f64, y: f64, log: bool) {
    let (top, middle, base) = (y + (PITCH - THICK) / 2.0, y + PITCH / 2.0, y + PITCH / 2.0 + 4.0);
    canvas.text("tick", Anchor::End, left - 6.0, base, &cut(&bar.label, NAME));
    let mut end = left;
    if let Some(value) = bar.value {
        end = scale.at(value);
        // The length of a bar means nothing on a logarithmic axis, which has no zero.
        if log {
            canvas.line("reach", left, middle, end, middle);
            canvas.mark(&bar.class, Shape::Circle, end, middle, "");
            end += 3.0;
        } else {
            canvas.bar(&bar.class, left, top, end - left, THICK);
        }
        if let Some((lo, hi)) = bar.spread {
            canvas.line("spread", scale.at(lo), middle, scale.at(hi), middle);
            end = end.max(scale.at(hi));
        }
        if let Some(floor) = bar.floor {
            let x = scale.at(floor);
            canvas.line("floor", x, top - 2.0, x, top + THICK + 2.0);
            end = end.max(x);
        }
    }
    canvas.text("value", Anchor::Start, end + 5.0, base, &bar.text);
}
