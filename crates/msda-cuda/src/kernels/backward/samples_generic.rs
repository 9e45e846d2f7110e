//! `backward/samples_generic.cu`: a warp per image, query and head, for any problem.

use super::samples::WHY;
use super::scratch::Scratch;
use crate::driver::Launch;
use crate::jit::Unit;
use crate::kernels::any_problem::{add_counts, add_level_pointers, add_tensors};
use crate::kernels::level_table::LevelTable;
use crate::kernels::options::{BLOCK, blocks, with_options, with_wanted};
use crate::kernels::{Args, Call, Prepared};
use crate::request::{Request, Slot};
use crate::target::Target;

const TENSORS: [(&str, Slot); 7] = [
    ("value", Slot::Value),
    ("locations", Slot::Locations),
    ("weights", Slot::Weights),
    ("reference", Slot::Reference),
    ("grad_output", Slot::GradOutput),
    ("grad_locations", Slot::GradLocations),
    ("grad_weights", Slot::GradWeights),
];

pub(in crate::kernels) fn add(call: &mut Call, request: &Request<'_>, target: &Target, scratch: Scratch) {
    let (p, o) = (request.problem, request.operands);
    let table = LevelTable::new(p);
    let mut args = Args::default();
    add_tensors(&mut args, p, o, &TENSORS);
    add_level_pointers(&mut args, request, &table);
    scratch.add_pointers(&mut args);
    add_counts(&mut args, p, &table);
    let key = format!("samples-generic-l{}", table.inline());
    let unit = Unit::new("backward/samples_generic.cu", key, target.arch);
    let unit = with_options(unit, p, o.reference_numbers()).define("INLINE_LEVELS", table.inline());
    let unit = with_wanted(unit, request);
    let threads = (p.batch() * p.queries() * p.heads()).saturating_mul(32);
    let launch = Launch::new([blocks(threads, target), 1, 1], [BLOCK, 1, 1]);
    call.run(Prepared { unit, entry: "msda_backward_samples_generic", launch, args }, WHY);
    table.keep(call);
}
