//! Vector registers, one file an instruction set, and the dispatch that picks one at run time.
//!
//! Kernels are written once, generic over [`InstructionSet`], and are inlined whole into a wrapper that enables
//! the instructions: that is why every method here is `#[inline(always)]` and `unsafe`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

use super::rows::Arithmetic;
use crate::dtype::{Element, Float};
use crate::error::{Error, ErrorKind, Result};

/// The most lanes any register here has.
pub(crate) const MAX_LANES: usize = 16;

/// A register of accumulation-type lanes.
///
/// # Safety
/// Every method needs the instruction set it belongs to; pointers must be valid for [`Reg::LANES`] elements.
pub(crate) trait Reg: Copy {
    type Scalar: Float;
    const LANES: usize;
    unsafe fn splat(x: Self::Scalar) -> Self;
    unsafe fn load(p: *const Self::Scalar) -> Self;
    unsafe fn store(self, p: *mut Self::Scalar);
    unsafe fn add(self, b: Self) -> Self;
    /// `self * b + c`, fused where the instruction set has it.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// The lanes' sum of each of four registers.
    unsafe fn sum4(r: [Self; 4]) -> [Self::Scalar; 4];
}

/// An instruction set: its registers, and conversions from and to the 16-bit types.
///
/// # Safety
/// As for [`Reg`].
pub(crate) trait InstructionSet: Copy {
    type F32: Reg<Scalar = f32>;
    type F64: Reg<Scalar = f64>;

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self::F32 {
        // SAFETY: the caller's.
        unsafe { widen_lanes::<f16, Self::F32>(p) }
    }
    #[inline(always)]
    unsafe fn store_f16(r: Self::F32, p: *mut f16) {
        // SAFETY: the caller's.
        unsafe { narrow_lanes(r, p) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self::F32 {
        // SAFETY: the caller's.
        unsafe { widen_lanes::<bf16, Self::F32>(p) }
    }
    #[inline(always)]
    unsafe fn store_bf16(r: Self::F32, p: *mut bf16) {
        // SAFETY: the caller's.
        unsafe { narrow_lanes(r, p) }
    }
}

#[inline(always)]
unsafe fn widen_lanes<T: Element<Acc = R::Scalar>, R: Reg>(p: *const T) -> R {
    let mut lanes = [R::Scalar::ZERO; MAX_LANES];
    for (i, lane) in lanes.iter_mut().enumerate().take(R::LANES) {
        // SAFETY: `p` is valid for LANES elements.
        *lane = unsafe { (*p.add(i)).widen() };
    }
    // SAFETY: LANES <= MAX_LANES.
    unsafe { R::load(lanes.as_ptr()) }
}

#[inline(always)]
unsafe fn narrow_lanes<T: Element<Acc = R::Scalar>, R: Reg>(r: R, p: *mut T) {
    let mut lanes = [R::Scalar::ZERO; MAX_LANES];
    // SAFETY: LANES <= MAX_LANES, and `p` is valid for LANES elements.
    unsafe {
        r.store(lanes.as_mut_ptr());
        for (i, &lane) in lanes.iter().enumerate().take(R::LANES) {
            *p.add(i) = T::narrow(lane);
        }
    }
}

/// The first `n` lanes; the others are zero.
///
/// # Safety
/// As for [`Reg`], with `p` valid for `n` elements, no more than a register's.
#[inline(always)]
pub(crate) unsafe fn load_part<V: Reg>(p: *const V::Scalar, n: usize) -> V {
    let mut lanes = [V::Scalar::ZERO; MAX_LANES];
    // SAFETY: the caller's; n <= LANES <= MAX_LANES.
    unsafe {
        std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
        V::load(lanes.as_ptr())
    }
}

/// Stores the first `n` lanes.
///
/// # Safety
/// As for [`load_part`].
#[inline(always)]
pub(crate) unsafe fn store_part<V: Reg>(r: V, p: *mut V::Scalar, n: usize) {
    let mut lanes = [V::Scalar::ZERO; MAX_LANES];
    // SAFETY: the caller's; n <= LANES <= MAX_LANES.
    unsafe {
        r.store(lanes.as_mut_ptr());
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
    }
}

/// An element type as the kernels load and store it.
///
/// # Safety
/// As for [`Reg`]; the `_part` forms need only `n` valid elements.
pub(crate) trait Lane: Element<Acc: Arithmetic> {
    type R<I: InstructionSet>: Reg<Scalar = Self::Acc>;
    unsafe fn load<I: InstructionSet>(p: *const Self) -> Self::R<I>;
    unsafe fn store<I: InstructionSet>(r: Self::R<I>, p: *mut Self);

    /// The first `n` lanes; the others are zero.
    #[inline(always)]
    unsafe fn load_part<I: InstructionSet>(p: *const Self, n: usize) -> Self::R<I> {
        let mut lanes = [Self::default(); MAX_LANES];
        // SAFETY: `p` is valid for `n` elements, and n <= MAX_LANES.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
            Self::load::<I>(lanes.as_ptr())
        }
    }

    /// Stores the first `n` lanes.
    #[inline(always)]
    unsafe fn store_part<I: InstructionSet>(r: Self::R<I>, p: *mut Self, n: usize) {
        let mut lanes = [Self::default(); MAX_LANES];
        // SAFETY: `p` is valid for `n` elements, and n <= MAX_LANES.
        unsafe {
            Self::store::<I>(r, lanes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }
}

macro_rules! lanes {
    ($($t:ty => $reg:ident, $load:path, $store:path;)*) => {$(
        impl Lane for $t {
            type R<I: InstructionSet> = I::$reg;
            #[inline(always)]
            unsafe fn load<I: InstructionSet>(p: *const Self) -> I::$reg {
                // SAFETY: the caller's.
                unsafe { $load(p) }
            }
            #[inline(always)]
            unsafe fn store<I: InstructionSet>(r: I::$reg, p: *mut Self) {
                // SAFETY: the caller's.
                unsafe { $store(r, p) }
            }
        }
    )*};
}

lanes! {
    f64 => F64, I::F64::load, I::F64::store;
    f32 => F32, I::F32::load, I::F32::store;
    f16 => F32, I::load_f16, I::store_f16;
    bf16 => F32, I::load_bf16, I::store_bf16;
}

/// A piece of work that is compiled once for each instruction set.
pub(crate) trait Kernel {
    /// # Safety
    /// The machine must have `I`. Implementations are `#[inline(always)]`.
    unsafe fn run<I: InstructionSet>(self);
}

/// An instruction set the CPU backend can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// AVX2, FMA and F16C.
    Avx2,
    /// Arm's Advanced SIMD.
    Neon,
    /// Whatever the build's baseline has.
    Portable,
}

impl Isa {
    /// All of them, fastest first.
    pub const ALL: [Self; 4] = [Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// The name used in tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && Self::Avx2.is_available()
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
            Self::Portable => true,
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// What this machine can run, fastest first.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// The fastest one this machine can run.
    pub fn best() -> Self {
        Self::available()[0]
    }

    /// Runs `kernel` compiled for this instruction set. The machine must have it.
    pub(crate) fn run(self, kernel: impl Kernel) {
        debug_assert!(self.is_available());
        // SAFETY: an `Isa` other than Portable reaches here only through `Cpu::with_isa`, which checks it.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Self::Avx512 => avx512::run(kernel),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => avx2::run(kernel),
                #[cfg(target_arch = "aarch64")]
                Self::Neon => neon::run(kernel),
                _ => kernel.run::<portable::Portable>(),
            }
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Isa {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|isa| isa.name() == s).ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "instruction set",
                format!("'{s}'"),
                "avx512, avx2, neon or portable",
            )
        })
    }
}

/// Asks for the cache line at `p`. Any address is allowed.
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

/// Asks for the lines of `n` elements from `p` on.
#[inline(always)]
pub(crate) fn prefetch_row<T>(p: *const T, n: usize) {
    let line = 64 / size_of::<T>();
    let mut i = 0;
    while i < n {
        prefetch(p.wrapping_add(i));
        i += line;
    }
}
