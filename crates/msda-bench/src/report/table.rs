//! Text for a terminal: tables that keep within a width, and wrapped paragraphs. No word is broken.

/// The width where there is no terminal to ask.
pub const USUAL_WIDTH: usize = 80;

/// Spaces between two columns.
const GAP: usize = 2;

/// A table that drops columns where it would be too wide.
#[derive(Debug, Clone, Default)]
pub struct TextTable {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

#[derive(Debug, Clone)]
struct Column {
    title: String,
    is_number: bool,
    /// Columns with the highest rank are dropped first; a column of rank 0 stays.
    rank: u8,
    /// The least width.
    width: usize,
}

/// The text of a cell, and how it stands out.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    text: String,
    color: Option<Color>,
}

/// How a cell stands out, where colours are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    /// Better than what it is compared with.
    Good,
    /// A wrong result.
    Bad,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), color: None }
    }
}

impl Cell {
    /// The same cell in a colour.
    #[must_use]
    pub fn colored(self, color: Option<Color>) -> Self {
        Self { color, ..self }
    }
}

impl TextTable {
    /// A column of text. Of the columns that do not fit, the one with the highest rank is dropped
    /// first; rank 0 is never dropped. A newline in the title begins a second line.
    #[must_use]
    pub fn text(mut self, title: &str, rank: u8) -> Self {
        self.columns.push(Column { title: title.into(), is_number: false, rank, width: 0 });
        self
    }

    /// A column of numbers, which line up on the right.
    #[must_use]
    pub fn number(mut self, title: &str, rank: u8) -> Self {
        self.columns.push(Column { title: title.into(), is_number: true, rank, width: 0 });
        self
    }

    /// Adds a row with a cell for each column.
    pub fn push<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut row: Vec<Cell> = cells.into_iter().map(Into::into).collect();
        row.resize(self.columns.len(), Cell::default());
        self.rows.push(row);
    }

    /// The width of each column: the longest line of its title and cells.
    pub fn widths(&self) -> Vec<usize> {
        let width = |(i, column): (usize, &Column)| {
            let lines = column.title.lines().chain(self.rows.iter().map(|row| row[i].text.as_str()));
            lines.map(length).max().unwrap_or(0).max(column.width)
        };
        self.columns.iter().enumerate().map(width).collect()
    }

    /// Makes columns at least this wide, so that several tables line up.
    pub fn widen(&mut self, widths: &[usize]) {
        for (column, &width) in self.columns.iter_mut().zip(widths) {
            column.width = column.width.max(width);
        }
    }

    /// The text, without the columns that do not fit.
    pub fn render(&self, width: usize, color: bool) -> String {
        let (widths, kept) = (self.widths(), self.kept(width));
        let mut out = String::new();
        let lines = kept.iter().map(|&i| self.columns[i].title.lines().count()).max().unwrap_or(0);
        for line in 0..lines {
            let title = |i: usize| {
                // Short titles stand on the last lines.
                let own: Vec<&str> = self.columns[i].title.lines().collect();
                let text = (line + own.len()).checked_sub(lines).map_or("", |at| own[at]);
                Cell::from(text)
            };
            self.line(&mut out, &kept, &widths, title, false);
        }
        if lines > 0 {
            let rule = |i: usize| Cell::from("-".repeat(widths[i]));
            self.line(&mut out, &kept, &widths, rule, false);
        }
        for row in &self.rows {
            self.line(&mut out, &kept, &widths, |i| row[i].clone(), color);
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

    fn line(
        &self,
        out: &mut String,
        kept: &[usize],
        widths: &[usize],
        cell: impl Fn(usize) -> Cell,
        color: bool,
    ) {
        let mut line = String::new();
        for (at, &i) in kept.iter().enumerate() {
            let Cell { text, color: own } = cell(i);
            let blank = " ".repeat(widths[i].saturating_sub(length(&text)));
            let text = match own.filter(|_| color) {
                Some(Color::Good) => format!("\x1b[1;32m{text}\x1b[0m"),
                Some(Color::Bad) => format!("\x1b[1;31m{text}\x1b[0m"),
                None => text,
            };
            line += &" ".repeat(if at == 0 { 0 } else { GAP });
            line += &if self.columns[i].is_number { blank + &text } else { text + &blank };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

fn length(text: &str) -> usize {
    text.chars().count()
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

    fn table() -> TextTable {
        let mut table =
            TextTable::default().text("engine", 0).number("ms", 0).number("over\nplain", 2).text("why", 9);
        table.push(["cpu", "1.25", "4.0x", "it is fast"]);
        table.push(["plain", "12.5", "1.0x", "-"]);
        table
    }

    #[test]
    fn columns_line_up() {
        let expected = "               over\nengine    ms  plain  why\n------  ----  -----  ----------\n\
                        cpu     1.25   4.0x  it is fast\nplain   12.5   1.0x  -\n";
        assert_eq!(table().render(80, true), expected);
    }

    #[test]
    fn the_least_important_columns_are_dropped() {
        assert_eq!(table().dropped(31), Vec::<String>::new());
        assert_eq!(table().dropped(30), ["why"]);
        assert_eq!(table().dropped(18), ["over plain", "why"]);
        assert_eq!(table().dropped(1), ["over plain", "why"], "the others stay");
        assert!(table().render(19, false).lines().all(|line| line.len() <= 19));
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
