//! `backward/samples.cu`: lane groups compute the gradients of locations and weights.

use msda::Role;

use super::scratch::Scratch;
use crate::kernels::division::element_size;
use crate::kernels::lane_groups::LaneGroups;
use crate::kernels::options::with_wanted;
use crate::kernels::{Call, Rows};
use crate::request::{Request, Slot};
use crate::target::Target;

/// Why it is there.
pub(super) const WHY: &str = "computes the gradients of locations and weights";

pub(in crate::kernels) fn add(
    knobs: Rows,
    call: &mut Call,
    request: &Request<'_>,
    target: &Target,
    scratch: Scratch,
) {
    let (p, o) = (request.problem, request.operands);
    let mut kernel = LaneGroups::new(knobs, ("backward/samples.cu", "samples"), request, target, call);
    for (name, slot) in [("grad_locations", Slot::GradLocations), ("grad_weights", Slot::GradWeights)] {
        kernel.args.tensor(name, slot, o[slot], element_size(slot, p));
    }
    scratch.add_pointers(&mut kernel.args);
    kernel.unit = with_wanted(kernel.unit, request);
    kernel.define_align("GRAD_LOCATION_ALIGN", Slot::GradLocations, Role::Locations, 2);
    kernel.define_align("GRAD_WEIGHT_ALIGN", Slot::GradWeights, Role::Weights, 1);
    kernel.run(call, "msda_backward_samples", WHY);
}
