//! Arm Advanced SIMD: four `f32` or two `f64` lanes.

use std::arch::aarch64::*;

use half::{bf16, f16};

use super::{InstructionSet, Kernel, Reg, one_instruction};

#[derive(Clone, Copy)]
pub(crate) struct Neon;

/// # Safety
/// The machine must have NEON; every aarch64 machine does.
#[target_feature(enable = "neon")]
pub(super) unsafe fn run(kernel: impl Kernel) {
    // SAFETY: the machine has NEON.
    unsafe { kernel.run::<Neon>() }
}

#[derive(Clone, Copy)]
pub(crate) struct F32x4(float32x4_t);

#[derive(Clone, Copy)]
pub(crate) struct F64x2(float64x2_t);

// SAFETY of every block below: the trait's contract gives the instructions and valid pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Reg for F32x4 {
    const LANES: usize = 4;
    const QUAD: usize = 4;
    one_instruction!(f32, vdupq_n_f32, vld1q_f32, vst1q_f32, vaddq_f32, |a, b, c| vfmaq_f32(c, a, b));
    #[inline(always)]
    unsafe fn store_quad(r: [Self; 4], p: *mut f32, more: bool) {
        unsafe {
            let quad = vpaddq_f32(vpaddq_f32(r[0].0, r[1].0), vpaddq_f32(r[2].0, r[3].0));
            vst1q_f32(p, if more { vaddq_f32(quad, vld1q_f32(p)) } else { quad });
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Reg for F64x2 {
    const LANES: usize = 2;
    const QUAD: usize = 4;
    one_instruction!(f64, vdupq_n_f64, vld1q_f64, vst1q_f64, vaddq_f64, |a, b, c| vfmaq_f64(c, a, b));
    #[inline(always)]
    unsafe fn store_quad(r: [Self; 4], p: *mut f64, more: bool) {
        unsafe {
            for k in [0, 2] {
                let (pair, p) = (vpaddq_f64(r[k].0, r[k + 1].0), p.add(k));
                vst1q_f64(p, if more { vaddq_f64(pair, vld1q_f64(p)) } else { pair });
            }
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl InstructionSet for Neon {
    type F32 = F32x4;
    type F64 = F64x2;

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> F32x4 {
        unsafe { F32x4(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p.cast())))) }
    }
    #[inline(always)]
    unsafe fn store_f16(r: F32x4, p: *mut f16) {
        unsafe { vst1_u16(p.cast(), vreinterpret_u16_f16(vcvt_f16_f32(r.0))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> F32x4 {
        unsafe { F32x4(vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vld1_u16(p.cast()))))) }
    }
}
