//! `rows.cu`: lanes that share a query and head.

use std::fmt;
use std::str::FromStr;

use msda::{Dtype, Error, ErrorKind, Layout, Problem, Result, Role, Sampling};

use super::{Args, Call, Pointer, Prepared, order_first, with_options};
use crate::driver::Launch;
use crate::jit::Unit;
use crate::request::{Levels, Operand, Request, Slot, Sums, Target};

/// In which order queries are visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Walk {
    /// As they come.
    Straight,
    /// Along strips of eight rows, so that a block gets about a square: they are the pixels of the levels.
    Tiles,
    /// Along a curve over the places they look at, which another kernel finds first.
    Ordered,
    /// Those of a block along strips of the image, by the places they look at, which the block finds first; for blocks that
    /// keep levels, and so have many queries.
    Sorted,
}

impl Walk {
    /// All of them, with the names that knobs have.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Straight, "straight"),
        (Self::Tiles, "tiles"),
        (Self::Ordered, "ordered"),
        (Self::Sorted, "sorted"),
    ];
}

/// The rows of a strip.
pub const STRIP: usize = 8;

/// Cells by which a block sorts its queries, as `rows.cuh` has them: strips of the image, and columns of a strip.
pub const SORT_CELLS: [usize; 2] = [8, 64];

/// Bytes of its counters of them, which are where samples are handed on later.
const SORT_BYTES: usize = SORT_CELLS[0] * SORT_CELLS[1] * 4;

/// The most queries of a block that sorts them, for each of its threads.
const SORTS: usize = 4;

/// What the planes that are read at a time may take of the second-level cache.
const L2_BYTES: usize = 32 << 20;

/// How tiles of queries are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Images of a block.
    pub images: usize,
    /// Tiles of a block.
    pub each: usize,
    /// Tiles of an image.
    pub tiles: usize,
}

/// The most levels: their table is part of the argument.
const MAX_LEVELS: usize = 64;

/// Knobs. What follows from the problem (bytes a lane, lanes a row) is not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    /// 2: left and right taps are read by lanes of their own.
    pub sides: usize,
    /// Groups of lanes that share the samples of an item.
    pub split: usize,
    /// Heads of a block.
    pub heads: usize,
    /// Threads of a block.
    pub block: usize,
    /// Blocks that a multiprocessor should hold.
    pub blocks: usize,
    /// Samples a lane locates at a time.
    pub round: usize,
    /// How many of the last levels a block keeps in shared memory; for planar values.
    pub keep: usize,
    /// Whether the samples of a round are summed in `f16`.
    pub half: bool,
    /// Whether it is compiled for the sizes of one problem.
    pub fixed: bool,
    /// In which order queries are visited.
    pub walk: Walk,
}

impl Default for Rows {
    /// Nothing shared, nothing kept, one thing at a time.
    fn default() -> Self {
        Self {
            sides: 1,
            split: 1,
            heads: 1,
            block: 128,
            blocks: 1,
            round: 1,
            keep: 0,
            half: false,
            fixed: false,
            walk: Walk::Straight,
        }
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let walk = Walk::ALL.iter().find(|(walk, _)| *walk == self.walk).map_or("", |(_, name)| name);
        write!(
            f,
            "sides={},split={},heads={},block={},blocks={},round={},keep={},walk={walk}{}{}",
            self.sides,
            self.split,
            self.heads,
            self.block,
            self.blocks,
            self.round,
            self.keep,
            if self.half { ",half=1" } else { "" },
            if self.fixed { ",fixed=1" } else { "" }
        )
    }
}

impl FromStr for Rows {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let wrong = |got: String| {
            Error::new(ErrorKind::Format, "knobs of rows", got, "name=value, separated by commas")
                .hint("for example rows:sides=1,split=1,heads=2,block=512,blocks=3,round=4,walk=tiles")
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
            match name {
                "sides" => knobs.sides = number,
                "split" => knobs.split = number,
                "heads" => knobs.heads = number,
                "block" => knobs.block = number,
                "blocks" => knobs.blocks = number,
                "round" => knobs.round = number,
                "keep" => knobs.keep = number,
                "half" => knobs.half = number != 0,
                "fixed" => knobs.fixed = number != 0,
                _ => return Err(wrong(format!("'{knob}'"))),
            }
        }
        Ok(knobs)
    }
}

/// What follows from the request: how a row is divided among lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Division {
    /// Bytes that a lane reads of a row.
    pub vec: usize,
    /// Lanes that share a row; a power of two.
    pub lanes: usize,
}

impl Division {
    /// The widest that all addresses and strides allow.
    pub fn of(request: &Request<'_>) -> Self {
        let p = request.problem;
        let size = p.types().value.size();
        let row = p.channels() * size;
        let grain = 16
            | row
            | grain(p, Role::Value, request.operands[Slot::Value], size)
            | grain(p, Role::Output, request.operands[Slot::Output], size);
        let vec = grain & grain.wrapping_neg();
        Self { vec, lanes: row.div_ceil(vec).next_power_of_two() }
    }
}

/// A number whose lowest bit is the largest power of two that every row's address is a multiple of.
pub fn grain(p: &Problem, role: Role, operand: Operand, size: usize) -> usize {
    let (extents, _) = role.shape(p);
    let taken = operand.strides.into_iter().zip(extents).filter(|&(_, extent)| extent > 1);
    taken.fold(operand.align, |grain, (stride, _)| grain | stride.wrapping_mul(size))
}

/// How many bytes a lane can read at once of a tensor, of which its part is `bytes` long.
pub fn aligned(p: &Problem, role: Role, operand: Operand, size: usize, bytes: usize) -> usize {
    let grain = bytes | grain(p, role, operand, size);
    (grain & grain.wrapping_neg()).clamp(size, 16)
}

impl Rows {
    /// Lanes of an item.
    fn item(&self, division: Division) -> usize {
        division.lanes * self.sides * self.split
    }

    /// Rounds in which the samples of an item are located.
    pub fn rounds(&self, p: &Problem, division: Division) -> usize {
        p.samples().div_ceil((self.item(division) * self.round).max(1))
    }

    /// Rounds for whose samples each lane has the level at hand, where those of a lane are on one; else 0. As `OWN` in `rows.cuh`.
    fn own_rounds(&self, p: &Problem, division: Division) -> usize {
        let (points, rounds) = (p.points()[0], self.rounds(p, division));
        let whole =
            self.round > 0 && p.points().iter().all(|&n| n == points) && points.is_multiple_of(self.round);
        let most = if self.keep > 0 && self.split == 1 { 4 } else { 1 };
        if whole && rounds <= most { rounds } else { 0 }
    }

    /// Whether it is known when the kernel is compiled which samples are on levels that are kept. As `PARTED` in `rows.cuh`.
    pub fn parted(&self, p: &Problem, division: Division) -> bool {
        self.keep > 0 && self.split == 1 && self.own_rounds(p, division) > 0
    }

    /// Bytes of shared memory through which the warps of a block hand samples on: as `rows.cuh` lays them out.
    fn handed(&self, p: &Problem, division: Division) -> usize {
        let position = if Self::tight(p) { 2 } else { 4 };
        let item = self.item(division);
        let apart = if item <= 4 { (item - 1) * (8 / item) } else { (item - 1) * (32 / item) / 8 };
        let slots = 32 + if self.sides == 1 && self.split == 1 { apart } else { 0 };
        // So many samples each, and four weights.
        let handed = self.block / 32 * (slots * (16 + position) * self.round).next_multiple_of(16);
        if self.walk == Walk::Sorted { handed.max(SORT_BYTES) } else { handed }
    }

    /// The positions of the levels that are kept: the first, and how many.
    fn kept(&self, p: &Problem) -> (usize, usize) {
        let ring = p.layout().ring();
        let levels = &p.levels()[p.levels().len() - self.keep..];
        let start = |l: &msda::Level| l.origin - ring * (l.pitch + 1);
        let first = levels.iter().map(start).min().unwrap_or(0);
        let end = levels.iter().map(|l| start(l) + (l.h + 2 * ring) * l.pitch).max().unwrap_or(0);
        (first, end - first)
    }

    /// Queries of a tile.
    fn queries(&self, division: Division) -> usize {
        self.block / self.item(division) / self.heads
    }

    /// How the tiles are shared out. Blocks that keep levels have as many as let the last of them end together, and load what they
    /// keep seldom; of two images, where those that are read at a time still fit the second-level cache.
    pub fn share(&self, p: &Problem, target: &Target, division: Division) -> Share {
        let tiles = p.queries().div_ceil(self.queries(division).max(1));
        let plain = Share { images: 1, each: 1, tiles };
        if self.keep == 0 || tiles == 0 {
            return plain;
        }
        let at_once = (target.multiprocessors as usize * self.blocks).max(1);
        let most = if self.walk == Walk::Sorted { SORTS * self.item(division) } else { usize::MAX };
        let plane = p.positions().saturating_mul(p.channels() * p.types().value.size());
        let mut best = (usize::MAX, plain);
        for images in 1..=p.batch().min(2) {
            for blocks in 1..=(images * tiles).min(8 * at_once) {
                let each = (images * tiles).div_ceil(blocks);
                let blocks = (images * tiles).div_ceil(each);
                let all = p.batch().div_ceil(images) * p.heads() * blocks;
                let planes = (all.min(at_once) * images).div_ceil(blocks);
                if each > most || (images > 1 && planes.saturating_mul(plane) > L2_BYTES) {
                    continue;
                }
                // A block's beginning and end take about as long as two thirds of a tile.
                let cost = all.div_ceil(at_once) * (3 * each + 2);
                if cost < best.0 {
                    best = (cost, Share { images, each, tiles });
                }
            }
        }
        best.1
    }

    /// Queries of a block that sorts them; else 0.
    fn sorted(&self, p: &Problem, target: &Target, division: Division) -> usize {
        if self.walk != Walk::Sorted {
            return 0;
        }
        self.share(p, target, division).each * self.queries(division)
    }

    /// Bytes of shared memory of a block: what is handed on, where it is and the levels that it keeps, the list of sorted queries.
    fn shared(&self, p: &Problem, target: &Target, division: Division) -> usize {
        let stay = 32 + 16 * self.item(division) * (1 + self.own_rounds(p, division).max(1));
        let kept = if self.keep > 0 { self.kept_bytes(p).saturating_add(stay) } else { 0 };
        self.handed(p, division) + kept + (2 * self.sorted(p, target, division)).next_multiple_of(16)
    }

    /// With no more blocks a multiprocessor than its shared memory has room for.
    pub(crate) fn fitting(self, p: &Problem, target: &Target, division: Division) -> Self {
        let most = target.shared() / self.shared(p, target, division).max(1);
        Self { blocks: self.blocks.min(most).max(1), ..self }
    }

    /// Bytes of shared memory that the levels take which are kept.
    pub(crate) fn kept_bytes(&self, p: &Problem) -> usize {
        self.kept(p).1.saturating_mul(p.channels() * p.types().value.size())
    }

    pub(super) fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        let p = request.problem;
        let o = request.operands;
        let size = p.types().value.size();
        if p.types().value == Dtype::F64 {
            return Some("values are f64: arithmetic is f32 here".into());
        }
        if request.levels == Levels::Device {
            return Some("level sizes are on the device".into());
        }
        if p.samples() == 0 || p.output_len() == 0 {
            return Some("nothing is sampled".into());
        }
        if p.levels().len() > MAX_LEVELS {
            return Some(format!("{} levels: at most {MAX_LEVELS} fit the argument", p.levels().len()));
        }
        let bilinear = p.sampling() == Sampling::Bilinear;
        if bilinear && p.layout() != Layout::PlanarRing && p.levels().iter().any(|l| l.h < 2 || l.w < 2) {
            return Some("a level is one pixel wide or high: its taps are no square".into());
        }
        let division = Division::of(request);
        let powers = [self.sides, self.split, self.heads].iter().all(|n| n.is_power_of_two());
        let small = self.sides <= 2 && self.split <= 32 && self.heads <= 1024 && self.block <= 1024;
        if !powers || !small || !(1..=32).contains(&self.blocks) || !(1..=16).contains(&self.round) {
            return Some("sides, split, heads, block, blocks or round is no number it can have".into());
        }
        let item = self.item(division);
        if self.half && (request.sums != Sums::F16 || p.types().value != Dtype::F16) {
            return Some("sums of f16 are for f16 values, where they are asked for".into());
        }
        if self.half && (!bilinear || division.vec < 4) {
            return Some("sums of f16 are for bilinear samples, two channels at a time".into());
        }
        if self.sides == 2 && !bilinear {
            return Some("nearest samples have no left and right taps".into());
        }
        if item > 32 {
            return Some(format!("{item} lanes for a query and head: a warp has 32"));
        }
        if self.block == 0 || !self.block.is_multiple_of(32) || !self.block.is_multiple_of(item * self.heads)
        {
            return Some(format!(
                "{} threads are no whole warps of {} heads of {item} lanes",
                self.block, self.heads
            ));
        }
        if self.split > 1 && self.round > 4 {
            return Some("more samples at a time than registers hold".into());
        }
        if self.keep > 0 {
            if p.layout() == Layout::Bshd || o[Slot::Value].strides[1] != p.channels() || division.vec != 16 {
                return Some("levels are kept only of planar values whose rows are whole 16 bytes".into());
            }
            if self.keep > p.levels().len() || self.heads != 1 || !bilinear {
                return Some("levels are kept by blocks of one head, bilinear".into());
            }
        }
        if self.keep > 0 && p.queries().div_ceil(self.queries(division)) >= 1 << 29 {
            return Some("more tiles of queries than 31 bits count".into());
        }
        if self.walk == Walk::Sorted && self.keep == 0 {
            return Some("blocks that keep no levels have too few queries to sort".into());
        }
        if self.sorted(p, target, division) > SORTS * self.block {
            return Some("more queries to sort in a block than its threads take".into());
        }
        let bytes = self.shared(p, target, division);
        let most = target.shared() / self.blocks;
        if bytes > most {
            return Some(format!("{bytes} bytes of shared memory: {} blocks have {most} each", self.blocks));
        }
        if self.block * self.blocks > target.threads() as usize {
            return Some(format!(
                "{} threads a multiprocessor: it holds {}",
                self.block * self.blocks,
                target.threads()
            ));
        }
        if self.walk == Walk::Tiles && !request.queries_are_pixels() {
            return Some("the queries are not the pixels of the levels".into());
        }
        if self.walk == Walk::Ordered && p.points()[0] == 0 {
            return Some("no points on the first level to order queries by".into());
        }
        let longest = p.levels().iter().map(|l| l.pitch).max().unwrap_or(0);
        let small = |n: Option<usize>| n.is_some_and(|n| n < 1 << 31);
        let fits = small(o[Slot::Value].strides[1].checked_mul(size * longest.max(1)))
            && [
                (o[Slot::Value].strides, size),
                (o[Slot::Output].strides, size),
                (o[Slot::Locations].strides, p.types().locations.size()),
                (o[Slot::Weights].strides, p.types().weights.size()),
                (o[Slot::Reference].strides, p.types().locations.size()),
            ]
            .iter()
            .all(|(strides, size)| strides[1..].iter().all(|s| small(s.checked_mul(*size))));
        // The last tile may go past the last query, and so may the kernel that orders them.
        let small_counts = [p.queries().saturating_add(1024), p.heads(), p.positions(), p.samples() * 8]
            .iter()
            .all(|&n| small(Some(n)));
        if !fits || !small_counts {
            return Some("a stride or count does not fit 31 bits".into());
        }
        if p.batch() > 65535 || p.heads().div_ceil(self.heads) > 65535 {
            return Some("more images or heads than a grid has blocks".into());
        }
        None
    }

    /// Whether positions fit 16 bits.
    fn tight(p: &Problem) -> bool {
        p.positions() <= 1 << 16
    }

    pub(super) fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let o = request.operands;
        let t = p.types();
        let division = Division::of(request);
        let uniform = p.points().iter().all(|&n| n == p.points()[0]);
        let points: Vec<String> = p.points().iter().map(ToString::to_string).collect();
        let row = p.channels() * t.value.size();
        let apart = o[Slot::Value].strides[1] * t.value.size();
        // Positions that follow each other: the next one is a constant away, whatever the sizes.
        let step = if self.fixed || apart == row { apart } else { 0 };
        let under: Vec<String> = p.levels().iter().map(|level| (level.pitch * apart).to_string()).collect();
        let tight = Self::tight(p);
        let align = |role, operand, dtype: Dtype, numbers: usize| {
            aligned(p, role, operand, dtype.size(), numbers * self.round * dtype.size())
        };
        let key = format!(
            "rows-d{}-p{}-v{}-s{}x{}-h{}-b{}x{}-r{}-k{}-{:?}{}{}{}{}",
            p.channels(),
            points.join("."),
            division.vec,
            self.sides,
            self.split,
            self.heads,
            self.block,
            self.blocks,
            self.round,
            self.keep,
            self.walk,
            if tight { "-tight" } else { "" },
            if apart == row { "-dense" } else { "" },
            if self.half { "-half" } else { "" },
            if self.fixed { format!("-u{}", under.join(".")) } else { String::new() },
        );
        let unit = with_options(Unit::new("rows.cu", key, target.arch), p, o.reference_numbers())
            .define("D", p.channels())
            .define("LEVELS", p.levels().len())
            .define("SAMPLES", p.samples())
            .define("UNIFORM", if uniform { p.points()[0] } else { 0 })
            .define("VEC", division.vec)
            .define("LANES", division.lanes)
            .define("SIDES", self.sides)
            .define("SPLIT", self.split)
            .define("HEADS", self.heads)
            .define("BLOCK", self.block)
            .define("BLOCKS", self.blocks)
            .define("ROUND", self.round)
            .define("ALIGN_L", align(Role::Locations, o[Slot::Locations], t.locations, 2))
            .define("ALIGN_W", align(Role::Weights, o[Slot::Weights], t.weights, 1))
            .define("STRIP", if self.walk == Walk::Tiles { STRIP } else { 0 })
            .define("LISTED", u8::from(self.walk == Walk::Ordered))
            .define("SORTED", u8::from(self.walk == Walk::Sorted))
            .define("TIGHT", u8::from(tight))
            .define("STEP", step)
            .define("UNDER", if self.fixed { under.join(", ") } else { "0".into() })
            .define("HALF", u8::from(self.half))
            .define("RESIDENT", p.levels().len() - self.keep);

        let mut args = Args::default();
        args.tensor(Slot::Value, o[Slot::Value], t.value.size());
        args.tensor(Slot::Locations, o[Slot::Locations], t.locations.size());
        args.tensor(Slot::Weights, o[Slot::Weights], t.weights.size());
        args.tensor(Slot::Reference, o[Slot::Reference], t.locations.size());
        args.tensor(Slot::Output, o[Slot::Output], t.value.size());
        let mut call = Call::default();
        let order = (self.walk == Walk::Ordered).then(|| order_first(&mut call, request, target));
        args.pointer(order.map_or(Pointer::Workspace(0), Pointer::from));
        let Share { images, each, tiles } = self.share(p, target, division);
        let (first_kept, kept) = if self.keep > 0 { self.kept(p) } else { (0, 0) };
        for n in [p.queries(), p.heads(), p.batch(), images, each, tiles, kept, first_kept] {
            args.i32(n);
        }
        let (mut sample, mut query) = (0, 0);
        for (level, points) in p.levels().iter().zip(p.points()) {
            for n in [level.h, level.w, level.origin, level.pitch, level.pitch * apart, sample, query] {
                args.i32(n);
            }
            for x in [1.0 / (STRIP * level.w) as f32, level.h as f32, level.w as f32] {
                args.f32(x);
            }
            sample += points;
            query += level.h * level.w;
        }
        // As the structure ends, which has addresses in it.
        args.align(8);
        let blocks = (images * tiles).div_ceil(each);
        let grid = [blocks, p.heads().div_ceil(self.heads), p.batch().div_ceil(images)].map(|n| n as u32);
        let mut launch = Launch::new(grid, [self.block as u32, 1, 1]);
        launch.shared = self.shared(p, target, division) as u32;
        call.run(Prepared { unit, entry: "msda_forward", launch, args }, "computes the output");
        call
    }
}

#[cfg(test)]
mod tests {
    use msda::{Spec, Types};

    use super::*;
    use crate::driver::Arch;
    use crate::request::Operands;

    /// Planes of the size that the documents have.
    fn shared_out(change: impl FnOnce(&mut Spec), knobs: &str) -> (Share, usize) {
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
        let p = Problem::new(spec).unwrap();
        let operands = Operands::dense(&p, None);
        let request = Request::new(&p, &operands);
        let target = Target { arch: Arch::new(9, 0), multiprocessors: 132 };
        let knobs: Rows = knobs.parse().unwrap();
        assert_eq!(knobs.refuses(&request, &target), None);
        let call = knobs.prepare(&request, &target);
        let share = knobs.share(&p, &target, Division::of(&request));
        // Every tile of every image is somebody's.
        let [x, y, z] = call.last().unwrap().launch.grid.map(|n| n as usize);
        assert!(
            x * share.each >= share.images * share.tiles && (x - 1) * share.each < share.images * share.tiles
        );
        assert!(y == p.heads() && z * share.images >= p.batch() && (z - 1) * share.images < p.batch());
        (share, x * y * z)
    }

    #[test]
    fn blocks_that_keep_levels_end_together() {
        let kept = "sides=2,block=1024,round=4,keep=2";
        assert_eq!(shared_out(|_| (), kept), (Share { images: 2, each: 22, tiles: 121 }, 2 * 132));
        // Planes twice as large would not fit the cache two images at a time.
        let wide = |s: &mut Spec| s.types = Types::uniform(Dtype::F32);
        let sorted = "sides=1,block=1024,round=4,keep=1,walk=sorted";
        assert_eq!(shared_out(wide, sorted), (Share { images: 1, each: 11, tiles: 121 }, 4 * 132));
        // As on a GPU the test that blocks go from image to image has it: the second of three has a tile of each.
        let small = |s: &mut Spec| {
            (s.batch, s.queries, s.layout) = (301, 300, Layout::Planar);
            (s.levels, s.points) = (vec![(20, 30), (10, 15), (5, 8)], vec![4; 3]);
        };
        let (share, _) = shared_out(small, "sides=2,block=1024,round=2,keep=1");
        assert_eq!(share, Share { images: 2, each: 2, tiles: 3 });
        // What sorts has no more queries than its threads take.
        let many = |s: &mut Spec| (s.batch, s.queries) = (300, 40_000);
        let (share, _) = shared_out(many, "sides=2,block=1024,round=4,keep=2,walk=sorted");
        assert!(share.each <= SORTS * 8, "{share:?}");
    }
}
