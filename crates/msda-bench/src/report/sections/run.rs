//! One run: its times, ceilings, figures, and what was left out.

use crate::record::{Device, Measurement, Record};
use crate::report::compare::{Verdict, is_default, verdict};
use crate::report::escape::plain;
use crate::report::group::{Group, in_same_rounds, is_own, unit, workloads};
use crate::report::number::{FAILED, NONE, count, figure, maybe, percent, times};
use crate::report::page::{Part, fold};
use crate::report::pivot::{SPREAD, families};
use crate::report::{Extensions, Kind, Table, by_key, distinct, words};

/// The parts of a run. Extensions show figures themselves.
pub(super) fn parts(run: &Record, extensions: &Extensions) -> Vec<Part> {
    let groups = workloads(run, extensions);
    let mut parts = vec![Part::Note(words::about(run))];
    if !groups.is_empty() {
        parts.push(Part::findings(&words::findings(run, &groups)));
        parts.push(measurements(run, &groups).into());
    } else if run.figures.is_empty() {
        parts.push(Part::note("nothing was measured"));
    }
    if !run.ceilings.is_empty() {
        parts.extend(fold("Ceilings of the machine", "", false, vec![ceilings(run).into()]));
    }
    if extensions.is_empty() {
        for (name, table) in families(&run.figures) {
            parts.extend(fold(&name, "", false, vec![table.into()]));
        }
    }
    if !run.skipped.is_empty() {
        let of_reason = |(why, all): (&String, Vec<&crate::record::Skipped>)| {
            (distinct(all.iter().map(|s| s.what.as_str())).join(", "), why.clone())
        };
        let all = by_key(&run.skipped, |s| &s.why).into_iter().map(of_reason).collect();
        parts.extend(fold("Left out", "", false, vec![Part::List(all)]));
    }
    parts
}

fn ceilings(run: &Record) -> Table {
    let mut table = Table::default().words(["ceiling"]).numbers(["threads", "rate"]).words(["unit"]);
    for c in &run.ceilings {
        let threads = if c.device == Device::Cuda { "GPU".into() } else { c.threads.to_string() };
        let unit = if c.name.starts_with(crate::work::FMA) { "GFLOP/s" } else { "GB/s" };
        table.push([&c.name, &threads, &figure(c.rate), unit]);
    }
    table
}

/// What a cell is made of: the run, the group, and the measurement of the line.
struct Line<'a>(&'a Record, &'a Group<'a>, &'a Measurement);

/// A column of the table of measurements: its title; its kind; the rank by which it is dropped
/// where columns do not fit; its cell; and what it means.
type Column = (&'static str, Kind, u8, fn(&Line<'_>) -> String, &'static str);

const THREADS: &str = "threads";

use Kind::{Number, Word};

const COLUMNS: [Column; 12] = [
    ("dtype", Word, 0, |l| l.2.dtype.clone(), ""),
    ("engine", Word, 0, |l| l.2.engine.clone(), ""),
    (THREADS, Number, 1, threads, ""),
    ("median", Number, 0, median, ""),
    (
        "over msda",
        Number,
        0,
        over,
        "over msda: the time divided by that of msda with the same dtype and threads.",
    ),
    ("p10..p90", Number, SPREAD, |l| l.2.spread(), "p10..p90: 8 of 10 runs are in this range."),
    (
        "of limit",
        Number,
        3,
        |l| percent(l.2.reached()),
        "of limit: share of the speed that the measured limits of the machine allow.",
    ),
    (
        "of rows",
        Number,
        3,
        |l| percent(l.2.work.rows_ms.map(|rows| rows / l.2.time.median)),
        "of rows: share of the speed at which this machine loads the same rows and does nothing else.",
    ),
    (
        "err/tol",
        Number,
        2,
        |l| l.2.error_text(),
        "err/tol: largest error over the tolerance; with ~ it may be above 1.",
    ),
    ("GB/s", Number, SPREAD, |l| maybe(l.2.gathered_rate()), "GB/s: rows read through the caches."),
    ("host us", Number, SPREAD, |l| maybe(l.2.host_us), "host: host time of a launch."),
    (
        "warm us",
        Number,
        SPREAD,
        |l| maybe(l.2.replay.map(|replay| replay.warm * 1e3)),
        "warm: replayed from a CUDA graph with warm caches.",
    ),
];

fn measurements(run: &Record, groups: &[Group<'_>]) -> Table {
    let common = common_threads(groups);
    let says = |&(title, _, _, cell, _): &Column| match title {
        THREADS if common.is_some() => false,
        _ => groups.iter().any(|g| g.rows.iter().any(|m| cell(&Line(run, g, m)) != NONE)),
    };
    let shown: Vec<Column> = COLUMNS.into_iter().filter(says).collect();
    let column = |table: Table, c: &Column| table.explained(c.0, c.1, c.2, c.4);
    let mut table = shown.iter().fold(Table::default(), column);
    for group in groups {
        let threads = common.filter(|_| group.setting.device == Device::Cpu);
        let threads = threads.map_or(String::new(), |n| format!(", {}", count(n, "thread")));
        table.group(format!("{}{threads}\n{}", plain(&group.title()), plain(&group.problems())));
        for m in &group.rows {
            table.push(shown.iter().map(|c| plain(&c.3(&Line(run, group, m)))));
        }
    }
    table
}

/// The threads of all measurements on the processor, if they are the same.
fn common_threads(groups: &[Group<'_>]) -> Option<usize> {
    let rows = || groups.iter().flat_map(|g| &g.rows).filter(|m| m.device == Device::Cpu);
    let first = rows().next()?.threads;
    rows().all(|m| m.threads == first).then_some(first)
}

fn threads(&Line(_, _, m): &Line<'_>) -> String {
    if m.device == Device::Cuda { NONE.into() } else { m.threads.to_string() }
}

fn median(&Line(run, _, m): &Line<'_>) -> String {
    let ((scale, unit), ms) = (unit(m.device), m.time.median);
    match ms.is_finite() {
        _ if verdict(run, m) == Verdict::Failed => FAILED.into(),
        true => format!("{} {unit}", figure(ms * scale)),
        false => NONE.into(),
    }
}

/// The time over that of our default engine, or else of our fastest one.
fn over(&Line(run, group, m): &Line<'_>) -> String {
    let same = |base: &&&Measurement| (&base.dtype, base.threads) == (&m.dtype, m.threads);
    let own = || group.rows.iter().filter(same).filter(|b| is_own(&b.engine) && in_same_rounds(run, b, m));
    let base = own().find(|base| is_default(run, &base.engine)).or_else(|| own().next());
    let ratio = base.filter(|_| verdict(run, m) != Verdict::Failed);
    times(ratio.and_then(|base| Some(m.median()? / base.median()?)))
}
