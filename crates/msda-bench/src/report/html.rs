//! A report as one page that needs nothing else: no network, no script.

use super::escape::escape;
use super::page::{Column, Kind, Line, Part, Plot, Section, Table};
use super::svg::swatch;
use super::{TITLE, by_line};

/// Sections as a page.
pub(super) fn html(sections: &[Section]) -> String {
    let mut body = format!("<h1>{TITLE}</h1>\n");
    if sections.len() > 1 {
        body += "<nav aria-label=\"Sections\">\n";
        for section in sections {
            body += &format!("<a href=\"#{}\">{}</a>\n", id(section.title), escape(section.title));
        }
        body += "</nav>\n";
    }
    for section in sections {
        let (id, title) = (id(section.title), escape(section.title));
        body += &format!("<section id=\"{id}\">\n<h2>{title}</h2>\n<p>{}</p>\n", escape(&section.about));
        body += &parts(&section.parts);
        body += "</section>\n";
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>msda: measurements</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        include_str!("style.css")
    )
}

fn id(title: &str) -> String {
    title.to_lowercase().replace(' ', "-")
}

fn parts(all: &[Part]) -> String {
    all.iter().map(part).collect()
}

fn part(part: &Part) -> String {
    match part {
        Part::Heading(title, detail) => format!("<h3>{}{}</h3>\n", escape(title), small(detail)),
        Part::Note(text) => format!("<p class=\"note\">{}</p>\n", escape(text)),
        Part::Findings(all) => {
            let item = |lead: &str, text: &str| {
                format!("<li><strong>{}</strong> <span>{}</span></li>\n", escape(lead), escape(text))
            };
            list("findings", all.iter().map(|f| item(&f.lead, &f.text)))
        }
        Part::Pairs(pairs) => {
            let pair = |(n, v): &(String, String)| format!("<dt>{}</dt><dd>{}</dd>\n", escape(n), escape(v));
            format!("<dl>\n{}</dl>\n", pairs.iter().map(pair).collect::<String>())
        }
        Part::Command(text) => format!("<pre><code>{}</code></pre>\n", by_line(text, "\n", escape)),
        Part::Missing(all) => {
            let item = |(what, command): &(String, String)| {
                let (what, command) = (escape(what), escape(command));
                format!("<li>Not measured: {what}. <code>{command}</code> measures it</li>\n")
            };
            list("missing", all.iter().map(item))
        }
        Part::Table(t) => table(t),
        Part::Legend(keys) => {
            let key = |(class, shape, name): &(String, _, String)| {
                format!("<li>{}{}</li>\n", swatch(class, *shape), escape(name))
            };
            list("legend", keys.iter().map(key))
        }
        Part::Plots(plots) => {
            format!("<div class=\"plots\">\n{}</div>\n", plots.iter().map(plot).collect::<String>())
        }
        Part::Fold(title, open, inside) => {
            let open = if *open { " open" } else { "" };
            let (title, inside) = (escape(title), parts(inside));
            format!("<details{open}>\n<summary>{title}</summary>\n{inside}</details>\n")
        }
    }
}

fn list(class: &str, items: impl Iterator<Item = String>) -> String {
    format!("<ul class=\"{class}\">\n{}</ul>\n", items.collect::<String>())
}

fn small(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" <small>{}</small>", escape(text)) }
}

fn plot(plot: &Plot) -> String {
    let (title, detail) = (escape(&plot.title), small(&plot.detail));
    format!("<figure>\n<figcaption>{title}{detail}</figcaption>\n{}</figure>\n", plot.svg)
}

/// A table in a box of its own, which scrolls where the screen is narrow.
fn table(table: &Table) -> String {
    let class = |column: &Column| match column.kind {
        Kind::Word => "",
        Kind::Number => " class=\"num\"",
        Kind::Text => " class=\"wrap\"",
    };
    // Lines of several texts are cards where the screen is narrow.
    let cards = table.columns.iter().filter(|c| c.kind == Kind::Text).count() > 1;
    let title = |c: &Column| format!("<th scope=\"col\"{}>{}</th>", class(c), escape(&c.title));
    let titles: String = table.columns.iter().map(title).collect();
    let cells = |cells: &[String]| -> String {
        let cell = |(c, text): (&Column, &String)| {
            let title = if cards { format!(" data-title=\"{}\"", escape(&c.title)) } else { String::new() };
            format!("<td{}{title}>{}</td>", class(c), by_line(text, "<br>", escape))
        };
        table.columns.iter().zip(cells).map(cell).collect()
    };
    let line = |line: &Line| match line {
        Line::Group(title, detail, _) => format!(
            "<tr class=\"group\"><th colspan=\"{}\" scope=\"rowgroup\"><span>{}{}</span></th></tr>\n",
            table.columns.len(),
            escape(title),
            small(detail)
        ),
        Line::Cells(all) => format!("<tr>{}</tr>\n", cells(all)),
        Line::Wrong(all) => format!("<tr class=\"wrong\">{}</tr>\n", cells(all)),
    };
    format!(
        "<div class=\"box\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table{}>\n\
         <thead>\n<tr>{titles}</tr>\n</thead>\n<tbody>\n{}</tbody>\n</table></div>\n",
        escape(&table.title),
        if cards { " class=\"cards\"" } else { "" },
        table.lines.iter().map(line).collect::<String>()
    )
}
