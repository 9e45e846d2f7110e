//! `backward/sort.cu`: sorts the samples of each plane and level by their bins.

use super::tiles::{LEVEL_BYTES, OWN_SHARED, SAMPLE_ALIGN, TileJob, TileKernel, TileSizes, common_points};
use crate::kernels::Call;
use crate::request::Request;
use crate::target::Target;

/// Samples that a block sorts at a time: enough to hide what a block does once.
const BATCH_SAMPLES: usize = 4096;

/// The most blocks per SM, because of registers.
const MOST_BLOCKS_PER_SM: usize = 5;

/// The most waves of blocks that sort before and beside the gradients of locations and weights.
/// Measured: two and three waves gain, six do not.
const MOST_EARLY_WAVES: usize = 3;

/// Shared memory of the counters of a block, if three blocks are to fit an SM of `sm_90`.
const COUNT_BYTES: usize = 70 << 10;

/// The most shared memory that a block takes to sort by counting. Five such blocks fit an SM of
/// `sm_90`.
const COUNTING_BYTES: usize = 40 << 10;

/// Warps of a block, at most; and of a block that sorts more samples than `BATCH_SAMPLES` at once.
const WARPS: usize = 8;
const LARGE_WARPS: usize = 32;

/// Bits of the digits that a block sorts by.
const DIGIT_BITS: usize = 8;

/// Sizes of a block that sorts.
pub(super) struct SortSizes {
    /// Samples that it sorts at a time: a multiple of 128.
    pub(super) batch_samples: usize,
    threads: usize,
    /// The bins of a level may not fit 16 bits.
    wide_keys: bool,
    shared_bytes: usize,
    /// Blocks of the stage that sorts: one per plane, level and chunk.
    blocks: usize,
    /// Sorting need not wait for the gradients of locations and weights.
    pub(super) early: bool,
}

impl SortSizes {
    pub(super) fn new(request: &Request<'_>, target: &Target, sizes: &TileSizes) -> Self {
        let wide_keys = sizes.bins.min(sizes.level_bins) >= 0xffff;
        // Keys, twice, and ranks.
        let bytes = 2 * if wide_keys { 8 } else { 4 } + 2;
        let room = |warps: usize| {
            let digits = warps * (1 << DIGIT_BITS) * 2;
            let own = OWN_SHARED + LEVEL_BYTES * request.problem.levels().len() + digits;
            target.shared().saturating_sub(own)
        };
        // A large chunk is sorted at once if it fits, by a block that has an SM for itself. Batches
        // would take longer.
        let fits = bytes * sizes.chunk_samples <= room(LARGE_WARPS);
        let (warps, most) = match sizes.chunk_samples {
            chunk if chunk > BATCH_SAMPLES && fits => (LARGE_WARPS, chunk),
            _ => (WARPS, BATCH_SAMPLES),
        };
        let room = room(warps);
        let batch = (room / bytes).min(most) / SAMPLE_ALIGN * SAMPLE_ALIGN;
        let batch_samples = batch.clamp(SAMPLE_ALIGN, sizes.chunk_samples);
        // Chunks of several batches are counted first. If not all counters have room, the samples
        // are located again for each part of the bins, so the parts are as large as possible.
        let counters = match 4 * sizes.level_bins {
            _ if sizes.chunk_samples == batch_samples => 0,
            bytes if bytes <= COUNT_BYTES.min(room) => bytes,
            _ => room,
        };
        // To sort by counting: keys, slots, and a counter of 16 bits per bin. If they take more,
        // `sort.cu` does without.
        let counting = 6 * batch_samples + 2 * (sizes.level_bins + 16);
        let most = if warps == WARPS { COUNTING_BYTES } else { bytes * batch_samples };
        let counting = if wide_keys || counting > most.min(room) { 0 } else { counting };
        let shared_bytes = (batch_samples * bytes).max(counters).max(counting);
        let own = target.shared() - room;
        let per_sm = (target.shared() / (shared_bytes + own)).clamp(1, MOST_BLOCKS_PER_SM);
        let levels = request.problem.levels().len();
        let blocks = sizes.planes.saturating_mul(sizes.chunks).saturating_mul(levels);
        Self {
            batch_samples,
            threads: 32 * (batch_samples / 32).min(warps).next_power_of_two(),
            wide_keys,
            shared_bytes,
            blocks,
            early: blocks.div_ceil(per_sm * target.sms as usize) <= MOST_EARLY_WAVES,
        }
    }
}

/// Adds the stage that sorts, and the regions of its results to the job.
pub(super) fn add(job: &mut TileJob<'_>, sort: &SortSizes, call: &mut Call) {
    let (p, sizes) = (job.request.problem, &job.sizes);
    let bytes = if sizes.wide_ends() { 4 } else { 2 };
    let records = p.queries().saturating_mul(p.samples()).saturating_mul(bytes);
    let ends = sizes.bins.saturating_mul(sizes.chunks).saturating_mul(bytes);
    job.records = Some(call.arena.reserve(records.saturating_mul(sizes.planes)));
    job.ends = Some(call.arena.reserve(ends.saturating_mul(sizes.planes)));
    // As many samples as divide the points of each level and fit 16 bytes.
    let points = common_points(job.request, (16 / (2 * p.types().locations.size())).max(1));
    let kernel = TileKernel::new(job, "backward/sort.cu", "sort", points);
    let (align, wide) = (kernel.location_align, if sort.wide_keys { "-wide" } else { "" });
    kernel
        .key(&format!("-b{}-n{points}-a{align}{wide}", sort.threads))
        .define("THREADS", sort.threads)
        .define("POINTS_PER_LOAD", points)
        .define("WIDE_KEYS", u8::from(sort.wide_keys))
        .define("HOST_DIGIT_BITS", DIGIT_BITS)
        .run(
            call,
            "msda_sort",
            [sort.blocks, 1],
            sort.threads,
            sort.shared_bytes,
            "sorts samples by image row and strip",
        );
}
