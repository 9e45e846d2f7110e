//! `copies.cu`: fills shared memory from device memory in eight ways.
#![allow(unsafe_code)]

use msda::{Dtype, Result};

use super::kernel::Ready;
use super::words::{self, mix};
use super::{Bench, Kernel, Timed, agree};
use crate::tensor_map::{TensorMap, Tiled};
use msda_cuda::driver::{Arch, Launch, Memory};

/// Bytes per block, and the number of blocks: 48 planes of sixteen pairs of channels.
const BYTES: u32 = 80 << 10;
const BLOCKS: u32 = 48 * 16;
const THREADS: u32 = 256;

/// How shared memory is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A loop of the block, 4 bytes per thread.
    Words,
    /// A loop of the block, 16 bytes per thread.
    Vectors,
    /// The same with `cp.async`, which bypasses the registers.
    Async,
    /// The copy engine (TMA), plain bytes.
    Bulk,
    /// The copy engine (TMA), rows of a tensor.
    Tensor,
    /// Two channels of every position: 4 bytes per thread, 64 bytes apart.
    Channels,
    /// The same with `cp.async`, which bypasses the registers.
    ChannelsAsync,
    /// The same channels, one per thread and step, as the documents' program does.
    Halves,
}

impl Style {
    /// All of them. Styles that load some channels of every position come last.
    pub const ALL: [Self; 8] = [
        Self::Words,
        Self::Vectors,
        Self::Async,
        Self::Bulk,
        Self::Tensor,
        Self::Channels,
        Self::ChannelsAsync,
        Self::Halves,
    ];

    /// Its name.
    pub fn name(self) -> String {
        match self {
            Self::ChannelsAsync => "channels-async".into(),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    /// The baseline: the plain loop that reads the same bytes.
    pub fn baseline(self) -> Self {
        if self.takes_channels() { Self::Channels } else { Self::Words }
    }

    fn takes_channels(self) -> bool {
        matches!(self, Self::Channels | Self::ChannelsAsync | Self::Halves)
    }
}

/// The argument of `copies.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Args {
    data: u64,
    sums: u64,
    /// Pieces that a thread sums.
    rounds: i32,
}

/// The same with a tensor map in front.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Mapped {
    map: TensorMap,
    args: Args,
}

fn kernel(arch: Arch, style: Style) -> Kernel {
    let (file, key) = ("probes/copies.cu", format!("copies-{}", style.name()));
    let kernel = match style {
        Style::Words | Style::Vectors | Style::Channels | Style::Halves => {
            Kernel::new::<Args>(file, key, arch, THREADS)
        }
        Style::Async | Style::ChannelsAsync => Kernel::new::<Args>(file, key, arch, THREADS).since(8, 0),
        Style::Bulk => Kernel::new::<Args>(file, key, arch, THREADS).since(9, 0),
        Style::Tensor => Kernel::new::<Mapped>(file, key, arch, THREADS).since(9, 0),
    };
    kernel.define("STYLE", style as u32)
}

pub(super) fn kernels(arch: Arch) -> Vec<Kernel> {
    Style::ALL.map(|style| kernel(arch, style)).into()
}

/// The data on a device.
#[derive(Debug)]
pub struct Copies<'a> {
    bench: &'a Bench,
    data: Memory,
}

impl<'a> Copies<'a> {
    /// Fills 60 MiB of data.
    pub fn new(bench: &'a Bench) -> Result<Self> {
        Ok(Self { bench, data: words::filled(bench, (BLOCKS * BYTES) as usize)? })
    }

    /// Fills the shared memory of all blocks, with cold caches.
    pub fn run(&self, style: Style) -> Result<Timed> {
        const ALL_ROUNDS: i32 = (BYTES / 16 / THREADS) as i32;
        let device = self.bench.device();
        let kernel = kernel(device.arch(), style);
        super::needs(device, &kernel)?;
        let sums = words::poisoned(device, (BLOCKS * THREADS) as usize)?;
        let at = Launch { shared: BYTES, ..kernel.grid(BLOCKS) };
        let args = |rounds| Args { data: self.data.address(), sums: sums.address(), rounds };
        let work = f64::from(BLOCKS) * f64::from(BYTES);
        let timed = if style == Style::Tensor {
            let rows = u64::from(BLOCKS * (BYTES / 64));
            let tensor = Tiled {
                dtype: Dtype::F16,
                address: self.data.address(),
                sizes: vec![32, rows],
                strides: vec![64],
                window: vec![32, 256],
            };
            let map = TensorMap::tiled(device, &tensor)?;
            // SAFETY: the kernel takes such a structure; blocks read their parts of the data, and
            // every thread writes one sum; the memory lives to the end.
            let mut ready = unsafe { Ready::new(device, &kernel, at, Mapped { map, args: args(1) })? };
            let timed = self.bench.time(work, true, |stream| ready.queue(stream))?;
            ready.args.args = args(ALL_ROUNDS);
            self.bench.run(|stream| ready.queue(stream))?;
            timed
        } else {
            // SAFETY: as above.
            let mut ready = unsafe { Ready::new(device, &kernel, at, args(1))? };
            let timed = self.bench.time(work, true, |stream| ready.queue(stream))?;
            ready.args = args(ALL_ROUNDS);
            self.bench.run(|stream| ready.queue(stream))?;
            timed
        };
        for (block, sums) in words::read(&sums)?.chunks(THREADS as usize).enumerate() {
            let sum = sums.iter().fold(0, |sum: u32, part| sum.wrapping_add(*part));
            agree(&kernel.unit.key, format!("block {block}"), sum, expected(style, block as u32))?;
        }
        Ok(timed)
    }
}

/// The weighted sum of the words that a block loads.
fn expected(style: Style, block: u32) -> u32 {
    const WORDS: u32 = BYTES / 4;
    let word = |i: u32| match style.takes_channels() {
        true => block / 16 * 16 * WORDS + i * 16 + block % 16,
        false => block * WORDS + i,
    };
    (0..WORDS).fold(0, |sum: u32, i| sum.wrapping_add(mix(word(i)).wrapping_mul(2 * i + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_find_different_words() {
        let styles = [Style::Words, Style::Channels];
        let sums: std::collections::BTreeSet<u32> =
            styles.into_iter().flat_map(|style| (0..40).map(move |block| expected(style, block))).collect();
        assert_eq!(sums.len(), 80);
        assert_eq!(
            (Style::Bulk.baseline(), Style::ChannelsAsync.baseline()),
            (Style::Words, Style::Channels)
        );
    }
}
