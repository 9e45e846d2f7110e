//! `backward/value_few.cu`: the gradient of value from few queries, without sorting their samples.

use msda::Role;

use super::matrix::Chunks;
use super::tiles::{
    LEVEL_BYTES, OWN_SHARED, TileJob, TileKernel, TileSizes, common_points, level_samples, tiles_of,
};
use crate::kernels::Call;
use crate::kernels::division::aligned;
use crate::request::{Levels, Request, Scatter, Slot};
use crate::target::Target;

/// Samples of a plane and level up to which this kernel is used, if shared memory has room for
/// them.
const MAX_SAMPLES: usize = 8192;

/// The most levels.
const MAX_LEVELS: usize = 64;

/// Warps of a block.
const WARPS: usize = 8;

/// Shared memory of a warp.
const STAGE_BYTES: usize = 32 * 20 + 1024;

/// Shared memory that a query takes in the fused form. The warps' own is used, if that is enough.
const SOFTMAX_BYTES: usize = 8;

/// Shared memory that a level takes besides [`LEVEL_BYTES`]: `Runs`.
const RUN_BYTES: usize = 8;

/// How the kernel computes a request.
pub(super) struct Few {
    chunks: Chunks,
    /// The most tiles of a run.
    run_tiles: usize,
    /// Words of a tile's bits per lane.
    words: usize,
    blocks_per_sm: usize,
    /// Shared memory of a block.
    bytes: usize,
    /// Runs of all planes.
    runs: usize,
}

impl Few {
    /// None if the kernel does not take the request.
    pub(super) fn new(request: &Request<'_>, target: &Target, sizes: &TileSizes) -> Option<Self> {
        let p = request.problem;
        let samples = level_samples(request);
        let pixels = p.positions().saturating_mul(sizes.planes);
        let few = samples <= MAX_SAMPLES && p.levels().len() <= MAX_LEVELS && pixels < 1 << 31;
        if !few || request.scatter != Scatter::Ordered {
            return None;
        }
        let chunks = Chunks::new(request, target)?;
        let element = p.types().value.size();
        let words = samples.div_ceil(1024).max(1);
        let fused = request.operands.reference_kind().is_some();
        let softmax = if fused { p.queries() * SOFTMAX_BYTES } else { 0 };
        let softmax = if softmax > WARPS * STAGE_BYTES { softmax } else { 0 };
        let with = |run_tiles: usize| {
            let rows = p.queries() * chunks.channels * element + softmax;
            let bytes = WARPS * STAGE_BYTES + rows + run_tiles * samples.div_ceil(32) * 4 + samples * 12;
            // Three blocks of 16-bit values would fit, but were slower: registers are few.
            let own = OWN_SHARED + (LEVEL_BYTES + RUN_BYTES) * p.levels().len();
            let blocks_per_sm = (target.shared() / (bytes + own)).min(2);
            let runs_of = |tiles: usize| tiles.div_ceil(run_tiles);
            let runs: usize = match request.levels {
                Levels::Host => p.levels().iter().map(|l| runs_of(tiles_of(l))).sum(),
                Levels::Device => runs_of(sizes.tiles) + p.levels().len(),
            };
            Self { chunks, run_tiles, words, blocks_per_sm, bytes, runs: runs.saturating_mul(sizes.planes) }
        };
        // Each run looks at all samples of its plane and level, so long runs cost less. But there
        // must be enough runs to keep all SMs busy.
        let busy = |few: &Self| 3 * few.runs >= 4 * few.blocks_per_sm * target.sms as usize;
        let fits = |few: &Self| few.blocks_per_sm > 0;
        let choices = || [128, 64, 32].into_iter().map(with).filter(fits);
        choices().find(busy).or_else(|| choices().next_back())
    }

    /// Adds the stage.
    pub(super) fn add(&self, job: &TileJob<'_>, call: &mut Call) {
        let Self { chunks, run_tiles, words, blocks_per_sm, bytes, runs } = *self;
        let points = common_points(job.request, 2);
        let kernel = TileKernel::new(job, "backward/value_few.cu", "value-few", points);
        let align = kernel.location_align;
        let (p, o) = (job.request.problem, job.request.operands);
        let size = p.types().weights.size();
        let (logits, logits_key) = match o.reference_kind() {
            Some(_) => {
                let align = aligned(p, Role::Weights, o[Slot::Weights], size, p.samples() * size);
                (align, format!("-l{align}"))
            }
            None => (size, String::new()),
        };
        chunks
            .define(kernel)
            .key(&format!("-n{points}-a{align}{logits_key}-w{words}-r{run_tiles}-x{blocks_per_sm}"))
            .define("THREADS", 32 * WARPS)
            .define("RUN_TILES", run_tiles)
            .define("STAGE_BYTES", STAGE_BYTES)
            .define("LANE_WORDS", words)
            .define("BLOCKS_PER_SM", blocks_per_sm)
            .define("POINTS", points)
            .define("HOST_RUN_BYTES", RUN_BYTES)
            .define("HOST_SOFTMAX_BYTES", SOFTMAX_BYTES)
            .define("LOGIT_ALIGN", logits)
            .run(
                call,
                "msda_backward_value_few",
                [runs.clamp(1, 1 << 30), chunks.count],
                32 * WARPS,
                bytes,
                "computes the gradient of value from few queries, without sorting their samples",
            );
    }
}
