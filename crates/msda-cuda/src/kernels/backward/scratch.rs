//! Memory that the kernels of a backward pass share.

use crate::kernels::{Args, Call, Region};
use crate::request::Request;

/// Regions of the workspace that the kernels share.
#[derive(Debug, Clone, Copy)]
pub(in crate::kernels) struct Scratch {
    /// Fused form: the weights of all samples, in the type of sums, per image, head and level.
    pub(super) softmax: Option<Region>,
    /// Fused form: gradients of the locations of all samples.
    pub(super) points: Option<Region>,
}

impl Scratch {
    /// Reserves the regions that the wanted gradients need. `softmax`: whether weights are among
    /// them.
    pub(super) fn new(call: &mut Call, request: &Request<'_>, softmax: bool) -> Self {
        let (p, wanted) = (request.problem, request.wanted());
        let fused = request.operands.reference_kind().is_some();
        let rows = p.batch().saturating_mul(p.queries()).saturating_mul(p.heads());
        let numbers = rows.saturating_mul(p.samples());
        let bytes = numbers.saturating_mul(p.types().value.accumulator().size());
        Self {
            softmax: softmax.then(|| call.arena.reserve(bytes)),
            points: (fused && wanted.reference).then(|| call.arena.reserve(bytes.saturating_mul(2))),
        }
    }

    /// Adds their addresses to the argument of the kernel that fills them.
    pub(super) fn add_pointers(&self, args: &mut Args) {
        args.optional("softmax", self.softmax);
        args.optional("grad_points", self.points);
    }
}
