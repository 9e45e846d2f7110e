//! Facts from definitions, on any machine: sizes and reads of the seed workload, and limits of
//! architectures.

use anyhow::Result;
use msda::{Dtype, Layout, Problem};
use msda_bench::record::{Device, Pass};
use msda_bench::work;
use msda_bench::workload::Workload;

use super::Facts;

/// The workload of the documents.
pub(super) const SEED: &str = "seed";

/// KiB of shared memory per block by architecture, from the CUDA programming guide.
const SHARED_KIB: [(&str, usize); 9] = [
    ("sm_75", 64),
    ("sm_80", 163),
    ("sm_86", 99),
    ("sm_87", 163),
    ("sm_89", 99),
    ("sm_90", 227),
    ("sm_100", 227),
    ("sm_120", 99),
    ("sm_121", 99),
];

/// Adds all of them.
pub fn add(facts: &mut Facts) -> Result<()> {
    let workload = Workload::find(SEED)?;
    let from = "the definition of workload seed";
    let ringed = workload.problem(Dtype::F16)?;
    let bare = ringed.with(|s| s.layout = Layout::Planar)?;
    let mut add =
        |name: &str, value: f64, unit: &str| facts.insert(format!("{SEED}.{name}"), value, unit, from);
    add("planes", (ringed.batch() * ringed.heads()) as f64, "");
    add("queries", ringed.queries() as f64, "");
    add("channels", ringed.channels() as f64, "");
    add("levels", ringed.levels().len() as f64, "");
    add("points", ringed.points()[0] as f64, "");
    add("samples-per-query", ringed.samples() as f64, "");
    add("outputs", ringed.output_len() as f64, "");
    add("row-bytes", (ringed.channels() * 2) as f64, "B");
    for (problem, suffix) in [(&ringed, ""), (&bare, "-bare")] {
        let ends = ends(problem);
        add(&format!("positions{suffix}"), problem.positions() as f64, "");
        add(&format!("value-bytes{suffix}"), (problem.value_len() * 2) as f64, "B");
        add(&format!("plane-bytes{suffix}"), (problem.positions() * problem.channels() * 2) as f64, "B");
        for (i, level) in problem.levels().iter().enumerate() {
            let (start, end) = (ends[i], ends[i + 1]);
            add(&format!("level-start-{i}{suffix}"), start as f64, "");
            let bytes = (end - start) * problem.channels() * 2;
            add(&format!("level-{i}-bytes{suffix}"), bytes as f64, "B");
            if suffix.is_empty() {
                add(&format!("level-{i}-height"), level.h as f64, "");
                add(&format!("level-{i}-width"), level.w as f64, "");
            }
        }
    }

    let from = "counted on the first plane of workload seed";
    let data = workload.first_images(Dtype::F16, 1)?;
    let reads = work::count_reads(&data);
    let w = work::work(&data.problem, reads, Pass::Forward, &[], Device::Cpu, 1);
    let taps = 4.0 * data.problem.weights_len() as f64;
    let mut add =
        |name: &str, value: f64, unit: &str| facts.insert(format!("{SEED}.{name}"), value, unit, from);
    add("intensity-gathered", w.flops / w.gathered_bytes, "FLOP/B");
    add("intensity-compulsory", w.flops / w.compulsory_bytes, "FLOP/B");
    add("flop-per-output", w.flops / data.problem.output_len() as f64, "FLOP");
    add("taps-on-map", 100.0 * reads.taps / taps, "%");
    // Reads per row.
    add("reuse", reads.taps / reads.rows, "x");

    let from = "the programming guide's table of compute capabilities";
    for (arch, kib) in SHARED_KIB {
        facts.insert(format!("arch.{arch}.shared-per-block"), kib as f64, "KiB", from);
    }
    Ok(())
}

/// First positions of the levels with their rings, and the end of the last.
fn ends(problem: &Problem) -> Vec<usize> {
    let ring = problem.layout().ring();
    let starts = problem.levels().iter().map(|l| l.origin - ring * (l.pitch + 1));
    starts.chain([problem.positions()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_has_its_known_sizes() {
        let mut facts = Facts::default();
        add(&mut facts).unwrap();
        let fact = |name: &str| facts.get(name).unwrap_or_else(|| panic!("{name}")).value;
        assert_eq!((fact("seed.positions"), fact("seed.positions-bare")), (20522.0, 19560.0));
        assert_eq!(
            [0, 1, 2, 3].map(|i| fact(&format!("seed.level-start-{i}"))),
            [0.0, 15228.0, 19164.0, 20214.0]
        );
        assert_eq!(
            [0, 1, 2, 3].map(|i| fact(&format!("seed.level-start-{i}-bare"))),
            [0.0, 14720.0, 18400.0, 19320.0]
        );
        assert_eq!(fact("seed.outputs"), 23_688_192.0);
        // Two operations per two bytes.
        assert!((fact("seed.intensity-gathered") - 1.0).abs() < 1e-9);
        assert!(fact("seed.intensity-compulsory") > 10.0);
        assert!((50.0..=100.0).contains(&fact("seed.taps-on-map")));
    }
}
