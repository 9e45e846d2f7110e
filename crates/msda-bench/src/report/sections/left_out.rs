//! What was requested and not measured. Each reason appears once.

use crate::record::Record;
use crate::report::page::{Section, fold};
use crate::report::{Kind, Table, by_key, distinct};

pub(super) fn section(records: &[Record]) -> Option<Section> {
    let mut table = Table::default().columns(Kind::Text, ["what", "why"]);
    for (why, all) in by_key(records.iter().flat_map(|r| &r.skipped), |s| &s.why) {
        let what = distinct(all.iter().map(|s| s.what.as_str()));
        table.push([what.join(", "), why.clone()]);
    }
    (!table.is_empty()).then(|| Section {
        title: "Left out",
        about: "Requested measurements that could not be made, with the reasons.".into(),
        parts: fold("Reasons", "", false, vec![table.into()]),
    })
}
