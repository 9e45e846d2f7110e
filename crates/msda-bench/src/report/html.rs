//! The report as one HTML file: no network, no script.

use super::escape::escape;
use super::page::{Column, Fold, Headline, Key, Kind, Line, Page, Part, Plot, Plots, Table};
use super::svg::swatch;
use super::{TITLE, by_line};

/// The page.
pub(super) fn html(page: &Page) -> String {
    let mut body = format!("<header>\n<h1>{TITLE}</h1>\n{}</header>\n", parts(&page.answer));
    if page.sections.len() > 1 {
        body += "<nav aria-label=\"Sections\">\n";
        for section in &page.sections {
            body += &format!("<a href=\"#{}\">{}</a>\n", id(section.title), escape(section.title));
        }
        body += "</nav>\n";
    }
    for section in &page.sections {
        let (id, title) = (id(section.title), escape(section.title));
        body += &format!("<section id=\"{id}\">\n<h2>{title}</h2>\n<p>{}</p>\n", escape(&section.about));
        body += &parts(&section.parts);
        body += "</section>\n";
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{TITLE}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
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
        Part::Headline(Headline { place, result, rest }) => format!(
            "<p class=\"headline\">{} <strong>{}</strong>{}</p>\n",
            escape(place),
            escape(result),
            escape(rest)
        ),
        Part::Note(text) => format!("<p class=\"note\">{}</p>\n", escape(text)),
        Part::Warning(text) => format!("<p class=\"warning\">{}</p>\n", escape(text)),
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
                format!("<li>Not measured: {what}. <code>{command}</code> measures it.</li>\n")
            };
            list("missing", all.iter().map(item))
        }
        Part::Table(t) => table(t),
        Part::Plots(p) => plots(p),
        Part::Fold(Fold { title, detail, open, parts: inside }) => {
            let open = if *open { " open" } else { "" };
            let (title, detail, inside) = (escape(title), small(detail), parts(inside));
            format!("<details{open}>\n<summary>{title}{detail}</summary>\n{inside}</details>\n")
        }
    }
}

fn list(class: &str, items: impl Iterator<Item = String>) -> String {
    format!("<ul class=\"{class}\">\n{}</ul>\n", items.collect::<String>())
}

fn small(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" <small>{}</small>", escape(text)) }
}

fn plots(all: &Plots) -> String {
    let mut out = String::new();
    if !all.legend.is_empty() {
        let key = |k: &Key| format!("<li>{}{}</li>\n", swatch(&k.class, k.shape), escape(&k.name));
        out += &list("legend", all.legend.iter().map(key));
    }
    if !all.note.is_empty() {
        out += &format!("<p class=\"note\">{}</p>\n", escape(&all.note));
    }
    let plot = |plot: &Plot| {
        let (title, detail) = (escape(&plot.title), small(&plot.detail));
        format!("<figure>\n<figcaption>{title}{detail}</figcaption>\n{}</figure>\n", plot.svg)
    };
    out + &format!("<div class=\"plots\">\n{}</div>\n", all.plots.iter().map(plot).collect::<String>())
}

/// The most columns of a line that becomes a card; the style sheet numbers them.
const CARD_COLUMNS: usize = 9;

/// Titles of columns for the style sheet, written once and not in every cell.
fn card_titles(columns: &[Column]) -> String {
    let quoted = |text: &str| escape(&text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " "));
    let title = |(i, c): (usize, &Column)| format!("--t{}:&quot;{}: &quot;", i + 1, quoted(&c.title));
    let all: Vec<String> = columns.iter().enumerate().map(title).collect();
    format!(" class=\"cards\" style=\"{}\"", all.join(";"))
}

/// A table in its own box, which scrolls on a narrow screen while the first column stays in place.
fn table(table: &Table) -> String {
    // Most cells are numbers, so numbers need no class; nor do names in the first column.
    let class = |(i, column): (usize, &Column)| match column.kind {
        Kind::Number if i == 0 => " class=\"n\"",
        Kind::Word if i > 0 => " class=\"w\"",
        Kind::Text => " class=\"t\"",
        Kind::Number | Kind::Word => "",
    };
    // Lines with several sentences become cards on a narrow screen.
    let cards = table.columns.iter().filter(|c| c.kind == Kind::Text).count() > 1
        && table.columns.len() <= CARD_COLUMNS;
    let title = |(i, c): (usize, &Column)| format!("<th{}>{}</th>", class((i, c)), escape(&c.title));
    let titles: String = table.columns.iter().enumerate().map(title).collect();
    let cells = |cells: &[String]| -> String {
        let cell = |((i, c), text): ((usize, &Column), &String)| {
            format!("<td{}>{}</td>", class((i, c)), by_line(text, "<br>", escape))
        };
        table.columns.iter().enumerate().zip(cells).map(cell).collect()
    };
    let line = |line: &Line| match line {
        Line::Group(title) => format!(
            "<tr class=\"group\"><th colspan=\"{}\"><span>{}</span></th></tr>\n",
            table.columns.len(),
            escape(title)
        ),
        Line::Cells(all) => format!("<tr>{}</tr>\n", cells(all)),
        Line::Failed(all) => format!("<tr class=\"failed\">{}</tr>\n", cells(all)),
    };
    format!(
        "<div class=\"box\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table{}>\n\
         <thead>\n<tr>{titles}</tr>\n</thead>\n<tbody>\n{}</tbody>\n</table></div>\n",
        escape(&table.title),
        if cards { card_titles(&table.columns) } else { String::new() },
        table.lines.iter().map(line).collect::<String>()
    )
}
