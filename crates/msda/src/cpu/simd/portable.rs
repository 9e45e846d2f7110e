//! Plain arrays, for the baseline of the build's target. Multiply-adds are not fused: without the
//! instruction that would be a function call.

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
            const QUAD: usize = 4;
            #[inline(always)]
            unsafe fn splat(x: $t) -> Self {
                Self([x; $n])
            }
            #[inline(always)]
            unsafe fn load(p: *const $t) -> Self {
                // SAFETY: `p` is valid for a register; the read is unaligned.
                Self(unsafe { p.cast::<[$t; $n]>().read_unaligned() })
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $t) {
                // SAFETY: `p` is valid for a register; the write is unaligned.
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
            unsafe fn store_quad(r: [Self; 4], p: *mut $t, more: bool) {
                for (k, v) in r.into_iter().enumerate() {
                    let sum: $t = v.0.iter().sum();
                    // SAFETY: `p` is valid for a quad.
                    unsafe {
                        let to = p.add(k);
                        to.write(if more { to.read() + sum } else { sum });
                    }
                }
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
