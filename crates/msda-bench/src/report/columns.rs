//! The columns of the tables in a terminal.

use super::group::Row;
use super::number::{NONE, figure, maybe, percent, times};
use crate::record::Device;

/// A column of the tables.
#[derive(Clone, Copy)]
pub(super) enum Column {
    Dtype,
    Engine,
    Threads,
    Median,
    Spread,
    Speedup,
    Floor,
    Reached,
    Gathered,
    Error,
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
    err/tol: largest error divided by the tolerance; ~: the engine rounds to 16 bits and may exceed 1";

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
            Floor => "floor ms",
            Reached => "reached",
            Gathered => "GB/s",
            Error => "err/tol",
        }
    }

    /// Whether the column holds numbers, which are aligned on the right.
    pub(super) fn is_number(self) -> bool {
        !matches!(self, Dtype | Engine)
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
            Floor => maybe(super::group::positive(m.work.floor_ms)),
            Reached => percent(row.reached()),
            Gathered => maybe(row.gathered_rate()),
            Error => row.error_text(),
        }
    }
}
