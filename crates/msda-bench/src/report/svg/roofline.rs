//! The roofline: arithmetic rate against arithmetic intensity, with the measured ceilings.

use super::scale::Scale;
use super::{Anchor, Canvas, Shape, WIDTH, width};
use crate::report::number::short;

const HEIGHT: f64 = 330.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = WIDTH - 6.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = HEIGHT - 40.0;

/// A ceiling to draw.
pub(in crate::report) struct Roof {
    pub name: String,
    /// GFLOP/s where `flat`, else GB/s.
    pub rate: f64,
    pub flat: bool,
}

/// A measurement to draw.
pub(in crate::report) struct Point {
    /// FLOP per byte gathered.
    pub intensity: f64,
    /// GFLOP/s.
    pub rate: f64,
    pub class: String,
    pub shape: Shape,
    pub title: String,
}

/// The plot. `label` describes it to screen readers.
pub(in crate::report) fn roofline(roofs: &[Roof], points: &[Point], label: &str) -> String {
    let (x, y) = scales(roofs, points);
    let mut canvas = Canvas::new(HEIGHT);
    canvas.axes((&x, "FLOP per byte gathered (log scale)"), (&y, "GFLOP/s (log scale)"));
    ceilings(&mut canvas, roofs, &x, &y);
    for point in points {
        canvas.mark(&point.class, point.shape, x.at(point.intensity), y.at(point.rate), &point.title);
    }
    canvas.finish(label)
}

/// Ranges that contain all points and, if it is near, the corner below the highest roof.
fn scales(roofs: &[Roof], points: &[Point]) -> (Scale, Scale) {
    let span = |values: &dyn Fn(&Point) -> f64| {
        let lo = points.iter().map(values).fold(f64::INFINITY, f64::min);
        let hi = points.iter().map(values).fold(0.0, f64::max);
        if lo > 0.0 && lo.is_finite() && hi.is_finite() { (lo, hi) } else { (1.0, 1.0) }
    };
    let (x0, x1) = span(&|p| p.intensity);
    let (y0, y1) = span(&|p| p.rate);
    let highest = |flat| roofs.iter().filter(|r| r.flat == flat).map(|r| r.rate).fold(0.0, f64::max);
    let (flat, steep) = (highest(true), highest(false));

    let corner = if flat > 0.0 && steep > 0.0 { flat / steep } else { x1 };
    let (lo, hi) = (x0.min(corner.max(x0 / 16.0)) / 2.5, x1.max(corner.min(x1 * 16.0)) * 2.5);
    let roof = if flat > 0.0 { flat } else { steep * hi };
    let x = Scale::new(lo, hi, LEFT, RIGHT);
    (x, Scale::new(y0 / 2.0, y1.max(roof.min(y1 * 1e4)) * 1.8, BOTTOM, TOP))
}

/// Draws the slopes up to the flat roof, and the flat roof from its crossing with the steepest
/// slope.
fn ceilings(canvas: &mut Canvas, roofs: &[Roof], x: &Scale, y: &Scale) {
    let top = roofs.iter().filter(|r| r.flat).map(|r| r.rate).fold(f64::INFINITY, f64::min);
    let mut slopes: Vec<&Roof> = roofs.iter().filter(|r| !r.flat).collect();
    slopes.sort_by(|a, b| b.rate.total_cmp(&a.rate));
    for roof in roofs.iter().filter(|r| r.flat && r.rate < y.hi && r.rate > y.lo) {
        let from = slopes.first().map_or(x.lo, |s| (roof.rate / s.rate).clamp(x.lo, x.hi));
        let at = y.at(roof.rate);
        canvas.line("roof", x.at(from), at, RIGHT, at);
        canvas.text("roofname", Anchor::End, RIGHT - 3.0, at - 5.0, &name(roof));
    }
    for (i, roof) in slopes.iter().enumerate() {
        let from = x.lo.max(y.lo / roof.rate);
        let to = x.hi.min(top.min(y.hi) / roof.rate);
        if from >= to {
            continue;
        }
        let (x0, y0) = (x.at(from), y.at(from * roof.rate));
        let (x1, y1) = (x.at(to), y.at(to * roof.rate));
        canvas.line(&format!("roof dash{}", i.min(2)), x0, y0, x1, y1);

        let (text, length) = (name(roof), (x1 - x0).hypot(y1 - y0));
        if length < width(&text) + 12.0 {
            continue;
        }
        // Slopes are close together: the name of the steepest is at the left, that of the lowest
        // below it.
        let share = if i == 0 { 6.0 } else { length - width(&text) - 6.0 } / length;
        let (dx, dy) = (x1 - x0, y1 - y0);
        let lift = if i > 0 && i + 1 == slopes.len() { -13.0 } else { 4.0 };
        let at = (x0 + share * dx + lift * dy / length, y0 + share * dy - lift * dx / length);
        canvas.rotated("roofname", Anchor::Start, at, dy.atan2(dx).to_degrees(), &text);
    }
}

fn name(roof: &Roof) -> String {
    format!("{} {} {}", roof.name, short(roof.rate), if roof.flat { "GFLOP/s" } else { "GB/s" })
}
