//! Test data that the host can compute: word `i` of a buffer is `mix(i)`.
#![allow(unsafe_code)]

use msda::Result;

use super::bench::Bench;
use super::kernel::{Kernel, Ready, arguments};
use msda_cuda::driver::{Arch, Device, Memory};

/// Word `i`, as `probes/data.cuh` computes it.
pub(super) fn mix(i: u32) -> u32 {
    let i = i.wrapping_mul(0x9e37_79b1);
    let i = (i ^ i >> 15).wrapping_mul(0x85eb_ca77);
    i ^ i >> 13
}

arguments! {
    /// The argument of `fill.cu`.
    Args { words: u64, count: i64 }
}

pub(super) fn kernel(arch: Arch) -> Kernel {
    Kernel::new::<Args>("probes/fill.cu", "fill", arch, 256)
}

/// Memory filled with these words, at most 16 GiB.
pub(super) fn filled(bench: &Bench, bytes: usize) -> Result<Memory> {
    let device = bench.device();
    let memory = device.alloc(bytes)?;
    let kernel = kernel(device.arch());
    let args = Args { words: memory.address(), count: (bytes / 4) as i64 };
    // SAFETY: the kernel takes such a structure and writes as many words as the memory has, which
    // lives until it ran.
    let fill = unsafe { Ready::new(device, &kernel, kernel.grid(device.sms().max(1) * 8), None, args)? };
    bench.run(|stream| fill.queue(stream))?;
    Ok(memory)
}

/// Memory for `count` words, filled with a pattern that is no result.
pub(super) fn poisoned(device: &Device, count: usize) -> Result<Memory> {
    let mut memory = device.alloc(count * 4)?;
    memory.fill(0xa5)?;
    Ok(memory)
}

/// Reads memory as 32-bit words.
pub(super) fn read(memory: &Memory) -> Result<Vec<u32>> {
    numbers(memory, u32::from_le_bytes)
}

/// Reads memory as numbers of `N` bytes.
pub(super) fn numbers<const N: usize, T>(memory: &Memory, number: fn([u8; N]) -> T) -> Result<Vec<T>> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().copied().map(number).collect())
}

/// A sample of `count` threads, evenly spread: the host checks their sums.
pub(super) fn some(count: usize) -> impl Iterator<Item = usize> {
    const CHECKED: usize = 97;
    (0..CHECKED.min(count)).map(move |i| i * count / CHECKED.min(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_differ_and_threads_are_spread() {
        let words: std::collections::BTreeSet<u32> = (0..10_000).map(mix).collect();
        assert_eq!(words.len(), 10_000);
        assert_eq!(some(3).collect::<Vec<_>>(), [0, 1, 2]);
        let some: Vec<usize> = some(100_000).collect();
        assert!(some.len() == 97 && some.windows(2).all(|w| w[0] < w[1]) && some[96] > 98_000);
    }
}
