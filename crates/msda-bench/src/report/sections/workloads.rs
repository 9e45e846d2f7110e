//! Times of workloads beside their floors and baselines.

use super::describe::{by_pass, describe, legend, like, setting};
use super::{folded, name};
use crate::record::{Device, Record};
use crate::report::Extension;
use crate::report::columns::{LEGEND, WIDE_LEGEND, wide};
use crate::report::group::{Group, Row, is_torch, positive, workloads};
use crate::report::number::{figure, percent, times as ratio};
use crate::report::page::{Column, Kind, Line, Part, Plot, Section, Table};
use crate::report::svg::palette::Palette;
use crate::report::svg::{bars, dots};

pub(super) fn section(
    records: &[Record],
    extensions: &[Box<dyn Extension>],
    palette: &Palette,
) -> Option<Section> {
    let runs: Vec<(String, Vec<Part>)> = records
        .iter()
        .map(|r| (name(r), workloads(r, extensions)))
        .filter(|(_, groups)| !groups.is_empty())
        .map(|(name, groups)| (name, run(&groups, palette)))
        .collect();
    (!runs.is_empty()).then(|| Section {
        title: "Workloads",
        about: "How long each engine takes on each workload, beside the floor that the machine's ceilings set and \
                beside what it is compared with"
            .into(),
        parts: folded(runs),
    })
}

fn run(groups: &[Group<'_>], palette: &Palette) -> Vec<Part> {
    let mut parts = vec![Part::Heading("Time".into(), String::new())];
    times(groups, palette, &mut parts);
    speedups(groups, palette, &mut parts);
    parts.push(Part::Heading("Distance from the floor".into(), String::new()));
    floors(groups, palette, &mut parts);
    parts.push(Part::Heading("All measurements".into(), String::new()));
    parts.push(Part::Table(measurements(groups)));
    let ours = groups.iter().flat_map(|g| &g.rows).any(|row| row.measured.host_us.is_some());
    parts.push(Part::Note(if ours { format!("{LEGEND}; {WIDE_LEGEND}") } else { LEGEND.into() }));
    parts
}

/// Median times, passes side by side.
fn times(groups: &[Group<'_>], palette: &Palette, parts: &mut Vec<Part>) {
    parts.push(legend(groups.iter().flat_map(|g| &g.rows), palette, &[]));
    parts.push(Part::Note("Thin lines: p10 to p90. Upright marks: the floor. Smaller is better".into()));
    let plot = |group: &Group<'_>| {
        let title = group.title();
        let label = format!("Median time in ms of {} measurements of {title}", group.rows.len());
        let svg = bars::bars(&time_blocks(group, palette), "median time, ms", &label);
        Plot { title, detail: group.problems(), svg }
    };
    let drawn = |g: &&Group<'_>| g.rows.iter().any(|r| r.median().is_some());
    parts.push(Part::Plots(groups.iter().filter(drawn).map(plot).collect()));
}

fn time_blocks(group: &Group<'_>, palette: &Palette) -> Vec<bars::Block> {
    let bar = |row: &Row<'_>| {
        let time = &row.measured.time;
        bars::Bar {
            label: row.measured.engine.clone(),
            class: palette.class(&row.measured.engine),
            value: row.median(),
            text: if time.median.is_finite() { format!("{} ms", figure(time.median)) } else { "n/a".into() },
            spread: positive(time.p10).zip(positive(time.p90)),
            floor: positive(row.measured.work.floor_ms),
            title: describe(group, row),
        }
    };
    like(group)
        .map(|rows| bars::Block { heading: setting(&rows[0]), bars: rows.iter().map(bar).collect() })
        .collect()
}

/// Speed-ups over the baselines, passes side by side.
fn speedups(groups: &[Group<'_>], palette: &Palette, parts: &mut Vec<Part>) {
    let drawn = |row: &Row<'_>| row.speedup().filter(|_| !row.is_baseline());
    let mut notes: Vec<String> = Vec::new();
    for group in groups {
        let note = group.baseline_note();
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    let over = notes.join("; or ");
    let rows = || groups.iter().flat_map(|g| &g.rows).filter(|row| drawn(row).is_some());
    let torch = |(device, engine)| {
        let own = || groups.iter().filter(move |g| g.setting.device == device);
        let there = own().flat_map(|g| &g.rows).any(|r| is_torch(&r.measured.engine));
        let missing = own().next().filter(|_| !there)?;
        let command = format!("msda bench --workload {} --engine {engine}", missing.workload);
        Some((format!("what to compare with, {engine}"), command))
    };
    let missing: Vec<_> =
        [(Device::Cpu, "torch"), (Device::Cuda, "torch-cuda")].into_iter().filter_map(torch).collect();
    if !missing.is_empty() {
        parts.push(Part::Missing(missing));
    }
    if rows().next().is_none() {
        return;
    }
    parts.push(Part::Heading("Speed-up".into(), String::new()));
    parts.push(legend(rows(), palette, &[]));
    parts
        .push(Part::Note(format!("Over {over}. Baselines are not drawn. The number is the best of the row")));
    parts.push(dotted(groups, palette, dots::Axis::Ratio, "Speed-up over the baseline", drawn));
}

/// Shares of the floor reached, passes side by side.
fn floors(groups: &[Group<'_>], palette: &Palette, parts: &mut Vec<Part>) {
    let rows = || groups.iter().flat_map(|g| &g.rows).filter(|row| row.reached().is_some());
    if rows().next().is_none() {
        parts.push(Part::Note("No floor: the machine's ceilings were not measured".into()));
        return;
    }
    parts.push(legend(rows(), palette, &[]));
    parts.push(Part::Note(
        "At 100% the pass takes as long as the measured ceilings say it must. The number is the best of the row".into(),
    ));
    parts.push(dotted(groups, palette, dots::Axis::Share, "Share of the floor reached", |row| row.reached()));
}

fn dotted(
    groups: &[Group<'_>],
    palette: &Palette,
    axis: dots::Axis,
    what: &str,
    value: impl Fn(&Row<'_>) -> Option<f64>,
) -> Part {
    let row = |group: &Group<'_>, rows: &[Row<'_>]| {
        let dot = |row: &Row<'_>| {
            let class = palette.class(&row.measured.engine);
            value(row).map(|value| dots::Dot { class, value, title: describe(group, row) })
        };
        let best = rows.iter().filter_map(&value).max_by(f64::total_cmp);
        dots::Row {
            label: setting(&rows[0]),
            dots: rows.iter().filter_map(dot).collect(),
            note: if axis == dots::Axis::Share { percent(best) } else { ratio(best) },
        }
    };
    let mut plots = Vec::new();
    for (pass, groups) in by_pass(groups) {
        let blocks: Vec<dots::Block> = groups
            .iter()
            .map(|g| dots::Block {
                heading: format!("{}{}", g.workload, g.setting.words()),
                rows: like(g).map(|rows| row(g, rows)).collect(),
            })
            .filter(|b: &dots::Block| b.rows.iter().any(|r| !r.dots.is_empty()))
            .collect();
        if !blocks.is_empty() {
            let svg = dots::dots(&blocks, axis, &format!("{what} by workload, {pass}"));
            plots.push(Plot { title: pass.to_string(), detail: String::new(), svg });
        }
    }
    Part::Plots(plots)
}

fn measurements(groups: &[Group<'_>]) -> Table {
    let columns = wide(groups);
    let kind = |number| if number { Kind::Number } else { Kind::Word };
    let column =
        |c: &crate::report::columns::Column| Column { title: c.title().into(), kind: kind(c.is_number()) };
    let mut lines = Vec::new();
    for group in groups {
        let problems = group.problems();
        let detail = if problems.is_empty() { problems } else { format!("Problem: {problems}") };
        lines.push(Line::Group(group.title(), detail, format!("Speed-up over {}", group.baseline_note())));
        for row in &group.rows {
            let cells = columns.iter().map(|c| c.cell(row)).collect();
            lines.push(if row.is_wrong() { Line::Wrong(cells) } else { Line::Cells(cells) });
        }
    }
    Table { title: "All measurements".into(), columns: columns.iter().map(column).collect(), lines }
}
