//! The system that a claim is about, found from the facts that judge it.

use std::collections::BTreeSet;

use super::{Claim, Test};

/// The group of claims that compare several systems.
pub const SEVERAL: &str = "several";
/// The system of claims that no fact judges.
pub const STATEMENT: &str = "statement";

/// The rung that a system's rungs begin with, and the system. The first that fits counts.
const OF_RUNG: [(&str, &str); 16] = [
    ("original", ORIGINAL),
    ("base", SUITE),
    ("simple", "direct"),
    ("l2_direct", "direct"),
    ("optimized", "direct"),
    ("distributed", "distributed"),
    ("tma_multilevel", "tma-multilevel"),
    ("tensor_core", "tensor-core"),
    ("texture", "texture"),
    ("shared", "shared"),
    ("persistent", "persistent"),
    ("ultra", "persistent"),
    ("reordered", "reordered"),
    ("specialised", "specialised"),
    ("int8", "quantised"),
    ("fp8", "quantised"),
];

/// What a fact's name begins with, and the system.
const OF_FACT: [(&str, &str); 12] = [
    ("probe.tma-tile.", "tma-tile"),
    ("probe.copy-styles.", "copy-styles"),
    ("probe.clusters.", "clusters"),
    ("probe.banks.", "banks"),
    ("model.banks.", "banks"),
    ("probe.", "hardware"),
    ("arch.", "hardware"),
    ("machine.", "hardware"),
    ("seed.", "workload"),
    ("bench.", CHOSEN),
    ("analyze.", CHOSEN),
    ("ceiling.", "hardware"),
];

const ORIGINAL: &str = "original";
const SUITE: &str = "suite";
const CHOSEN: &str = "chosen";

/// Systems that others are measured against, the weakest first: a claim about one of them and
/// another is about the other.
const REFERENCES: [&str; 5] = ["hardware", "workload", CHOSEN, ORIGINAL, SUITE];

impl Claim {
    /// The systems that it is about.
    pub fn systems(&self) -> BTreeSet<String> {
        if let Some(system) = &self.system {
            return BTreeSet::from([system.clone()]);
        }
        let names = match &self.test {
            Test::Measure(e, _) | Test::Check(e) => e.names(),
            Test::Nothing => BTreeSet::new(),
        };
        let mut found: BTreeSet<&str> = names.iter().filter_map(|name| of_fact(name)).collect();
        for reference in REFERENCES {
            if found.len() > 1 {
                found.remove(reference);
            }
        }
        if found.is_empty() {
            found.insert(STATEMENT);
        }
        found.into_iter().map(str::to_owned).collect()
    }

    /// The group that lists show it in: its system, or [`SEVERAL`].
    pub fn group(&self) -> String {
        let mut systems = self.systems().into_iter();
        match (systems.next(), systems.next()) {
            (Some(only), None) => only,
            _ => SEVERAL.to_owned(),
        }
    }
}

fn of_fact(name: &str) -> Option<&'static str> {
    if let Some((_, rung)) = name.split_once("ladder:") {
        return OF_RUNG.iter().find(|(begin, _)| rung.starts_with(begin)).map(|(_, system)| *system);
    }
    OF_FACT.iter().find(|(begin, _)| name.starts_with(begin)).map(|(_, system)| *system)
}

#[cfg(test)]
mod tests {
    use crate::ladder::RUNGS;

    use super::super::Claims;
    use super::*;

    #[test]
    fn every_rung_has_a_system() {
        for rung in RUNGS {
            assert!(
                of_fact(&format!("analyze.seed.f16.ladder:{}.shared", rung.name)).is_some(),
                "{}",
                rung.name
            );
        }
    }

    #[test]
    fn the_system_measured_counts_and_its_reference_does_not() {
        let claims = Claims::built_in().unwrap();
        let group = |id: &str| claims.claims.iter().find(|c| c.id == id).unwrap().group();
        assert_eq!(group("report-direct-speedup"), "direct");
        assert_eq!(group("report-positions"), "workload");
        assert_eq!(group("tma-speedup"), "tma-tile");
        assert_eq!(group("report-original-time"), "original");
        let several: Vec<_> = claims.claims.iter().filter(|c| c.systems().len() > 1).collect();
        assert!(!several.is_empty() && several.iter().all(|c| c.group() == SEVERAL));
    }
}
