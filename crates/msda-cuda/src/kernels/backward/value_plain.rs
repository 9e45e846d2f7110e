//! `backward/value_plain.cu`: the gradient of value from sorted samples, for any type and shape.

use super::tiles::{LEVEL_BYTES, OWN_SHARED, TileJob, TileKernel};
use crate::kernels::Call;

/// Warps of a block, if shared memory has room for as many sums.
const WARPS: usize = 4;

/// Adds the stage.
pub(super) fn add(job: &TileJob<'_>, call: &mut Call) {
    let p = job.request.problem;
    let of_warp = 32 * 32 * p.types().value.accumulator().size();
    let room = job.target.shared().saturating_sub(OWN_SHARED + LEVEL_BYTES * p.levels().len());
    let warps = [WARPS, WARPS / 2].into_iter().find(|n| n * of_warp <= room).unwrap_or(1);
    let tiles = job.sizes.tiles.saturating_mul(job.sizes.planes);
    let work = tiles.saturating_mul(p.channels().div_ceil(32));
    let blocks = work.div_ceil(warps).clamp(1, job.target.sms as usize * 64);
    let kernel = TileKernel::new(job, "backward/value_plain.cu", "value-plain", 1);
    let align = kernel.location_align;
    kernel.key(&format!("-a{align}")).define("WARPS", warps).run(
        call,
        "msda_backward_value_plain",
        [blocks, 1],
        32 * warps,
        warps * of_warp,
        "computes the gradient of value tile by tile",
    );
}
