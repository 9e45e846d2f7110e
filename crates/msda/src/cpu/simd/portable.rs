//! Plain arrays: whatever vectors the build's baseline has, and no fused multiply-add, which would be a call.

use super::{InstructionSet, Reg};

#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[derive(Clone, Copy)]
pub(crate) struct Array<T, const N: usize>([T; N]);

macro_rules! array {
    ($t:ty, $n:literal) => {
        impl Reg for Array<$t, $n> {
            type Scalar = $t;
            const LANES: usize = $n;
            #[inline(always)]
            unsafe fn splat(x: $t) -> Self {
                Self([x; $n])
            }
            #[inline(always)]
            unsafe fn load(p: *const $t) -> Self {
                // SAFETY: the caller's; the read is unaligned.
                Self(unsafe { p.cast::<[$t; $n]>().read_unaligned() })
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $t) {
                // SAFETY: the caller's; the write is unaligned.
                unsafe { p.cast::<[$t; $n]>().write_unaligned(self.0) }
            }
            #[inline(always)]
            unsafe fn add(self, b: Self) -> Self {
                Self(std::array::from_fn(|i| self.0[i] + b.0[i]))
            }
            #[inline(always)]
            unsafe fn mul_add(self, b: Self, c: Self) -> Self {
                Self(std::array::from_fn(|i| self.0[i] * b.0[i] + c.0[i]))
            }
            #[inline(always)]
            unsafe fn sum4(r: [Self; 4]) -> [$t; 4] {
                r.map(|v| v.0.iter().sum())
            }
        }
    };
}

array!(f32, 4);
array!(f64, 2);

impl InstructionSet for Portable {
    type F32 = Array<f32, 4>;
    type F64 = Array<f64, 2>;
}
