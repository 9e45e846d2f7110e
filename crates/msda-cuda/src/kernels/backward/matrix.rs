//! What `value.cu` and `value_few.cu` share, as in `backward/matrix.cuh`: rows on tensor cores.

use msda::{Dtype, Role};

use crate::kernels::division::{element_size, grain, strides_fit};
use crate::request::{Request, Slot};
use crate::target::Target;

/// Channels that a warp takes; none if these kernels do not take the request.
pub(super) fn chunk(request: &Request<'_>, target: &Target) -> Option<usize> {
    let p = request.problem;
    let value = p.types().value;
    let whole = |slot, role| grain(p, role, request.operands[slot], value.size()).is_multiple_of(16);
    let aligned = whole(Slot::GradOutput, Role::Output) && whole(Slot::GradValue, Role::Value);
    let positions = p.positions().saturating_mul(p.batch() * p.heads());
    let strides = [Slot::Locations, Slot::Weights, Slot::GradOutput, Slot::GradValue];
    let fit = strides.iter().all(|&slot| strides_fit(request.operands[slot], element_size(slot, p)));
    let small = p.channels() / 8 <= 65535 && positions < 1 << 32 && fit;
    let fits = value != Dtype::F64 && target.arch.major >= 8 && aligned && small;
    [32, 16, 8].into_iter().find(|&chunk| fits && p.channels().is_multiple_of(chunk))
}
