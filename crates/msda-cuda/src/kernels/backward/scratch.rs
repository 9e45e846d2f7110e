//! Memory that the kernels of a backward pass share.

use crate::kernels::{Args, Call, Region};
use crate::request::Request;

/// Regions of the workspace that the kernels share.
#[derive(Debug, Clone, Copy)]
pub(in crate::kernels) struct Scratch {
    /// Fused form: largest logit and scale of each image, query and head.
    pub(super) softmax: Option<Region>,
    /// Fused form: gradients of the locations of all samples.
    pub(super) points: Option<Region>,
}

impl Scratch {
    /// Reserves the regions that the wanted gradients need.
    pub(super) fn new(call: &mut Call, request: &Request<'_>) -> Self {
        let (p, wanted) = (request.problem, request.wanted());
        let fused = request.operands.reference_kind().is_some();
        let rows = p.batch().saturating_mul(p.queries()).saturating_mul(p.heads());
        let pairs = rows.saturating_mul(2 * p.types().value.accumulator().size());
        Self {
            softmax: (fused && wanted.value).then(|| call.arena.reserve(pairs)),
            points: (fused && wanted.reference)
                .then(|| call.arena.reserve(pairs.saturating_mul(p.samples()))),
        }
    }

    /// Adds their addresses to the argument of the kernel that fills them.
    pub(super) fn add_pointers(&self, args: &mut Args) {
        args.optional("softmax", self.softmax);
        args.optional("grad_points", self.points);
    }
}
