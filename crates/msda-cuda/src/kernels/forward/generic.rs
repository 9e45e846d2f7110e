//! `forward/generic.cu`: one thread per element of the output, for any problem.

use super::WHY;
use crate::driver::Launch;
use crate::jit::Unit;
use crate::kernels::any_problem::{add_counts, add_level_pointers, add_tensors};
use crate::kernels::level_table::LevelTable;
use crate::kernels::options::{BLOCK, blocks, with_options};
use crate::kernels::{Args, Call, Prepared};
use crate::request::{Request, Slot};
use crate::target::Target;

const TENSORS: [(&str, Slot); 5] = [
    ("value", Slot::Value),
    ("locations", Slot::Locations),
    ("weights", Slot::Weights),
    ("reference", Slot::Reference),
    ("output", Slot::Output),
];

pub(in crate::kernels) fn add(call: &mut Call, request: &Request<'_>, target: &Target) {
    let (p, o) = (request.problem, request.operands);
    let table = LevelTable::new(p);
    let mut args = Args::default();
    add_tensors(&mut args, p, o, &TENSORS);
    add_level_pointers(&mut args, request, &table);
    add_counts(&mut args, p, &table);
    let unit = Unit::new("forward/generic.cu", format!("generic-l{}", table.inline()), target.arch);
    let unit = with_options(unit, p, o.reference_numbers()).define("INLINE_LEVELS", table.inline());
    let launch = Launch::new([blocks(p.output_len(), target), 1, 1], [BLOCK, 1, 1]);
    call.run(Prepared { unit, entry: "msda_forward_generic", launch, args }, WHY);
    table.keep(call);
}
