//! Facts: named numbers, from records and from definitions.
//!
//! Names go from the general to the particular: `bench.seed.f16.forward.cuda:ladder:base.time`,
//! `seed.positions`. A figure of a record is a fact of the same name.

mod records;
mod shape;

use std::collections::BTreeMap;

use msda_bench::record::Source;

pub use records::{CHOSEN, gpus, holds_ladder, newest_ladder, of_gpu};

/// A number and its source.
#[derive(Debug, Clone, PartialEq)]
pub struct Fact {
    /// The number.
    pub value: f64,
    /// The numbers that the tenth and the ninetieth percentile of its time give, the lower first.
    pub range: Option<(f64, f64)>,
    /// Its unit; empty if it has none.
    pub unit: String,
    /// The record with its machine and day, or another source.
    pub from: String,
}

/// Facts by name.
#[derive(Debug, Clone, Default)]
pub struct Facts(BTreeMap<String, Fact>);

impl Facts {
    /// Facts from definitions and from records. The newest record of a fact counts. All facts about
    /// times of rungs come from one record, and all facts of one probe come from one record.
    pub fn of(sources: &[Source]) -> anyhow::Result<Self> {
        let mut facts = Self::default();
        let bytes = shape::add(&mut facts)?;
        let mut newest_last: Vec<&Source> = sources.iter().collect();
        newest_last.sort_by(|a, b| a.record.created.cmp(&b.record.created));
        let ladder = newest_last.iter().rposition(|source| holds_ladder(&source.record));
        for (i, source) in newest_last.into_iter().enumerate() {
            records::add(&mut facts, source, ladder == Some(i), bytes);
        }
        Ok(facts)
    }

    /// Adds a fact or replaces the one of that name. A value that is not finite is ignored.
    pub fn insert(&mut self, name: impl Into<String>, value: f64, unit: &str, from: &str) {
        if value.is_finite() {
            self.0.insert(name.into(), Fact { value, range: None, unit: unit.into(), from: from.into() });
        }
    }

    /// Says how far the fact of that name varies, if there is one.
    pub fn vary(&mut self, name: &str, one: f64, other: f64) {
        if let Some(fact) = self.0.get_mut(name).filter(|_| one.is_finite() && other.is_finite()) {
            fact.range = Some((one.min(other), one.max(other)));
        }
    }

    /// The fact of that name.
    pub fn get(&self, name: &str) -> Option<&Fact> {
        self.0.get(name)
    }

    /// All facts by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Fact)> {
        self.0.iter().map(|(name, fact)| (name.as_str(), fact))
    }
}

/// The command that measures a missing fact.
pub fn command(name: &str) -> &'static str {
    match name.split('.').next() {
        Some("probe") => "msda-study probe",
        Some("verify") => "msda-study verify",
        Some("analyze") => "msda-study analyze --ladder --ncu",
        _ => "msda-study bench",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The committed records.
    pub(crate) fn committed() -> Vec<Source> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records");
        msda_bench::record::sources(&[folder]).unwrap()
    }

    #[test]
    fn values_that_are_not_finite_are_ignored() {
        let mut facts = Facts::default();
        facts.insert("a", f64::NAN, "", "here");
        facts.insert("b", 1.0, "us", "here");
        assert_eq!(facts.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["b"]);
    }
}
