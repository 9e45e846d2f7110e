//! `order.cu`: the order in which queries are visited.

use super::{Block, Call, Hole, Prepared, Stage, macro_name};
use crate::driver::{Arch, Launch};
use crate::jit::Unit;
use crate::request::{Request, Target};

const THREADS: u32 = 1024;

/// Bytes of working memory for a request: the order, and the cells of the queries behind it.
fn workspace(request: &Request<'_>) -> usize {
    let queries = request.problem.batch() * request.problem.queries();
    queries * (size_of::<i32>() + size_of::<u16>())
}

/// Blocks that order an image together: a cluster, where the architecture has them.
fn blocks(arch: Arch) -> u32 {
    if arch.major >= 9 { 8 } else { 1 }
}

/// A call that orders the queries of a request before a kernel visits them.
pub(super) fn before(request: &Request<'_>, target: &Target, kernel: Prepared) -> Call {
    let p = request.problem;
    let dtype = p.types().locations;
    // The reference point of the first level says where a query looks; else the points of its first level do.
    let (hole, operand, points) = match request.operands.reference {
        Some((_, operand)) => (Hole::Reference, operand, 1),
        None => (Hole::Locations, request.operands.locations, p.points()[0].clamp(1, 8)),
    };
    let cluster = blocks(target.arch);
    let unit = Unit::new("order.cu", format!("order-{dtype}-p{points}-c{cluster}"), target.arch)
        .define("LOCATION", macro_name(dtype))
        .define("POINTS", points)
        .define("BLOCK", THREADS)
        .define("CLUSTER", cluster);
    let mut args = Block::default();
    args.hole(hole);
    args.i64((operand.strides[0] * dtype.size()) as i64);
    args.i64((operand.strides[1] * dtype.size()) as i64);
    args.i32(p.queries());
    args.i32(p.batch());
    args.hole(Hole::Workspace(0));
    let launch = Launch::new([cluster, p.batch() as u32, 1], [THREADS, 1, 1]);
    let launch = Launch { cluster: [cluster, 1, 1], ..launch };
    let order = Prepared { unit, entry: "msda_order", launch, args };
    let stages = [order, kernel].map(Stage::Run).into();
    Call { stages, workspace: workspace(request), ..Call::default() }
}
