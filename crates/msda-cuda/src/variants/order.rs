//! `order.cu`: the order in which queries are visited.

use super::{Block, Hole, Prepared, macro_name};
use crate::driver::Launch;
use crate::jit::Unit;
use crate::request::{Request, Target};

const THREADS: u32 = 1024;

/// Prepares the kernel that orders the queries of a request that a kernel with an order takes.
pub(crate) fn order(request: &Request<'_>, target: &Target) -> Prepared {
    let p = request.problem;
    let dtype = p.types().locations;
    // The reference point of the first level says where a query looks; else the points of its first level do.
    let (hole, operand, points) = match request.operands.reference {
        Some((_, operand)) => (Hole::Reference, operand, 1),
        None => (Hole::Locations, request.operands.locations, p.points()[0].clamp(1, 8)),
    };
    let unit = Unit::new("order.cu", format!("order-{dtype}-p{points}"), target.arch)
        .define("LOCATION", macro_name(dtype))
        .define("POINTS", points)
        .define("BLOCK", THREADS);
    let mut args = Block::default();
    args.hole(hole);
    args.i64((operand.strides[0] * dtype.size()) as i64);
    args.i64((operand.strides[1] * dtype.size()) as i64);
    args.i32(p.queries());
    args.i32(0);
    args.hole(Hole::Order);
    let launch = Launch::new([p.batch() as u32, 1, 1], [THREADS, 1, 1]);
    Prepared { unit, entry: "msda_order", launch, args }
}
