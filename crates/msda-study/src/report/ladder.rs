//! The ladder: one kernel per strategy, from the simplest on; and its suite of single changes to a
//! base kernel.

use crate::ladder::RUNGS;

use crate::engines::{RUNG, is_rung};
use crate::facts::holds_ladder;
use msda_bench::record::{Figure, Measurement, Record};
use msda_bench::report::chart::{Bar, Chart};
use msda_bench::report::known::machine;
use msda_bench::report::number::{NONE, figure, percent, times};
use msda_bench::report::page::{Part, Section, fold, folds};
use msda_bench::report::{Kind, Setting, Table, by_key, dtype_order, positive};

/// The base of the suite.
const BASE: &str = "base";

/// The rung that the others are compared with.
const ORIGINAL: &str = "original";

/// The workload with locations anywhere.
const ANYWHERE: &str = "seed-ring-uniform";

/// The kernels of a ladder on one GPU, one workload and one dtype.
struct Ladder<'a> {
    machine: String,
    first: &'a Measurement,
    /// In the order of the ladder, then the generic kernel and the chosen one.
    steps: Vec<&'a Measurement>,
    /// Of the same record.
    figures: &'a [Figure],
}

pub(super) fn section(records: &[Record]) -> Option<Section> {
    let ladders = ladders(records);
    let title = |l: &Ladder<'_>| format!("{}, {}", l.name(), l.machine);
    let parts = |(i, l): (usize, &Ladder<'_>)| (title(l), l.parts(records, i == 0));
    let all: Vec<(String, Vec<Part>)> = ladders.iter().enumerate().map(parts).collect();
    (!all.is_empty()).then(|| Section {
        title: "Ladder",
        about: "The strategies of the documents as kernels, one per rung, beside the kernel that msda chooses. All do \
                the same work."
            .into(),
        parts: folds(all),
    })
}

/// The chosen kernel against the first rung and the fastest one, on the first workload that has
/// them.
pub(super) fn finding(records: &[Record]) -> Option<(String, String)> {
    let ladders = ladders(records);
    let (ladder, chosen) =
        ladders.iter().find_map(|l| Some((l, l.steps.iter().find(|m| m.engine == "cuda")?)))?;
    let right = |m: &&&Measurement| is_rung(&m.engine) && !of_suite(&m.engine) && m.within();
    let rungs = ladder.steps.iter().filter(right);
    let best = rungs.min_by(|a, b| a.time.median.total_cmp(&b.time.median))?;
    let over = |ms: f64| times(positive(ms / chosen.time.median));
    let mut text = format!(
        "{} µs; the fastest exact rung, {}, takes {} µs",
        figure(chosen.time.median * 1e3),
        short(&best.engine),
        figure(best.time.median * 1e3)
    );
    if let Some(original) = ladder.time(ORIGINAL) {
        text += &format!(", the first rung, {ORIGINAL}, {} µs ({})", figure(original * 1e3), over(original));
    }
    let lead = format!("The chosen kernel is {} as fast as the best rung", over(best.time.median));
    Some((lead, format!("{}: {text}", ladder.name())))
}

/// An engine's name without its prefix.
fn short(engine: &str) -> &str {
    match engine {
        "cuda" => "chosen",
        _ => engine.strip_prefix(RUNG).or(engine.strip_prefix("cuda:")).unwrap_or(engine),
    }
}

fn about(name: &str) -> &'static str {
    match name {
        "chosen" => "the kernel that msda chooses",
        "generic" => "the fallback for all problems",
        _ => RUNGS.iter().find(|r| r.name == name).map_or("", |r| &r.about),
    }
}

/// The position of an engine: rungs in the order of the ladder, unknown rungs after them, then
/// other kernels.
fn order(engine: &str) -> (usize, usize) {
    let place = RUNGS.iter().position(|r| r.name == short(engine)).unwrap_or(RUNGS.len());
    match engine {
        "cuda" => (3, 0),
        "cuda:generic" => (1, 0),
        _ if is_rung(engine) => (0, place),
        _ => (2, 0),
    }
}

/// The ladders, each from one record: the newest that holds the ladder, or else the newest with a
/// rung. Times of two runs are not comparable.
fn ladders(records: &[Record]) -> Vec<Ladder<'_>> {
    let mut best_first: Vec<&Record> = records.iter().collect();
    best_first.sort_by(|a, b| (holds_ladder(b), &b.created).cmp(&(holds_ladder(a), &a.created)));
    let mut all: Vec<Ladder<'_>> = Vec::new();
    for record in best_first {
        let ours = |m: &&Measurement| m.engine == "cuda" || m.engine.starts_with("cuda:");
        let timed = record.measurements.iter().filter(ours).filter(|m| m.median().is_some());
        let (machine, figures) = (machine(record), &record.figures[..]);
        for (own, mut steps) in by_key(timed, |m| key(m)) {
            let Some(first) = steps.iter().copied().find(|m| is_rung(&m.engine)) else { continue };
            if !all.iter().any(|l| l.machine == machine && key(l.first) == own) {
                steps.sort_by_key(|m| order(&m.engine));
                all.push(Ladder { machine: machine.clone(), first, steps, figures });
            }
        }
    }
    // f16 comes first, because the documents are about it.
    all.sort_by(|a, b| {
        let dtype = |l: &Ladder<'_>| (l.first.dtype != "f16", dtype_order(&l.first.dtype).0);
        dtype(a).cmp(&dtype(b))
    });
    all
}

/// Whether an engine is the base of the suite, or a rung with one change.
fn of_suite(engine: &str) -> bool {
    is_rung(engine) && (short(engine) == BASE || base_of(short(engine)).is_some())
}

/// The rung that a rung with one change is compared with: `base+half` with `base`.
fn base_of(name: &str) -> Option<&str> {
    match name {
        "original_f16+pipeline" | "original_f16+precomputed" => Some("original_f16+tiles"),
        _ => name.find(['+', '-']).map(|at| &name[..at]),
    }
}

/// What measurements of one ladder share.
fn key(m: &Measurement) -> (&str, &str, String, Setting) {
    (&m.workload, &m.dtype, m.pass.to_string(), Setting::of(m))
}

impl Ladder<'_> {
    fn name(&self) -> String {
        let m = self.first;
        format!("{} {} {}{}", m.workload, m.dtype, m.pass, Setting::of(m).words())
    }

    fn time(&self, rung: &str) -> Option<f64> {
        self.steps.iter().find(|m| is_rung(&m.engine) && short(&m.engine) == rung).map(|m| m.time.median)
    }

    /// The strategies are described in the first ladder only.
    fn parts(&self, records: &[Record], described: bool) -> Vec<Part> {
        let mut parts = vec![Part::Charts(vec![self.chart()])];
        parts.extend(fold("Numbers", "", false, vec![self.table(described).into()]));
        let missing = self.missing(records);
        if !missing.is_empty() {
            let rungs: Vec<String> = missing.iter().map(|name| format!("--rung {name}")).collect();
            let command = format!("msda-study bench --workload {} {}", self.first.workload, rungs.join(" "));
            parts.push(Part::missing(&[(missing.join(", "), command)]));
        }
        parts
    }

    /// Rungs without a time that no record lists as skipped.
    fn missing(&self, records: &[Record]) -> Vec<&'static str> {
        let left_out = |name: &str| {
            let engine = format!("{RUNG}{name}");
            let mut skipped = records.iter().flat_map(|r| &r.skipped);
            skipped.any(|s| s.what.split([' ', ',']).any(|word| word == engine))
        };
        let names = RUNGS.iter().map(|r| r.name.as_str());
        names.filter(|name| self.time(name).is_none() && !left_out(name)).collect()
    }

    fn chart(&self) -> Chart {
        let bar = |m: &&Measurement| Bar {
            name: short(&m.engine).into(),
            value: m.time.median,
            text: format!(
                "{} µs{}",
                figure(m.time.median * 1e3),
                if m.check.inexact { ", inexact" } else { "" }
            ),
            own: m.engine == "cuda",
        };
        Chart { title: self.name(), bars: self.steps.iter().map(bar).collect() }
    }

    fn table(&self, described: bool) -> Table {
        let titles = ["time µs", "p10..p90", "over original", "gain over its base %", "floor", "err/tol"];
        let table = Table::default().words(["rung"]).numbers(titles);
        let mut table = table.columns(Kind::Text, ["strategy"]);
        let original = self.time(ORIGINAL);
        for m in &self.steps {
            let us = |ms: f64| figure(ms * 1e3);
            let over = |other: Option<f64>| times(other.and_then(|o| positive(o / m.time.median)));
            let name = short(&m.engine);
            table.push([
                name.into(),
                us(m.time.median),
                m.spread(),
                if name == ORIGINAL { NONE.into() } else { over(original) },
                self.gain(m).map_or(NONE.into(), signed),
                percent(m.reached()),
                self.worst(m).map_or_else(|| m.error_text(), |worst| m.error_as(Some(worst), worst <= 1.0)),
                if described { about(name).into() } else { String::new() },
            ]);
        }
        table.without_empty()
    }

    /// The largest error of all outputs over the tolerance, on its workload or with locations
    /// anywhere, if the run compared them.
    fn worst(&self, m: &Measurement) -> Option<f64> {
        let kernel = if m.engine == "cuda" { "chosen" } else { m.engine.strip_prefix("cuda:")? };
        let name = |workload: &str| format!("verify.{workload}.{}.{kernel}.worst", m.dtype);
        let find = |name: String| self.figures.iter().find(|f| f.name == name).map(|f| f.value);
        find(name(&m.workload)).or_else(|| find(name(ANYWHERE)))
    }

    /// How much faster than the rung that it changes in one thing, in percent, as in the documents.
    fn gain(&self, m: &Measurement) -> Option<f64> {
        let base = base_of(short(&m.engine)).filter(|_| is_rung(&m.engine))?;
        let gain = (self.time(base)? / m.time.median - 1.0) * 100.0;
        gain.is_finite().then_some(gain)
    }
}

/// A number with its sign and one decimal: `+3.2`.
fn signed(value: f64) -> String {
    // Not `-0.0`.
    let value = (value * 10.0).round() / 10.0 + 0.0;
    format!("{value:+.1}")
}
