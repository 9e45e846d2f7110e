//! What a kernel asks of the first-level caches, predicted from its pattern and the workload's own locations.
//!
//! Some multiprocessors are followed through their first blocks, warp by warp, all resident warps taking turns, and
//! what they did is scaled to the launch. Counted are cycles of the data path, wavefronts, by the rule in
//! [`super::banks`]: taps from the cache and from levels in shared memory, samples handed on, locations and
//! weights, output, shuffles, and fills, since what a miss brings is written through the same path at 128 bytes a cycle. Not
//! counted: replays, look-ups of tags that take longer than the data, the filling of levels that are kept, what their blocks keep at hand, and that
//! their last tiles are for whichever warp is free.

use msda::{Problem, Role};
use msda_cuda::kernels::ladder::{Samples, Tiles};
use msda_cuda::kernels::rows::{SORT_CELLS, Walk};

use super::banks;
use super::cache::Cache;
use super::pattern::{Items, Pattern, Staging};
use crate::workload::Data;

/// Lanes of a warp.
const WARP: usize = 32;
/// Warps that are followed, usually.
pub const WARPS: usize = 4000;
/// Rows of a strip of queries, and the side of the grid of cells by which they are ordered.
const STRIP: usize = msda_cuda::kernels::rows::STRIP_HEIGHT;
const CELLS: f64 = 64.0;

/// Wavefronts of a launch, and what the cache is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Predicted {
    /// Rows from the cache.
    pub taps: f64,
    /// Rows from levels in shared memory.
    pub kept: f64,
    /// Samples handed from lane to lane through shared memory.
    pub staging: f64,
    /// Shuffles.
    pub shuffles: f64,
    /// Locations and weights.
    pub inputs: f64,
    /// Output.
    pub output: f64,
    /// What misses bring.
    pub fills: f64,
    /// Share of sectors that are found, in percent.
    pub hit_rate: f64,
    /// Lines that one instruction of a warp looks up, on average.
    pub tags: f64,
    /// Wavefronts of taps over those if nothing collided.
    pub collisions: f64,
    /// The same of taps from levels in shared memory; not a number where none are.
    pub kept_collisions: f64,
}

impl Predicted {
    /// All wavefronts.
    pub fn wavefronts(&self) -> f64 {
        self.taps + self.shared() + self.shuffles + self.inputs + self.output + self.fills
    }

    /// Those of shared memory.
    pub fn shared(&self) -> f64 {
        self.kept + self.staging
    }
}

/// The machine as far as it matters here.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Blocks that each holds.
    pub resident: usize,
    /// Bytes of first-level cache beside the shared memory of those.
    pub cache: usize,
    /// Warps that are followed, about.
    pub warps: usize,
}

/// Predicts a forward launch of all `images`, of the first of which `data` are the data. Bilinear samples with zeros
/// outside only.
pub fn predict(pattern: &Pattern, data: &Data, images: usize, machine: Machine) -> Predicted {
    let p = &data.problem;
    let shape = Shape::new(pattern, data, images);
    let mut counts = Counts::default();
    let staged = staging(pattern, p);
    let runs = shape.runs(machine.multiprocessors);
    // Three multiprocessors, spread over the machine.
    let each = machine.warps / 3;
    for k in 0..3 {
        let sm = k * machine.multiprocessors / 3;
        let mut cache = Cache::new(if pattern.cached { machine.cache } else { 0 });
        let (mut next, mut done) = (sm, 0);
        while next < runs.count && done < each {
            let step = machine.multiprocessors.max(1);
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
    let scale = shape.items() as f64 / (counts.items as f64).max(1.0);
    Predicted {
        taps: counts.taps * scale,
        kept: counts.kept * scale,
        staging: counts.staging * scale,
        shuffles: counts.shuffles * scale,
        inputs: counts.inputs * scale,
        output: counts.output * scale,
        fills: counts.fills * scale,
        hit_rate: 100.0 * counts.hits / counts.sectors.max(1.0),
        tags: counts.tags / counts.loads.max(1.0),
        collisions: counts.taps / counts.least.max(1.0),
        kept_collisions: counts.kept / counts.least_kept,
    }
}

#[derive(Default)]
struct Counts {
    items: usize,
    taps: f64,
    kept: f64,
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
    least_kept: f64,
}

/// A query and head, or a part of its channels, and where the taps of its samples are.
struct Item {
    image: usize,
    query: usize,
    head: usize,
    part: usize,
    taps: Vec<Taps>,
}

/// The positions of a sample's taps: top left, top right, bottom left, bottom right; none for those that are not read.
type Taps = [Option<usize>; 4];

/// The items of a warp, in the order of their lanes; none for lanes past the end.
struct Warp {
    items: Vec<Option<Item>>,
}

/// Tiles that one block has, one after another.
struct Runs {
    length: usize,
    columns: usize,
    across: usize,
    count: usize,
    /// Whether they are every so many-th.
    strided: bool,
}

impl Runs {
    /// A tile of a run, counted through all of the launch.
    fn block(&self, run: usize, tile: usize) -> Option<usize> {
        let column = match self.strided {
            true => tile * self.across + run % self.across,
            false => run % self.across * self.length + tile,
        };
        (column < self.columns).then_some(run / self.across * self.columns + column)
    }
}

/// A launch: which items its blocks have.
struct Shape<'a> {
    pattern: &'a Pattern,
    data: &'a Data,
    images: usize,
    /// Queries by place, where they are visited so.
    order: Vec<usize>,
}

impl<'a> Shape<'a> {
    fn new(pattern: &'a Pattern, data: &'a Data, images: usize) -> Self {
        let mut shape = Self { pattern, data, images, order: Vec::new() };
        if let Items::Grid { heads, walk: walk @ (Walk::Ordered | Walk::Sorted) } = pattern.items {
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

    fn items(&self) -> usize {
        let p = &self.data.problem;
        self.images * p.queries() * p.heads() * self.pattern.parts
    }

    /// Items of a block.
    fn each(&self) -> usize {
        (self.pattern.block / self.pattern.item()).max(1)
    }

    /// Columns and rows of an image's blocks.
    fn grid(&self) -> (usize, usize) {
        let p = &self.data.problem;
        match self.pattern.items {
            Items::Linear => ((p.queries() * p.heads()).div_ceil(self.each()), 1),
            Items::Grid { heads, .. } => {
                let rows = p.heads().div_ceil(heads) * self.pattern.parts;
                (p.queries().div_ceil((self.each() / heads).max(1)), rows)
            }
        }
    }

    /// What falls to one block: one tile of queries, or as many as divide the planes evenly among some blocks a
    /// multiprocessor.
    fn runs(&self, multiprocessors: usize) -> Runs {
        let (columns, rows) = self.grid();
        let planes = self.images * rows;
        let shares =
            |blocks: usize| (blocks * multiprocessors).div_ceil(planes.max(1)).clamp(1, columns.max(1));
        let (length, across, strided) = match self.pattern.tiles {
            Tiles::One => (1, columns, false),
            // Blocks that go from image to image are taken for ones that do not.
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
        let (row, part) = (row / self.pattern.parts, row % self.pattern.parts);
        let item = |i: usize| {
            let (query, head) = match self.pattern.items {
                Items::Linear => {
                    let n = column * self.each() + i;
                    ((n < p.queries() * p.heads()).then_some(n / p.heads())?, n % p.heads())
                }
                Items::Grid { heads, walk } => {
                    let head = row * heads + i % heads;
                    let queries = (self.each() / heads).max(1);
                    (self.query(walk, column, queries, i / heads)?, (head < p.heads()).then_some(head)?)
                }
            };
            let taps = positions(self.data, query, head, self.pattern.masked);
            Some(Item { image, query, head, part, taps })
        };
        let of_warp = (WARP / self.pattern.item()).max(1);
        let all: Vec<Option<Item>> = (0..self.each()).map(item).collect();
        let mut warps = Vec::new();
        let mut rest = all.into_iter().peekable();
        while rest.peek().is_some() {
            warps.push(Warp { items: rest.by_ref().take(of_warp).collect() });
        }
        warps.retain(|w: &Warp| w.items.iter().any(Option::is_some));
        warps
    }

    /// The query that an index within a block stands for: as the kernel has it.
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

    /// The cell by which a block sorts its queries: a column of a strip, by the first point.
    fn strip(&self, query: usize) -> usize {
        let first = msda::op::offset(Role::Locations.dense(&self.data.problem), [0, query, 0]);
        let [strips, columns] = SORT_CELLS;
        let cell = |axis: usize, cells: usize| {
            let at = self.data.locations.as_slice().get(first + axis) * cells as f64;
            at.clamp(0.0, cells as f64 - 1.0) as usize
        };
        cell(1, strips) * columns + cell(0, columns)
    }

    /// The cell of a Z-curve that a query looks at: the mean of its first head's points on the first level.
    fn cell(&self, query: usize) -> usize {
        let p = &self.data.problem;
        let first = msda::op::offset(Role::Locations.dense(p), [0, query, 0]);
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

/// Where the taps of each sample are. If `masked`, those that count; otherwise the square of all four, moved onto the
/// map where there is no ring, and at the level's first pixel where the sample does not count.
fn positions(data: &Data, query: usize, head: usize, masked: bool) -> Vec<Taps> {
    let p = &data.problem;
    let ring = p.layout().ring() > 0;
    let mut at = msda::op::offset(Role::Locations.dense(p), [0, query, head]);
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

/// Runs resident warps, sample by sample, taking turns.
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
    let (item, round, samples) = (pattern.item(), pattern.round(), p.samples());
    for warp in warps {
        counts.staging += staged.tile;
        if matches!(pattern.staging, Staging::Rung(Samples::Tabled { .. })) {
            counts.inputs += tabled_inputs(p, warp);
        }
    }
    let together = pattern.together();
    for first in (0..samples).step_by(together.max(1)) {
        for warp in warps {
            counts.staging += staged.write;
            counts.inputs += inputs(pattern, p, warp, first);
        }
        // The samples that a lane located follow each other; groups of lanes take every SPLIT-th lane's.
        let steps = together / pattern.split;
        for step in 0..steps {
            for warp in warps {
                if step % round == 0 {
                    counts.staging += staged.positions;
                }
                counts.staging += staged.weights;
                counts.shuffles += staged.shuffles;
                let sample = |group: usize| {
                    let from = step / round * pattern.split + group;
                    Some(first + from * round + step % round).filter(|&s| s < samples)
                };
                taps(pattern, p, &levels, warp, sample, cache, counts);
            }
        }
    }
    for warp in warps {
        counts.items += warp.items.iter().flatten().count();
        counts.output += output(pattern, p, warp);
        // Sums of groups and sides meet.
        let (mut channels, left) = left(pattern, p.types().value.size());
        for _ in 0..(item / pattern.lanes.max(1)).max(1).ilog2() {
            channels = (channels / 2).max(left);
            counts.shuffles += channels as f64;
        }
    }
}

/// The channels that a lane sums, and those it is left with: lanes with the same channels give each other halves of them, down to
/// 4 bytes. Those of rungs give each other all.
fn left(pattern: &Pattern, size: usize) -> (usize, usize) {
    let each = pattern.vec / size;
    match pattern.staging {
        Staging::Shared { .. } => {
            (each, (each / (pattern.sides * pattern.split)).max(4 / size.min(4)).min(each))
        }
        _ => (each, each),
    }
}

/// The lanes' addresses of one load, lane by lane.
fn lanes(
    pattern: &Pattern,
    warp: &Warp,
    address: impl Fn(&Item, usize, usize, usize) -> Option<u64>,
) -> Vec<Option<u64>> {
    let item = pattern.item();
    (0..WARP)
        .map(|lane| {
            let of = warp.items.get(lane / item)?.as_ref()?;
            let part = lane % item;
            let (group, side, chunk) = (
                part / (pattern.lanes * pattern.sides),
                part / pattern.lanes % pattern.sides,
                part % pattern.lanes,
            );
            address(of, group, side, chunk)
        })
        .collect()
}

/// All taps of one sample of every item.
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
    let row = p.channels() * size / pattern.parts;
    for side in 0..2 / pattern.sides {
        for down in 0..2 {
            let address = |item: &Item, group: usize, own: usize, chunk: usize, shared: bool| {
                let s = sample(group)?;
                let position = item.taps[s][down * 2 + side + own]?;
                (chunk * pattern.vec < row).then_some(())?;
                let place = pattern.place(levels[s], position);
                (place.is_some() == shared).then_some(())?;
                let start = msda::op::offset(strides, [item.image, 0, item.head]) + position * strides[1];
                let row = place.unwrap_or(start * size + item.part * row);
                Some((row + chunk * pattern.vec) as u64)
            };
            let global =
                lanes(pattern, warp, |item, group, own, chunk| address(item, group, own, chunk, false));
            if global.iter().any(Option::is_some) {
                counts.taps += banks::warp(&global, pattern.vec) as f64;
                counts.tags += cache.read(&global, pattern.vec) as f64;
                counts.loads += 1.0;
                counts.least += banks::least(&global, pattern.vec) as f64;
            }
            let shared =
                lanes(pattern, warp, |item, group, own, chunk| address(item, group, own, chunk, true));
            counts.kept += banks::shared(&shared, pattern.vec) as f64;
            counts.least_kept += banks::least(&shared, pattern.vec) as f64;
        }
    }
}

/// Locations and weights: the tensor, the size of its numbers, and how many of them a sample has.
fn given(p: &Problem) -> [(Role, usize, usize); 2] {
    let t = p.types();
    [(Role::Locations, t.locations.size(), 2), (Role::Weights, t.weights.size(), 1)]
}

/// Locations and weights of all samples, 32 after another.
fn tabled_inputs(p: &Problem, warp: &Warp) -> f64 {
    let samples = p.samples();
    let mut total = 0;
    for (role, size, numbers) in given(p) {
        let strides = role.dense(p);
        for first in (0..warp.items.len() * samples).step_by(WARP) {
            for number in 0..numbers {
                let loads: Vec<Option<u64>> = (first..first + WARP)
                    .map(|i| {
                        let item = warp.items.get(i / samples)?.as_ref()?;
                        let start = msda::op::offset(strides, [item.image, item.query, item.head]);
                        Some(((start + i % samples * numbers + number) * size) as u64)
                    })
                    .collect();
                total += banks::warp(&loads, size);
            }
        }
    }
    total as f64
}

/// Locations and weights from `first` on, where lanes read them when they need them.
fn inputs(pattern: &Pattern, p: &Problem, warp: &Warp, first: usize) -> f64 {
    let (round, samples) = (pattern.round(), p.samples());
    let exact = samples % (pattern.item() * round) == 0;
    // Which item and which of the samples a lane reads.
    let reads = |lane: usize| match &pattern.staging {
        Staging::Rung(Samples::Tabled { .. }) => None,
        Staging::Rung(Samples::Own { together }) => {
            let group = lane % pattern.item() / (pattern.lanes * pattern.sides);
            Some((lane / pattern.item(), group * together))
        }
        Staging::Rung(Samples::Handed { round, .. }) => Some((lane / round, lane % round)),
        _ => Some((lane / pattern.item(), lane % pattern.item() * round)),
    };
    let mut total = 0;
    for (role, size, numbers) in given(p) {
        // Pieces as wide as alignment allows where rounds are whole, else number by number.
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
                    let (item, sample) = reads(lane)?;
                    let item = warp.items.get(item)?.as_ref()?;
                    let s = Some(first + sample).filter(|&s| s < samples)?;
                    let start = msda::op::offset(strides, [item.image, item.query, item.head]) + s * numbers;
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
    let stores = lanes(pattern, warp, |item, group, side, chunk| {
        let row = p.channels() * size / pattern.parts;
        // One bit after another says which half a lane is left with, and when there are no more, whether another has the same.
        let (mut channels, mut first, mut sharer) = (each, 0, group * pattern.sides + side);
        while channels > left {
            channels /= 2;
            first += sharer % 2 * channels;
            sharer /= 2;
        }
        let writes = sharer == 0 && chunk * pattern.vec < row;
        let start = msda::op::offset(strides, [item.image, item.query, item.head]) * size + item.part * row;
        writes.then_some((start + chunk * pattern.vec + first * size) as u64)
    });
    banks::warp(&stores, left * size) as f64
}

/// Wavefronts of a warp for handing samples on: for all of them at first, for a round, for the positions of a lane's
/// samples, for a sample.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Staged {
    tile: f64,
    write: f64,
    positions: f64,
    weights: f64,
    shuffles: f64,
}

/// Cycles of shared memory for one instruction of a whole warp.
fn cycles(width: usize, address: &dyn Fn(usize) -> usize) -> f64 {
    let lanes: Vec<Option<u64>> = (0..WARP).map(|lane| Some(address(lane) as u64)).collect();
    banks::shared(&lanes, width) as f64
}

/// As rungs of the ladder lay samples out: it depends on no data.
fn rung_staging(pattern: &Pattern, p: &Problem, samples: &Samples) -> Staged {
    let item = pattern.item();
    let (tables, copied) = match samples {
        Samples::Own { .. } => return Staged::default(),
        Samples::Handed { round, pitch } => {
            // Positions, then weights, 16 bytes each. Fewer samples than lanes share an instruction with others'.
            let write = cycles(16, &|lane| (lane % round * pitch + lane / round) * 16);
            let share = (WARP / item * round) as f64 / WARP as f64;
            let read = cycles(16, &|lane| lane / item * 16);
            return Staged { write: 2.0 * write * share, weights: 2.0 * read, ..Staged::default() };
        }
        Samples::Tabled { tables, copied } => (tables, *copied),
    };
    let all = (WARP / item * p.samples()) as f64;
    let mut staged = Staged::default();
    for &(bytes, width) in tables {
        for piece in (0..bytes).step_by(width) {
            let group = |lane: usize| lane % item / pattern.lanes;
            staged.weights +=
                cycles(width, &|lane| (lane / item * p.samples() + group(lane)) * bytes + piece);
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

/// As `rows.cuh` lays samples out: it depends on no data.
fn staging(pattern: &Pattern, p: &Problem) -> Staged {
    let (item, sides) = (pattern.item(), pattern.sides);
    let (round, ordered) = match pattern.staging {
        Staging::Rung(ref samples) => return rung_staging(pattern, p, samples),
        Staging::Shuffled { words, .. } => return Staged { shuffles: words as f64, ..Staged::default() },
        Staging::Shared { round, ordered } => (round, ordered),
    };
    let items = WARP / item;
    let turn = |part: usize| if item <= 4 { part * (8 / item) } else { part * items / 8 };
    let apart = sides == 1 && item == pattern.lanes;
    let slot = |of: usize, part: usize| match apart {
        true => part * items + of + turn(part),
        false => part * items + (of ^ (turn(part) & (items - 1))),
    };
    let slots = WARP + if apart { turn(item - 1) } else { 0 };
    let position = if p.positions() <= 1 << 16 { 2 } else { 4 };
    let (wide, positions) = (round * position, round * slots * 16);
    let own = |lane: usize| slot(lane / item, lane % item);
    // Every lane of an item reads what one of them wrote.
    let read = |lane: usize| slot(lane / item, lane % item / (pattern.lanes * sides));
    let side = |lane: usize| lane % item / pattern.lanes % sides;
    Staged {
        tile: 0.0,
        write: round as f64 * cycles(16, &|lane| own(lane) * 16)
            + cycles(wide, &|lane| positions + if ordered { lane } else { own(lane) } * wide),
        positions: if ordered {
            // Of so many samples at once; the figure is for those of one lane.
            let every = item * round;
            let together = (every & every.wrapping_neg()).min(16 / position);
            cycles(together * position, &|lane| positions + lane / item * every * position) * round as f64
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
    use crate::workload::Workload;

    fn predicted(name: &str, kernel: &str) -> Predicted {
        followed(name, kernel, WARPS)
    }

    fn followed(name: &str, kernel: &str, warps: usize) -> Predicted {
        let workload = Workload::find(name).unwrap();
        let whole = workload.problem(Dtype::F16).unwrap();
        let operands = Operands::dense(&whole, None);
        let request = Request::new(&whole, &operands);
        let kernel = kernel.parse().unwrap();
        let target = Target { arch: Arch::new(9, 0), multiprocessors: 132 };
        let pattern = Pattern::of(&kernel, &request, &target).unwrap();
        let data = workload.first_images(Dtype::F16, 1).unwrap();
        let machine = Machine { multiprocessors: 132, resident: 3, cache: 156 << 10, warps };
        predict(&pattern, &data, whole.batch(), machine)
    }

    /// Counted on an H200: 37 M wavefronts, of which 5.1 M of shared memory; 78 % of sectors found.
    #[test]
    fn the_encoder_is_predicted() {
        let p = predicted(
            "detr-encoder",
            "rows:sides=1,split=1,heads=2,block=512,blocks=3,round=4,keep=0,walk=tiles",
        );
        assert!((p.taps / 22.8e6 - 1.0).abs() < 0.02, "{p:?}");
        assert!((p.collisions - 1.0).abs() < 1e-6, "two heads never collide: {p:?}");
        assert!((p.wavefronts() / 37.0e6 - 1.0).abs() < 0.2, "{p:?} {}", p.wavefronts());
        assert!((60.0..95.0).contains(&p.hit_rate), "{p:?}");
    }

    /// Rows of 64 bytes of two queries are in the same half of their lines half of the time.
    #[test]
    fn pairs_of_queries_collide() {
        let alone = predicted("seed", "rows:sides=1,block=256,blocks=4,round=4");
        let both = predicted("seed", "rows:sides=2,block=256,blocks=4,round=4");
        assert!((alone.collisions - 1.5).abs() < 0.15, "{alone:?}");
        assert!((both.taps / 47.4e6 - 1.0).abs() < 0.35, "{both:?}");
        assert!(both.taps < alone.taps, "{both:?} {alone:?}");
        // Four queries a warp give each other half of eight channels; of eight queries no lanes share any.
        assert!((both.shuffles / (48.0 * 15422.0) - 1.0).abs() < 0.02, "{both:?}");
        assert!(alone.shuffles == 0.0, "{alone:?}");
    }

    /// A row of 16 words beside another: whole rows collide or do not; with two elements behind each nearly all do.
    #[test]
    fn padding_makes_conflicts() {
        let of = |name: &str| followed("seed-ring-uniform", &format!("ladder:{name}"), 600);
        let (padded, unpadded, wide) = (of("shared_padded"), of("shared_unpadded"), of("shared_wide"));
        assert!((unpadded.kept_collisions - 1.5).abs() < 0.1, "{unpadded:?}");
        assert!(padded.kept_collisions > 1.8, "{padded:?}");
        // Two rows at a time either way: wide reads save instructions, not wavefronts.
        assert!((wide.kept / unpadded.kept - 1.0).abs() < 0.05, "{wide:?} {unpadded:?}");
        assert!(of("base").kept_collisions.is_nan());
    }

    #[test]
    fn rungs_differ_where_they_should() {
        let of = |name: &str| followed("seed", &format!("ladder:{name}"), 600);
        let (original, base) = (of("original"), of("base"));
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 0.01;
        assert!(close(of("simple").taps, original.taps));
        // 94.8 M taps less those off the map, a row each; or two rows a wavefront, where they do not collide.
        assert!(original.taps > 0.8 * 94.8e6 && original.taps < 94.8e6, "{original:?}");
        assert!(base.taps > 0.5 * original.taps && base.taps < 0.85 * original.taps, "{base:?}");
        assert!(close(of("base+unroll").wavefronts(), base.wavefronts()));
        // Tables cost shared memory and save locations; so do lanes that find taps for others.
        for name in ["optimized", "base+precomputed", "base+pipeline", "ultra", "specialised"] {
            let rung = of(name);
            assert!(rung.staging > 0.0 && rung.inputs < 0.5 * base.inputs, "{name}: {rung:?} {base:?}");
        }
        assert!(of("base-cache").hit_rate < 0.5 * base.hit_rate);
        // Locations and weights of eight samples in wide pieces take as many wavefronts as those of one, number by number.
        let vector = of("original_vector");
        assert!(vector.inputs < 0.25 * base.inputs && close(vector.taps, base.taps), "{vector:?} {base:?}");
        // Neither writing taps nor reading them collides, by whichever lanes they are found.
        assert!(close(of("ultra").staging, of("specialised").staging));
        assert!(of("base+shuffle").shuffles > 0.0);
        // What is kept is not read through the cache.
        let (some, full) = (of("persistent"), of("persistent_full"));
        assert!(some.kept > 0.0 && full.kept > some.kept && full.taps < some.taps, "{some:?} {full:?}");
        let split = of("persistent_channelsplit");
        assert!(split.inputs > 3.0 * some.inputs, "{split:?} {some:?}");
    }

    #[test]
    fn one_thread_an_element_reads_locations_everywhere() {
        let generic = predicted("seed", "generic");
        let rows = predicted("seed", "rows:sides=2,block=256,blocks=4,round=4");
        assert!(generic.inputs > 4.0 * rows.inputs, "{generic:?}");
        assert!(generic.taps > 1.5 * rows.taps, "{generic:?}");
    }
}
