//! The backward pass: which kernels it takes, and the memory that they share.
//!
//! 1. `samples.cu` or `samples_generic.cu`: gradients of locations and weights.
//! 2. `reference.cu`: the gradient of the reference points.
//! 3. `gaps.cu`; `value_few.cu`, or `sort.cu` and `value.cu` or `value_plain.cu`: the gradient of
//!    value ([`super::scatter`]). Unless the form is fused, `value_few.cu` comes before 1.

use msda::Dtype;

use super::scatter::ValueGradient;
use super::{Args, Call, Prepared, Region, Table, blocks, with_options};
use crate::driver::Launch;
use crate::jit::Unit;
use crate::request::{Request, Slot, Target};

/// Why the kernel of the samples is there.
pub(super) const SAMPLES: &str = "computes the gradients of locations and weights";

/// Regions of the workspace that the kernels share.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shared {
    /// Fused form: largest logit and scale of each image, query and head.
    pub(super) softmax: Option<Region>,
    /// Fused form: gradients of the locations of all samples.
    pub(super) points: Option<Region>,
}

/// Adds the stages of a backward pass. `samples` adds the kernel that computes gradients of
/// locations and weights.
pub(super) fn prepare(
    call: &mut Call,
    request: &Request<'_>,
    target: &Target,
    samples: impl FnOnce(&mut Call, Shared),
) {
    let p = request.problem;
    let wanted = request.wanted();
    let fused = request.operands.reference_kind().is_some();
    let rows = p.batch().saturating_mul(p.queries()).saturating_mul(p.heads());
    let wide = p.types().value.accumulator().size();
    let mut shared = Shared::default();
    if fused && wanted.value {
        shared.softmax = Some(call.arena.reserve(rows.saturating_mul(2 * wide)));
    }
    if fused && wanted.reference {
        let bytes = rows.saturating_mul(p.samples()).saturating_mul(2 * wide);
        shared.points = Some(call.arena.reserve(bytes));
    }
    let own = wanted.locations || wanted.weights || shared.softmax.is_some() || shared.points.is_some();
    let mut stored = None; // the stage that stores the softmax
    let mut value = ValueGradient::new(request, target, shared.softmax);
    if let Some(value) = value.take_if(|value| value.comes_first()) {
        value.add(call, None);
    }
    if own && rows > 0 && p.samples() > 0 {
        call.branch();
        samples(call, shared);
        stored = call.stages.len().checked_sub(1);
    }
    if let Some(points) = shared.points {
        reference(call, request, target, points);
    }
    if let Some(value) = value {
        value.add(call, stored);
    }
}

/// Adds the macros and the part of the key that say which gradients are stored.
pub(super) fn with_wanted(mut unit: Unit, request: &Request<'_>) -> Unit {
    let wanted = request.wanted();
    let fused = request.operands.reference_kind().is_some();
    let all = [
        ("WANT_LOCATIONS", "xy", wanted.locations),
        ("WANT_WEIGHTS", "w", wanted.weights),
        ("WANT_POINTS", "ref", wanted.reference && fused),
    ];
    for (_, name, on) in all {
        if on {
            unit.key += &format!("-{name}");
        }
    }
    for (name, _, on) in all {
        unit = unit.define(name, u8::from(on));
    }
    unit
}

/// Adds the sum over heads and points.
fn reference(call: &mut Call, request: &Request<'_>, target: &Target, points: Region) {
    let p = request.problem;
    let o = request.operands;
    let mut args = Args::default();
    args.pointer(points);
    args.pointer(Slot::Locations);
    args.pointer(Slot::GradReference);
    for slot in [Slot::Locations, Slot::GradReference] {
        for stride in o[slot].strides {
            args.i64(stride.wrapping_mul(slot.dtype(p).map_or(0, Dtype::size)) as i64);
        }
    }
    for n in [p.batch(), p.queries(), p.heads(), p.levels().len(), p.samples()] {
        args.i64(n as i64);
    }
    let table = Table::new(p);
    table.add_pointer(&mut args);
    table.add_entries(&mut args);
    let key = format!("reference-l{}", table.inline());
    let unit = with_options(Unit::new("backward/reference.cu", key, target.arch), p, o.reference_numbers())
        .define("INLINE_LEVELS", table.inline())
        .define("ARGS_BYTES", args.bytes().len());
    let threads = (p.batch() * p.queries()).saturating_mul(p.levels().len());
    let launch = Launch::new([blocks(threads, target), 1, 1], [256, 1, 1]);
    call.run(
        Prepared { unit, entry: "msda_backward_reference", launch, args },
        "adds up the gradient of the reference points over heads and points",
    );
    table.keep(call);
}
