//! Records as one page that needs nothing else: no network, no script.

use super::columns::{Column, LEGEND, wide};
use super::escape::escape;
use super::group::{Group, groups, positive};
use super::number::figure;
use super::svg::palette::Palette;
use super::{by_line, figures, rate_unit, under, words};
use crate::record::Record;

/// All runs as one page.
pub fn html(records: &[Record]) -> String {
    let palette = Palette::new(records);
    let mut body = String::from("<h1>Multi-scale deformable attention: measurements</h1>\n");
    if records.is_empty() {
        body += "<p>No records</p>\n";
    }
    if records.len() > 1 {
        body += "<p class=\"note\">Runs are compared within themselves only</p>\n";
        body += &contents(records);
    }
    for (i, record) in records.iter().enumerate() {
        body += &run(record, i, &palette);
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>msda: measurements</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        include_str!("style.css")
    )
}

fn contents(records: &[Record]) -> String {
    let item = |(i, r): (usize, &Record)| {
        format!(
            "<li><a href=\"#run{i}\">{}, {}</a></li>\n",
            escape(&words::where_measured(r)),
            escape(&r.created)
        )
    };
    format!("<ul class=\"contents\">\n{}</ul>\n", records.iter().enumerate().map(item).collect::<String>())
}

fn run(record: &Record, index: usize, palette: &Palette) -> String {
    let groups = groups(record);
    let mut sections: Vec<(&str, String)> = Vec::new();
    if !groups.is_empty() {
        sections.push(("Time", figures::times(&groups, palette)));
        sections.push(("Speed-up", figures::speedups(&groups, palette)));
        sections.push(("Roofline", figures::rooflines(record, &groups, palette)));
        sections.push(("Distance from the floor", figures::floors(&groups, palette)));
        sections.push(("All measurements", measurements(&groups)));
    }
    sections.push(("Machine", machine(record)));
    if !record.skipped.is_empty() {
        sections.push(("Skipped", skipped(record)));
    }

    let mut out = format!(
        "<section id=\"run{index}\">\n<h2>{}</h2>\n<p class=\"note\">msda {}, measured {}</p>\n",
        escape(&words::where_measured(record)),
        escape(&record.version),
        escape(&record.created)
    );
    out += &findings(record);
    out += "<nav>\n";
    for (i, (title, _)) in sections.iter().enumerate() {
        out += &format!("<a href=\"#run{index}-{i}\">{title}</a>\n");
    }
    out += "</nav>\n";
    for (i, (title, body)) in sections.iter().enumerate() {
        out += &format!("<h3 id=\"run{index}-{i}\">{title}</h3>\n{body}");
    }
    out + "</section>\n"
}

fn findings(record: &Record) -> String {
    let item = |f: words::Finding| {
        format!("<li><strong>{}</strong> <span>{}</span></li>\n", escape(&f.lead), escape(&f.text))
    };
    let items: String = words::findings(record).into_iter().map(item).collect();
    format!("<ul class=\"findings\">\n{items}</ul>\n")
}

fn measurements(groups: &[Group<'_>]) -> String {
    let columns = wide(groups);
    let titles: String = columns.iter().map(|&c| format!("<th{}>{}</th>", class(c), c.title())).collect();
    let mut rows = String::new();
    for group in groups {
        rows += &format!(
            "<tr class=\"group\"><th colspan=\"{}\" scope=\"rowgroup\"><span>{} <small>{}</small></span></th></tr>\n",
            columns.len(),
            escape(&group.title()),
            escape(&group.problems())
        );
        for row in &group.rows {
            rows += if row.is_wrong() { "<tr class=\"wrong\">" } else { "<tr>" };
            for &c in &columns {
                rows += &format!("<td{}>{}</td>", class(c), escape(&c.cell(row)));
            }
            rows += "</tr>\n";
        }
    }
    boxed("All measurements", &format!("<tr>{titles}</tr>\n"), &rows)
        + &format!("<p class=\"note\">{}</p>\n", escape(LEGEND))
}

fn class(column: Column) -> &'static str {
    if column.is_number() { " class=\"num\"" } else { "" }
}

fn machine(record: &Record) -> String {
    let m = &record.machine;
    let mut pairs = vec![
        ("processor", m.cpu.clone()),
        ("logical processors", m.cores.to_string()),
        ("memory", positive(m.memory_gib).map_or(String::new(), |gib| format!("{} GiB", figure(gib)))),
        ("system", m.os.clone()),
        ("instruction sets", if m.isas.is_empty() { "none".into() } else { m.isas.join(", ") }),
        ("GPU", m.gpu.as_ref().map_or(String::new(), words::gpu)),
        ("torch", m.torch.clone().unwrap_or("not measured".into())),
        ("msda", record.version.clone()),
        ("measured", record.created.clone()),
    ];
    pairs.retain(|p| !p.1.is_empty());
    let mut out = String::from("<dl>\n");
    for (name, value) in pairs {
        out += &format!("<dt>{name}</dt><dd>{}</dd>\n", escape(&value));
    }
    out += &format!("<dt>command</dt><dd><code>{}</code></dd>\n</dl>\n", escape(&record.command));
    if !record.ceilings.is_empty() {
        let rows = record.ceilings.iter().map(|c| {
            format!(
                "<tr><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td>{}</td></tr>\n",
                escape(&c.name),
                under(c),
                figure(c.rate),
                rate_unit(&c.name)
            )
        });
        let head = "<tr><th>ceiling</th><th class=\"num\">threads</th><th class=\"num\">rate</th><th>unit</th></tr>\n";
        out += &boxed("Ceilings", head, &rows.collect::<String>());
    }
    out
}

fn skipped(record: &Record) -> String {
    let rows = record.skipped.iter().map(|s| {
        let why = by_line(&s.why, "<br>", escape);
        format!("<tr><th scope=\"row\">{}</th><td class=\"wrap\">{why}</td></tr>\n", escape(&s.what))
    });
    boxed("Skipped", "<tr><th>what</th><th>why</th></tr>\n", &rows.collect::<String>())
}

/// A table in a box of its own, which scrolls where the screen is narrow.
fn boxed(label: &str, head: &str, rows: &str) -> String {
    format!(
        "<div class=\"box\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\"><table>\n\
         <thead>\n{head}</thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}
