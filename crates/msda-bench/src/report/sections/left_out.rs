//! What was requested and not measured. Each reason appears once.

use crate::record::Record;
use crate::report::page::{Section, fold};
use crate::report::{Kind, Table};

pub(super) fn section(records: &[Record]) -> Option<Section> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for s in records.iter().flat_map(|r| &r.skipped) {
        match reasons.iter_mut().find(|(why, _)| *why == s.why) {
            Some((_, what)) if what.contains(&s.what.as_str()) => {}
            Some((_, what)) => what.push(&s.what),
            None => reasons.push((&s.why, vec![&s.what])),
        }
    }
    let mut table = Table::default().columns(Kind::Text, ["what", "why"]);
    for (why, what) in reasons {
        table.push([what.join(", "), why.into()]);
    }
    (!table.is_empty()).then(|| Section {
        title: "Left out",
        about: "Requested measurements that could not be made, with the reasons.".into(),
        parts: fold("Reasons", "", false, vec![table.into()]),
    })
}
