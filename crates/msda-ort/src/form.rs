//! The two forms of the operator, and where it runs.

use std::ffi::CStr;

use msda_call::call;

/// The two forms of the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Locations and weights.
    Plain,
    /// Reference points, offsets and logits.
    Fused,
}

impl Form {
    pub(crate) fn name(self) -> &'static CStr {
        match self {
            Self::Plain => c"MultiScaleDeformableAttention",
            Self::Fused => c"MultiScaleDeformableAttentionFused",
        }
    }

    /// The names of the floating-point inputs. Both tables of the levels are behind the first.
    pub(crate) fn floats(self) -> &'static [&'static str] {
        call::names(self == Self::Fused)
    }
}

/// The execution providers that compute the operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Provider {
    Cpu,
    Cuda,
}

impl Provider {
    pub(crate) fn name(self) -> &'static CStr {
        match self {
            Self::Cpu => c"CPUExecutionProvider",
            Self::Cuda => c"CUDAExecutionProvider",
        }
    }
}
