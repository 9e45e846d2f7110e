//! The workloads of the report, each once.

use crate::record::Record;
use crate::report::group::workloads;
use crate::report::page::Section;
use crate::report::{Extension, Kind, Table};
use crate::workload::Workload;

pub(super) fn section(records: &[Record], extensions: &[Box<dyn Extension>]) -> Option<Section> {
    let mut all: Vec<(&str, String)> = Vec::new();
    for group in records.iter().flat_map(|r| workloads(r, extensions)) {
        if !all.iter().any(|(name, _)| *name == group.workload) {
            all.push((group.workload, group.problems()));
        }
    }
    all.sort();
    let table = Table::default().words(["workload"]).columns(Kind::Text, ["description"]);
    let mut table = table.words(["problem"]);
    for (name, problem) in all {
        let built_in = crate::workload::BUILT_IN.iter().find(|(n, _)| *n == name);
        let about = built_in.and_then(|(n, text)| Workload::parse(n, text).ok()).map(|w| w.about);
        table.push([name.into(), about.unwrap_or_default(), problem]);
    }
    (!table.is_empty()).then(|| Section {
        title: "Workloads",
        about: "b: images, q: queries, h: heads, d: channels per head, l: levels, p: points per level."
            .into(),
        parts: vec![table.into()],
    })
}
