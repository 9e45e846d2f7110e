//! `quantised.cu`: values as bytes.

use anyhow::{Context, Result, ensure};
use msda::Problem;
use msda_cuda::driver::Arch;
use msda_cuda::jit::Unit;
use msda_cuda::kernels::{Args, Call, Prepared, Region};
use serde::Deserialize;

use super::{Ask, FORWARD, Strategy};

/// Knobs, as the kernel declares them.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Quantised {
    fp8: bool,
    /// Interpolation weights are `f16`.
    half_weights: bool,
}

/// Threads per block.
const THREADS: usize = 256;

/// Blocks per SM that convert values.
const CONVERTING_BLOCKS: usize = 16;

/// Bytes per load of a lane.
pub(super) fn piece(p: &Problem) -> usize {
    if p.channels().is_multiple_of(16) { 16 } else { 8 }
}

/// Bytes of a quantised row.
pub(super) fn row_bytes(p: &Problem) -> usize {
    p.channels().next_multiple_of(piece(p))
}

/// Bytes of the quantised rows of one plane, and of all planes.
pub(super) fn plane_bytes(ask: &Ask<'_>) -> Result<(usize, usize)> {
    let plane = ask.p.positions().checked_mul(row_bytes(ask.p));
    let both = plane.and_then(|plane| Some((plane, plane.checked_mul(ask.planes())?)));
    both.context("the bytes of all values are more than there are addresses")
}

/// Quantised values in the workspace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    /// The largest value of each plane.
    top: Region,
    rows: Region,
    /// Bytes from plane to plane.
    plane: usize,
}

impl Rows {
    /// Adds them to an argument.
    pub(super) fn put(&self, args: &mut Args) {
        args.pointer("top", self.top);
        args.pointer("rows", self.rows);
        args.i64("plane_stride", self.plane);
    }
}

impl Quantised {
    fn unit(&self, ask: &Ask<'_>) -> Unit {
        ask.unit("ladder/quantised.cu", ask.vec(16))
            .define("THREADS", THREADS)
            .define("FP8", u8::from(self.fp8))
            .define("HALF_WEIGHTS", u8::from(self.half_weights))
            .define("PIECE", piece(ask.p))
    }

    /// Adds the stages that quantise values, without knobs to int8; also returns the argument.
    pub(super) fn quantise(&self, call: &mut Call, ask: &Ask<'_>) -> Result<(Rows, Args)> {
        let (plane, all) = plane_bytes(ask)?;
        let top = call.arena.reserve(ask.planes() * size_of::<f32>());
        let rows = Rows { top, rows: call.arena.reserve(all), plane };
        let mut args = ask.args();
        rows.put(&mut args);
        let vectors = ask.p.positions() * (ask.row_bytes() / ask.vec(16));
        let columns = (ask.sms() * CONVERTING_BLOCKS).div_ceil(ask.planes());
        let launch = ask.per_plane(columns.min(vectors.div_ceil(THREADS)), THREADS, 0);
        call.clear(top, "sets the largest value of each plane to zero");
        for (entry, why) in [
            ("msda_top", "finds the largest value of each plane"),
            ("msda_quantise", "converts values to bytes"),
        ] {
            call.run(Prepared { unit: self.unit(ask), entry, launch, args: args.clone() }, why);
        }
        Ok((rows, args))
    }
}

impl Strategy for Quantised {
    fn call(&self, ask: &Ask<'_>) -> Result<Call> {
        let arch = ask.target.arch;
        ensure!(!self.fp8 || arch >= Arch::new(8, 9), "{arch} does not know e4m3");
        let lanes = ask.p.channels().div_ceil(piece(ask.p));
        ensure!(lanes <= THREADS, "{lanes} threads per query: a block has {THREADS}");
        let mut call = Call::default();
        let (_, args) = self.quantise(&mut call, ask)?;
        let launch = ask.per_plane(ask.p.queries().div_ceil(THREADS / lanes), THREADS, 0);
        let unit = self.unit(ask);
        call.run(Prepared { unit, entry: FORWARD, launch, args }, "computes the output");
        Ok(call)
    }

    fn is_exact(&self) -> bool {
        false
    }
}
