//! What a pass has to do, and the time below which this machine cannot do it.

use msda::cpu::probe::{self, Reading};
use msda::{Isa, Problem};
use rayon::prelude::*;

use crate::record::{Ceiling, Pass, Work};
use crate::workload::Data;

/// The ceilings by name: fused multiply-adds.
pub const FMA: &str = "fma";
/// Reading a buffer as large as a value pyramid in order.
pub const STREAM: &str = "stream";
/// Random rows from the second-level cache.
pub const GATHER_L2: &str = "gather-l2";
/// Random rows from a buffer as large as a value pyramid.
pub const GATHER_MEMORY: &str = "gather-memory";

/// Measures this machine's ceilings with that many threads. Takes about a second.
pub fn ceilings(threads: usize) -> anyhow::Result<Vec<Ceiling>> {
    const PYRAMID: usize = 20 << 20;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let isa = Isa::best();
    let rates = pool.install(|| {
        [
            (FMA, probe::multiply_add(isa)),
            (STREAM, probe::read(isa, PYRAMID, Reading::InOrder)),
            (GATHER_L2, probe::read(isa, 512 << 10, Reading::Own)),
            (GATHER_MEMORY, probe::read(isa, PYRAMID, Reading::Shared)),
        ]
    });
    Ok(rates.map(|(name, rate)| Ceiling { name: name.into(), threads, rate: rate / 1e9 }).into())
}

/// Taps that lie on the map, over all samples of a workload.
pub fn count_taps(data: &Data) -> f64 {
    let p = &data.problem;
    let locations = data.locations.as_slice();
    let row = 2 * p.samples();
    (0..p.batch() * p.queries() * p.heads())
        .into_par_iter()
        .map(|item| {
            let mut s = item * row;
            let mut taps = 0;
            for (level, &points) in p.levels().iter().zip(p.points()) {
                for _ in 0..points {
                    let on = |axis: usize, side: usize| taps_on_axis(p, locations.get(s + axis), side);
                    taps += on(0, level.w) * on(1, level.h);
                    s += 2;
                }
            }
            taps as f64
        })
        .sum()
}

/// How many of a bilinear sample's two neighbours on one axis are on the map.
fn taps_on_axis(p: &Problem, t: f64, side: usize) -> usize {
    let (scale, shift) = p.pixel_transform(side);
    let low = (t * scale + shift).floor();
    [low, low + 1.0].into_iter().filter(|&i| i >= 0.0 && i < side as f64).count()
}

/// Counts a pass's work and derives its floor from the ceilings for `threads` threads.
pub fn work(p: &Problem, taps: f64, pass: Pass, ceilings: &[Ceiling], threads: usize) -> Work {
    let t = p.types();
    let bytes = |dtype: msda::Dtype, n: usize| (dtype.size() * n) as f64;
    let coordinates = bytes(t.locations, p.locations_len()) + bytes(t.weights, p.weights_len());
    let (value, output) = (bytes(t.value, p.value_len()), bytes(t.value, p.output_len()));
    let row = (p.channels() * t.value.size()) as f64;
    let sum_row = (p.channels() * t.value.accumulator().size()) as f64;
    let multiply_adds = 2.0 * taps * p.channels() as f64;
    // Rows that nobody looks at need not be read.
    let inputs = value.min(taps * row) + coordinates;
    let (flops, gathered_bytes, compulsory_bytes) = match pass {
        Pass::Forward => (multiply_adds, taps * row, inputs + output),
        // Rows are read once more, and sums of the value gradient are read and written.
        Pass::Backward => {
            (2.0 * multiply_adds, taps * (row + 2.0 * sum_row), inputs + output + value + coordinates)
        }
    };
    let rate = |name: &str| {
        let found = ceilings.iter().find(|c| c.name == name && c.threads == threads);
        found.map_or(f64::INFINITY, |c| c.rate * 1e9)
    };
    let bounds = [
        (FMA, flops / rate(FMA)),
        ("gather", gathered_bytes / rate(GATHER_L2)),
        (STREAM, compulsory_bytes / rate(STREAM)),
    ];
    let (bound, seconds) = bounds.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("none", 0.0));
    Work { flops, gathered_bytes, compulsory_bytes, floor_ms: seconds * 1e3, bound: bound.into() }
}
