//! `backward/value_plain.cu`: the gradient of value from sorted samples, for any type and shape.

use msda::Dtype;

use super::tiles::{LEVEL_BYTES, OWN_SHARED, TILE, TileJob, TileKernel};
use crate::kernels::Call;

/// The most warps of a block. Each has its own sums in shared memory.
const WARPS: usize = 8;

/// Adds the stage.
pub(super) fn add(job: &TileJob<'_>, call: &mut Call) {
    let p = job.request.problem;
    let tiles = job.sizes.tiles.saturating_mul(job.sizes.planes);
    let work = tiles.saturating_mul(p.channels().div_ceil(32));
    let blocks = work.clamp(1, job.target.sms as usize * 64);
    let sums = TILE[0] * TILE[1] * 32 * if p.types().value == Dtype::F64 { 8 } else { 4 };
    let room = job.target.shared() - OWN_SHARED - LEVEL_BYTES * p.levels().len();
    let warps = (room / sums).min(WARPS);
    let kernel = TileKernel::new(job, "backward/value_plain.cu", "value-plain", 1);
    let align = kernel.location_align;
    kernel.key(&format!("-a{align}-w{warps}")).define("WARPS", warps).run(
        call,
        "msda_backward_value_plain",
        [blocks, 1],
        32 * warps,
        warps * sums,
        "computes the gradient of value tile by tile",
    );
}
