//! Records as tables for a terminal.

use super::group::{Group, is_plain, is_torch, unit, workloads};
use super::known::machine;
use super::number::{NONE, count, figure, maybe, percent, times};
use super::pivot::{self, families};
use super::table::{self, BAD, Cell, GOOD, Kind, Table, USUAL_WIDTH, beside, wrap};
use super::{plain, words};
use crate::record::{Device, Measurement, Record};

/// Where text is shown: how wide it is, and whether it has colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Characters per line.
    pub width: usize,
    /// Whether headings are bold, gains green and wrong results red.
    pub color: bool,
}

/// Records as tables of 80 columns.
pub fn terminal(records: &[Record], color: bool) -> String {
    Screen { width: USUAL_WIDTH, color }.tables(records)
}

impl Screen {
    /// Records as tables: one for each workload and pass, then figures, then what was left out.
    pub fn tables(self, records: &[Record]) -> String {
        if records.is_empty() {
            return "no records\n".into();
        }
        let run = |record: &Record| self.run(record);
        records.iter().map(run).collect::<Vec<_>>().join("\n")
    }

    fn run(self, record: &Record) -> String {
        let mut out = self.bold(&format!("msda {}, {}", record.version, record.created));
        out += &self.paragraph(&format!("{}, {}", machine(record), words::machine_note(&record.machine)));
        out += &self.paragraph(&words::about(record));
        if let Some(busy) = words::busy(record) {
            out += &self.bold(&busy);
        }
        out += &self.measurements(record);
        for (name, table) in families(&record.figures) {
            out += &format!("\n{}{}", self.bold(&name), table.text(self.width, self.color));
            let dropped = table.dropped(self.width);
            // The spread of runs is not missed.
            let dropped: Vec<&String> = dropped.iter().filter(|title| !pivot::is_spread(title)).collect();
            if !dropped.is_empty() {
                let names: Vec<&str> = dropped.iter().map(|title| title.as_str()).collect();
                out += &self.paragraph(&format!("too wide to show: {}", names.join(", ")));
            }
        }
        out + &self.left_out(record)
    }

    fn measurements(self, record: &Record) -> String {
        let groups = workloads(record, &[]);
        if groups.is_empty() {
            return if record.figures.is_empty() { "\nnothing was measured\n".into() } else { String::new() };
        }
        let common = common_threads(&groups);
        let says = |&(title, _, _, cell, _): &Column| match title {
            "threads" => common.is_none(),
            _ => groups.iter().any(|g| g.rows.iter().any(|row| cell(g, row) != NONE)),
        };
        let shown: Vec<Column> = COLUMNS.into_iter().filter(says).collect();
        let column = |table: Table, &(title, kind, rank, ..): &Column| table.column(title, kind, rank);
        let mut table = shown.iter().fold(Table::default(), column);
        for group in &groups {
            let threads = common.filter(|_| group.setting.device == Device::Cpu);
            let threads = threads.map_or(String::new(), |n| format!(", {}", count(n, "thread")));
            table.group(format!("{}{threads}\n{}", plain(&group.title()), plain(&group.problems())));
            for row in &group.rows {
                let cell = |&(title, _, _, cell, _): &Column| {
                    Cell::from(plain(&cell(group, row))).colored(color(title, group, row))
                };
                table.push(shown.iter().map(cell));
            }
        }
        let dropped = table.dropped(self.width);
        let there = |&&(title, _, _, _, legend): &&Column| {
            !legend.is_empty() && !dropped.iter().any(|gone| gone == title)
        };
        let legend: Vec<&str> = shown.iter().filter(there).map(|c| c.4).collect();
        table.text(self.width, self.color) + "\n" + &self.paragraph(&legend.join(" "))
    }

    /// What was not measured, and why. What has one reason is listed once.
    fn left_out(self, record: &Record) -> String {
        if record.skipped.is_empty() {
            return String::new();
        }
        let mut out = format!("\n{}", self.bold("skipped"));
        for same in record.skipped.chunk_by(|a, b| a.why == b.why) {
            let what: Vec<String> = same.iter().map(|s| plain(&s.what)).collect();
            let mut why = same[0].why.lines();
            let first = format!("{}: {}", what.join(", "), why.next().unwrap_or_default());
            out += &wrap(&plain(&first), self.width, 2);
            for line in why {
                out += &beside("  ", &plain(line), self.width);
            }
        }
        out
    }

    fn paragraph(self, text: &str) -> String {
        if text.is_empty() { String::new() } else { wrap(&plain(text), self.width, 0) }
    }

    fn bold(self, text: &str) -> String {
        table::bold(&plain(text), self.width, self.color)
    }
}

/// The threads of all measurements on the processor, if they are the same.
fn common_threads(groups: &[Group<'_>]) -> Option<usize> {
    let rows = || groups.iter().flat_map(|g| &g.rows).filter(|m| m.device == Device::Cpu);
    let first = rows().next()?.threads;
    rows().all(|m| m.threads == first).then_some(first)
}

/// A column of the table of measurements: its title; its kind; the rank by which it is dropped
/// where columns do not fit; its cell; and what it means.
type Column = (&'static str, Kind, u8, fn(&Group<'_>, &Measurement) -> String, &'static str);

use Kind::{Number, Word};

const COLUMNS: [Column; 10] = [
    ("dtype", Word, 0, |_, m| m.dtype.clone(), ""),
    ("engine", Word, 0, |_, m| m.engine.clone(), ""),
    ("threads", Number, 1, |_, m| threads(m), ""),
    ("median", Number, 0, |_, m| median(m), ""),
    ("p10..p90", Number, 4, |_, m| m.spread(), "p10..p90: 8 of 10 runs are in this range."),
    (
        OVER_PLAIN,
        Number,
        0,
        |g, m| times(over(g, m, is_plain)),
        "over plain: speed over a plain scalar loop of the same dtype and threads.",
    ),
    (
        OVER_TORCH,
        Number,
        0,
        |g, m| times(over(g, m, is_torch)),
        "over torch: speed over torch's grid_sample, likewise.",
    ),
    (
        "of limit",
        Number,
        3,
        |_, m| percent(m.reached()),
        "of limit: share of the speed that the measured limits of the machine allow.",
    ),
    (
        ERROR,
        Number,
        2,
        |_, m| m.error_text(),
        "err/tol: largest error over the tolerance; with ~ it may be above 1.",
    ),
    ("GB/s", Number, 5, |_, m| maybe(m.gathered_rate()), "GB/s: rows read through the caches."),
];

const OVER_PLAIN: &str = "over plain";
const OVER_TORCH: &str = "over torch";
const ERROR: &str = "err/tol";

fn threads(m: &Measurement) -> String {
    if m.device == Device::Cuda { NONE.into() } else { m.threads.to_string() }
}

fn median(m: &Measurement) -> String {
    let ((scale, unit), ms) = (unit(m.device), m.time.median);
    if ms.is_finite() { format!("{} {}", figure(ms * scale), unit.replace('µ', "u")) } else { NONE.into() }
}

fn color(title: &str, group: &Group<'_>, m: &Measurement) -> Option<&'static str> {
    let gain = match title {
        OVER_PLAIN => over(group, m, is_plain),
        OVER_TORCH => over(group, m, is_torch),
        ERROR => return (!m.within() && !m.check.inexact).then_some(BAD),
        _ => None,
    };
    gain.filter(|&gain| gain > 1.0).map(|_| GOOD)
}

/// How many times as fast an engine is as a baseline with the same dtype and threads.
fn over(group: &Group<'_>, m: &Measurement, is_baseline: impl Fn(&str) -> bool) -> Option<f64> {
    let same = |base: &&&Measurement| (&base.dtype, base.threads) == (&m.dtype, m.threads);
    let base = group.rows.iter().filter(same).find(|base| is_baseline(&base.engine))?;
    Some(base.median()? / m.median()?)
}
