//! `direct.cu`: taps loaded directly from global memory; the base of the suite.

use super::{Strategy, WORKSPACE, args, half_refuses, input_alignment, row_bytes, unit, vec, window};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Call, Pointer, Prepared, order_first};
use msda_cuda::{Request, Slot, Target};

/// Where samples are prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Staging {
    /// In registers of each thread.
    None,
    /// Locations and weights in shared memory.
    Given,
    /// Taps in shared memory.
    Taps,
}

/// How rows are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    Cached,
    PastL1,
    WholeLines,
    Kept,
}

/// Where a kernel reads the table of levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// In the argument: constant memory.
    Argument,
    /// In memory, through L1.
    Memory,
    /// In shared memory, copied by each block.
    Shared,
}

/// Which products and sums are `f16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Half {
    Nothing,
    /// Sums of the samples that a thread loads together; they are added up in `f32`.
    Few,
    /// Everything.
    All,
}

/// Knobs, as the kernel declares them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Direct {
    linear: bool,
    /// The most bytes per load of a thread; 1 means one element.
    vec: usize,
    /// Whether these bytes are loaded element by element.
    elements: bool,
    load: Load,
    table: Table,
    split: usize,
    queries: usize,
    stage: Staging,
    pipeline: bool,
    stride: bool,
    unroll: usize,
    /// The most samples whose locations and weights a thread loads together.
    together: usize,
    half: Half,
    listed: bool,
    /// Samples with less than this part of the mean weight are dropped: 1 / drop. 0: none.
    drop: usize,
    /// L2 keeps values.
    window: bool,
}

/// Threads per block; fewer where shared memory is short.
const BLOCK: usize = 256;

/// Blocks per SM, where a block processes several tiles.
const RESIDENT: usize = 8;

/// Static shared memory per block that every device has.
const SHARED: usize = 48 << 10;

pub(super) const SIMPLE: Direct = Direct {
    linear: false,
    vec: 1,
    elements: false,
    load: Load::Cached,
    table: Table::Argument,
    split: 1,
    queries: 1,
    stage: Staging::None,
    pipeline: false,
    stride: false,
    unroll: 1,
    together: 1,
    half: Half::Nothing,
    listed: false,
    drop: 0,
    window: false,
};
pub(super) const ORIGINAL: Direct = Direct { linear: true, ..SIMPLE };
pub(super) const BASE: Direct = Direct { vec: 16, ..SIMPLE };
/// The documents' own first kernel, with sums in `f32`.
pub(super) const ORIGINAL_VECTOR: Direct = Direct { linear: true, together: 8, ..BASE };
/// The same with sums in `f16`, as the documents have them.
pub(super) const ORIGINAL_HALF: Direct = Direct { half: Half::All, ..ORIGINAL_VECTOR };
/// The same without an index over the whole output.
pub(super) const DISTRIBUTED_FIXED: Direct = Direct { linear: false, ..ORIGINAL_HALF };
pub(super) const OPTIMIZED: Direct = METADATA;
pub(super) const REORDERED: Direct = Direct { listed: true, ..BASE };
/// Less than a quarter of the mean weight is dropped, so the dropped samples have less than a
/// quarter of the sum.
pub(super) const FEWER_POINTS: Direct = Direct { drop: 4, together: 8, ..BASE };

// The suite: one change at a time.
pub(super) const SHUFFLE: Direct = Direct { split: 4, ..BASE };
pub(super) const PIPELINE: Direct = Direct { pipeline: true, ..BASE };
pub(super) const BLOCKING: Direct = Direct { queries: 2, ..BASE };
pub(super) const HINTS: Direct = Direct { load: Load::WholeLines, ..BASE };
pub(super) const METADATA: Direct = Direct { stage: Staging::Given, ..BASE };
pub(super) const REDISTRIBUTE: Direct = Direct { stride: true, ..BASE };
pub(super) const UNROLL: Direct = Direct { unroll: 4, ..BASE };
pub(super) const PRECOMPUTED: Direct = Direct { stage: Staging::Taps, ..BASE };
pub(super) const POLICY: Direct = Direct { load: Load::Kept, ..BASE };
pub(super) const HALF: Direct = Direct { half: Half::Few, ..BASE };
pub(super) const WINDOW: Direct = Direct { window: true, ..BASE };
pub(super) const UNCACHED: Direct = Direct { load: Load::PastL1, ..BASE };

/// The kernel that the suite of the documents changes: one thread per output, multiply-adds in
/// `f16`, the table of levels in memory.
pub(super) const ORIGINAL_F16: Direct = Direct { half: Half::All, table: Table::Memory, ..ORIGINAL };
/// Tiles of queries, which two of its changes need.
pub(super) const F16_TILES: Direct = Direct { linear: false, ..ORIGINAL_F16 };
pub(super) const F16_SHUFFLE: Direct = Direct { split: 4, ..ORIGINAL_F16 };
pub(super) const F16_PIPELINE: Direct = Direct { pipeline: true, ..F16_TILES };
/// Four channels per thread, one load each, as the documents block registers.
pub(super) const F16_BLOCKING: Direct = Direct { vec: 8, elements: true, ..ORIGINAL_F16 };
pub(super) const F16_POLICY: Direct = Direct { load: Load::Kept, ..ORIGINAL_F16 };
pub(super) const F16_VECTOR: Direct = Direct { vec: 16, ..ORIGINAL_F16 };
pub(super) const F16_METADATA: Direct = Direct { table: Table::Shared, ..ORIGINAL_F16 };
pub(super) const F16_REDISTRIBUTE: Direct = Direct { stride: true, ..ORIGINAL_F16 };
pub(super) const F16_UNROLL: Direct = Direct { unroll: 4, ..ORIGINAL_F16 };
pub(super) const F16_PRECOMPUTED: Direct = Direct { stage: Staging::Taps, ..F16_TILES };
pub(super) const F16_HINTS: Direct = Direct { load: Load::WholeLines, ..ORIGINAL_F16 };
pub(super) const F16_MIXED: Direct = Direct { half: Half::Nothing, ..ORIGINAL_F16 };

impl Direct {
    fn item(&self, request: &Request<'_>) -> usize {
        row_bytes(request) / vec(request, self.vec) * self.split
    }

    /// Threads per block: as many as shared memory allows.
    fn block(&self, request: &Request<'_>) -> usize {
        let fits = |&block: &usize| self.shared(request, block) <= SHARED && block >= self.item(request);
        [BLOCK, BLOCK / 2, BLOCK / 4, BLOCK / 8].into_iter().find(fits).unwrap_or(0)
    }

    /// Blocks, where threads number the whole output.
    fn counted(&self, request: &Request<'_>) -> usize {
        let p = request.problem;
        let tiles = p.batch() * p.heads() * p.queries().div_ceil(self.queries);
        (tiles * self.item(request)).div_ceil(self.block(request))
    }

    /// Queries per tile.
    fn tile(&self, request: &Request<'_>, block: usize) -> usize {
        self.queries * if self.linear { 1 } else { block / self.item(request) }
    }

    /// Samples whose locations and weights a thread loads together: a power of two that divides
    /// their number.
    fn together(&self, request: &Request<'_>) -> usize {
        let grain = request.problem.samples() | self.together;
        grain & grain.wrapping_neg()
    }

    /// Bytes of shared memory per block.
    fn shared(&self, request: &Request<'_>, block: usize) -> usize {
        let (p, t) = (request.problem, request.problem.types());
        let raw = 2 * t.locations.size() + t.weights.size();
        let sample = match (self.pipeline, self.stage) {
            (true, _) => 2 * raw,
            (_, Staging::None) => return 0,
            (_, Staging::Given) => 12,
            (_, Staging::Taps) => 32,
        };
        self.tile(request, block) * p.samples() * sample + 64
    }
}

impl Strategy for Direct {
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        let (p, t) = (request.problem, request.problem.types());
        let item = self.item(request);
        if item > BLOCK {
            return Some(format!("{item} threads for a query: a block has {BLOCK}"));
        }
        if self.split > 1 && !item.is_power_of_two() {
            return Some(format!("{item} lanes for a query: shuffles want a power of two"));
        }
        if self.block(request) == 0 {
            return Some(format!("{} samples: no tile of queries fits shared memory", p.samples()));
        }
        if self.linear && self.counted(request) >= 1 << 31 {
            return Some("more blocks than a grid has".into());
        }
        if let Some(why) = half_refuses(request).filter(|_| self.half != Half::Nothing) {
            return Some(why);
        }
        if self.listed && p.points()[0] == 0 {
            return Some("no points on the first level to order queries by".into());
        }
        if (self.pipeline || self.window || self.load == Load::Kept) && target.arch.major < 8 {
            return Some(format!("{} has no such copies and hints", target.arch));
        }
        if self.drop > 0 && p.samples() > 64 {
            return Some(format!("{} samples: at most 64 are marked", p.samples()));
        }
        if self.pipeline {
            let o = request.operands;
            let words = |operand: msda_cuda::Operand, row: usize, size: usize| {
                row.is_multiple_of(4)
                    && operand.align >= 4
                    && operand.strides.iter().all(|s| s.wrapping_mul(size).is_multiple_of(4))
            };
            let (l, w) = (t.locations.size(), t.weights.size());
            if !words(o[Slot::Locations], p.samples() * 2 * l, l)
                || !words(o[Slot::Weights], p.samples() * w, w)
            {
                return Some("locations or weights are no whole words".into());
            }
        }
        None
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let (block, together) = (self.block(request), self.together(request));
        let key = format!(
            "direct-{:?}-s{}-q{}-{:?}-u{}{}{}{}{}{}{}{}{}",
            self.load,
            self.split,
            self.queries,
            self.stage,
            self.unroll,
            if self.linear { "-linear" } else { "" },
            if self.pipeline { "-pipeline" } else { "" },
            if self.stride { "-stride" } else { "" },
            match self.half {
                Half::Nothing => "",
                Half::Few => "-half",
                Half::All => "-halves",
            },
            if together > 1 { format!("-t{together}") } else { String::new() },
            if self.listed { "-listed" } else { "" },
            if self.elements { "-elements" } else { "" },
            match self.table {
                Table::Argument => "",
                Table::Memory => "-table",
                Table::Shared => "-tables",
            },
        );
        let key = if self.drop > 0 { format!("{key}-drop{}", self.drop) } else { key };
        let unit = unit("ladder/direct.cu", &key, request, target, vec(request, self.vec))
            .define("THREADS", block)
            .define("LINEAR", u8::from(self.linear))
            .define("LOAD", self.load as u8)
            .define("ELEMENT_LOADS", u8::from(self.elements))
            .define("TABLE", self.table as u8)
            .define("SAMPLE_GROUPS", self.split)
            .define("QUERIES_PER_THREAD", self.queries)
            .define("STAGE", self.stage as u8)
            .define("PIPELINE", u8::from(self.pipeline))
            .define("STRIDE", u8::from(self.stride))
            .define("UNROLL", self.unroll)
            .define("SAMPLES_PER_LOAD", together)
            .define("LOCATION_ALIGN", input_alignment(request, Slot::Locations, together))
            .define("WEIGHT_ALIGN", input_alignment(request, Slot::Weights, together))
            .define("F16_SUMS", self.half as u8)
            .define("ORDERED", u8::from(self.listed))
            .define("DROP", self.drop);
        let tiles = p.queries().div_ceil(self.tile(request, block));
        let mut args = args(request);
        let mut call = Call::default();
        let order = self.listed.then(|| order_first(&mut call, request, target));
        args.pointer("order", order.map_or(WORKSPACE, Pointer::from));
        args.i32("tiles", tiles);
        args.align(8);
        if self.window {
            window::keep_values(&mut call, request);
        }
        let planes = p.batch() * p.heads();
        let resident = (target.sms as usize * RESIDENT).div_ceil(planes).clamp(1, tiles);
        let grid = match (self.linear, self.stride || self.pipeline) {
            (true, true) => [self.counted(request).min(target.sms as usize * RESIDENT), 1, 1],
            (true, false) => [self.counted(request), 1, 1],
            (_, true) => [resident, p.heads(), p.batch()],
            (_, false) => [tiles, p.heads(), p.batch()],
        };
        let launch = Launch::new(grid.map(|n| n as u32), [block as u32, 1, 1]);
        call.run(Prepared { unit, entry: "msda_forward", launch, args }, "computes the output");
        if self.window {
            window::release_values(&mut call, request, target);
        }
        call
    }

    fn is_exact(&self) -> bool {
        self.half == Half::Nothing && self.drop == 0
    }
}
