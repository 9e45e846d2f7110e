//! How far the gradients of each implementation are from the oracle.

use super::ratios::legend_of;
use crate::record::{Device, Measurement, Pass, Record};
use crate::report::compare::{Verdict, is_default, is_model, verdict};
use crate::report::group::{is_own, is_pinned};
use crate::report::names::{engine, mark, order, processor};
use crate::report::number::short;
use crate::report::page::{Column, Key, Kind, Line, Part, Plot, Plots, Section, Table};
use crate::report::svg::{Shape, ratios};
use crate::report::{Extension, dtype_order, positive};

const ABOUT: &str = "The largest error of the gradients against the f64 oracle, divided by the tolerance, for \
    workloads of models on a GPU. The vertical line is the tolerance; further right is worse. Implementations that \
    add or locate in 16 bits are right of it.";

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
    let of = |dtype: &&str| results.iter().filter(|r| r.measured.dtype == **dtype).collect();
    let charts: Vec<(_, Vec<&Checked<'_>>)> = dtypes.iter().map(|dtype| (*dtype, of(dtype))).collect();
    let (wrong, others): (Vec<_>, Vec<_>) = results.iter().filter(|r| !ours(r)).partition(|r| failed(r));
    let (class, shape) = mark("cuda");
    let mut legend = vec![Key::new(class, shape, name("cuda"))];
    legend.extend(legend_of(others.iter().map(|r| r.measured.engine.as_str())));
    let mut wrong: Vec<String> = wrong.iter().map(|r| name(&r.measured.engine)).collect();
    wrong.sort();
    wrong.dedup();
    if !wrong.is_empty() {
        legend.push(Key::new("cross", Shape::Cross, format!("wrong also in f32: {}", wrong.join("; "))));
    }
    let plots = charts.iter().map(|(dtype, own)| plot(dtype, own)).collect();
    Some(Section {
        title: "Error of the gradients",
        about: ABOUT.into(),
        parts: vec![Part::Plots(Plots { legend, note: String::new(), plots })],
    })
}

/// Whether rounding to 16 bits does not explain the error.
fn failed(result: &Checked<'_>) -> bool {
    verdict(result.run, result.measured) == Verdict::Failed
}

fn name(of: &str) -> String {
    if is_own(of) { "msda".into() } else { engine(of) }
}

fn plot(dtype: &str, results: &[&Checked<'_>]) -> Plot {
    let mut workloads: Vec<&str> = results.iter().map(|r| r.measured.workload.as_str()).collect();
    workloads.sort_unstable();
    workloads.dedup();
    let of = |workload: &str| -> Vec<&&Checked<'_>> {
        results.iter().filter(|r| r.measured.workload == workload).collect()
    };
    let rows: Vec<ratios::Row> = workloads.iter().map(|w| row(w, &of(w))).collect();
    let processor = results.first().map(|r| processor(r.run, Device::Cuda)).unwrap_or_default();
    let title = format!("{processor}, {dtype}");
    let label =
        format!("Largest error of the gradients over the tolerance, {title}: {}", workloads.join(", "));
    let words = ratios::Words { line: "tolerance", axis: "largest error over the tolerance (log scale)" };
    let table = table(&workloads, results);
    Plot { title, detail: "backward".into(), svg: ratios::ratios(&rows, &words, &label), table: Some(table) }
}

fn row(workload: &str, results: &[&&Checked<'_>]) -> ratios::Row {
    let said = |r: &Checked<'_>| format!("{}: {}", name(&r.measured.engine), short(r.error()));
    let (wrong, counted): (Vec<_>, Vec<_>) = results.iter().partition(|r| failed(r));
    let mark_of = |r: &&&&Checked<'_>| {
        let (class, shape) = mark(&r.measured.engine);
        ratios::Mark { class, shape, ratio: r.error(), title: said(r) }
    };
    ratios::Row {
        name: workload.into(),
        time: String::new(),
        marks: counted.iter().map(mark_of).collect(),
        failed: wrong.iter().map(|r| said(r)).collect(),
    }
}

/// The numbers of a chart.
fn table(workloads: &[&str], results: &[&Checked<'_>]) -> Table {
    let mut engines: Vec<&str> = results.iter().map(|r| r.measured.engine.as_str()).collect();
    engines.sort_by_key(|e| (order(e), *e));
    engines.dedup();
    let mut table = Table::new("Errors", &[("workload", Kind::Word)]);
    table.columns.extend(engines.iter().map(|e| Column { title: name(e), kind: Kind::Number }));
    for workload in workloads {
        let cell = |e: &&str| {
            let same = |r: &&&Checked<'_>| r.measured.engine == *e && r.measured.workload == *workload;
            results.iter().find(same).map_or_else(String::new, |r| short(r.error()))
        };
        table
            .lines
            .push(Line::Cells([(*workload).into()].into_iter().chain(engines.iter().map(cell)).collect()));
    }
    table
}
