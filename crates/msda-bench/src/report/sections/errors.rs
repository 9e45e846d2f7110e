//! How far the gradients of each implementation are from the oracle.

use crate::record::{Device, Measurement, Pass, Record};
use crate::report::chart::{Chart, Mark, Row};
use crate::report::compare::{Comparison, Panel, Verdict, headline, is_model};
use crate::report::names::{self, engine};
use crate::report::number::short;
use crate::report::page::{Part, Section};
use crate::report::positive;

const ABOUT: &str = "The largest error of the gradients against the f64 oracle, divided by the tolerance, for \
    workloads of models on a GPU. The vertical line is the tolerance; further right is worse. The bold number is \
    msda's. Implementations that add or locate in 16 bits are right of the line.";

pub(super) fn section(records: &[Record]) -> Option<Section> {
    let here = |p: &&Panel<'_>| {
        let model = p.rows.iter().any(|c| is_model(&c.ours.workload));
        p.setting.device == Device::Cuda && p.pass == Pass::Backward && model
    };
    let charts: Vec<Chart> = headline(records).iter().filter(here).map(chart).collect();
    (!charts.is_empty()).then(|| Section {
        title: "Error of the gradients",
        about: ABOUT.into(),
        parts: vec![Part::Plots(Chart::plots(charts, "wrong also in f32"))],
    })
}

fn chart(panel: &Panel<'_>) -> Chart {
    Chart {
        title: format!("{}, {}", panel.processor, panel.dtype),
        detail: "backward".into(),
        about: "Largest error of the gradients over the tolerance",
        axis: "largest error over the tolerance (log scale)",
        unit: "x",
        line: "tolerance",
        rows: panel.rows.iter().map(row).collect(),
        ..Chart::default()
    }
}

fn row(c: &Comparison<'_>) -> Row {
    let ours = Mark { name: "msda".into(), bold: true, ..mark(c.ours, "msda") };
    // Rounding to 16 bits does not explain the error of a result that failed.
    let others = c.others.iter().map(|o| Mark {
        failed: o.verdict == Verdict::Failed,
        ..mark(o.measured, &engine(&o.measured.engine))
    });
    Row { name: c.ours.workload.clone(), marks: others.chain([ours]).collect(), ..Row::default() }
}

fn mark(m: &Measurement, name: &str) -> Mark {
    // Results without any error are put at the left end.
    let error = positive(m.check.max_error / m.check.tolerance).unwrap_or(1e-3).max(1e-3);
    Mark {
        name: name.into(),
        value: error,
        text: short(error),
        title: format!("{name}: {}", short(error)),
        ..names::mark(&m.engine)
    }
}
