//! Differences in percent as bars on both sides of zero.

use super::scale::Scale;
use super::{Anchor, CHAR, Canvas, NAME, WIDTH, cut, width};

const PITCH: f64 = 16.0;
const THICK: f64 = 10.0;

/// One difference.
pub struct Change {
    /// The text on its left.
    pub label: String,
    /// Percent; larger is better.
    pub value: f64,
    /// The value as text.
    pub text: String,
}

/// The chart. `label` describes it to screen readers.
pub fn changes(all: &[Change], title: &str, label: &str) -> String {
    let lo = all.iter().map(|c| c.value).fold(0.0, f64::min);
    let hi = all.iter().map(|c| c.value).fold(0.0, f64::max);
    let longest = all.iter().map(|c| c.label.chars().count()).max().unwrap_or(0).min(NAME);
    let text = all.iter().map(|c| width(&c.text)).fold(30.0, f64::max) + 8.0;
    let left = longest as f64 * CHAR + 10.0;
    // Numbers are written outside the bars, at their ends.
    let from = if lo < 0.0 { left + text } else { left };
    let to = if hi > 0.0 { WIDTH - text } else { WIDTH - 12.0 };
    let scale = Scale::between(lo, if lo < 0.0 || hi > 0.0 { hi } else { 1.0 }, from, to);

    let bottom = all.len() as f64 * PITCH + 6.0;
    let mut canvas = Canvas::new(bottom + 38.0);
    canvas.axis(&scale, (0.0, bottom), "", title);
    let zero = scale.at(0.0);
    for (i, change) in all.iter().enumerate() {
        let y = 4.0 + i as f64 * PITCH;
        let (top, base, end) = (y + (PITCH - THICK) / 2.0, y + PITCH / 2.0 + 4.0, scale.at(change.value));
        canvas.text("tick", Anchor::End, left - 6.0, base, &cut(&change.label, NAME));
        let class = if change.value < 0.0 { "k k4" } else { "k k2" };
        canvas.bar(class, zero.min(end), top, (end - zero).abs(), THICK);
        if change.value < 0.0 {
            canvas.text("value", Anchor::End, end - 5.0, base, &change.text);
        } else {
            canvas.text("value", Anchor::Start, end + 5.0, base, &change.text);
        }
    }
    canvas.line("one", zero, 0.0, zero, bottom);
    canvas.finish(label)
}
