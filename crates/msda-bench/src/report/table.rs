//! Tables, as Markdown and as text for a terminal, and wrapped paragraphs. No word is broken.

use super::by_line;
use super::number::NONE;
use super::page::{Part, escape};

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
    Cells(Vec<Cell>),
}

/// The text of a cell, and how it stands out.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    text: String,
    color: Option<&'static str>,
}

/// The colour of what is better than what it is compared with, and that of a wrong result.
pub(super) const GOOD: &str = "\x1b[1;32m";
pub(super) const BAD: &str = "\x1b[1;31m";

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), color: None }
    }
}

impl Cell {
    /// The same cell in a colour.
    #[must_use]
    pub(super) fn colored(self, color: Option<&'static str>) -> Self {
        Self { color, ..self }
    }
}

impl From<Table> for Part {
    fn from(table: Table) -> Self {
        Self::Text(table.markdown())
    }
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
    pub fn column(mut self, title: impl Into<String>, kind: Kind, rank: u8) -> Self {
        self.columns.push(Column { title: title.into(), kind, rank });
        self
    }

    /// Adds a line with a cell for each column.
    pub fn push<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut row: Vec<Cell> = cells.into_iter().map(Into::into).collect();
        row.resize(self.columns.len(), Cell::default());
        self.lines.push(Line::Cells(row));
    }

    /// Adds a title for the lines below. Text after its first line is less important.
    pub fn group(&mut self, title: String) {
        self.lines.push(Line::Group(title));
    }

    /// Whether it has no line.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    fn rows(&self) -> impl Iterator<Item = &Vec<Cell>> {
        self.lines.iter().filter_map(|line| match line {
            Line::Cells(cells) => Some(cells),
            Line::Group(_) => None,
        })
    }

    /// The table without columns of numbers or sentences that are empty in every line.
    #[must_use]
    pub fn without_empty(mut self) -> Self {
        for i in (0..self.columns.len()).rev() {
            let filled = |row: &Vec<Cell>| !["", NONE].contains(&row[i].text.as_str());
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
                Line::Group(title) => row(vec![format!("**{}**", escape(title))]),
                Line::Cells(cells) => row(cells.iter().map(|c| by_line(&c.text, "<br>", escape)).collect()),
            };
        }
        out
    }

    /// The width of each column: the longest line of its title and cells.
    fn widths(&self) -> Vec<usize> {
        let width = |(i, column): (usize, &Column)| {
            let lines = column.title.lines().chain(self.rows().map(|row| row[i].text.as_str()));
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
                Cell::from((line + own.len()).checked_sub(lines).map_or("", |at| own[at]))
            };
            head += &self.line(&kept, &widths, title, false);
        }
        if lines > 0 {
            head += &self.line(&kept, &widths, |i| "-".repeat(widths[i]).into(), false);
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

    /// The titles of the columns that do not fit.
    pub fn dropped(&self, width: usize) -> Vec<String> {
        let kept = self.kept(width);
        let gone = (0..self.columns.len()).filter(|i| !kept.contains(i));
        gone.map(|i| self.columns[i].title.replace('\n', " ")).collect()
    }

    fn line(&self, kept: &[usize], widths: &[usize], cell: impl Fn(usize) -> Cell, color: bool) -> String {
        let mut line = String::new();
        for (at, &i) in kept.iter().enumerate() {
            let Cell { text, color: own } = cell(i);
            let blank = " ".repeat(widths[i].saturating_sub(length(&text)));
            let text = match own.filter(|_| color) {
                Some(color) => format!("{color}{text}\x1b[0m"),
                None => text,
            };
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
        assert_eq!(table().dropped(31), Vec::<String>::new());
        assert_eq!(table().dropped(30), ["why"]);
        assert_eq!(table().dropped(18), ["over plain", "why"]);
        assert_eq!(table().dropped(1), ["over plain", "why"], "the others stay");
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
