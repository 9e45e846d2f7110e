//! The backward pass: which kernels it takes, in which order.
//!
//! 1. `samples.cu` or `samples_generic.cu`: gradients of locations and weights.
//! 2. `reference.cu`: the gradient of the reference points.
//! 3. `gaps.cu`; `pad.cu`; `value_few.cu`, or `sort.cu` and `value.cu` or `value_plain.cu`: the
//!    gradient of value ([`value_gradient`]). `value_few.cu`, and early sorting in the plain form,
//!    come before 1, and 1 runs beside them.

mod gaps;
mod matrix;
mod reference;
pub(super) mod samples;
pub(super) mod samples_generic;
mod scratch;
mod sort;
#[cfg(test)]
mod tests;
pub(super) mod tiles;
mod value;
mod value_atomic;
mod value_few;
mod value_gradient;
mod value_plain;

use super::Call;
use crate::request::Request;
use crate::target::Target;

use self::scratch::Scratch;
use self::value_gradient::ValueGradient;

/// Adds the stages of a backward pass. `samples` adds the kernel that computes gradients of
/// locations and weights.
pub(super) fn add(
    call: &mut Call,
    request: &Request<'_>,
    target: &Target,
    samples: impl FnOnce(&mut Call, Scratch),
) {
    let p = request.problem;
    let wanted = request.wanted();
    let mut value = ValueGradient::new(request, target);
    let needs_softmax = value.as_ref().is_some_and(ValueGradient::needs_softmax);
    let scratch = Scratch::new(call, request, needs_softmax);
    let Scratch { softmax, points } = scratch;
    let own = wanted.locations || wanted.weights || softmax.is_some() || points.is_some();
    let mut stored = None; // the stage that stores the softmax
    let comes_first = value.as_ref().is_some_and(ValueGradient::comes_first);
    if let Some(value) = value.as_mut().filter(|_| comes_first) {
        value.add(call, None, None);
    }
    if own && p.batch() > 0 && p.queries() > 0 && p.heads() > 0 && p.samples() > 0 {
        call.branch();
        samples(call, scratch);
        stored = call.stages.len().checked_sub(1);
    }
    if let Some(points) = points {
        reference::add(call, request, target, points);
    }
    if let Some(value) = &mut value {
        if !comes_first {
            value.add(call, softmax, stored);
        }
        value.add_gaps(call);
    }
}
