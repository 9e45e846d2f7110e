//! Records as Markdown.

use super::columns::{LEGEND, wide};
use super::group::groups;
use super::number::figure;
use super::{by_line, plain, rate_unit, under, words};
use crate::record::Record;

/// All runs as one Markdown document.
pub fn markdown(records: &[Record]) -> String {
    let mut out = String::from("# Multi-scale deformable attention: measurements\n");
    if records.is_empty() {
        out += "\nNo records\n";
    }
    for record in records {
        run(&mut out, record);
    }
    out
}

fn run(out: &mut String, record: &Record) {
    *out += &format!("\n## {}, {}\n\n", escape(&words::where_measured(record)), escape(&record.created));
    for finding in words::findings(record) {
        let text =
            if finding.text.is_empty() { String::new() } else { format!(": {}", escape(&finding.text)) };
        *out += &format!("- **{}**{text}\n", escape(&finding.lead));
    }

    let groups = groups(record);
    let columns = wide(&groups);
    for group in &groups {
        *out += &format!("\n### {}\n\n", escape(&group.title()));
        let problems = group.problems();
        if !problems.is_empty() {
            *out += &format!("Problem: {}\n\n", escape(&problems));
        }
        *out += &format!("Speed-up over {}\n\n", escape(&group.baseline_note()));
        let header: Vec<_> = columns.iter().map(|c| (c.title(), c.is_number())).collect();
        let rows = group.rows.iter().map(|row| columns.iter().map(|c| escape(&c.cell(row))).collect());
        table(out, &header, rows);
    }
    if !groups.is_empty() {
        *out += &format!("\n{}\n", escape(LEGEND));
    }

    *out += "\n### Machine\n\n";
    *out += &format!("msda {}, {}\n\n", escape(&record.version), escape(&words::machine(&record.machine)));
    if let Some(gpu) = &record.machine.gpu {
        *out += &format!("{}\n\n", escape(&words::gpu(gpu)));
    }
    // Indented, so that no text of the command can end the block.
    for line in record.command.lines() {
        *out += &format!("    {}\n", plain(line));
    }
    if !record.ceilings.is_empty() {
        *out += "\n### Ceilings\n\nMeasured in the same run\n\n";
        let rows = record
            .ceilings
            .iter()
            .map(|c| vec![escape(&c.name), under(c), figure(c.rate), rate_unit(&c.name).into()]);
        table(out, &[("ceiling", false), ("threads", true), ("rate", true), ("unit", false)], rows);
    }
    if !record.skipped.is_empty() {
        *out += "\n### Skipped\n\n";
        let rows = record.skipped.iter().map(|s| vec![escape(&s.what), by_line(&s.why, "<br>", escape)]);
        table(out, &[("what", false), ("why", false)], rows);
    }
}

/// A table of escaped cells; each column is a title and whether it holds numbers.
fn table(out: &mut String, columns: &[(&str, bool)], rows: impl Iterator<Item = Vec<String>>) {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    *out += &line(columns.iter().map(|c| c.0.into()).collect());
    *out += &line(columns.iter().map(|c| if c.1 { "--:" } else { "---" }.into()).collect());
    for row in rows {
        *out += &line(row);
    }
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
