//! How rows are divided among lanes, and the alignment of tensors that decides it.

use msda::{Dtype, Problem, Role};

use crate::request::{Operand, Request, Slot};

/// How a row is divided among lanes; it follows from the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Division {
    /// Bytes of a row per lane: 2 to 16; 32 if a row has more than 512 bytes.
    pub vec: usize,
    /// Lanes per row, a power of two.
    pub lanes: usize,
}

impl Division {
    /// The widest loads that all addresses and strides allow.
    pub fn of(request: &Request<'_>) -> Self {
        let p = request.problem;
        let size = p.types().value.size();
        let row = p.channels() * size;
        let grain = 16
            | row
            | grain(p, Role::Value, request.operands[Slot::Value], size)
            | grain(p, Role::Output, request.operands[request.output()], size);
        let vec = grain & grain.wrapping_neg();
        let wide = vec == 16 && row > 32 * vec && row.is_multiple_of(32);
        let vec = if wide { 32 } else { vec };
        Self { vec, lanes: row.div_ceil(vec).next_power_of_two() }
    }
}

/// A number whose lowest set bit is the alignment in bytes of all rows of a tensor.
pub fn grain(p: &Problem, role: Role, operand: Operand, size: usize) -> usize {
    let (extents, _) = role.shape(p);
    let used = operand.strides.into_iter().zip(extents).filter(|&(_, extent)| extent > 1);
    used.fold(operand.align, |grain, (stride, _)| grain | stride.wrapping_mul(size))
}

/// Bytes that a lane can load at once of a tensor, of which it needs `bytes` consecutive ones.
pub fn aligned(p: &Problem, role: Role, operand: Operand, size: usize, bytes: usize) -> usize {
    let grain = bytes | grain(p, role, operand, size);
    (grain & grain.wrapping_neg()).clamp(size, 16)
}

/// Whether the strides of a tensor fit a kernel's argument in bytes: 63 bits between images, 31
/// bits otherwise.
pub fn strides_fit(operand: Operand, size: usize) -> bool {
    let [image, row, head] = operand.strides.map(|stride| stride.saturating_mul(size));
    i64::try_from(image).is_ok() && [row, head].iter().all(|&n| i32::try_from(n).is_ok())
}

/// Bytes of an element of a tensor; 0 if it is not a tensor.
pub(super) fn element_size(slot: Slot, p: &Problem) -> usize {
    slot.dtype(p).map_or(0, Dtype::size)
}
