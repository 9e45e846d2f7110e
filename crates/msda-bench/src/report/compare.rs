//! Ours against other implementations: the same workload, pass, dtype, threads and cache state, in
//! one run.

use std::cmp::Reverse;

use super::group::{Setting, in_same_rounds, is_own, is_pinned, is_torch, positive};
use super::{by_key, names};
use crate::engines::external::OURS;
use crate::record::{Device, Measurement, Pass, Record};

/// Beginnings of the names of workloads that are taken from models. Only these count for the
/// headline.
const MODELS: [&str; 7] = ["detr-", "dino-", "rt-detr-", "rf-detr-", "d-fine-", "mask2former", "bevformer-"];

/// The largest error, in tolerances, that rounding locations and weights to 16 bits explains.
const ROUNDING: f64 = 100.0;

/// Whether a workload is taken from a model.
pub(super) fn is_model(workload: &str) -> bool {
    MODELS.iter().any(|model| workload.starts_with(model))
}

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Within the tolerance.
    Passed,
    /// Outside the tolerance, because the engine rounds locations or sums to 16 bits.
    Rounded,
    /// The result is wrong, so its time means nothing.
    Failed,
}

/// The outcome of a measurement's check.
///
/// An engine that is not held to the tolerance may round to 16 bits. It fails if it is outside the
/// tolerance in a wider type: in its own type, or, on the same workload of the same run, in f32.
pub(super) fn verdict(record: &Record, m: &Measurement) -> Verdict {
    if m.within() {
        return Verdict::Passed;
    }
    if !m.check.inexact || !["f16", "bf16"].contains(&m.dtype.as_str()) {
        return Verdict::Failed;
    }
    let twin = |t: &&Measurement| {
        t.dtype == "f32" && (&t.engine, &t.workload, t.pass) == (&m.engine, &m.workload, m.pass)
    };
    let rounded = match record.measurements.iter().find(twin) {
        Some(twin) => twin.within(),
        None => m.check.max_error <= ROUNDING * m.check.tolerance,
    };
    if rounded { Verdict::Rounded } else { Verdict::Failed }
}

/// Our time on a workload, and the times of others in the same run.
pub(super) struct Comparison<'a> {
    pub run: &'a Record,
    pub ours: &'a Measurement,
    /// In the order of legends.
    pub others: Vec<Other<'a>>,
}

/// Another implementation in a comparison.
pub(super) struct Other<'a> {
    pub measured: &'a Measurement,
    pub verdict: Verdict,
    /// Its time divided by ours.
    pub ratio: f64,
}

/// Comparisons that share everything but the workload.
pub(super) struct Panel<'a> {
    pub processor: String,
    pub setting: Setting,
    pub pass: Pass,
    pub dtype: &'a str,
    pub threads: usize,
    pub rows: Vec<Comparison<'a>>,
}

impl<'a> Comparison<'a> {
    /// The others whose result counts.
    pub(super) fn counted(&self) -> impl Iterator<Item = &Other<'a>> {
        self.others.iter().filter(|o| o.verdict != Verdict::Failed)
    }

    /// The fastest of the others whose result counts.
    pub(super) fn fastest(&self) -> Option<&Other<'a>> {
        self.counted().min_by(|a, b| a.ratio.total_cmp(&b.ratio))
    }

    /// Torch, if it was measured.
    pub(super) fn torch(&self) -> Option<&Other<'a>> {
        self.counted().find(|o| is_torch(&o.measured.engine))
    }
}

/// The engine that a plain call uses in this run: `cuda`, or the best instruction set of the
/// processor.
pub(super) fn is_default(record: &Record, engine: &str) -> bool {
    match record.machine.isas.first() {
        Some(best) if engine.starts_with("cpu-") => engine == format!("cpu-{best}"),
        _ => is_own(engine) && !engine.contains(':'),
    }
}

/// All comparisons of a run.
pub(super) fn comparisons(run: &Record) -> Vec<Comparison<'_>> {
    let timed = |m: &&Measurement| positive(m.time.median).is_some();
    let ours = run.measurements.iter().filter(timed).filter(|m| is_default(run, &m.engine));
    let mut all = Vec::new();
    for ours in ours.filter(|m| verdict(run, m) == Verdict::Passed) {
        let same = |m: &&Measurement| {
            let other = !is_own(&m.engine) && !is_pinned(&m.engine) && m.engine != "oracle";
            other && m.engine != ours.engine && key(m) == key(ours) && in_same_rounds(run, m, ours)
        };
        let other = |m| Other { measured: m, verdict: verdict(run, m), ratio: ratio(m, ours) };
        let others = run.measurements.iter().filter(timed).filter(same).map(other);
        let mut others: Vec<Other<'_>> = others.filter(|o| positive(o.ratio).is_some()).collect();
        others.sort_by_key(|o| names::order(&o.measured.engine));
        if !others.is_empty() {
            all.push(Comparison { run, ours, others });
        }
    }
    all
}

fn ratio(m: &Measurement, ours: &Measurement) -> f64 {
    m.time.median / ours.time.median
}

/// What measurements share that are compared.
fn key(m: &Measurement) -> (&str, &str, Pass, &str, usize, Setting) {
    (&m.workload, &m.problem, m.pass, &m.dtype, m.threads, Setting::of(m))
}

/// The comparisons that the headline is about: workloads of models, or all if there is none of a
/// model. A workload that several runs compare comes from the run with most other implementations,
/// and of these from the newest. On a processor only the largest number of threads counts.
///
/// The GPU comes before the processor, forward before backward, and f16 before f32 on a GPU.
pub(super) fn headline<'a>(records: &'a [Record]) -> Vec<Panel<'a>> {
    let mut all: Vec<_> = records.iter().flat_map(comparisons).filter(|c| c.fastest().is_some()).collect();
    if all.iter().any(|c| is_model(&c.ours.workload)) {
        all.retain(|c| is_model(&c.ours.workload));
    }
    let same = |c: &Comparison<'_>| {
        let m = c.ours;
        (names::processor(c.run, m.device), m.workload.clone(), m.pass, m.dtype.clone(), Setting::of(m))
    };
    // The last of those with the same rank counts, so they are reversed.
    let beside = |c: &Comparison<'_>| c.ours.engine == OURS;
    let rank = |c: &Comparison<'_>| (c.ours.threads, c.counted().count(), beside(c), c.run.created.clone());
    let most = |(_, own): (_, Vec<Comparison<'a>>)| own.into_iter().rev().max_by_key(rank);
    let mut best: Vec<Comparison<'_>> = by_key(all, same).into_iter().filter_map(most).collect();
    let order = |c: &Comparison<'_>| {
        let model = MODELS.iter().position(|model| c.ours.workload.starts_with(model));
        (model, Reverse(c.ours.workload.clone()))
    };
    best.sort_by_key(order);

    let key = |c: &Comparison<'a>| {
        let m = c.ours;
        (names::processor(c.run, m.device), Setting::of(m), m.pass, m.dtype.as_str(), m.threads)
    };
    let panel = |((processor, setting, pass, dtype, threads), rows)| Panel {
        processor,
        setting,
        pass,
        dtype,
        threads,
        rows,
    };
    let mut panels: Vec<Panel<'a>> = by_key(best, key).into_iter().map(panel).collect();
    let dtype = |p: &Panel<'_>| match (p.setting.device, p.dtype) {
        (Device::Cuda, "f16") | (Device::Cpu, "f32") => 0,
        _ => 1 + super::dtype_order(p.dtype).0,
    };
    let place =
        |p: &Panel<'a>| (Reverse((p.setting.device, p.threads)), p.processor.clone(), p.pass, dtype(p));
    panels.sort_by_key(place);
    panels
}
