//! What `value.cu` and `value_few.cu` share, as in `backward/matrix.cuh`: rows on tensor cores.

use msda::{Dtype, Role};

use super::tiles::TileKernel;
use crate::kernels::division::{aligned, element_size, grain, strides_fit};
use crate::kernels::pad::{self, PIECE};
use crate::request::{Request, Slot};
use crate::target::Target;

/// How rows are divided into chunks, one per warp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunks {
    /// Channels of a chunk: 8, 16 or 32.
    pub(super) channels: usize,
    /// Chunks of a row. The last one may be in part outside.
    pub(super) count: usize,
    /// No chunk is.
    whole: bool,
    /// Bytes of a row of the gradient of value that can be stored at once.
    store: usize,
    /// Rows of the gradient of the output are not aligned: the kernels read a copy.
    pub(super) pads: bool,
}

impl Chunks {
    /// None if these kernels do not take the request.
    pub(super) fn new(request: &Request<'_>, target: &Target) -> Option<Self> {
        let (p, o) = (request.problem, request.operands);
        let (value, size) = (p.types().value, p.types().value.size());
        let positions = p.positions().saturating_mul(p.batch() * p.heads());
        let strides = [Slot::Locations, Slot::Weights, Slot::GradOutput, Slot::GradValue];
        let fit = strides.iter().all(|&slot| strides_fit(o[slot], element_size(slot, p)));
        let small = p.channels() / 8 <= 65535 && positions < 1 << 32 && fit;
        let pads = !grain(p, Role::Output, o[Slot::GradOutput], size).is_multiple_of(PIECE);
        let fits = !pads || pad::fits(p, Role::Output);
        if value == Dtype::F64 || target.arch.major < 8 || p.channels() == 0 || !small || !fits {
            return None;
        }
        let channels = p.channels().next_power_of_two().clamp(8, 32);
        Some(Self {
            channels,
            count: p.channels().div_ceil(channels),
            whole: p.channels().is_multiple_of(channels),
            store: aligned(p, Role::Value, o[Slot::GradValue], size, p.channels() * size),
            pads,
        })
    }

    /// Adds the macros and the part of the key of a kernel.
    pub(super) fn define<'a>(&self, kernel: TileKernel<'a>) -> TileKernel<'a> {
        let key = match (self.whole, self.store) {
            (true, PIECE) => format!("-c{}", self.channels),
            (whole, store) => format!("-c{}{}-s{store}", self.channels, if whole { "" } else { "-part" }),
        };
        kernel
            .key(&key)
            .define("CHUNK", self.channels)
            .define("WHOLE_CHUNKS", u8::from(self.whole))
            .define("STORE_BYTES", self.store)
    }
}
