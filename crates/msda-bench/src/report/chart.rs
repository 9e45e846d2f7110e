//! Bar charts, for pages and for pictures.

use super::escape::html_escape;
use super::group::positive;

/// A bar per implementation or kernel.
#[derive(Debug, Clone)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// The bars, from top to bottom.
    pub bars: Vec<Bar>,
}

/// A bar of a [`Chart`].
#[derive(Debug, Clone)]
pub struct Bar {
    /// The text at its left.
    pub name: String,
    /// Its length relative to the other bars; without a positive number only the texts are shown.
    pub value: f64,
    /// The text at its right.
    pub text: String,
    /// Whether it stands out.
    pub own: bool,
}

/// Columns of a chart in pixels: the names, the longest bar, and all with the texts.
const NAME: f64 = 150.0;
const BAR: f64 = 110.0;
const WIDTH: f64 = 400.0;
/// The most letters of a name.
const LETTERS: usize = 20;
const TITLE: f64 = 26.0;
const ROW: f64 = 18.0;

/// One drawing of charts in columns, row by row. `about` describes it to screen readers.
pub fn svg(charts: &[Chart], columns: usize, about: &str) -> String {
    let (mut height, mut body) = (0.0, String::new());
    for row in charts.chunks(columns.max(1)) {
        body.extend(row.iter().enumerate().map(|(i, chart)| chart.draw(i as f64 * WIDTH + 6.0, height)));
        let bars = row.iter().map(|chart| chart.bars.len()).max().unwrap_or(0);
        height += TITLE + bars as f64 * ROW + 8.0;
    }
    let width = WIDTH * charts.len().clamp(1, columns.max(1)) as f64;
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" fill=\"currentColor\" font-size=\"12\" \
         font-family=\"system-ui, sans-serif\">\n<title>{}</title>\n{body}</svg>\n",
        html_escape(about)
    )
}

impl Chart {
    fn draw(&self, x: f64, y: f64) -> String {
        let longest = self.bars.iter().filter_map(|bar| positive(bar.value)).fold(0.0, f64::max);
        let mut out = format!("<g transform=\"translate({x} {y})\">\n");
        out += &text(0.0, 16.0, "font-weight=\"600\"", &self.title);
        for (i, bar) in self.bars.iter().enumerate() {
            let top = TITLE + i as f64 * ROW;
            let (color, weight) = if bar.own { ("#0a7c66", "600") } else { ("#8b949e", "400") };
            let width = positive(bar.value).map_or(0.0, |value| value / longest * BAR);
            let name: String = match bar.name.chars().count() > LETTERS {
                true => bar.name.chars().take(LETTERS - 1).chain(['…']).collect(),
                false => bar.name.clone(),
            };
            let style = format!("font-weight=\"{weight}\"");
            out += &text(NAME - 8.0, top + 11.0, &format!("text-anchor=\"end\" {style}"), &name);
            out += &format!(
                "<rect x=\"{NAME}\" y=\"{top}\" width=\"{width:.1}\" height=\"13\" rx=\"2\" fill=\"{color}\"/>\n"
            );
            out += &text(NAME + width + 6.0, top + 11.0, &style, &bar.text);
        }
        out + "</g>\n"
    }
}

fn text(x: f64, y: f64, style: &str, words: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y}\" {style}>{}</text>\n", html_escape(words))
}
