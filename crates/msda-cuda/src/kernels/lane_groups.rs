//! What `streaming.cu`, `resident.cu` and `samples.cu` share: a lane group computes one query and
//! head. Their shared memory, argument and macros; `common/args.cuh` explains the words.

use msda::{Layout, Level, Problem, ReferenceKind, Role, Sampling};

use super::division::{Division, aligned, element_size};
use super::knobs::{Rows, Walk};
use super::options::with_options;
use super::tiling::{SORT_BYTES, STRIP_HEIGHT, Tiling};
use super::{Args, Call, Prepared, order_first};
use crate::driver::Launch;
use crate::jit::Unit;
use crate::request::{Levels, Pass, Request, Slot};
use crate::target::Target;

/// Bytes of a level in the table made of level sizes on the device: `ReadLevel` in `args.cuh`.
const READ_LEVEL_BYTES: usize = 32;

/// Whether levels may be one pixel high or wide, so that they have no 2x2 square of taps. Levels on
/// the device may be.
pub(super) fn has_thin_levels(request: &Request<'_>) -> bool {
    let p = request.problem;
    p.sampling() == Sampling::Bilinear
        && p.layout() != Layout::PlanarRing
        && (request.levels == Levels::Device || p.levels().iter().any(|l| l.h < 2 || l.w < 2))
}

/// Whether positions fit 16 bits.
fn positions_fit_16_bits(p: &Problem) -> bool {
    p.positions() <= 1 << 16
}

impl Rows {
    /// Bytes of shared memory through which the warps of a block stage samples, as `stage.cuh` lays
    /// them out.
    fn stage_bytes(&self, p: &Problem, division: Division) -> usize {
        let position = if positions_fit_16_bits(p) { 2 } else { 4 };
        let lanes = self.group_lanes(division);
        let padding = if lanes <= 4 { (lanes - 1) * (8 / lanes) } else { (lanes - 1) * (32 / lanes) / 8 };
        let padded = self.tap_columns == 1 && self.sample_groups == 1;
        let slots = 32 + if padded { padding } else { 0 };
        // Four weights and a position per sample.
        let warp = (slots * (16 + position) * self.samples_per_lane).next_multiple_of(16);
        let bytes = self.threads / 32 * warp;
        if self.walk == Walk::Sorted { bytes.max(SORT_BYTES) } else { bytes }
    }

    /// Bytes of shared memory without resident levels: staging, and the block state of
    /// `resident.cu`. The kernels assert that it is `SHARED_BYTES`.
    fn fixed_shared_bytes(&self, p: &Problem, division: Division) -> usize {
        let passes = self.lane_level_passes(p, division).max(1);
        let state = 32 + 16 * self.group_lanes(division) * (1 + passes);
        self.stage_bytes(p, division) + if self.resident_levels > 0 { state } else { 0 }
    }

    /// Bytes of the tables made of level sizes on the device, one per warp, or one per block if
    /// queries are visited in strips.
    fn table_bytes(&self, request: &Request<'_>) -> usize {
        let table = request.problem.levels().len() * READ_LEVEL_BYTES;
        match request.levels {
            Levels::Host => 0,
            Levels::Device if self.walk == Walk::Tiles => table,
            Levels::Device => self.threads / 32 * table,
        }
    }

    /// Bytes of shared memory per block, without tables: the fixed part, the resident levels, the
    /// list of sorted queries.
    fn untabled_bytes(&self, p: &Problem, target: &Target, division: Division) -> usize {
        let resident = if self.resident_levels > 0 { self.resident_bytes(p) } else { 0 };
        let list = (2 * self.sorted_queries(p, target, division)).next_multiple_of(16);
        resident.saturating_add(self.fixed_shared_bytes(p, division) + list)
    }

    /// Bytes of shared memory per block.
    pub(super) fn shared_bytes(&self, request: &Request<'_>, target: &Target, division: Division) -> usize {
        self.untabled_bytes(request.problem, target, division).saturating_add(self.table_bytes(request))
    }

    /// With at most as many blocks per SM as its shared memory has room for.
    pub(crate) fn fitting(self, p: &Problem, target: &Target, division: Division) -> Self {
        let most = target.shared() / self.untabled_bytes(p, target, division).max(1);
        Self { blocks_per_sm: self.blocks_per_sm.min(most).max(1), ..self }
    }

    /// Bytes from a position to the next, if they are a constant of the kernel; 0: an argument.
    /// With dense positions the number is the same for any number of heads. Otherwise each number
    /// of heads has its own kernel. In the forward pass that pays only in 16 bits and if a lane
    /// locates several samples, in full passes: with one sample per lane, DINO's encoder lost 18 %.
    fn known_stride(&self, request: &Request<'_>, division: Division) -> usize {
        let p = request.problem;
        let (stride, size) = (request.operands[Slot::Value].strides[1], p.types().value.size());
        let lane_samples = self.group_lanes(division) * self.samples_per_lane;
        let full = self.samples_per_lane > 1 && p.samples().is_multiple_of(lane_samples);
        let pays = request.pass != Pass::Forward || (size == 2 && full);
        let known = stride == p.channels() || self.fixed_sizes || (self.sample_groups == 1 && pays);
        if known { stride * size } else { 0 }
    }

    /// The part of the cache key that people read.
    fn key(&self, name: &str, request: &Request<'_>, division: Division, row_pitches: &[String]) -> String {
        let p = request.problem;
        let points: Vec<String> = p.points().iter().map(ToString::to_string).collect();
        let stride = self.known_stride(request, division);
        format!(
            "{name}-d{}-p{}-v{}-t{}-g{}-h{}-b{}x{}-s{}-r{}-{:?}{}{}{}{}{}{}",
            p.channels(),
            points.join("."),
            division.vec,
            self.tap_columns,
            self.sample_groups,
            self.heads_per_block,
            self.threads,
            self.blocks_per_sm,
            self.samples_per_lane,
            self.resident_levels,
            self.walk,
            if positions_fit_16_bits(p) { "-pos16" } else { "" },
            if stride > 0 { format!("-y{stride}") } else { String::new() },
            if self.f16_sums { "-f16sums" } else { "" },
            if request.levels == Levels::Device { "-devlevels" } else { "" },
            if has_thin_levels(request) { "-thin" } else { "" },
            if self.fixed_sizes { format!("-u{}", row_pitches.join(".")) } else { String::new() },
        )
        .to_lowercase()
    }
}

/// A kernel of lane groups, while it is prepared.
pub(super) struct LaneGroups<'a> {
    knobs: Rows,
    request: &'a Request<'a>,
    target: &'a Target,
    division: Division,
    tiling: Tiling,
    pub(super) unit: Unit,
    pub(super) args: Args,
}

impl<'a> LaneGroups<'a> {
    /// The part that all of these kernels have. If the walk needs it, a stage that orders queries
    /// is added to the call.
    pub(super) fn new(
        knobs: Rows,
        (file, name): (&'static str, &str),
        request: &'a Request<'a>,
        target: &'a Target,
        call: &mut Call,
    ) -> Self {
        let (p, o) = (request.problem, request.operands);
        let division = Division::of(request);
        let tiling = knobs.tiling(p, target, division);
        let size = p.types().value.size();
        let pixel_stride = o[Slot::Value].strides[1] * size;
        // A level one pixel high or wide has one row of taps.
        let is_thin = |level: &Level| p.layout() != Layout::PlanarRing && (level.h == 1 || level.w == 1);
        let row_pitch = |level: &Level| if is_thin(level) { 0 } else { level.pitch * pixel_stride };
        let row_pitches: Vec<usize> = p.levels().iter().map(row_pitch).collect();
        let fixed_pitches: Vec<String> = row_pitches.iter().map(ToString::to_string).collect();
        let order = (knobs.walk == Walk::Ordered).then(|| order_first(call, request, target));

        let mut args = Args::default();
        let output = request.output();
        for (name, slot) in [
            ("value", Slot::Value),
            ("locations", Slot::Locations),
            ("weights", Slot::Weights),
            ("reference", Slot::Reference),
            ("output", output),
        ] {
            args.tensor(name, slot, o[slot], element_size(slot, p));
        }
        args.optional("order", order);
        args.i32("queries", p.queries());
        args.i32("heads", p.heads());
        args.i32("batch", p.batch());
        let (first, resident) = if knobs.resident_levels > 0 { knobs.resident_positions(p) } else { (0, 0) };
        args.i32("tiling.images_per_block", tiling.images_per_block);
        args.i32("tiling.tiles_per_block", tiling.tiles_per_block);
        args.i32("tiling.tiles_per_image", tiling.tiles_per_image);
        args.i32("tiling.resident_positions", resident);
        args.i32("tiling.first_resident_position", first);
        add_levels(&mut args, request, &row_pitches);

        let unit = Unit::new(file, knobs.key(name, request, division, &fixed_pitches), target.arch);
        let uniform = p.points().iter().all(|&n| n == p.points()[0]);
        let unit = with_options(unit, p, o.reference_numbers())
            .define("D", p.channels())
            .define("LEVELS", p.levels().len())
            .define("SAMPLES", p.samples())
            .define("UNIFORM_POINTS", if uniform { p.points()[0] } else { 0 })
            .define("VEC", division.vec)
            .define("LANES_PER_ROW", division.lanes)
            .define("TAP_COLUMNS", knobs.tap_columns)
            .define("SAMPLE_GROUPS", knobs.sample_groups)
            .define("HEADS_PER_BLOCK", knobs.heads_per_block)
            .define("THREADS", knobs.threads)
            .define("BLOCKS_PER_SM", knobs.blocks_per_sm)
            .define("SAMPLES_PER_LANE", knobs.samples_per_lane)
            .define("STRIP_HEIGHT", if knobs.walk == Walk::Tiles { STRIP_HEIGHT } else { 0 })
            .define("ORDERED", u8::from(knobs.walk == Walk::Ordered))
            .define("SORTED", u8::from(knobs.walk == Walk::Sorted))
            .define("POSITIONS_16BIT", u8::from(positions_fit_16_bits(p)))
            .define("PIXEL_STRIDE", knobs.known_stride(request, division))
            .define("ROW_PITCHES", if knobs.fixed_sizes { fixed_pitches.join(", ") } else { "0".into() })
            .define("F16_SUMS", u8::from(knobs.f16_sums))
            .define("BACKWARD", u8::from(request.pass != Pass::Forward))
            .define("DEVICE_LEVELS", u8::from(request.levels == Levels::Device))
            .define("HOST_READ_LEVEL_BYTES", READ_LEVEL_BYTES)
            .define("THIN_LEVELS", u8::from(has_thin_levels(request)))
            .define("FIRST_RESIDENT", p.levels().len() - knobs.resident_levels)
            .define("SHARED_BYTES", knobs.fixed_shared_bytes(p, division));
        let mut groups = Self { knobs, request, target, division, tiling, unit, args };
        groups.define_align("LOCATION_ALIGN", Slot::Locations, Role::Locations, 2);
        groups.define_align("WEIGHT_ALIGN", Slot::Weights, Role::Weights, 1);
        let reference = o.reference_kind().map_or(p.types().locations.size(), |kind| {
            let size = element_size(Slot::Reference, p);
            aligned(p, Role::Reference(kind), o[Slot::Reference], size, kind.dim() * size)
        });
        groups.unit.defines.push(("REFERENCE_ALIGN".to_owned(), reference.to_string()));
        groups
    }

    /// Defines the bytes that a lane can load at once of its samples, so many numbers per sample.
    pub(super) fn define_align(&mut self, name: &str, slot: Slot, role: Role, numbers: usize) {
        let p = self.request.problem;
        let size = element_size(slot, p);
        let bytes = numbers * self.knobs.samples_per_lane * size;
        let align = aligned(p, role, self.request.operands[slot], size, bytes);
        self.unit.defines.push((name.to_owned(), align.to_string()));
    }

    /// Adds the kernel to the call.
    pub(super) fn run(self, call: &mut Call, entry: &'static str, why: &'static str) {
        let Self { knobs, request, target, division, tiling, unit, args } = self;
        let Tiling { images_per_block, tiles_per_block, tiles_per_image } = tiling;
        let p = request.problem;
        let blocks = (images_per_block * tiles_per_image).div_ceil(tiles_per_block);
        let heads = p.heads().div_ceil(knobs.heads_per_block);
        let grid = [blocks, heads, p.batch().div_ceil(images_per_block)].map(|n| n as u32);
        let mut launch = Launch::new(grid, [knobs.threads as u32, 1, 1]);
        launch.shared = knobs.shared_bytes(request, target, division) as u32;
        call.run(Prepared { unit, entry, launch, args }, why);
    }
}

/// Adds the table of levels, and the addresses of the level sizes if they are on the device.
fn add_levels(args: &mut Args, request: &Request<'_>, row_pitches: &[usize]) {
    let p = request.problem;
    let (mut sample, mut query) = (0, 0);
    for ((level, points), row_pitch) in p.levels().iter().zip(p.points()).zip(row_pitches) {
        args.i32("level[0].height", level.h);
        args.i32("level[0].width", level.w);
        args.i32("level[0].origin", level.origin);
        args.i32("level[0].pitch", level.pitch);
        args.i32("level[0].row_pitch", *row_pitch);
        args.i32("level[0].first_sample", sample);
        args.i32("level[0].first_query", query);
        args.f32("level[0].inverse_strip", 1.0 / (STRIP_HEIGHT * level.w) as f32);
        args.f32("level[0].rows", level.h as f32);
        args.f32("level[0].columns", level.w as f32);
        if request.operands.reference_kind() == Some(ReferenceKind::Point) {
            args.f32("level[0].inverse_rows", 1.0 / level.h as f32);
            args.f32("level[0].inverse_columns", 1.0 / level.w as f32);
        }
        if request.operands.reference_kind() == Some(ReferenceKind::Box) {
            args.f32("level[0].box_share", 0.5 / *points as f32);
        }
        if has_thin_levels(request) {
            let last = (level.h, level.w) == (1, 1) && level.origin + 1 == p.positions();
            args.i32("level[0].shift", usize::from(last));
        }
        args.align(8);
        sample += points;
        query += level.h * level.w;
    }
    // The structure contains addresses, so its size is a multiple of 8.
    args.align(8);
    if request.levels == Levels::Device {
        args.pointer("shapes", Slot::Shapes);
        args.pointer("starts", Slot::Starts);
        args.i32("positions", p.positions());
        args.i32("unused", 0);
    }
}
