//! Facts: numbers with names, from records and from the workloads' definitions, and arithmetic over them.
//!
//! A name goes from the general to the particular: `bench.seed.f16.forward.cuda.time`, `ceiling.cuda.copy.rate`,
//! `machine.gpu.sms`, `seed.positions`, or whatever a figure of a record is called.

mod expression;
mod records;
pub mod shape;

use std::collections::{BTreeMap, BTreeSet};

pub use expression::Expression;
use msda_bench::record::Source;
pub use records::{gpus, of_gpu};

/// A number, and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Fact {
    /// The number.
    pub value: f64,
    /// Its unit; empty where it has none.
    pub unit: String,
    /// Which record of which machine and day, or what else says so.
    pub from: String,
}

/// Facts by name.
#[derive(Debug, Clone, Default)]
pub struct Facts(BTreeMap<String, Fact>);

impl Facts {
    /// What can be known without measuring anything, and what the records say. Of two records that say the same, the
    /// newer counts.
    pub fn of(sources: &[Source]) -> anyhow::Result<Self> {
        let mut facts = Self::default();
        shape::add(&mut facts)?;
        let mut newest_last: Vec<&Source> = sources.iter().collect();
        newest_last.sort_by(|a, b| a.record.created.cmp(&b.record.created));
        for source in newest_last {
            records::add(&mut facts, source);
        }
        Ok(facts)
    }

    /// Adds a fact, or puts it in the place of one of that name. What is not a number is no fact.
    pub fn insert(&mut self, name: impl Into<String>, value: f64, unit: &str, from: &str) {
        if value.is_finite() {
            self.0.insert(name.into(), Fact { value, unit: unit.into(), from: from.into() });
        }
    }

    /// The fact of that name.
    pub fn get(&self, name: &str) -> Option<&Fact> {
        self.0.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Fact)> {
        self.0.iter().map(|(name, fact)| (name.as_str(), fact))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Names that no fact has.
pub type Missing = BTreeSet<String>;

/// How a fact that is missing comes to be.
pub fn command(name: &str) -> String {
    let mut words = name.split('.');
    match words.next() {
        Some("bench") => {
            let workload = words.next().unwrap_or("NAME");
            let engine = words.nth(2).unwrap_or("NAME");
            match engine.strip_prefix("cuda:ladder:") {
                Some(_) => format!("msda study bench --workload {workload}"),
                None => format!("msda bench --workload {workload} --engine {engine}"),
            }
        }
        Some("ceiling") => "msda bench".into(),
        Some("probe") => "msda study probe".into(),
        Some("verify") => match words.next() {
            Some("battery") | None => "msda study verify".into(),
            Some(workload) => format!("msda study verify --workload {workload}"),
        },
        Some("analyze") => match (words.next(), words.nth(1)) {
            (Some("sweep"), _) => "msda study analyze --sweep".into(),
            (Some(workload), Some(kernel)) => {
                format!("msda study analyze --workload {workload} --kernel {kernel} --ncu")
            }
            _ => "msda study analyze".into(),
        },
        _ => "msda bench --device cuda".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_names_the_command_that_measures_it() {
        for (name, expected) in [
            ("bench.seed.f16.forward.cuda:ladder:base+half.time", "msda study bench --workload seed"),
            ("bench.seed.f16.forward.cuda.time", "msda bench --workload seed --engine cuda"),
            ("probe.ceiling.copy.rate", "msda study probe"),
            ("verify.seed.f16.ladder:base.over", "msda study verify --workload seed"),
            ("verify.battery.ladder:base.taken", "msda study verify"),
            (
                "analyze.seed.f16.chosen.hit-rate.measured",
                "msda study analyze --workload seed --kernel chosen --ncu",
            ),
            ("analyze.sweep.batch.4.time", "msda study analyze --sweep"),
            ("ceiling.cuda.copy.rate", "msda bench"),
            ("machine.gpu.sms", "msda bench --device cuda"),
        ] {
            assert_eq!(command(name), expected);
        }
    }

    #[test]
    fn what_is_no_number_is_no_fact() {
        let mut facts = Facts::default();
        facts.insert("a", f64::NAN, "", "here");
        facts.insert("b", 1.0, "us", "here");
        assert_eq!((facts.len(), facts.get("a").is_none()), (1, true));
    }
}
