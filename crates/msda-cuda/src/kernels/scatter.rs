//! The gradient of value: `backward/gaps.cu`, `value_few.cu`, `bin.cu`, `value.cu`, `value_plain.cu` and
//! `value_atomic.cu`.
//!
//! `backward/tiles.cuh` explains the words: plane, tile, bin, record, chunk.

use msda::{Dtype, Layout, Role};

use super::backward::Shared;
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

/// Records per tile from which all warps of a block share it. As in `value.cu`.
const SHARED_FROM: usize = 1024;

/// Samples of a chunk: enough to hide what a block does once.
const CHUNK_SAMPLES: usize = 4096;

/// The most shared memory of a block of `bin.cu`, if that is enough: three blocks fit an SM of an H200.
const BIN_BYTES: usize = 76_500;

/// Shared memory that a level takes in each kernel (`TileLevel`), and in `value_few.cu` besides (`Runs`).
const LEVEL_BYTES: usize = 40;
const RUN_BYTES: usize = 12;

/// Shared memory that blocks take besides, and that the GPU takes for itself.
const OWN_SHARED: usize = 2048;

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
    /// The most bins of a plane. If there are more tiles, several share their bins.
    bins: usize,
    /// Queries of a chunk.
    chunk_queries: usize,
    /// Chunks of a plane and level.
    chunks: usize,
    threads: usize,
    /// Bins that a block counts at a time.
    band_bins: usize,
    counters_16bit: bool,
    /// Samples of a lane of `bin.cu`, if it keeps their bins in shared memory; else 0.
    kept: usize,
}

impl Sizes {
    fn new(request: &Request<'_>, target: &Target) -> Self {
        let p = request.problem;
        let levels = p.levels().len();
        // Tiles of a plane: expected, and at most; and of its largest level.
        let (tiles, most_tiles, largest) = match request.levels {
            Levels::Host => {
                let tiles: usize = p.levels().iter().map(tiles_of).sum();
                (tiles, tiles, p.levels().iter().map(tiles_of).max().unwrap_or(0))
            }
            Levels::Device => {
                let (tiles, most) = estimated_tiles(p.positions(), levels);
                // The largest level of a pyramid has three quarters of the pixels, or a little more.
                (tiles, most, if levels > 1 { (tiles * 4).div_ceil(5) } else { tiles })
            }
        };
        let bins = 4 * most_tiles;
        // So that counts take no more memory than records, if all levels have as many points.
        let chunk_samples = CHUNK_SAMPLES.max(bins / levels);
        let lanes = point_lanes(request);
        let (unit_queries, lane_samples) = (32 / lanes, if lanes > 1 { 1 } else { max_points(request) });
        let chunk_queries = (chunk_samples.div_ceil(32 * lane_samples) * unit_queries).min(p.queries());
        let counters_16bit = chunk_queries.saturating_mul(max_points(request)) <= 0xffff;
        let counter = if counters_16bit { 2 } else { 4 };
        let level_bins = (4 * largest).max(2);
        let bytes = |warps: usize| level_bins.saturating_mul(4 + counter * warps);
        // Units of a warp, rounded up so that few kernels are compiled.
        let units = chunk_queries.div_ceil(unit_queries);
        let kept = |warps: usize| units.div_ceil(warps).next_power_of_two().saturating_mul(lane_samples);
        let kept_bytes = |warps: usize| kept(warps).saturating_mul(warps * 64);
        let room = target.shared().saturating_sub(OWN_SHARED + LEVEL_BYTES * levels);
        let choices = [8, 4, 2].map(|n: usize| n.min(units.max(1)));
        let fits = |&warps: &usize| bytes(warps).saturating_add(kept_bytes(warps)) <= BIN_BYTES.min(room);
        let fewer = |&warps: &usize| bytes(warps) <= BIN_BYTES.min(room);
        let keeping = choices.into_iter().find(fits).filter(|_| counters_16bit && bins < 0xffff);
        let warps = keeping.or(choices.into_iter().find(fewer)).unwrap_or(choices[2]);
        Self {
            planes: p.batch() * p.heads(),
            tiles,
            bins,
            chunk_queries,
            chunks: p.queries().div_ceil(chunk_queries.max(1)),
            threads: 32 * warps,
            band_bins: level_bins.min(room / (4 + counter * warps) / 2 * 2),
            counters_16bit,
            kept: keeping.map_or(0, kept),
        }
    }

    /// Shared memory of a block that writes records.
    fn write_bytes(&self) -> usize {
        let warps = self.threads / 32;
        self.band_bins * (4 + if self.counters_16bit { 2 } else { 4 } * warps) + self.kept * warps * 64
    }
}

/// Regions of the workspace.
#[derive(Default)]
struct Regions {
    records: Option<Region>,
    bin_starts: Option<Region>,
    counts: Option<Region>,
}

/// Why the problem does not fit the kernels, if it does not.
pub(super) fn refuses(request: &Request<'_>) -> Option<String> {
    let p = request.problem;
    let fits = |n: usize| n < 1 << 30;
    let per_plane = p.queries().checked_mul(p.samples()).is_some_and(|n| n < 1 << 32);
    let counts =
        [p.queries().saturating_add(1 << 16), p.heads(), p.positions(), p.samples(), p.channels(), p.batch()];
    let planes = p.batch().checked_mul(p.heads()).and_then(|n| n.checked_mul(p.levels().len()));
    // A chunk has at least 32 queries, and a grid of one block per chunk fits 31 bits.
    let chunks = planes.and_then(|n| n.checked_mul(p.queries() / 32 + 1)).is_some_and(|n| n < 1 << 31);
    let planes = planes.is_some_and(fits) && chunks;
    let levels = p.levels().len() <= 1024;
    (!per_plane || !planes || !levels || !counts.into_iter().all(fits))
        .then(|| "a count does not fit the kernels of the gradient of value".into())
}

/// Adds the stages that compute the gradient of value.
pub(super) fn scatter(call: &mut Call, request: &Request<'_>, target: &Target, shared: Shared) {
    let p = request.problem;
    if p.batch() == 0 || p.heads() == 0 {
        return;
    }
    let sizes = Sizes::new(request, target);
    let mut job = Job { request, target, sizes, regions: Regions::default(), shared };
    let empty = p.queries() == 0 || p.samples() == 0;
    let pixels: usize = p.levels().iter().map(|l| l.h * l.w).sum();
    let gaps =
        request.levels == Levels::Device || p.layout() == Layout::PlanarRing || pixels != p.positions();
    if request.scatter == Scatter::Atomic && !empty {
        return job.add_atomically(call);
    }
    // Sorting waits for the stages up to here.
    let before = call.stages.len().checked_sub(1);
    if empty || gaps {
        // No other stage writes there, so none waits for it.
        call.branch();
        job.clear_gaps(call, empty);
    }
    if empty {
        return;
    }
    Table::new(p).keep(call);
    call.branch();
    if let Some(few) = Few::new(request, target, &job.sizes) {
        // It runs at the same time as `samples.cu`, unless it needs the softmax that `samples.cu` stores. The
        // kernels that sort do not: some problems became slower that way, and others hardly faster.
        if let (Some(_), Some(samples)) = (shared.softmax, shared.samples) {
            call.join(samples);
        }
        return job.add_few(call, &few);
    }
    before.into_iter().for_each(|stage| call.join(stage));
    let words = |n: usize| n.saturating_mul(job.sizes.planes).saturating_mul(4);
    job.regions = Regions {
        records: Some(call.arena.reserve(words(p.queries() * p.samples()))),
        bin_starts: Some(call.arena.reserve(words(job.sizes.bins + 1))),
        counts: Some(call.arena.reserve(words(job.sizes.bins.saturating_mul(job.sizes.chunks)))),
    };
    job.sort(call);
    match matrix_chunk(request, target) {
        Some(chunk) => job.add_matrices(call, chunk),
        None => job.add_plainly(call),
    }
}

/// What all stages of a call need to know.
struct Job<'a> {
    request: &'a Request<'a>,
    target: &'a Target,
    sizes: Sizes,
    regions: Regions,
    shared: Shared,
}

impl Job<'_> {
    /// Adds the stage that sets positions between levels and in rings to zero; with `everything`, pixels too.
    fn clear_gaps(&self, call: &mut Call, everything: bool) {
        let mut stage = Stage::new(self, "backward/gaps.cu", "gaps");
        let align = stage.align(Slot::Locations, Role::Locations, 2);
        stage.unit = stage.unit.define("LOCATION_ALIGN", align).define("CLEAR_ALL", u8::from(everything));
        let p = self.request.problem;
        let warps = p.positions().div_ceil(32).saturating_mul(p.batch());
        let blocks = warps.div_ceil(8).clamp(1, self.target.sms as usize * 8) as u32;
        let why = "sets the gradient of value to zero between levels and in rings";
        stage.launch(call, "msda_backward_gaps", [blocks, 1], 256, 0, why);
    }

    /// Adds the stage that computes the gradient of value for few queries, without sorting them.
    fn add_few(&self, call: &mut Call, few: &Few) {
        let Few { chunk, run_tiles, words, blocks_per_sm, bytes, runs } = *few;
        let points = common_points(self.request, 4);
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

    /// Adds the stages that sort the samples by the tiles they touch.
    fn sort(&self, call: &mut Call) {
        let sizes = &self.sizes;
        let mut bin =
            |entry: &'static str, blocks: usize, threads: usize, bytes: usize, why: &'static str| {
                let points = points_per_load(self.request);
                let mut stage = Stage::new(self, "backward/bin.cu", "bin");
                let align = stage.align(Slot::Locations, Role::Locations, 2 * points);
                stage.unit.key += &format!("-b{}-n{points}-a{align}", sizes.threads);
                stage.unit.key += &format!("-k{}", sizes.kept);
                stage.unit = stage
                    .unit
                    .define("LOCATION_ALIGN", align)
                    .define("THREADS", sizes.threads)
                    .define("COUNTERS_16BIT", u8::from(sizes.counters_16bit))
                    .define("POINTS_PER_LOAD", points)
                    .define("MAX_POINTS", max_points(self.request))
                    .define("KEPT", sizes.kept);
                stage.launch(call, entry, [blocks as u32, 1], threads as u32, bytes as u32, why);
            };
        let blocks = sizes.planes * sizes.chunks * self.request.problem.levels().len();
        let counters = sizes.band_bins * 4;
        bin("msda_bin_count", blocks, sizes.threads, counters, "counts samples by the tiles they touch");
        bin("msda_bin_scan", sizes.planes, 1024, 0, "turns the counts into places");
        let bytes = sizes.write_bytes();
        bin("msda_bin_write", blocks, sizes.threads, bytes, "sorts samples by the tiles they touch");
    }

    /// Adds the stage that computes the gradient of value on tensor cores.
    fn add_matrices(&self, call: &mut Call, chunk: usize) {
        let p = self.request.problem;
        let element = p.types().value.size();
        let light = p.queries() * p.samples() < LIGHT * self.sizes.tiles;
        let blocks_per_sm = if element == 4 { 3 } else { 4 };
        let mut stage = Stage::new(self, "backward/value.cu", "value");
        let align = stage.align(Slot::Locations, Role::Locations, 2);
        let rows = (2 * 32 * chunk * element).max(1024);
        let bytes = WARPS * (rows + 2 * 32 * 20);
        stage.unit.key += &format!("-c{chunk}-a{align}-x{blocks_per_sm}");
        stage.unit = stage
            .unit
            .define("LOCATION_ALIGN", align)
            .define("CHUNK", chunk)
            .define("BLOCKS_PER_SM", blocks_per_sm)
            .define("SHARED_BYTES", bytes);
        // With few samples per tile, blocks take many units: they read the table of levels once.
        let most = if light { self.target.sms as usize * blocks_per_sm * 4 } else { 1 << 30 };
        let blocks = units(self.request, &self.sizes).saturating_mul(self.sizes.planes).clamp(1, most);
        let grid = [blocks as u32, (p.channels() / chunk) as u32];
        let why = "computes the gradient of value tile by tile, on tensor cores";
        stage.launch(call, "msda_backward_value", grid, 32 * WARPS as u32, bytes as u32, why);
    }

    /// Adds the stage that computes the gradient of value for any type and shape.
    fn add_plainly(&self, call: &mut Call) {
        let p = self.request.problem;
        let mut stage = Stage::new(self, "backward/value_plain.cu", "value-plain");
        let align = stage.align(Slot::Locations, Role::Locations, 2);
        stage.unit.key += &format!("-a{align}");
        stage.unit = stage.unit.define("LOCATION_ALIGN", align).define("WARPS", WARPS);
        let bytes = WARPS * 32 * 32 * p.types().value.accumulator().size();
        let tiles = self.sizes.tiles.saturating_mul(self.sizes.planes);
        let warps = tiles.saturating_mul(p.channels().div_ceil(32));
        let blocks = warps.div_ceil(WARPS).clamp(1, self.target.sms as usize * 64) as u32;
        let why = "computes the gradient of value tile by tile";
        stage.launch(call, "msda_backward_value_plain", [blocks, 1], 32 * WARPS as u32, bytes as u32, why);
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

/// Lanes of `bin.cu` that share a query: its points, if they divide a warp and are the same on all levels.
fn point_lanes(request: &Request<'_>) -> usize {
    let points = request.problem.points();
    let same = points.iter().all(|&n| n == points[0]);
    if same && points[0] <= 32 && points[0].is_power_of_two() { points[0] } else { 1 }
}

/// The most points of a level.
fn max_points(request: &Request<'_>) -> usize {
    request.problem.points().iter().copied().max().unwrap_or(1).max(1)
}

/// Samples that a lane of `bin.cu` loads at once: as many as divide the points of each level and fit 16 bytes.
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
        if !few || request.scatter == Scatter::Sorted {
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
        // Each run looks at all samples of its plane and level, so long runs cost less. But there must be
        // enough runs to keep all SMs busy.
        let busy = |few: &Self| 2 * few.runs >= 3 * few.blocks_per_sm * target.sms as usize;
        let fits = |few: &Self| few.blocks_per_sm > 0;
        let choices = || [128, 64, 32].into_iter().map(with).filter(fits);
        choices().find(busy).or_else(|| choices().next_back())
    }
}

/// Tiles of so many positions, if the levels are squares of equal size: as many as are to be expected, and
/// the most. Levels of other sizes have about as many. If there are more after all, several share their bins.
fn estimated_tiles(positions: usize, levels: usize) -> (usize, usize) {
    // A square of n x n pixels has at most (n + 7) * (n + 3) / 32 tiles, and every level has one.
    let side = (positions as f64 / levels.max(1) as f64).sqrt();
    let with_edges = |edges: f64| ((positions as f64 + levels as f64 * edges) / 32.0).ceil() as usize;
    (with_edges(5.0 * side + 16.0), with_edges(10.0 * side + 32.0))
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
fn units(request: &Request<'_>, sizes: &Sizes) -> usize {
    let p = request.problem;
    if request.levels == Levels::Device {
        return p.positions() / 100 + 8 * p.levels().len();
    }
    let of_level = |(level, points): (&msda::Level, &usize)| {
        let [across, down] = [level.w.div_ceil(TILE[0]), level.h.div_ceil(TILE[1])];
        let heavy = p.queries() * points * 5 > 4 * SHARED_FROM * across * down;
        if heavy { across * down } else { across.div_ceil(2) * down.div_ceil(2) }
    };
    p.levels().iter().zip(p.points()).map(of_level).sum::<usize>().min(sizes.tiles)
}

/// A kernel that works on tiles, while it is prepared.
struct Stage<'a> {
    request: &'a Request<'a>,
    unit: Unit,
    args: Args,
}

impl<'a> Stage<'a> {
    fn new(job: &Job<'a>, file: &'static str, key: &str) -> Self {
        let Job { request, target, ref sizes, ref regions, shared } = *job;
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
        for region in [regions.records, regions.bin_starts, regions.counts, shared.softmax] {
            args.optional(region);
        }
        args.i64((p.queries() * p.samples()) as i64);
        for n in [p.batch(), p.queries(), p.heads(), p.channels(), p.positions()] {
            args.i32(n);
        }
        let sample_words = p.queries().saturating_mul(max_points(request)).div_ceil(32).min(1 << 30);
        for n in [sizes.chunk_queries, sizes.chunks, sizes.bins, sizes.band_bins, sample_words] {
            args.i32(n);
        }
        table.add_entries(&mut args);
        let points: Vec<String> = p.points().iter().map(ToString::to_string).collect();
        let uniform = p.points().iter().all(|&n| n == p.points()[0]);
        let key = format!("{key}-p{}", points.join("."));
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
