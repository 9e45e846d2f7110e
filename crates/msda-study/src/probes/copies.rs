//! `copies.cu`: fills shared memory from device memory in eight ways.
#![allow(unsafe_code)]

use msda::{Dtype, Result};
use msda_cuda::driver::{Arch, Launch, Memory};

use super::bench::{Bench, Timed};
use super::kernel::{Kernel, Ready, arguments};
use super::words::{self, mix};
use super::{Prober, agree, lower};
use crate::listed::listed;
use crate::tensor_map::{TensorMap, Tiled};

pub(super) const NAME: &str = "copy-styles";

/// Bytes per block, and the number of blocks: 48 planes of sixteen pairs of channels.
const BYTES: u32 = 80 << 10;
const BLOCKS: u32 = 48 * 16;
const THREADS: u32 = 256;

listed! {
    /// How shared memory is filled. Styles that load some channels of every position come last.
    pub(super) enum Style {
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
}

impl Style {
    /// The baseline: the plain loop that reads the same bytes.
    fn baseline(self) -> Self {
        if self.takes_channels() { Self::Channels } else { Self::Words }
    }

    fn takes_channels(self) -> bool {
        matches!(self, Self::Channels | Self::ChannelsAsync | Self::Halves)
    }
}

arguments! {
    /// The argument of `copies.cu`. A thread sums as many pieces as there are rounds.
    Args { data: u64, sums: u64, rounds: i32 }
}

fn kernel(arch: Arch, style: Style) -> Kernel {
    let kernel = Kernel::new::<Args>("probes/copies.cu", format!("copies-{}", lower(style)), arch, THREADS);
    let kernel = match style {
        Style::Words | Style::Vectors | Style::Channels | Style::Halves => kernel,
        Style::Async | Style::ChannelsAsync => kernel.since(8, 0),
        Style::Bulk => kernel.since(9, 0),
        Style::Tensor => kernel.mapped::<Args>().since(9, 0),
    };
    kernel.define("STYLE", style as u32)
}

pub(super) fn kernels(arch: Arch) -> Vec<Kernel> {
    Style::ALL.map(|style| kernel(arch, style)).into()
}

/// `probe.copy-styles.STYLE.*`
pub(super) fn probe(prober: &mut Prober<'_>) -> anyhow::Result<()> {
    let data = words::filled(&prober.bench, (BLOCKS * BYTES) as usize);
    let Some(data) = prober.found.got(NAME, data)? else { return Ok(()) };
    let mut times = Vec::new();
    for style in Style::ALL {
        let name = format!("{NAME}.{}", lower(style));
        prober.progress.step(&format!("{NAME}: {}", lower(style)));
        let Some(timed) = prober.found.got(&name, run(&prober.bench, &data, style))? else { continue };
        prober.found.time_and_rate(&name, &timed);
        times.push((style, timed.median()));
        // Baselines come before the styles that are compared with them.
        if let Some((_, plain)) = times.iter().find(|(other, _)| *other == style.baseline()) {
            prober.found.push(&name, [("speedup", plain / timed.median(), "x")]);
        }
    }
    Ok(())
}

/// Fills the shared memory of all blocks, with cold caches.
fn run(bench: &Bench, data: &Memory, style: Style) -> Result<Timed> {
    const ALL_ROUNDS: i32 = (BYTES / 16 / THREADS) as i32;
    let device = bench.device();
    let kernel = kernel(device.arch(), style);
    super::needs(device, &kernel)?;
    let sums = words::poisoned(device, (BLOCKS * THREADS) as usize)?;
    let at = Launch { shared: BYTES, ..kernel.grid(BLOCKS) };
    let args = |rounds| Args { data: data.address(), sums: sums.address(), rounds };
    let tensor = || Tiled {
        dtype: Dtype::F16,
        address: data.address(),
        sizes: vec![32, u64::from(BLOCKS * (BYTES / 64))],
        strides: vec![64],
        window: vec![32, 256],
    };
    let map = (style == Style::Tensor).then(|| TensorMap::tiled(device, &tensor())).transpose()?;
    // SAFETY: the kernel takes such a structure; blocks read their parts of the data, and every
    // thread writes one sum; the memory lives to the end.
    let mut ready = unsafe { Ready::new(device, &kernel, at, map, args(1))? };
    let work = f64::from(BLOCKS) * f64::from(BYTES);
    let timed = bench.time(work, true, |stream| ready.queue(stream))?;
    ready.args = args(ALL_ROUNDS);
    bench.run(|stream| ready.queue(stream))?;
    for (block, sums) in words::read(&sums)?.chunks(THREADS as usize).enumerate() {
        let sum = sums.iter().fold(0, |sum: u32, part| sum.wrapping_add(*part));
        agree(&kernel.unit.key, format!("block {block}"), sum, expected(style, block as u32))?;
    }
    Ok(timed)
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
