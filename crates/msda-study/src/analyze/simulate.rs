//! A model of L1: wavefronts of a launch, predicted from a kernel's pattern and the workload's
//! locations.
//!
//! The model follows three SMs through their first blocks, with all resident warps in turn, and
//! scales the counts to the launch. Wavefronts are cycles of the data path, by the rules of
//! [`super::banks`]: taps from L1, taps from levels resident in shared memory, staged samples,
//! locations and weights, output, shuffles, and fills of L1 after misses, at 128 bytes per cycle.
//!
//! The model leaves out replays, tag lookups that take longer than the data, the filling of
//! resident levels, and the last tiles of a block, which go to the warp that is free first.

use crate::ladder::{Samples, Tiles};
use msda::{Problem, Role};
use msda_bench::workload::Data;
use msda_cuda::kernels::{SORT_CELLS, Walk};

use super::banks;
use super::cache::Cache;
use super::pattern::{Assignment, Pattern, Staging};

/// Lanes of a warp.
const WARP: usize = 32;
/// Warps to follow.
pub const WARPS: usize = 4000;
/// Pixel rows of a strip of queries, and cells per side of the grid that orders queries.
const STRIP: usize = msda_cuda::kernels::STRIP_HEIGHT;
const CELLS: f64 = 64.0;

/// Wavefronts of a launch, and the behaviour of L1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Predicted {
    /// Taps from L1.
    pub taps: f64,
    /// Taps from levels resident in shared memory.
    pub in_shared: f64,
    /// Samples staged through shared memory.
    pub staging: f64,
    /// Shuffles.
    pub shuffles: f64,
    /// Locations and weights.
    pub inputs: f64,
    /// Output.
    pub output: f64,
    /// Fills of L1 after misses.
    pub fills: f64,
    /// Percent of sectors that hit.
    pub hit_rate: f64,
    /// Lines per load of a warp, on average.
    pub tags: f64,
    /// Wavefronts of taps over the fewest possible.
    pub collisions: f64,
    /// The same for taps from shared memory; NaN if there are none.
    pub shared_collisions: f64,
}

impl Predicted {
    /// All wavefronts.
    pub fn wavefronts(&self) -> f64 {
        self.taps + self.shared() + self.shuffles + self.inputs + self.output + self.fills
    }

    /// Wavefronts of shared memory.
    pub fn shared(&self) -> f64 {
        self.in_shared + self.staging
    }
}

/// The GPU, as the model needs it.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Number of SMs.
    pub sms: usize,
    /// Resident blocks per SM.
    pub resident: usize,
    /// Bytes of L1 beside the shared memory of those blocks.
    pub cache: usize,
    /// Warps to follow, about.
    pub warps: usize,
}

/// Predicts a forward launch on `images` images like the one in `data`. Bilinear sampling with zero
/// padding only.
pub fn predict(pattern: &Pattern, data: &Data, images: usize, machine: Machine) -> Predicted {
    let p = &data.problem;
    let shape = Shape::new(pattern, data, images);
    let mut counts = Counts::default();
    let staged = staging(pattern, p);
    let runs = shape.runs(machine.sms);
    // Three SMs, spread over the GPU.
    let each = machine.warps / 3;
    for k in 0..3 {
        let sm = k * machine.sms / 3;
        let mut cache = Cache::new(if pattern.cached { machine.cache } else { 0 });
        let (mut next, mut done) = (sm, 0);
        while next < runs.count && done < each {
            let step = machine.sms.max(1);
            let resident: Vec<usize> = (0..machine.resident.max(1))
                .map(|i| next + i * step)
                .filter(|&run| run < runs.count)
                .collect();
            next += machine.resident.max(1) * step;
            for tile in 0..runs.length {
                let blocks = resident.iter().filter_map(|&run| runs.block(run, tile));
                let warps: Vec<Warp> = blocks.flat_map(|block| shape.warps(block)).collect();
                done += warps.len();
                run(pattern, p, &warps, &mut cache, &mut counts, &staged);
                if done >= each {
                    break;
                }
            }
        }
        counts.sectors += cache.asked as f64;
        counts.hits += cache.hits as f64;
        counts.fills += cache.misses() as f64 * 32.0 / 128.0;
    }
    let scale = shape.lane_groups() as f64 / (counts.lane_groups as f64).max(1.0);
    Predicted {
        taps: counts.taps * scale,
        in_shared: counts.in_shared * scale,
        staging: counts.staging * scale,
        shuffles: counts.shuffles * scale,
        inputs: counts.inputs * scale,
        output: counts.output * scale,
        fills: counts.fills * scale,
        hit_rate: 100.0 * counts.hits / counts.sectors.max(1.0),
        tags: counts.tags / counts.loads.max(1.0),
        collisions: counts.taps / counts.least.max(1.0),
        shared_collisions: counts.in_shared / counts.least_shared,
    }
}

#[derive(Default)]
struct Counts {
    lane_groups: usize,
    taps: f64,
    in_shared: f64,
    staging: f64,
    shuffles: f64,
    inputs: f64,
    output: f64,
    fills: f64,
    sectors: f64,
    hits: f64,
    tags: f64,
    loads: f64,
    least: f64,
    least_shared: f64,
}

/// The work of a lane group: a query and head, or a part of its channels, with the taps of its
/// samples.
struct LaneGroup {
    image: usize,
    query: usize,
    head: usize,
    part: usize,
    taps: Vec<Taps>,
}

/// Positions of a sample's taps: top left, top right, bottom left, bottom right; none if a tap is
/// not read.
type Taps = [Option<usize>; 4];

/// The lane groups of a warp in the order of lanes; none past the end.
struct Warp {
    lane_groups: Vec<Option<LaneGroup>>,
}

/// How tiles are divided among blocks. A run is the tiles of one block.
struct Runs {
    length: usize,
    columns: usize,
    across: usize,
    count: usize,
    /// Whether the tiles of a run are `across` apart. Otherwise they are consecutive.
    strided: bool,
}

impl Runs {
    /// The number of a run's tile in the launch.
    fn block(&self, run: usize, tile: usize) -> Option<usize> {
        let column = match self.strided {
            true => tile * self.across + run % self.across,
            false => run % self.across * self.length + tile,
        };
        (column < self.columns).then_some(run / self.across * self.columns + column)
    }
}

/// A launch: the work of its blocks.
struct Shape<'a> {
    pattern: &'a Pattern,
    data: &'a Data,
    images: usize,
    /// Queries by position, if the kernel orders them so.
    order: Vec<usize>,
}

impl<'a> Shape<'a> {
    fn new(pattern: &'a Pattern, data: &'a Data, images: usize) -> Self {
        let mut shape = Self { pattern, data, images, order: Vec::new() };
        if let Assignment::Grid { heads, walk: walk @ (Walk::Ordered | Walk::Sorted) } = pattern.assignment {
            let mut order: Vec<usize> = (0..data.problem.queries()).collect();
            match pattern.tiles {
                Tiles::Following(tiles) if walk == Walk::Sorted => {
                    let block = tiles * (shape.each() / heads).max(1);
                    for part in order.chunks_mut(block.max(1)) {
                        part.sort_by_key(|&query| shape.strip(query));
                    }
                }
                _ => order.sort_by_key(|&query| shape.cell(query)),
            }
            shape.order = order;
        }
        shape
    }

    fn lane_groups(&self) -> usize {
        let p = &self.data.problem;
        self.images * p.queries() * p.heads() * self.pattern.channel_parts
    }

    /// Lane groups per block.
    fn each(&self) -> usize {
        (self.pattern.block / self.pattern.group_lanes()).max(1)
    }

    /// Columns and rows of the grid for one image.
    fn grid(&self) -> (usize, usize) {
        let p = &self.data.problem;
        match self.pattern.assignment {
            Assignment::Linear => ((p.queries() * p.heads()).div_ceil(self.each()), 1),
            Assignment::Grid { heads, .. } => {
                let rows = p.heads().div_ceil(heads) * self.pattern.channel_parts;
                (p.queries().div_ceil((self.each() / heads).max(1)), rows)
            }
        }
    }

    /// The runs of the launch: one tile per block, or as many as divide the planes evenly among the
    /// blocks of each SM.
    fn runs(&self, sms: usize) -> Runs {
        let (columns, rows) = self.grid();
        let planes = self.images * rows;
        let shares = |blocks: usize| (blocks * sms).div_ceil(planes.max(1)).clamp(1, columns.max(1));
        let (length, across, strided) = match self.pattern.tiles {
            Tiles::One => (1, columns, false),
            // Blocks that continue with the next image are treated as if they did not.
            Tiles::Following(tiles) => {
                let length = tiles.clamp(1, columns.max(1));
                (length, columns.div_ceil(length), false)
            }
            Tiles::Strided(blocks) => (columns.div_ceil(shares(blocks)), shares(blocks), true),
        };
        Runs { length, columns, across, count: across * planes, strided }
    }

    fn warps(&self, block: usize) -> Vec<Warp> {
        let p = &self.data.problem;
        let (columns, rows) = self.grid();
        let (column, row, image) = (block % columns, block / columns % rows, block / columns / rows);
        let (row, part) = (row / self.pattern.channel_parts, row % self.pattern.channel_parts);
        let lane_group = |i: usize| {
            let (query, head) = match self.pattern.assignment {
                Assignment::Linear => {
                    let n = column * self.each() + i;
                    ((n < p.queries() * p.heads()).then_some(n / p.heads())?, n % p.heads())
                }
                Assignment::Grid { heads, walk } => {
                    let head = row * heads + i % heads;
                    let queries = (self.each() / heads).max(1);
                    (self.query(walk, column, queries, i / heads)?, (head < p.heads()).then_some(head)?)
                }
            };
            let taps = positions(self.data, query, head, self.pattern.masked);
            Some(LaneGroup { image, query, head, part, taps })
        };
        let of_warp = (WARP / self.pattern.group_lanes()).max(1);
        let all: Vec<Option<LaneGroup>> = (0..self.each()).map(lane_group).collect();
        let mut warps = Vec::new();
        let mut rest = all.into_iter().peekable();
        while rest.peek().is_some() {
            warps.push(Warp { lane_groups: rest.by_ref().take(of_warp).collect() });
        }
        warps.retain(|w: &Warp| w.lane_groups.iter().any(Option::is_some));
        warps
    }

    /// The query of an index within a block, in the order of the kernel.
    fn query(&self, walk: Walk, column: usize, queries: usize, i: usize) -> Option<usize> {
        let p = &self.data.problem;
        let at = column * queries + i;
        if at >= p.queries() || walk != Walk::Tiles {
            return (at < p.queries()).then(|| self.order.get(at).copied().unwrap_or(at));
        }
        let mut first = 0;
        let level = p.levels().iter().find(|level| {
            let here = at < first + level.h * level.w;
            first += if here { 0 } else { level.h * level.w };
            here
        })?;
        let (down, rest) = ((at - first) / (STRIP * level.w), (at - first) % (STRIP * level.w));
        let high = STRIP.min(level.h - down * STRIP);
        Some(first + (down * STRIP + rest % high) * level.w + rest / high)
    }

    /// The cell by which a block sorts its queries: a column of a strip, from the first point.
    fn strip(&self, query: usize) -> usize {
        let first = msda::backend::offset(Role::Locations.dense(&self.data.problem), [0, query, 0]);
        let [strips, columns] = SORT_CELLS;
        let cell = |axis: usize, cells: usize| {
            let at = self.data.locations.as_slice().get(first + axis) * cells as f64;
            at.clamp(0.0, cells as f64 - 1.0) as usize
        };
        cell(1, strips) * columns + cell(0, columns)
    }

    /// The cell of a query on a Z-curve: the mean of its first head's points on the first level.
    fn cell(&self, query: usize) -> usize {
        let p = &self.data.problem;
        let first = msda::backend::offset(Role::Locations.dense(p), [0, query, 0]);
        let points = p.points()[0].max(1);
        let mean = |axis: usize| {
            let sum: f64 =
                (0..points).map(|k| self.data.locations.as_slice().get(first + 2 * k + axis)).sum();
            (sum / points as f64 * CELLS).clamp(0.0, CELLS - 1.0) as usize
        };
        let (x, y) = (mean(0), mean(1));
        (0..6).map(|bit| (x >> bit & 1) << (2 * bit) | (y >> bit & 1) << (2 * bit + 1)).sum()
    }
}

/// Positions of the taps of each sample. With `masked`, taps outside the map are none. Otherwise
/// all four are moved onto the map, unless there is a ring, and a sample outside the map reads the
/// first pixel of the level.
fn positions(data: &Data, query: usize, head: usize, masked: bool) -> Vec<Taps> {
    let p = &data.problem;
    let ring = p.layout().ring() > 0;
    let mut at = msda::backend::offset(Role::Locations.dense(p), [0, query, head]);
    let mut all = Vec::with_capacity(p.samples());
    for (level, &points) in p.levels().iter().zip(p.points()) {
        for _ in 0..points {
            let pixel = |axis: usize, side: usize| {
                let (scale, shift) = p.pixel_transform(side);
                data.locations.as_slice().get(at + axis) * scale + shift
            };
            let (x, y) = (pixel(0, level.w), pixel(1, level.h));
            let there = x > -1.0 && y > -1.0 && x < level.w as f64 && y < level.h as f64;
            let low = |x: f64, side: usize| {
                let low = x.floor() as isize;
                if ring || masked { low } else { low.clamp(0, side as isize - 2) }
            };
            let (left, top) = if there { (low(x, level.w), low(y, level.h)) } else { (0, 0) };
            let on = |i: isize, side: usize| 0 <= i && i < side as isize;
            all.push([0, 1, 2, 3].map(|tap: isize| {
                let (i, j) = (left + tap % 2, top + tap / 2);
                let read = !masked || (there && (ring || (on(i, level.w) && on(j, level.h))));
                read.then(|| level.origin.saturating_add_signed(j * level.pitch as isize + i))
            }));
            at += 2;
        }
    }
    all
}

/// Runs resident warps in turn, sample by sample.
fn run(
    pattern: &Pattern,
    p: &Problem,
    warps: &[Warp],
    cache: &mut Cache,
    counts: &mut Counts,
    staged: &Staged,
) {
    let levels: Vec<usize> =
        p.points().iter().enumerate().flat_map(|(l, &points)| std::iter::repeat_n(l, points)).collect();
    let (group_lanes, round, samples) = (pattern.group_lanes(), pattern.samples_per_lane(), p.samples());
    for warp in warps {
        counts.staging += staged.tile;
        if matches!(pattern.staging, Staging::Rung(Samples::Tabled { .. })) {
            counts.inputs += tabled_inputs(p, warp);
        }
    }
    let together = pattern.samples_per_pass();
    for first in (0..samples).step_by(together.max(1)) {
        for warp in warps {
            counts.staging += staged.write;
            counts.inputs += inputs(pattern, p, warp, first);
        }
        // A lane locates consecutive samples. A sample group takes those of every so many-th lane.
        let steps = together / pattern.sample_groups;
        for step in 0..steps {
            for warp in warps {
                if step % round == 0 {
                    counts.staging += staged.positions;
                }
                counts.staging += staged.weights;
                counts.shuffles += staged.shuffles;
                let sample = |sample_group: usize| {
                    let from = step / round * pattern.sample_groups + sample_group;
                    Some(first + from * round + step % round).filter(|&s| s < samples)
                };
                taps(pattern, p, &levels, warp, sample, cache, counts);
            }
        }
    }
    for warp in warps {
        counts.lane_groups += warp.lane_groups.iter().flatten().count();
        counts.output += output(pattern, p, warp);
        // Sums of sample groups and tap columns are added by shuffles.
        let (mut channels, left) = left(pattern, p.types().value.size());
        for _ in 0..(group_lanes / pattern.lanes.max(1)).max(1).ilog2() {
            channels = (channels / 2).max(left);
            counts.shuffles += channels as f64;
        }
    }
}

/// Channels that a lane sums, and channels that it stores. Lanes with the same channels exchange
/// halves, down to 4 bytes. Lanes of rungs exchange all.
fn left(pattern: &Pattern, size: usize) -> (usize, usize) {
    let each = pattern.lane_bytes / size;
    match pattern.staging {
        Staging::Shared { .. } => {
            (each, (each / (pattern.tap_columns * pattern.sample_groups)).max(4 / size.min(4)).min(each))
        }
        _ => (each, each),
    }
}

/// Addresses of one load, lane by lane.
fn lanes(
    pattern: &Pattern,
    warp: &Warp,
    address: impl Fn(&LaneGroup, usize, usize, usize) -> Option<u64>,
) -> Vec<Option<u64>> {
    let group_lanes = pattern.group_lanes();
    (0..WARP)
        .map(|lane| {
            let of = warp.lane_groups.get(lane / group_lanes)?.as_ref()?;
            let part = lane % group_lanes;
            let (sample_group, side, chunk) = (
                part / (pattern.lanes * pattern.tap_columns),
                part / pattern.lanes % pattern.tap_columns,
                part % pattern.lanes,
            );
            address(of, sample_group, side, chunk)
        })
        .collect()
}

/// All taps of one sample of each lane group.
fn taps(
    pattern: &Pattern,
    p: &Problem,
    levels: &[usize],
    warp: &Warp,
    sample: impl Fn(usize) -> Option<usize>,
    cache: &mut Cache,
    counts: &mut Counts,
) {
    let size = p.types().value.size();
    let strides = Role::Value.dense(p);
    let row = p.channels() * size / pattern.channel_parts;
    for side in 0..2 / pattern.tap_columns {
        for down in 0..2 {
            let address =
                |lane_group: &LaneGroup, sample_group: usize, own: usize, chunk: usize, shared: bool| {
                    let s = sample(sample_group)?;
                    let position = lane_group.taps[s][down * 2 + side + own]?;
                    (chunk * pattern.lane_bytes < row).then_some(())?;
                    let place = pattern.shared_offset(levels[s], position);
                    (place.is_some() == shared).then_some(())?;
                    let start = msda::backend::offset(strides, [lane_group.image, 0, lane_group.head])
                        + position * strides[1];
                    let row = place.unwrap_or(start * size + lane_group.part * row);
                    Some((row + chunk * pattern.lane_bytes) as u64)
                };
            let global = lanes(pattern, warp, |lane_group, sample_group, own, chunk| {
                address(lane_group, sample_group, own, chunk, false)
            });
            if global.iter().any(Option::is_some) {
                counts.taps += banks::warp(&global, pattern.lane_bytes) as f64;
                counts.tags += cache.read(&global, pattern.lane_bytes) as f64;
                counts.loads += 1.0;
                counts.least += banks::least(&global, pattern.lane_bytes) as f64;
            }
            let shared = lanes(pattern, warp, |lane_group, sample_group, own, chunk| {
                address(lane_group, sample_group, own, chunk, true)
            });
            counts.in_shared += banks::shared(&shared, pattern.lane_bytes) as f64;
            counts.least_shared += banks::least(&shared, pattern.lane_bytes) as f64;
        }
    }
}

/// Locations and weights: tensor, bytes per number, numbers per sample.
fn given(p: &Problem) -> [(Role, usize, usize); 2] {
    let t = p.types();
    [(Role::Locations, t.locations.size(), 2), (Role::Weights, t.weights.size(), 1)]
}

/// Loads of locations and weights of all samples, 32 at a time.
fn tabled_inputs(p: &Problem, warp: &Warp) -> f64 {
    let samples = p.samples();
    let mut total = 0;
    for (role, size, numbers) in given(p) {
        let strides = role.dense(p);
        for first in (0..warp.lane_groups.len() * samples).step_by(WARP) {
            for number in 0..numbers {
                let loads: Vec<Option<u64>> = (first..first + WARP)
                    .map(|i| {
                        let lane_group = warp.lane_groups.get(i / samples)?.as_ref()?;
                        let start = msda::backend::offset(
                            strides,
                            [lane_group.image, lane_group.query, lane_group.head],
                        );
                        Some(((start + i % samples * numbers + number) * size) as u64)
                    })
                    .collect();
                total += banks::warp(&loads, size);
            }
        }
    }
    total as f64
}

/// Loads of locations and weights of one pass, from sample `first` on.
fn inputs(pattern: &Pattern, p: &Problem, warp: &Warp, first: usize) -> f64 {
    let (round, samples) = (pattern.samples_per_lane(), p.samples());
    let exact = samples % (pattern.group_lanes() * round) == 0;
    // The lane group and the sample that a lane reads for.
    let reads = |lane: usize| match &pattern.staging {
        Staging::Rung(Samples::Tabled { .. }) => None,
        Staging::Rung(Samples::Own { together }) => {
            let sample_group = lane % pattern.group_lanes() / (pattern.lanes * pattern.tap_columns);
            Some((lane / pattern.group_lanes(), sample_group * together))
        }
        Staging::Rung(Samples::Handed { round, .. }) => Some((lane / round, lane % round)),
        _ => Some((lane / pattern.group_lanes(), lane % pattern.group_lanes() * round)),
    };
    let mut total = 0;
    for (role, size, numbers) in given(p) {
        // Loads are as wide as alignment allows if passes are full. Otherwise one number at a time.
        let bytes = numbers * round * size;
        let whole = match pattern.staging {
            Staging::Rung(_) => round > 1,
            _ => exact,
        };
        let width = if whole { (bytes & bytes.wrapping_neg()).min(16) } else { size };
        let strides = role.dense(p);
        for piece in 0..bytes / width {
            let loads: Vec<Option<u64>> = (0..WARP)
                .map(|lane| {
                    let (lane_group, sample) = reads(lane)?;
                    let lane_group = warp.lane_groups.get(lane_group)?.as_ref()?;
                    let s = Some(first + sample).filter(|&s| s < samples)?;
                    let start =
                        msda::backend::offset(strides, [lane_group.image, lane_group.query, lane_group.head])
                            + s * numbers;
                    Some((start * size + piece * width) as u64)
                })
                .collect();
            total += banks::warp(&loads, width);
        }
    }
    total as f64
}

fn output(pattern: &Pattern, p: &Problem, warp: &Warp) -> f64 {
    let size = p.types().value.size();
    let (each, left) = left(pattern, size);
    let strides = Role::Output.dense(p);
    let stores = lanes(pattern, warp, |lane_group, sample_group, side, chunk| {
        let row = p.channels() * size / pattern.channel_parts;
        // Each bit selects the half that a lane stores. Remaining bits select one of the lanes with
        // equal channels.
        let (mut channels, mut first, mut sharer) = (each, 0, sample_group * pattern.tap_columns + side);
        while channels > left {
            channels /= 2;
            first += sharer % 2 * channels;
            sharer /= 2;
        }
        let writes = sharer == 0 && chunk * pattern.lane_bytes < row;
        let start = msda::backend::offset(strides, [lane_group.image, lane_group.query, lane_group.head])
            * size
            + lane_group.part * row;
        writes.then_some((start + chunk * pattern.lane_bytes + first * size) as u64)
    });
    banks::warp(&stores, left * size) as f64
}

/// Wavefronts per warp of staging samples: per tile, per pass (`write`), per lane's positions, and
/// per sample (`weights`, `shuffles`).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Staged {
    tile: f64,
    write: f64,
    positions: f64,
    weights: f64,
    shuffles: f64,
}

/// Cycles of shared memory for one instruction of a full warp.
fn cycles(width: usize, address: &dyn Fn(usize) -> usize) -> f64 {
    let lanes: Vec<Option<u64>> = (0..WARP).map(|lane| Some(address(lane) as u64)).collect();
    banks::shared(&lanes, width) as f64
}

/// Staging of a rung. It does not depend on data.
fn rung_staging(pattern: &Pattern, p: &Problem, samples: &Samples) -> Staged {
    let group_lanes = pattern.group_lanes();
    let (tables, copied) = match samples {
        Samples::Own { .. } => return Staged::default(),
        Samples::Handed { round, pitch } => {
            // Positions and weights, 16 bytes each. Samples of several lane groups share an
            // instruction.
            let write = cycles(16, &|lane| (lane % round * pitch + lane / round) * 16);
            let share = (WARP / group_lanes * round) as f64 / WARP as f64;
            let read = cycles(16, &|lane| lane / group_lanes * 16);
            return Staged { write: 2.0 * write * share, weights: 2.0 * read, ..Staged::default() };
        }
        Samples::Tabled { tables, copied } => (tables, *copied),
    };
    let all = (WARP / group_lanes * p.samples()) as f64;
    let mut staged = Staged::default();
    for &(bytes, width) in tables {
        for piece in (0..bytes).step_by(width) {
            let sample_group = |lane: usize| lane % group_lanes / pattern.lanes;
            staged.weights += cycles(width, &|lane| {
                (lane / group_lanes * p.samples() + sample_group(lane)) * bytes + piece
            });
            if !copied {
                staged.tile += all / WARP as f64 * cycles(width, &|lane| lane * bytes + piece);
            }
        }
        if copied {
            staged.tile += all * bytes as f64 / 128.0;
        }
    }
    staged
}

/// Staging of `rows.cuh`. It does not depend on data.
fn staging(pattern: &Pattern, p: &Problem) -> Staged {
    let (group_lanes, sides) = (pattern.group_lanes(), pattern.tap_columns);
    let (round, ordered) = match pattern.staging {
        Staging::Rung(ref samples) => return rung_staging(pattern, p, samples),
        Staging::Shuffled { words, .. } => return Staged { shuffles: words as f64, ..Staged::default() },
        Staging::Shared { samples_per_lane, ordered } => (samples_per_lane, ordered),
    };
    let lane_groups = WARP / group_lanes;
    let swizzle =
        |part: usize| if group_lanes <= 4 { part * (8 / group_lanes) } else { part * lane_groups / 8 };
    let apart = sides == 1 && group_lanes == pattern.lanes;
    let slot = |of: usize, part: usize| match apart {
        true => part * lane_groups + of + swizzle(part),
        false => part * lane_groups + (of ^ (swizzle(part) & (lane_groups - 1))),
    };
    let slots = WARP + if apart { swizzle(group_lanes - 1) } else { 0 };
    let position = if p.positions() <= 1 << 16 { 2 } else { 4 };
    let (wide, positions) = (round * position, round * slots * 16);
    let own = |lane: usize| slot(lane / group_lanes, lane % group_lanes);
    // Every lane of an group_lanes reads what one of them wrote.
    let read = |lane: usize| slot(lane / group_lanes, lane % group_lanes / (pattern.lanes * sides));
    let side = |lane: usize| lane % group_lanes / pattern.lanes % sides;
    Staged {
        tile: 0.0,
        write: round as f64 * cycles(16, &|lane| own(lane) * 16)
            + cycles(wide, &|lane| positions + if ordered { lane } else { own(lane) } * wide),
        positions: if ordered {
            // Positions of several samples are read at once. The count is per lane's samples.
            let every = group_lanes * round;
            let together = (every & every.wrapping_neg()).min(16 / position);
            cycles(together * position, &|lane| positions + lane / group_lanes * every * position)
                * round as f64
                / together as f64
        } else {
            cycles(wide, &|lane| positions + read(lane) * wide)
        },
        weights: cycles(16 / sides, &|lane| read(lane) * 16 + side(lane) * 8),
        shuffles: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use msda::Dtype;
    use msda_cuda::driver::Arch;
    use msda_cuda::{Operands, Request, Target};

    use super::*;
    use msda_bench::workload::Workload;

    fn predicted(name: &str, kernel: &str) -> Predicted {
        followed(name, kernel, WARPS)
    }

    fn followed(name: &str, kernel: &str, warps: usize) -> Predicted {
        let workload = Workload::find(name).unwrap();
        let whole = workload.problem(Dtype::F16).unwrap();
        let operands = Operands::dense(&whole, None);
        let request = Request::new(&whole, &operands);
        let kernel = crate::kernel(kernel).unwrap();
        let target = Target { arch: Arch::new(9, 0), sms: 132 };
        let pattern = Pattern::of(&kernel, &request, &target).unwrap();
        let data = workload.first_images(Dtype::F16, 1).unwrap();
        let machine = Machine { sms: 132, resident: 3, cache: 156 << 10, warps };
        predict(&pattern, &data, whole.batch(), machine)
    }

    /// Counted on an H200: 37 M wavefronts, 5.1 M of them of shared memory; 78 % of sectors hit.
    #[test]
    fn the_encoder_is_predicted_within_a_fifth() {
        let p = predicted(
            "detr-encoder",
            "rows:heads_per_block=2,threads=512,blocks_per_sm=3,samples_per_lane=4,walk=tiles",
        );
        assert!((p.taps / 22.8e6 - 1.0).abs() < 0.02, "{p:?}");
        assert!((p.collisions - 1.0).abs() < 1e-6, "rows of two heads never conflict: {p:?}");
        assert!((p.wavefronts() / 37.0e6 - 1.0).abs() < 0.2, "{p:?} {}", p.wavefronts());
        assert!((60.0..95.0).contains(&p.hit_rate), "{p:?}");
    }

    /// Rows of 64 bytes of two queries are in the same half of a line half of the time.
    #[test]
    fn rows_of_two_queries_conflict_half_of_the_time() {
        let alone = predicted("seed", "rows:threads=256,blocks_per_sm=4,samples_per_lane=4");
        let both = predicted("seed", "rows:tap_columns=2,threads=256,blocks_per_sm=4,samples_per_lane=4");
        assert!((alone.collisions - 1.5).abs() < 0.15, "{alone:?}");
        assert!((both.taps / 47.4e6 - 1.0).abs() < 0.35, "{both:?}");
        assert!(both.taps < alone.taps, "{both:?} {alone:?}");
        // With four queries per warp, lanes exchange half of eight channels. With eight queries
        // they exchange none.
        assert!((both.shuffles / (48.0 * 15422.0) - 1.0).abs() < 0.02, "{both:?}");
        assert!(alone.shuffles == 0.0, "{alone:?}");
    }

    /// Two rows of 16 words conflict entirely or not at all. With padding of two elements nearly
    /// all rows conflict.
    #[test]
    fn padding_makes_conflicts() {
        let of = |name: &str| followed("seed-ring-uniform", &format!("ladder:{name}"), 600);
        let (padded, unpadded, wide) = (of("shared_padded"), of("shared_unpadded"), of("shared_wide"));
        assert!((unpadded.shared_collisions - 1.5).abs() < 0.1, "{unpadded:?}");
        assert!(padded.shared_collisions > 1.8, "{padded:?}");
        // Two rows per wavefront in both: wide loads save instructions and no wavefronts.
        assert!((wide.in_shared / unpadded.in_shared - 1.0).abs() < 0.05, "{wide:?} {unpadded:?}");
        assert!(of("base").shared_collisions.is_nan());
    }

    #[test]
    fn rungs_differ_as_their_strategies_do() {
        let of = |name: &str| followed("seed", &format!("ladder:{name}"), 600);
        let (original, base) = (of("original"), of("base"));
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 0.01;
        assert!(close(of("simple").taps, original.taps));
        // 94.8 M taps less those outside the map, one row per wavefront; or two rows, without
        // conflicts.
        assert!(original.taps > 0.8 * 94.8e6 && original.taps < 94.8e6, "{original:?}");
        assert!(base.taps > 0.5 * original.taps && base.taps < 0.85 * original.taps, "{base:?}");
        assert!(close(of("base+unroll").wavefronts(), base.wavefronts()));
        // Tables cost shared memory and save loads of locations, and so do lanes that locate for
        // others.
        for name in ["optimized", "base+precomputed", "base+pipeline", "ultra_wide", "specialised"] {
            let rung = of(name);
            assert!(rung.staging > 0.0 && rung.inputs < 0.5 * base.inputs, "{name}: {rung:?} {base:?}");
        }
        assert!(of("base-cache").hit_rate < 0.5 * base.hit_rate);
        // Wide loads read eight samples in as many wavefronts as narrow loads read one.
        let vector = of("original_vector");
        assert!(vector.inputs < 0.25 * base.inputs && close(vector.taps, base.taps), "{vector:?} {base:?}");
        // Writing and reading staged taps has no conflicts in both.
        assert!(close(of("ultra_wide").staging, of("specialised").staging));
        assert!(of("base+shuffle").shuffles > 0.0);
        // Resident levels are not read through L1.
        let (some, full) = (of("persistent_wide"), of("persistent_full_wide"));
        assert!(
            some.in_shared > 0.0 && full.in_shared > some.in_shared && full.taps < some.taps,
            "{some:?} {full:?}"
        );
        let split = of("persistent_channelsplit_wide");
        assert!(split.inputs > 3.0 * some.inputs, "{split:?} {some:?}");
    }

    #[test]
    fn one_thread_per_element_repeats_loads_of_locations() {
        let generic = predicted("seed", "generic");
        let rows = predicted("seed", "rows:tap_columns=2,threads=256,blocks_per_sm=4,samples_per_lane=4");
        assert!(generic.inputs > 4.0 * rows.inputs, "{generic:?}");
        assert!(generic.taps > 1.5 * rows.taps, "{generic:?}");
    }
}
