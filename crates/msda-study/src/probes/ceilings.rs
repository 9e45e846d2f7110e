//! Ceilings of a device: `stream.cu`, `gather.cu`, `fma.cu` and `shared.cu`.
#![allow(unsafe_code)]

use std::fmt;

use msda::{Dtype, Result};
use msda_cuda::driver::Arch;
use msda_cuda::jit;

use super::banks::{self, Pattern};
use super::bench::{Bench, Timed};
use super::kernel::{Kernel, Ready, arguments};
use super::words::{self, mix, some};
use super::{Prober, agree, lower};
use crate::listed::listed;

pub(super) const NAME: &str = "ceiling";

listed! {
    /// The memory that random rows come from.
    pub(super) enum Source {
        /// L1: all SMs read the same 64 KiB.
        L1,
        /// L2: a third of it, far more than the L1 caches hold.
        L2,
        /// Device memory: a few gigabytes.
        Memory,
    }
}

/// Bytes of random rows, and types of multiply-adds.
const ROWS: [usize; 2] = [64, 128];
const TYPES: [Dtype; 2] = [Dtype::F32, Dtype::F16];

/// A ceiling: an upper bound that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ceiling {
    /// Reading in order.
    Stream,
    /// Random rows of that many bytes.
    Gather(Source, usize),
    /// Loads of 16 bytes from shared memory; that many lanes of each quarter of a warp use the same
    /// banks.
    Shared(u32),
    /// Multiply-adds of a type, `f32` or `f16`.
    Fma(Dtype),
}

impl Ceiling {
    /// All of them.
    pub(super) fn all() -> Vec<Self> {
        let rows = Source::ALL.into_iter().flat_map(|from| ROWS.map(|row| Self::Gather(from, row)));
        let others = [1, 2, 4, 8].map(Self::Shared).into_iter().chain(TYPES.map(Self::Fma));
        [Self::Stream].into_iter().chain(rows).chain(others).collect()
    }

    /// Whether its rate counts floating-point operations; otherwise it counts bytes.
    fn is_arithmetic(self) -> bool {
        matches!(self, Self::Fma(_))
    }

    /// Measures it.
    fn run(self, bench: &Bench) -> Result<Timed> {
        match self {
            Self::Stream => stream(bench),
            Self::Gather(from, row) => gather(bench, &self.to_string(), from, row),
            Self::Shared(degree) => Ok(banks::run(bench, &Pattern::conflicts(degree))?.0),
            Self::Fma(dtype) => fma(bench, dtype),
        }
    }
}

impl fmt::Display for Ceiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream => f.write_str("stream"),
            Self::Gather(from, row) => write!(f, "gather-{}-{row}", lower(from)),
            Self::Shared(degree) => write!(f, "shared-conflicts-{degree}"),
            Self::Fma(dtype) => write!(f, "fma-{dtype}"),
        }
    }
}

/// `probe.ceiling.CEILING.*`
pub(super) fn probe(prober: &mut Prober<'_>) -> anyhow::Result<()> {
    prober.found.push(format!("{NAME}.copy"), [("rate", prober.copy / 1e9, "GB/s")]);
    for ceiling in Ceiling::all() {
        let name = format!("{NAME}.{ceiling}");
        prober.progress.step(&format!("{NAME}: {ceiling}"));
        let Some(timed) = prober.found.got(&name, ceiling.run(&prober.bench))? else { continue };
        let (scale, unit) = if ceiling.is_arithmetic() { (1e12, "TFLOP/s") } else { (1e9, "GB/s") };
        prober.found.push(&name, [("time", timed.median(), "us"), ("rate", timed.rate() / scale, unit)]);
    }
    Ok(())
}

/// Loads in flight per thread of `stream.cu` and `gather.cu`.
const IN_FLIGHT: u32 = 8;

arguments! {
    /// The argument of `stream.cu`.
    Streamed { data: u64, sums: u64, steps: i32 }
    /// The argument of `gather.cu`.
    Gathered { window: u64, sums: u64, mask: u32, steps: i32 }
    /// The argument of `fma.cu`.
    Counted { sums: u64, one: f32, steps: i32 }
}

fn stream_kernel(arch: Arch) -> Kernel {
    Kernel::new::<Streamed>("probes/stream.cu", "stream", arch, 512)
}

fn gather_kernel(arch: Arch, row: usize) -> Kernel {
    Kernel::new::<Gathered>("probes/gather.cu", format!("gather-{row}"), arch, 512).define("ROW", row)
}

fn fma_kernel(arch: Arch, dtype: Dtype) -> Kernel {
    Kernel::new::<Counted>("probes/fma.cu", format!("fma-{dtype}"), arch, 512)
        .define("TYPE", dtype.name().to_uppercase())
}

pub(super) fn kernels(arch: Arch) -> Vec<Kernel> {
    let mut all = vec![words::kernel(arch), stream_kernel(arch)];
    all.extend(ROWS.map(|row| gather_kernel(arch, row)));
    all.extend(TYPES.map(|dtype| fma_kernel(arch, dtype)));
    all.extend(banks::kernels(arch));
    all
}

fn stream(bench: &Bench) -> Result<Timed> {
    let device = bench.device();
    let kernel = stream_kernel(device.arch());
    let at = kernel.grid(device.sms() * 2);
    let threads = at.grid[0] as usize * kernel.threads as usize;
    // About one gibibyte.
    let loads = ((device.free_memory()? / 4).min(1 << 30) / (threads * 16)).max(1) as u32;
    let steps = loads.div_ceil(IN_FLIGHT);
    let bytes = (steps * IN_FLIGHT) as usize * threads * 16;
    let data = words::filled(bench, bytes)?;
    let sums = words::poisoned(device, threads)?;
    let args = Streamed { data: data.address(), sums: sums.address(), steps: steps as i32 };
    // SAFETY: the kernel takes such a structure; every thread reads 16 bytes as often as `bytes`
    // was computed from and writes one sum; the memory lives to the end.
    let ready = unsafe { Ready::new(device, &kernel, at, None, args)? };
    let timed = bench.time(bytes as f64, true, |stream| ready.queue(stream))?;
    let sums = words::read(&sums)?;
    for thread in some(threads) {
        let first = |load: u32| (load as usize * threads + thread) * 4;
        let want = (0..steps * IN_FLIGHT).flat_map(|load| first(load)..first(load) + 4);
        let want = want.fold(0, |sum, word| sum ^ mix(word as u32));
        agree("stream", format!("thread {thread}"), sums[thread], want)?;
    }
    Ok(timed)
}

fn gather(bench: &Bench, name: &str, from: Source, row: usize) -> Result<Timed> {
    let device = bench.device();
    let power = |bytes: usize| 1 << bytes.max(1 << 20).ilog2();
    let (window, steps) = match from {
        Source::L1 => (64 << 10, 256),
        Source::L2 => (power(device.l2_bytes() / 3), 128),
        Source::Memory => (power((device.free_memory()? / 2).min(4 << 30)), 32),
    };
    let kernel = gather_kernel(device.arch(), row);
    let at = kernel.grid(device.sms() * 2);
    let threads = at.grid[0] as usize * kernel.threads as usize;
    let data = words::filled(bench, window)?;
    let sums = words::poisoned(device, threads)?;
    let mask = (window - row) as u32;
    let args = Gathered { window: data.address(), sums: sums.address(), mask, steps };
    // SAFETY: the kernel takes such a structure; with that mask it stays within the window, and
    // every thread writes one sum; the memory lives to the end.
    let ready = unsafe { Ready::new(device, &kernel, at, None, args)? };
    ready.function.prefer_shared(0)?;
    let loads = steps as u32 * IN_FLIGHT;
    // The warm-up runs bring the window into L2, if it fits.
    let timed = bench.time(threads as f64 * f64::from(loads) * 16.0, false, |stream| ready.queue(stream))?;
    let sums = words::read(&sums)?;
    for thread in some(threads) {
        let want = gathered(thread, row, mask, steps);
        agree(name, format!("thread {thread}"), sums[thread], want)?;
    }
    Ok(timed)
}

/// The exclusive or of all words that a thread of `gather.cu` reads.
fn gathered(thread: usize, row: usize, mask: u32, steps: i32) -> u32 {
    let lanes = row / 16;
    let piece = (thread % lanes * 16) as u32;
    let mut state = mix((thread / lanes) as u32);
    let mut sum = 0;
    for _ in 0..steps {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let first = (state ^ state >> 15) & mask | piece;
        for k in 0..IN_FLIGHT {
            let word = (first ^ mix(k) & mask) / 4;
            sum ^= mix(word) ^ mix(word + 1) ^ mix(word + 2) ^ mix(word + 3);
        }
    }
    sum
}

fn fma(bench: &Bench, dtype: Dtype) -> Result<Timed> {
    // Steps of 16 multiply-adds. More would exceed the largest integer that f16 counts to.
    const STEPS: u32 = 124;
    const CHAINS: u32 = 8;
    let device = bench.device();
    let kernel = fma_kernel(device.arch(), dtype);
    // As many blocks as are resident at once.
    let function = jit::load(device, &kernel.unit)?.function(Kernel::ENTRY)?;
    let at = kernel.grid(device.sms() * function.occupancy(kernel.threads, 0)?);
    let threads = at.grid[0] as usize * kernel.threads as usize;
    let sums = words::poisoned(device, threads)?;
    let args = Counted { sums: sums.address(), one: 1.0, steps: STEPS as i32 };
    // SAFETY: the kernel takes such a structure, and every thread writes one sum; the memory lives
    // to the end.
    let ready = unsafe { Ready::new(device, &kernel, at, None, args)? };
    let wide = if dtype == Dtype::F16 { 2 } else { 1 };
    let count = wide * CHAINS * 16 * STEPS;
    let timed = bench.time(2.0 * threads as f64 * f64::from(count), false, |stream| ready.queue(stream))?;
    let sums = words::read(&sums)?;
    for (thread, &sum) in sums.iter().enumerate() {
        let start: u32 = (0..CHAINS).map(|k| thread as u32 % 32 + k).sum();
        agree(&format!("fma-{dtype}"), format!("thread {thread}"), sum, wide * start + count)?;
    }
    Ok(timed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_all_different() {
        let all = Ceiling::all();
        let names: std::collections::BTreeSet<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!((names.len(), all.len()), (13, 13));
        assert!(names.contains("gather-l1-128") && names.contains("shared-conflicts-1"), "{names:?}");
    }

    #[test]
    fn what_is_gathered_depends_on_every_step_and_thread() {
        let sum = |thread, steps| gathered(thread, 128, (64 << 10) - 128, steps);
        assert!(sum(0, 1) != 0 && sum(0, 1) != sum(0, 2) && sum(0, 2) != sum(1, 2) && sum(0, 2) != sum(8, 2));
    }
}
