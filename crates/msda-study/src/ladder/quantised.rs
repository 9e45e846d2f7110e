//! `quantised.cu`: values as bytes.

use super::{Reading, Strategy, args, unit, vec};
use msda_cuda::driver::{Arch, Launch};
use msda_cuda::kernels::{Call, Prepared};
use msda_cuda::{Request, Target};

/// Knobs, as the kernel declares them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantised {
    fp8: bool,
}

/// Threads per block.
const BLOCK: usize = 256;

/// Blocks per SM that convert values.
const BUSY: usize = 16;

pub(super) const INT8: Quantised = Quantised { fp8: false };
pub(super) const FP8: Quantised = Quantised { fp8: true };

/// Bytes per load of a lane.
fn bytes(request: &Request<'_>) -> usize {
    if request.problem.channels().is_multiple_of(16) { 16 } else { 8 }
}

/// Bytes of the quantised rows of one plane, and of all planes.
fn row_bytes(request: &Request<'_>) -> Option<(usize, usize)> {
    let p = request.problem;
    let plane = p.positions().checked_mul(p.channels().next_multiple_of(bytes(request)))?;
    Some((plane, plane.checked_mul(p.batch() * p.heads())?))
}

impl Strategy for Quantised {
    fn refuses(&self, request: &Request<'_>, target: &Target) -> Option<String> {
        if self.fp8 && target.arch < Arch::new(8, 9) {
            return Some(format!("{} does not know e4m3", target.arch));
        }
        let item = request.problem.channels().div_ceil(bytes(request));
        if item > BLOCK {
            return Some(format!("{item} threads for a query: a block has {BLOCK}"));
        }
        if row_bytes(request).is_none() {
            return Some("the bytes of all values are more than there are addresses".into());
        }
        None
    }

    fn reading(&self, _request: &Request<'_>, _target: &Target) -> Result<Reading, &'static str> {
        Err("rows are bytes in the workspace")
    }

    fn prepare(&self, request: &Request<'_>, target: &Target) -> Call {
        let p = request.problem;
        let bytes = bytes(request);
        let vec = vec(request, 16);
        let name = if self.fp8 { "fp8" } else { "int8" };
        let unit = unit("ladder/quantised.cu", &format!("{name}-{bytes}"), request, target, vec)
            .define("THREADS", BLOCK)
            .define("FP8", u8::from(self.fp8))
            .define("PIECE", bytes);
        let planes = p.batch() * p.heads();
        // Only requests that were not refused are prepared.
        let (plane, all) = row_bytes(request).unwrap_or_default();
        let mut call = Call::default();
        let largest = call.arena.reserve(planes * size_of::<f32>());
        let rows = call.arena.reserve(all);
        let mut args = args(request);
        args.pointer(largest);
        args.pointer(rows);
        args.i64(plane as i64);
        let pieces = p.positions() * (p.channels() * p.types().value.size() / vec);
        let columns = (target.sms as usize * BUSY).div_ceil(planes).min(pieces.div_ceil(BLOCK));
        let tiles = p.queries().div_ceil(BLOCK / p.channels().div_ceil(bytes));
        call.clear(largest, "sets the largest value of each plane to zero");
        for (entry, columns, why) in [
            ("msda_top", columns, "finds the largest value of each plane"),
            ("msda_quantise", columns, "converts values to bytes"),
            ("msda_forward", tiles, "computes the output"),
        ] {
            let grid = [columns, p.heads(), p.batch()].map(|n| n as u32);
            let launch = Launch::new(grid, [BLOCK as u32, 1, 1]);
            call.run(Prepared { unit: unit.clone(), entry, launch, args: args.clone() }, why);
        }
        call
    }

    fn is_exact(&self) -> bool {
        false
    }
}
