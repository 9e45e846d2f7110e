//! `backward/reference.cu`: the gradient of the reference points, summed over heads and points.

use crate::driver::Launch;
use crate::jit::Unit;
use crate::kernels::division::element_size;
use crate::kernels::level_table::LevelTable;
use crate::kernels::options::{BLOCK, blocks, with_options};
use crate::kernels::{Args, Call, Prepared, Region};
use crate::request::{Request, Slot};
use crate::target::Target;

/// Adds the kernel. `points`: the gradients of the locations of all samples.
pub(super) fn add(call: &mut Call, request: &Request<'_>, target: &Target, points: Region) {
    let (p, o) = (request.problem, request.operands);
    let mut args = Args::default();
    args.pointer("grad_points", points);
    args.pointer("offsets", Slot::Locations);
    args.pointer("grad_reference", Slot::GradReference);
    for (name, slot) in [("offset_stride", Slot::Locations), ("reference_stride", Slot::GradReference)] {
        args.strides(name, o[slot], element_size(slot, p));
    }
    args.i64("batch", p.batch());
    args.i64("queries", p.queries());
    args.i64("heads", p.heads());
    args.i64("levels", p.levels().len());
    args.i64("samples", p.samples());
    let table = LevelTable::new(p);
    table.add_pointer(&mut args);
    table.add_entries(&mut args);
    let key = format!("reference-l{}", table.inline());
    let unit = Unit::new("backward/reference.cu", key, target.arch);
    let unit = with_options(unit, p, o.reference_numbers()).define("INLINE_LEVELS", table.inline());
    let threads = (p.batch() * p.queries()).saturating_mul(p.levels().len());
    let launch = Launch::new([blocks(threads, target), 1, 1], [BLOCK, 1, 1]);
    call.run(
        Prepared { unit, entry: "msda_backward_reference", launch, args },
        "adds up the gradient of the reference points over heads and points",
    );
    table.keep(call);
}
