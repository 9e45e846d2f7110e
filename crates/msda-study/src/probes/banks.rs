//! `shared.cu`: loads from shared memory, and a model of their cost.
//!
//! Shared memory has 32 banks of 4 bytes and delivers one word per bank and cycle: a *wavefront*.
//! Lanes that load different words of one bank are served one after another; lanes that load the
//! same word are served together. Loads of 8 bytes are served for half a warp at a time, loads of
//! 16 bytes for a quarter.
#![allow(unsafe_code)]

use msda::Result;
use msda::rng::Rng;
use msda_cuda::driver::Arch;

use super::bench::{Bench, Timed};
use super::kernel::{Kernel, Ready, arguments};
use super::words::{self, mix, some};
use super::{Prober, agree, lower};
use crate::listed::listed;

pub(super) const NAME: &str = "banks";

const BANKS: usize = 32;
const LANES: usize = 32;
/// Warps per block, loads per warp, and words of shared memory.
const WARPS: usize = 32;
const LOADS: usize = 8;
const WORDS: usize = 8192;

/// Wavefronts of one load of a warp: `width` bytes (4, 8 or 16) at each of these byte addresses,
/// which are multiples of `width`. Fewer than 32 addresses mean that some lanes are inactive.
fn wavefronts(addresses: &[u32], width: u32) -> u32 {
    let together = LANES * 4 / width.max(4) as usize;
    let words = |address: &u32| (0..width / 4).map(move |i| address / 4 + i).collect::<Vec<_>>();
    let of_part = |part: &[u32]| {
        let mut wanted: Vec<u32> = part.iter().flat_map(words).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut banks = [0; BANKS];
        wanted.iter().for_each(|word| banks[*word as usize % BANKS] += 1);
        banks.into_iter().max().unwrap_or(0)
    };
    addresses.chunks(together).map(of_part).sum()
}

listed! {
    /// How lanes load rows of 32 `f16` channels from shared memory.
    pub(super) enum Access {
        /// Sixteen lanes per row, two channels per lane: two random rows per load.
        Half2,
        /// One random row per lane, the same two channels of each row.
        Column,
        /// Four lanes per row, eight channels per lane: eight random rows per load.
        Vector,
    }
}

/// Channels per row.
const CHANNELS: u32 = 32;

/// Row pitches in channels: dense, and padded by 2 and by 8.
pub(super) const PITCHES: [u32; 3] = [CHANNELS, CHANNELS + 2, CHANNELS + 8];

/// The addresses that the warps of a block load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    name: String,
    width: u32,
    /// Byte offsets into shared memory, by warp, load and lane.
    places: Vec<[u32; LANES]>,
}

impl Pattern {
    /// Random rows with a pitch of `pitch` channels. None if they would not be aligned.
    fn rows(access: Access, pitch: u32) -> Option<Self> {
        const ROWS: usize = 256;
        let width = if access == Access::Vector { 16 } else { 4 };
        if !(pitch * 2).is_multiple_of(width) {
            return None;
        }
        let mut rng = Rng::new(u64::from(pitch));
        let name = format!("{} with a pitch of {pitch}", lower(access));
        Some(Self::new(name, width, || {
            let rows: [u32; LANES] = std::array::from_fn(|_| rng.below(ROWS) as u32 * pitch * 2);
            let channels = rng.below(CHANNELS as usize / 2) as u32 * 4;
            std::array::from_fn(|lane| match access {
                Access::Half2 => rows[lane / 16] + lane as u32 % 16 * 4,
                Access::Column => rows[lane] + channels,
                Access::Vector => rows[lane / 4] + lane as u32 % 4 * 16,
            })
        }))
    }

    /// 16 bytes per lane of random rows; `degree` lanes (1, 2, 4 or 8) of each quarter of a warp
    /// use the same banks.
    pub(super) fn conflicts(degree: u32) -> Self {
        const ROW: u32 = 128;
        let mut rng = Rng::new(u64::from(degree));
        Self::new(format!("conflicts of {degree}"), 16, || {
            let row = rng.below(WORDS * 4 / ROW as usize) as u32;
            std::array::from_fn(|lane| {
                let (row, eighth) = (row ^ lane as u32, lane as u32 % 8);
                row * ROW + eighth / degree.max(1) * degree * 16 % ROW
            })
        })
    }

    fn new(name: String, width: u32, mut load: impl FnMut() -> [u32; LANES]) -> Self {
        Self { name, width, places: (0..WARPS * LOADS).map(|_| load()).collect() }
    }

    /// Mean wavefronts per load, by the model.
    fn wavefronts(&self) -> f64 {
        let all: u32 = self.places.iter().map(|load| wavefronts(load, self.width)).sum();
        f64::from(all) / self.places.len() as f64
    }

    /// Wavefronts per load without conflicts.
    fn fewest(&self) -> u32 {
        self.width / 4
    }

    /// The sum of the words that a thread of the block loads in one step.
    fn sum(&self, thread: usize) -> u32 {
        let (warp, lane) = (thread / LANES, thread % LANES);
        let loads = &self.places[warp * LOADS..][..LOADS];
        let words = loads.iter().flat_map(|load| (0..self.width / 4).map(move |i| load[lane] / 4 + i));
        words.fold(0, |sum, word| sum.wrapping_add(mix(word)))
    }
}

arguments! {
    /// The argument of `shared.cu`.
    Args { places: u64, sums: u64, cycles: u64, steps: i32 }
}

fn kernel(arch: Arch, width: u32) -> Kernel {
    Kernel::new::<Args>("probes/shared.cu", format!("shared-{width}"), arch, (WARPS * LANES) as u32)
        .define("WIDTH", width)
        .define("COUNT", WORDS)
}

pub(super) fn kernels(arch: Arch) -> Vec<Kernel> {
    [4, 16].map(|width| kernel(arch, width)).into()
}

/// `probe.banks.pitch-P.ACCESS.*`
pub(super) fn probe(prober: &mut Prober<'_>) -> anyhow::Result<()> {
    for pitch in PITCHES {
        for access in Access::ALL {
            let name = format!("{NAME}.pitch-{pitch}.{}", lower(access));
            prober.progress.step(&format!("{NAME}: {} with a row pitch of {pitch}", lower(access)));
            // Some pitches do not align 16-byte accesses.
            let Some(pattern) = Pattern::rows(access, pitch) else { continue };
            let Some((_, cycles)) = prober.found.got(&name, run(&prober.bench, &pattern))? else { continue };
            let wavefronts = pattern.wavefronts();
            let conflicts = wavefronts / f64::from(pattern.fewest());
            let all =
                [("cycles", cycles, "cycles"), ("wavefronts", wavefronts, ""), ("conflicts", conflicts, "x")];
            prober.found.push(&name, all);
        }
    }
    Ok(())
}

/// Times a pattern with one block per SM. Also returns the mean SM cycles per load of a warp.
pub(super) fn run(bench: &Bench, pattern: &Pattern) -> Result<(Timed, f64)> {
    const STEPS: i32 = 256;
    let device = bench.device();
    let kernel = kernel(device.arch(), pattern.width);
    let blocks = device.sms();
    let threads = blocks as usize * WARPS * LANES;
    let bytes: Vec<u8> = pattern.places.iter().flatten().flat_map(|place| place.to_le_bytes()).collect();
    let mut places = device.alloc(bytes.len())?;
    places.write(0, &bytes)?;
    let sums = words::poisoned(device, threads)?;
    let cycles = device.alloc(blocks as usize * 8)?;
    let args =
        Args { places: places.address(), sums: sums.address(), cycles: cycles.address(), steps: STEPS };
    // SAFETY: the kernel takes such a structure; places are within the words it has, a sum is
    // written for each thread and a number for each block; the memory lives to the end.
    let ready = unsafe { Ready::new(device, &kernel, kernel.grid(blocks), None, args)? };
    let loads = (WARPS * LOADS) as f64 * f64::from(STEPS);
    let work = f64::from(blocks) * loads * LANES as f64 * f64::from(pattern.width);
    let timed = bench.time(work, false, |stream| ready.queue(stream))?;
    let sums = words::read(&sums)?;
    for thread in some(threads) {
        let want = pattern.sum(thread % (WARPS * LANES)).wrapping_mul(STEPS as u32);
        agree(&pattern.name, format!("thread {thread}"), sums[thread], want)?;
    }
    let cycles = words::numbers(&cycles, i64::from_le_bytes)?;
    let mean = cycles.iter().sum::<i64>() as f64 / f64::from(blocks);
    Ok((timed, mean / loads))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(address: impl Fn(u32) -> u32) -> Vec<u32> {
        (0..32).map(address).collect()
    }

    #[test]
    fn wavefronts_are_words_of_the_fullest_bank() {
        // Neighbours, one word for all, every second word, one bank.
        for (stride, fronts) in [(4, 1), (0, 1), (8, 2), (64, 16), (128, 32), (132, 1), (68, 1)] {
            assert_eq!(wavefronts(&lanes(|lane| lane * stride), 4), fronts, "{stride}");
        }
        // Wider loads are served in parts: neighbours, one address, a column.
        for (width, stride, fronts) in
            [(8, 8, 2), (8, 0, 2), (8, 128, 32), (16, 16, 4), (16, 0, 4), (16, 128, 32), (16, 144, 4)]
        {
            assert_eq!(wavefronts(&lanes(|lane| lane * stride), width), fronts, "{width} {stride}");
        }
        assert_eq!((wavefronts(&[], 4), wavefronts(&[0, 128, 256], 4), wavefronts(&[0; 9], 16)), (0, 3, 2));
    }

    #[test]
    fn conflicts_are_of_the_degree_that_was_asked_for() {
        for degree in [1, 2, 4, 8] {
            let pattern = Pattern::conflicts(degree);
            assert_eq!(pattern.wavefronts(), f64::from(pattern.fewest() * degree));
            assert!(pattern.places.iter().flatten().all(|place| *place <= WORDS as u32 * 4 - 16));
        }
    }

    /// Two rows of 64 bytes conflict every second time; padded by two channels they nearly always
    /// do. Padding helps only if each lane loads a row of its own.
    #[test]
    fn padding_helps_columns_and_hurts_rows() {
        let fronts = |access, pitch| Pattern::rows(access, pitch).map(|pattern| pattern.wavefronts());
        // Means of 20,000 simulated random loads, and the deviation of the mean of 256.
        for (access, pitch, mean, deviation) in [
            (Access::Half2, 32, 1.491, 0.031),
            (Access::Half2, 34, 1.964, 0.012),
            (Access::Half2, 40, 1.864, 0.021),
            (Access::Column, 32, 17.128, 0.107),
            (Access::Column, 34, 3.155, 0.04),
            (Access::Column, 40, 6.511, 0.068),
            (Access::Vector, 32, 5.984, 0.062),
            (Access::Vector, 40, 7.478, 0.042),
        ] {
            let got = fronts(access, pitch);
            let near = got.is_some_and(|got| (got - mean).abs() < 4.0 * deviation);
            assert!(near, "{access:?} {pitch}: {got:?} is not near {mean}");
        }
        assert_eq!(fronts(Access::Vector, 34), None);
        for (access, pitch) in Access::ALL.into_iter().flat_map(|a| PITCHES.map(|p| (a, p))) {
            let Some(pattern) = Pattern::rows(access, pitch) else { continue };
            assert!(pattern.places.iter().flatten().all(|place| place % pattern.width == 0));
            assert!(pattern.places.iter().flatten().all(|place| *place + pattern.width <= WORDS as u32 * 4));
            assert_ne!(pattern.sum(0), pattern.sum(1));
        }
    }
}
