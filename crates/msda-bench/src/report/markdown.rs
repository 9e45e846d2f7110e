//! The report as Markdown, with tables in place of plots.

use super::page::{Headline, Kind, Line, Page, Part, Plot, Section, Table};
use super::{TITLE, by_line, plain};

/// The level of a section's title: `##`.
const SECTION: usize = 2;

/// The deepest level that Markdown has.
const DEEPEST: usize = 6;

/// The document.
pub(super) fn markdown(page: &Page) -> String {
    let mut out = format!("# {TITLE}\n{}", parts(&page.answer, SECTION + 1));
    for Section { title, about, parts: inside } in &page.sections {
        out += &format!("\n## {}\n\n{}\n{}", escape(title), escape(about), parts(inside, SECTION + 1));
    }
    out
}

/// The parts as text. A title without content, such as that of plots only, is left out.
fn parts(all: &[Part], level: usize) -> String {
    let mut out = String::new();
    let mut heading = String::new();
    // Titles of folds and plots below a heading are one level deeper.
    let mut inner = level;
    for part in all {
        if let Part::Heading(title, detail) = part {
            heading = headed(level, title, detail);
            inner = level + 1;
            continue;
        }
        let text = content(part, inner);
        if !text.is_empty() {
            out += &std::mem::take(&mut heading);
            out += &text;
        }
    }
    out
}

fn content(part: &Part, level: usize) -> String {
    match part {
        Part::Heading(..) => String::new(),
        Part::Headline(Headline { place, result, rest }) => {
            format!("\n{} **{}**{}\n", escape(place), escape(result), escape(rest))
        }
        Part::Note(text) => format!("\n{}\n", escape(text)),
        Part::Warning(text) => format!("\n**Warning:** {}\n", escape(text)),
        Part::Findings(all) => list(all.iter().map(|f| bold(&f.lead, &f.text))),
        Part::Pairs(pairs) => list(pairs.iter().map(|(name, value)| bold(name, value))),
        // Indented, so that no text of the command can end the block.
        Part::Command(text) => {
            format!("\n{}\n", by_line(text, "\n", |line| format!("    {}", plain(line))))
        }
        Part::Missing(all) => list(all.iter().map(|(what, command)| {
            format!("Not measured: {}. {} measures it.", escape(what), code(command))
        })),
        Part::Table(t) => table(t),
        Part::Plots(all) => {
            let tabled = all.plots.iter().filter_map(|p| Some((p, p.table.as_ref()?)));
            let shown = |(p, t): (&Plot, &Table)| format!("\n{}\n{}", bold(&p.title, &p.detail), table(t));
            tabled.map(shown).collect()
        }
        Part::Fold(fold) => titled(level, &fold.title, &fold.detail, &parts(&fold.parts, level + 1)),
    }
}

fn titled(level: usize, title: &str, detail: &str, inside: &str) -> String {
    if inside.is_empty() { String::new() } else { headed(level, title, detail) + inside }
}

fn headed(level: usize, title: &str, detail: &str) -> String {
    let detail = if detail.is_empty() { String::new() } else { format!(" ({})", escape(detail)) };
    format!("\n{} {}{detail}\n", "#".repeat(level.min(DEEPEST)), escape(title))
}

fn bold(lead: &str, text: &str) -> String {
    let text = if text.is_empty() { String::new() } else { format!(": {}", escape(text)) };
    format!("**{}**{text}", escape(lead))
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: String = items.map(|item| format!("- {item}\n")).collect();
    if items.is_empty() { items } else { format!("\n{items}") }
}

/// A table; the title of a group of lines is a line whose first cell is bold.
fn table(table: &Table) -> String {
    let row =
        |cells: &mut dyn Iterator<Item = String>| format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
    let rule = |kind: Kind| if kind == Kind::Number { "--:" } else { "---" }.to_owned();
    let mut out = String::from("\n");
    out += &row(&mut table.columns.iter().map(|c| escape(&c.title)));
    out += &row(&mut table.columns.iter().map(|c| rule(c.kind)));
    for line in &table.lines {
        out += &match line {
            Line::Group(title) => {
                let empty = std::iter::repeat_n(String::new(), table.columns.len() - 1);
                row(&mut std::iter::once(format!("**{}**", escape(title))).chain(empty))
            }
            Line::Cells(cells) | Line::Failed(cells) => {
                row(&mut cells.iter().map(|text| by_line(text, "<br>", escape)))
            }
        };
    }
    out
}

/// A command as code, or as text if it could end the code or is markup itself.
fn code(text: &str) -> String {
    if text.contains(['`', '<']) { escape(text) } else { format!("`{}`", plain(text)) }
}

/// The text with the characters escaped that Markdown, or HTML inside it, would interpret.
fn escape(text: &str) -> String {
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
