//! A build without CUDA.

use msda_bench::record::Gpu;

use super::Finding;

/// One finding: GPUs are not used.
pub(super) fn examine(_driver: Option<&Gpu>) -> Vec<Finding> {
    vec![Finding {
        what: "gpu",
        good: false,
        says: "this build has no CUDA support; the operator runs on the CPU".into(),
        hint: Some("build msda with the feature `cuda`".into()),
    }]
}
