//! Vector registers, one file per instruction set, and the choice of one at run time.
//!
//! Kernels are written once, generic over [`InstructionSet`], and are inlined whole into a wrapper
//! that enables the instructions. Every method here is therefore `#[inline(always)]` and `unsafe`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod isa;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use half::{bf16, f16};

pub use self::isa::Isa;
pub(crate) use self::isa::{Detected, Kernel};

use super::rows::Arithmetic;
use crate::dtype::{Element, Float};

/// The most lanes of a register here.
pub(crate) const MAX_LANES: usize = 16;

/// A register of lanes of an arithmetic type.
///
/// # Safety
/// Every method needs the instruction set that the register belongs to. Pointers must be valid for
/// [`Reg::LANES`] elements, those of the `_part` methods for `n` elements, at most [`Reg::LANES`].
pub(crate) trait Reg: Copy {
    type Scalar: Float;
    const LANES: usize;
    /// Numbers that [`Reg::store_quad`] stores: 4, or a multiple of it up to [`MAX_LANES`].
    const QUAD: usize;

    unsafe fn splat(x: Self::Scalar) -> Self;
    unsafe fn load(p: *const Self::Scalar) -> Self;
    unsafe fn store(self, p: *mut Self::Scalar);
    unsafe fn add(self, b: Self) -> Self;
    /// `self * b + c`, fused where the instruction set has it.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;

    /// The first `n` lanes; the others are zero.
    #[inline(always)]
    unsafe fn load_part(p: *const Self::Scalar, n: usize) -> Self {
        debug_assert!(n <= Self::LANES);
        let mut lanes = [Self::Scalar::ZERO; MAX_LANES];
        // SAFETY: `p` is valid for `n` elements; n <= LANES <= MAX_LANES.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
            Self::load(lanes.as_ptr())
        }
    }

    /// Stores the first `n` lanes.
    #[inline(always)]
    unsafe fn store_part(self, p: *mut Self::Scalar, n: usize) {
        debug_assert!(n <= Self::LANES);
        let mut lanes = [Self::Scalar::ZERO; MAX_LANES];
        // SAFETY: `p` is valid for `n` elements; n <= LANES <= MAX_LANES.
        unsafe {
            self.store(lanes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }

    /// Sums the lanes of four registers as far as one register holds the result, and stores these
    /// [`Reg::QUAD`] partial sums, added to the ones already there when `more`.
    unsafe fn store_quad(r: [Self; 4], p: *mut Self::Scalar, more: bool);

    /// Completes the sums of four stored quads: `to[k]` receives four numbers, the sums of
    /// register `k` of each quad.
    #[inline(always)]
    unsafe fn sum_quads(from: *const Self::Scalar, to: [*mut Self::Scalar; 4]) {
        debug_assert_eq!(Self::QUAD, 4);
        // SAFETY: with quads of four, `from` has 16 numbers, and each of `to` has four.
        unsafe { transpose(from, to) };
    }
}

/// The methods of a register that are one instruction each. Loads and stores are the unaligned
/// ones, and the trait's contract gives the instructions and valid pointers.
macro_rules! one_instruction {
    ($t:ty, $splat:ident, $load:ident, $store:ident, $add:ident, |$a:ident, $b:ident, $c:ident| $fma:expr) => {
        type Scalar = $t;
        #[inline(always)]
        unsafe fn splat(x: $t) -> Self {
            Self(unsafe { $splat(x) })
        }
        #[inline(always)]
        unsafe fn load(p: *const $t) -> Self {
            Self(unsafe { $load(p) })
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut $t) {
            unsafe { $store(p, self.0) }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            Self(unsafe { $add(self.0, b.0) })
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            let ($a, $b, $c) = (self.0, b.0, c.0);
            Self(unsafe { $fma })
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use one_instruction;

/// Quads of four complete sums, as columns.
///
/// # Safety
/// `from` must be valid for 16 numbers, and each of `to` for four.
#[inline(always)]
unsafe fn transpose<F: Copy>(from: *const F, to: [*mut F; 4]) {
    for s in 0..4 {
        for k in 0..4 {
            // SAFETY: 4 * s + k < 16, and s < 4.
            unsafe { *to[k].add(s) = *from.add(4 * s + k) };
        }
    }
}

/// Conversions of an element type for instruction sets without instructions for them.
macro_rules! through_scalars {
    ($t:ty, $load:ident, $store:ident, $load_part:ident, $store_part:ident) => {
        #[inline(always)]
        unsafe fn $load(p: *const $t) -> Self::F32 {
            // SAFETY: `p` is valid for a register.
            unsafe { widen_lanes::<$t, Self::F32>(p, Self::F32::LANES) }
        }
        #[inline(always)]
        unsafe fn $store(r: Self::F32, p: *mut $t) {
            // SAFETY: `p` is valid for a register.
            unsafe { narrow_lanes(r, p, Self::F32::LANES) }
        }
        #[inline(always)]
        unsafe fn $load_part(p: *const $t, n: usize) -> Self::F32 {
            // SAFETY: `p` is valid for `n` elements.
            unsafe { widen_lanes::<$t, Self::F32>(p, n) }
        }
        #[inline(always)]
        unsafe fn $store_part(r: Self::F32, p: *mut $t, n: usize) {
            // SAFETY: `p` is valid for `n` elements.
            unsafe { narrow_lanes(r, p, n) }
        }
    };
}

/// An instruction set: its registers, and conversions from and to the 16-bit types.
///
/// # Safety
/// As for [`Reg`].
pub(crate) trait InstructionSet: Copy {
    type F32: Reg<Scalar = f32>;
    type F64: Reg<Scalar = f64>;

    through_scalars!(f16, load_f16, store_f16, load_f16_part, store_f16_part);
    through_scalars!(bf16, load_bf16, store_bf16, load_bf16_part, store_bf16_part);
}

#[inline(always)]
unsafe fn widen_lanes<T: Element<Acc = R::Scalar>, R: Reg>(p: *const T, n: usize) -> R {
    debug_assert!(n <= R::LANES && R::LANES <= MAX_LANES);
    let mut lanes = [R::Scalar::ZERO; MAX_LANES];
    for (i, lane) in lanes.iter_mut().enumerate().take(n) {
        // SAFETY: `p` is valid for `n` elements.
        *lane = unsafe { (*p.add(i)).widen() };
    }
    // SAFETY: LANES <= MAX_LANES.
    unsafe { R::load(lanes.as_ptr()) }
}

#[inline(always)]
unsafe fn narrow_lanes<T: Element<Acc = R::Scalar>, R: Reg>(r: R, p: *mut T, n: usize) {
    debug_assert!(n <= R::LANES && R::LANES <= MAX_LANES);
    let mut lanes = [R::Scalar::ZERO; MAX_LANES];
    // SAFETY: LANES <= MAX_LANES, and `p` is valid for `n` elements.
    unsafe {
        r.store(lanes.as_mut_ptr());
        for (i, &lane) in lanes.iter().enumerate().take(n) {
            *p.add(i) = T::narrow(lane);
        }
    }
}

/// An element type as the kernels load and store it.
///
/// # Safety
/// As for [`Reg`].
pub(crate) trait Lane: Element<Acc: Arithmetic> {
    type R<I: InstructionSet>: Reg<Scalar = Self::Acc>;
    unsafe fn load<I: InstructionSet>(p: *const Self) -> Self::R<I>;
    unsafe fn store<I: InstructionSet>(r: Self::R<I>, p: *mut Self);
    /// The first `n` lanes; the others are zero.
    unsafe fn load_part<I: InstructionSet>(p: *const Self, n: usize) -> Self::R<I>;
    /// Stores the first `n` lanes.
    unsafe fn store_part<I: InstructionSet>(r: Self::R<I>, p: *mut Self, n: usize);
}

macro_rules! lanes {
    ($($t:ty => $reg:ident, $load:path, $store:path, $load_part:path, $store_part:path;)*) => {$(
        impl Lane for $t {
            type R<I: InstructionSet> = I::$reg;
            #[inline(always)]
            unsafe fn load<I: InstructionSet>(p: *const Self) -> I::$reg {
                // SAFETY: `p` is valid for a register.
                unsafe { $load(p) }
            }
            #[inline(always)]
            unsafe fn store<I: InstructionSet>(r: I::$reg, p: *mut Self) {
                // SAFETY: `p` is valid for a register.
                unsafe { $store(r, p) }
            }
            #[inline(always)]
            unsafe fn load_part<I: InstructionSet>(p: *const Self, n: usize) -> I::$reg {
                // SAFETY: `p` is valid for `n` elements.
                unsafe { $load_part(p, n) }
            }
            #[inline(always)]
            unsafe fn store_part<I: InstructionSet>(r: I::$reg, p: *mut Self, n: usize) {
                // SAFETY: `p` is valid for `n` elements.
                unsafe { $store_part(r, p, n) }
            }
        }
    )*};
}

lanes! {
    f64 => F64, I::F64::load, I::F64::store, I::F64::load_part, I::F64::store_part;
    f32 => F32, I::F32::load, I::F32::store, I::F32::load_part, I::F32::store_part;
    f16 => F32, I::load_f16, I::store_f16, I::load_f16_part, I::store_f16_part;
    bf16 => F32, I::load_bf16, I::store_bf16, I::load_bf16_part, I::store_bf16_part;
}

/// Work on some channels of a row, in registers.
pub(crate) trait Block<T: Lane> {
    /// `n` channels from `c` on: `R` whole registers where `WHOLE`, else a part of one register.
    ///
    /// # Safety
    /// The machine must have `I`. Implementations are `#[inline(always)]`.
    unsafe fn block<I: InstructionSet, const R: usize, const WHOLE: bool>(&mut self, c: usize, n: usize);
}

/// Calls `work` with all `d` channels of a row, in blocks of as many registers as possible.
///
/// # Safety
/// The machine must have `I`.
#[inline(always)]
pub(crate) unsafe fn for_each_block<I: InstructionSet, T: Lane>(d: usize, work: &mut impl Block<T>) {
    let lanes = T::R::<I>::LANES;
    let mut c = 0;
    // SAFETY: the machine has `I`, and the blocks cover the `d` channels once.
    unsafe {
        while c + 4 * lanes <= d {
            work.block::<I, 4, true>(c, 4 * lanes);
            c += 4 * lanes;
        }
        if c + 2 * lanes <= d {
            work.block::<I, 2, true>(c, 2 * lanes);
            c += 2 * lanes;
        }
        if c + lanes <= d {
            work.block::<I, 1, true>(c, lanes);
            c += lanes;
        }
        if c < d {
            work.block::<I, 1, false>(c, d - c);
        }
    }
}

/// A block has `R` whole registers or a part of one.
#[inline(always)]
fn debug_assert_block<V: Reg, const R: usize, const WHOLE: bool>(n: usize) {
    debug_assert!(if WHOLE { n == R * V::LANES } else { R == 1 && n < V::LANES });
}

/// `R` registers from `p` on, or the first `n` elements where not `WHOLE`.
///
/// # Safety
/// As for [`Lane`].
#[inline(always)]
pub(crate) unsafe fn load_block<I: InstructionSet, T: Lane, const R: usize, const WHOLE: bool>(
    p: *const T,
    n: usize,
) -> [T::R<I>; R] {
    debug_assert_block::<T::R<I>, R, WHOLE>(n);
    // SAFETY: `p` is valid for R registers, or for `n` elements of one.
    unsafe {
        let mut block = [T::R::<I>::splat(T::Acc::ZERO); R];
        for r in 0..R {
            let from = p.wrapping_add(r * T::R::<I>::LANES);
            block[r] = if WHOLE { T::load::<I>(from) } else { T::load_part::<I>(from, n) };
        }
        block
    }
}

/// Stores a block that [`load_block`] loads.
///
/// # Safety
/// As for [`Lane`].
#[inline(always)]
pub(crate) unsafe fn store_block<I: InstructionSet, T: Lane, const R: usize, const WHOLE: bool>(
    block: [T::R<I>; R],
    p: *mut T,
    n: usize,
) {
    debug_assert_block::<T::R<I>, R, WHOLE>(n);
    // SAFETY: `p` is valid for R registers, or for `n` elements of one.
    unsafe {
        for r in 0..R {
            let to = p.wrapping_add(r * T::R::<I>::LANES);
            if WHOLE {
                T::store::<I>(block[r], to);
            } else {
                T::store_part::<I>(block[r], to, n);
            }
        }
    }
}

/// Requests the cache line at `p`. Any address is allowed.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching never faults, and SSE is part of the x86_64 baseline.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: prefetching never faults.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) p, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}

/// Requests the cache lines of `n` elements from `p` on.
#[inline(always)]
pub(crate) fn prefetch_row<T>(p: *const T, n: usize) {
    let line = 64 / size_of::<T>();
    let mut i = 0;
    while i < n {
        prefetch(p.wrapping_add(i));
        i += line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of four quads, parts of registers, against sums in order.
    struct Check<'a>(&'a mut usize);

    impl Kernel for Check<'_> {
        #[inline(always)]
        unsafe fn run<I: InstructionSet>(self) {
            // SAFETY: the machine has `I`.
            *self.0 =
                unsafe { check::<I, f32>() + check::<I, f64>() + check::<I, f16>() + check::<I, bf16>() };
        }
    }

    unsafe fn check<I: InstructionSet, T: Lane>() -> usize {
        let lanes = T::R::<I>::LANES;
        let number = |i: usize| T::from_f64((i * 7 % 32) as f64);
        let numbers: Vec<T> = (0..16 * lanes).map(number).collect();
        // SAFETY: the machine has `I`, and every list is long enough.
        unsafe {
            let mut quads = [T::Acc::ZERO; 4 * MAX_LANES];
            for s in 0..4 {
                let r = [0, 1, 2, 3].map(|k| T::load::<I>(numbers.as_ptr().add((4 * s + k) * lanes)));
                let quad = quads.as_mut_ptr().add(s * T::R::<I>::QUAD);
                T::R::<I>::store_quad(r, quad, false);
                T::R::<I>::store_quad(r, quad, true);
            }
            let mut sums = [[T::Acc::ZERO; 4]; 4];
            let to = sums.each_mut().map(|list| list.as_mut_ptr());
            T::R::<I>::sum_quads(quads.as_ptr(), to);
            for s in 0..4 {
                for k in 0..4 {
                    let first = (4 * s + k) * lanes;
                    let exact: f64 = numbers[first..first + lanes].iter().map(|x| x.to_f64()).sum();
                    assert_eq!(sums[k][s].to_f64(), 2.0 * exact, "sample {s}, corner {k}");
                }
            }
            for n in 0..=lanes {
                let part = T::load_part::<I>(numbers.as_ptr().add(1), n);
                let mut wide = [T::Acc::from_f64(-1.0); MAX_LANES];
                part.store(wide.as_mut_ptr());
                let mut narrow = [T::from_f64(-1.0); MAX_LANES];
                T::store_part::<I>(part, narrow.as_mut_ptr(), n);
                for i in 0..lanes {
                    let expected = if i < n { number(i + 1).to_f64() } else { 0.0 };
                    assert_eq!(wide[i].to_f64(), expected, "lane {i} of {n}");
                    let expected = if i < n { expected } else { -1.0 };
                    assert_eq!(narrow[i].to_f64(), expected, "element {i} of {n}");
                }
            }
        }
        1
    }

    #[test]
    fn registers_add_up_and_parts_stay_within_bounds() {
        for isa in Isa::available() {
            let mut types = 0;
            Detected::new(isa).unwrap().run(Check(&mut types));
            assert_eq!(types, 4);
        }
    }
}
