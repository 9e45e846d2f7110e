//! `backward/value.cu`: the gradient of value from sorted samples, on tensor cores.

use super::matrix::Chunks;
use super::tiles::{LEVEL_BYTES, OWN_SHARED, TILE, TileJob, TileKernel};
use crate::kernels::Call;
use crate::request::{Levels, Request};

/// Warps of a block.
const WARPS: usize = 4;

/// Samples per tile below which tiles are light.
const LIGHT: usize = 64;

/// Image rows that a warp takes at a time. If all units are alike, because there is one level, and
/// there are at most `MOST_WAVES` of blocks, other rows may fill the last wave better.
const ROWS: usize = 8;
const OTHER_ROWS: [usize; 4] = [10, 12, 14, 16];
const MOST_WAVES: usize = 3;

/// Image rows that a block takes, and the samples of a warp from which a block takes a level.
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
    let row_bytes = (2 * 32 * chunk * element).max(1024);
    let range = if sizes.wide_ends() { 8 } else { 4 };
    // Two image rows and a column per sample; ranges of records; an image row of each warp, twice.
    let bytes_of = |rows: usize| {
        WARPS * (row_bytes + 32 * 12 + 32 * (rows + 1) * range + 32 * 8 + 2 * TILE[0] * chunk * 4)
    };
    let own = OWN_SHARED + LEVEL_BYTES * p.levels().len();
    let fits = |rows: &usize| per_sm * (bytes_of(*rows) + own) <= job.target.shared();
    let concurrent = job.target.sms as usize * per_sm;
    let blocks_of = |rows: usize| units(job.request, rows).saturating_mul(sizes.planes);
    let waves = |rows: usize| blocks_of(rows).saturating_mul(chunks.count).div_ceil(concurrent);
    // A warp visits the row above its own ones too.
    let cost = |rows: &usize| waves(*rows) * (rows + 1);
    let alike = p.levels().len() == 1 && waves(ROWS) <= MOST_WAVES;
    let others = OTHER_ROWS.into_iter().filter(|rows| alike && fits(rows));
    let rows = [ROWS].into_iter().chain(others).min_by_key(cost).unwrap_or(ROWS);
    let bytes = bytes_of(rows);
    // With few samples per tile, blocks take many units: they read the table of levels once.
    let light = p.queries() * p.samples() < LIGHT * sizes.tiles;
    let most = if light { 4 * concurrent } else { 1 << 30 };
    let blocks = blocks_of(rows).clamp(1, most);
    let kernel = TileKernel::new(job, "backward/value.cu", "value", 1);
    let align = kernel.location_align;
    chunks
        .define(kernel)
        .key(&format!("-a{align}-x{per_sm}-r{rows}"))
        .define("HOST_WARPS", WARPS)
        .define("HOST_ROWS", rows)
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

/// Units of work per plane, if a warp takes so many image rows at a time.
fn units(request: &Request<'_>, rows: usize) -> usize {
    let p = request.problem;
    let of_level = |w: usize, h: usize, points: usize| {
        let strips = w.div_ceil(TILE[0]);
        let heavy = p.queries() * points * rows > HEAVY_FROM * strips * h;
        if heavy { strips * h.div_ceil(HEAVY_ROWS) } else { (strips * h.div_ceil(rows)).div_ceil(WARPS) }
    };
    match (request.levels, p.points()) {
        (Levels::Host, points) => {
            p.levels().iter().zip(points).map(|(level, &points)| of_level(level.w, level.h, points)).sum()
        }
        // Probably a square.
        (Levels::Device, &[points]) => {
            let side = p.positions().isqrt().max(1);
            of_level(p.positions().div_ceil(side), side, points)
        }
        // Four units of 8 x 8 pixels per block, some of them at the edge of a level.
        (Levels::Device, _) => p.positions() / 200 + 8 * p.levels().len(),
    }
}
