//! What a report is made of. Texts are as they are: whoever draws them escapes them.

use super::number::NONE;
use super::svg::Shape;

/// A part of the report with a title of its own.
pub struct Section {
    /// The title.
    pub title: &'static str,
    /// What it shows, in a sentence.
    pub about: String,
    /// What stands in it.
    pub parts: Vec<Part>,
}

/// What stands in a section, from top to bottom.
pub enum Part {
    /// A title, and what stands small beside it.
    Heading(String, String),
    /// A sentence.
    Note(String),
    /// Findings, as a list.
    Findings(Vec<Finding>),
    /// Names and values.
    Pairs(Vec<(String, String)>),
    /// What was typed.
    Command(String),
    /// What was not measured, and the command that measures it.
    Missing(Vec<(String, String)>),
    /// A table.
    Table(Table),
    /// What colours and shapes mean: classes, shape, name. Only where there are plots.
    Legend(Vec<(String, Shape, String)>),
    /// Plots side by side where there is room. Only where there are plots.
    Plots(Vec<Plot>),
    /// Parts under a title that opens them.
    Fold(String, bool, Vec<Part>),
}

/// A few words that carry a finding, and a sentence that says where it comes from.
pub struct Finding {
    /// A few words that carry the finding.
    pub lead: String,
    /// Where it comes from.
    pub text: String,
}

/// A drawing with its title, and what stands small beside that.
pub struct Plot {
    /// The title.
    pub title: String,
    /// Small text beside the title.
    pub detail: String,
    /// The drawing.
    pub svg: String,
}

/// A table.
pub struct Table {
    /// The title.
    pub title: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// A column's title and what it holds.
pub struct Column {
    /// The title.
    pub title: String,
    /// The kind of its cells.
    pub kind: Kind,
}

/// What a column holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Names, which are not broken.
    Word,
    /// Numbers, which line up on the right.
    Number,
    /// Sentences, which are broken where they must.
    Text,
}

/// A line of a table.
pub enum Line {
    /// A title for the lines that follow, what stands small beside it, and a note.
    Group(String, String, String),
    /// One text per column.
    Cells(Vec<String>),
    /// Cells of a result that is not right.
    Wrong(Vec<String>),
}

impl Table {
    /// An empty table with these columns.
    pub fn new(title: impl Into<String>, columns: &[(&str, Kind)]) -> Self {
        let column = |&(title, kind): &(&str, Kind)| Column { title: title.into(), kind };
        Self { title: title.into(), columns: columns.iter().map(column).collect(), lines: Vec::new() }
    }

    /// Adds a line.
    pub fn push<const N: usize>(&mut self, cells: [String; N]) {
        self.lines.push(Line::Cells(cells.into()));
    }

    /// Without columns of numbers that no line has.
    pub fn without_empty(mut self) -> Self {
        let said = |line: &Line, i: usize| match line {
            Line::Group(..) => false,
            Line::Cells(cells) | Line::Wrong(cells) => !cells[i].is_empty() && cells[i] != NONE,
        };
        for i in (0..self.columns.len()).rev() {
            if self.columns[i].kind == Kind::Number && !self.lines.iter().any(|line| said(line, i)) {
                self.columns.remove(i);
                for line in &mut self.lines {
                    if let Line::Cells(cells) | Line::Wrong(cells) = line {
                        cells.remove(i);
                    }
                }
            }
        }
        self
    }
}
