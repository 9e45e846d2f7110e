//! AVX-512: sixteen `f32` or eight `f64` lanes.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{InstructionSet, Kernel, Reg, one_instruction};

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// # Safety
/// The machine must have AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn run(kernel: impl Kernel) {
    debug_assert!(super::Isa::Avx512.is_available());
    // SAFETY: the machine has all of them, as asserted above.
    unsafe { kernel.run::<Avx512>() }
}

#[derive(Clone, Copy)]
pub(crate) struct F32x16(__m512);

#[derive(Clone, Copy)]
pub(crate) struct F64x8(__m512d);

/// The mask of the first `n` of 16 lanes.
#[inline(always)]
fn first(n: usize) -> u16 {
    debug_assert!(n <= 16);
    ((1u32 << n) - 1) as u16
}

/// The two halves of `a` added, then those of `b`.
///
/// # Safety
/// Needs AVX-512.
#[inline(always)]
unsafe fn halves_ps(a: __m512, b: __m512) -> __m512 {
    // SAFETY: register operations of AVX-512.
    unsafe {
        let swapped = _mm512_shuffle_f32x4::<0b01_00_11_10>(a, b);
        _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), swapped)
    }
}

/// The two halves of `a` added, then those of `b`.
///
/// # Safety
/// Needs AVX-512.
#[inline(always)]
unsafe fn halves_pd(a: __m512d, b: __m512d) -> __m512d {
    // SAFETY: register operations of AVX-512.
    unsafe {
        let swapped = _mm512_shuffle_f64x2::<0b01_00_11_10>(a, b);
        _mm512_add_pd(_mm512_mask_blend_pd(0xf0, a, b), swapped)
    }
}

/// In each 128-bit lane, the two halves of `a` added, then those of `b`.
///
/// # Safety
/// Needs AVX-512.
#[inline(always)]
unsafe fn pairs_ps(a: __m512, b: __m512) -> __m512 {
    // SAFETY: register operations of AVX-512.
    unsafe {
        let low = _mm512_shuffle_ps::<0b01_00_01_00>(a, b);
        _mm512_add_ps(low, _mm512_shuffle_ps::<0b11_10_11_10>(a, b))
    }
}

// SAFETY of every block below: the trait's contract gives the instructions and valid pointers.
// Loads and stores are the unaligned ones.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Reg for F32x16 {
    const LANES: usize = 16;
    const QUAD: usize = 16;
    one_instruction!(f32, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, |a, b, c| {
        _mm512_fmadd_ps(a, b, c)
    });
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        Self(unsafe { _mm512_maskz_loadu_ps(first(n), p) })
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, first(n), self.0) }
    }
    #[inline(always)]
    unsafe fn store_quad(r: [Self; 4], p: *mut f32, more: bool) {
        unsafe {
            let (ab, cd) = (halves_ps(r[0].0, r[1].0), halves_ps(r[2].0, r[3].0));
            let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
            let odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd);
            let quad = _mm512_add_ps(even, odd);
            let sum = if more { _mm512_add_ps(quad, _mm512_loadu_ps(p)) } else { quad };
            _mm512_storeu_ps(p, sum);
        }
    }
    #[inline(always)]
    unsafe fn sum_quads(from: *const f32, to: [*mut f32; 4]) {
        unsafe {
            let wx = pairs_ps(_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(16)));
            let yz = pairs_ps(_mm512_loadu_ps(from.add(32)), _mm512_loadu_ps(from.add(48)));
            let even = _mm512_shuffle_ps::<0b10_00_10_00>(wx, yz);
            let sums = _mm512_add_ps(even, _mm512_shuffle_ps::<0b11_01_11_01>(wx, yz));
            _mm_storeu_ps(to[0], _mm512_castps512_ps128(sums));
            _mm_storeu_ps(to[1], _mm512_extractf32x4_ps::<1>(sums));
            _mm_storeu_ps(to[2], _mm512_extractf32x4_ps::<2>(sums));
            _mm_storeu_ps(to[3], _mm512_extractf32x4_ps::<3>(sums));
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Reg for F64x8 {
    const LANES: usize = 8;
    const QUAD: usize = 8;
    one_instruction!(f64, _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_add_pd, |a, b, c| {
        _mm512_fmadd_pd(a, b, c)
    });
    #[inline(always)]
    unsafe fn load_part(p: *const f64, n: usize) -> Self {
        Self(unsafe { _mm512_maskz_loadu_pd(first(n) as u8, p) })
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f64, n: usize) {
        unsafe { _mm512_mask_storeu_pd(p, first(n) as u8, self.0) }
    }
    #[inline(always)]
    unsafe fn store_quad(r: [Self; 4], p: *mut f64, more: bool) {
        unsafe {
            let (ab, cd) = (halves_pd(r[0].0, r[1].0), halves_pd(r[2].0, r[3].0));
            let even = _mm512_shuffle_f64x2::<0b10_00_10_00>(ab, cd);
            let odd = _mm512_shuffle_f64x2::<0b11_01_11_01>(ab, cd);
            let quad = _mm512_add_pd(even, odd);
            let sum = if more { _mm512_add_pd(quad, _mm512_loadu_pd(p)) } else { quad };
            _mm512_storeu_pd(p, sum);
        }
    }
    #[inline(always)]
    unsafe fn sum_quads(from: *const f64, to: [*mut f64; 4]) {
        unsafe {
            for s in [0, 2] {
                let (a, b) = (_mm512_loadu_pd(from.add(8 * s)), _mm512_loadu_pd(from.add(8 * s + 8)));
                let sums = _mm512_add_pd(_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
                _mm_storeu_pd(to[0].add(s), _mm512_castpd512_pd128(sums));
                _mm_storeu_pd(to[1].add(s), _mm512_extractf64x2_pd::<1>(sums));
                _mm_storeu_pd(to[2].add(s), _mm512_extractf64x2_pd::<2>(sums));
                _mm_storeu_pd(to[3].add(s), _mm512_extractf64x2_pd::<3>(sums));
            }
        }
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
        unsafe { _mm256_storeu_si256(p.cast(), to_f16(r)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> F32x16 {
        unsafe { from_bf16(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_bf16(r: F32x16, p: *mut bf16) {
        unsafe { _mm256_storeu_si256(p.cast(), to_bf16(r)) }
    }
    #[inline(always)]
    unsafe fn load_f16_part(p: *const f16, n: usize) -> F32x16 {
        F32x16(unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p.cast())) })
    }
    #[inline(always)]
    unsafe fn store_f16_part(r: F32x16, p: *mut f16, n: usize) {
        unsafe { _mm256_mask_storeu_epi16(p.cast(), first(n), to_f16(r)) }
    }
    #[inline(always)]
    unsafe fn load_bf16_part(p: *const bf16, n: usize) -> F32x16 {
        unsafe { from_bf16(_mm256_maskz_loadu_epi16(first(n), p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_bf16_part(r: F32x16, p: *mut bf16, n: usize) {
        unsafe { _mm256_mask_storeu_epi16(p.cast(), first(n), to_bf16(r)) }
    }
}

/// # Safety
/// Needs AVX-512.
#[inline(always)]
unsafe fn to_f16(r: F32x16) -> __m256i {
    // SAFETY: register operations of AVX-512.
    unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(r.0) }
}

/// # Safety
/// Needs AVX-512.
#[inline(always)]
unsafe fn from_bf16(bits: __m256i) -> F32x16 {
    // SAFETY: register operations of AVX-512.
    unsafe { F32x16(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))) }
}

/// Rounds to nearest even on the bits. A NaN keeps its top bits and is made quiet.
///
/// # Safety
/// Needs AVX-512.
#[inline(always)]
unsafe fn to_bf16(r: F32x16) -> __m256i {
    // SAFETY: register operations of AVX-512.
    unsafe {
        let bits = _mm512_castps_si512(r.0);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(r.0, r.0);
        let kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x40_0000));
        _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(kept))
    }
}
