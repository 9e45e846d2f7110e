//! `backward/value.cu`: the gradient of value from sorted samples, on tensor cores.

use msda::Level;

use super::matrix::Chunks;
use super::tiles::{TILE, TileJob, TileKernel, cells_of};
use crate::kernels::Call;
use crate::request::{Levels, Request};

/// Warps of a block.
const WARPS: usize = 4;

/// Samples per tile below which tiles are light.
const LIGHT: usize = 64;

/// Image rows that a warp takes at a time, that a block takes, and the samples of a warp from which
/// a block takes a level.
const ROWS: usize = 8;
const HEAVY_ROWS: usize = 4;
const HEAVY_FROM: usize = 2048;

/// Adds the stage.
pub(super) fn add(job: &TileJob<'_>, call: &mut Call, chunks: Chunks) {
    let (p, sizes, chunk) = (job.request.problem, &job.sizes, chunks.channels);
    let element = p.types().value.size();
    // Measured. Fewer blocks leave more of L1 for rows of gradients, which helps most if
    // neighbouring queries sample the same pixels.
    let per_sm = match (element, job.request.queries_are_pixels()) {
        (4, true) => 3,
        (4, false) | (_, true) => 4,
        (_, false) => 5,
    };
    let rows = (2 * 32 * chunk * element).max(1024);
    let range = if sizes.wide_ends() { 8 } else { 4 };
    // Two image rows and a column per sample; ranges of records; an image row of each warp, twice.
    let bytes = WARPS * (rows + 32 * 12 + 32 * (ROWS + 1) * range + 32 * 8 + 2 * TILE[0] * chunk * 4);
    // With few samples per tile, blocks take many units: they read the table of levels once.
    let light = p.queries() * p.samples() < LIGHT * sizes.tiles;
    let most = if light { job.target.sms as usize * per_sm * 4 } else { 1 << 30 };
    let blocks = units(job.request).saturating_mul(sizes.planes).clamp(1, most);
    let kernel = TileKernel::new(job, "backward/value.cu", "value", 1);
    let align = kernel.location_align;
    chunks
        .define(kernel)
        .key(&format!("-a{align}-x{per_sm}"))
        .define("HOST_WARPS", WARPS)
        .define("HOST_ROWS", ROWS)
        .define("HOST_HEAVY_ROWS", HEAVY_ROWS)
        .define("HOST_HEAVY_FROM", HEAVY_FROM)
        .define("BLOCKS_PER_SM", per_sm)
        .define("SHARED_BYTES", bytes)
        .run(
            call,
            "msda_backward_value",
            [blocks, chunks.count],
            32 * WARPS,
            bytes,
            "computes the gradient of value row by row, on tensor cores",
        );
}

/// Units of work per plane.
fn units(request: &Request<'_>) -> usize {
    let p = request.problem;
    if request.levels == Levels::Device {
        // Four units of 8 x 8 pixels per block, some of them at the edge of a level.
        return p.positions() / 200 + 8 * p.levels().len();
    }
    let of_level = |(level, points): (&Level, &usize)| {
        let strips = level.w.div_ceil(TILE[0]);
        let heavy = p.queries() * points * ROWS > HEAVY_FROM * cells_of(level);
        if heavy {
            strips * level.h.div_ceil(HEAVY_ROWS)
        } else {
            (strips * level.h.div_ceil(ROWS)).div_ceil(WARPS)
        }
    };
    p.levels().iter().zip(p.points()).map(of_level).sum()
}
