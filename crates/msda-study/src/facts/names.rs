//! Names of rungs in old records.
//!
//! Five rungs got the parameters of their documents, and their earlier forms got names that end in
//! `_wide`. Records from before that time have the earlier forms under the plain names.

use msda_bench::record::Record;

/// Records from before this time have the old names.
const RENAMED: &str = "2026-11-16T17:00:00Z";

/// The rungs whose earlier forms are now called `NAME_wide`.
const WIDE: [&str; 5] = ["persistent", "persistent_full", "persistent_channelsplit", "ultra", "distributed"];

/// A record with the names that rungs have today.
pub fn today(record: &Record) -> Record {
    let mut record = record.clone();
    if record.created.as_str() < RENAMED {
        for measurement in &mut record.measurements {
            measurement.engine = renamed(&measurement.engine);
        }
        for figure in &mut record.figures {
            figure.name = renamed(&figure.name);
        }
    }
    record
}

/// The name of an engine or a figure, with the rung's name of today.
fn renamed(name: &str) -> String {
    let Some((before, after)) = name.split_once("ladder:") else { return name.into() };
    let (rung, rest) = after.split_at(after.find('.').unwrap_or(after.len()));
    let wide = if WIDE.contains(&rung) { "_wide" } else { "" };
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
            ("analyze.seed.f16.ladder:ultra.shared", "analyze.seed.f16.ladder:ultra_wide.shared"),
            ("analyze.seed.f16.ladder:base+half.loads.16", "analyze.seed.f16.ladder:base+half.loads.16"),
            ("probe.ceiling.copy.rate", "probe.ceiling.copy.rate"),
        ] {
            assert_eq!(renamed(old), new);
        }
    }
}
