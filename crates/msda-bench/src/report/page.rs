//! What a report is made of. Texts are as they are: whoever draws them escapes them.

use super::number::NONE;
use super::svg::Shape;

/// A part of the report with a title of its own.
pub(super) struct Section {
    pub title: &'static str,
    /// What it shows, in a sentence.
    pub about: String,
    pub parts: Vec<Part>,
}

/// What stands in a section, from top to bottom.
pub(super) enum Part {
    /// A title, and what stands small beside it.
    Heading(String, String),
    Note(String),
    Findings(Vec<Finding>),
    /// Names and values.
    Pairs(Vec<(String, String)>),
    /// What was typed.
    Command(String),
    /// What was not measured, and the command that measures it.
    Missing(Vec<(String, String)>),
    Table(Table),
    /// What colours and shapes mean: classes, shape, name. Only where there are plots.
    Legend(Vec<(String, Shape, String)>),
    /// Plots side by side where there is room. Only where there are plots.
    Plots(Vec<Plot>),
    /// Parts under a title that opens them.
    Fold(String, bool, Vec<Part>),
}

/// A few words that carry a finding, and a sentence that says where it comes from.
pub(super) struct Finding {
    pub lead: String,
    pub text: String,
}

/// A drawing with its title, and what stands small beside that.
pub(super) struct Plot {
    pub title: String,
    pub detail: String,
    pub svg: String,
}

/// A table.
pub(super) struct Table {
    pub title: String,
    pub columns: Vec<Column>,
    pub lines: Vec<Line>,
}

/// A column's title and what it holds.
pub(super) struct Column {
    pub title: String,
    pub kind: Kind,
}

/// What a column holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Names, which are not broken.
    Word,
    /// Numbers, which line up on the right.
    Number,
    /// Sentences, which are broken where they must.
    Text,
}

/// A line of a table.
pub(super) enum Line {
    /// A title for the lines that follow, what stands small beside it, and a note.
    Group(String, String, String),
    Cells(Vec<String>),
    /// Cells of a result that is not right.
    Wrong(Vec<String>),
}

impl Table {
    pub(super) fn new(title: impl Into<String>, columns: &[(&str, Kind)]) -> Self {
        let column = |&(title, kind): &(&str, Kind)| Column { title: title.into(), kind };
        Self { title: title.into(), columns: columns.iter().map(column).collect(), lines: Vec::new() }
    }

    pub(super) fn push<const N: usize>(&mut self, cells: [String; N]) {
        self.lines.push(Line::Cells(cells.into()));
    }

    /// Without columns of numbers that no line has.
    pub(super) fn without_empty(mut self) -> Self {
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
