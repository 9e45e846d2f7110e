//! How far the gradients of each implementation are from the oracle.

use crate::record::{Device, Measurement, Pass, Record};
use crate::report::chart::{Chart, Mark, Row};
use crate::report::compare::{Verdict, is_default, is_model, verdict};
use crate::report::group::{is_own, is_pinned};
use crate::report::names::{self, engine, order, processor};
use crate::report::number::short;
use crate::report::page::{Part, Section};
use crate::report::{Extension, dtype_order, positive};

const ABOUT: &str = "The largest error of the gradients against the f64 oracle, divided by the tolerance, for \
    workloads of models on a GPU. The vertical line is the tolerance; further right is worse. The bold number is \
    msda's. Implementations that add or locate in 16 bits are right of the line.";

/// The newest measurement of an engine on a workload, whose gradients were checked.
struct Checked<'a> {
    run: &'a Record,
    measured: &'a Measurement,
}

impl Checked<'_> {
    /// The largest error in tolerances. Results without any error are put at the left end.
    fn error(&self) -> f64 {
        let check = &self.measured.check;
        positive(check.max_error / check.tolerance).unwrap_or(1e-3).max(1e-3)
    }
}

/// The records are sorted, newest first.
pub(super) fn section(records: &[Record], extensions: &[Box<dyn Extension>]) -> Option<Section> {
    let mut results: Vec<Checked<'_>> = Vec::new();
    for run in records {
        for measured in &run.measurements {
            let ours = is_own(&measured.engine) && is_default(run, &measured.engine);
            let counts = ours || !(is_own(&measured.engine) || is_pinned(&measured.engine));
            let here = measured.device == Device::Cuda && measured.pass == Pass::Backward;
            let key = |m: &'_ Measurement| (m.workload.clone(), m.dtype.clone(), engine(&m.engine));
            let new = || results.iter().all(|r| key(r.measured) != key(measured));
            let elsewhere = extensions.iter().any(|extension| extension.shows(&measured.engine));
            if counts && here && !elsewhere && is_model(&measured.workload) && new() {
                results.push(Checked { run, measured });
            }
        }
    }
    // Charts and rows with our gradients only.
    let ours = |r: &Checked<'_>| is_own(&r.measured.engine);
    let key = |r: &Checked<'_>| (r.measured.workload.clone(), r.measured.dtype.clone());
    let known: Vec<_> = results.iter().filter(|r| ours(r)).map(key).collect();
    results.retain(|r| known.contains(&key(r)));
    let mut dtypes: Vec<&str> =
        results.iter().filter(|r| !ours(r)).map(|r| r.measured.dtype.as_str()).collect();
    dtypes.sort_by_key(|dtype| (*dtype != "f16", dtype_order(dtype)));
    dtypes.dedup();
    if dtypes.is_empty() {
        return None;
    }
    let charts: Vec<Chart> = dtypes.iter().map(|dtype| chart(dtype, &results)).collect();
    Some(Section {
        title: "Error of the gradients",
        about: ABOUT.into(),
        parts: vec![Part::Plots(Chart::plots(&charts, "wrong also in f32"))],
    })
}

fn chart(dtype: &str, results: &[Checked<'_>]) -> Chart {
    let mut results: Vec<_> = results.iter().filter(|r| r.measured.dtype == dtype).collect();
    results.sort_by_key(|r| &r.measured.workload);
    let processor = results.first().map(|r| processor(r.run, Device::Cuda)).unwrap_or_default();
    let row = |same: &[&Checked<'_>]| Row {
        name: same[0].measured.workload.clone(),
        own: Default::default(),
        marks: same.iter().map(|r| mark(r)).collect(),
    };
    Chart {
        title: format!("{processor}, {dtype}"),
        detail: "backward".into(),
        about: "Largest error of the gradients over the tolerance",
        axis: "largest error over the tolerance (log scale)",
        unit: "x",
        line: "tolerance",
        own: String::new(),
        rows: results.chunk_by(|a, b| a.measured.workload == b.measured.workload).map(row).collect(),
    }
}

fn mark(result: &Checked<'_>) -> Mark {
    let (m, error) = (result.measured, result.error());
    let ours = is_own(&m.engine);
    let name = if ours { "msda".into() } else { engine(&m.engine) };
    let (class, shape) = names::mark(&m.engine);
    Mark {
        order: order(&m.engine),
        class,
        shape,
        value: error,
        text: short(error),
        title: format!("{name}: {}", short(error)),
        // Rounding to 16 bits does not explain the error.
        failed: !ours && verdict(result.run, m) == Verdict::Failed,
        bold: ours,
        name,
    }
}
