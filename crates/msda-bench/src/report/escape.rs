//! Text of records in Markdown, HTML and terminals.

/// The text on one line, without control characters.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The text with the characters escaped that Markdown, or HTML inside it, would interpret.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in plain(text).chars() {
        match c {
            '<' => out += "&lt;",
            '&' => out += "&amp;",
            '\\' | '|' | '`' | '*' | '[' => out.extend(['\\', c]),
            _ => out.push(c),
        }
    }
    out
}

/// The text with all characters escaped that HTML and SVG interpret, in attributes too.
pub(super) fn html_escape(text: &str) -> String {
    let escapes = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;")];
    escapes.iter().fold(plain(text), |text, (c, escaped)| text.replace(*c, escaped))
}

/// Applies a function to each line of a text and joins the lines.
pub(super) fn by_line(text: &str, join: &str, each: impl Fn(&str) -> String) -> String {
    text.lines().map(each).collect::<Vec<_>>().join(join)
}
