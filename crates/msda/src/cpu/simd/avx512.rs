//! AVX-512: sixteen `f32` or eight `f64` lanes.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::avx2::{sum4_pd, sum4_ps};
use super::{InstructionSet, Kernel, Reg};

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// # Safety
/// The machine must have AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn run(kernel: impl Kernel) {
    // SAFETY: the caller's.
    unsafe { kernel.run::<Avx512>() }
}

#[derive(Clone, Copy)]
pub(crate) struct F32x16(__m512);

#[derive(Clone, Copy)]
pub(crate) struct F64x8(__m512d);

impl F32x16 {
    /// The two halves added.
    #[inline(always)]
    unsafe fn halves(self) -> __m256 {
        // SAFETY: the caller's.
        unsafe { _mm256_add_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0)) }
    }
}

impl F64x8 {
    /// The two halves added.
    #[inline(always)]
    unsafe fn halves(self) -> __m256d {
        // SAFETY: the caller's.
        unsafe { _mm256_add_pd(_mm512_castpd512_pd256(self.0), _mm512_extractf64x4_pd::<1>(self.0)) }
    }
}

// SAFETY of every block below: the trait's contract gives the instructions and valid pointers; loads and stores
// are the unaligned ones.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Reg for F32x16 {
    type Scalar = f32;
    const LANES: usize = 16;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(unsafe { _mm512_set1_ps(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        Self(unsafe { _mm512_add_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Self(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
    }
    #[inline(always)]
    unsafe fn sum4(r: [Self; 4]) -> [f32; 4] {
        unsafe { sum4_ps([r[0].halves(), r[1].halves(), r[2].halves(), r[3].halves()]) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Reg for F64x8 {
    type Scalar = f64;
    const LANES: usize = 8;
    #[inline(always)]
    unsafe fn splat(x: f64) -> Self {
        Self(unsafe { _mm512_set1_pd(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f64) -> Self {
        Self(unsafe { _mm512_loadu_pd(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f64) {
        unsafe { _mm512_storeu_pd(p, self.0) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        Self(unsafe { _mm512_add_pd(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Self(unsafe { _mm512_fmadd_pd(self.0, b.0, c.0) })
    }
    #[inline(always)]
    unsafe fn sum4(r: [Self; 4]) -> [f64; 4] {
        unsafe { sum4_pd([r[0].halves(), r[1].halves(), r[2].halves(), r[3].halves()]) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl InstructionSet for Avx512 {
    type F32 = F32x16;
    type F64 = F64x8;

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> F32x16 {
        F32x16(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) })
    }
    #[inline(always)]
    unsafe fn store_f16(r: F32x16, p: *mut f16) {
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(r.0)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> F32x16 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            F32x16(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(r: F32x16, p: *mut bf16) {
        // Round to nearest even on the bits; a NaN keeps its top bits and is made quiet.
        unsafe {
            let bits = _mm512_castps_si512(r.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(r.0, r.0);
            let kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x40_0000));
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(kept)));
        }
    }
}
