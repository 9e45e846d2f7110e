//! Charts of other implementations against ours: one row per workload, one mark per implementation.

use crate::record::{Device, Measurement};
use crate::report::chart::{Chart, Mark, Plots, Row};
use crate::report::compare::{Comparison, Other, Panel, Verdict};
use crate::report::group::unit;
use crate::report::names::{engine, mark};
use crate::report::number::{count, figure, short, times};

/// The engines whose times include the softmax.
const WITH_SOFTMAX: &str = "peer:dcnv4";

/// One chart per panel, with a common legend.
pub(super) fn plots(panels: &[&Panel<'_>]) -> Plots {
    let mut note =
        "The vertical line is msda; its time is below the name of the workload. Further right is slower."
            .to_owned();
    let counted = || panels.iter().flat_map(|p| &p.rows).flat_map(Comparison::counted);
    if counted().any(|o| o.measured.engine.starts_with(WITH_SOFTMAX)) {
        note += " FlashDeformAttn computes the softmax of the weights too; the others get weights.";
    }
    let charts = panels.iter().map(|p| chart(p)).collect();
    Plots { note, ..Chart::plots(charts, "wrong result, no time shown") }
}

fn chart(panel: &Panel<'_>) -> Chart {
    let cold = if panel.setting.cold { ", cold caches" } else { "" };
    let threads = match panel.setting.device {
        Device::Cuda => String::new(),
        Device::Cpu => format!(", {}", count(panel.threads, "thread")),
    };
    Chart {
        title: format!("{}, {}", panel.processor, panel.dtype),
        detail: format!("{}{threads}{cold}", panel.pass),
        about: "Times of other implementations divided by ours",
        axis: "time divided by ours (log scale)",
        unit: "x",
        line: "msda",
        own: format!("msda, {}", unit(panel.setting.device).1),
        rows: panel.rows.iter().map(row).collect(),
        ..Chart::default()
    }
}

fn row(c: &Comparison<'_>) -> Row {
    let fastest = c.fastest().map(|o| &o.measured.engine);
    let of = |o: &Other<'_>| {
        let (m, name) = (o.measured, engine(&o.measured.engine));
        let failed = o.verdict == Verdict::Failed;
        let error = short(m.check.max_error / m.check.tolerance);
        Mark {
            value: o.ratio,
            text: if failed { "failed check".into() } else { times(Some(o.ratio)) },
            title: match failed {
                true => format!("{name} failed its check, the error is {error} times the tolerance"),
                false => format!("{name}: {}, {}", time(m).0, times(Some(o.ratio))),
            },
            failed,
            bold: Some(&m.engine) == fastest,
            name,
            ..mark(&m.engine)
        }
    };
    Row { name: c.ours.workload.clone(), own: time(c.ours), marks: c.others.iter().map(of).collect() }
}

/// A time with its unit, and without: microseconds on a GPU, milliseconds on a processor.
fn time(m: &Measurement) -> (String, String) {
    let (scale, unit) = unit(m.device);
    let number = figure(m.time.median * scale);
    (format!("{number} {unit}"), number)
}
