//! `generic.cu`: takes everything.

use super::{Block, Hole, Prepared, blocks, with_options};
use crate::driver::Launch;
use crate::jit::Unit;
use crate::request::{Operand, Request, Target};

pub(super) fn prepare(request: &Request<'_>, target: &Target) -> Prepared {
    let p = request.problem;
    let unit = with_options(
        Unit::new("generic.cu", "generic", target.arch),
        p,
        request.operands.reference_numbers(),
    );
    let t = p.types();
    let mut args = Block::default();
    let mut tensor = |hole, operand: Option<Operand>, size: usize| {
        args.hole(hole);
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
    let launch = Launch::new([blocks(p.output_len(), target), 1, 1], [256, 1, 1]);
    Prepared { unit, entry: "msda_forward", launch, args }
}
