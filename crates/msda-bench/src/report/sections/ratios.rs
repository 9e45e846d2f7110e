//! Charts of other implementations against ours: one row per workload, one mark per implementation.

use crate::record::{Device, Measurement};
use crate::report::compare::{Comparison, Other, Panel, Verdict};
use crate::report::names::{engine, mark, order};
use crate::report::number::{count, figure, short, times};
use crate::report::page::{Column, Key, Kind, Line, Plot, Plots, Table};
use crate::report::svg::{Shape, ratios};

/// The engines whose times include the softmax.
const WITH_SOFTMAX: &str = "peer:dcnv4";

/// A chart.
pub(super) struct Chart {
    pub title: String,
    pub detail: String,
    /// What the numbers are, for screen readers.
    pub about: &'static str,
    pub words: ratios::Words,
    /// The column of our own numbers in the table of the chart; empty for none.
    pub own: String,
    pub rows: Vec<Row>,
}

/// The numbers of a workload.
pub(super) struct Row {
    pub workload: String,
    /// Our own number: with its unit, and for the table.
    pub own: (String, String),
    pub marks: Vec<Mark>,
}

/// The number of an engine.
pub(super) struct Mark {
    pub engine: String,
    /// The name in legends and tables.
    pub name: String,
    pub value: f64,
    /// The cell of the table, and the tooltip.
    pub text: String,
    pub title: String,
    pub failed: bool,
    pub bold: bool,
}

/// One chart per panel, with a common legend.
pub(super) fn plots(panels: &[&Panel<'_>]) -> Plots {
    let mut note =
        "The vertical line is msda; its time is below the name of the workload. Further right is slower."
            .to_owned();
    let counted = || panels.iter().flat_map(|p| &p.rows).flat_map(Comparison::counted);
    if counted().any(|o| o.measured.engine.starts_with(WITH_SOFTMAX)) {
        note += " FlashDeformAttn computes the softmax of the weights too; the others get weights.";
    }
    let charts: Vec<Chart> = panels.iter().map(|p| chart(p)).collect();
    Plots { note, ..drawn(&charts, "wrong result, no time shown") }
}

/// Charts with a common legend. A cross means what `failed` says.
pub(super) fn drawn(charts: &[Chart], failed: &str) -> Plots {
    let mut marks: Vec<&Mark> = charts.iter().flat_map(|c| &c.rows).flat_map(|r| &r.marks).collect();
    marks.sort_by_key(|m| (m.failed, order(&m.engine), &m.name));
    marks.dedup_by_key(|m| (m.failed, &m.name));
    let (wrong, right): (Vec<&Mark>, Vec<&Mark>) = marks.into_iter().partition(|m| m.failed);
    let key = |m: &&Mark| Key::new(mark(&m.engine).0, mark(&m.engine).1, &m.name);
    let mut legend: Vec<Key> = right.iter().map(key).collect();
    if !wrong.is_empty() {
        let names: Vec<&str> = wrong.iter().map(|m| m.name.as_str()).collect();
        legend.push(Key::new("cross", Shape::Cross, format!("{failed}: {}", names.join("; "))));
    }
    Plots { legend, note: String::new(), plots: charts.iter().map(plot).collect() }
}

fn plot(chart: &Chart) -> Plot {
    let drawn = |row: &Row| {
        let mark_of = |m: &Mark| {
            let (class, shape) = mark(&m.engine);
            ratios::Mark { class, shape, ratio: m.value, title: m.title.clone(), bold: m.bold }
        };
        ratios::Row {
            name: row.workload.clone(),
            time: row.own.0.clone(),
            marks: row.marks.iter().filter(|m| !m.failed).map(mark_of).collect(),
            failed: row.marks.iter().filter(|m| m.failed).map(|m| m.title.clone()).collect(),
        }
    };
    let rows: Vec<ratios::Row> = chart.rows.iter().map(drawn).collect();
    // Each mark has a title with its numbers.
    let workloads: Vec<&str> = chart.rows.iter().map(|r| r.workload.as_str()).collect();
    let label = format!("{}, {}, {}: {}", chart.about, chart.title, chart.detail, workloads.join(", "));
    Plot {
        title: chart.title.clone(),
        detail: chart.detail.clone(),
        svg: ratios::ratios(&rows, &chart.words, &label),
        table: Some(table(chart)),
    }
}

/// The numbers of a chart.
fn table(chart: &Chart) -> Table {
    let mut engines: Vec<(&str, &str)> =
        chart.rows.iter().flat_map(|r| &r.marks).map(|m| (m.engine.as_str(), m.name.as_str())).collect();
    engines.sort_by_key(|e| (order(e.0), *e));
    engines.dedup();
    let mut table = Table::new(chart.about, &[("workload", Kind::Word)]);
    let own = (!chart.own.is_empty()).then_some(chart.own.as_str());
    let titles = own.into_iter().chain(engines.iter().map(|e| e.1));
    table.columns.extend(titles.map(|title| Column { title: title.into(), kind: Kind::Number }));
    for row in &chart.rows {
        let cell = |e: &(&str, &str)| {
            row.marks.iter().find(|m| m.engine == e.0).map_or_else(String::new, |m| m.text.clone())
        };
        let first = [row.workload.clone()].into_iter().chain(own.map(|_| row.own.1.clone()));
        table.lines.push(Line::Cells(first.chain(engines.iter().map(cell)).collect()));
    }
    table
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
        words: ratios::Words { line: "msda", axis: "time divided by ours (log scale)" },
        own: format!("msda, {}", super::times::unit(panel.setting.device).1),
        rows: panel.rows.iter().map(row).collect(),
    }
}

fn row(c: &Comparison<'_>) -> Row {
    let fastest = c.fastest().map(|o| &o.measured.engine);
    let mark = |o: &Other<'_>| {
        let (m, name) = (o.measured, engine(&o.measured.engine));
        let failed = o.verdict == Verdict::Failed;
        let error = short(m.check.max_error / m.check.tolerance);
        Mark {
            engine: m.engine.clone(),
            value: o.ratio,
            text: if failed { "failed check".into() } else { times(Some(o.ratio)) },
            title: match failed {
                true => format!("{name} failed its check, the error is {error} times the tolerance"),
                false => format!("{name}: {}, {}", time(m).0, times(Some(o.ratio))),
            },
            failed,
            bold: Some(&m.engine) == fastest,
            name,
        }
    };
    Row { workload: c.ours.workload.clone(), own: time(c.ours), marks: c.others.iter().map(mark).collect() }
}

/// A time with its unit, and without: microseconds on a GPU, milliseconds on a processor.
fn time(m: &Measurement) -> (String, String) {
    let (scale, unit) = super::times::unit(m.device);
    let number = figure(m.time.median * scale);
    (format!("{number} {unit}"), number)
}
