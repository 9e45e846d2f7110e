//! A report as Markdown: all but the plots.

use super::page::{Kind, Line, Part, Section, Table};
use super::{TITLE, by_line, plain};

/// Sections as one document.
pub(super) fn markdown(sections: &[Section]) -> String {
    let mut out = format!("# {TITLE}\n");
    for section in sections {
        out += &format!("\n## {}\n\n{}\n", escape(section.title), escape(&section.about));
        parts(&mut out, &section.parts);
    }
    out
}

fn parts(out: &mut String, all: &[Part]) {
    for part in all {
        match part {
            Part::Heading(title, detail) if detail.is_empty() => heading(out, title),
            Part::Heading(title, detail) => heading(out, &format!("{title} ({detail})")),
            Part::Note(text) => *out += &format!("\n{}\n", escape(text)),
            Part::Findings(all) => list(out, all.iter().map(|f| bold(&f.lead, &f.text))),
            Part::Pairs(pairs) => list(out, pairs.iter().map(|(name, value)| bold(name, value))),
            // Indented, so that no text of the command can end the block.
            Part::Command(text) => {
                *out += &format!("\n{}\n", by_line(text, "\n", |line| format!("    {}", plain(line))));
            }
            Part::Missing(all) => list(
                out,
                all.iter().map(|(what, command)| {
                    format!("Not measured: {}. {} measures it", escape(what), code(command))
                }),
            ),
            Part::Table(t) => table(out, t),
            Part::Legend(_) | Part::Plots(_) => {}
            Part::Fold(title, _, inside) => {
                heading(out, title);
                parts(out, inside);
            }
        }
    }
}

fn heading(out: &mut String, text: &str) {
    *out += &format!("\n### {}\n", escape(text));
}

fn bold(lead: &str, text: &str) -> String {
    let text = if text.is_empty() { String::new() } else { format!(": {}", escape(text)) };
    format!("**{}**{text}", escape(lead))
}

fn list(out: &mut String, items: impl Iterator<Item = String>) {
    out.push('\n');
    for item in items {
        *out += &format!("- {item}\n");
    }
}

/// A table; one for each group, where there are groups.
fn table(out: &mut String, table: &Table) {
    let row =
        |cells: &mut dyn Iterator<Item = String>| format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
    let head = row(&mut table.columns.iter().map(|c| escape(&c.title)))
        + &row(&mut table.columns.iter().map(|c| if c.kind == Kind::Number { "--:" } else { "---" }.into()));
    if !matches!(table.lines.first(), Some(Line::Group(..))) {
        *out += &format!("\n{head}");
    }
    for line in &table.lines {
        match line {
            Line::Group(title, detail, note) => {
                *out += &format!("\n#### {}\n", escape(title));
                for text in [detail, note].into_iter().filter(|text| !text.is_empty()) {
                    *out += &format!("\n{}\n", escape(text));
                }
                *out += &format!("\n{head}");
            }
            Line::Cells(cells) | Line::Wrong(cells) => {
                *out += &row(&mut cells.iter().map(|text| by_line(text, "<br>", escape)));
            }
        }
    }
}

/// A command as code; as text where it could end the code or is markup itself.
fn code(text: &str) -> String {
    if text.contains(['`', '<']) { escape(text) } else { format!("`{}`", plain(text)) }
}

/// Text without the characters that mean something to Markdown or to the HTML inside it.
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
