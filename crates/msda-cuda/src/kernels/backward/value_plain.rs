//! `backward/value_plain.cu`: the gradient of value from sorted samples, for any type and shape.

use super::tiles::{TileJob, TileKernel};
use crate::kernels::Call;

/// Warps of a block.
const WARPS: usize = 4;

/// Adds the stage.
pub(super) fn add(job: &TileJob<'_>, call: &mut Call) {
    let p = job.request.problem;
    let tiles = job.sizes.tiles.saturating_mul(job.sizes.planes);
    let work = tiles.saturating_mul(p.channels().div_ceil(32));
    let blocks = work.div_ceil(WARPS).clamp(1, job.target.sms as usize * 64);
    let kernel = TileKernel::new(job, "backward/value_plain.cu", "value-plain", 1);
    let align = kernel.location_align;
    kernel.key(&format!("-a{align}")).define("WARPS", WARPS).run(
        call,
        "msda_backward_value_plain",
        [blocks, 1],
        32 * WARPS,
        0,
        "computes the gradient of value tile by tile",
    );
}
