//! `backward/value_atomic.cu`: the gradient of value with atomics: clear, add, round.

use super::tiles::{TileJob, TileKernel};
use crate::kernels::Call;
use crate::kernels::options::{BLOCK, blocks};

/// Adds the stages.
pub(super) fn add(job: &mut TileJob<'_>, call: &mut Call) {
    let p = job.request.problem;
    let len = p.positions().saturating_mul(job.sizes.planes).saturating_mul(p.channels());
    let sums = call.arena.reserve(len.saturating_mul(p.types().value.accumulator().size()));
    call.clear(sums, "clears the sums of the gradient of value");
    job.records = Some(sums);
    let numbers = if p.channels().is_multiple_of(4) { 4 } else { 1 };
    for (entry, threads, why) in [
        (
            "msda_backward_value_atomic",
            p.output_len() / numbers,
            "adds to the gradient of value with atomics",
        ),
        ("msda_backward_value_round", len, "rounds the gradient of value"),
    ] {
        let kernel = TileKernel::new(job, "backward/value_atomic.cu", "value-atomic", 1);
        let align = kernel.location_align;
        let grid = [blocks(threads, job.target) as usize, 1];
        kernel.key(&format!("-n{numbers}-a{align}")).define("NUMBERS", numbers).run(
            call,
            entry,
            grid,
            BLOCK as usize,
            0,
            why,
        );
    }
}
