//! The columns every table shares, so that terminal, Markdown and page say the same.

use super::group::{Group, Row, is_torch};
use super::number::{NONE, figure, maybe, percent, times};
use crate::record::Device;

/// One column of the tables.
#[derive(Clone, Copy)]
pub(super) enum Column {
    Dtype,
    Engine,
    Threads,
    Median,
    Spread,
    Speedup,
    Baseline,
    Floor,
    Bound,
    Reached,
    Gathered,
    Error,
    Host,
    Replayed,
    Warm,
    Compiling,
    Kernel,
}

use Column::*;

/// All of them, for media as wide as they need to be; the kernel, the host's time and graphs where there are such.
pub(super) fn wide(groups: &[Group<'_>]) -> Vec<Column> {
    let mut columns = WIDE.to_vec();
    if groups.iter().flat_map(|g| &g.rows).any(|row| row.measured.host_us.is_some()) {
        columns.push(Host);
    }
    if groups.iter().flat_map(|g| &g.rows).any(|row| row.measured.replay.is_some()) {
        columns.extend([Replayed, Warm]);
    }
    if groups.iter().flat_map(|g| &g.rows).any(|row| row.measured.compile_ms.is_some()) {
        columns.push(Compiling);
    }
    if groups.iter().flat_map(|g| &g.rows).any(|row| row.measured.kernel.is_some()) {
        columns.push(Kernel);
    }
    columns
}

const WIDE: [Column; 12] =
    [Dtype, Threads, Engine, Median, Spread, Speedup, Baseline, Floor, Bound, Reached, Gathered, Error];

/// What the columns mean, for the foot of a table.
pub(super) const LEGEND: &str = "thr: threads in use; p10..p90: eight runs of ten lie between; \
    floor: what the measured ceilings allow, every row coming from the second-level cache, on the GPU from the first-level cache; \
    reached: floor / median; GB/s: rows gathered through the caches; \
    err/tol: largest error as a fraction of what is allowed, at most 1; with ~ it is inexact and not held to that";

/// What the columns mean that only wide tables have.
pub(super) const WIDE_LEGEND: &str = "host: what a launch keeps the host; graph: the same replayed from a CUDA graph; warm: that with \
    caches as the run before left them; compile: of the slowest kernel, once";

impl Column {
    /// The title, unit included.
    pub(super) fn title(self) -> &'static str {
        match self {
            Dtype => "dtype",
            Engine => "engine",
            Threads => "thr",
            Median => "median ms",
            Spread => "p10..p90",
            Speedup => "speed-up",
            Baseline => "over",
            Floor => "floor ms",
            Bound => "bound by",
            Reached => "reached",
            Gathered => "GB/s",
            Error => "err/tol",
            Host => "host us",
            Replayed => "graph ms",
            Warm => "warm ms",
            Compiling => "compile ms",
            Kernel => "kernel",
        }
    }

    /// Whether the column holds numbers, which line up on the right.
    pub(super) fn is_number(self) -> bool {
        !matches!(self, Dtype | Engine | Baseline | Bound | Kernel)
    }

    /// The text of a row in this column, not escaped.
    pub(super) fn cell(self, row: &Row<'_>) -> String {
        let m = row.measured;
        match self {
            Dtype => m.dtype.clone(),
            Engine => m.engine.clone(),
            Threads if m.device == Device::Cuda => NONE.into(),
            Threads => m.threads.to_string(),
            Median => figure(m.time.median),
            Spread if !m.time.p10.is_finite() && !m.time.p90.is_finite() => NONE.into(),
            Spread => format!("{}..{}", figure(m.time.p10), figure(m.time.p90)),
            Speedup if row.is_baseline() => "base".into(),
            Speedup => times(row.speedup()),
            Baseline => match row.baseline {
                Some(_) if row.is_baseline() => NONE.into(),
                Some(base) if is_torch(&base.engine) => row.baseline_name().unwrap_or_default(),
                Some(_) => format!("{}, the slowest", row.baseline_name().unwrap_or_default()),
                None => NONE.into(),
            },
            Floor => maybe(super::group::positive(m.work.floor_ms)),
            Bound => m.work.bound.clone(),
            Reached => percent(row.reached()),
            Gathered => maybe(row.gathered_rate()),
            Error => row.error_text(),
            Host => maybe(m.host_us),
            Replayed => maybe(m.replay.map(|r| r.cold)),
            Warm => maybe(m.replay.map(|r| r.warm)),
            Compiling => maybe(m.compile_ms),
            Kernel => m.kernel.clone().unwrap_or(NONE.into()),
        }
    }
}
