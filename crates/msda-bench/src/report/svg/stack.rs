//! Parts of a whole as one bar.

use super::{Anchor, Canvas, LINE, WIDTH, n, width};

const HEIGHT: f64 = 22.0;

/// A part: its class and its size.
pub type Piece = (String, usize);

/// The bar. `label` describes it to screen readers.
pub fn stack(pieces: &[Piece], label: &str) -> String {
    let whole: usize = pieces.iter().map(|p| p.1).sum();
    let mut canvas = Canvas::new(HEIGHT + LINE + 6.0);
    let mut x = 0.0;
    for (class, count) in pieces.iter().filter(|p| p.1 > 0) {
        let wide = WIDTH * *count as f64 / whole as f64;
        canvas.bar(class, x, 0.0, (wide - 1.0).max(0.5), HEIGHT);
        // Below the bar, so that it is legible on any colour. The legend has the numbers of narrow
        // parts.
        let text = n(*count as f64);
        if wide > width(&text) + 4.0 {
            canvas.text("value", Anchor::Middle, x + (wide - 1.0) / 2.0, HEIGHT + LINE + 2.0, &text);
        }
        x += wide;
    }
    canvas.finish(label)
}
