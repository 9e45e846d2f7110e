//! A build without CUDA.

use msda_bench::record::Gpu;

use super::{Finding, finding};

/// One finding: GPUs are not used.
pub(super) fn examine(_driver: Option<&Gpu>) -> Vec<Finding> {
    let says = "this build has no CUDA support; the operator runs on the CPU";
    vec![finding("gpu", false, says, Some("build msda with the feature `cuda`".into()))]
}
