//! The host twins of `kernels/forward/`.

pub(super) mod generic;
pub(super) mod resident;
pub(super) mod streaming;

/// Why the kernel of a forward pass is there.
const WHY: &str = "computes the output";
