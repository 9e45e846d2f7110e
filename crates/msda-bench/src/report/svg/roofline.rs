//! The roofline: arithmetic rate against arithmetic intensity, with the measured ceilings.

use super::scale::Scale;
use super::{Anchor, CHAR, Canvas, Shape, WIDTH, cut, width};
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
    /// Written beside the point if there is room.
    pub label: Option<String>,
}

/// A rectangle that later labels must not cover.
#[derive(Clone, Copy)]
struct Space {
    x0: f64,
    y0: f64,
    x1: f64,
    y1: f64,
}

/// The plot. `label` describes it to screen readers.
pub(in crate::report) fn roofline(roofs: &[Roof], points: &[Point], label: &str) -> String {
    let (x, y) = scales(roofs, points);
    let mut canvas = Canvas::new(HEIGHT);
    let titles = ("FLOP per byte gathered (log scale)", "GFLOP/s (log scale)");
    canvas.axes((&x.scale, titles.0), (&y.scale, titles.1));

    let mut taken: Vec<Space> = Vec::new();
    let top = roofs.iter().filter(|r| r.flat).map(|r| r.rate).fold(f64::INFINITY, f64::min);
    ceilings(&mut canvas, roofs, top, &x, &y, &mut taken);

    let places: Vec<(f64, f64)> =
        points.iter().map(|p| (x.scale.at(p.intensity), y.scale.at(p.rate))).collect();
    for (point, &(px, py)) in points.iter().zip(&places) {
        canvas.mark(&point.class, point.shape, px, py, &point.title);
        taken.push(Space { x0: px - 4.0, y0: py - 4.0, x1: px + 4.0, y1: py + 4.0 });
    }
    let mut named: Vec<(&String, f64, f64)> = Vec::new();
    for (point, &(px, py)) in points.iter().zip(&places) {
        let Some(text) = &point.label else { continue };
        // Points of one intensity and rate share a label.
        let near = |&(text0, x, y): &(&String, f64, f64)| text0 == text && (x - px).hypot(y - py) < 8.0;
        if !named.iter().any(near) {
            beside(&mut canvas, &cut(text, 30), px, py, &mut taken);
            named.push((text, px, py));
        }
    }
    canvas.finish(label)
}

/// An axis and the range it shows.
struct Range {
    lo: f64,
    hi: f64,
    scale: Scale,
}

/// Ranges that contain all points and, if it is near, the corner below the highest roof.
fn scales(roofs: &[Roof], points: &[Point]) -> (Range, Range) {
    let span = |values: &dyn Fn(&Point) -> f64| {
        let lo = points.iter().map(values).fold(f64::INFINITY, f64::min);
        let hi = points.iter().map(values).fold(0.0, f64::max);
        if lo > 0.0 && lo.is_finite() && hi.is_finite() { (lo, hi) } else { (1.0, 1.0) }
    };
    let (x0, x1) = span(&|p| p.intensity);
    let (y0, y1) = span(&|p| p.rate);
    let flat = roofs.iter().filter(|r| r.flat).map(|r| r.rate).fold(0.0, f64::max);
    let steep = roofs.iter().filter(|r| !r.flat).map(|r| r.rate).fold(0.0, f64::max);

    let corner = if flat > 0.0 && steep > 0.0 { flat / steep } else { x1 };
    let (lo, hi) = (x0.min(corner.max(x0 / 16.0)) / 2.5, x1.max(corner.min(x1 * 16.0)) * 2.5);
    let x = Range { lo, hi, scale: Scale::log(lo, hi, LEFT, RIGHT) };
    let roof = if flat > 0.0 { flat } else { steep * hi };
    let (lo, hi) = (y0 / 2.0, y1.max(roof.min(y1 * 1e4)) * 1.8);
    let y = Range { lo, hi, scale: Scale::log(lo, hi, BOTTOM, TOP) };
    (x, y)
}

/// Draws the slopes up to the flat roof, and the flat roof from its crossing with the steepest
/// slope.
fn ceilings(canvas: &mut Canvas, roofs: &[Roof], top: f64, x: &Range, y: &Range, taken: &mut Vec<Space>) {
    let mut slopes: Vec<&Roof> = roofs.iter().filter(|r| !r.flat).collect();
    slopes.sort_by(|a, b| b.rate.total_cmp(&a.rate));
    for roof in roofs.iter().filter(|r| r.flat && r.rate < y.hi && r.rate > y.lo) {
        let from = slopes.first().map_or(x.lo, |s| (roof.rate / s.rate).clamp(x.lo, x.hi));
        let at = y.scale.at(roof.rate);
        canvas.line("roof", x.scale.at(from), at, RIGHT, at);
        let text = name(roof);
        canvas.text("roofname", Anchor::End, RIGHT - 3.0, at - 5.0, &text);
        taken.push(Space { x0: RIGHT - 3.0 - width(&text), y0: at - 16.0, x1: RIGHT, y1: at });
    }
    for (i, roof) in slopes.iter().enumerate() {
        let from = x.lo.max(y.lo / roof.rate);
        let to = x.hi.min(top.min(y.hi) / roof.rate);
        if from >= to {
            continue;
        }
        let (x0, y0) = (x.scale.at(from), y.scale.at(from * roof.rate));
        let (x1, y1) = (x.scale.at(to), y.scale.at(to * roof.rate));
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
        let lift = (lift * dy / length, -lift * dx / length);
        let at = (x0 + share * dx + lift.0, y0 + share * dy + lift.1);
        canvas.rotated("roofname", Anchor::Start, at, dy.atan2(dx).to_degrees(), &text);
        for step in 0..text.chars().count() {
            let along = step as f64 * CHAR / length;
            let (cx, cy) = (at.0 + along * dx, at.1 + along * dy);
            taken.push(Space { x0: cx - 2.0, y0: cy - 8.0, x1: cx + 6.0, y1: cy + 2.0 });
        }
    }
}

fn name(roof: &Roof) -> String {
    format!("{} {} {}", roof.name, short(roof.rate), if roof.flat { "GFLOP/s" } else { "GB/s" })
}

/// Writes a label where it covers nothing, or leaves it out: the table has every name.
fn beside(canvas: &mut Canvas, text: &str, px: f64, py: f64, taken: &mut Vec<Space>) {
    let w = width(text);
    // Above is tried first: points with a label are the highest of their kind.
    let tries =
        [(-w / 2.0, -9.0), (-4.0, -9.0), (4.0 - w, -9.0), (8.0, 4.0), (-8.0 - w, 4.0), (-w / 2.0, -21.0)];
    for (dx, dy) in tries {
        let (x, base) = (px + dx, py + dy);
        let space = Space { x0: x, y0: base - 9.0, x1: x + w, y1: base + 2.0 };
        let inside = space.x0 > LEFT + 2.0 && space.x1 < RIGHT && space.y0 > TOP && space.y1 < BOTTOM;
        if inside && !taken.iter().any(|t| t.meets(space)) {
            canvas.text("name", Anchor::Start, x, base, text);
            taken.push(space);
            return;
        }
    }
}

impl Space {
    fn meets(self, other: Self) -> bool {
        self.x0 < other.x1 && other.x0 < self.x1 && self.y0 < other.y1 && other.y0 < self.y1
    }
}
