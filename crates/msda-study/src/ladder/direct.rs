//! `direct.cu`: taps loaded directly from global memory; the base of the suite.

use anyhow::{Context, Result, ensure};
use msda_cuda::driver::Launch;
use msda_cuda::kernels::{Call, Pointer, Prepared, order_first};
use msda_cuda::{Operand, Slot};
use serde::Deserialize;

use super::{Ask, FORWARD, Strategy, lowest_bit, window};

/// Where samples are prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Staging {
    /// In registers of each thread.
    None,
    /// Locations and weights in shared memory.
    Given,
    /// Taps in shared memory.
    Taps,
}

/// How rows are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Load {
    Cached,
    PastL1,
    WholeLines,
    Kept,
}

/// Where a kernel reads the table of levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Table {
    /// In the argument: constant memory.
    Argument,
    /// In memory, through L1.
    Memory,
    /// In shared memory, copied by each block.
    Shared,
}

/// Which products and sums are `f16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Half {
    Nothing,
    /// Sums of the samples that a thread loads together; they are added up in `f32`.
    Few,
    /// Everything.
    All,
}

/// Knobs, as the kernel declares them.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
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

impl Default for Direct {
    fn default() -> Self {
        Self {
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
        }
    }
}

impl Direct {
    /// Threads per query.
    fn item(&self, ask: &Ask<'_>) -> usize {
        ask.row_bytes() / ask.vec(self.vec) * self.split
    }

    /// Queries per tile.
    fn tile(&self, ask: &Ask<'_>, block: usize) -> usize {
        self.queries * if self.linear { 1 } else { block / self.item(ask) }
    }

    /// Bytes of shared memory per block.
    fn shared(&self, ask: &Ask<'_>, block: usize) -> usize {
        let t = ask.p.types();
        let raw = 2 * t.locations.size() + t.weights.size();
        let sample = match (self.pipeline, self.stage) {
            (true, _) => 2 * raw,
            (_, Staging::None) => return 0,
            (_, Staging::Given) => 12,
            (_, Staging::Taps) => 32,
        };
        self.tile(ask, block) * ask.p.samples() * sample + 64
    }
}

/// Whether locations and weights can be copied by words of 4 bytes.
fn whole_words(ask: &Ask<'_>) -> bool {
    let (t, o, samples) = (ask.p.types(), ask.request.operands, ask.p.samples());
    let words = |operand: Operand, numbers: usize, size: usize| {
        (numbers * size).is_multiple_of(4)
            && operand.align >= 4
            && operand.strides.iter().all(|s| s.wrapping_mul(size).is_multiple_of(4))
    };
    words(o[Slot::Locations], 2 * samples, t.locations.size())
        && words(o[Slot::Weights], samples, t.weights.size())
}

impl Strategy for Direct {
    fn call(&self, ask: &Ask<'_>) -> Result<Call> {
        let (p, item) = (ask.p, self.item(ask));
        ensure!(item <= BLOCK, "{item} threads for a query: a block has {BLOCK}");
        let shuffles = self.split == 1 || item.is_power_of_two();
        ensure!(shuffles, "{item} lanes for a query: shuffles want a power of two");
        // As many threads as shared memory allows.
        let fits = |&block: &usize| self.shared(ask, block) <= SHARED && block >= item;
        let block = [BLOCK, BLOCK / 2, BLOCK / 4, BLOCK / 8].into_iter().find(fits);
        let block = block
            .with_context(|| format!("{} samples: no tile of queries fits shared memory", p.samples()))?;
        // Blocks, where threads number the whole output.
        let counted = (ask.planes() * p.queries().div_ceil(self.queries) * item).div_ceil(block);
        ensure!(!self.linear || counted < 1 << 31, "more blocks than a grid has");
        ask.may_be_half(self.half != Half::Nothing)?;
        ensure!(!self.listed || p.points()[0] > 0, "no points on the first level to order queries by");
        if self.pipeline || self.window || self.load == Load::Kept {
            ask.needs(8, "such copies and hints")?;
        }
        ensure!(self.drop == 0 || p.samples() <= 64, "{} samples: at most 64 are marked", p.samples());
        ensure!(!self.pipeline || whole_words(ask), "locations or weights are no whole words");

        // A power of two that divides the number of samples.
        let together = lowest_bit(p.samples() | self.together);
        let unit = ask
            .unit("ladder/direct.cu", ask.vec(self.vec))
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
            .define("SAMPLES_PER_LOAD", together);
        let unit = ask
            .input_alignment(unit, together)
            .define("F16_SUMS", self.half as u8)
            .define("ORDERED", u8::from(self.listed))
            .define("DROP", self.drop);
        let tiles = p.queries().div_ceil(self.tile(ask, block));
        let mut args = ask.args();
        let mut call = Call::default();
        let order = self.listed.then(|| order_first(&mut call, ask.request, ask.target));
        args.pointer("order", order.map_or(Pointer::Workspace(0), Pointer::from));
        args.i32("tiles", tiles);
        args.align(8);
        if self.window {
            window::keep_values(&mut call, ask);
        }
        let most = ask.sms() * RESIDENT;
        let launch = match (self.linear, self.stride || self.pipeline) {
            (true, strides) => {
                let blocks = if strides { counted.min(most) } else { counted };
                Launch::new([blocks as u32, 1, 1], [block as u32, 1, 1])
            }
            (_, true) => ask.per_plane(most.div_ceil(ask.planes()).clamp(1, tiles), block, 0),
            (_, false) => ask.per_plane(tiles, block, 0),
        };
        call.run(Prepared { unit, entry: FORWARD, launch, args }, "computes the output");
        if self.window {
            window::release_values(&mut call, ask);
        }
        Ok(call)
    }

    fn is_exact(&self) -> bool {
        self.half == Half::Nothing && self.drop == 0
    }
}
