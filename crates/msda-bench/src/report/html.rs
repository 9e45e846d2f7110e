//! The report as one HTML file: no network, no script.

use pulldown_cmark::{Alignment, Event, Options, Parser, Tag, TagEnd};

use super::TITLE;
use super::chart::Plots;
use super::page::{Page, Part, html_escape, joined};

/// The page.
pub(super) fn html(page: &Page) -> String {
    let mut body = format!("<header>\n<h1>{TITLE}</h1>\n{}</header>\n", content(&page.answer));
    let id = |title: &str| title.to_lowercase().replace(' ', "-");
    if page.sections.len() > 1 {
        let link = |title: &str| format!("<a href=\"#{}\">{}</a>\n", id(title), html_escape(title));
        let links: String = page.sections.iter().map(|section| link(section.title)).collect();
        body += &format!("<nav aria-label=\"Sections\">\n{links}</nav>\n");
    }
    for section in &page.sections {
        let (id, title, about) = (id(section.title), html_escape(section.title), html_escape(&section.about));
        let inside = content(&section.parts);
        body += &format!("<section id=\"{id}\">\n<h2>{title}</h2>\n<p>{about}</p>\n{inside}</section>\n");
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{TITLE}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        include_str!("style.css")
    )
}

fn content(parts: &[Part]) -> String {
    let text = joined(parts, Plots::html);
    let (mut kinds, mut column, mut cell) = (Vec::new(), 0, "td");
    let events = Parser::new_ext(&text, Options::ENABLE_TABLES).map(|event| match event {
        // In its own box, which scrolls on a narrow screen while the first column stays in place.
        Event::Start(Tag::Table(all)) => {
            kinds = all;
            let open = "<div class=\"box\" tabindex=\"0\" role=\"region\" aria-label=\"Table\"><table>";
            Event::Html(open.into())
        }
        Event::End(TagEnd::Table) => Event::Html("</tbody></table></div>\n".into()),
        Event::Start(Tag::TableHead | Tag::TableRow) => {
            (column, cell) = (0, if matches!(event, Event::Start(Tag::TableHead)) { "th" } else { "td" });
            event
        }
        // Most cells are numbers, so numbers need no class.
        Event::Start(Tag::TableCell) => {
            column += 1;
            let class = match kinds[column - 1] {
                Alignment::None if column > 1 => " class=\"w\"",
                Alignment::Left => " class=\"t\"",
                _ => "",
            };
            Event::Html(format!("<{cell}{class}>").into())
        }
        other => other,
    });
    let mut out = String::new();
    pulldown_cmark::html::push_html(&mut out, events);
    out
}
