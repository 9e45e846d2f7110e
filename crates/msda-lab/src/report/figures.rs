//! The page's figures: which measurements go into which plot.

use super::escape::escape;
use super::group::{Group, Row, positive, threads};
use super::number::{NONE, figure, maybe, percent, times as ratio};
use super::svg::palette::Palette;
use super::svg::{Shape, bars, dots, roofline, swatch};
use crate::record::{Device, Pass, Record};

/// Median times of every workload, passes side by side.
pub(super) fn times(groups: &[Group<'_>], palette: &Palette) -> String {
    let mut out = legend(groups, palette, &[], |_| true);
    out += "<p class=\"note\">Thin lines: p10 to p90. Upright marks: the floor. Smaller is better</p>\n";
    for pair in groups.chunk_by(|a, b| (a.workload, a.setting) == (b.workload, b.setting)) {
        out += "<div class=\"pair\">\n";
        for group in pair {
            let title = group.title();
            let label = format!("Median time in ms of {} measurements of {title}", group.rows.len());
            let plot = bars::bars(&time_blocks(group, palette), &label);
            out += &frame(&title, &group.problems(), &plot);
        }
        out += "</div>\n";
    }
    out
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
pub(super) fn speedups(groups: &[Group<'_>], palette: &Palette) -> String {
    let drawn = |row: &Row<'_>| row.speedup().filter(|_| !row.is_baseline());
    if !groups.iter().flat_map(|g| &g.rows).any(|row| drawn(row).is_some()) {
        return "<p class=\"note\">Nothing to compare</p>\n".into();
    }
    let mut out = legend(groups, palette, &[], |row| drawn(row).is_some());
    let mut notes: Vec<String> = Vec::new();
    for group in groups {
        let note = group.baseline_note();
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    out += &format!(
        "<p class=\"note\">Over {}. Baselines are not drawn. The number is the best of the row</p>\n",
        escape(&notes.join("; or "))
    );
    out + &dotted(groups, palette, dots::Axis::Ratio, "Speed-up over the baseline", drawn)
}

/// Shares of the floor reached, passes side by side.
pub(super) fn floors(groups: &[Group<'_>], palette: &Palette) -> String {
    let mut out = legend(groups, palette, &[], |row| row.reached().is_some());
    out += "<p class=\"note\">At 100% the pass takes as long as the measured ceilings say it must. \
            The number is the best of the row</p>\n";
    out + &dotted(groups, palette, dots::Axis::Share, "Share of the floor reached", |row| row.reached())
}

fn dotted(
    groups: &[Group<'_>],
    palette: &Palette,
    axis: dots::Axis,
    what: &str,
    value: impl Fn(&Row<'_>) -> Option<f64>,
) -> String {
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
    let mut out = String::from("<div class=\"pair\">\n");
    for (pass, groups) in by_pass(groups) {
        let blocks: Vec<dots::Block> = groups
            .iter()
            .map(|g| dots::Block {
                heading: format!("{}{}", g.workload, g.setting.words()),
                rows: like(g).map(|rows| row(g, rows)).collect(),
            })
            .filter(|b: &dots::Block| b.rows.iter().any(|r| !r.dots.is_empty()))
            .collect();
        let plot = if blocks.is_empty() {
            "<p class=\"note\">Nothing to compare</p>\n".into()
        } else {
            dots::dots(&blocks, axis, &format!("{what} by workload, {pass}"))
        };
        out += &frame(&pass.to_string(), "", &plot);
    }
    out + "</div>\n"
}

/// Rooflines, passes side by side, for the largest number of threads.
pub(super) fn rooflines(record: &Record, groups: &[Group<'_>], palette: &Palette) -> String {
    // The GPU has no ceiling of arithmetic.
    let drawn = |row: &Row<'_>| {
        row.measured.device == Device::Cpu && row.intensity().is_some() && row.flop_rate().is_some()
    };
    let rows = || groups.iter().flat_map(|g| &g.rows).filter(|r| drawn(r));
    let Some(most) = rows().map(|r| r.measured.threads).max() else {
        return "<p class=\"note\">No measurement on the processor says how much it computed and gathered</p>\n".into();
    };
    // Points under the ceilings of other threads would mislead, so only one count is drawn.
    let ceilings = || record.ceilings.iter().filter(|c| c.device == Device::Cpu);
    let limit = if ceilings().any(|c| c.threads == most) {
        most
    } else {
        ceilings().map(|c| c.threads).max().unwrap_or(most)
    };
    let roofs: Vec<roofline::Roof> = ceilings()
        .filter(|c| c.threads == limit && positive(c.rate).is_some())
        .map(|c| roofline::Roof { name: c.name.clone(), rate: c.rate, flat: c.name == "fma" })
        .collect();

    let mut dtypes: Vec<&str> = Vec::new();
    for row in rows() {
        if !dtypes.contains(&row.measured.dtype.as_str()) {
            dtypes.push(&row.measured.dtype);
        }
    }
    let mut out = legend(groups, palette, &dtypes, drawn);
    out += &format!("<p class=\"note\">Measurements with {}", threads(most));
    if roofs.is_empty() {
        out += "; no ceiling was measured";
    } else if limit != most {
        out += &format!(", under ceilings of {}", threads(limit));
    }
    out += ". The fastest of each dtype has its workload's name, where there is room</p>\n<div class=\"pair\">\n";
    for (pass, groups) in by_pass(groups) {
        let rows: Vec<(&Group<'_>, &Row<'_>)> = groups
            .iter()
            .flat_map(|g| g.rows.iter().map(move |r| (*g, r)))
            .filter(|(_, r)| drawn(r) && r.measured.threads == most)
            .collect();
        if rows.is_empty() {
            continue;
        }
        let label = format!("Roofline of {} measurements, {pass}: GFLOP/s against FLOP per byte", rows.len());
        let plot = roofline::roofline(&roofs, &points(&rows, palette), &label);
        out += &frame(&pass.to_string(), "", &plot);
    }
    out + "</div>\n"
}

fn points(rows: &[(&Group<'_>, &Row<'_>)], palette: &Palette) -> Vec<roofline::Point> {
    let point = |&(group, row): &(&Group<'_>, &Row<'_>)| {
        let m = row.measured;
        let rate = row.flop_rate()?;
        let peers = rows.iter().filter(|(_, r)| r.measured.dtype == m.dtype);
        let best = peers.filter_map(|(_, r)| r.flop_rate()).fold(0.0, f64::max);
        Some(roofline::Point {
            intensity: row.intensity()?,
            rate,
            class: palette.class(&m.engine) + " open",
            shape: Shape::of(&m.dtype),
            title: describe(group, row),
            label: (rate >= best).then(|| group.workload.into()),
        })
    };
    rows.iter().filter_map(point).collect()
}

/// Engines and their colours; with dtypes, their shapes too.
fn legend(
    groups: &[Group<'_>],
    palette: &Palette,
    dtypes: &[&str],
    drawn: impl Fn(&Row<'_>) -> bool,
) -> String {
    let mut engines: Vec<&str> = Vec::new();
    for row in groups.iter().flat_map(|g| &g.rows).filter(|r| drawn(r)) {
        if !engines.contains(&row.measured.engine.as_str()) {
            engines.push(&row.measured.engine);
        }
    }
    engines.sort_by_key(|e| palette.order(e));
    let shape = if dtypes.is_empty() { Shape::Square } else { Shape::Circle };
    let mut out = String::from("<ul class=\"legend\">\n");
    for engine in engines {
        out += &format!("<li>{}{}</li>\n", swatch(&palette.class(engine), shape), escape(engine));
    }
    for dtype in dtypes {
        out += &format!("<li>{}{}</li>\n", swatch("k plain open", Shape::of(dtype)), escape(dtype));
    }
    out + "</ul>\n"
}

fn frame(title: &str, detail: &str, plot: &str) -> String {
    let detail =
        if detail.is_empty() { String::new() } else { format!(" <small>{}</small>", escape(detail)) };
    format!("<figure>\n<figcaption>{}{detail}</figcaption>\n{plot}</figure>\n", escape(title))
}

/// Everything about a measurement, for those who point at it.
fn describe(group: &Group<'_>, row: &Row<'_>) -> String {
    let mut text = format!(
        "{}, {}: {} ms, {} of the floor, {} GB/s, {} GFLOP/s",
        group.title(),
        row.name(),
        figure(row.measured.time.median),
        percent(row.reached()),
        maybe(row.gathered_rate()),
        maybe(row.flop_rate())
    );
    if let (Some(name), false) = (row.baseline_name(), row.is_baseline()) {
        text += &format!(", {} over {name}", ratio(row.speedup()));
    }
    if let Some(kernel) = &row.measured.kernel {
        text += &format!(", kernel {kernel}");
    }
    text
}

/// The rows of a group that differ by engine alone.
fn like<'g, 'a>(group: &'g Group<'a>) -> impl Iterator<Item = &'g [Row<'a>]> {
    group
        .rows
        .chunk_by(|a, b| a.measured.dtype == b.measured.dtype && a.measured.threads == b.measured.threads)
}

/// What rows that differ by engine alone have in common: `f16, 2 threads`; on the GPU `f16`.
fn setting(row: &Row<'_>) -> String {
    let dtype = if row.measured.dtype.is_empty() { NONE } else { &row.measured.dtype };
    match row.measured.device {
        Device::Cpu => format!("{dtype}, {}", threads(row.measured.threads)),
        Device::Cuda => dtype.into(),
    }
}

fn by_pass<'g, 'a>(groups: &'g [Group<'a>]) -> Vec<(Pass, Vec<&'g Group<'a>>)> {
    [Pass::Forward, Pass::Backward]
        .into_iter()
        .map(|pass| (pass, groups.iter().filter(|g| g.pass == pass).collect::<Vec<_>>()))
        .filter(|(_, groups)| !groups.is_empty())
        .collect()
}
