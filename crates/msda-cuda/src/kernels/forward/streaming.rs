//! `forward/streaming.cu`: lane groups load every tap from memory.

use super::WHY;
use crate::kernels::lane_groups::LaneGroups;
use crate::kernels::{Call, Rows};
use crate::request::Request;
use crate::target::Target;

pub(in crate::kernels) fn add(knobs: Rows, call: &mut Call, request: &Request<'_>, target: &Target) {
    let kernel = LaneGroups::new(knobs, ("forward/streaming.cu", "streaming"), request, target, call);
    kernel.run(call, "msda_forward_streaming", WHY);
}
