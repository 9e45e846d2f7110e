//! AVX2 with FMA and F16C: eight `f32` or four `f64` lanes.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{InstructionSet, Kernel, Reg, one_instruction};

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// # Safety
/// The machine must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run(kernel: impl Kernel) {
    debug_assert!(super::Isa::Avx2.is_available());
    // SAFETY: the machine has the three, as asserted above.
    unsafe { kernel.run::<Avx2>() }
}

#[derive(Clone, Copy)]
pub(crate) struct F32x8(__m256);

#[derive(Clone, Copy)]
pub(crate) struct F64x4(__m256d);

/// The two halves of `a` added, then those of `b`.
///
/// # Safety
/// Needs AVX.
#[inline(always)]
unsafe fn halves_ps(a: __m256, b: __m256) -> __m256 {
    // SAFETY: register operations of AVX.
    unsafe {
        let swapped = _mm256_permute2f128_ps::<0x21>(a, b);
        _mm256_add_ps(_mm256_blend_ps::<0xf0>(a, b), swapped)
    }
}

/// In each half, the sums of neighbouring lanes of `a`, then of `b`.
///
/// # Safety
/// Needs AVX.
#[inline(always)]
unsafe fn neighbours_ps(a: __m256, b: __m256) -> __m256 {
    // SAFETY: register operations of AVX.
    unsafe {
        let even = _mm256_shuffle_ps::<0b10_00_10_00>(a, b);
        _mm256_add_ps(even, _mm256_shuffle_ps::<0b11_01_11_01>(a, b))
    }
}

// SAFETY of every block below: the trait's contract gives the instructions and valid pointers.
// Loads and stores are the unaligned ones.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Reg for F32x8 {
    const LANES: usize = 8;
    const QUAD: usize = 8;
    one_instruction!(f32, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, |a, b, c| {
        _mm256_fmadd_ps(a, b, c)
    });
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        Self(unsafe { _mm256_maskload_ps(p, first(n)) })
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        unsafe { _mm256_maskstore_ps(p, first(n), self.0) }
    }
    #[inline(always)]
    unsafe fn store_quad(r: [Self; 4], p: *mut f32, more: bool) {
        unsafe {
            let (ab, cd) = (halves_ps(r[0].0, r[1].0), halves_ps(r[2].0, r[3].0));
            let low = _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd);
            let quad = _mm256_add_ps(low, _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd));
            let sum = if more { _mm256_add_ps(quad, _mm256_loadu_ps(p)) } else { quad };
            _mm256_storeu_ps(p, sum);
        }
    }
    #[inline(always)]
    unsafe fn sum_quads(from: *const f32, to: [*mut f32; 4]) {
        unsafe {
            // Corners 0 and 2 of two samples in the lower half, 1 and 3 in the upper half.
            let wx = neighbours_ps(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8)));
            let yz = neighbours_ps(_mm256_loadu_ps(from.add(16)), _mm256_loadu_ps(from.add(24)));
            let ab = _mm256_shuffle_ps::<0b10_00_10_00>(wx, yz);
            let cd = _mm256_shuffle_ps::<0b11_01_11_01>(wx, yz);
            _mm_storeu_ps(to[0], _mm256_castps256_ps128(ab));
            _mm_storeu_ps(to[1], _mm256_extractf128_ps::<1>(ab));
            _mm_storeu_ps(to[2], _mm256_castps256_ps128(cd));
            _mm_storeu_ps(to[3], _mm256_extractf128_ps::<1>(cd));
        }
    }
}

/// All bits of the first `n` of eight 32-bit lanes.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    debug_assert!(n <= 8);
    // SAFETY: register operations of AVX2.
    unsafe {
        let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lane)
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Reg for F64x4 {
    const LANES: usize = 4;
    const QUAD: usize = 4;
    one_instruction!(f64, _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_add_pd, |a, b, c| {
        _mm256_fmadd_pd(a, b, c)
    });
    #[inline(always)]
    unsafe fn load_part(p: *const f64, n: usize) -> Self {
        Self(unsafe { _mm256_maskload_pd(p, _mm256_cvtepi32_epi64(_mm256_castsi256_si128(first(n)))) })
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f64, n: usize) {
        unsafe { _mm256_maskstore_pd(p, _mm256_cvtepi32_epi64(_mm256_castsi256_si128(first(n))), self.0) }
    }
    #[inline(always)]
    unsafe fn store_quad(r: [Self; 4], p: *mut f64, more: bool) {
        unsafe {
            let (ab, cd) = (_mm256_hadd_pd(r[0].0, r[1].0), _mm256_hadd_pd(r[2].0, r[3].0));
            let low = _mm256_permute2f128_pd::<0x20>(ab, cd);
            let quad = _mm256_add_pd(low, _mm256_permute2f128_pd::<0x31>(ab, cd));
            let sum = if more { _mm256_add_pd(quad, _mm256_loadu_pd(p)) } else { quad };
            _mm256_storeu_pd(p, sum);
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl InstructionSet for Avx2 {
    type F32 = F32x8;
    type F64 = F64x4;

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> F32x8 {
        F32x8(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) })
    }
    #[inline(always)]
    unsafe fn store_f16(r: F32x8, p: *mut f16) {
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(r.0)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> F32x8 {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            F32x8(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(r: F32x8, p: *mut bf16) {
        // Round to nearest even on the bits; a NaN keeps its top bits and is made quiet.
        unsafe {
            let bits = _mm256_castps_si256(r.0);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(r.0, r.0));
            let high = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
            let packed = _mm256_packus_epi32(high, high);
            let ordered = _mm256_permute4x64_epi64::<0b00_00_10_00>(packed);
            _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(ordered));
        }
    }
}
