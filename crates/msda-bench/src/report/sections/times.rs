//! The times of a run as one table: a line per workload, dtype and thread count, a column per
//! engine.

use std::cmp::Reverse;

use crate::record::{Device, Measurement, Pass, Record};
use crate::report::compare::{Verdict, is_default, verdict};
use crate::report::group::{Group, unit, workloads};
use crate::report::names::{date, engine, order, place};
use crate::report::number::{figure, maybe, percent, times_short};
use crate::report::page::Part;
use crate::report::{Extensions, Table, by_key, distinct};

/// One table per device and cache state, and the meaning of its columns.
pub(super) fn parts(run: &Record, extensions: &Extensions) -> Vec<Part> {
    let groups = workloads(run, extensions);
    let mut kinds = by_key(&groups, |g| (Reverse(g.setting.device), g.setting.cold, g.pass));
    kinds.sort_by_key(|(kind, _)| *kind);
    let mut parts = Vec::new();
    for ((Reverse(device), cold, pass), own) in kinds {
        let title = if pass == Pass::Forward { "Forward" } else { "Backward" };
        parts.push(Part::heading(4, &format!("{title} on the {}", place(device))));
        let cold = if cold { ", caches cold before each run" } else { "" };
        parts.push(Part::note(&format!("median, {}{cold}", unit(device).1)));
        parts.push(table(run, &own, device).into());
    }
    parts
}

/// The meaning of the columns.
pub(super) const LEGEND: &str = "In the tables, the number in parentheses is the time divided by ours. p10..p90: \
    80 % of our runs took between these times. Of limit: our share of the speed that the measured ceilings of the \
    machine allow. Host: host time of a launch. Warm: replayed from a CUDA graph with warm caches. ~: outside the \
    tolerance, because the engine rounds locations or sums to 16 bits.";

/// A column besides those of engines: its title and the text of our time.
type Extra = (&'static str, fn(&Measurement) -> String);

/// The last two are of the GPU.
const EXTRAS: [Extra; 4] = [
    ("p10..p90", Measurement::spread),
    ("of limit", |m| percent(m.reached())),
    ("host", |m| maybe(m.host_us)),
    ("warm", |m| maybe(m.replay.map(|replay| replay.warm * 1e3))),
];

fn table(run: &Record, groups: &[&Group<'_>], device: Device) -> Table {
    let mut engines = distinct(groups.iter().flat_map(|g| &g.rows).map(|m| m.engine.as_str()));
    engines.sort_by_key(|e| (!is_default(run, e), order(e)));
    let ours = engines.first().copied().filter(|e| is_default(run, e));
    let extras = match (ours, device) {
        (None, _) => &[],
        (_, Device::Cuda) => &EXTRAS[..],
        (_, Device::Cpu) => &EXTRAS[..2],
    };

    let threads = (device == Device::Cpu).then_some("threads");
    let table = Table::default().words(["workload", "dtype"]).numbers(threads);
    let mut table = table.numbers(engines.iter().map(|e| engine(e))).numbers(extras.iter().map(|e| e.0));
    for group in groups {
        for same in group.rows.chunk_by(|a, b| key(a) == key(b)) {
            let find = |e: &str| same.iter().find(|m| m.engine == e).copied();
            let our = ours.and_then(find);
            let m = same[0];
            let mut cells = vec![m.workload.clone(), m.dtype.clone()];
            if device == Device::Cpu {
                cells.push(m.threads.to_string());
            }
            cells.extend(engines.iter().map(|e| find(e).map_or(String::new(), |m| cell(run, m, our))));
            cells.extend(extras.iter().map(|(_, text)| our.map_or(String::new(), text)));
            table.push(cells);
        }
    }
    table.without_empty()
}

/// What measurements of one line share.
fn key(m: &Measurement) -> (&str, usize) {
    (&m.dtype, m.threads)
}

/// A time, and how many times longer than ours.
fn cell(run: &Record, m: &Measurement, ours: Option<&Measurement>) -> String {
    let mark = match verdict(run, m) {
        Verdict::Failed => return "failed check".into(),
        Verdict::Rounded => "~",
        Verdict::Passed => "",
    };
    let text = format!("{mark}{}", figure(m.time.median * unit(m.device).0));
    match ours.and_then(Measurement::median).zip(m.median()) {
        Some((ours, theirs)) if theirs != ours => format!("{text} ({})", times_short(theirs / ours)),
        _ => text,
    }
}

/// Our times in several runs of the same command, newest first.
pub(super) fn repeats(runs: &[&Record], extensions: &Extensions) -> Vec<Part> {
    let table = Table::default().words(["workload", "pass", "dtype"]).numbers(["threads"]);
    let mut table = table.numbers(runs.iter().map(|r| date(r)));
    for group in workloads(runs[0], extensions) {
        for m in group.rows.iter().filter(|m| is_default(runs[0], &m.engine)) {
            let same = |other: &&Measurement| {
                (&other.workload, &other.engine, other.pass, key(other))
                    == (&m.workload, &m.engine, m.pass, key(m))
            };
            let time = |r: &&Record| {
                let found = r.measurements.iter().find(same);
                found.map_or(String::new(), |m| figure(m.time.median * unit(m.device).0))
            };
            let threads = if m.device == Device::Cpu { m.threads.to_string() } else { String::new() };
            let first = [m.workload.clone(), m.pass.to_string(), m.dtype.clone(), threads];
            table.push(first.into_iter().chain(runs.iter().map(time)));
        }
    }
    let about = "Our median time in each run, ms on a CPU and µs on a GPU. The first is the run above.";
    vec![Part::note(about), table.without_empty().into()]
}
