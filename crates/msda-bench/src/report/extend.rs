//! Sections that other crates add to the report.

use anyhow::Result;

use super::page::Section;
use crate::record::{Ceiling, Record};

/// A crate that adds to the report.
pub trait Extension {
    /// Whether its sections show the measurements of this engine, so that other tables leave them
    /// out.
    fn shows(&self, engine: &str) -> bool;

    /// More ceilings of a machine's GPU. `machine` is the name that [`super::known::machine`]
    /// gives. Names that begin with `fma` are arithmetic rates in GFLOP/s.
    fn ceilings(&self, records: &[Record], machine: &str) -> Vec<Ceiling>;

    /// Its sections, which come last. The records are sorted, newest first.
    fn sections(&self, records: &[Record]) -> Result<Vec<Section>>;
}
