//! `forward/generic.cu` and `backward/samples_generic.cu`: they take every request.

use msda::Dtype;

use super::backward::{self, Shared};
use super::{Args, Call, Prepared, Table, blocks, with_options};
use crate::driver::Launch;
use crate::jit::Unit;
use crate::request::{Levels, Pass, Request, Slot, Target};

pub(super) fn prepare(request: &Request<'_>, target: &Target) -> Call {
    let mut call = Call::default();
    match request.pass {
        Pass::Forward => add(&mut call, request, target, None),
        Pass::Backward(_) => backward::prepare(&mut call, request, target, |call, shared| {
            add(call, request, target, Some(shared));
        }),
    }
    call
}

/// Adds the kernel to a call. `shared` is memory that the kernels of a backward pass share.
fn add(call: &mut Call, request: &Request<'_>, target: &Target, shared: Option<Shared>) {
    let p = request.problem;
    let o = request.operands;
    let table = Table::new(p);
    let mut args = Args::default();
    let inputs = [Slot::Value, Slot::Locations, Slot::Weights, Slot::Reference, request.output()];
    let gradients = [Slot::GradLocations, Slot::GradWeights];
    for slot in inputs.into_iter().chain(gradients.into_iter().filter(|_| shared.is_some())) {
        args.strided(slot, o[slot], slot.dtype(p).map_or(0, Dtype::size));
    }
    // 0 unless the levels are on the device.
    let on_device = request.levels == Levels::Device;
    for slot in [Slot::Shapes, Slot::Starts] {
        if on_device { args.pointer(slot) } else { args.i64(0) }
    }
    table.add_pointer(&mut args);
    if let Some(shared) = &shared {
        args.optional(shared.softmax);
        args.optional(shared.points);
    }
    for n in [p.batch(), p.queries(), p.heads(), p.channels(), p.levels().len(), p.positions(), p.samples()] {
        args.i64(n as i64);
    }
    table.add_entries(&mut args);
    let (file, entry, key) = match shared {
        None => ("forward/generic.cu", "msda_forward_generic", "generic"),
        Some(_) => ("backward/samples_generic.cu", "msda_backward_samples_generic", "samples-generic"),
    };
    let mut unit = with_options(
        Unit::new(file, format!("{key}-l{}", table.inline()), target.arch),
        p,
        o.reference_numbers(),
    )
    .define("INLINE_LEVELS", table.inline())
    .define("ARGS_BYTES", args.bytes().len());
    // One thread per element of the output; in the backward pass a warp per row of it.
    let (threads, why) = match shared {
        None => (p.output_len(), "computes the output"),
        Some(_) => {
            unit = backward::with_wanted(unit, request);
            ((p.batch() * p.queries() * p.heads()).saturating_mul(32), backward::SAMPLES)
        }
    };
    let launch = Launch::new([blocks(threads, target), 1, 1], [256, 1, 1]);
    call.run(Prepared { unit, entry, launch, args }, why);
    table.keep(call);
}
