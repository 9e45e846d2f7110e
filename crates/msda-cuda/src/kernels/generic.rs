//! `forward/generic.cu`: accepts every request.

use super::{Block, Hole, Prepared, blocks, with_options};
use crate::driver::Launch;
use crate::jit::Unit;
use crate::request::{Operand, Request, Target};

pub(super) fn prepare(request: &Request<'_>, target: &Target) -> Prepared {
    let p = request.problem;
    let t = p.types();
    let mut args = Block::default();
    let mut tensor = |hole, operand: Option<Operand>, size: usize| {
        args.hole(hole);
        // Wrapping: the stride of a dimension of extent 1 may be any number, and is never used.
        for stride in operand.map_or([0; 3], |o| o.strides) {
            args.i64(stride.wrapping_mul(size) as i64);
        }
    };
    let o = request.operands;
    tensor(Hole::Value, Some(o.value), t.value.size());
    tensor(Hole::Locations, Some(o.locations), t.locations.size());
    tensor(Hole::Weights, Some(o.weights), t.weights.size());
    tensor(Hole::Reference, o.reference.map(|(_, operand)| operand), t.locations.size());
    tensor(Hole::Output, Some(o.output), t.value.size());
    for hole in [Hole::Shapes, Hole::Starts, Hole::Samples] {
        args.hole(hole);
    }
    for n in [p.batch(), p.queries(), p.heads(), p.channels(), p.levels().len(), p.positions()] {
        args.i64(n as i64);
    }
    let unit = Unit::new("forward/generic.cu", "generic", target.arch);
    let unit = with_options(unit, p, o.reference_numbers()).define("ARGS_BYTES", args.bytes().len());
    let launch = Launch::new([blocks(p.output_len(), target), 1, 1], [256, 1, 1]);
    Prepared { unit, entry: "msda_forward_generic", launch, args }
}
