//! The run that all times of the ladder come from.
//!
//! A ratio of times from two runs compares clocks and drivers too. So facts about rungs come from
//! one record: the newest that has much of the ladder.

use msda_bench::record::{Measurement, Record, Source};

use crate::engines::is_rung;
use crate::ladder::RUNGS;

/// The engine that msda chooses, as a member of the ladder: its time in the ladder's run.
pub const CHOSEN: &str = "cuda:ladder:chosen";

/// Whether a record has at least a third of the rungs on one workload.
pub fn holds(record: &Record) -> bool {
    let rungs = || record.measurements.iter().filter(|m| is_rung(&m.engine));
    let alike = |m: &Measurement| {
        rungs().filter(|o| (&o.workload, &o.dtype, o.pass) == (&m.workload, &m.dtype, m.pass)).count()
    };
    rungs().next().is_some_and(|m| 3 * alike(m) >= RUNGS.len())
}

/// The newest record that holds the ladder.
pub fn newest(sources: &[Source]) -> Option<Source> {
    let ladders = sources.iter().filter(|source| holds(&source.record));
    ladders.max_by(|a, b| a.record.created.cmp(&b.record.created)).cloned()
}
