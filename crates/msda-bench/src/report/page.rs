//! The content of a report, independent of its format. Texts are not escaped: the renderers do
//! that.

use super::number::NONE;
use super::svg::Shape;

/// A whole report.
pub(super) struct Page {
    /// The part before the first section: what the records show.
    pub answer: Vec<Part>,
    /// The sections, in order.
    pub sections: Vec<Section>,
}

/// A section of the report.
pub struct Section {
    /// The title.
    pub title: &'static str,
    /// One or two sentences below the title.
    pub about: String,
    /// The content.
    pub parts: Vec<Part>,
}

/// A part of a section.
pub enum Part {
    /// A title, and small text beside it.
    Heading(String, String),
    /// A main result.
    Headline(Headline),
    /// A sentence.
    Note(String),
    /// A sentence that warns the reader.
    Warning(String),
    /// Findings as a list.
    Findings(Vec<Finding>),
    /// Names and values.
    Pairs(Vec<(String, String)>),
    /// A command line.
    Command(String),
    /// Things that no record has, and the commands that measure them.
    Missing(Vec<(String, String)>),
    /// A table.
    Table(Table),
    /// Plots with their legend.
    Plots(Plots),
    /// Parts that a click opens.
    Fold(Fold),
}

/// Parts that a click opens.
pub struct Fold {
    /// The title, which is always visible.
    pub title: String,
    /// Small text beside the title.
    pub detail: String,
    /// Whether it is open at first.
    pub open: bool,
    /// The content.
    pub parts: Vec<Part>,
}

/// A short lead and a sentence with the evidence.
pub struct Finding {
    /// A few words.
    pub lead: String,
    /// The evidence.
    pub text: String,
}

/// A main result as one sentence. The middle part is bold.
pub struct Headline {
    /// Where it holds.
    pub place: String,
    /// The result.
    pub result: String,
    /// The rest of the sentence.
    pub rest: String,
}

/// An entry of a legend.
pub struct Key {
    /// Classes of the style sheet.
    pub class: String,
    /// The shape of the mark.
    pub shape: Shape,
    /// The name.
    pub name: String,
}

/// Plots side by side, with a common legend. Formats without graphics show the tables instead.
#[derive(Default)]
pub struct Plots {
    /// The legend; may be empty.
    pub legend: Vec<Key>,
    /// How to read the plots; may be empty.
    pub note: String,
    /// The plots.
    pub plots: Vec<Plot>,
}

/// A plot with its caption.
pub struct Plot {
    /// The title.
    pub title: String,
    /// Small text beside the title.
    pub detail: String,
    /// The drawing.
    pub svg: String,
    /// The same numbers, for formats without graphics. None where a table follows the plot anyway.
    pub table: Option<Table>,
}

/// A table.
pub struct Table {
    /// The title.
    pub title: String,
    /// The columns. The first one stays in place when the table scrolls.
    pub columns: Vec<Column>,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A column of a table.
pub struct Column {
    /// The title.
    pub title: String,
    /// The kind of its cells.
    pub kind: Kind,
}

/// The kind of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A name: never wrapped.
    Word,
    /// A number: aligned on the right.
    Number,
    /// A sentence: wrapped.
    Text,
}

/// A line of a table.
pub enum Line {
    /// A title for the lines below.
    Group(String),
    /// One text per column.
    Cells(Vec<String>),
    /// Cells of a result that failed its check.
    Failed(Vec<String>),
}

impl Key {
    /// An entry of a legend.
    pub fn new(class: impl Into<String>, shape: Shape, name: impl Into<String>) -> Self {
        Self { class: class.into(), shape, name: name.into() }
    }
}

impl Part {
    /// Parts that are closed at first.
    pub fn closed(title: impl Into<String>, parts: Vec<Part>) -> Self {
        Self::Fold(Fold { title: title.into(), detail: String::new(), open: false, parts })
    }

    /// Plots without legend and note.
    pub fn plots(plots: Vec<Plot>) -> Self {
        Self::Plots(Plots { plots, ..Plots::default() })
    }
}

impl Plot {
    /// A plot whose numbers are in a table nearby.
    pub fn new(title: impl Into<String>, detail: impl Into<String>, svg: String) -> Self {
        Self { title: title.into(), detail: detail.into(), svg, table: None }
    }
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

    /// The table without columns of numbers or sentences that are empty in every line.
    pub fn without_empty(mut self) -> Self {
        let filled = |line: &Line, i: usize| match line {
            Line::Group(_) => false,
            Line::Cells(cells) | Line::Failed(cells) => !cells[i].is_empty() && cells[i] != NONE,
        };
        for i in (0..self.columns.len()).rev() {
            if self.columns[i].kind != Kind::Word && !self.lines.iter().any(|line| filled(line, i)) {
                self.columns.remove(i);
                for line in &mut self.lines {
                    if let Line::Cells(cells) | Line::Failed(cells) = line {
                        cells.remove(i);
                    }
                }
            }
        }
        self
    }
}
