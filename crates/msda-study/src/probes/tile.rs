//! `tile.cu`: loads the 2 x 2 windows of samples into shared memory, by threads and by the copy
//! engine (TMA).
#![allow(unsafe_code)]

use msda::{Dtype, Result};
use msda_cuda::driver::{Arch, Memory};

use super::bench::{Bench, Timed};
use super::kernel::{Kernel, Ready, arguments};
use super::words::{self, mix};
use super::{Options, Prober, agree, lower};
use crate::tensor_map::{TensorMap, Tiled};

pub(super) const NAME: &str = "tma-tile";

/// Numbers of queries. The documents measure the first only.
const QUERIES: &[u32] = &[1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000];
const FEW_QUERIES: &[u32] = &[1000, 10_000];

/// Batches, in maps.
const BATCHES: [u32; 3] = [4, 16, 48];

/// The map: pixels of 32 `f16` channels.
const HEIGHT: u32 = 92;
const WIDTH: u32 = 160;
const PIXEL: u32 = 64;

/// Windows per query, and bytes per window.
const POINTS: u32 = 8;
const SQUARE: u32 = 4 * PIXEL;

/// Queries per map, if there are several.
const MAP_QUERIES: u32 = 1000;

/// How windows are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    /// By threads, 16 bytes at a time: a load, a store, the next load.
    Manual,
    /// By threads: all loads, then all stores.
    Prefetch,
    /// By threads with `cp.async`, which bypasses the registers.
    Async,
    /// By the copy engine, one window per copy.
    Tma,
    /// By one thread per window, 2 bytes at a time, as the documents' program does.
    Scalar,
}

/// A style and a block size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    style: Style,
    /// Threads per block.
    threads: u32,
    /// Threads per block that arrive at the barrier of the copies. The first eight of them copy.
    issuers: u32,
}

impl Way {
    /// All of them: blocks of 256 threads, of which half load, and blocks of one warp, with four
    /// pieces per thread. With one piece per thread, `Prefetch` is the same as `Manual`. In the
    /// documents every fourth thread issues copies, 64 of 256, but there are eight copies.
    const ALL: [Self; 9] = [
        Self::new(Style::Tma, 256),
        Self { issuers: 64, ..Self::new(Style::Tma, 256) },
        Self::new(Style::Scalar, 256),
        Self::new(Style::Manual, 256),
        Self::new(Style::Async, 256),
        Self::new(Style::Tma, 32),
        Self::new(Style::Manual, 32),
        Self::new(Style::Prefetch, 32),
        Self::new(Style::Async, 32),
    ];

    /// The ways of the documents: they are also measured with several maps.
    const DOCUMENTED: [Self; 2] = [Self::ALL[1], Self::ALL[2]];

    const fn new(style: Style, threads: u32) -> Self {
        Self { style, threads, issuers: POINTS }
    }

    /// Its name: `tma`, `tma-64`, `manual`, `async`; `warp-tma` and so on for blocks of one warp.
    fn name(self) -> String {
        let style = lower(self.style);
        match (self.threads, self.issuers) {
            (32, _) => format!("warp-{style}"),
            (_, POINTS) => style,
            (_, issuers) => format!("{style}-{issuers}"),
        }
    }
}

arguments! {
    /// The argument of `tile.cu`.
    Args { value: u64, sums: u64, cycles: u64 }
}

fn kernel(arch: Arch, way: Way, maps: u32) -> Kernel {
    let several = if maps > 1 { "maps-" } else { "" };
    let key = format!("tile-{several}{}", way.name());
    let kernel = Kernel::new::<Args>("probes/tile.cu", key, arch, way.threads);
    let kernel = match way.style {
        Style::Manual | Style::Prefetch | Style::Scalar => kernel,
        Style::Async => kernel.since(8, 0),
        Style::Tma => kernel.mapped::<Args>().since(9, 0),
    };
    kernel
        .define("STYLE", way.style as u32)
        .define("THREADS", way.threads)
        .define("ISSUERS", way.issuers)
        .define("IMAGE_QUERIES", if maps > 1 { MAP_QUERIES } else { 0 })
}

pub(super) fn kernels(arch: Arch) -> Vec<Kernel> {
    let several = Way::DOCUMENTED.map(|way| kernel(arch, way, 2));
    Way::ALL.map(|way| kernel(arch, way, 1)).into_iter().chain(several).collect()
}

fn queries(options: &Options) -> &'static [u32] {
    if options.quick { FEW_QUERIES } else { QUERIES }
}

pub(super) fn steps(options: &Options) -> usize {
    Way::ALL.len() * queries(options).len() + Way::DOCUMENTED.len() * BATCHES.len()
}

/// `probe.tma-tile.queries-N.WAY.*`, then `probe.tma-tile.batch-B.WAY.*` in the documents' ways.
pub(super) fn probe(prober: &mut Prober<'_>) -> anyhow::Result<()> {
    let queries = queries(prober.options);
    let most = queries.iter().copied().max().unwrap_or(0);
    let Some(tiles) = prober.found.got(NAME, Tiles::new(&prober.bench, most, 1))? else { return Ok(()) };
    let mut ways = Way::ALL.to_vec();
    for &n in queries {
        let mut times: Vec<(Way, f64)> = Vec::new();
        for way in ways.clone() {
            prober.progress.step(&format!("{NAME}: {n} queries, {}", way.name()));
            let ran = tiles.run(&prober.bench, way, n);
            let Some(ran) = prober.found.got(format!("{NAME}.{}", way.name()), ran)? else {
                // The reason holds for any number of queries.
                ways.retain(|other| *other != way);
                continue;
            };
            add(prober, &format!("{NAME}.queries-{n}.{}", way.name()), n, &ran);
            times.push((way, ran.0.median()));
        }
        for (way, time) in &times {
            let manual =
                |(other, _): &&(Way, f64)| other.style == Style::Manual && other.threads == way.threads;
            if let Some((_, plain)) = times.iter().find(manual) {
                let name = format!("{NAME}.queries-{n}.{}", way.name());
                prober.found.push(name, [("speedup", plain / time, "x")]);
            }
        }
    }
    for batch in BATCHES {
        let queries = batch * MAP_QUERIES;
        let tiles = Tiles::new(&prober.bench, queries, batch);
        let Some(tiles) = prober.found.got(NAME, tiles)? else { return Ok(()) };
        for way in Way::DOCUMENTED {
            let name = format!("{NAME}.batch-{batch}.{}", way.name());
            prober.progress.step(&format!("{NAME}: {batch} maps, {}", way.name()));
            if let Some(ran) = prober.found.got(&name, tiles.run(&prober.bench, way, queries))? {
                add(prober, &name, queries, &ran);
            }
        }
    }
    Ok(())
}

/// Adds the times of a run, and the cycles of its blocks.
fn add(prober: &mut Prober<'_>, name: &str, queries: u32, (timed, cycles): &(Timed, Vec<i64>)) {
    let loads = f64::from(queries * POINTS);
    let end = |cycles: Option<&i64>| cycles.map_or(f64::NAN, |n| *n as f64);
    let mean = cycles.iter().sum::<i64>() as f64 / cycles.len() as f64;
    prober.found.time(name, timed);
    let all = [
        ("time.min", timed.quantile(0.0), "us"),
        ("time.max", timed.quantile(1.0), "us"),
        ("time.std", timed.deviation(), "us"),
        ("rate", timed.rate() / 1e9, "GB/s"),
        ("loads", loads / timed.median(), "M/s"),
        ("load-time", timed.median() * 1e3 / loads, "ns"),
        ("efficiency", timed.rate() / prober.copy * 100.0, "%"),
        ("cycles.min", end(cycles.iter().min()), "cycles"),
        ("cycles.mean", mean, "cycles"),
        ("cycles.max", end(cycles.iter().max()), "cycles"),
    ];
    prober.found.push(name, all);
}

/// Maps on a device, and the expected sum of each query.
struct Tiles {
    value: Memory,
    maps: u32,
    /// One sum per query.
    expected: Vec<u32>,
}

impl Tiles {
    /// For at most that many queries. Of several maps, each has [`MAP_QUERIES`] queries.
    fn new(bench: &Bench, queries: u32, maps: u32) -> Result<Self> {
        let value = words::filled(bench, (maps * HEIGHT * WIDTH * PIXEL) as usize)?;
        let words: Vec<u32> = (0..maps * HEIGHT * WIDTH * PIXEL / 4).map(mix).collect();
        let expected = (0..queries).map(|query| expected(&words, query, maps)).collect();
        Ok(Self { value, maps, expected })
    }

    /// Loads the windows of the first `queries` queries, one block per query. Maps stay in L2, as
    /// far as they fit. Also returns the cycles of each block until its windows arrived.
    fn run(&self, bench: &Bench, way: Way, queries: u32) -> Result<(Timed, Vec<i64>)> {
        let device = bench.device();
        let kernel = kernel(device.arch(), way, self.maps);
        super::needs(device, &kernel)?;
        let warps = way.threads as usize / 32;
        let sums = words::poisoned(device, queries as usize * warps)?;
        let cycles = device.alloc(queries as usize * 8)?;
        let args = Args { value: self.value.address(), sums: sums.address(), cycles: cycles.address() };
        let tensor = || Tiled {
            dtype: Dtype::F16,
            address: self.value.address(),
            sizes: [PIXEL / 2, WIDTH, HEIGHT * self.maps].map(u64::from).into(),
            strides: [PIXEL, WIDTH * PIXEL].map(u64::from).into(),
            window: vec![PIXEL / 2, 2, 2],
        };
        let map = (way.style == Style::Tma).then(|| TensorMap::tiled(device, &tensor())).transpose()?;
        // SAFETY: the kernel takes such a structure and reads squares of the map; sums of every
        // warp and cycles of every block have room; the memory lives to the end.
        let ready = unsafe { Ready::new(device, &kernel, kernel.grid(queries), map, args)? };
        let work = f64::from(queries) * f64::from(POINTS * SQUARE);
        let timed = bench.time(work, false, |stream| ready.queue(stream))?;
        for (query, sums) in words::read(&sums)?.chunks(warps).enumerate() {
            let sum = sums.iter().fold(0, |sum: u32, part| sum.wrapping_add(*part));
            agree(&kernel.unit.key, format!("query {query}"), sum, self.expected[query])?;
        }
        Ok((timed, words::numbers(&cycles, i64::from_le_bytes)?))
    }
}

/// The weighted sum of the words of a query's windows.
fn expected(words: &[u32], query: u32, maps: u32) -> u32 {
    let top = if maps > 1 { query / MAP_QUERIES * HEIGHT } else { 0 };
    let mut sum = 0u32;
    let mut index = 0u32;
    for point in 0..POINTS {
        let bits = mix(query * POINTS + point);
        let (x, y) = (((bits & 0xffff) * (WIDTH - 1)) >> 16, top + (((bits >> 16) * (HEIGHT - 1)) >> 16));
        for (y, x) in [(y, x), (y, x + 1), (y + 1, x), (y + 1, x + 1)] {
            let first = ((y * WIDTH + x) * PIXEL / 4) as usize;
            for word in &words[first..first + PIXEL as usize / 4] {
                sum = sum.wrapping_add(word.wrapping_mul(2 * index + 1));
                index += 1;
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_stay_on_the_map_and_differ() {
        let map: Vec<u32> = (0..HEIGHT * WIDTH * PIXEL / 4).map(mix).collect();
        let sums: std::collections::BTreeSet<u32> = (0..5000).map(|query| expected(&map, query, 1)).collect();
        assert_eq!(sums.len(), 5000);
        let maps: Vec<u32> = (0..2 * HEIGHT * WIDTH * PIXEL / 4).map(mix).collect();
        let sum = |query| expected(&maps, query, 2);
        assert_eq!(sum(999), expected(&map, 999, 1));
        assert_ne!(sum(1999), expected(&map, 1999, 1));
    }

    #[test]
    fn ways_have_names() {
        assert_eq!(Way::ALL[0].name(), "tma");
        assert_eq!(Way::ALL[1].name(), "tma-64");
        assert_eq!(Way::ALL[7].name(), "warp-prefetch");
        assert_eq!(Way::DOCUMENTED.map(Way::name), ["tma-64", "scalar"]);
    }
}
