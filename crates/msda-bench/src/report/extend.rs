//! Sections of the report that other crates add.

use anyhow::Result;

use super::page::{Finding, Section};
use crate::record::{Ceiling, Record};

/// A crate that adds to the report.
pub trait Extension {
    /// Whether its sections show the measurements of this engine, so that the tables of workloads leave them out.
    fn shows(&self, engine: &str) -> bool;

    /// Ceilings of a machine's GPU that it knows besides those of the run; `machine` is as [`super::known::machine`]
    /// names it. Names that begin with `fma` are of arithmetic, in GFLOP/s.
    fn ceilings(&self, records: &[Record], machine: &str) -> Vec<Ceiling>;

    /// What it adds for these records.
    fn add(&self, records: &[Record]) -> Result<Added>;
}

/// What an extension adds to a report.
#[derive(Default)]
pub struct Added {
    /// Findings for the summary.
    pub findings: Vec<Finding>,
    /// Sections, which stand before the list of what was left out.
    pub sections: Vec<Section>,
    /// What no record has, and the command that measures it.
    pub missing: Vec<(String, String)>,
}
