//! `persistent.cu`: one block per SM that takes work from a counter.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Args, Call, Prepared, order_first};
use serde::Deserialize;

use super::direct::Load;
use super::loaders::Loaders;
use super::quantised::{self, Quantised};
use super::resident::{ResidentLevels, resident_levels, room};
use super::{Ask, DOCUMENTED, FORWARD, Strategy, lowest_bit, texture, window};
use crate::texture::Textures;

/// Knobs, as the kernel declares them.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Persistent {
    /// The most bytes per load of a lane; 1 means one channel.
    vec: usize,
    /// Whether a block has all shared memory, and a part of the first level that does not fit is
    /// resident. Otherwise it has what the documents have.
    whole: bool,
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
    /// Whether a work item is one query, as the documents have it.
    one_query: bool,
    /// Whether blocks take items from a counter; otherwise each block has its own.
    counter: bool,
    change: Change,
}

/// The estimates of document 4, one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

impl Default for Persistent {
    fn default() -> Self {
        Self {
            vec: 1,
            whole: false,
            channels: None,
            locate: false,
            load: Load::Cached,
            unroll: 1,
            threads: 1024,
            together: 1,
            half: false,
            one_query: false,
            counter: true,
            change: Change::None,
        }
    }
}

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

impl Persistent {
    fn lanes(&self, ask: &Ask<'_>) -> Lanes {
        let channel_groups = self.channels.map_or(1, |some| ask.p.channels() / some).max(1);
        let vec = ask.vec(self.vec);
        let row = ask.row_bytes() / channel_groups;
        let per_query = row / vec;
        let (row, copy) = match self.change {
            Change::Int8 => (quantised::row_bytes(ask.p), quantised::piece(ask.p)),
            _ => (row, lowest_bit(ask.vec(16) | row)),
        };
        Lanes { vec, channel_groups, per_query, row, copy }
    }

    /// How taps are staged: how many samples per query a warp stages at a time, and the pitch
    /// between samples. Eight lanes write together, 16 bytes each; if the numbers divide evenly,
    /// each writes to banks of its own.
    fn staging(lanes: &Lanes) -> (usize, usize) {
        let queries = 32 / lanes.per_query.min(32);
        // Samples per query that a warp locates at a time.
        let located = 32 / queries;
        let staged = (1..=located.min(MAX_STAGED)).rev().find(|n| located.is_multiple_of(*n));
        let apart = match located {
            2 | 4 | 8 => 8 / located,
            16 => 1,
            _ => 0,
        };
        (staged.unwrap_or(1), queries + apart)
    }

    /// The block of a request whose queries fit one; none if its buffers do not fit.
    fn block(&self, ask: &Ask<'_>, lanes: &Lanes, loaders: Option<Loaders>) -> Option<Block> {
        let (threads, warps) = (self.threads, self.threads / 32);
        let all = room(ask.target);
        let most = if self.whole { all } else { DOCUMENTED.min(all) };
        let levels = |bytes: usize| resident_levels(ask.p, lanes.row, bytes, self.whole);
        if self.change == Change::Prefetch {
            // The buffers lie beside the levels. If they do not fit, no level is resident.
            return [most, 0].into_iter().find_map(|bytes| {
                let levels = levels(bytes);
                let per_warp = 2 * levels.streamed(ask.p).max(1) * ask.taps() * lanes.row;
                let (least, most) = PREFETCHING_WARPS;
                let warps = ((all - levels.bytes) / per_warp).min(most) / least * least;
                let stage_bytes = (warps * per_warp).next_multiple_of(16);
                let fits = warps > 0 && stage_bytes + levels.bytes <= all;
                fits.then_some(Block { threads: warps * 32, queries: warps, stage_bytes, levels })
            });
        }
        let (queries, stage_bytes) = match loaders {
            Some(loaders) => (loaders.queries(), loaders.bytes()),
            None if self.locate => {
                let (staged, pitch) = Self::staging(lanes);
                // 16 bytes of positions and 16 of weights per sample.
                (warps * (32 / lanes.per_query), warps * staged * pitch * 32)
            }
            None => (threads / lanes.per_query, 0),
        };
        let levels = levels(most.checked_sub(stage_bytes)?);
        Some(Block { threads, queries, stage_bytes, levels })
    }

    /// Refuses what the change cannot do.
    fn check_change(&self, ask: &Ask<'_>, lanes: &Lanes) -> Result<()> {
        let (most, why) = match self.change {
            Change::Prefetch => (32, "a warp prefetches a query"),
            Change::Loaders(warps) => (self.threads - warps * 32, "a block has no more"),
            _ if self.locate => (32, "a warp stages its queries"),
            _ => (self.threads, "a block has no more"),
        };
        ensure!(lanes.per_query <= most, "{} threads per query, at most {most}: {why}", lanes.per_query);
        match self.change {
            Change::Prefetch => ask.needs(8, "asynchronous copies")?,
            Change::Loaders(_) => ask.needs(8, "barriers in shared memory")?,
            Change::Window => ask.needs(8, "persisting lines in L2")?,
            _ if self.load == Load::Kept => ask.needs(8, "such hints")?,
            _ => (),
        }
        match self.change {
            Change::Texture => texture::check(ask, 1)?,
            Change::Reordered => {
                ensure!(ask.p.points()[0] > 0, "no points on the first level to order queries by");
            }
            Change::Int8 => drop(quantised::plane_bytes(ask)?),
            Change::Prefetch => {
                ensure!(lanes.copy >= 4, "rows are aligned to {} bytes: copies have at least 4", lanes.copy);
            }
            _ => (),
        }
        Ok(())
    }

    /// Adds the fields of the argument that belong to the change, and the stages before the kernel.
    fn prepare_change(&self, call: &mut Call, args: &mut Args, ask: &Ask<'_>) -> Result<()> {
        match self.change {
            Change::Reordered => args.pointer("order", order_first(call, ask.request, ask.target)),
            Change::Int8 => Quantised::default().quantise(call, ask)?.0.put(args),
            Change::Texture => {
                let mut textures = Textures::default();
                texture::put(&mut textures, args, ask, 1);
                call.resource = Some(Arc::new(textures));
            }
            Change::None | Change::Prefetch | Change::Loaders(_) | Change::Window => (),
        }
        Ok(())
    }
}

impl Strategy for Persistent {
    fn call(&self, ask: &Ask<'_>) -> Result<Call> {
        let p = ask.p;
        if let Some(some) = self.channels {
            let channels = p.channels();
            ensure!(channels.is_multiple_of(some), "{channels} channels are no groups of {some}");
        }
        ask.may_be_half(self.half)?;
        let lanes = self.lanes(ask);
        self.check_change(ask, &lanes)?;
        let loaders = match self.change {
            Change::Loaders(n) => Some(Loaders::new(ask, n, self.threads, lanes.per_query, LOADER_BYTES)),
            _ => None,
        };
        let block = self.block(ask, &lanes, loaders);
        let block = block.context("the buffers of a block do not fit its shared memory")?;
        // Work items per plane and group of channels, and of the whole call.
        let many = "more work items than the counter can count";
        let planes = ask.planes().checked_mul(lanes.channel_groups).context(many)?;
        let shares = (ask.sms() * ITEMS_PER_BLOCK).div_ceil(planes);
        let share = p.queries().div_ceil(shares).next_multiple_of(block.queries);
        let queries_per_item = if self.one_query { 1 } else { share };
        let items_per_plane = p.queries().div_ceil(queries_per_item);
        let items = planes.checked_mul(items_per_plane).filter(|&n| n < 1 << 30).context(many)?;

        let (staged, pitch) = Self::staging(&lanes);
        let is = |change| u8::from(self.change == change);
        let streamed = if self.change == Change::Prefetch { block.levels.streamed(p) } else { 0 };
        let unit = ask
            .unit("ladder/persistent.cu", lanes.vec)
            .define("THREADS", block.threads)
            .define("PAD", 0)
            .define("CHANNEL_GROUPS", lanes.channel_groups)
            .define("STORED_ROW_BYTES", lanes.row * lanes.channel_groups)
            .define("COPY", lanes.copy)
            .define("STAGE_BYTES", block.stage_bytes)
            .define("PARTIAL", u8::from(self.whole))
            .define("LOCATE", u8::from(self.locate))
            .define("STAGED", staged)
            .define("PITCH", pitch)
            .define("LOAD", self.load as u8)
            .define("UNROLL", self.unroll)
            .define("F16_SUMS", if self.half { 2 } else { 0 })
            .define("STATIC", u8::from(!self.counter))
            .define("ORDERED", is(Change::Reordered))
            .define("INT8", is(Change::Int8))
            .define("TEXTURE", is(Change::Texture))
            .define("CHANNELS_PER_TEXEL", 1)
            .define("PREFETCH", is(Change::Prefetch))
            .define("STREAMED", streamed);
        let unit = match loaders {
            Some(loaders) => loaders.define(unit, ask),
            None => {
                // A power of two that divides the points of every level.
                let together = lowest_bit(p.points().iter().fold(self.together, |all, points| all | points));
                let unit = unit.define("LOADERS", 0).define("SAMPLES_PER_LOAD", together);
                ask.input_alignment(unit, together)
            }
        };
        let mut args = ask.args();
        let mut call = Call::default();
        let counter = call.arena.reserve(4);
        args.pointer("next_item", counter);
        args.i32("items", items);
        args.i32("items_per_plane", items_per_plane);
        args.i32("queries_per_item", queries_per_item);
        block.levels.put(&mut args);
        args.align(8);
        self.prepare_change(&mut call, &mut args, ask)?;
        let levels = block.levels.streamed_levels(p);
        if self.change == Change::Texture && levels > 0 {
            texture::copy_first(&mut call, ask, &unit, &args, levels, block.threads);
        }
        let blocks = items.min(ask.sms()).max(1) as u32;
        let shared = (block.levels.bytes + block.stage_bytes) as u32;
        let launch = Launch { shared, ..Launch::new([blocks, 1, 1], [block.threads as u32, 1, 1]) };
        call.clear(counter, "sets the work counter to zero");
        if self.change == Change::Window {
            window::keep_values(&mut call, ask);
        }
        call.run(Prepared { unit, entry: FORWARD, launch, args }, "computes the output");
        if self.change == Change::Window {
            window::release_values(&mut call, ask);
        }
        Ok(call)
    }

    fn is_exact(&self) -> bool {
        !self.half && !matches!(self.change, Change::Texture | Change::Int8)
    }
}
