//! `quantised.cu`: values as bytes.

use super::{Reading, Strategy, args, unit, vec};
use crate::driver::{Arch, Launch};
use crate::kernels::{Call, Hole, Prepared, Stage};
use crate::request::{Request, Target};

/// Knobs, as in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantised {
    fp8: bool,
}

/// Threads of a block.
const BLOCK: usize = 256;

/// Blocks of a multiprocessor that look at values.
const BUSY: usize = 16;

pub(super) const INT8: Quantised = Quantised { fp8: false };
pub(super) const FP8: Quantised = Quantised { fp8: true };

/// Bytes that a lane reads.
fn bytes(request: &Request<'_>) -> usize {
    if request.problem.channels().is_multiple_of(16) { 16 } else { 8 }
}

/// The workspace: where rows begin, behind the largest value of each plane; bytes of a plane; bytes of all.
struct Room {
    rows: usize,
    plane: usize,
    all: usize,
}

fn room(request: &Request<'_>) -> Option<Room> {
    let p = request.problem;
    let planes = p.batch() * p.heads();
    let rows = (planes * size_of::<f32>()).next_multiple_of(256);
    let plane = p.positions().checked_mul(p.channels().next_multiple_of(bytes(request)))?;
    Some(Room { rows, plane, all: plane.checked_mul(planes)?.checked_add(rows)? })
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
        if room(request).is_none() {
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
        // A request is only prepared when it is taken.
        let room = room(request).unwrap_or(Room { rows: 0, plane: 0, all: 0 });
        let mut args = args(request);
        args.hole(Hole::Workspace(0));
        args.hole(Hole::Workspace(room.rows));
        args.i64(room.plane as i64);
        let planes = p.batch() * p.heads();
        let pieces = p.positions() * (p.channels() * p.types().value.size() / vec);
        let columns = (target.multiprocessors as usize * BUSY).div_ceil(planes).min(pieces.div_ceil(BLOCK));
        let tiles = p.queries().div_ceil(BLOCK / p.channels().div_ceil(bytes));
        let stages = [("msda_top", columns), ("msda_quantise", columns), ("msda_forward", tiles)];
        let run = stages.map(|(entry, columns)| {
            let grid = [columns, p.heads(), p.batch()].map(|n| n as u32);
            let launch = Launch::new(grid, [BLOCK as u32, 1, 1]);
            Stage::Run(Prepared { unit: unit.clone(), entry, launch, args: args.clone() })
        });
        let clear = Stage::Clear { at: 0, bytes: planes * size_of::<f32>() };
        Call { stages: [clear].into_iter().chain(run).collect(), workspace: room.all, ..Call::default() }
    }

    fn is_exact(&self) -> bool {
        false
    }
}
