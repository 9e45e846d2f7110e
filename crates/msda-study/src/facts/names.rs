//! Names of rungs in old records.
//!
//! Five rungs got the parameters of their documents, and their earlier forms got names that end in
//! `_wide`. Later `tma_multilevel` became the kernel of document 3, and the kernel that document 5
//! plans became `tma_windows`. Records from before have the earlier forms under these names.

use msda_bench::record::Record;

/// Records from before these times have the old names.
const WIDENED: &str = "2026-11-16T17:00:00Z";
const RENAMED: &str = "2026-11-18T11:00:00Z";

/// The rungs whose earlier forms are now called `NAME_wide`.
const WIDE: [&str; 5] = ["persistent", "persistent_full", "persistent_channelsplit", "ultra", "distributed"];

/// A record with the names that rungs have today.
pub fn today(record: &Record) -> Record {
    let mut record = record.clone();
    let created = record.created.clone();
    for measurement in &mut record.measurements {
        measurement.engine = renamed(&measurement.engine, &created);
    }
    for figure in &mut record.figures {
        figure.name = renamed(&figure.name, &created);
    }
    record
}

/// The name of an engine or a figure, with the rung's name of today.
fn renamed(name: &str, created: &str) -> String {
    let Some((before, after)) = name.split_once("ladder:") else { return name.into() };
    let (rung, rest) = after.split_at(after.find('.').unwrap_or(after.len()));
    let wide = if created < WIDENED && WIDE.contains(&rung) { "_wide" } else { "" };
    let rung = if created < RENAMED && rung == "tma_multilevel" { "tma_windows" } else { rung };
    format!("{before}ladder:{rung}{wide}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_names_get_their_suffix_and_others_stay() {
        for (old, new) in [
            ("cuda:ladder:persistent", "cuda:ladder:persistent_wide"),
            ("cuda:ladder:distributed16", "cuda:ladder:distributed16"),
            ("cuda:ladder:tma_multilevel", "cuda:ladder:tma_windows"),
            ("analyze.seed.f16.ladder:ultra.shared", "analyze.seed.f16.ladder:ultra_wide.shared"),
            ("analyze.seed.f16.ladder:base+half.loads.16", "analyze.seed.f16.ladder:base+half.loads.16"),
            ("probe.ceiling.copy.rate", "probe.ceiling.copy.rate"),
        ] {
            assert_eq!(renamed(old, "2026-11-15"), new);
            assert_eq!(renamed(old, "2026-11-19"), old);
        }
    }
}
