//! `forward/streaming.cu`, `forward/resident.cu` and `backward/samples.cu`: a lane group computes
//! one query and head.
//!
//! `common/args.cuh` explains the words: lane group, pass, tile, resident level.

use std::fmt;
use std::str::FromStr;

use msda::{Dtype, Error, ErrorKind, Layout, Level, Problem, ReferenceKind, Result, Role, Sampling};

use super::backward::{self, Shared};
use super::{Args, Call, Pointer, Prepared, order_first, with_options};
use crate::driver::Launch;
use crate::jit::Unit;
use crate::request::{Levels, Operand, Pass, Request, Slot, Sums, Target};

/// The order in which queries are visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Walk {
    /// Input order.
    Straight,
    /// Queries are the pixels of the levels: strips of [`STRIP_HEIGHT`] rows, so that a tile is
    /// nearly a square.
    Tiles,
    /// Along a Z-curve over the sampled locations. Another kernel, `order.cu`, sorts the queries
    /// first.
    Ordered,
    /// By sampled location within a block, which sorts its queries itself. Needs resident levels,
    /// because only then a block has many queries.
    Sorted,
}

impl Walk {
    /// All of them, with their names in text.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Straight, "straight"),
        (Self::Tiles, "tiles"),
        (Self::Ordered, "ordered"),
        (Self::Sorted, "sorted"),
    ];
}

/// Image rows of a strip of [`Walk::Tiles`].
pub const STRIP_HEIGHT: usize = 8;

/// Cells by which a block sorts its queries: strips of the image, and columns of a strip. As in
/// `resident.cu`.
pub const SORT_CELLS: [usize; 2] = [8, 64];

/// Bytes of the counters of these cells. They use the memory in which samples are staged later.
const SORT_BYTES: usize = SORT_CELLS[0] * SORT_CELLS[1] * 4;

/// The most queries per thread of a block that sorts them.
const SORT_QUERIES_PER_THREAD: usize = 4;

/// The part of L2 that the planes read at the same time may take.
const L2_BYTES: usize = 32 << 20;

/// How tiles of queries are divided among blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Images per block.
    pub images_per_block: usize,
    /// Tiles per block, over all of its images.
    pub tiles_per_block: usize,
    /// Tiles per image.
    pub tiles_per_image: usize,
}

/// The most levels: their table is part of the argument.
const MAX_LEVELS: usize = 64;

/// The most gradients of weights that a lane keeps in registers, in the fused backward pass.
const MAX_KEPT: usize = 16;

/// Knobs of the kernels. Bytes per lane and lanes per row are not among them: they follow from the
/// request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    /// 2: different lanes load the left and the right taps. 1: a lane loads both.
    pub tap_columns: usize,
    /// Parts of a lane group that share out the samples.
    pub sample_groups: usize,
    /// Heads per block.
    pub heads_per_block: usize,
    /// Threads per block.
    pub threads: usize,
    /// Blocks that an SM should hold.
    pub blocks_per_sm: usize,
    /// Samples that a lane locates per pass.
    pub samples_per_lane: usize,
    /// How many of the last levels are resident in shared memory. Needs planar values.
    pub resident_levels: usize,
    /// Whether the samples of a lane are summed in `f16` before they are added in `f32`.
    pub f16_sums: bool,
    /// Whether the kernel is compiled for the sizes of one problem.
    pub fixed_sizes: bool,
    /// The order in which queries are visited.
    pub walk: Walk,
}

impl Default for Rows {
    /// One lane per 16 bytes, one sample at a time, nothing resident.
    fn default() -> Self {
        Self {
            tap_columns: 1,
            sample_groups: 1,
            heads_per_block: 1,
            threads: 128,
            blocks_per_sm: 1,
            samples_per_lane: 1,
            resident_levels: 0,
            f16_sums: false,
            fixed_sizes: false,
            walk: Walk::Straight,
        }
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let walk = Walk::ALL.iter().find(|(walk, _)| *walk == self.walk).map_or("", |(_, name)| name);
        write!(f, "tap_columns={},sample_groups={}", self.tap_columns, self.sample_groups)?;
        write!(f, ",heads_per_block={},threads={}", self.heads_per_block, self.threads)?;
        write!(f, ",blocks_per_sm={},samples_per_lane={}", self.blocks_per_sm, self.samples_per_lane)?;
        write!(f, ",resident_levels={},walk={walk}", self.resident_levels)?;
        for (name, on) in [("f16_sums", self.f16_sums), ("fixed_sizes", self.fixed_sizes)] {
            if on {
                write!(f, ",{name}=1")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Rows {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let wrong = |got: String| {
            Error::new(ErrorKind::Format, "knobs of rows", got, "name=value, separated by commas")
                .hint("for example rows:heads_per_block=2,threads=512,samples_per_lane=4,walk=tiles")
        };
        let mut knobs = Self::default();
        for knob in s.split(',').filter(|knob| !knob.is_empty()) {
            let (name, value) = knob.split_once('=').ok_or_else(|| wrong(format!("'{knob}'")))?;
            if name == "walk" {
                let walk = Walk::ALL.iter().find(|(_, name)| *name == value);
                knobs.walk = walk.ok_or_else(|| wrong(format!("'{knob}'")))?.0;
                continue;
            }
            let number = value.parse().map_err(|_| wrong(format!("'{knob}'")))?;
            // The second names are those of older records and tuning files.
            match name {
                "tap_columns" | "sides" => knobs.tap_columns = number,
                "sample_groups" | "split" => knobs.sample_groups = number,
                "heads_per_block" | "heads" => knobs.heads_per_block = number,
                "threads" | "block" => knobs.threads = number,
                "blocks_per_sm" | "blocks" => knobs.blocks_per_sm = number,
                "samples_per_lane" | "round" => knobs.samples_per_lane = number,
                "resident_levels" | "keep" => knobs.resident_levels = number,
                "f16_sums" | "half" => knobs.f16_sums = number != 0,
                "fixed_sizes" | "fixed" => knobs.fixed_sizes = number != 0,
                _ => return Err(wrong(format!("'{knob}'"))),
            }
        }
        Ok(knobs)
    }
}

/// How a row is divided among lanes; it follows from the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Division {
    /// Bytes of a row per lane.
    pub vec: usize,
    /// Lanes per row, a power of two.
    pub lanes: usize,
}

impl Division {
    /// The widest loads that all addresses and strides allow.
    pub fn of(request: &Request<'_>) -> Self {
        let p = request.problem;
        let size = p.types().value.size();
        let row = p.channels() * size;
        let grain = 16
            | row
            | grain(p, Role::Value, request.operands[Slot::Value], size)
            | grain(p, Role::Output, request.operands[request.output()], size);
        let vec = grain & grain.wrapping_neg();
        Self { vec, lanes: row.div_ceil(vec).next_power_of_two() }
    }
}

/// A number whose lowest set bit is the alignment in bytes of all rows of a tensor.
pub fn grain(p: &Problem, role: Role, operand: Operand, size: usize) -> usize {
    let (extents, _) = role.shape(p);
    let used = operand.strides.into_iter().zip(extents).filter(|&(_, extent)| extent > 1);
    used.fold(operand.align, |grain, (stride, _)| grain | stride.wrapping_mul(size))
}

/// Bytes that a lane can load at once of a tensor, of which it needs `bytes` consecutive ones.
pub fn aligned(p: &Problem, role: Role, operand: Operand, size: usize, bytes: usize) -> usize {
    let grain = bytes | grain(p, role, operand, size);
    (grain & grain.wrapping_neg()).clamp(size, 16)
}

/// Whether the strides of a tensor fit a kernel's argument in bytes: 63 bits between images, 31
/// bits otherwise.
pub fn strides_fit(operand: Operand, size: usize) -> bool {
    let bytes = operand.strides.map(|stride| stride.checked_mul(size));
    let [image, row, head] = bytes.map(|bytes| bytes.unwrap_or(usize::MAX));
    i64::try_from(image).is_ok() && [row, head].iter().all(|&n| i32::try_from(n).is_ok())
}

/// Whether levels may be one pixel high or wide, so that they have no 2x2 square of taps. Levels on
/// the device may be.
fn has_thin_levels(request: &Request<'_>) -> bool {
    let p = request.problem;
    p.sampling() == Sampling::Bilinear
        && p.layout() != Layout::PlanarRing
        && (request.levels == Levels::Device || p.levels().iter().any(|l| l.h < 2 || l.w < 2))
}

impl Rows {
    /// Lanes per lane group: `GROUP_LANES` in the kernels.
    fn group_lanes(&self, division: Division) -> usize {
        division.lanes * self.tap_columns * self.sample_groups
    }

    /// Passes over the samples of a query and head.
    pub fn passes(&self, p: &Problem, division: Division) -> usize {
        p.samples().div_ceil((self.group_lanes(division) * self.samples_per_lane).max(1))
    }

    /// The number of passes if in each of them all samples of a lane lie on one level; else 0.
    /// `LANE_LEVEL` in the kernels.
    fn lane_level_passes(&self, p: &Problem, division: Division) -> usize {
        let (points, passes) = (p.points()[0], self.passes(p, division));
        let one_level = self.samples_per_lane > 0
            && p.points().iter().all(|&n| n == points)
            && points.is_multiple_of(self.samples_per_lane);
        let most = if self.resident_levels > 0 && self.sample_groups == 1 { 4 } else { 1 };
        if one_level && passes <= most { passes } else { 0 }
    }

    /// Whether the compiler knows which samples lie on resident levels. `STATIC_RESIDENCY` in the
    /// kernels.
    pub fn static_residency(&self, p: &Problem, division: Division) -> bool {
        self.resident_levels > 0 && self.sample_groups == 1 && self.lane_level_passes(p, division) > 0
    }

    /// Bytes of shared memory through which the warps of a block stage samples, as `stage.cuh` lays
    /// them out.
    fn stage_bytes(&self, p: &Problem, division: Division) -> usize {
        let position = if Self::positions_fit_16_bits(p) { 2 } else { 4 };
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
    /// queries are visited in strips: 32 bytes per level, `ReadLevel` in `args.cuh`.
    fn table_bytes(&self, request: &Request<'_>) -> usize {
        match request.levels {
            Levels::Host => 0,
            Levels::Device if self.walk == Walk::Tiles => request.problem.levels().len() * 32,
            Levels::Device => self.threads / 32 * request.problem.levels().len() * 32,
        }
    }

    /// The positions of the resident levels: the first, and how many.
    fn resident_positions(&self, p: &Problem) -> (usize, usize) {
        let ring = p.layout().ring();
        let levels = &p.levels()[p.levels().len() - self.resident_levels..];
        let start = |l: &msda::Level| l.origin - ring * (l.pitch + 1);
        let first = levels.iter().map(start).min().unwrap_or(0);
        let end = levels.iter().map(|l| start(l) + (l.h + 2 * ring) * l.pitch).max().unwrap_or(0);
        (first, end - first)
    }

    /// Queries per tile.
    fn queries_per_tile(&self, division: Division) -> usize {
        self.threads / self.group_lanes(division) / self.heads_per_block
    }

    /// How tiles are divided among blocks. Blocks with resident levels get so many that the last
    /// blocks end together and levels are copied seldom; and two images, if the planes read at the
    /// same time still fit L2.
    pub fn tiling(&self, p: &Problem, target: &Target, division: Division) -> Tiling {
        let tiles = p.queries().div_ceil(self.queries_per_tile(division).max(1));
        let plain = Tiling { images_per_block: 1, tiles_per_block: 1, tiles_per_image: tiles };
        if self.resident_levels == 0 || tiles == 0 {
            return plain;
        }
        let at_once = (target.sms as usize * self.blocks_per_sm).max(1);
        let most = match self.walk {
            Walk::Sorted => SORT_QUERIES_PER_THREAD * self.group_lanes(division),
            _ => usize::MAX,
        };
        let plane = p.positions().saturating_mul(p.channels() * p.types().value.size());
        let mut best = (usize::MAX, plain);
        for images in 1..=p.batch().min(2) {
            for blocks in 1..=(images * tiles).min(8 * at_once) {
                let tiles_per_block = (images * tiles).div_ceil(blocks);
                let blocks = (images * tiles).div_ceil(tiles_per_block);
                let all = p.batch().div_ceil(images) * p.heads() * blocks;
                let planes = (all.min(at_once) * images).div_ceil(blocks);
                if tiles_per_block > most || (images > 1 && planes.saturating_mul(plane) > L2_BYTES) {
                    continue;
                }
                // The beginning and the end of a block take about as long as two thirds of a tile.
                let cost = all.div_ceil(at_once) * (3 * tiles_per_block + 2);
                if cost < best.0 {
                    let tiling = Tiling { images_per_block: images, tiles_per_block, tiles_per_image: tiles };
                    best = (cost, tiling);
                }
            }
        }
        best.1
    }

    /// Queries that a block sorts; 0 if it does not.
    fn sorted_queries(&self, p: &Problem, target: &Target, division: Division) -> usize {
        match self.walk {
            Walk::Sorted => {
                self.tiling(p, target, division).tiles_per_block * self.queries_per_tile(division)
            }
            _ => 0,
        }
    }

    /// Bytes of shared memory per block: the fixed part, the resident levels, the list of sorted
    /// queries.
    fn shared_bytes(&self, p: &Problem, target: &Target, division: Division) -> usize {
        let resident = if self.resident_levels > 0 { self.resident_bytes(p) } else { 0 };
        let list = (2 * self.sorted_queries(p, target, division)).next_multiple_of(16);
        resident.saturating_add(self.fixed_shared_bytes(p, division) + list)
    }

    /// With at most as many blocks per SM as its shared memory has room for.
    pub(crate) fn fitting(self, p: &Problem, target: &Target, division: Division) -> Self {
        let most = target.shared() / self.shared_bytes(p, target, division).max(1);
        Self { blocks_per_sm: self.blocks_per_sm.min(most).max(1), ..self }
    }

    /// Bytes of the resident levels.
    pub(crate) fn resident_bytes(&self, p: &Problem) -> usize {
        self.resident_positions(p).1.saturating_mul(p.channels() * p.types().value.size())
    }

    pub(super) fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        let p = request.problem;
        let o = request.operands;
        let size = p.types().value.size();
        if p.types().value == Dtype::F64 {
            return Some("values are f64, and it computes in f32".into());
        }
        let backward = request.pass != Pass::Forward;
        if backward && (self.resident_levels > 0 || self.f16_sums) {
            return Some("resident levels and sums in f16 belong to the forward pass".into());
        }
        let on_device = request.levels == Levels::Device;
        if on_device && (self.resident_levels > 0 || self.fixed_sizes) {
            return Some("the level sizes are on the device".into());
        }
        if on_device && p.levels().len() > 32 {
            return Some("the level sizes are on the device, and a warp has fewer lanes than levels".into());
        }
        if p.samples() == 0 || p.output_len() == 0 {
            return Some("there are no samples or no outputs".into());
        }
        if p.levels().len() > MAX_LEVELS {
            return Some(format!("{} levels; at most {MAX_LEVELS} fit the argument", p.levels().len()));
        }
        let bilinear = p.sampling() == Sampling::Bilinear;
        if self.resident_levels > 0 && has_thin_levels(request) {
            return Some("a level is one pixel wide or high, so it has no 2x2 square of taps".into());
        }
        if has_thin_levels(request) && p.positions() < 2 {
            return Some("value has one position, and a lane loads two".into());
        }
        let division = Division::of(request);
        let powers =
            [self.tap_columns, self.sample_groups, self.heads_per_block].iter().all(|n| n.is_power_of_two());
        let small = self.tap_columns <= 2
            && self.sample_groups <= 32
            && self.heads_per_block <= 1024
            && self.threads <= 1024;
        if !powers
            || !small
            || !(1..=32).contains(&self.blocks_per_sm)
            || !(1..=16).contains(&self.samples_per_lane)
        {
            return Some(
                "tap_columns, sample_groups, heads_per_block, threads, blocks_per_sm or samples_per_lane is out of \
                 range"
                    .into(),
            );
        }
        let lanes = self.group_lanes(division);
        if self.f16_sums && (request.sums != Sums::F16 || p.types().value != Dtype::F16) {
            return Some("sums in f16 need f16 values and a request that allows them".into());
        }
        if self.f16_sums && (!bilinear || division.vec < 4) {
            return Some("sums in f16 need bilinear sampling and two channels per lane".into());
        }
        if self.tap_columns == 2 && !bilinear {
            return Some("nearest sampling has no left and right taps".into());
        }
        if lanes > 32 {
            return Some(format!("{lanes} lanes per query and head; a warp has 32"));
        }
        if self.threads == 0
            || !self.threads.is_multiple_of(32)
            || !self.threads.is_multiple_of(lanes * self.heads_per_block)
        {
            return Some(format!(
                "{} threads do not divide into warps, and into {} heads of {lanes} lanes",
                self.threads, self.heads_per_block
            ));
        }
        let kept = self.passes(p, division) * self.samples_per_lane;
        if backward && o.reference_kind().is_some() && kept > MAX_KEPT {
            return Some(format!("a lane keeps the gradients of {kept} weights; at most {MAX_KEPT}"));
        }
        if self.sample_groups > 1 && self.samples_per_lane > 4 {
            return Some("more samples per pass than there are registers for".into());
        }
        if self.resident_levels > 0 {
            if p.layout() == Layout::Bshd || o[Slot::Value].strides[1] != p.channels() || division.vec != 16 {
                return Some("resident levels need planar values with rows of whole 16 bytes".into());
            }
            if self.resident_levels > p.levels().len() || self.heads_per_block != 1 || !bilinear {
                return Some("resident levels need one head per block and bilinear sampling".into());
            }
        }
        if self.resident_levels > 0 && p.queries().div_ceil(self.queries_per_tile(division)) >= 1 << 29 {
            return Some("the number of tiles does not fit 31 bits".into());
        }
        if self.walk == Walk::Sorted && self.resident_levels == 0 {
            return Some("without resident levels a block has too few queries to sort".into());
        }
        if self.sorted_queries(p, target, division) > SORT_QUERIES_PER_THREAD * self.threads {
            return Some("a block has more queries than its threads can sort".into());
        }
        let bytes = self.shared_bytes(p, target, division) + self.table_bytes(request);
        let most = target.shared() / self.blocks_per_sm;
        if bytes > most {
            return Some(format!(
                "{bytes} bytes of shared memory per block; with {} blocks per SM there are {most}",
                self.blocks_per_sm
            ));
        }
        if self.threads * self.blocks_per_sm > target.threads() as usize {
            return Some(format!(
                "{} threads per SM; an SM holds {}",
                self.threads * self.blocks_per_sm,
                target.threads()
            ));
        }
        if self.walk == Walk::Tiles && !request.queries_are_pixels() {
            return Some("the queries are not the pixels of the levels".into());
        }
        if self.walk == Walk::Ordered && p.points()[0] == 0 {
            return Some("the first level has no points to order queries by".into());
        }
        let longest = match request.levels {
            Levels::Host => p.levels().iter().map(|l| l.pitch).max().unwrap_or(0),
            // A row of a level has at most all positions.
            Levels::Device => p.positions(),
        };
        let fits_31 = |n: usize| n < 1 << 31;
        let pitch =
            o[Slot::Value].strides[1].checked_mul(size).and_then(|bytes| bytes.checked_mul(longest.max(1)));
        let strides = [
            (Slot::Value, size),
            (request.output(), size),
            (Slot::Locations, p.types().locations.size()),
            (Slot::Weights, p.types().weights.size()),
            (Slot::Reference, p.types().locations.size()),
            (Slot::GradLocations, p.types().locations.size()),
            (Slot::GradWeights, p.types().weights.size()),
        ];
        if !strides.iter().all(|(slot, size)| strides_fit(o[*slot], *size)) || !pitch.is_some_and(fits_31) {
            return Some("a stride in bytes does not fit 31 bits (63 bits between images)".into());
        }
        // The last tile may reach past the last query, and so may the kernel that orders them.
        let queries = p.queries().saturating_add(1024);
        let counts = [queries, p.heads(), p.positions(), p.samples().saturating_mul(8)];
        if !counts.into_iter().all(fits_31) {
            return Some("a count does not fit 31 bits".into());
        }
        if p.batch() > 65535 || p.heads().div_ceil(self.heads_per_block) > 65535 {
            return Some("more images or heads than a grid has blocks".into());
        }
        None
    }

    /// Whether positions fit 16 bits.
    fn positions_fit_16_bits(p: &Problem) -> bool {
        p.positions() <= 1 << 16
    }

    /// The part of the cache key that people read.
    fn key(&self, request: &Request<'_>, division: Division, row_pitches: &[String]) -> String {
        let p = request.problem;
        let points: Vec<String> = p.points().iter().map(ToString::to_string).collect();
        let dense = request.operands[Slot::Value].strides[1] == p.channels();
        format!(
            "{}-d{}-p{}-v{}-t{}-g{}-h{}-b{}x{}-s{}-r{}-{:?}{}{}{}{}{}{}",
            match request.pass {
                Pass::Backward(_) => "samples",
                Pass::Forward if self.resident_levels > 0 => "resident",
                Pass::Forward => "streaming",
            },
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
            if Self::positions_fit_16_bits(p) { "-pos16" } else { "" },
            if dense { "-dense" } else { "" },
            if self.f16_sums { "-f16sums" } else { "" },
            if request.levels == Levels::Device { "-devlevels" } else { "" },
            if has_thin_levels(request) { "-thin" } else { "" },
            if self.fixed_sizes { format!("-u{}", row_pitches.join(".")) } else { String::new() },
        )
        .to_lowercase()
    }

    pub(super) fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let mut call = Call::default();
        match request.pass {
            Pass::Forward => self.add(&mut call, request, target, None),
            Pass::Backward(_) => backward::prepare(&mut call, request, target, |call, shared| {
                self.add(call, request, target, Some(shared));
            }),
        }
        call
    }

    /// Adds the kernel to a call, and before it the one that orders queries. `shared` is memory
    /// that the kernels of a backward pass share.
    fn add(&self, call: &mut Call, request: &Request<'_>, target: &Target, shared: Option<Shared>) {
        let p = request.problem;
        let o = request.operands;
        let t = p.types();
        let division = Division::of(request);
        let row = p.channels() * t.value.size();
        let pixel_stride = o[Slot::Value].strides[1] * t.value.size();
        // A level one pixel high or wide has one row of taps.
        let is_thin = |level: &Level| p.layout() != Layout::PlanarRing && (level.h == 1 || level.w == 1);
        let row_pitch = |level: &Level| if is_thin(level) { 0 } else { level.pitch * pixel_stride };
        let row_pitches: Vec<usize> = p.levels().iter().map(row_pitch).collect();
        let fixed_pitches: Vec<String> = row_pitches.iter().map(ToString::to_string).collect();

        let order = (self.walk == Walk::Ordered).then(|| order_first(call, request, target));

        let mut args = Args::default();
        args.tensor(Slot::Value, o[Slot::Value], t.value.size());
        args.tensor(Slot::Locations, o[Slot::Locations], t.locations.size());
        args.tensor(Slot::Weights, o[Slot::Weights], t.weights.size());
        args.tensor(Slot::Reference, o[Slot::Reference], t.locations.size());
        args.tensor(request.output(), o[request.output()], t.value.size());
        args.pointer(order.map_or(Pointer::Workspace(0), Pointer::from));
        let Tiling { images_per_block, tiles_per_block, tiles_per_image } = self.tiling(p, target, division);
        let (first, resident) = if self.resident_levels > 0 { self.resident_positions(p) } else { (0, 0) };
        for n in [p.queries(), p.heads(), p.batch()] {
            args.i32(n);
        }
        for n in [images_per_block, tiles_per_block, tiles_per_image, resident, first] {
            args.i32(n);
        }
        let thin = has_thin_levels(request);
        let (mut sample, mut query) = (0, 0);
        for ((level, points), row_pitch) in p.levels().iter().zip(p.points()).zip(&row_pitches) {
            for n in [level.h, level.w, level.origin, level.pitch, *row_pitch, sample, query] {
                args.i32(n);
            }
            for x in [1.0 / (STRIP_HEIGHT * level.w) as f32, level.h as f32, level.w as f32] {
                args.f32(x);
            }
            if o.reference_kind() == Some(ReferenceKind::Point) {
                args.f32(1.0 / level.h as f32);
                args.f32(1.0 / level.w as f32);
            }
            if thin {
                let last = (level.h, level.w) == (1, 1) && level.origin + 1 == p.positions();
                args.i32(usize::from(last));
            }
            sample += points;
            query += level.h * level.w;
        }
        // The structure contains addresses, so its size is a multiple of 8.
        args.align(8);
        let on_device = request.levels == Levels::Device;
        if on_device {
            args.pointer(Slot::Shapes);
            args.pointer(Slot::Starts);
            args.i64(p.positions() as i64); // 31 bits
        }
        if let Some(shared) = shared {
            args.tensor(Slot::GradLocations, o[Slot::GradLocations], t.locations.size());
            args.tensor(Slot::GradWeights, o[Slot::GradWeights], t.weights.size());
            args.optional(shared.softmax);
            args.optional(shared.points);
        }

        let (file, entry) = match (request.pass, self.resident_levels) {
            (Pass::Backward(_), _) => ("backward/samples.cu", "msda_backward_samples"),
            (Pass::Forward, 0) => ("forward/streaming.cu", "msda_forward_streaming"),
            (Pass::Forward, _) => ("forward/resident.cu", "msda_forward_resident"),
        };
        let key = self.key(request, division, &fixed_pitches);
        let uniform = p.points().iter().all(|&n| n == p.points()[0]);
        let align = |role, operand, dtype: Dtype, numbers: usize| {
            aligned(p, role, operand, dtype.size(), numbers * self.samples_per_lane * dtype.size())
        };
        let mut unit = with_options(Unit::new(file, key, target.arch), p, o.reference_numbers())
            .define("D", p.channels())
            .define("LEVELS", p.levels().len())
            .define("SAMPLES", p.samples())
            .define("UNIFORM_POINTS", if uniform { p.points()[0] } else { 0 })
            .define("VEC", division.vec)
            .define("LANES_PER_ROW", division.lanes)
            .define("TAP_COLUMNS", self.tap_columns)
            .define("SAMPLE_GROUPS", self.sample_groups)
            .define("HEADS_PER_BLOCK", self.heads_per_block)
            .define("THREADS", self.threads)
            .define("BLOCKS_PER_SM", self.blocks_per_sm)
            .define("SAMPLES_PER_LANE", self.samples_per_lane)
            .define("LOCATION_ALIGN", align(Role::Locations, o[Slot::Locations], t.locations, 2))
            .define("WEIGHT_ALIGN", align(Role::Weights, o[Slot::Weights], t.weights, 1))
            .define("STRIP_HEIGHT", if self.walk == Walk::Tiles { STRIP_HEIGHT } else { 0 })
            .define("ORDERED", u8::from(self.walk == Walk::Ordered))
            .define("SORTED", u8::from(self.walk == Walk::Sorted))
            .define("POSITIONS_16BIT", u8::from(Self::positions_fit_16_bits(p)))
            // If positions are dense, the stride is known for all sizes.
            .define("PIXEL_STRIDE", if self.fixed_sizes || pixel_stride == row { pixel_stride } else { 0 })
            .define("ROW_PITCHES", if self.fixed_sizes { fixed_pitches.join(", ") } else { "0".into() })
            .define("F16_SUMS", u8::from(self.f16_sums))
            .define("DEVICE_LEVELS", u8::from(on_device))
            .define("THIN_LEVELS", u8::from(thin))
            .define("FIRST_RESIDENT", p.levels().len() - self.resident_levels)
            .define("ARGS_BYTES", args.bytes().len())
            .define("SHARED_BYTES", self.fixed_shared_bytes(p, division));
        if shared.is_some() {
            let location_align = align(Role::Locations, o[Slot::GradLocations], t.locations, 2);
            let weight_align = align(Role::Weights, o[Slot::GradWeights], t.weights, 1);
            unit = backward::with_wanted(unit, request)
                .define("BACKWARD", 1)
                .define("GRAD_LOCATION_ALIGN", location_align)
                .define("GRAD_WEIGHT_ALIGN", weight_align);
        }

        let blocks = (images_per_block * tiles_per_image).div_ceil(tiles_per_block);
        let heads = p.heads().div_ceil(self.heads_per_block);
        let grid = [blocks, heads, p.batch().div_ceil(images_per_block)].map(|n| n as u32);
        let mut launch = Launch::new(grid, [self.threads as u32, 1, 1]);
        launch.shared = (self.shared_bytes(p, target, division) + self.table_bytes(request)) as u32;
        let why = if shared.is_some() { backward::SAMPLES } else { "computes the output" };
        call.run(Prepared { unit, entry, launch, args }, why);
    }
}

#[cfg(test)]
mod tests {
    use msda::{Spec, Types};

    use super::*;
    use crate::driver::Arch;
    use crate::request::Operands;

    /// Planes of the seed shape.
    fn problem(change: impl FnOnce(&mut Spec)) -> Problem {
        let mut spec = Spec {
            batch: 48,
            queries: 15422,
            heads: 1,
            channels: 32,
            levels: vec![(92, 160), (46, 80), (23, 40), (12, 20)],
            points: vec![8; 4],
            layout: Layout::PlanarRing,
            types: Types::uniform(Dtype::F16),
            ..Spec::default()
        };
        change(&mut spec);
        Problem::new(spec).unwrap()
    }

    const TARGET: Target = Target { arch: Arch::new(9, 0), sms: 132 };

    /// The tiling, and the number of blocks.
    fn tiled(change: impl FnOnce(&mut Spec), knobs: &str) -> (Tiling, usize) {
        let p = problem(change);
        let operands = Operands::dense(&p, None);
        let request = Request::new(&p, &operands);
        let knobs: Rows = knobs.parse().unwrap();
        assert_eq!(knobs.refuses(&request, &TARGET), None);
        let call = knobs.prepare(&request, &TARGET);
        let tiling = knobs.tiling(&p, &TARGET, Division::of(&request));
        // Every tile of every image belongs to a block, and every block has a tile.
        let Tiling { images_per_block: images, tiles_per_block, tiles_per_image } = tiling;
        let [x, y, z] = call.last().unwrap().launch.grid.map(|n| n as usize);
        let tiles = images * tiles_per_image;
        assert!(x * tiles_per_block >= tiles && (x - 1) * tiles_per_block < tiles);
        assert!(y == p.heads() && z * images >= p.batch() && (z - 1) * images < p.batch());
        (tiling, x * y * z)
    }

    #[test]
    fn blocks_with_resident_levels_end_together() {
        let tiling = |images_per_block, tiles_per_block, tiles_per_image| Tiling {
            images_per_block,
            tiles_per_block,
            tiles_per_image,
        };
        let resident = "tap_columns=2,threads=1024,samples_per_lane=4,resident_levels=2";
        assert_eq!(tiled(|_| (), resident), (tiling(2, 22, 121), 2 * 132));
        // Planes twice as large do not fit L2 two images at a time.
        let wide = |s: &mut Spec| s.types = Types::uniform(Dtype::F32);
        let sorted = "threads=1024,samples_per_lane=4,resident_levels=1,walk=sorted";
        assert_eq!(tiled(wide, sorted), (tiling(1, 11, 121), 4 * 132));
        // A GPU test uses this shape: the second of three blocks has a tile of each image.
        let small = |s: &mut Spec| {
            (s.batch, s.queries, s.layout) = (301, 300, Layout::Planar);
            (s.levels, s.points) = (vec![(20, 30), (10, 15), (5, 8)], vec![4; 3]);
        };
        let (two, _) = tiled(small, "tap_columns=2,threads=1024,samples_per_lane=2,resident_levels=1");
        assert_eq!(two, tiling(2, 2, 3));
        // A block that sorts has no more queries than its threads can sort.
        let many = |s: &mut Spec| (s.batch, s.queries) = (300, 40_000);
        let (sorted, _) =
            tiled(many, "tap_columns=2,threads=1024,samples_per_lane=4,resident_levels=2,walk=sorted");
        assert!(sorted.tiles_per_block <= SORT_QUERIES_PER_THREAD * 8, "{sorted:?}");
    }

    #[test]
    fn knobs_are_read_with_their_present_and_their_former_names() {
        let text = "tap_columns=2,sample_groups=4,heads_per_block=8,threads=256,blocks_per_sm=3,samples_per_lane=5,\
                    resident_levels=1,walk=tiles,f16_sums=1,fixed_sizes=1";
        let former = "sides=2,split=4,heads=8,block=256,blocks=3,round=5,keep=1,walk=tiles,half=1,fixed=1";
        let knobs: Rows = former.parse().unwrap();
        assert_eq!(knobs.to_string(), text);
        assert_eq!(text.parse::<Rows>().unwrap(), knobs);
        assert!("sides=x".parse::<Rows>().is_err() && "walk=away".parse::<Rows>().is_err());
    }

    #[test]
    fn strides_that_overflow_are_refused() {
        let p = problem(|s| s.batch = 1);
        let mut operands = Operands::dense(&p, None);
        for stride in [usize::MAX, usize::MAX / 2, 1 << 62] {
            operands[Slot::Value].strides[0] = stride;
            let why = Rows::default().refuses(&Request::new(&p, &operands), &TARGET);
            assert!(why.is_some_and(|why| why.contains("63 bits")), "{stride}");
        }
        operands[Slot::Value].strides[0] = 1 << 61;
        assert_eq!(Rows::default().refuses(&Request::new(&p, &operands), &TARGET), None);
    }
}
