//! The gradient of value: `backward/gaps.cu`, `value_few.cu`, `sort.cu`, `value.cu`,
//! `value_plain.cu` and `value_atomic.cu`.
//!
//! `backward/tiles.cuh` explains the words: plane, tile, bin, chunk, record, ends.

use msda::{Dtype, Layout, Role};

use super::rows::{aligned, grain, strides_fit};
use super::{Args, Call, Prepared, Region, Table, blocks, with_options};
use crate::driver::Launch;
use crate::jit::Unit;
use crate::request::{Levels, Request, Scatter, Slot, Target};

/// Pixels of a tile.
const TILE: [usize; 2] = [8, 4];

/// Warps of a block of `value.cu`.
const WARPS: usize = 4;

/// Samples per tile below which tiles are light.
const LIGHT: usize = 64;

/// Image rows that a warp of `value.cu` takes at a time, that a block takes, and the samples of a
/// warp from which a block takes a level. As in `value.cu`.
const ROWS: usize = 8;
const HEAVY_ROWS: usize = 4;
const HEAVY_FROM: usize = 2048;

/// Samples that a block of `sort.cu` sorts at a time: enough to hide what a block does once. Five
/// such blocks fit an SM of `sm_90`.
const BATCH_SAMPLES: usize = 4096;

/// Samples of a chunk at least.
const CHUNK_SAMPLES: usize = 2048;

/// The most chunks of a plane and level: a lane of `value.cu` takes one.
const MAX_CHUNKS: usize = 32;

/// Levels begin at multiples of so many bins: `BIN_ALIGN` in `tiles.cuh`.
const BIN_ALIGN: usize = 16;

/// Shared memory of the counters of a block of `sort.cu`, if three blocks are to fit an SM of
/// `sm_90`.
const COUNT_BYTES: usize = 70 << 10;

/// The most shared memory that a block of `sort.cu` takes to sort by counting. Five such blocks fit
/// an SM of `sm_90`.
const COUNTING_BYTES: usize = 40 << 10;

/// Warps of a block of `sort.cu`.
const SORT_WARPS: usize = 8;

/// Digits of the keys that a block of `sort.cu` sorts by.
const DIGITS: usize = 256;

/// Shared memory that a level takes in each kernel (`TileLevel`), and in `value_few.cu` besides
/// (`Runs`).
const LEVEL_BYTES: usize = 40;
const RUN_BYTES: usize = 8;

/// Shared memory that blocks take besides, and that the GPU takes for itself.
const OWN_SHARED: usize = 3072;

/// Samples of a plane and level up to which `value_few.cu` computes the gradient of value.
const FEW: usize = 4096;

/// Warps of a block of `value_few.cu`.
const FEW_WARPS: usize = 8;

/// Shared memory of a warp of `value_few.cu`.
const FEW_STAGE: usize = 32 * 20 + 1024;

/// Sizes of the call's tables.
struct Sizes {
    planes: usize,
    /// Tiles of a plane; if the level sizes are on the device, as many as are to be expected.
    tiles: usize,
    /// The most bins of a plane. If there are more cells, several share their bins.
    bins: usize,
    /// Samples of a chunk, and those that a block sorts at a time: multiples of 128.
    chunk_samples: usize,
    batch_samples: usize,
    /// Chunks of a plane and level at most.
    chunks: usize,
    threads: usize,
    /// The bins of a level may not fit 16 bits.
    wide_keys: bool,
    /// Records and the ends of bins may not fit 16 bits.
    wide_ends: bool,
    /// Shared memory of a block that sorts.
    sort_bytes: usize,
}

impl Sizes {
    fn new(request: &Request<'_>, target: &Target) -> Self {
        let p = request.problem;
        let levels = p.levels().len();
        // Tiles of a plane, as many as are to be expected; its bins; bins of its largest level at
        // most.
        let bins_of = |cells: usize| (2 * cells).next_multiple_of(BIN_ALIGN);
        let (tiles, bins, largest) = match request.levels {
            Levels::Host => {
                let bins = p.levels().iter().map(|level| bins_of(cells_of(level)));
                (p.levels().iter().map(tiles_of).sum(), bins.clone().sum(), bins.max().unwrap_or(0))
            }
            Levels::Device => {
                let (tiles, cells) = estimated(p.positions(), levels);
                let bins = bins_of(cells) + levels * BIN_ALIGN;
                (tiles, bins, bins)
            }
        };
        let bins = bins.min(1 << 29);
        let wide_keys = bins.min(largest) >= 0xffff;
        let samples = p.queries().saturating_mul(max_points(request)).next_multiple_of(128).max(128);
        // Few enough chunks, and no more ends than records if all levels have as many points.
        let least = samples.div_ceil(MAX_CHUNKS).max(bins / levels.max(1));
        let chunk_samples = CHUNK_SAMPLES.max(least).next_multiple_of(128).min(samples);
        // Keys, twice, and ranks.
        let bytes = 2 * if wide_keys { 8 } else { 4 } + 2;
        let own = OWN_SHARED + LEVEL_BYTES * levels + SORT_WARPS * DIGITS * 2;
        let room = target.shared().saturating_sub(own);
        let batch = (room / bytes).min(BATCH_SAMPLES) / 128 * 128;
        let batch_samples = batch.clamp(128, chunk_samples);
        // Chunks of several batches are counted first. If not all counters have room, the samples
        // are located again for each part of the bins, so the parts are as large as possible.
        let counters = match 4 * largest {
            _ if chunk_samples == batch_samples => 0,
            bytes if bytes <= COUNT_BYTES.min(room) => bytes,
            _ => room,
        };
        // To sort by counting: keys, slots, and a counter of 16 bits per bin. If they take more,
        // `sort.cu` does without.
        let counting = 6 * batch_samples + 2 * (largest + 16);
        let counting = if wide_keys || counting > COUNTING_BYTES.min(room) { 0 } else { counting };
        let warps = (batch_samples / 32).min(SORT_WARPS).next_power_of_two();
        Self {
            planes: p.batch() * p.heads(),
            tiles,
            bins,
            chunk_samples,
            batch_samples,
            chunks: samples.div_ceil(chunk_samples),
            threads: 32 * warps,
            wide_keys,
            wide_ends: chunk_samples > 0xffff,
            sort_bytes: (batch_samples * bytes).max(counters).max(counting),
        }
    }
}

/// Where the records and the ends of bins are. `value_atomic.cu` has its sums in place of the
/// records.
#[derive(Default)]
struct Regions {
    records: Option<Region>,
    ends: Option<Region>,
}

/// Why the problem does not fit the kernels, if it does not.
pub(super) fn refuses(request: &Request<'_>) -> Option<String> {
    let p = request.problem;
    let fits = |n: usize| n < 1 << 30;
    let per_plane = p.queries().checked_mul(p.samples()).is_some_and(|n| n < (1 << 32) - (1 << 16));
    let counts =
        [p.queries().saturating_add(1 << 16), p.heads(), p.positions(), p.samples(), p.channels(), p.batch()];
    let planes = p.batch().checked_mul(p.heads()).and_then(|n| n.checked_mul(p.levels().len()));
    // A chunk has at least 128 samples, and a grid of one block per chunk fits 31 bits.
    let most = (p.queries().saturating_mul(max_points(request)) / 128 + 1).min(MAX_CHUNKS);
    let chunks = planes.and_then(|n| n.checked_mul(most)).is_some_and(|n| n < 1 << 31);
    let planes = planes.is_some_and(fits) && chunks;
    let levels = p.levels().len() <= 1024;
    (!per_plane || !planes || !levels || !counts.into_iter().all(fits))
        .then(|| "a count does not fit the kernels of the gradient of value".into())
}

/// The gradient of value, while its stages are added.
pub(super) struct ValueGradient<'a> {
    request: &'a Request<'a>,
    target: &'a Target,
    sizes: Sizes,
    regions: Regions,
    /// Fused form: largest logit and scale of each image, query and head.
    softmax: Option<Region>,
    /// There are no samples.
    empty: bool,
    /// How `value_few.cu` computes it, if it does.
    few: Option<Few>,
}

impl<'a> ValueGradient<'a> {
    /// None if there is nothing to compute.
    pub(super) fn new(request: &'a Request<'a>, target: &'a Target, softmax: Option<Region>) -> Option<Self> {
        let p = request.problem;
        if !request.wanted().value || p.batch() == 0 || p.heads() == 0 {
            return None;
        }
        let sizes = Sizes::new(request, target);
        let empty = p.queries() == 0 || p.samples() == 0;
        let few = if empty { None } else { Few::new(request, target, &sizes) };
        Some(Self { request, target, sizes, regions: Regions::default(), softmax, empty, few })
    }

    /// Whether it comes before the gradients of locations and weights: if one kernel computes it,
    /// which does not need the softmax. Both run at the same time, and the longer one starts first.
    pub(super) fn comes_first(&self) -> bool {
        self.few.is_some() && self.softmax.is_none()
    }

    /// Adds the stages. `samples`: the stage that stores the softmax.
    pub(super) fn add(mut self, call: &mut Call, samples: Option<usize>) {
        let p = self.request.problem;
        if self.request.scatter == Scatter::Atomic && !self.empty {
            return self.add_atomically(call);
        }
        let before = call.stages.len().checked_sub(1);
        Table::new(p).keep(call);
        let pixels: usize = p.levels().iter().map(|l| l.h * l.w).sum();
        let gaps = self.request.levels == Levels::Device
            || p.layout() == Layout::PlanarRing
            || pixels != p.positions();
        if self.empty || gaps {
            // No other stage writes there, so none waits for it.
            call.branch();
            self.clear_gaps(call);
        }
        if self.empty {
            return;
        }
        call.branch();
        if let Some(few) = &self.few {
            // It runs at the same time as `samples.cu`, unless it needs the softmax that
            // `samples.cu` stores.
            if let (Some(_), Some(samples)) = (self.softmax, samples) {
                call.join(samples);
            }
            return self.add_few(call, few);
        }
        before.into_iter().for_each(|stage| call.join(stage));
        self.sort(call);
        match matrix_chunk(self.request, self.target) {
            Some(chunk) => self.add_matrices(call, chunk),
            None => self.add_plainly(call),
        }
    }

    /// Adds the stage that sets positions between levels and in rings to zero; without samples,
    /// pixels too.
    fn clear_gaps(&self, call: &mut Call) {
        let mut stage = Stage::new(self, "backward/gaps.cu", "gaps");
        let align = stage.align(Slot::Locations, Role::Locations, 2);
        stage.unit = stage.unit.define("LOCATION_ALIGN", align).define("CLEAR_ALL", u8::from(self.empty));
        let p = self.request.problem;
        let warps = p.positions().div_ceil(32).saturating_mul(p.batch());
        let blocks = warps.div_ceil(8).clamp(1, self.target.sms as usize * 8) as u32;
        let why = "sets the gradient of value to zero between levels and in rings";
        stage.launch(call, "msda_backward_gaps", [blocks, 1], 256, 0, why);
    }

    /// Adds the stage that computes the gradient of value for few queries, without sorting them.
    fn add_few(&self, call: &mut Call, few: &Few) {
        let Few { chunk, run_tiles, words, blocks_per_sm, bytes, runs } = *few;
        let points = common_points(self.request, 2);
        let mut stage = Stage::new(self, "backward/value_few.cu", "value-few");
        let align = stage.align(Slot::Locations, Role::Locations, 2 * points);
        let config = format!("-c{chunk}-n{points}-a{align}-w{words}-r{run_tiles}-x{blocks_per_sm}");
        stage.unit.key += &config;
        stage.unit = stage
            .unit
            .define("LOCATION_ALIGN", align)
            .define("CHUNK", chunk)
            .define("THREADS", 32 * FEW_WARPS)
            .define("RUN_TILES", run_tiles)
            .define("STAGE_BYTES", FEW_STAGE)
            .define("LANE_WORDS", words)
            .define("BLOCKS_PER_SM", blocks_per_sm)
            .define("POINTS", points);
        let channels = self.request.problem.channels();
        let grid = [runs.clamp(1, 1 << 30) as u32, (channels / chunk) as u32];
        let why = "computes the gradient of value from few queries, without sorting their samples";
        stage.launch(call, "msda_backward_value_few", grid, 32 * FEW_WARPS as u32, bytes as u32, why);
    }

    /// Adds the stage that sorts the samples by their bins.
    fn sort(&mut self, call: &mut Call) {
        let (p, sizes) = (self.request.problem, &self.sizes);
        let bytes = if sizes.wide_ends { 4 } else { 2 };
        let ends = sizes.bins.saturating_mul(sizes.chunks).saturating_mul(bytes);
        let records = p.queries().saturating_mul(p.samples()).saturating_mul(bytes);
        self.regions = Regions {
            records: Some(call.arena.reserve(records.saturating_mul(sizes.planes))),
            ends: Some(call.arena.reserve(ends.saturating_mul(sizes.planes))),
        };
        let points = points_per_load(self.request);
        let mut stage = Stage::new(self, "backward/sort.cu", "sort");
        let align = stage.align(Slot::Locations, Role::Locations, 2 * points);
        stage.unit.key += &format!("-b{}-n{points}-a{align}", sizes.threads);
        stage.unit.key += if sizes.wide_keys { "-wide" } else { "" };
        stage.unit = stage
            .unit
            .define("LOCATION_ALIGN", align)
            .define("THREADS", sizes.threads)
            .define("POINTS_PER_LOAD", points)
            .define("WIDE_KEYS", u8::from(sizes.wide_keys));
        let blocks = sizes.planes * sizes.chunks * p.levels().len();
        let (threads, bytes) = (sizes.threads as u32, sizes.sort_bytes as u32);
        stage.launch(
            call,
            "msda_sort",
            [blocks as u32, 1],
            threads,
            bytes,
            "sorts samples by image row and strip",
        );
    }

    /// Adds the stage that computes the gradient of value on tensor cores.
    fn add_matrices(&self, call: &mut Call, chunk: usize) {
        let p = self.request.problem;
        let element = p.types().value.size();
        let light = p.queries() * p.samples() < LIGHT * self.sizes.tiles;
        // Measured. Fewer blocks leave more of L1 for rows of gradients, which helps most if
        // neighbouring queries sample the same pixels.
        let per_sm = match (element, self.request.queries_are_pixels()) {
            (4, _) => 3,
            (_, true) => 4,
            (_, false) => 5,
        };
        let mut stage = Stage::new(self, "backward/value.cu", "value");
        let align = stage.align(Slot::Locations, Role::Locations, 2);
        let rows = (2 * 32 * chunk * element).max(1024);
        let range = if self.sizes.wide_ends { 8 } else { 4 };
        // Two image rows and a column per sample; ranges of records; an image row of each warp,
        // twice.
        let bytes = WARPS * (rows + 32 * 12 + 32 * (ROWS + 1) * range + 32 * 8 + 2 * TILE[0] * chunk * 4);
        stage.unit.key += &format!("-c{chunk}-a{align}-x{per_sm}");
        stage.unit = stage
            .unit
            .define("LOCATION_ALIGN", align)
            .define("CHUNK", chunk)
            .define("BLOCKS_PER_SM", per_sm)
            .define("SHARED_BYTES", bytes);
        // With few samples per tile, blocks take many units: they read the table of levels once.
        let most = if light { self.target.sms as usize * per_sm * 4 } else { 1 << 30 };
        let blocks = units(self.request).saturating_mul(self.sizes.planes).clamp(1, most);
        let grid = [blocks as u32, (p.channels() / chunk) as u32];
        let why = "computes the gradient of value row by row, on tensor cores";
        stage.launch(call, "msda_backward_value", grid, 32 * WARPS as u32, bytes as u32, why);
    }

    /// Adds the stage that computes the gradient of value for any type and shape.
    fn add_plainly(&self, call: &mut Call) {
        let p = self.request.problem;
        let mut stage = Stage::new(self, "backward/value_plain.cu", "value-plain");
        let align = stage.align(Slot::Locations, Role::Locations, 2);
        stage.unit.key += &format!("-a{align}");
        let of_warp = 32 * 32 * p.types().value.accumulator().size();
        let room = self.target.shared().saturating_sub(OWN_SHARED + LEVEL_BYTES * p.levels().len());
        let warps = [WARPS, 2].into_iter().find(|n| n * of_warp <= room).unwrap_or(1);
        stage.unit = stage.unit.define("LOCATION_ALIGN", align).define("WARPS", warps);
        let bytes = warps * of_warp;
        let tiles = self.sizes.tiles.saturating_mul(self.sizes.planes);
        let work = tiles.saturating_mul(p.channels().div_ceil(32));
        let blocks = work.div_ceil(warps).clamp(1, self.target.sms as usize * 64) as u32;
        let why = "computes the gradient of value tile by tile";
        stage.launch(call, "msda_backward_value_plain", [blocks, 1], 32 * warps as u32, bytes as u32, why);
    }

    /// Adds the stages that compute the gradient of value with atomics: clear, add, round.
    fn add_atomically(&mut self, call: &mut Call) {
        let p = self.request.problem;
        let len = p.positions().saturating_mul(self.sizes.planes).saturating_mul(p.channels());
        let sums = call.arena.reserve(len.saturating_mul(p.types().value.accumulator().size()));
        call.clear(sums, "clears the sums of the gradient of value");
        self.regions.records = Some(sums);
        let numbers = if p.channels().is_multiple_of(4) { 4 } else { 1 };
        let mut run = |entry, threads, why| {
            let mut stage = Stage::new(self, "backward/value_atomic.cu", "value-atomic");
            let align = stage.align(Slot::Locations, Role::Locations, 2);
            stage.unit.key += &format!("-n{numbers}-a{align}");
            stage.unit = stage.unit.define("LOCATION_ALIGN", align).define("NUMBERS", numbers);
            stage.launch(call, entry, [blocks(threads, self.target), 1], 256, 0, why);
        };
        let why = "adds to the gradient of value with atomics";
        run("msda_backward_value_atomic", p.output_len() / numbers, why);
        run("msda_backward_value_round", len, "rounds the gradient of value");
        Table::new(p).keep(call);
    }
}

/// The most points of a level.
fn max_points(request: &Request<'_>) -> usize {
    request.problem.points().iter().copied().max().unwrap_or(1).max(1)
}

/// Samples that a lane of `sort.cu` loads at once: as many as divide the points of each level and
/// fit 16 bytes.
fn points_per_load(request: &Request<'_>) -> usize {
    common_points(request, (16 / (2 * request.problem.types().locations.size())).max(1))
}

/// The largest power of two up to `most` that divides the points of each level.
fn common_points(request: &Request<'_>, most: usize) -> usize {
    let fits = |n: &usize| request.problem.points().iter().all(|points| points.is_multiple_of(*n));
    (1..=most).rev().filter(|n| n.is_power_of_two()).find(fits).unwrap_or(1)
}

/// How `value_few.cu` computes a request.
struct Few {
    /// Channels of a block.
    chunk: usize,
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
    /// None if that kernel does not take the request.
    fn new(request: &Request<'_>, target: &Target, sizes: &Sizes) -> Option<Self> {
        let p = request.problem;
        let samples = p.queries().saturating_mul(max_points(request));
        let pixels = p.positions().saturating_mul(sizes.planes);
        let few = samples <= FEW && p.levels().len() <= 64 && pixels < 1 << 31;
        if !few || request.scatter != Scatter::Ordered {
            return None;
        }
        let chunk = matrix_chunk(request, target)?;
        let element = p.types().value.size();
        let words = samples.div_ceil(1024).max(1);
        let with = |run_tiles: usize| {
            let rows = p.queries() * chunk * element;
            let bytes = FEW_WARPS * FEW_STAGE + rows + run_tiles * samples.div_ceil(32) * 4 + samples * 12;
            // Three blocks of 16-bit values would fit, but were slower: registers are few.
            let own = OWN_SHARED + (LEVEL_BYTES + RUN_BYTES) * p.levels().len();
            let blocks_per_sm = (target.shared() / (bytes + own)).min(2);
            let runs_of = |tiles: usize| tiles.div_ceil(run_tiles);
            let runs: usize = match request.levels {
                Levels::Host => p.levels().iter().map(|l| runs_of(tiles_of(l))).sum(),
                Levels::Device => runs_of(sizes.tiles) + p.levels().len(),
            };
            Self { chunk, run_tiles, words, blocks_per_sm, bytes, runs: runs.saturating_mul(sizes.planes) }
        };
        // Each run looks at all samples of its plane and level, so long runs cost less. But there
        // must be enough runs to keep all SMs busy.
        let busy = |few: &Self| 3 * few.runs >= 4 * few.blocks_per_sm * target.sms as usize;
        let fits = |few: &Self| few.blocks_per_sm > 0;
        let choices = || [128, 64, 32].into_iter().map(with).filter(fits);
        choices().find(busy).or_else(|| choices().next_back())
    }
}

/// Of so many positions, if the levels are squares of equal size: as many tiles as are to be
/// expected, and the most cells. Levels of other sizes have about as many. If there are more after
/// all, several share their bins.
fn estimated(positions: usize, levels: usize) -> (usize, usize) {
    // A square of n x n pixels has at most (n + 7) * (n + 3) / 32 tiles and (n + 7) * n / 8 cells.
    let side = (positions as f64 / levels.max(1) as f64).sqrt();
    let of = |edges: f64, pixels: f64| ((positions as f64 + levels as f64 * edges) / pixels).ceil() as usize;
    (of(5.0 * side + 16.0, 32.0), of(7.0 * side + 8.0, 8.0))
}

fn cells_of(level: &msda::Level) -> usize {
    level.w.div_ceil(TILE[0]) * level.h
}

fn tiles_of(level: &msda::Level) -> usize {
    level.w.div_ceil(TILE[0]) * level.h.div_ceil(TILE[1])
}

/// Channels that a warp of `value.cu` takes; none if that kernel does not take the request.
fn matrix_chunk(request: &Request<'_>, target: &Target) -> Option<usize> {
    let p = request.problem;
    let value = p.types().value;
    let whole = |slot, role| grain(p, role, request.operands[slot], value.size()).is_multiple_of(16);
    let aligned = whole(Slot::GradOutput, Role::Output) && whole(Slot::GradValue, Role::Value);
    let tiles = p.positions().saturating_mul(p.batch() * p.heads());
    let strides = [Slot::Locations, Slot::Weights, Slot::GradOutput, Slot::GradValue];
    let fit =
        strides.iter().all(|&slot| strides_fit(request.operands[slot], slot.dtype(p).map_or(8, Dtype::size)));
    let small = p.channels() / 8 <= 65535 && tiles < 1 << 32 && fit;
    let fits = value != Dtype::F64 && target.arch.major >= 8 && aligned && small;
    [32, 16, 8].into_iter().find(|&chunk| fits && p.channels().is_multiple_of(chunk))
}

/// Units of work per plane of `value.cu`.
fn units(request: &Request<'_>) -> usize {
    let p = request.problem;
    if request.levels == Levels::Device {
        // Four units of 8 x 8 pixels per block, some of them at the edge of a level.
        return p.positions() / 200 + 8 * p.levels().len();
    }
    let of_level = |(level, points): (&msda::Level, &usize)| {
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

/// A kernel that works on tiles, while it is prepared.
struct Stage<'a> {
    request: &'a Request<'a>,
    unit: Unit,
    args: Args,
}

impl<'a> Stage<'a> {
    fn new(job: &ValueGradient<'a>, file: &'static str, key: &str) -> Self {
        let ValueGradient { request, target, ref sizes, ref regions, softmax, .. } = *job;
        let p = request.problem;
        let o = request.operands;
        let table = Table::new(p);
        let mut args = Args::default();
        for slot in [Slot::Locations, Slot::Weights, Slot::Reference, Slot::GradOutput, Slot::GradValue] {
            args.strided(slot, o[slot], slot.dtype(p).map_or(0, Dtype::size));
        }
        for slot in [Slot::Shapes, Slot::Starts] {
            if request.levels == Levels::Device { args.pointer(slot) } else { args.i64(0) }
        }
        table.add_pointer(&mut args);
        for region in [regions.records, regions.ends, softmax] {
            args.optional(region);
        }
        args.i64((p.queries() * p.samples()) as i64);
        for n in [p.batch(), p.queries(), p.heads(), p.channels(), p.positions()] {
            args.i32(n);
        }
        let sample_words = p.queries().saturating_mul(max_points(request)).div_ceil(32).min(1 << 30);
        for n in [sizes.bins, sizes.chunks, sizes.chunk_samples, sizes.batch_samples, sample_words] {
            args.i32(n);
        }
        args.align(8);
        table.add_entries(&mut args);
        let uniform = p.points().iter().all(|&n| n == p.points()[0]);
        let points = match p.points() {
            [first, ..] if uniform && p.points().len() > 8 => format!("{first}x{}", p.points().len()),
            all => all.iter().map(ToString::to_string).collect::<Vec<_>>().join("."),
        };
        let key = format!("{key}-p{points}{}", if sizes.wide_ends { "-ends32" } else { "" });
        let unit = with_options(Unit::new(file, key, target.arch), p, o.reference_numbers());
        let mut stage = Self { request, unit, args };
        let weight_align = stage.align(Slot::Weights, Role::Weights, 1);
        let reference_align = match o.reference_kind() {
            Some(kind) => stage.align(Slot::Reference, Role::Reference(kind), kind.dim()),
            None => p.types().locations.size(),
        };
        stage.unit = stage
            .unit
            .define("LEVELS", p.levels().len())
            .define("SAMPLES", p.samples())
            .define("UNIFORM_POINTS", if uniform { p.points()[0] } else { 0 })
            .define("WIDE_ENDS", u8::from(sizes.wide_ends))
            .define("INLINE_LEVELS", table.inline())
            .define("WEIGHT_ALIGN", weight_align)
            .define("REFERENCE_ALIGN", reference_align)
            .define("ARGS_BYTES", stage.args.bytes().len());
        stage
    }

    /// Bytes that can be loaded at once of so many numbers of a tensor.
    fn align(&self, slot: Slot, role: Role, numbers: usize) -> usize {
        let p = self.request.problem;
        let size = slot.dtype(p).map_or(1, Dtype::size);
        aligned(p, role, self.request.operands[slot], size, numbers * size)
    }

    fn launch(
        self,
        call: &mut Call,
        entry: &'static str,
        grid: [u32; 2],
        threads: u32,
        shared: u32,
        why: &'static str,
    ) {
        let mut launch = Launch::new([grid[0], grid[1], 1], [threads, 1, 1]);
        launch.shared = shared;
        call.run(Prepared { unit: self.unit, entry, launch, args: self.args }, why);
    }
}
