//! `forward/resident.cu`: blocks keep the last levels in shared memory.

use super::WHY;
use crate::kernels::lane_groups::LaneGroups;
use crate::kernels::tiling::{SORT_CELLS, SORT_QUERIES_PER_THREAD};
use crate::kernels::{Call, Rows};
use crate::request::Request;
use crate::target::Target;

pub(in crate::kernels) fn add(knobs: Rows, call: &mut Call, request: &Request<'_>, target: &Target) {
    let mut kernel = LaneGroups::new(knobs, ("forward/resident.cu", "resident"), request, target, call);
    let [strips, columns] = SORT_CELLS;
    kernel.unit = kernel
        .unit
        .define("HOST_SORT_STRIPS", strips)
        .define("HOST_SORT_COLUMNS", columns)
        .define("HOST_SORT_QUERIES_PER_THREAD", SORT_QUERIES_PER_THREAD);
    kernel.run(call, "msda_forward_resident", WHY);
}
