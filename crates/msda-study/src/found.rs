//! What a command has found so far: figures, and what it had to leave out.

use std::fmt::Display;

use msda_bench::record::{Figure, Machine, Record, Skipped};

/// The name of a metric, its value and its unit.
pub(crate) type Metric<'a> = (&'a str, f64, &'a str);

/// Figures, and measurements that were skipped.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) figures: Vec<Figure>,
    pub(crate) skipped: Vec<Skipped>,
}

impl Found {
    /// Adds figures of one subject. A value that is not finite is left out.
    pub(crate) fn add(&mut self, place: impl Display, known: &[Metric<'_>]) {
        for &(metric, value, unit) in known.iter().filter(|(_, value, _)| value.is_finite()) {
            self.figures.push(Figure { name: format!("{place}.{metric}"), value, unit: unit.into() });
        }
    }

    /// Says once why something is left out.
    pub(crate) fn skip(&mut self, what: impl Display, why: impl Display) {
        let skipped = Skipped { what: what.to_string(), why: why.to_string() };
        if !self.skipped.contains(&skipped) {
            self.skipped.push(skipped);
        }
    }

    /// The record of a command.
    pub(crate) fn record(self, command: &str, machine: Machine) -> Record {
        Record { figures: self.figures, skipped: self.skipped, ..Record::new(command, machine) }
    }
}
