//! Plots as inline SVG. The style sheet of the page sets the colours.

pub(super) mod scale;

use self::scale::Scale;
use super::by_key;
use super::page::html_escape;

/// The width of every plot in its own units; narrow, so that text stays legible on a phone.
pub(super) const WIDTH: f64 = 380.0;

/// The height of a line of text.
pub(super) const LINE: f64 = 12.0;

/// The mean width of a character, rounded up.
pub(super) const CHAR: f64 = 6.4;

/// A drawing under construction.
pub(super) struct Canvas {
    height: f64,
    body: String,
    /// Classes and texts.
    texts: Vec<(&'static str, String)>,
}

impl Canvas {
    pub(super) fn new(height: f64) -> Self {
        Self { height, body: String::new(), texts: Vec::new() }
    }

    pub(super) fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        self.lines(class, &[(x1, y1, x2, y2)]);
    }

    /// Separate lines as one element.
    fn lines(&mut self, class: &str, all: &[(f64, f64, f64, f64)]) {
        let line = |&(x1, y1, x2, y2): &(f64, f64, f64, f64)| {
            let to = match () {
                () if x1 == x2 => format!("V{}", n(y2)),
                () if y1 == y2 => format!("H{}", n(x2)),
                () => format!("L{} {}", n(x2), n(y2)),
            };
            format!("M{} {}{to}", n(x1), n(y1))
        };
        let path: String = all.iter().map(line).collect();
        if !path.is_empty() {
            self.body += &format!("<path class=\"{class}\" d=\"{path}\"/>\n");
        }
    }

    /// Text from a position on; around it if `mid` is among the classes.
    pub(super) fn text(&mut self, class: &'static str, x: f64, y: f64, text: &str) {
        let element = format!("<text x=\"{}\" y=\"{}\">{}</text>\n", n(x), n(y), html_escape(text));
        self.texts.push((class, element));
    }

    /// A mark with a tooltip; none if the title is empty.
    pub(super) fn mark(&mut self, class: &str, shape: Shape, x: f64, y: f64, title: &str) {
        let (tag, place) = match shape {
            Shape::Circle => ("circle", format!("cx=\"{}\" cy=\"{}\" r=\"4\"", n(x), n(y))),
            _ => ("path", format!("d=\"{}\"", shape.path(x, y, 4.0))),
        };
        self.body += &match title {
            "" => format!("<{tag} class=\"{class}\" {place}/>\n"),
            title => {
                format!("<{tag} class=\"{class}\" {place}><title>{}</title></{tag}>\n", html_escape(title))
            }
        };
    }

    /// A horizontal axis at the bottom of a plot, with its grid from `top` to `bottom`. Labels end
    /// with `unit`; those that would touch the one before are left out.
    pub(super) fn axis(&mut self, scale: &Scale, (top, bottom): (f64, f64), unit: &str, title: &str) {
        let ticks = scale.ticks();
        let grid = ticks.iter().map(|&(value, _)| (scale.at(value), top, scale.at(value), bottom));
        self.lines("grid", &grid.collect::<Vec<_>>());
        let mut free = f64::NEG_INFINITY;
        for (value, label) in &ticks {
            let (text, x) = (format!("{label}{unit}"), scale.at(*value));
            let half = width(&text) / 2.0;
            if x - half >= free {
                self.text("tick mid", x, bottom + LINE + 2.0, &text);
                free = x + half + CHAR;
            }
        }
        let (from, to) = (scale.from, scale.to);
        self.line("axis", from, bottom, to, bottom);
        self.text("title mid", (from + to) / 2.0, bottom + 2.0 * LINE + 8.0, title);
    }

    /// The drawing: texts lie over all else. `label` describes it to screen readers.
    pub(super) fn finish(self, label: &str) -> String {
        // Each class is written once.
        let group = |(class, all): (&str, Vec<(&str, String)>)| {
            let texts: String = all.into_iter().map(|(_, text)| text).collect();
            format!("<g class=\"{class}\">\n{texts}</g>\n")
        };
        format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\">\n<title>{}</title>\n{}{}</svg>\n",
            n(WIDTH),
            n(self.height),
            html_escape(label),
            self.body,
            by_key(self.texts, |(class, _)| *class).into_iter().map(group).collect::<String>()
        )
    }
}

/// The outline of a mark, so that marks differ without colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// A circle.
    #[default]
    Circle,
    /// A square.
    Square,
    /// A triangle.
    Triangle,
    /// A diamond.
    Diamond,
    /// A cross: a result that failed its check.
    Cross,
}

impl Shape {
    /// The shape of a dtype.
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
                format!("M{} {}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0-{d} 0Z", n(x - r), n(y), d = 2.0 * r)
            }
            Self::Square => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
            Self::Triangle => polygon(&[(0.0, -1.15), (1.1, 0.85), (-1.1, 0.85)]),
            Self::Diamond => polygon(&[(0.0, -1.2), (1.2, 0.0), (0.0, 1.2), (-1.2, 0.0)]),
            Self::Cross => {
                let (x0, x1, y0, y1) = (n(x - r), n(x + r), n(y - r), n(y + r));
                format!("M{x0} {y0}L{x1} {y1}M{x1} {y0}L{x0} {y1}")
            }
        }
    }
}

/// A mark alone, for a legend.
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
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.into();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// The width that a text takes.
pub(super) fn width(text: &str) -> f64 {
    text.chars().map(|c| if "%mwMW".contains(c) { 1.6 * CHAR } else { CHAR }).sum()
}
