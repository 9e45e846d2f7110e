//! The sections of a report, one per file. A section without data is left out.

mod answer;
mod errors;
mod left_out;
mod machines;
mod ratios;
mod roofline;
mod times;
mod workloads;

use anyhow::Result;

use super::Extension;
use super::page::{Fold, Page, Part};
use crate::record::Record;

pub(super) use answer::headlines;

/// The whole report.
pub(super) fn page(records: &[Record], extensions: &[Box<dyn Extension>]) -> Result<Page> {
    let mut records = records.to_vec();
    records.sort_by(|a, b| b.created.cmp(&a.created));
    let own = [
        errors::section(&records, extensions),
        machines::section(&records, extensions),
        workloads::section(&records, extensions),
        left_out::section(&records),
    ];
    let mut sections: Vec<_> = own.into_iter().flatten().collect();
    for extension in extensions {
        sections.extend(extension.sections(&records)?);
    }
    Ok(Page { answer: answer::parts(&records), sections })
}

/// Titled parts as folds, of which the first is open. A single one needs no fold.
pub fn folded(all: Vec<(String, Vec<Part>)>) -> Vec<Part> {
    if all.len() == 1 {
        return all.into_iter().flat_map(|(_, parts)| parts).collect();
    }
    let fold = |(i, (title, parts)): (usize, (String, Vec<Part>))| {
        Part::Fold(Fold { title, detail: String::new(), open: i == 0, parts })
    };
    all.into_iter().enumerate().map(fold).collect()
}
