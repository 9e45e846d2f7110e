//! `order.cu`: sorts the queries of each image by the locations that they sample.

use super::options::macro_name;
use super::{Args, Call, Prepared, Region};
use crate::driver::{Arch, Launch};
use crate::jit::Unit;
use crate::request::{Request, Slot};
use crate::target::Target;

/// Threads per block.
const THREADS: u32 = 1024;

/// Workspace per query: its place in the order, and its cell.
const BYTES_PER_QUERY: usize = size_of::<i32>() + size_of::<u16>();

/// Blocks per image: a cluster, where the architecture has clusters.
fn blocks(arch: Arch) -> u32 {
    if arch.major >= 9 { 8 } else { 1 }
}

/// Adds a stage to a call that orders the queries of a request. The region begins with the order,
/// one `i32` per query.
pub fn order_first(call: &mut Call, request: &Request<'_>, target: &Target) -> Region {
    let p = request.problem;
    let dtype = p.types().locations;
    // The location of a query: its reference point, or else the mean of its points on the first
    // level.
    let (slot, points) = match request.operands.reference_kind() {
        Some(_) => (Slot::Reference, 1),
        None => (Slot::Locations, p.points()[0].clamp(1, 8)),
    };
    let strides = request.operands[slot].strides;
    let cluster = blocks(target.arch);
    let order = call.arena.reserve(p.batch() * p.queries() * BYTES_PER_QUERY);
    let mut args = Args::default();
    args.pointer("locations", slot);
    args.i64("image_stride", strides[0].saturating_mul(dtype.size()));
    args.i64("query_stride", strides[1].saturating_mul(dtype.size()));
    args.i32("queries", p.queries());
    args.i32("batch", p.batch());
    args.pointer("order", order);
    let unit = Unit::new("order.cu", format!("order-{dtype}-p{points}-c{cluster}"), target.arch)
        .define("LOCATION", macro_name(dtype))
        .define("POINTS", points)
        .define("THREADS", THREADS)
        .define("CLUSTER", cluster);
    let launch = Launch::new([cluster, p.batch() as u32, 1], [THREADS, 1, 1]);
    let launch = Launch { cluster: [cluster, 1, 1], ..launch };
    call.run(
        Prepared { unit, entry: "msda_order", launch, args },
        "orders the queries by place, so that queries of a block share rows in L1",
    );
    order
}
