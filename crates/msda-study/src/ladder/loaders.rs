//! The host side of `loaders.cuh`: warps that only load locations and weights.

use msda_cuda::jit::Unit;

use super::Ask;

/// Buffers between the loading warps and the others.
const BUFFERS: usize = 3;

/// The most samples per query in a buffer.
const MAX_SAMPLES: usize = 8;

/// Bytes of a sample in a buffer, and of a buffer's two barriers.
const SAMPLE: usize = 12;
const BARRIERS: usize = 16;

/// A block with loading warps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loaders {
    warps: usize,
    threads: usize,
    /// Lanes per query.
    lanes: usize,
    samples_per_pass: usize,
}

impl Loaders {
    /// As many samples per pass as fit `bytes` of shared memory; at least one.
    pub(super) fn new(ask: &Ask<'_>, warps: usize, threads: usize, lanes: usize, bytes: usize) -> Self {
        let mut loaders = Self { warps, threads, lanes, samples_per_pass: 1 };
        for n in [2, 4, MAX_SAMPLES] {
            let next = Self { samples_per_pass: n, ..loaders };
            if ask.p.samples().is_multiple_of(n) && next.bytes() <= bytes {
                loaders = next;
            }
        }
        loaders
    }

    /// Queries per tile.
    pub(super) fn queries(&self) -> usize {
        (self.threads - self.warps * 32) / self.lanes
    }

    /// Shared memory of the buffers: `InputBuffers` of the kernel.
    pub(super) fn bytes(&self) -> usize {
        let inputs = BUFFERS * self.samples_per_pass * self.queries() * SAMPLE;
        (inputs.next_multiple_of(8) + BUFFERS * BARRIERS).next_multiple_of(16)
    }

    /// The macros of `loaders.cuh`.
    pub(super) fn define(&self, unit: Unit, ask: &Ask<'_>) -> Unit {
        let unit = unit
            .define("LOADERS", self.warps)
            .define("SAMPLES_PER_PASS", self.samples_per_pass)
            .define("BUFFERS", BUFFERS);
        ask.input_alignment(unit, self.samples_per_pass)
    }
}
