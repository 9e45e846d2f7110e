//! The study's section of the report.

mod figures;
mod ladder;

use anyhow::Result;
use msda_bench::record::Record;
use msda_bench::report::Extension;
use msda_bench::report::page::{Part, Section, fold};

use crate::engines::is_rung;

/// The study as an extension of the report.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sections;

impl Extension for Sections {
    fn shows(&self, engine: &str) -> bool {
        is_rung(engine)
    }

    fn sections(&self, records: &[Record]) -> Result<Vec<Section>> {
        let own = [ladder::section(records), figures::probes(records), figures::analysis(records)];
        let folds: Vec<Part> = own.into_iter().flatten().flat_map(folded).collect();
        if folds.is_empty() {
            return Ok(Vec::new());
        }
        let mut parts = vec![Part::findings(ladder::finding(records).as_slice())];
        parts.extend(folds);
        parts.push(Part::missing(&missing(records)));
        Ok(vec![Section { title: "The study", about: ABOUT.into(), parts }])
    }
}

const ABOUT: &str = "The project began with five documents about this operator on GPUs. The study builds every strategy \
    that they name as a kernel of its own, measures it, and judges every figure that they state. Users of msda do not \
    need it.";

/// A section of the study, closed at first.
fn folded(section: Section) -> Vec<Part> {
    let about = std::iter::once(Part::note(&section.about));
    fold(section.title, "", false, about.chain(section.parts).collect())
}

/// Measurements that no record has, and the commands that make them.
fn missing(records: &[Record]) -> Vec<(String, String)> {
    let figure = |prefix: &str, end: &str| {
        let mut all = records.iter().flat_map(|r| &r.figures);
        all.any(|f| f.name.starts_with(prefix) && f.name.ends_with(end))
    };
    let rungs = records.iter().flat_map(|r| &r.measurements).any(|m| is_rung(&m.engine));
    let counters = figure("analyze.", ".wavefronts.measured");
    let sweep = "time against the size of the problem";
    let all = [
        (rungs, "the ladder", "bench"),
        (counters, "counters", "analyze --workload seed --ncu --out analysis.json"),
        (figure("analyze.sweep.", ""), sweep, "analyze --sweep --out sweep.json"),
        (figure("probe.", ""), "the probes", "probe --out probes"),
    ];
    let absent = all.into_iter().filter(|(there, ..)| !there);
    absent.map(|(_, what, command)| (what.into(), format!("msda-study {command}"))).collect()
}
