//! Words and colours that plots of measurements share.

use crate::record::{Device, Pass};
use crate::report::group::{Group, Row, is_pinned, threads};
use crate::report::number::{NONE, figure, maybe, percent, times as ratio};
use crate::report::page::Part;
use crate::report::svg::Shape;
use crate::report::svg::palette::Palette;

/// The class of kernels pinned by name.
pub(super) const PINNED: &str = "k pinned";

/// The classes of an engine's marks.
pub(super) fn class(engine: &str, palette: &Palette) -> String {
    if is_pinned(engine) { PINNED.into() } else { palette.class(engine) }
}

/// Engines and their colours; with dtypes, their shapes too.
pub(super) fn legend<'a>(
    rows: impl Iterator<Item = &'a Row<'a>>,
    palette: &Palette,
    dtypes: &[&str],
) -> Part {
    let mut engines: Vec<&str> = Vec::new();
    let mut pinned = false;
    for row in rows {
        let engine = row.measured.engine.as_str();
        pinned |= is_pinned(engine);
        if !is_pinned(engine) && !engines.contains(&engine) {
            engines.push(engine);
        }
    }
    engines.sort_by_key(|e| palette.order(e));
    let shape = if dtypes.is_empty() { Shape::Square } else { Shape::Circle };
    let mut keys: Vec<_> = engines.iter().map(|e| (palette.class(e), shape, (*e).to_owned())).collect();
    if pinned {
        keys.push((PINNED.into(), shape, "kernels pinned by name".into()));
    }
    keys.extend(dtypes.iter().map(|&d| ("k plain open".into(), Shape::of(d), d.to_owned())));
    Part::Legend(keys)
}

/// Everything about a measurement, for those who point at it.
pub(super) fn describe(group: &Group<'_>, row: &Row<'_>) -> String {
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
pub(super) fn like<'g, 'a>(group: &'g Group<'a>) -> impl Iterator<Item = &'g [Row<'a>]> {
    group
        .rows
        .chunk_by(|a, b| a.measured.dtype == b.measured.dtype && a.measured.threads == b.measured.threads)
}

/// What rows that differ by engine alone have in common: `f16, 2 threads`; on the GPU `f16`.
pub(super) fn setting(row: &Row<'_>) -> String {
    let dtype = if row.measured.dtype.is_empty() { NONE } else { &row.measured.dtype };
    match row.measured.device {
        Device::Cpu => format!("{dtype}, {}", threads(row.measured.threads)),
        Device::Cuda => dtype.into(),
    }
}

/// Groups by pass, forward first.
pub(super) fn by_pass<'g, 'a>(groups: &'g [Group<'a>]) -> Vec<(Pass, Vec<&'g Group<'a>>)> {
    [Pass::Forward, Pass::Backward]
        .into_iter()
        .map(|pass| (pass, groups.iter().filter(|g| g.pass == pass).collect::<Vec<_>>()))
        .filter(|(_, groups)| !groups.is_empty())
        .collect()
}
