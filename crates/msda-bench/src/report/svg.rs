//! Plots as inline SVG, styled by the page.

pub mod bars;
pub mod changes;
pub mod dots;
pub mod lines;
pub(super) mod palette;
pub(super) mod roofline;
mod scale;
pub mod stack;

use super::escape::escape;

/// The width of every plot in its own units; narrow, so that text stays legible on a phone.
const WIDTH: f64 = 380.0;

/// The height of a line of text.
const LINE: f64 = 12.0;

/// The mean width of a character, on the safe side.
const CHAR: f64 = 6.4;

/// The longest name beside a row, in characters.
const NAME: usize = 23;

/// Where a text is held.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing under construction.
struct Canvas {
    height: f64,
    body: String,
}

impl Canvas {
    fn new(height: f64) -> Self {
        Self { height, body: String::new() }
    }

    fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        self.body += &format!(
            "<line class=\"{class}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n",
            n(x1),
            n(y1),
            n(x2),
            n(y2)
        );
    }

    fn text(&mut self, class: &str, anchor: Anchor, x: f64, y: f64, text: &str) {
        self.body += &format!(
            "<text class=\"{class}{}\" x=\"{}\" y=\"{}\">{}</text>\n",
            anchor.class(),
            n(x),
            n(y),
            escape(text)
        );
    }

    /// Text turned about its anchor, in degrees.
    fn turned(&mut self, class: &str, anchor: Anchor, at: (f64, f64), degrees: f64, text: &str) {
        self.body += &format!(
            "<text class=\"{class}{}\" transform=\"translate({} {}) rotate({})\">{}</text>\n",
            anchor.class(),
            n(at.0),
            n(at.1),
            n(degrees),
            escape(text)
        );
    }

    fn bar(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64, title: &str) {
        self.body += &format!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}</title></rect>\n",
            n(x),
            n(y),
            n(width.max(0.0)),
            n(height.max(0.0)),
            escape(title)
        );
    }

    /// A line through points.
    fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points.iter().map(|&(x, y)| format!("{} {}", n(x), n(y))).collect();
        self.body += &format!("<path class=\"{class}\" d=\"M{}\"/>\n", points.join("L"));
    }

    fn mark(&mut self, class: &str, shape: Shape, x: f64, y: f64, title: &str) {
        self.body += &format!(
            "<path class=\"{class}\" d=\"{}\"><title>{}</title></path>\n",
            shape.path(x, y, 4.0),
            escape(title)
        );
    }

    /// The drawing; `label` says what it shows to those who do not see it, `says` what is in it.
    fn finish(self, label: &str, says: &[String]) -> String {
        format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\">\n<title>{}</title>\n<desc>{}</desc>\n{}</svg>\n",
            n(WIDTH),
            n(self.height),
            escape(label),
            escape(&says.join("; ")),
            self.body
        )
    }
}

impl Anchor {
    fn class(self) -> &'static str {
        match self {
            Self::Start => "",
            Self::Middle => " mid",
            Self::End => " end",
        }
    }
}

/// A marker's outline: what tells dtypes apart without colour.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A circle.
    Circle,
    /// A square.
    Square,
    /// A triangle.
    Triangle,
    /// A diamond.
    Diamond,
}

impl Shape {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Circle, Self::Square, Self::Triangle, Self::Diamond];

    /// The shape that stands for a dtype.
    pub fn of(dtype: &str) -> Self {
        match dtype {
            "f32" => Self::Circle,
            "f16" => Self::Square,
            "bf16" => Self::Triangle,
            _ => Self::Diamond,
        }
    }

    fn path(self, x: f64, y: f64, r: f64) -> String {
        let polygon = |corners: &[(f64, f64)]| {
            let points: Vec<String> =
                corners.iter().map(|(dx, dy)| format!("{} {}", n(x + dx * r), n(y + dy * r))).collect();
            format!("M{}Z", points.join("L"))
        };
        match self {
            Self::Circle => {
                format!("M{} {}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0Z", n(x - r), n(y), d = 2.0 * r)
            }
            Self::Square => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
            Self::Triangle => polygon(&[(0.0, -1.15), (1.1, 0.85), (-1.1, 0.85)]),
            Self::Diamond => polygon(&[(0.0, -1.2), (1.2, 0.0), (0.0, 1.2), (-1.2, 0.0)]),
        }
    }
}

/// A marker on its own, for a legend.
pub(super) fn swatch(class: &str, shape: Shape) -> String {
    format!(
        "<svg class=\"swatch\" viewBox=\"0 0 12 12\" aria-hidden=\"true\"><path class=\"{class}\" d=\"{}\"/></svg>",
        shape.path(6.0, 6.0, 4.5)
    )
}

/// A coordinate: never anything but a plain number.
fn n(value: f64) -> String {
    if !value.is_finite() {
        return "0".into();
    }
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".into(),
        Some(whole) => whole.into(),
        None => text,
    }
}

/// Text no longer than a number of characters.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.into();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// The width that a text takes.
fn width(text: &str) -> f64 {
    text.chars().map(|c| if "%mwMW".contains(c) { 1.6 * CHAR } else { CHAR }).sum()
}
