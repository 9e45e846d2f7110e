//! The times of a run as one table: a line per workload, dtype and thread count, a column per
//! engine.

use crate::record::{Device, Measurement, Pass, Record};
use crate::report::compare::{Verdict, is_default, verdict};
use crate::report::group::{Group, Row, workloads};
use crate::report::names::{date, engine, order};
use crate::report::number::{NONE, figure, maybe, percent, times_short};
use crate::report::page::Part;
use crate::report::{Extension, Table};

/// How milliseconds become the unit of a device's times, and that unit.
pub(super) fn unit(device: Device) -> (f64, &'static str) {
    match device {
        Device::Cuda => (1e3, "µs"),
        Device::Cpu => (1.0, "ms"),
    }
}

/// One table per device and cache state, and the meaning of its columns.
pub(super) fn parts(run: &Record, extensions: &[Box<dyn Extension>]) -> Vec<Part> {
    let groups = workloads(run, extensions);
    let mut settings: Vec<_> = groups.iter().map(|g| g.setting).collect();
    settings.sort_by_key(|s| (std::cmp::Reverse(s.device), s.cold));
    settings.dedup();
    let mut parts = Vec::new();
    for setting in settings {
        let unit = unit(setting.device).1;
        let cold = if setting.cold { ", caches cold before each run" } else { "" };
        let place = if setting.device == Device::Cuda { "GPU" } else { "CPU" };
        for pass in [Pass::Forward, Pass::Backward] {
            let own: Vec<&Group<'_>> =
                groups.iter().filter(|g| g.setting == setting && g.pass == pass).collect();
            if !own.is_empty() {
                let title =
                    format!("{} on the {place}", if pass == Pass::Forward { "Forward" } else { "Backward" });
                parts.push(Part::heading(4, &title));
                parts.push(Part::note(&format!("median, {unit}{cold}")));
                parts.push(table(run, &own, setting.device).into());
            }
        }
    }
    parts
}

/// The meaning of the columns.
pub(super) const LEGEND: &str = "In the tables, the number in parentheses is the time divided by ours. p10..p90: 80 % of \
    our runs took between these times. Floor: our share of the speed that the measured ceilings of the machine allow. \
    Host: host time of a launch. Warm: replayed from a CUDA graph with warm caches. ~: outside the tolerance, because \
    the engine rounds locations or sums to 16 bits.";

/// A column besides those of engines: its title and the text of our time.
type Extra = (&'static str, fn(&Row<'_>) -> String);

fn extras(device: Device) -> Vec<Extra> {
    let spread: Extra = match device {
        Device::Cuda => ("p10..p90", |r| spread(r, 1e3)),
        Device::Cpu => ("p10..p90", |r| spread(r, 1.0)),
    };
    let mut all: Vec<Extra> = vec![spread, ("floor", |r| percent(r.reached()))];
    if device == Device::Cuda {
        all.push(("host", |r| maybe(r.measured.host_us)));
        all.push(("warm", |r| maybe(r.measured.replay.map(|replay| replay.warm * 1e3))));
    }
    all
}

fn spread(row: &Row<'_>, scale: f64) -> String {
    let time = &row.measured.time;
    if !time.p10.is_finite() || !time.p90.is_finite() {
        return NONE.into();
    }
    format!("{}..{}", figure(time.p10 * scale), figure(time.p90 * scale))
}

fn table(run: &Record, groups: &[&Group<'_>], device: Device) -> Table {
    let rows = || groups.iter().flat_map(|g| &g.rows);
    let mut engines: Vec<&str> = Vec::new();
    for row in rows() {
        if !engines.contains(&row.measured.engine.as_str()) {
            engines.push(&row.measured.engine);
        }
    }
    engines.sort_by_key(|e| (!is_default(run, e), order(e)));
    let ours = engines.first().copied().filter(|e| is_default(run, e));
    let extras = if ours.is_some() { extras(device) } else { Vec::new() };

    let threads = (device == Device::Cpu).then_some("threads");
    let table = Table::default().words(["workload", "dtype"]).numbers(threads);
    let mut table = table.numbers(engines.iter().map(|e| engine(e))).numbers(extras.iter().map(|e| e.0));
    for group in groups {
        for same in group.rows.chunk_by(|a, b| key(a.measured) == key(b.measured)) {
            let find = |e: &str| same.iter().find(|r| r.measured.engine == e);
            let our = ours.and_then(find);
            let m = same[0].measured;
            let mut cells = vec![m.workload.clone(), m.dtype.clone()];
            if device == Device::Cpu {
                cells.push(m.threads.to_string());
            }
            cells.extend(engines.iter().map(|e| find(e).map_or(String::new(), |row| cell(run, row, our))));
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
fn cell(run: &Record, row: &Row<'_>, ours: Option<&Row<'_>>) -> String {
    let mark = match verdict(run, row.measured) {
        Verdict::Failed => return "failed check".into(),
        Verdict::Rounded => "~",
        Verdict::Passed => "",
    };
    let text = format!("{mark}{}", figure(row.measured.time.median * unit(row.measured.device).0));
    match ours.and_then(Row::median).zip(row.median()) {
        Some((ours, theirs)) if theirs != ours => format!("{text} ({})", times_short(theirs / ours)),
        _ => text,
    }
}

/// Our times in several runs of the same command, newest first.
pub(super) fn repeats(runs: &[&Record], extensions: &[Box<dyn Extension>]) -> Vec<Part> {
    let table = Table::default().words(["workload", "pass", "dtype"]).numbers(["threads"]);
    let mut table = table.numbers(runs.iter().map(|r| date(r)));
    for group in workloads(runs[0], extensions) {
        for m in group.rows.iter().map(|r| r.measured).filter(|m| is_default(runs[0], &m.engine)) {
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
