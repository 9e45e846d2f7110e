//! The founding documents, answered: the content of `docs/FOUNDING.md`.

use anyhow::Result;

use super::Judge;
use crate::facts::gpus;
use crate::founding::{COLUMNS, Founding};
use msda_bench::record::{Record, Source};
use msda_bench::report::page::{Column, Kind, Line, Part, Section, Table};

/// The section. None if claims are not judged.
pub(super) fn section(records: &[Record], when: Judge) -> Result<Option<Section>> {
    let source = |record: &Record| Source { label: record.created.clone(), record: record.clone() };
    let sources: Vec<Source> = records.iter().map(source).collect();
    if when == Judge::Never || (when == Judge::Gpu && gpus(&sources).is_empty()) {
        return Ok(None);
    }
    let founding = Founding::of(sources)?;
    let mut parts: Vec<Part> = founding.answer.iter().map(|sentence| Part::Note(sentence.clone())).collect();
    parts.push(table("Their kernels, experiments and figures", &COLUMNS, &[7, 0, 1], &founding.rows));
    let columns = ["lines", "the documents say", "fact"];
    parts.push(table("Contradictions", &columns, &[0], &founding.contradictions));
    let columns = ["lines", "idea", "status", "result", "command"];
    parts.push(table("Future work of the documents", &columns, &[0], &founding.future));
    Ok(Some(Section {
        title: "Founding documents",
        about:
            "Each kernel, experiment and figure of the documents beside ours. 2:60 is line 60 of document 2."
                .into(),
        parts,
    }))
}

/// A table whose columns wrap, except those of `words`.
fn table<const N: usize>(title: &str, columns: &[&str], words: &[usize], rows: &[[String; N]]) -> Part {
    let kind = |i: usize| if words.contains(&i) { Kind::Word } else { Kind::Text };
    let column = |(i, title): (usize, &&str)| Column { title: (*title).into(), kind: kind(i) };
    let table = Table {
        title: title.into(),
        columns: columns.iter().enumerate().map(column).collect(),
        lines: rows.iter().map(|row| Line::Cells(row.to_vec())).collect(),
    };
    Part::closed(title, vec![Part::Table(table)])
}
