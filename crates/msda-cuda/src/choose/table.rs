//! The table: kernels to try for a request, in order, each with its reason. The numbers were
//! measured; BENCHMARKS.md has the times.

use msda::{Layout, Sampling};

use crate::kernels::{Division, Kernel, Rows, Walk};
use crate::request::{Pass, Request};
use crate::target::Target;

/// Bytes of a cache line.
const LINE: usize = 128;

/// From so many queries per image on, ordering them or resident levels can pay.
const MANY_QUERIES: usize = 4096;

/// From so many images on, ordering queries by location pays.
const MANY_IMAGES: usize = 4;

/// Threads per SM that leave each 40 registers, 48, and 64.
pub(super) const THREADS_OF_40: usize = 1536;
pub(super) const THREADS_OF_48: usize = 1280;
const THREADS_OF_64: usize = 1024;

/// Pixels are few queries up to this part of the lanes that the GPU holds.
const FEW_PIXELS: (usize, usize) = (3, 16);

/// The most samples per lane and pass.
const MAX_SAMPLES_PER_LANE: usize = 4;

/// Queries of a tile, about; and the threads of its block, at least and at most.
const TILE_QUERIES: usize = 64;
const TILE_THREADS: (usize, usize) = (64, 512);

/// A query with at most so many samples needs few registers.
const LIGHT_SAMPLES: usize = 16;

/// Shared memory that resident levels may take: it leaves half of L1.
const RESIDENT_BYTES: usize = 96 << 10;

/// The most resident levels.
const MAX_RESIDENT: usize = 3;

/// The most passes in which the level of each lane is known to the compiler.
const MAX_KNOWN_PASSES: usize = 4;

/// A kernel, and the reason to try it.
type Entry = (Kernel, &'static str);

/// The kernels to try, in order, each with its reason.
pub(super) fn table(request: &Request<'_>, target: &Target) -> Vec<Entry> {
    let division = Division::of(request);
    if division.lanes > 32 {
        // None accepts it. One entry is enough to say why.
        return vec![(Kernel::Rows(Rows::default()), "")];
    }
    let s = Situation::new(request, target, division);
    let mut all = Vec::new();
    if s.has_few_queries() {
        all.extend(s.few_queries());
    }
    if s.has_busy_planes() {
        all.extend(s.resident_levels());
    }
    all.extend(s.many_queries());
    all.extend(s.small_blocks());
    all
}

/// What the choice depends on.
struct Situation<'a> {
    request: &'a Request<'a>,
    target: &'a Target,
    division: Division,
    /// Samples per query and head.
    samples: usize,
    /// Bytes of a row, with the lanes past its end.
    row: usize,
    planar: bool,
    sms: usize,
    /// Queries of all images and heads.
    groups: usize,
    /// Lanes that all of them need, and lanes that the GPU holds.
    lanes_needed: usize,
    capacity: usize,
    tap_columns: usize,
    /// Lanes per query and head without sample groups.
    lanes: usize,
    heads_per_block: usize,
    samples_per_lane: usize,
}

impl<'a> Situation<'a> {
    fn new(request: &'a Request<'a>, target: &'a Target, division: Division) -> Self {
        let p = request.problem;
        let row = division.lanes * division.vec;
        let groups = p.batch() * p.queries() * p.heads();
        let planar = p.layout() != Layout::Bshd;
        let sms = target.sms.max(1) as usize;
        // In planar layouts the left and the right tap of 64-byte rows make a line.
        let bilinear = p.sampling() == Sampling::Bilinear;
        let tap_columns = if planar && 2 * row == LINE && bilinear && division.lanes <= 16 { 2 } else { 1 };
        // In (B, S, H, D) the rows of two or four heads share a line: one block computes those
        // heads.
        let share_line = |heads: &usize| !planar && heads * row <= LINE && p.heads().is_multiple_of(*heads);
        let (samples, lanes) = (p.samples().max(1), division.lanes * tap_columns);
        Self {
            request,
            target,
            division,
            samples,
            row,
            planar,
            sms,
            groups,
            lanes_needed: groups.saturating_mul(division.lanes),
            capacity: sms * target.threads() as usize,
            tap_columns,
            lanes,
            heads_per_block: [4, 2].into_iter().find(share_line).unwrap_or(1),
            samples_per_lane: samples_per_lane(samples, lanes, request.pass != Pass::Forward),
        }
    }

    fn is_fused_forward(&self) -> bool {
        self.request.pass == Pass::Forward && self.request.operands.reference_kind().is_some()
    }

    /// A kernel whose blocks fit the shared memory of an SM.
    fn kernel(&self, knobs: Rows) -> Kernel {
        Kernel::Rows(knobs.fitting(self.request.problem, self.target, self.division))
    }

    /// Less work than the GPU holds. Pixels count as many sooner, because neighbours share rows.
    fn has_few_queries(&self) -> bool {
        if self.request.queries_are_pixels() {
            return self.lanes_needed <= self.capacity * FEW_PIXELS.0 / FEW_PIXELS.1;
        }
        self.request.problem.queries() < MANY_QUERIES || self.lanes_needed < self.capacity
    }

    /// Nothing is read twice, so loads in flight count: many threads, or registers for several
    /// loads per thread.
    fn few_queries(&self) -> [Entry; 2] {
        let fits = |n: &usize| self.lanes * n <= 32 && self.samples >= 2 * n;
        let sample_groups = [4 / self.tap_columns, 2, 1].into_iter().find(fits).unwrap_or(1);
        let lanes = self.lanes * sample_groups;
        let threads = if sample_groups > 1 { 128 } else { 256 };
        // Widening 16 bits needs registers. If all work runs at the same time anyway, more threads
        // are better.
        let per_sm = self.groups.saturating_mul(lanes).div_ceil(self.sms);
        let narrow = self.request.problem.types().value.size() == 2;
        let blocks = |held: usize, threads| held.min(self.target.threads() as usize) / threads;
        let needs_48 = sample_groups > 1 && narrow && per_sm > THREADS_OF_40;
        let held = if needs_48 { THREADS_OF_48 } else { THREADS_OF_40 };
        let plain = Rows {
            tap_columns: self.tap_columns,
            sample_groups,
            heads_per_block: self.heads_per_block.min(threads / lanes).max(1),
            threads,
            blocks_per_sm: blocks(held, threads),
            ..Rows::default()
        };
        // The fused form computes more before the first tap, and needs more registers for it.
        let shared = if !self.is_fused_forward() {
            plain
        } else if narrow && sample_groups > 2 && per_sm > THREADS_OF_64 / 2 {
            Rows {
                sample_groups: 2,
                heads_per_block: 1,
                blocks_per_sm: blocks(THREADS_OF_64, threads),
                samples_per_lane: self.samples.div_ceil(2 * self.lanes).min(2),
                ..plain
            }
        } else if !narrow && sample_groups > 1 && per_sm > 2 * THREADS_OF_48 {
            Rows { heads_per_block: 1, threads: 64, blocks_per_sm: blocks(THREADS_OF_48, 64), ..plain }
        } else {
            plain
        };
        let own = "There are few queries, so every one gets its own lanes.";
        let why = match sample_groups {
            1 => own,
            _ => "There are few queries, so sample groups share the samples of each.",
        };
        [(self.kernel(shared), why), (self.kernel(Rows { threads, ..Rows::default() }), own)]
    }

    /// Planes with many queries, whose rows fill a line or half of one.
    fn has_busy_planes(&self) -> bool {
        self.planar
            && (2 * self.row == LINE || self.row == LINE)
            && self.request.problem.queries() >= MANY_QUERIES
            && self.lanes_needed >= self.capacity
    }

    /// The coarse levels become resident, as many as leave half of L1. If a row fills a line, L1
    /// holds half as many rows, and sorting a block's queries pays.
    fn resident_levels(&self) -> Vec<Entry> {
        let p = self.request.problem;
        let sorted = self.row == LINE;
        // Fewer samples per pass need less staging memory and leave more L1. All samples of a lane
        // lie on one level, in few passes.
        let known = |n: &usize| {
            p.points()[0].is_multiple_of(*n) && self.samples.div_ceil(self.lanes * n) <= MAX_KNOWN_PASSES
        };
        let samples_per_lane = [2, 1, 3, 4].into_iter().find(known).unwrap_or(self.samples_per_lane.min(2));
        let with = |resident_levels| Rows {
            tap_columns: self.tap_columns,
            threads: if sorted { 768 } else { 1024 },
            samples_per_lane,
            resident_levels,
            walk: if sorted { Walk::Sorted } else { Walk::Straight },
            ..Rows::default()
        };
        let fits = |levels: &usize| with(*levels).resident_bytes(p) <= RESIDENT_BYTES;
        let Some(levels) = (1..=p.levels().len().min(MAX_RESIDENT)).rev().find(fits) else {
            return Vec::new();
        };
        let why = "Each plane has many queries, so its coarse levels are resident in shared memory.";
        let mut all = vec![(self.kernel(with(levels)), why)];
        if sorted {
            all.push((self.kernel(Rows { walk: Walk::Straight, ..with(levels) }), why));
        }
        all
    }

    /// Many queries: in tiles, ordered by location, or in input order.
    fn many_queries(&self) -> Vec<Entry> {
        let p = self.request.problem;
        let many = self.tiles();
        let tiles = Rows { walk: Walk::Tiles, ..many };
        let mut all = vec![(
            self.kernel(tiles),
            "The queries are pixels, so they are visited in tiles whose queries share rows.",
        )];
        if p.queries() >= MANY_QUERIES && p.batch() >= MANY_IMAGES {
            let ordered = Rows { walk: Walk::Ordered, ..many };
            let why = "There are many queries in no known order, so they are ordered by location first.";
            all.push((self.kernel(ordered), why));
        }
        all.push((self.kernel(many), "There are many queries, and they are visited in input order."));
        all
    }

    /// Knobs for many queries.
    fn tiles(&self) -> Rows {
        // Half as many queries per tile if there would be fewer than two tiles per SM.
        let tile = (TILE_QUERIES * self.heads_per_block * self.lanes).clamp(TILE_THREADS.0, TILE_THREADS.1);
        let scarce = self.lanes_needed.saturating_mul(self.tap_columns) < 2 * tile * self.sms;
        let threads = if scarce { tile.div_ceil(2).next_multiple_of(TILE_THREADS.0) } else { tile };
        // Three quarters of the threads of an SM if a query has few samples, or a lane has several
        // passes of one sample; half of them if a query has many samples, because each thread then
        // needs more registers. The backward pass needs more too: it keeps the gradient of the
        // output and the located samples.
        let held = (self.target.threads() as usize / threads).max(1);
        let forward = self.request.pass == Pass::Forward;
        let several_passes = self.samples_per_lane == 1 && self.samples > self.lanes;
        // In the fused form, passes of one sample need more registers than so many threads have.
        let fused = several_passes && self.is_fused_forward();
        let light = forward && (self.samples <= LIGHT_SAMPLES || several_passes) && !fused;
        Rows {
            tap_columns: self.tap_columns,
            heads_per_block: self.heads_per_block,
            threads,
            blocks_per_sm: if light { held * 3 / 4 } else { held / 2 }.max(1),
            samples_per_lane: if fused { 2 } else { self.samples_per_lane },
            ..Rows::default()
        }
    }

    /// Smaller blocks and passes, for rows of many lanes and small GPUs.
    fn small_blocks(&self) -> [Entry; 3] {
        [256, 128, 64].map(|threads| {
            (self.kernel(Rows { threads, ..Rows::default() }), "Larger blocks do not fit this GPU.")
        })
    }
}

/// Samples per lane: all in one pass, up to four; fewer if that leaves no lane idle in the last
/// pass. The backward pass is faster with two, if that leaves no lane idle either, and with one
/// instead of three or four that leave lanes idle: less staging memory leaves more L1.
fn samples_per_lane(samples: usize, lanes: usize, backward: bool) -> usize {
    let most = samples.div_ceil(lanes).clamp(1, MAX_SAMPLES_PER_LANE);
    let whole = (1..=most).rev().find(|n| samples.is_multiple_of(lanes * n));
    match whole.unwrap_or(most) {
        3.. if backward && whole.is_none() => 1,
        3.. if backward && samples.is_multiple_of(2 * lanes) => 2,
        n => n,
    }
}
