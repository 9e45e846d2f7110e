//! Facts from definitions, on any machine: sizes and reads of the seed workload, and limits of
//! architectures.

use anyhow::Result;
use msda::{Dtype, Layout, Problem};
use msda_bench::record::{Device, Pass};
use msda_bench::work;
use msda_bench::workload::Workload;

use super::Facts;

/// The output elements of the seed shape.
pub(super) const OUTPUTS: f64 = 23_688_192.0;

/// KiB of shared memory per block by architecture, from the CUDA programming guide.
const SHARED_KIB: [(&str, usize); 2] = [("sm_90", 227), ("sm_120", 99)];

/// Bytes of every tensor of the seed shape in f16, once: with rings around the levels, and without.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes {
    pub(super) ringed: f64,
    pub(super) bare: f64,
}

/// Adds all of them.
pub(super) fn add(facts: &mut Facts) -> Result<Bytes> {
    let workload = Workload::find("seed")?;
    let ringed = workload.problem(Dtype::F16)?;
    let bare = ringed.with(|s| s.layout = Layout::Planar)?;
    let mut add = |name: &str, value: f64, unit: &str| {
        facts.insert(format!("seed.{name}"), value, unit, "the definition of workload seed");
    };
    let kib = |positions: usize, channels: usize| (positions * channels * 2) as f64 / 1024.0;
    let ends = ends(&ringed);
    add("positions", ringed.positions() as f64, "");
    add("positions-bare", bare.positions() as f64, "");
    add("outputs", ringed.output_len() as f64, "");
    add("plane-kib", kib(ringed.positions(), ringed.channels()), "KiB");
    // A block of a cluster has two channels of a plane, and a cluster has eight blocks.
    add("block-kib", kib(ringed.positions(), 2), "KiB");
    add("cluster-kib", kib(ringed.positions(), 2 * 8), "KiB");
    // The two levels that fit a block.
    add("coarse-kib", kib(ends[4] - ends[2], ringed.channels()), "KiB");

    let data = workload.first_images(Dtype::F16, 1)?;
    let reads = work::count_reads(&data);
    let w = work::work(&data.problem, reads, Pass::Forward, &[], Device::Cpu, 1);
    add("intensity-gathered", w.flops / w.gathered_bytes, "FLOP/B");
    // Reads per row.
    add("reuse", reads.taps / reads.rows, "x");

    for (arch, kib) in SHARED_KIB {
        let from = "the programming guide's table of compute capabilities";
        facts.insert(format!("arch.{arch}.shared-per-block"), kib as f64, "KiB", from);
    }
    // Two locations and a weight per sample; outputs and values besides.
    let others = (6 * ringed.weights_len() + 2 * ringed.output_len()) as f64;
    let bytes = |problem: &Problem| (2 * problem.value_len()) as f64 + others;
    Ok(Bytes { ringed: bytes(&ringed), bare: bytes(&bare) })
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
        let bytes = add(&mut facts).unwrap();
        let fact = |name: &str| facts.get(name).unwrap_or_else(|| panic!("{name}")).value;
        assert_eq!((fact("seed.positions"), fact("seed.positions-bare")), (20522.0, 19560.0));
        assert_eq!(fact("seed.outputs"), OUTPUTS);
        let ringed = Workload::find("seed").unwrap().problem(Dtype::F16).unwrap();
        let bare = ringed.with(|s| s.layout = Layout::Planar).unwrap();
        assert_eq!(ends(&ringed), [0, 15228, 19164, 20214, 20522]);
        assert_eq!(ends(&bare), [0, 14720, 18400, 19320, 19560]);
        assert_eq!((ringed.batch() * ringed.heads(), ringed.channels()), (48, 32));
        assert_eq!((ringed.queries(), ringed.samples()), (15422, 32));
        assert_eq!(fact("seed.coarse-kib"), ((20522 - 19164) * 64) as f64 / 1024.0);
        // Two operations per two bytes.
        assert!((fact("seed.intensity-gathered") - 1.0).abs() < 1e-9);
        assert_eq!(bytes.ringed - bytes.bare, (48 * (20522 - 19560) * 64) as f64);
        assert_eq!(bytes.bare, (48 * 19560 * 64 + 48 * 15422 * 32 * 6 + 2 * 23_688_192) as f64);
    }
}
