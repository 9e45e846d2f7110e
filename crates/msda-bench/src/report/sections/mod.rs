//! The sections of a report, one per file. A section without data is left out.

mod answer;
mod errors;
mod floors;
mod left_out;
mod machines;
mod ratios;
mod times;
mod workloads;

use anyhow::Result;

use super::Extensions;
use super::page::Page;
use crate::record::Record;

pub(super) use answer::headlines;

/// The whole report.
pub(super) fn page(records: &[Record], extensions: &Extensions) -> Result<Page> {
    let mut records = records.to_vec();
    records.sort_by(|a, b| b.created.cmp(&a.created));
    let own = [
        errors::section(&records),
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
