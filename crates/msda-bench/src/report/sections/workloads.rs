//! The workloads of the report, each once.

use crate::record::Record;
use crate::report::group::workloads;
use crate::report::page::Section;
use crate::report::{Extensions, Kind, Table, by_key};
use crate::workload::Workload;

pub(super) fn section(records: &[Record], extensions: &Extensions) -> Option<Section> {
    let groups = records.iter().flat_map(|r| workloads(r, extensions));
    let mut all = by_key(groups, |group| group.workload);
    all.sort_by_key(|(name, _)| *name);
    let table = Table::default().words(["workload"]).columns(Kind::Text, ["description"]);
    let mut table = table.words(["problem"]);
    for (name, groups) in all {
        let built_in = crate::workload::BUILT_IN.iter().find(|(n, _)| *n == name);
        let about = built_in.and_then(|(n, text)| Workload::parse(n, text).ok()).map(|w| w.about);
        table.push([name.into(), about.unwrap_or_default(), groups[0].problems()]);
    }
    (!table.is_empty()).then(|| Section {
        title: "Workloads",
        about: "b: images, q: queries, h: heads, d: channels per head, l: levels, p: points per level."
            .into(),
        parts: vec![table.into()],
    })
}
