//! `persistent.cu`: one block per SM that takes work from a counter.

use std::sync::Arc;

use msda::Sampling;

use super::direct::Load;
use super::loaders::Loaders;
use super::resident::{ResidentLevels, resident_levels, room};
use super::{
    DOCUMENTED, Strategy, args, half_refuses, input_alignment, quantised, texture, unit, vec, window,
};
use crate::texture::Textures;
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Args, Call, Prepared, order_first};
use msda_cuda::{Request, Slot, Target};

/// Knobs, as the kernel declares them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Persistent {
    /// The most bytes per load of a lane; 1 means one channel.
    vec: usize,
    /// The most shared memory per block. Without a bound it is all, and a part of the first level
    /// that does not fit is resident.
    budget: Option<usize>,
    /// Channels per work item, if not all.
    channels: Option<usize>,
    locate: bool,
    load: Load,
    unroll: usize,
    /// Threads per block.
    threads: usize,
    /// The most samples whose locations and weights a thread with one channel loads at once.
    together: usize,
    /// Whether products and sums are `f16`.
    half: bool,
    division: Division,
    change: Change,
}

/// How work is divided among blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Division {
    /// Whether a work item is one query, as the documents have it.
    one_query: bool,
    /// Whether blocks take items from a counter; otherwise each block has its own.
    counter: bool,
}

/// The estimates of document 4, one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    /// The texture unit loads and interpolates.
    Texture,
    /// Queries are ordered by the place that they sample.
    Reordered,
    /// Values are int8, interpolation weights f16.
    Int8,
    /// The rows of the next query are copied meanwhile.
    Prefetch,
    /// So many warps only load locations and weights.
    Loaders(usize),
    /// L2 keeps values.
    Window,
}

/// Work items per block, about: few, because each one loads the resident levels, but enough for an
/// even end.
const ITEMS_PER_BLOCK: usize = 8;

/// Samples per query that a warp stages at a time, at most.
const MAX_STAGED: usize = 8;

/// Warps that prefetch, at least and at most, in steps of the least.
const PREFETCHING_WARPS: (usize, usize) = (4, 32);

/// Shared memory of the buffers of loading warps, if larger passes would not fit.
const LOADER_BYTES: usize = 10 << 10;

pub(super) const PERSISTENT: Persistent = Persistent {
    vec: 1,
    budget: Some(DOCUMENTED),
    channels: None,
    locate: false,
    load: Load::Cached,
    unroll: 1,
    threads: 1024,
    together: 1,
    half: false,
    division: Division { one_query: false, counter: true },
    change: Change::None,
};
/// At the seed shape the document names no difference from `persistent` but the size of the
/// problem.
pub(super) const FULL: Persistent = PERSISTENT;
pub(super) const CHANNELSPLIT: Persistent = Persistent { channels: Some(8), ..PERSISTENT };
pub(super) const ULTRA: Persistent = Persistent { locate: true, load: Load::Kept, unroll: 4, ..PERSISTENT };

/// Work items of one query, in blocks of the documents' size.
pub(super) const QUERY: Persistent =
    Persistent { threads: 256, division: Division { one_query: true, counter: true }, ..PERSISTENT };
/// Controls of work stealing: the same without a counter.
pub(super) const QUERY_STATIC: Persistent =
    Persistent { division: Division { one_query: true, counter: false }, ..QUERY };
pub(super) const STATIC: Persistent =
    Persistent { division: Division { one_query: false, counter: false }, ..PERSISTENT };
/// The control of loading warps: as wide loads, by every warp.
pub(super) const WIDE_INPUTS: Persistent = Persistent { together: 4, ..PERSISTENT };

// The suite, where a change is not a rung of its own already.
pub(super) const UNROLL: Persistent = Persistent { unroll: 4, ..FULL };
pub(super) const POLICY: Persistent = Persistent { load: Load::Kept, ..FULL };
pub(super) const HINTS: Persistent = Persistent { load: Load::WholeLines, ..FULL };
pub(super) const PRECOMPUTED: Persistent = Persistent { locate: true, ..FULL };
pub(super) const HALF: Persistent = Persistent { half: true, ..FULL };

pub(super) const TEXTURE: Persistent = Persistent { change: Change::Texture, ..PERSISTENT };
pub(super) const REORDERED: Persistent = Persistent { change: Change::Reordered, ..PERSISTENT };
pub(super) const INT8: Persistent = Persistent { change: Change::Int8, ..PERSISTENT };
pub(super) const PREFETCH: Persistent = Persistent { change: Change::Prefetch, ..PERSISTENT };
pub(super) const SPECIALISED1: Persistent = Persistent { change: Change::Loaders(1), ..PERSISTENT };
pub(super) const SPECIALISED2: Persistent = Persistent { change: Change::Loaders(2), ..PERSISTENT };
pub(super) const WINDOW: Persistent = Persistent { change: Change::Window, ..PERSISTENT };

pub(super) const WIDE: Persistent = Persistent { vec: 16, ..PERSISTENT };
pub(super) const FULL_WIDE: Persistent = Persistent { budget: None, ..WIDE };
pub(super) const CHANNELSPLIT_WIDE: Persistent = Persistent { channels: Some(8), ..WIDE };
pub(super) const ULTRA_WIDE: Persistent =
    Persistent { locate: true, load: Load::Kept, unroll: 4, threads: 768, ..FULL_WIDE };

/// How lanes divide the rows of a request.
#[derive(Debug, Clone, Copy)]
struct Lanes {
    vec: usize,
    channel_groups: usize,
    /// Lanes per query.
    per_query: usize,
    /// Bytes of a row, or of its part, as it is gathered.
    row: usize,
    /// Bytes per load of a copy of rows.
    copy: usize,
}

/// How a block uses its threads and its shared memory.
#[derive(Debug)]
struct Block {
    threads: usize,
    /// Queries side by side.
    queries: usize,
    /// Shared memory before the levels.
    stage_bytes: usize,
    levels: ResidentLevels,
}

/// Work items of a call, work items per plane and group of channels, queries per work item.
struct Items {
    all: usize,
    per_plane: usize,
    queries: usize,
}

impl Persistent {
    fn lanes(&self, request: &Request<'_>) -> Lanes {
        let p = request.problem;
        let channel_groups = self.channels.map_or(1, |some| p.channels() / some).max(1);
        let vec_bytes = vec(request, self.vec);
        let row = p.channels() * p.types().value.size() / channel_groups;
        let per_query = row / vec_bytes;
        let lowest_bit = |n: usize| n & n.wrapping_neg();
        let (row, copy) = match self.change {
            Change::Int8 => (quantised::row_bytes(request), quantised::piece(request)),
            _ => (row, lowest_bit(vec(request, 16) | row)),
        };
        Lanes { vec: vec_bytes, channel_groups, per_query, row, copy }
    }

    /// The loading warps, if there are any.
    fn loaders(&self, request: &Request<'_>) -> Option<Loaders> {
        let Change::Loaders(warps) = self.change else { return None };
        let lanes = self.lanes(request).per_query;
        Some(Loaders::new(request, warps, self.threads, lanes, LOADER_BYTES))
    }

    /// How taps are staged: samples per query that a warp locates at a time, how many of them it
    /// stages at a time, and the pitch between samples. Eight lanes write together, 16 bytes each;
    /// if the numbers divide evenly, each writes to banks of its own.
    fn staging(&self, request: &Request<'_>) -> (usize, usize, usize) {
        let queries = 32 / self.lanes(request).per_query.min(32);
        let located = 32 / queries;
        let staged = (1..=located.min(MAX_STAGED)).rev().find(|n| located.is_multiple_of(*n));
        let apart = match located {
            2 | 4 | 8 => 8 / located,
            16 => 1,
            _ => 0,
        };
        (located, staged.unwrap_or(1), queries + apart)
    }

    /// Samples that a thread loads together: a power of two that divides the points of every level.
    fn together(&self, request: &Request<'_>) -> usize {
        let grain = request.problem.points().iter().fold(self.together, |grain, points| grain | points);
        grain & grain.wrapping_neg()
    }

    /// Whether a part of the first level that does not fit is resident.
    fn partial(&self) -> bool {
        self.budget.is_none()
    }

    /// The block of a request whose queries fit one; none if its buffers do not fit.
    fn block(&self, request: &Request<'_>, target: &Target) -> Option<Block> {
        let lanes = self.lanes(request);
        let (threads, warps) = (self.threads, self.threads / 32);
        let all = room(target);
        let most = self.budget.map_or(all, |most| most.min(all));
        let levels = |bytes: usize| resident_levels(request.problem, lanes.row, bytes, self.partial());
        if self.change == Change::Prefetch {
            // The buffers lie beside the levels. If they do not fit, no level is resident.
            return [most, 0].into_iter().find_map(|bytes| {
                let levels = levels(bytes);
                let taps = if request.problem.sampling() == Sampling::Nearest { 1 } else { 4 };
                let per_warp = 2 * levels.streamed(request.problem).max(1) * taps * lanes.row;
                let (least, most) = PREFETCHING_WARPS;
                let warps = ((all - levels.bytes) / per_warp).min(most) / least * least;
                let stage_bytes = (warps * per_warp).next_multiple_of(16);
                let fits = warps > 0 && stage_bytes + levels.bytes <= all;
                fits.then_some(Block { threads: warps * 32, queries: warps, stage_bytes, levels })
            });
        }
        let (queries, stage_bytes) = match self.loaders(request) {
            Some(loaders) => (loaders.queries(), loaders.bytes()),
            None if self.locate => {
                let (_, staged, pitch) = self.staging(request);
                // 16 bytes of positions and 16 of weights per sample.
                (warps * (32 / lanes.per_query), warps * staged * pitch * 32)
            }
            None => (threads / lanes.per_query, 0),
        };
        let levels = levels(most.checked_sub(stage_bytes)?);
        Some(Block { threads, queries, stage_bytes, levels })
    }

    /// The work items; none if there are more than the counter can count.
    fn items(&self, request: &Request<'_>, target: &Target, block: &Block) -> Option<Items> {
        let p = request.problem;
        let planes = (p.batch() * p.heads()).checked_mul(self.lanes(request).channel_groups)?;
        let shares = (target.sms as usize * ITEMS_PER_BLOCK).div_ceil(planes);
        let queries = match self.division.one_query {
            true => 1,
            false => p.queries().div_ceil(shares).next_multiple_of(block.queries),
        };
        let per_plane = p.queries().div_ceil(queries);
        let all = planes.checked_mul(per_plane)?;
        (all < 1 << 30).then_some(Items { all, per_plane, queries })
    }

    /// Adds the fields of the argument that belong to the change, and the stages before the kernel.
    fn prepare_change(&self, call: &mut Call, args: &mut Args, request: &Request<'_>, target: &Target) {
        match self.change {
            Change::Reordered => args.pointer("order", order_first(call, request, target)),
            Change::Int8 => quantised::quantise_first(call, request, target).put(args),
            Change::Texture => {
                let mut textures = Textures::default();
                texture::put(&mut textures, args, request, 1);
                call.resource = Some(Arc::new(textures));
            }
            Change::None | Change::Prefetch | Change::Loaders(_) | Change::Window => (),
        }
    }

    /// The most lanes per query, and why.
    fn max_lanes(&self) -> (usize, &'static str) {
        match self.change {
            Change::Prefetch => (32, "a warp prefetches a query"),
            Change::Loaders(warps) => (self.threads - warps * 32, "a block has no more"),
            _ if self.locate => (32, "a warp stages its queries"),
            _ => (self.threads, "a block has no more"),
        }
    }
}

impl Strategy for Persistent {
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        let channels = request.problem.channels();
        if let Some(some) = self.channels.filter(|&some| !channels.is_multiple_of(some)) {
            return Some(format!("{channels} channels are no groups of {some}"));
        }
        if let Some(why) = half_refuses(request).filter(|_| self.half) {
            return Some(why);
        }
        let lanes = self.lanes(request);
        let (most, why) = self.max_lanes();
        if lanes.per_query > most {
            return Some(format!("{} threads per query, at most {most}: {why}", lanes.per_query));
        }
        let needs = match self.change {
            Change::Prefetch => Some("asynchronous copies"),
            Change::Loaders(_) => Some("barriers in shared memory"),
            Change::Window => Some("persisting lines in L2"),
            _ if self.load == Load::Kept => Some("such hints"),
            _ => None,
        };
        if let Some(needs) = needs.filter(|_| target.arch.major < 8) {
            return Some(format!("{} has no {needs}", target.arch));
        }
        match self.change {
            Change::Texture => {
                if let Some(why) = texture::refuses(request, 1) {
                    return Some(why);
                }
            }
            Change::Reordered if request.problem.points()[0] == 0 => {
                return Some("no points on the first level to order queries by".into());
            }
            Change::Int8 if quantised::plane_bytes(request).is_none() => {
                return Some("the bytes of all values are more than there are addresses".into());
            }
            Change::Prefetch if lanes.copy < 4 => {
                return Some(format!("rows are aligned to {} bytes: copies have at least 4", lanes.copy));
            }
            _ => (),
        }
        let Some(block) = self.block(request, target) else {
            return Some("the buffers of a block do not fit its shared memory".into());
        };
        if self.items(request, target, &block).is_none() {
            return Some("more work items than the counter can count".into());
        }
        None
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let lanes = self.lanes(request);
        let (located, staged, pitch) = self.staging(request);
        // Only requests that were not refused are prepared.
        let levels = resident_levels(p, lanes.row, 0, false);
        let block = self.block(request, target).unwrap_or(Block {
            threads: self.threads,
            queries: 1,
            stage_bytes: 0,
            levels,
        });
        let items = self.items(request, target, &block).unwrap_or(Items { all: 0, per_plane: 1, queries: 1 });
        let (partial, together) = (self.partial(), self.together(request));
        let is = |change| u8::from(self.change == change);
        let streamed = if self.change == Change::Prefetch { block.levels.streamed(p) } else { 0 };
        let key = format!(
            "persistent-b{}-{:?}-g{}-u{}{}{}{}{}{}{}",
            block.threads,
            self.load,
            lanes.channel_groups,
            self.unroll,
            if partial { "-partial" } else { "" },
            if together > 1 { format!("-t{together}") } else { String::new() },
            if self.half { "-halves" } else { "" },
            if self.division.counter { "" } else { "-static" },
            if self.locate { format!("-locate{located}.{staged}") } else { String::new() },
            match self.change {
                Change::None | Change::Window => String::new(),
                Change::Prefetch => format!("-prefetch{streamed}"),
                change => format!("-{change:?}").to_lowercase().replace(['(', ')'], ""),
            },
        );
        let mut unit = unit("ladder/persistent.cu", &key, request, target, lanes.vec)
            .define("THREADS", block.threads)
            .define("PAD", 0)
            .define("CHANNEL_GROUPS", lanes.channel_groups)
            .define("STORED_ROW_BYTES", lanes.row * lanes.channel_groups)
            .define("COPY", lanes.copy)
            .define("STAGE_BYTES", block.stage_bytes)
            .define("PARTIAL", u8::from(partial))
            .define("LOCATE", u8::from(self.locate))
            .define("STAGED", staged)
            .define("PITCH", pitch)
            .define("LOAD", self.load as u8)
            .define("UNROLL", self.unroll)
            .define("F16_SUMS", if self.half { 2 } else { 0 })
            .define("STATIC", u8::from(!self.division.counter))
            .define("ORDERED", is(Change::Reordered))
            .define("INT8", is(Change::Int8))
            .define("TEXTURE", is(Change::Texture))
            .define("CHANNELS_PER_TEXEL", 1)
            .define("PREFETCH", is(Change::Prefetch))
            .define("STREAMED", streamed);
        unit = match self.loaders(request) {
            Some(loaders) => loaders.define(unit, request),
            None => unit
                .define("LOADERS", 0)
                .define("SAMPLES_PER_LOAD", together)
                .define("LOCATION_ALIGN", input_alignment(request, Slot::Locations, together))
                .define("WEIGHT_ALIGN", input_alignment(request, Slot::Weights, together)),
        };
        let mut args = args(request);
        let mut call = Call::default();
        let counter = call.arena.reserve(4);
        args.pointer("next_item", counter);
        args.i32("items", items.all);
        args.i32("items_per_plane", items.per_plane);
        args.i32("queries_per_item", items.queries);
        block.levels.put(&mut args);
        args.align(8);
        self.prepare_change(&mut call, &mut args, request, target);
        let levels = block.levels.streamed_levels(p);
        if self.change == Change::Texture && levels > 0 {
            let launch = texture::copy_launch(request, target, levels, block.threads);
            let (unit, args) = (unit.clone(), args.clone());
            call.run(Prepared { unit, entry: "msda_texels", launch, args }, "copies values to textures");
        }
        let blocks = items.all.min(target.sms as usize).max(1) as u32;
        let shared = (block.levels.bytes + block.stage_bytes) as u32;
        let launch = Launch { shared, ..Launch::new([blocks, 1, 1], [block.threads as u32, 1, 1]) };
        call.clear(counter, "sets the work counter to zero");
        if self.change == Change::Window {
            window::keep_values(&mut call, request);
        }
        call.run(Prepared { unit, entry: "msda_forward", launch, args }, "computes the output");
        if self.change == Change::Window {
            window::release_values(&mut call, request, target);
        }
        call
    }

    fn is_exact(&self) -> bool {
        !self.half && !matches!(self.change, Change::Texture | Change::Int8)
    }
}
