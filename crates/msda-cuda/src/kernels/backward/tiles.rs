//! What the kernels of the gradient of value share, as in `backward/tiles.cuh`, which explains the
//! words: plane, tile, cell, bin, chunk, record, ends.

use msda::{Level, Role};

use crate::driver::Launch;
use crate::jit::Unit;
use crate::kernels::any_problem::add_level_pointers;
use crate::kernels::division::{aligned, element_size};
use crate::kernels::level_table::LevelTable;
use crate::kernels::options::with_options;
use crate::kernels::pad::Padded;
use crate::kernels::{Args, Call, Prepared, Region};
use crate::request::{Levels, Request, Slot};
use crate::target::Target;

/// Width and height of a tile, in pixels.
pub(super) const TILE: [usize; 2] = [8, 4];

/// Levels begin at multiples of so many bins.
const BIN_ALIGN: usize = 16;

/// The most bins of a plane. If there are more cells, several share their bins.
const MAX_BINS: usize = 1 << 29;

/// Chunks and batches are multiples of so many samples.
pub(super) const SAMPLE_ALIGN: usize = 128;

/// Samples of a chunk at least.
const CHUNK_SAMPLES: usize = 2048;

/// The most chunks of a plane and level: a lane of `value.cu` takes one.
const MAX_CHUNKS: usize = 32;

/// Inputs of a band at most, if there are several. Measured on an H200, which has 50 MB of L2.
const BAND_BYTES: usize = 16 << 20;

/// The most bands of an image.
const MAX_BANDS: usize = 64;

/// Shared memory that a level takes in each kernel: `TileLevel`.
pub(super) const LEVEL_BYTES: usize = 40;

/// The most levels: their table is in shared memory.
const MAX_LEVELS: usize = 1024;

/// Shared memory that blocks take besides, and that the GPU takes for itself.
pub(super) const OWN_SHARED: usize = 3072;

/// Sizes of the tables of a call.
pub(super) struct TileSizes {
    pub(super) planes: usize,
    /// Tiles of a plane; if the level sizes are on the device, as many as are to be expected.
    pub(super) tiles: usize,
    /// The most bins of a plane, and of a level.
    pub(super) bins: usize,
    pub(super) level_bins: usize,
    /// Samples of a chunk.
    pub(super) chunk_samples: usize,
    /// Chunks of a plane and level at most.
    pub(super) chunks: usize,
}

impl TileSizes {
    pub(super) fn new(request: &Request<'_>) -> Self {
        let p = request.problem;
        let levels = p.levels().len();
        let bins_of = |cells: usize| (2 * cells).next_multiple_of(BIN_ALIGN);
        let (tiles, bins, level_bins) = match request.levels {
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
        let bins = bins.min(MAX_BINS);
        let samples = level_samples(request).next_multiple_of(SAMPLE_ALIGN).max(SAMPLE_ALIGN);
        // Few enough chunks, and no more ends than records if all levels have as many points.
        let least = samples.div_ceil(MAX_CHUNKS).max(bins / levels.max(1));
        let chunk_samples = CHUNK_SAMPLES.max(least).next_multiple_of(SAMPLE_ALIGN).min(samples);
        Self {
            planes: p.batch() * p.heads(),
            tiles,
            bins,
            level_bins,
            chunk_samples,
            chunks: samples.div_ceil(chunk_samples),
        }
    }

    /// Whether records and the ends of bins may not fit 16 bits.
    pub(super) fn wide_ends(&self) -> bool {
        self.chunk_samples > 0xffff
    }
}

/// Why the problem does not fit the kernels of the gradient of value: each number that is too
/// large.
pub(in crate::kernels) fn refuses(request: &Request<'_>) -> Vec<String> {
    let p = request.problem;
    let product = |numbers: &[usize]| numbers.iter().fold(1, |n: usize, &x| n.saturating_mul(x));
    let levels = product(&[p.batch(), p.heads(), p.levels().len()]);
    // A grid has one block per chunk, and a chunk has at least 128 samples.
    let chunks = (level_samples(request) / SAMPLE_ALIGN + 1).min(MAX_CHUNKS);
    let limits = [
        ("queries", p.queries(), (1 << 30) - (1 << 16)),
        ("heads", p.heads(), 1 << 30),
        ("positions", p.positions(), 1 << 30),
        ("samples per query and head", p.samples(), 1 << 30),
        ("channels", p.channels(), 1 << 30),
        ("images", p.batch(), 1 << 30),
        ("levels", p.levels().len(), MAX_LEVELS + 1),
        ("samples per image and head", product(&[p.queries(), p.samples()]), (1 << 32) - (1 << 16)),
        ("levels of all images and heads", levels, 1 << 30),
        ("chunks of samples of all images, heads and levels", product(&[levels, chunks]), 1 << 31),
    ];
    let wrong = limits.into_iter().filter(|&(_, n, limit)| n >= limit);
    wrong
        .map(|(what, n, limit)| format!("{n} {what}; the gradient of value needs fewer than {limit}"))
        .collect()
}

/// The computation of a gradient of value: what each of its kernels gets.
pub(super) struct TileJob<'a> {
    pub(super) request: &'a Request<'a>,
    pub(super) target: &'a Target,
    pub(super) sizes: TileSizes,
    /// Samples that a block of `sort.cu` sorts at a time.
    pub(super) batch_samples: usize,
    /// Where the records are; `value_atomic.cu` has its sums there.
    pub(super) records: Option<Region>,
    /// Where the ends of bins are.
    pub(super) ends: Option<Region>,
    /// Fused form: the weights of all samples, per image, head and level.
    pub(super) softmax: Option<Region>,
    /// The copy of the gradient of the output that kernels read instead of it.
    pub(super) padded: Option<Padded>,
}

const TENSORS: [(&str, Slot); 5] = [
    ("locations", Slot::Locations),
    ("weights", Slot::Weights),
    ("reference", Slot::Reference),
    ("grad_output", Slot::GradOutput),
    ("grad_value", Slot::GradValue),
];

/// A kernel that works on tiles, while it is prepared.
pub(super) struct TileKernel<'a> {
    request: &'a Request<'a>,
    unit: Unit,
    args: Args,
    /// Alignment of the samples that a lane loads at once.
    pub(super) location_align: usize,
}

impl<'a> TileKernel<'a> {
    /// `points`: the samples that a lane loads at once.
    pub(super) fn new(job: &TileJob<'a>, file: &'static str, key: &str, points: usize) -> Self {
        let TileJob { request, ref sizes, .. } = *job;
        let (p, o) = (request.problem, request.operands);
        let table = LevelTable::new(p);
        let mut args = Args::default();
        for (name, slot) in TENSORS {
            let size = element_size(slot, p);
            match job.padded {
                Some(copy) if slot == Slot::GradOutput => {
                    args.strided(name, copy.region, copy.operand, size);
                }
                _ => args.strided(name, slot, o[slot], size),
            }
        }
        add_level_pointers(&mut args, request, &table);
        args.optional("records", job.records);
        args.optional("ends", job.ends);
        args.optional("softmax", job.softmax);
        args.i64("records_per_plane", p.queries().saturating_mul(p.samples()));
        args.i32("batch", p.batch());
        args.i32("queries", p.queries());
        args.i32("heads", p.heads());
        args.i32("channels", p.channels());
        args.i32("positions", p.positions());
        args.i32("bin_capacity", sizes.bins);
        args.i32("chunks", sizes.chunks);
        args.i32("chunk_samples", sizes.chunk_samples);
        args.i32("batch_samples", job.batch_samples);
        args.i32("sample_words", level_samples(request).div_ceil(32).min(1 << 30));
        args.i32("band_bits", bands(request).ilog2() as usize);
        args.align(8);
        table.add_entries(&mut args);
        let uniform = p.points().iter().all(|&n| n == p.points()[0]);
        let all_points = match p.points() {
            [first, ..] if uniform && p.points().len() > 8 => format!("{first}x{}", p.points().len()),
            all => all.iter().map(ToString::to_string).collect::<Vec<_>>().join("."),
        };
        let key = format!("{key}-p{all_points}{}", if sizes.wide_ends() { "-ends32" } else { "" });
        let align = |slot: Slot, role, numbers: usize| {
            let size = element_size(slot, p);
            aligned(p, role, o[slot], size, numbers * size)
        };
        let location_align = align(Slot::Locations, Role::Locations, 2 * points);
        let reference_align = match o.reference_kind() {
            Some(kind) => align(Slot::Reference, Role::Reference(kind), kind.dim()),
            None => p.types().locations.size(),
        };
        let unit = Unit::new(file, key, job.target.arch);
        let unit = with_options(unit, p, o.reference_numbers())
            .define("LEVELS", p.levels().len())
            .define("SAMPLES", p.samples())
            .define("UNIFORM_POINTS", if uniform { p.points()[0] } else { 0 })
            .define("WIDE_ENDS", u8::from(sizes.wide_ends()))
            .define("INLINE_LEVELS", table.inline())
            .define("LOCATION_ALIGN", location_align)
            .define("WEIGHT_ALIGN", align(Slot::Weights, Role::Weights, 1))
            .define("REFERENCE_ALIGN", reference_align)
            .define("HOST_TILE_WIDTH", TILE[0])
            .define("HOST_TILE_HEIGHT", TILE[1])
            .define("HOST_BIN_ALIGN", BIN_ALIGN)
            .define("HOST_MAX_CHUNKS", MAX_CHUNKS)
            .define("HOST_LEVEL_BYTES", LEVEL_BYTES);
        Self { request, unit, args, location_align }
    }

    /// Adds a part of the key.
    pub(super) fn key(mut self, part: &str) -> Self {
        self.unit.key += part;
        self
    }

    /// Defines a macro.
    pub(super) fn define(mut self, name: &str, value: impl ToString) -> Self {
        self.unit = self.unit.define(name, value);
        self
    }

    /// Adds it to the call.
    pub(super) fn run(
        self,
        call: &mut Call,
        entry: &'static str,
        grid: [usize; 2],
        threads: usize,
        shared: usize,
        why: &'static str,
    ) {
        let mut launch = Launch::new([grid[0] as u32, grid[1] as u32, 1], [threads as u32, 1, 1]);
        launch.shared = shared as u32;
        call.run(Prepared { unit: self.unit, entry, launch, args: self.args }, why);
        LevelTable::new(self.request.problem).keep(call);
    }
}

/// Bands of an image that the gradient of value is computed in, one after the other: a power of two
/// that keeps the inputs of a band in L2; one if there is room for the inputs of two heads.
fn bands(request: &Request<'_>) -> usize {
    let (p, types) = (request.problem, request.problem.types());
    let samples = p.samples() * (2 * types.locations.size() + types.weights.size());
    let of_head = p.queries().saturating_mul(samples + p.channels() * types.value.size());
    if 2 * of_head <= BAND_BYTES {
        return 1;
    }
    (of_head.saturating_mul(p.heads()) / BAND_BYTES).clamp(1, MAX_BANDS).next_power_of_two()
}

/// The most points of a level.
fn max_points(request: &Request<'_>) -> usize {
    request.problem.points().iter().copied().max().unwrap_or(1).max(1)
}

/// The most samples of a plane and level.
pub(super) fn level_samples(request: &Request<'_>) -> usize {
    request.problem.queries().saturating_mul(max_points(request))
}

/// The largest power of two up to `most` that divides the points of each level.
pub(super) fn common_points(request: &Request<'_>, most: usize) -> usize {
    let fits = |n: &usize| request.problem.points().iter().all(|points| points.is_multiple_of(*n));
    (1..=most).rev().filter(|n| n.is_power_of_two()).find(fits).unwrap_or(1)
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

/// Cells of a level.
pub(super) fn cells_of(level: &Level) -> usize {
    level.w.div_ceil(TILE[0]) * level.h
}

/// Tiles of a level.
pub(super) fn tiles_of(level: &Level) -> usize {
    level.w.div_ceil(TILE[0]) * level.h.div_ceil(TILE[1])
}
