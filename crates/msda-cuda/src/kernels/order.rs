//! `order.cu`: sorts queries by the locations that they sample.

use super::{Block, Call, Hole, Prepared, Stage, macro_name};
use crate::driver::{Arch, Launch};
use crate::jit::Unit;
use crate::request::{Request, Target};

/// Threads per block.
const THREADS: u32 = 1024;

/// Bytes of workspace for a request: the order of the queries, then their cells.
fn workspace(request: &Request<'_>) -> usize {
    let queries = request.problem.batch() * request.problem.queries();
    queries * (size_of::<i32>() + size_of::<u16>())
}

/// Blocks per image: a cluster, if the architecture has clusters.
fn blocks(arch: Arch) -> u32 {
    if arch.major >= 9 { 8 } else { 1 }
}

/// A call that orders the queries of a request, then runs a kernel.
pub(super) fn before(request: &Request<'_>, target: &Target, kernel: Prepared) -> Call {
    let p = request.problem;
    let dtype = p.types().locations;
    // The location of a query: its reference point, or else the mean of its points on the first
    // level.
    let (hole, operand, points) = match request.operands.reference {
        Some((_, operand)) => (Hole::Reference, operand, 1),
        None => (Hole::Locations, request.operands.locations, p.points()[0].clamp(1, 8)),
    };
    let cluster = blocks(target.arch);
    let mut args = Block::default();
    args.hole(hole);
    args.i64((operand.strides[0] * dtype.size()) as i64);
    args.i64((operand.strides[1] * dtype.size()) as i64);
    args.i32(p.queries());
    args.i32(p.batch());
    args.hole(Hole::Workspace(0));
    let unit = Unit::new("order.cu", format!("order-{dtype}-p{points}-c{cluster}"), target.arch)
        .define("LOCATION", macro_name(dtype))
        .define("POINTS", points)
        .define("THREADS", THREADS)
        .define("CLUSTER", cluster)
        .define("ARGS_BYTES", args.bytes().len());
    let launch = Launch::new([cluster, p.batch() as u32, 1], [THREADS, 1, 1]);
    let launch = Launch { cluster: [cluster, 1, 1], ..launch };
    let order = Prepared { unit, entry: "msda_order", launch, args };
    let stages = [order, kernel].map(Stage::Run).into();
    Call { stages, workspace: workspace(request), ..Call::default() }
}
