//! Parts of a whole as one bar.

use super::{Anchor, Canvas, LINE, WIDTH, n, width};

const HEIGHT: f64 = 22.0;

/// A part: its class, how many, and its name.
pub type Piece = (String, usize, &'static str);

/// The bar; `label` says what it shows to those who do not see it.
pub fn stack(pieces: &[Piece], label: &str) -> String {
    let whole: usize = pieces.iter().map(|p| p.1).sum();
    let mut canvas = Canvas::new(HEIGHT + LINE + 6.0);
    let mut x = 0.0;
    for (class, count, name) in pieces.iter().filter(|p| p.1 > 0) {
        let wide = WIDTH * *count as f64 / whole as f64;
        canvas.bar(class, x, 0.0, (wide - 1.0).max(0.5), HEIGHT, &format!("{name}: {count}"));
        // Below the bar, where any colour leaves it legible; a narrow part has its number in the legend alone.
        let text = n(*count as f64);
        if wide > width(&text) + 4.0 {
            canvas.text("value", Anchor::Middle, x + (wide - 1.0) / 2.0, HEIGHT + LINE + 2.0, &text);
        }
        x += wide;
    }
    let says: Vec<String> = pieces.iter().map(|(_, count, name)| format!("{name}: {count}")).collect();
    canvas.finish(label, &says)
}
