//! `backward/gaps.cu`: zeros between levels and in rings.

use super::tiles::{TileJob, TileKernel};
use crate::kernels::Call;
use crate::kernels::options::BLOCK;
use crate::request::Levels;

/// Warps of a block.
const WARPS: usize = BLOCK as usize / 32;

/// Adds the stage that sets positions between levels and in rings to zero; with `all`, pixels too.
pub(super) fn add(job: &TileJob<'_>, call: &mut Call, all: bool) {
    let p = job.request.problem;
    let warps = p.positions().div_ceil(32).saturating_mul(p.batch());
    // Level sizes on the device usually leave no gaps, and then every block exits at once.
    let blocks_per_sm = if job.request.levels == Levels::Device { 1 } else { 8 };
    let blocks = warps.div_ceil(WARPS).clamp(1, job.target.sms as usize * blocks_per_sm);
    let why = "sets the gradient of value to zero between levels and in rings";
    TileKernel::new(job, "backward/gaps.cu", "gaps", 1).define("CLEAR_ALL", u8::from(all)).run(
        call,
        "msda_backward_gaps",
        [blocks, 1],
        BLOCK as usize,
        0,
        why,
    );
}
