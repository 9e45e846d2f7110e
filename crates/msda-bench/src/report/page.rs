//! The content of a report, and its three forms: a page of HTML without network and script,
//! Markdown, and text for a terminal. All have the same tables; the page has charts too.

use super::TITLE;
use super::chart::{Chart, svg};
use super::escape::{by_line, escape, html_escape, plain};
use super::pivot::SPREAD;
use super::table::{self, Table, USUAL_WIDTH, beside, wrap};

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
    /// A title inside a section.
    Heading(String),
    /// A remark.
    Note(String),
    /// A command line.
    Command(String),
    /// Items: a few words, and what follows them.
    List(Vec<(String, String)>),
    /// Things that no record has, and the commands that measure them.
    Missing(Vec<(String, String)>),
    /// A table.
    Table(Table),
    /// Charts. Only the page shows them; tables have the same numbers.
    Charts(Vec<Chart>),
    /// Parts that a click opens: title, detail, whether they are open at first, and content.
    Fold(String, String, bool, Vec<Part>),
}

impl From<Table> for Part {
    fn from(table: Table) -> Self {
        Self::Table(table)
    }
}

impl Part {
    /// A remark.
    pub fn note(text: &str) -> Self {
        Self::Note(text.into())
    }

    /// A command line.
    pub fn command(text: &str) -> Self {
        Self::Command(text.into())
    }

    /// Findings: a few words each, and the evidence.
    pub fn findings(all: &[(String, String)]) -> Self {
        Self::List(all.to_vec())
    }

    /// Things that no record has, and the commands that measure them.
    pub fn missing(all: &[(String, String)]) -> Self {
        Self::Missing(all.to_vec())
    }

    fn html(&self) -> String {
        match self {
            Self::Heading(text) => format!("<h3>{}</h3>\n", html_escape(text)),
            Self::Note(text) => format!("<p>{}</p>\n", html_escape(text)),
            Self::Command(text) => {
                format!("<pre><code>{}</code></pre>\n", by_line(text, "\n", html_escape))
            }
            Self::List(all) => list(all, |(lead, text)| {
                let colon = if text.is_empty() { "" } else { ": " };
                let text = by_line(text, "<br>", html_escape);
                format!("<li><strong>{}</strong>{colon}{text}</li>\n", html_escape(lead))
            }),
            Self::Missing(all) => list(all, |(what, command)| {
                let (what, command) = (html_escape(what), html_escape(command));
                format!("<li>Not measured: {what}. <code>{command}</code> measures it.</li>\n")
            }),
            Self::Table(table) => table.html(),
            Self::Charts(charts) => {
                let figure = |chart: &Chart| {
                    let names: Vec<&str> = chart.bars.iter().map(|bar| bar.name.as_str()).collect();
                    let about = format!("{}: {}", chart.title, names.join(", "));
                    format!("<figure>{}</figure>\n", svg(std::slice::from_ref(chart), 1, &about))
                };
                format!("<div class=\"charts\">\n{}</div>\n", charts.iter().map(figure).collect::<String>())
            }
            Self::Fold(title, detail, open, parts) => details(title, detail, *open, &html_of(parts)),
        }
    }

    fn markdown(&self) -> String {
        match self {
            Self::Heading(text) => format!("### {}\n", escape(text)),
            Self::Note(text) => format!("> {}\n", escape(text)),
            // Indented, so that no text of it can end the block.
            Self::Command(text) => by_line(text, "\n", |line| format!("    {}", plain(line))) + "\n",
            Self::List(all) => list_of(all, |(lead, text)| {
                let colon = if text.is_empty() { "" } else { ": " };
                format!("**{}**{colon}{}", escape(lead), by_line(text, "<br>", escape))
            }),
            // A command that could end the code, or is markup itself, is written as text.
            Self::Missing(all) => list_of(all, |(what, command)| {
                let command = match command.contains(['`', '<']) {
                    true => escape(command),
                    false => format!("`{}`", plain(command)),
                };
                format!("Not measured: {}. {command} measures it.", escape(what))
            }),
            Self::Table(table) => table.markdown(),
            Self::Charts(_) => String::new(),
            Self::Fold(title, detail, open, parts) => match markdown_of(parts) {
                nothing if nothing.is_empty() => nothing,
                inside => details(title, detail, *open, &format!("\n{inside}\n")),
            },
        }
    }

    fn text(&self, screen: Screen) -> String {
        let Screen { width, color } = screen;
        let item = |(lead, text): &(String, String)| {
            let mut lines = text.lines();
            let first = match lines.next() {
                Some(line) => format!("{lead}: {line}"),
                None => lead.clone(),
            };
            let rest: String = lines.map(|line| beside("  ", &plain(line), width)).collect();
            wrap(&plain(&first), width, 2) + &rest
        };
        match self {
            Self::Heading(text) => table::bold(&plain(text), width, color),
            Self::Note(text) => wrap(&plain(text), width, 0),
            Self::Command(text) => plain(text) + "\n",
            Self::List(all) => all.iter().map(item).collect(),
            Self::Missing(all) => all.iter().map(item).collect(),
            Self::Table(table) => {
                let mut out = format!("{}{}", table.text(width, color), table.legend(width, "\n"));
                let dropped = table.dropped(width);
                let named: Vec<&str> = dropped
                    .iter()
                    .filter(|(_, rank)| *rank < SPREAD)
                    .map(|(title, _)| title.as_str())
                    .collect();
                if !named.is_empty() {
                    out += &wrap(&format!("too wide to show: {}", named.join(", ")), width, 0);
                }
                out
            }
            Self::Charts(_) => String::new(),
            Self::Fold(title, _, _, parts) => {
                format!("\n{}{}", table::bold(&plain(title), width, color), screen.text(parts))
            }
        }
    }
}

fn list(all: &[(String, String)], item: impl Fn(&(String, String)) -> String) -> String {
    format!("<ul>\n{}</ul>\n", all.iter().map(item).collect::<String>())
}

fn list_of(all: &[(String, String)], item: impl Fn(&(String, String)) -> String) -> String {
    all.iter().map(|pair| format!("- {}\n", item(pair))).collect()
}

fn details(title: &str, detail: &str, open: bool, inside: &str) -> String {
    let open = if open { " open" } else { "" };
    let detail =
        if detail.is_empty() { String::new() } else { format!(" <small>{}</small>", html_escape(detail)) };
    format!("<details{open}>\n<summary>{}{detail}</summary>\n{inside}</details>\n", html_escape(title))
}

fn html_of(parts: &[Part]) -> String {
    parts.iter().map(Part::html).collect()
}

fn markdown_of(parts: &[Part]) -> String {
    let texts = parts.iter().map(Part::markdown).filter(|text| !text.is_empty());
    texts.collect::<Vec<_>>().join("\n")
}

/// Parts that a click opens.
pub fn fold(title: &str, detail: &str, open: bool, parts: Vec<Part>) -> Vec<Part> {
    vec![Part::Fold(title.into(), detail.into(), open, parts)]
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

/// A whole report: the part before the first section, and the sections.
pub(super) struct Page {
    pub answer: Vec<Part>,
    pub sections: Vec<Section>,
}

impl Page {
    pub(super) fn html(&self) -> String {
        let mut body = format!("<h1>{TITLE}</h1>\n{}", html_of(&self.answer));
        for Section { title, about, parts } in &self.sections {
            let (title, about) = (html_escape(title), html_escape(about));
            body += &format!("<h2>{title}</h2>\n<p>{about}</p>\n{}", html_of(parts));
        }
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{TITLE}</title>\n<style>\n{}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
            include_str!("style.css")
        )
    }

    pub(super) fn markdown(&self) -> String {
        let mut out = format!("# {TITLE}\n\n{}", markdown_of(&self.answer));
        for Section { title, about, parts } in &self.sections {
            let inside = markdown_of(parts);
            out += &format!("\n## {}\n\n{}\n\n{inside}", escape(title), escape(about));
        }
        out
    }
}

/// Where text is shown: how wide it is, and whether it has colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Characters per line.
    pub width: usize,
    /// Whether headings are bold and wrong results red.
    pub color: bool,
}

impl Default for Screen {
    fn default() -> Self {
        Self { width: USUAL_WIDTH, color: false }
    }
}

impl Screen {
    pub(super) fn text(self, parts: &[Part]) -> String {
        parts.iter().map(|part| part.text(self)).collect()
    }
}
