//! One number against another as lines through the measured points.

use super::scale::Scale;
use super::{Canvas, Shape, WIDTH};

const HEIGHT: f64 = 230.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = HEIGHT - 40.0;

/// The points that one line joins.
pub struct Series {
    /// Its classes in the style sheet.
    pub class: String,
    /// The shape of its points.
    pub shape: Shape,
    /// From left to right: x and y.
    pub points: Vec<(f64, f64)>,
}

/// An axis.
#[derive(Clone, Copy)]
pub struct Axis<'a> {
    /// The title.
    pub title: &'a str,
    /// Logarithmic; otherwise linear from zero.
    pub log: bool,
}

/// The plot. `label` describes it to screen readers.
pub fn lines(all: &[Series], x: Axis<'_>, y: Axis<'_>, label: &str) -> String {
    let points = || all.iter().flat_map(|s| &s.points);
    let across = scale(x, &|| Box::new(points().map(|p| p.0)), LEFT, RIGHT);
    let up = scale(y, &|| Box::new(points().map(|p| p.1)), BOTTOM, TOP);
    let mut canvas = Canvas::new(HEIGHT);
    let named = |axis: Axis<'_>| axis.title.to_owned() + if axis.log { " (log scale)" } else { "" };
    canvas.axes((&across, &named(x)), (&up, &named(y)));
    for series in all {
        let places: Vec<(f64, f64)> = series.points.iter().map(|p| (across.at(p.0), up.at(p.1))).collect();
        canvas.path(&format!("{} curve", series.class), &places);
        for &(px, py) in &places {
            canvas.mark(&series.class, series.shape, px, py, "");
        }
    }
    canvas.finish(label)
}

type Values<'a> = Box<dyn Iterator<Item = f64> + 'a>;

fn scale<'a>(axis: Axis<'_>, values: &dyn Fn() -> Values<'a>, from: f64, to: f64) -> Scale {
    let (lo, hi) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    if !axis.log || lo <= 0.0 {
        return Scale::linear(hi * 1.05, from, to);
    }
    Scale::log(lo / 1.15, hi * 1.15, from, to)
}
