//! The study's sections of the report.

mod claims;
mod ladder;
mod probes;
mod sweeps;
mod wavefronts;

use anyhow::Result;
use msda_bench::record::{Ceiling, Device, Record};
use msda_bench::report::known::known;
use msda_bench::report::{Added, Extension};

use crate::engines::is_rung;

/// Whether the claims of the documents are judged in a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Judge {
    /// If a record is of a GPU: the claims are about GPUs.
    #[default]
    Gpu,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The study as an extension of the report.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sections {
    /// Whether claims are judged.
    pub claims: Judge,
}

/// Probes that are roofs of a GPU, and GB/s or GFLOP/s per unit of the probe.
const ROOFS: [(&str, f64); 3] = [("gather-l2-64", 1.0), ("gather-memory-64", 1.0), ("fma-f32", 1e3)];

impl Extension for Sections {
    fn shows(&self, engine: &str) -> bool {
        is_rung(engine)
    }

    fn ceilings(&self, records: &[Record], machine: &str) -> Vec<Ceiling> {
        let known = known(records, "probe.ceiling.");
        let Some(known) = known.iter().find(|k| k.machine == machine) else { return Vec::new() };
        let ceiling = |(name, scale): (&str, f64)| {
            let rate = known.get(&format!("probe.ceiling.{name}.rate"))? * scale;
            Some(Ceiling { name: name.into(), device: Device::Cuda, threads: 1, rate })
        };
        ROOFS.into_iter().filter_map(ceiling).collect()
    }

    fn add(&self, records: &[Record]) -> Result<Added> {
        let (claims, judged) = claims::section(records, self.claims)?.unzip();
        let sections = [
            ladder::section(records),
            wavefronts::section(records),
            sweeps::section(records),
            probes::section(records),
            claims,
        ];
        Ok(Added {
            findings: ladder::finding(records).into_iter().chain(judged).collect(),
            sections: sections.into_iter().flatten().collect(),
            missing: missing(records),
        })
    }
}

/// What no record has, and the command that measures it.
fn missing(records: &[Record]) -> Vec<(String, String)> {
    if records.is_empty() {
        return Vec::new();
    }
    let rungs = records.iter().flat_map(|r| &r.measurements).any(|m| is_rung(&m.engine));
    let figures = |prefix: &str| !known(records, prefix).is_empty();
    let counted = known(records, "analyze.")
        .iter()
        .flat_map(|k| &k.figures)
        .any(|f| f.name.ends_with(".wavefronts.predicted") || f.name.ends_with(".wavefronts.measured"));
    let all = [
        (rungs, "the ladder", "msda study bench"),
        (counted, "wavefronts", "msda study analyze --workload seed --ncu --out analysis.json"),
        (
            figures("analyze.sweep."),
            "how time grows with the problem",
            "msda study analyze --sweep --out sweep.json",
        ),
        (figures("probe."), "limits of the machine", "msda study probe --out probes"),
    ];
    let absent = all.into_iter().filter(|(there, ..)| !there);
    absent.map(|(_, what, command)| (what.into(), command.into())).collect()
}
