//! Charts of other implementations against ours.

use crate::record::{Device, Measurement};
use crate::report::compare::{Comparison, Panel, Verdict};
use crate::report::names::{engine, mark, order};
use crate::report::number::{figure, short, times};
use crate::report::page::{Column, Key, Kind, Line, Plot, Plots, Table};
use crate::report::svg::{Shape, ratios};

/// The engines whose times include the softmax.
const WITH_SOFTMAX: &str = "peer:dcnv4";

/// One chart per panel, with a common legend.
pub(super) fn plots(panels: &[&Panel<'_>]) -> Plots {
    let mut engines: Vec<&str> = Vec::new();
    let mut failed: Vec<String> = Vec::new();
    for other in panels.iter().flat_map(|p| &p.rows).flat_map(|c| &c.others) {
        let name = other.measured.engine.as_str();
        if other.verdict == Verdict::Failed {
            if !failed.contains(&engine(name)) {
                failed.push(engine(name));
            }
        } else if !engines.iter().any(|e| engine(e) == engine(name)) {
            engines.push(name);
        }
    }
    let mut legend = legend_of(engines.iter().copied());
    if !failed.is_empty() {
        let name = format!("wrong result, no time shown: {}", failed.join("; "));
        legend.push(Key::new("cross", Shape::Cross, name));
    }
    let mut note =
        "The vertical line is msda; its time is below the name of the workload. Further right is slower."
            .to_owned();
    if engines.iter().any(|e| e.starts_with(WITH_SOFTMAX)) {
        note += " FlashDeformAttn computes the softmax of the weights too; the others get weights.";
    }
    Plots { legend, note, plots: panels.iter().map(|p| plot(p)).collect() }
}

/// The marks of engines, each once, in the order of legends.
pub(super) fn legend_of<'a>(engines: impl Iterator<Item = &'a str>) -> Vec<Key> {
    let mut all: Vec<&str> = engines.collect();
    all.sort_by_key(|e| order(e));
    all.dedup_by_key(|e| engine(e));
    let key = |e: &str| {
        let (class, shape) = mark(e);
        Key::new(class, shape, engine(e))
    };
    all.into_iter().map(key).collect()
}

fn plot(panel: &Panel<'_>) -> Plot {
    let rows: Vec<ratios::Row> = panel.rows.iter().map(row).collect();
    let title = format!("{}, {}", panel.processor, panel.dtype);
    // Each mark has a title with its numbers.
    let workloads: Vec<&str> = panel.rows.iter().map(|c| c.ours.workload.as_str()).collect();
    let label = format!(
        "Times of other implementations divided by ours, {title}, {}: {}",
        panel.pass,
        workloads.join(", ")
    );
    let cold = if panel.setting.cold { ", cold caches" } else { "" };
    let detail = match panel.setting.device {
        Device::Cuda => format!("{}{cold}", panel.pass),
        Device::Cpu => format!("{}, {}{cold}", panel.pass, super::times::threads(panel.threads)),
    };
    let words = ratios::Words { line: "msda", axis: "time divided by ours (log scale)" };
    Plot { title, detail, svg: ratios::ratios(&rows, &words, &label), table: Some(table(panel)) }
}

fn row(c: &Comparison<'_>) -> ratios::Row {
    let said = |o: &crate::report::compare::Other<'_>| {
        format!("{}: {}, {}", engine(&o.measured.engine), time(o.measured), times(Some(o.ratio)))
    };
    let (failed, counted): (Vec<_>, Vec<_>) = c.others.iter().partition(|o| o.verdict == Verdict::Failed);
    ratios::Row {
        name: c.ours.workload.clone(),
        time: time(c.ours),
        marks: counted
            .iter()
            .map(|o| {
                let (class, shape) = mark(&o.measured.engine);
                ratios::Mark { class, shape, ratio: o.ratio, title: said(o) }
            })
            .collect(),
        failed: failed
            .iter()
            .map(|o| format!("{} {}", engine(&o.measured.engine), wrong(o.measured)))
            .collect(),
    }
}

/// A time with its unit: microseconds on a GPU, milliseconds on a processor.
fn time(m: &Measurement) -> String {
    let (scale, unit) = super::times::unit(m.device);
    format!("{} {unit}", figure(m.time.median * scale))
}

fn wrong(m: &Measurement) -> String {
    format!(
        "failed its check, the error is {} times the tolerance",
        short(m.check.max_error / m.check.tolerance)
    )
}

/// The numbers of a chart.
fn table(panel: &Panel<'_>) -> Table {
    let mut engines: Vec<&str> = Vec::new();
    for other in panel.rows.iter().flat_map(|c| &c.others) {
        if !engines.contains(&other.measured.engine.as_str()) {
            engines.push(&other.measured.engine);
        }
    }
    engines.sort_by_key(|e| order(e));
    let (scale, unit) = super::times::unit(panel.setting.device);
    let mut table =
        Table::new("Ratios", &[("workload", Kind::Word), (&format!("msda, {unit}"), Kind::Number)]);
    table.columns.extend(engines.iter().map(|e| Column { title: engine(e), kind: Kind::Number }));
    for c in &panel.rows {
        let cell = |e: &&str| match c.others.iter().find(|o| o.measured.engine == *e) {
            None => String::new(),
            Some(o) if o.verdict == Verdict::Failed => "failed check".into(),
            Some(o) => times(Some(o.ratio)),
        };
        let first = [c.ours.workload.clone(), figure(c.ours.time.median * scale)];
        table.lines.push(Line::Cells(first.into_iter().chain(engines.iter().map(cell)).collect()));
    }
    table
}
