//! Tables, as HTML, as Markdown and as text for a terminal, and wrapped paragraphs. No word is
//! broken.

use super::escape::{by_line, escape, html_escape};
use super::number::{FAILED, NONE};

/// The width where there is no terminal to ask.
pub const USUAL_WIDTH: usize = 80;

/// Spaces between two columns.
const GAP: usize = 2;

/// A table. As text it drops columns where it would be too wide.
#[derive(Debug, Clone, Default)]
pub struct Table {
    columns: Vec<Column>,
    lines: Vec<Line>,
}

#[derive(Debug, Clone)]
struct Column {
    title: String,
    kind: Kind,
    /// Columns with the highest rank are dropped first; a column of rank 0 stays.
    rank: u8,
    /// What it means; may be empty.
    about: &'static str,
}

/// The kind of a column's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A name: never wrapped.
    Word,
    /// A number: aligned on the right.
    Number,
    /// A sentence: wrapped on a page.
    Text,
}

#[derive(Debug, Clone)]
enum Line {
    /// A title for the lines below.
    Group(String),
    Cells(Vec<String>),
}

impl Table {
    /// Adds columns of a kind. A newline in a title begins a second line.
    #[must_use]
    pub fn columns<T: Into<String>>(self, kind: Kind, titles: impl IntoIterator<Item = T>) -> Self {
        titles.into_iter().fold(self, |table, title| table.column(title, kind, 0))
    }

    /// Adds columns of names.
    #[must_use]
    pub fn words<T: Into<String>>(self, titles: impl IntoIterator<Item = T>) -> Self {
        self.columns(Kind::Word, titles)
    }

    /// Adds columns of numbers.
    #[must_use]
    pub fn numbers<T: Into<String>>(self, titles: impl IntoIterator<Item = T>) -> Self {
        self.columns(Kind::Number, titles)
    }

    /// Adds a column. Of the columns that do not fit, the one with the highest rank is dropped
    /// first; rank 0 is never dropped.
    #[must_use]
    pub fn column(self, title: impl Into<String>, kind: Kind, rank: u8) -> Self {
        self.explained(title, kind, rank, "")
    }

    /// The same with a sentence below the table that says what the column means.
    #[must_use]
    pub(super) fn explained(
        mut self,
        title: impl Into<String>,
        kind: Kind,
        rank: u8,
        about: &'static str,
    ) -> Self {
        self.columns.push(Column { title: title.into(), kind, rank, about });
        self
    }

    /// Adds a line with a cell for each column.
    pub fn push<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut row: Vec<String> = cells.into_iter().map(Into::into).collect();
        row.resize(self.columns.len(), String::new());
        self.lines.push(Line::Cells(row));
    }

    /// Adds a title for the lines below. Text after its first line is less important.
    pub(super) fn group(&mut self, title: String) {
        self.lines.push(Line::Group(title));
    }

    /// Whether it has no line.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    fn rows(&self) -> impl Iterator<Item = &Vec<String>> {
        self.lines.iter().filter_map(|line| match line {
            Line::Cells(cells) => Some(cells),
            Line::Group(_) => None,
        })
    }

    /// The table without columns of numbers or sentences that are empty in every line.
    #[must_use]
    pub fn without_empty(mut self) -> Self {
        for i in (0..self.columns.len()).rev() {
            let filled = |row: &Vec<String>| !["", NONE].contains(&row[i].as_str());
            if self.columns[i].kind != Kind::Word && !self.rows().any(filled) {
                self.columns.remove(i);
                for line in &mut self.lines {
                    if let Line::Cells(cells) = line {
                        cells.remove(i);
                    }
                }
            }
        }
        self
    }

    /// The table in Markdown.
    pub fn markdown(&self) -> String {
        let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let rule = |column: &Column| match column.kind {
            Kind::Word => "---".to_owned(),
            Kind::Number => "--:".to_owned(),
            Kind::Text => ":--".to_owned(),
        };
        let mut out = row(self.columns.iter().map(|c| escape(&c.title)).collect());
        out += &row(self.columns.iter().map(rule).collect());
        for line in &self.lines {
            out += &match line {
                Line::Group(title) => {
                    let (lead, rest) = title.split_once('\n').unwrap_or((title, ""));
                    let mut cells = vec![String::new(); self.columns.len()];
                    cells[0] = format!("**{}** {}", escape(lead), escape(rest)).trim_end().into();
                    row(cells)
                }
                Line::Cells(cells) => row(cells.iter().map(|c| by_line(c, "<br>", escape)).collect()),
            };
        }
        match self.legend(usize::MAX, " ") {
            legend if legend.is_empty() => out,
            legend => format!("{out}\n{}\n", escape(legend.trim())),
        }
    }

    /// The table in HTML, in a box of its own, which scrolls on a narrow screen while the first
    /// column stays in place.
    pub(super) fn html(&self) -> String {
        let class = |i: usize| match self.columns[i].kind {
            // Most cells are numbers, so numbers need no class.
            Kind::Number => "",
            Kind::Word => " class=\"w\"",
            Kind::Text => " class=\"t\"",
        };
        let cell = |tag: &str, (i, text): (usize, &String)| {
            format!("<{tag}{}>{}</{tag}>", class(i), by_line(text, "<br>", html_escape))
        };
        let titles = self.columns.iter().map(|column| &column.title);
        let head: String = titles.enumerate().map(|title| cell("th", title)).collect();
        let mut out = format!(
            "<div class=\"box\" tabindex=\"0\" role=\"region\" aria-label=\"Table\"><table>\n<tr>{head}</tr>\n"
        );
        for line in &self.lines {
            out += &match line {
                Line::Group(title) => {
                    let (lead, rest) = title.split_once('\n').unwrap_or((title, ""));
                    let (lead, rest) = (html_escape(lead), html_escape(rest));
                    let span = self.columns.len();
                    format!(
                        "<tr><td class=\"w\" colspan=\"{span}\"><strong>{lead}</strong> {rest}</td></tr>\n"
                    )
                }
                Line::Cells(cells) => {
                    let cells: String = cells.iter().enumerate().map(|text| cell("td", text)).collect();
                    format!("<tr>{cells}</tr>\n")
                }
            };
        }
        out += "</table></div>\n";
        match self.legend(usize::MAX, " ") {
            legend if legend.is_empty() => out,
            legend => format!("{out}<p>{}</p>\n", html_escape(legend.trim())),
        }
    }

    /// What the columns mean that a screen of this width shows.
    pub(super) fn legend(&self, width: usize, before: &str) -> String {
        let kept = self.kept(width);
        let said = kept.iter().map(|&i| self.columns[i].about).filter(|about| !about.is_empty());
        let all = said.collect::<Vec<_>>().join(" ");
        if all.is_empty() { all } else { before.to_owned() + &wrap(&all, width, 0) }
    }

    /// The width of each column: the longest line of its title and cells.
    fn widths(&self) -> Vec<usize> {
        let width = |(i, column): (usize, &Column)| {
            let lines = column.title.lines().chain(self.rows().map(|row| row[i].as_str()));
            lines.map(length).max().unwrap_or(0)
        };
        self.columns.iter().enumerate().map(width).collect()
    }

    /// The text, without the columns that do not fit.
    pub fn text(&self, width: usize, color: bool) -> String {
        let (widths, kept) = (self.widths(), self.kept(width));
        let lines = kept.iter().map(|&i| self.columns[i].title.lines().count()).max().unwrap_or(0);
        let mut head = String::new();
        for line in 0..lines {
            let title = |i: usize| {
                // Short titles stand on the last lines.
                let own: Vec<&str> = self.columns[i].title.lines().collect();
                (line + own.len()).checked_sub(lines).map_or("", |at| own[at]).to_owned()
            };
            head += &self.line(&kept, &widths, title, false);
        }
        if lines > 0 {
            head += &self.line(&kept, &widths, |i| "-".repeat(widths[i]), false);
        }
        let mut out = String::new();
        if !matches!(self.lines.first(), Some(Line::Group(_))) {
            out += &head;
        }
        for line in &self.lines {
            match line {
                Line::Cells(row) => out += &self.line(&kept, &widths, |i| row[i].clone(), color),
                Line::Group(text) => {
                    let (title, rest) = text.split_once('\n').unwrap_or((text, ""));
                    out += &format!("\n{}", bold(title, width, color));
                    out += &rest.lines().map(|line| wrap(line, width, 0)).collect::<String>();
                    out += &head;
                }
            }
        }
        out
    }

    /// The columns that fit, by number.
    fn kept(&self, width: usize) -> Vec<usize> {
        let widths = self.widths();
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        let total = |kept: &[usize]| {
            kept.iter().map(|&i| widths[i]).sum::<usize>() + GAP * kept.len().saturating_sub(1)
        };
        while total(&kept) > width {
            let last = kept.iter().enumerate().max_by_key(|(_, i)| self.columns[**i].rank);
            match last {
                Some((at, &i)) if self.columns[i].rank > 0 => kept.remove(at),
                _ => break,
            };
        }
        kept
    }

    /// The titles and ranks of the columns that do not fit.
    pub(super) fn dropped(&self, width: usize) -> Vec<(String, u8)> {
        let kept = self.kept(width);
        let gone = (0..self.columns.len()).filter(|i| !kept.contains(i));
        gone.map(|i| (self.columns[i].title.replace('\n', " "), self.columns[i].rank)).collect()
    }

    fn line(&self, kept: &[usize], widths: &[usize], cell: impl Fn(usize) -> String, color: bool) -> String {
        let mut line = String::new();
        for (at, &i) in kept.iter().enumerate() {
            let text = cell(i);
            let blank = " ".repeat(widths[i].saturating_sub(length(&text)));
            let text = if color && text == FAILED { format!("\x1b[1;31m{text}\x1b[0m") } else { text };
            line += &" ".repeat(if at == 0 { 0 } else { GAP });
            line += &if self.columns[i].kind == Kind::Number { blank + &text } else { text + &blank };
        }
        line.trim_end().to_owned() + "\n"
    }
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// A wrapped paragraph, bold where colours are shown.
pub(super) fn bold(text: &str, width: usize, color: bool) -> String {
    let lines = wrap(text, width, 0);
    if !color {
        return lines;
    }
    lines.lines().map(|line| format!("\x1b[1m{line}\x1b[0m\n")).collect()
}

/// Wraps words at a width. Every line but the first begins with `indent` spaces.
pub fn wrap(text: &str, width: usize, indent: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a first line");
        if line.trim().is_empty() {
            line.push_str(word);
        } else if length(line) + 1 + length(word) <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(" ".repeat(indent) + word);
        }
    }
    lines.join("\n") + "\n"
}

/// A label with text beside it that is wrapped at a width.
pub fn beside(label: &str, text: &str, width: usize) -> String {
    let indent = length(label);
    let wrapped = wrap(text, width.saturating_sub(indent), 0);
    let start = |i: usize| if i == 0 { label.to_owned() } else { " ".repeat(indent) };
    let line = |(i, line): (usize, &str)| (start(i) + line).trim_end().to_owned() + "\n";
    wrapped.lines().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let table = Table::default().words(["engine"]).numbers(["ms"]);
        let mut table = table.column("over\nplain", Kind::Number, 2).column("why", Kind::Text, 9);
        table.push(["cpu", "1.25", "4.0x", "it is fast"]);
        table.push(["plain", "12.5", "1.0x", "-"]);
        table
    }

    #[test]
    fn columns_line_up() {
        let expected = "               over\nengine    ms  plain  why\n------  ----  -----  ----------\n\
                        cpu     1.25   4.0x  it is fast\nplain   12.5   1.0x  -\n";
        assert_eq!(table().text(80, true), expected);
    }

    #[test]
    fn the_least_important_columns_are_dropped() {
        let dropped = |width| table().dropped(width).into_iter().map(|(title, _)| title).collect::<Vec<_>>();
        assert_eq!(dropped(31), Vec::<String>::new());
        assert_eq!(dropped(30), ["why"]);
        assert_eq!(dropped(18), ["over plain", "why"]);
        assert_eq!(dropped(1), ["over plain", "why"], "the others stay");
        assert!(table().text(19, false).lines().all(|line| line.len() <= 19));
    }

    #[test]
    fn words_stay_whole() {
        assert_eq!(wrap("a bb  ccc\ndddd", 4, 2), "a bb\n  ccc\n  dddd\n");
        assert_eq!(wrap("/a/long/path x", 5, 0), "/a/long/path\nx\n");
        assert_eq!(wrap("", 5, 0), "\n");
        assert_eq!(beside("ab  ", "c ddd e", 9), "ab  c ddd\n    e\n");
        assert_eq!(beside("ab  ", "", 9), "ab\n");
    }
}
