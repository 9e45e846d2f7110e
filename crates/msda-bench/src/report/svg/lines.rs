//! How one number grows with another: a line through what was measured, by logarithms.

use super::scale::Scale;
use super::{Anchor, Canvas, LINE, Shape, WIDTH};

const HEIGHT: f64 = 230.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = HEIGHT - 40.0;

/// What is joined by one line.
pub struct Series {
    /// Its classes in the style sheet.
    pub class: String,
    /// The shape of its points.
    pub shape: Shape,
    /// From left to right: x, y, and what it says to those who point at it.
    pub points: Vec<(f64, f64, String)>,
}

/// What an axis shows.
#[derive(Clone, Copy)]
pub struct Axis<'a> {
    /// The text of its tooltip.
    pub title: &'a str,
    /// By logarithms; from zero on otherwise.
    pub log: bool,
}

/// The plot; `label` says what it shows to those who do not see it.
pub fn lines(all: &[Series], x: Axis<'_>, y: Axis<'_>, label: &str) -> String {
    let points = || all.iter().flat_map(|s| &s.points);
    let across = scale(x, &|| Box::new(points().map(|p| p.0)), LEFT, RIGHT);
    let up = scale(y, &|| Box::new(points().map(|p| p.1)), BOTTOM, TOP);
    let mut canvas = Canvas::new(HEIGHT);
    for (value, text) in up.ticks(5) {
        let at = up.at(value);
        canvas.line("grid", LEFT, at, RIGHT, at);
        canvas.text("tick", Anchor::End, LEFT - 5.0, at + 4.0, &text);
    }
    for (value, text) in across.ticks(5) {
        let at = across.at(value);
        canvas.line("grid", at, TOP, at, BOTTOM);
        canvas.text("tick", Anchor::Middle, at, BOTTOM + LINE + 2.0, &text);
    }
    canvas.line("axis", LEFT, BOTTOM, RIGHT, BOTTOM);
    canvas.line("axis", LEFT, TOP, LEFT, BOTTOM);
    let named = |axis: Axis<'_>| axis.title.to_owned() + if axis.log { " (log scale)" } else { "" };
    canvas.text("title", Anchor::Middle, (LEFT + RIGHT) / 2.0, HEIGHT - 6.0, &named(x));
    canvas.turned("title", Anchor::Middle, (10.0, (TOP + BOTTOM) / 2.0), -90.0, &named(y));
    for series in all {
        let places: Vec<(f64, f64)> = series.points.iter().map(|p| (across.at(p.0), up.at(p.1))).collect();
        canvas.path(&format!("{} curve", series.class), &places);
        for (&(px, py), (_, _, title)) in places.iter().zip(&series.points) {
            canvas.mark(&series.class, series.shape, px, py, title);
        }
    }
    let says: Vec<String> = points().map(|p| p.2.clone()).collect();
    canvas.finish(label, &says)
}

type Values<'a> = Box<dyn Iterator<Item = f64> + 'a>;

fn scale<'a>(axis: Axis<'_>, values: &dyn Fn() -> Values<'a>, from: f64, to: f64) -> Scale {
    let (lo, hi) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    if !axis.log || lo <= 0.0 {
        return Scale::linear(hi * 1.05, from, to);
    }
    Scale::log(lo / 1.15, hi * 1.15, from, to)
}
