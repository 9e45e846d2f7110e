//! `tile.cu`: loads the 2 x 2 windows of samples into shared memory, by threads and by the copy
//! engine (TMA).
#![allow(unsafe_code)]

use msda::{Dtype, Result};

use super::kernel::Ready;
use super::words::{self, mix};
use super::{Bench, Kernel, Timed, agree};
use crate::tensor_map::{TensorMap, Tiled};
use msda_cuda::driver::{Arch, Memory};

/// The map: pixels of 32 `f16` channels.
const HEIGHT: u32 = 92;
const WIDTH: u32 = 160;
const PIXEL: u32 = 64;

/// Windows per query, and bytes per window.
const POINTS: u32 = 8;
const SQUARE: u32 = 4 * PIXEL;

/// Queries per map, if there are several.
pub const MAP_QUERIES: u32 = 1000;

/// How windows are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
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
pub struct Way {
    /// The style.
    pub style: Style,
    /// Threads per block.
    pub threads: u32,
    /// Threads per block that arrive at the barrier of the copies. The first eight of them copy.
    pub issuers: u32,
}

impl Way {
    /// All of them: blocks of 256 threads, of which half load, and blocks of one warp, with four
    /// pieces per thread. With one piece per thread, `Prefetch` is the same as `Manual`. In the
    /// documents every fourth thread issues copies, 64 of 256, but there are eight copies.
    pub const ALL: [Self; 9] = [
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
    pub const DOCUMENTED: [Self; 2] = [Self::ALL[1], Self::ALL[2]];

    const fn new(style: Style, threads: u32) -> Self {
        Self { style, threads, issuers: POINTS }
    }

    /// Its name: `tma`, `tma-64`, `manual`, `async`; `warp-tma` and so on for blocks of one warp.
    pub fn name(self) -> String {
        let style = format!("{:?}", self.style).to_lowercase();
        match (self.threads, self.issuers) {
            (32, _) => format!("warp-{style}"),
            (_, POINTS) => style,
            (_, issuers) => format!("{style}-{issuers}"),
        }
    }
}

/// The measured times.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Times; the work is bytes.
    pub timed: Timed,
    /// Windows per run.
    pub loads: f64,
    /// Cycles of a block until its windows arrived: least, mean, most.
    pub cycles: [f64; 3],
}

/// The argument of `tile.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Args {
    value: u64,
    sums: u64,
    cycles: u64,
}

/// The same with a tensor map in front.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Mapped {
    map: TensorMap,
    args: Args,
}

fn kernel(arch: Arch, way: Way, maps: u32) -> Kernel {
    let several = if maps > 1 { "maps-" } else { "" };
    let (file, key, threads) = ("probes/tile.cu", format!("tile-{several}{}", way.name()), way.threads);
    let kernel = match way.style {
        Style::Manual | Style::Prefetch | Style::Scalar => Kernel::new::<Args>(file, key, arch, threads),
        Style::Async => Kernel::new::<Args>(file, key, arch, threads).since(8, 0),
        Style::Tma => Kernel::new::<Mapped>(file, key, arch, threads).since(9, 0),
    };
    kernel
        .define("STYLE", way.style as u32)
        .define("THREADS", threads)
        .define("ISSUERS", way.issuers)
        .define("IMAGE_QUERIES", if maps > 1 { MAP_QUERIES } else { 0 })
}

pub(super) fn kernels(arch: Arch) -> Vec<Kernel> {
    let several = Way::DOCUMENTED.map(|way| kernel(arch, way, 2));
    Way::ALL.map(|way| kernel(arch, way, 1)).into_iter().chain(several).collect()
}

/// Maps on a device, and the expected sum of each query.
#[derive(Debug)]
pub struct Tiles<'a> {
    bench: &'a Bench,
    value: Memory,
    maps: u32,
    /// One sum per query.
    expected: Vec<u32>,
}

impl<'a> Tiles<'a> {
    /// For at most that many queries. Of several maps, each has [`MAP_QUERIES`] queries.
    pub fn new(bench: &'a Bench, queries: u32, maps: u32) -> Result<Self> {
        let value = words::filled(bench, (maps * HEIGHT * WIDTH * PIXEL) as usize)?;
        let words: Vec<u32> = (0..maps * HEIGHT * WIDTH * PIXEL / 4).map(mix).collect();
        let expected = (0..queries).map(|query| expected(&words, query, maps)).collect();
        Ok(Self { bench, value, maps, expected })
    }

    /// Loads the windows of the first `queries` queries, one block per query. Maps stay in L2, as
    /// far as they fit.
    pub fn run(&self, way: Way, queries: u32) -> Result<Measured> {
        let device = self.bench.device();
        let kernel = kernel(device.arch(), way, self.maps);
        super::needs(device, &kernel)?;
        let queries = queries.min(self.expected.len() as u32);
        let warps = way.threads as usize / 32;
        let sums = words::poisoned(device, queries as usize * warps)?;
        let cycles = device.alloc(queries as usize * 8)?;
        let at = kernel.grid(queries);
        let args = Args { value: self.value.address(), sums: sums.address(), cycles: cycles.address() };
        let work = f64::from(queries) * f64::from(POINTS * SQUARE);
        let timed = if way.style == Style::Tma {
            let tensor = Tiled {
                dtype: Dtype::F16,
                address: self.value.address(),
                sizes: [PIXEL / 2, WIDTH, HEIGHT * self.maps].map(u64::from).into(),
                strides: [PIXEL, WIDTH * PIXEL].map(u64::from).into(),
                window: vec![PIXEL / 2, 2, 2],
            };
            let args = Mapped { map: TensorMap::tiled(device, &tensor)?, args };
            // SAFETY: the kernel takes such a structure and reads squares of the map; sums of every
            // warp and cycles of every block have room; the memory lives to the end.
            let ready = unsafe { Ready::new(device, &kernel, at, args)? };
            self.bench.time(work, false, |stream| ready.queue(stream))?
        } else {
            // SAFETY: as above.
            let ready = unsafe { Ready::new(device, &kernel, at, args)? };
            self.bench.time(work, false, |stream| ready.queue(stream))?
        };
        for (query, sums) in words::read(&sums)?.chunks(warps).enumerate() {
            let sum = sums.iter().fold(0, |sum: u32, part| sum.wrapping_add(*part));
            agree(&kernel.unit.key, format!("query {query}"), sum, self.expected[query])?;
        }
        let cycles = words::read_i64(&cycles)?;
        let fewest = cycles.iter().min().map_or(f64::NAN, |n| *n as f64);
        let most = cycles.iter().max().map_or(f64::NAN, |n| *n as f64);
        let mean = cycles.iter().sum::<i64>() as f64 / cycles.len() as f64;
        Ok(Measured { timed, loads: f64::from(queries * POINTS), cycles: [fewest, mean, most] })
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
    fn the_copy_engines_kernels_take_their_map_first() {
        assert_eq!((std::mem::offset_of!(Mapped, map), std::mem::offset_of!(Mapped, args)), (0, 128));
        assert_eq!(Way::ALL[0].name(), "tma");
        assert_eq!(Way::ALL[1].name(), "tma-64");
        assert_eq!(Way::ALL[7].name(), "warp-prefetch");
        assert_eq!(Way::DOCUMENTED.map(Way::name), ["tma-64", "scalar"]);
    }
}
