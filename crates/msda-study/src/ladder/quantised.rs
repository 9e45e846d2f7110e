//! `quantised.cu`: values as bytes.

use super::{Strategy, args, per_plane, unit, vec};
use msda_cuda::driver::Arch;
use msda_cuda::jit::Unit;
use msda_cuda::kernels::{Args, Call, Prepared, Region};
use msda_cuda::{Request, Target};

/// Knobs, as the kernel declares them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantised {
    fp8: bool,
    /// Interpolation weights are `f16`.
    half_weights: bool,
}

/// Threads per block.
const THREADS: usize = 256;

/// Blocks per SM that convert values.
const CONVERTING_BLOCKS: usize = 16;

pub(super) const INT8: Quantised = Quantised { fp8: false, half_weights: false };
pub(super) const INT8_HALF: Quantised = Quantised { half_weights: true, ..INT8 };
pub(super) const FP8: Quantised = Quantised { fp8: true, ..INT8 };

/// Bytes per load of a lane.
pub(super) fn piece(request: &Request<'_>) -> usize {
    if request.problem.channels().is_multiple_of(16) { 16 } else { 8 }
}

/// Bytes of a quantised row.
pub(super) fn row_bytes(request: &Request<'_>) -> usize {
    request.problem.channels().next_multiple_of(piece(request))
}

/// Bytes of the quantised rows of one plane, and of all planes; none if no address counts to them.
pub(super) fn plane_bytes(request: &Request<'_>) -> Option<(usize, usize)> {
    let p = request.problem;
    let plane = p.positions().checked_mul(row_bytes(request))?;
    Some((plane, plane.checked_mul(p.batch() * p.heads())?))
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

/// Adds stages to a call that quantise its values to int8.
pub(super) fn quantise_first(call: &mut Call, request: &Request<'_>, target: &Target) -> Rows {
    INT8.quantise(call, request, target).0
}

impl Quantised {
    fn unit(&self, request: &Request<'_>, target: &Target) -> Unit {
        let piece = piece(request);
        let name = match (self.fp8, self.half_weights) {
            (true, _) => "fp8",
            (_, true) => "int8_half",
            (_, false) => "int8",
        };
        unit("ladder/quantised.cu", &format!("{name}-{piece}"), request, target, vec(request, 16))
            .define("THREADS", THREADS)
            .define("FP8", u8::from(self.fp8))
            .define("HALF_WEIGHTS", u8::from(self.half_weights))
            .define("PIECE", piece)
    }

    /// Adds the stages that quantise values; also returns the argument.
    fn quantise(&self, call: &mut Call, request: &Request<'_>, target: &Target) -> (Rows, Args) {
        let p = request.problem;
        let planes = p.batch() * p.heads();
        // Only requests that were not refused are prepared.
        let (plane, all) = plane_bytes(request).unwrap_or_default();
        let top = call.arena.reserve(planes * size_of::<f32>());
        let rows = Rows { top, rows: call.arena.reserve(all), plane };
        let mut args = args(request);
        rows.put(&mut args);
        let vectors = p.positions() * (p.channels() * p.types().value.size() / vec(request, 16));
        let columns = (target.sms as usize * CONVERTING_BLOCKS).div_ceil(planes);
        let launch = per_plane(p, columns.min(vectors.div_ceil(THREADS)), THREADS);
        call.clear(top, "sets the largest value of each plane to zero");
        for (entry, why) in [
            ("msda_top", "finds the largest value of each plane"),
            ("msda_quantise", "converts values to bytes"),
        ] {
            let unit = self.unit(request, target);
            call.run(Prepared { unit, entry, launch, args: args.clone() }, why);
        }
        (rows, args)
    }
}

impl Strategy for Quantised {
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        if self.fp8 && target.arch < Arch::new(8, 9) {
            return Some(format!("{} does not know e4m3", target.arch));
        }
        let lanes = request.problem.channels().div_ceil(piece(request));
        if lanes > THREADS {
            return Some(format!("{lanes} threads per query: a block has {THREADS}"));
        }
        if plane_bytes(request).is_none() {
            return Some("the bytes of all values are more than there are addresses".into());
        }
        None
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let mut call = Call::default();
        let (_, args) = self.quantise(&mut call, request, target);
        let tiles = p.queries().div_ceil(THREADS / p.channels().div_ceil(piece(request)));
        let launch = per_plane(p, tiles, THREADS);
        let unit = self.unit(request, target);
        call.run(Prepared { unit, entry: "msda_forward", launch, args }, "computes the output");
        call
    }

    fn is_exact(&self) -> bool {
        false
    }
}
