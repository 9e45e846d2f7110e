//! What `generic.cu` and `samples_generic.cu` share: they take any problem, with 64-bit indices.

use msda::Problem;

use super::Args;
use super::division::element_size;
use super::level_table::LevelTable;
use crate::request::{Levels, Operands, Request, Slot};

/// Why the kernels do not take a request: strides in bytes that 64-bit indices cannot hold. All
/// other numbers of a problem fit, because the bytes of its tensors do.
pub(super) fn refuses(request: &Request<'_>) -> Vec<String> {
    let slots = Slot::ALL.into_iter().filter(|&slot| request.pass.uses(slot));
    let wrong = slots.filter_map(|slot| {
        let bytes = |stride: usize| stride.checked_mul(element_size(slot, request.problem).max(1));
        let fits = |stride: usize| bytes(stride).is_some_and(|n| i64::try_from(n).is_ok());
        let stride = request.operands[slot].strides.into_iter().find(|&stride| !fits(stride))?;
        Some(format!("a stride of {} is {stride} elements; expected at most 63 bits in bytes", slot.name()))
    });
    wrong.collect()
}

/// Adds tensors with any strides.
pub(super) fn add_tensors<'a>(
    args: &mut Args,
    p: &Problem,
    operands: &Operands,
    tensors: impl IntoIterator<Item = &'a (&'static str, Slot)>,
) {
    for &(name, slot) in tensors {
        args.strided(name, slot, operands[slot], element_size(slot, p));
    }
}

/// Adds the addresses of level sizes on the device, or null, and that of the table of levels.
pub(super) fn add_level_pointers(args: &mut Args, request: &Request<'_>, table: &LevelTable) {
    let on_device = |slot| (request.levels == Levels::Device).then_some(slot);
    args.optional("shapes", on_device(Slot::Shapes));
    args.optional("starts", on_device(Slot::Starts));
    table.add_pointer(args);
}

/// Adds the counts, and the table of levels.
pub(super) fn add_counts(args: &mut Args, p: &Problem, table: &LevelTable) {
    args.i64("batch", p.batch());
    args.i64("queries", p.queries());
    args.i64("heads", p.heads());
    args.i64("channels", p.channels());
    args.i64("levels", p.levels().len());
    args.i64("positions", p.positions());
    args.i64("samples", p.samples());
    table.add_entries(args);
}
