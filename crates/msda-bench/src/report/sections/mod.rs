//! The sections of a report: one a file, each there only where records have something for it.

mod describe;
mod left_out;
mod roofline;
mod summary;
mod workloads;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use anyhow::Result;

use super::Extension;
use super::page::{Part, Section};
use super::svg::palette::Palette;
use super::words;
use crate::record::{Device, Record};

/// All sections that the records have something for.
pub(super) fn all(records: &[Record], extensions: &[Box<dyn Extension>]) -> Result<Vec<Section>> {
    let mut records = records.to_vec();
    // GPUs before processors, what has most workloads before what has few, what is new before what is old.
    let gpu = |r: &Record| r.measurements.iter().any(|m| m.device == Device::Cuda);
    let names = |r: &Record| r.measurements.iter().map(|m| m.workload.clone()).collect::<BTreeSet<_>>().len();
    let order = |r: &Record| Reverse((gpu(r), names(r), r.created.clone()));
    records.sort_by_cached_key(order);
    let palette = Palette::new(&records);
    let (mut findings, mut added, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for extension in extensions {
        let more = extension.add(&records)?;
        findings.extend(more.findings);
        added.extend(more.sections);
        missing.extend(more.missing);
    }
    let mut sections = vec![summary::section(&records, findings, missing)];
    sections.extend(workloads::section(&records, extensions, &palette));
    sections.extend(roofline::section(&records, extensions, &palette));
    sections.extend(added);
    sections.extend(left_out::section(&records));
    Ok(sections)
}

/// Parts of one thing among others, of which the first is open; of the only one they stand by themselves.
pub fn folded(all: Vec<(String, Vec<Part>)>) -> Vec<Part> {
    if all.len() == 1 {
        return all.into_iter().flat_map(|(_, parts)| parts).collect();
    }
    all.into_iter().enumerate().map(|(i, (title, parts))| Part::Fold(title, i == 0, parts)).collect()
}

/// What a run is called.
fn name(record: &Record) -> String {
    format!("{}, {}", words::where_measured(record), record.created)
}
