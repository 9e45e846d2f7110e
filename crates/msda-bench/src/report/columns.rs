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

/// The columns, from left to right. The baseline is named above the table.
pub(super) const COLUMNS: [Column; 10] =
    [Dtype, Threads, Engine, Median, Spread, Speedup, Floor, Reached, Gathered, Error];

/// The meaning of the columns, below the tables.
pub(super) const LEGEND: &str = "thr: threads; p10..p90: 80 % of the runs took between these times; \
    floor: the least time that the measured ceilings allow, with every row read from L2, on a GPU from L1; \
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
