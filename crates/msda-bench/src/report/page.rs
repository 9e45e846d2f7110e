//! The content of a report: Markdown and plots. `report.md` has tables in place of the plots; the
//! page is made from the same Markdown.

use super::chart::Plots;
use super::{TITLE, by_line, plain};

/// A whole report.
pub(super) struct Page {
    /// The part before the first section: what the records show.
    pub answer: Vec<Part>,
    /// The sections, in order.
    pub sections: Vec<Section>,
}

/// A section of the report.
pub struct Section {
    /// The title.
    pub title: &'static str,
    /// One or two sentences below the title.
    pub about: String,
    /// The content.
    pub parts: Vec<Part>,
}

/// A part of a section.
pub enum Part {
    /// Markdown.
    Text(String),
    /// Plots with their legend.
    Plots(Plots),
}

impl Part {
    /// A title inside a section: 3 is the highest level.
    pub fn heading(level: usize, title: &str) -> Self {
        Self::Text(format!("{} {}\n", "#".repeat(level), escape(title)))
    }

    /// A remark.
    pub fn note(text: &str) -> Self {
        Self::Text(format!("> {}\n", escape(text)))
    }

    /// A command line. It is indented, so that no text of it can end the block.
    pub fn command(text: &str) -> Self {
        Self::Text(by_line(text, "\n", |line| format!("    {}", plain(line))) + "\n")
    }

    /// A list of items in Markdown.
    pub fn list(items: impl IntoIterator<Item = String>) -> Self {
        Self::Text(items.into_iter().map(|item| format!("- {item}\n")).collect())
    }

    /// Findings: a few words each, and the evidence.
    pub fn findings(all: &[(String, String)]) -> Self {
        Self::list(all.iter().map(|(lead, text)| bold(lead, text)))
    }

    /// Things that no record has, and the commands that measure them.
    pub fn missing(all: &[(String, String)]) -> Self {
        // A command that could end the code, or is markup itself, is written as text.
        let code = |text: &str| match text.contains(['`', '<']) {
            true => escape(text),
            false => format!("`{}`", plain(text)),
        };
        let item =
            |what: &str, command| format!("Not measured: {}. {} measures it.", escape(what), code(command));
        Self::list(all.iter().map(|(what, command)| item(what, command)))
    }
}

/// Parts that a click opens.
pub fn fold(title: &str, detail: &str, open: bool, parts: Vec<Part>) -> Vec<Part> {
    let open = if open { " open" } else { "" };
    let head = format!("<details{open}>\n<summary>{}{}</summary>\n", html_escape(title), small(detail));
    [Part::Text(head)].into_iter().chain(parts).chain([Part::Text("</details>\n".into())]).collect()
}

/// Titled parts as folds, of which the first is open. A single one needs no fold.
pub fn folds(all: Vec<(String, Vec<Part>)>) -> Vec<Part> {
    let several = all.len() > 1;
    let one = |(i, (title, parts)): (usize, (String, Vec<Part>))| match several {
        true => fold(&title, "", i == 0, parts),
        false => parts,
    };
    all.into_iter().enumerate().flat_map(one).collect()
}

/// Bold words, and what follows them.
pub(super) fn bold(lead: &str, text: &str) -> String {
    let text = if text.is_empty() { String::new() } else { format!(": {}", escape(text)) };
    format!("**{}**{text}", escape(lead))
}

/// Small text beside a title of HTML.
pub(super) fn small(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" <small>{}</small>", html_escape(text)) }
}

/// The parts as one text, with plots as `plots` writes them.
pub(super) fn joined(parts: &[Part], plots: fn(&Plots) -> String) -> String {
    let text = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Plots(all) => plots(all),
    };
    parts.iter().map(text).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}

/// The document.
pub(super) fn markdown(page: &Page) -> String {
    let mut out = format!("# {TITLE}\n\n{}", joined(&page.answer, Plots::markdown));
    for Section { title, about, parts } in &page.sections {
        let inside = joined(parts, Plots::markdown);
        out += &format!("\n## {}\n\n{}\n\n{inside}", escape(title), escape(about));
    }
    out
}

/// The text with the characters escaped that Markdown, or HTML inside it, would interpret.
pub fn escape(text: &str) -> String {
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
