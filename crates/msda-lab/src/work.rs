//! What a pass has to do, and the time below which this machine cannot do it.

use msda::cpu::probe;
use msda::{Isa, Problem};
use rayon::prelude::*;

use crate::record::{Ceiling, Pass, Work};
use crate::workload::Data;

/// The ceilings by name.
pub const FMA: &str = "fma";
/// Reading and writing memory in order.
pub const COPY: &str = "copy";
/// Random rows from the second-level cache.
pub const GATHER_L2: &str = "gather-l2";
/// Random rows from a buffer as large as a value pyramid.
pub const GATHER_MEMORY: &str = "gather-memory";

/// Measures this machine's ceilings with that many threads. Takes about a second.
pub fn ceilings(threads: usize) -> anyhow::Result<Vec<Ceiling>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let isa = Isa::best();
    let rates = pool.install(|| {
        [
            (FMA, probe::multiply_add(isa)),
            (COPY, copy()),
            (GATHER_L2, probe::gather(isa, 512 << 10, false)),
            (GATHER_MEMORY, probe::gather(isa, 20 << 20, true)),
        ]
    });
    Ok(rates.map(|(name, rate)| Ceiling { name: name.into(), threads, rate: rate / 1e9 }).into())
}

/// Bytes a second read plus written by a large copy.
fn copy() -> f64 {
    let n = 32 << 20;
    let from = vec![1u8; n];
    let mut to = vec![0u8; n];
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = std::time::Instant::now();
        to.par_chunks_mut(1 << 20).zip(from.par_chunks(1 << 20)).for_each(|(to, from)| to.copy_from_slice(from));
        best = best.min(start.elapsed().as_secs_f64());
    }
    2.0 * n as f64 / best
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
    let inputs = bytes(t.value, p.value_len())
        + bytes(t.locations, p.locations_len())
        + bytes(t.weights, p.weights_len());
    let output = bytes(t.value, p.output_len());
    let row = (p.channels() * t.value.size()) as f64;
    let sum_row = (p.channels() * t.value.accumulator().size()) as f64;
    let multiply_adds = 2.0 * taps * p.channels() as f64;
    let (flops, gathered_bytes, compulsory_bytes) = match pass {
        Pass::Forward => (multiply_adds, taps * row, inputs + output),
        // Rows are read once more, and sums of the value gradient are read and written.
        Pass::Backward => (2.0 * multiply_adds, taps * (row + 2.0 * sum_row), 2.0 * inputs + output),
    };
    let rate = |name: &str| {
        let found = ceilings.iter().find(|c| c.name == name && c.threads == threads);
        found.map_or(f64::INFINITY, |c| c.rate * 1e9)
    };
    let bounds = [
        (FMA, flops / rate(FMA)),
        ("gather", gathered_bytes / rate(GATHER_L2)),
        (COPY, compulsory_bytes / rate(COPY)),
    ];
    let (bound, seconds) = bounds.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("none", 0.0));
    Work { flops, gathered_bytes, compulsory_bytes, floor_ms: seconds * 1e3, bound: bound.into() }
}
