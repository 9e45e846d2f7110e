//! The locations and weights of a query, in the arithmetic type: read as they are, or computed from
//! the inputs of the fused form.

use std::ops::Range;

use super::parts::Part;
use super::simd::{InstructionSet, Lane, Reg, prefetch_row};
use crate::dtype::{Float, Slice, typed};
use crate::op::{Args, ReferenceKind, Tensor};
use crate::problem::Problem;

/// Operations of the arithmetic types beyond [`Float`], in forms that vectorise in loops.
pub(crate) trait Arithmetic: Float {
    /// `exp` of a number at most 0.
    fn exp_nonpositive(self) -> Self;
    /// The integer part.
    ///
    /// # Safety
    /// It must fit `i32`.
    unsafe fn truncate(self) -> i32;
}

impl Arithmetic for f32 {
    #[inline(always)]
    fn exp_nonpositive(self) -> f32 {
        // exp(x) = 2^n * exp(r), r within ln(2)/2 of 0. Adding and subtracting 1.5 * 2^23 rounds to
        // an integer.
        const ROUND: f32 = 12_582_912.0;
        // ln(2) in two parts; the first has few enough bits that n times it is exact.
        const LN2_HIGH: f32 = 0.693_359_4;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        const SMALLEST: f32 = -87.0;
        // A NaN passes both comparisons unchanged.
        let x = if self < SMALLEST { SMALLEST } else { self };
        let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
        let r = x - n * LN2_HIGH - n * LN2_LOW;
        let mut p = 1.0 / 5040.0;
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = p * r + c;
        }
        let power = f32::from_bits((((n as i32) + 127) << 23) as u32);
        if self < SMALLEST { 0.0 } else { p * power }
    }
    #[inline(always)]
    unsafe fn truncate(self) -> i32 {
        debug_assert!(self.abs() < 2_147_483_648.0);
        // SAFETY: the integer part fits, as asserted above.
        unsafe { self.to_int_unchecked() }
    }
}

impl Arithmetic for f64 {
    #[inline(always)]
    fn exp_nonpositive(self) -> f64 {
        self.exp()
    }
    #[inline(always)]
    unsafe fn truncate(self) -> i32 {
        debug_assert!(self.abs() < 2_147_483_648.0);
        // SAFETY: the integer part fits, as asserted above.
        unsafe { self.to_int_unchecked() }
    }
}

/// The inputs of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallInputs<'a> {
    pub(super) p: &'a Problem,
    pub(super) args: Args<'a>,
}

impl CallInputs<'_> {
    /// The first element of the value plane that (image, query, head) reads.
    #[inline(always)]
    pub(super) fn plane(&self, at: [usize; 3]) -> usize {
        self.args.value.at([at[0], 0, at[2]])
    }

    /// Prefetches the locations and weights of some heads of a query.
    #[inline(always)]
    pub(super) fn prefetch(&self, [image, query]: [usize; 2], heads: Range<usize>, part: &Part) {
        for (t, numbers) in [(&self.args.locations, 2), (&self.args.weights, 1)] {
            let n = numbers * part.samples.len();
            let start = t.at([image, query, heads.start]) + numbers * part.samples.start;
            typed!(Slice, t.data, data => {
                let row = data.as_ptr().wrapping_add(start);
                if t.strides[2] == n {
                    prefetch_row(row, heads.len() * n);
                } else {
                    for k in 0..heads.len() {
                        prefetch_row(row.wrapping_add(k * t.strides[2]), n);
                    }
                }
            });
        }
    }

    /// Fills `xy` and `att` with the locations and weights of some heads of a query on `part`, one
    /// head after the other. `logits` is working memory for all samples of a head.
    ///
    /// # Safety
    /// The machine must have `I`.
    #[inline(always)]
    pub(super) unsafe fn fill<I: InstructionSet, T: Lane>(
        &self,
        at: [usize; 2],
        heads: Range<usize>,
        part: &Part,
        xy: &mut [T::Acc],
        att: &mut [T::Acc],
        logits: &mut [T::Acc],
    ) {
        let (n, first) = (part.samples.len(), part.samples.start);
        debug_assert!(xy.len() == 2 * heads.len() * n && att.len() == heads.len() * n);
        debug_assert!(logits.len() == self.p.samples());
        // SAFETY: the machine has `I`.
        unsafe {
            widen_rows::<I, T>(&self.args.locations, at, heads.clone(), 2 * first, 2 * n, xy);
            if self.args.reference.is_none() {
                widen_rows::<I, T>(&self.args.weights, at, heads, first, n, att);
                return;
            }
            for (k, head) in heads.enumerate() {
                // A softmax needs the logits of all samples, also of those on other parts.
                let start = self.args.weights.at([at[0], at[1], head]);
                widen::<I, T>(&self.args.weights.data, start, logits);
                softmax(logits);
                att[k * n..(k + 1) * n].copy_from_slice(&logits[part.samples.clone()]);
                let mut first = k * n;
                for l in part.levels.clone() {
                    let points = self.p.points()[l];
                    self.locate_offsets::<T>(at, l, &mut xy[2 * first..2 * (first + points)]);
                    first += points;
                }
            }
        }
    }

    /// Turns raw offsets on a level into locations.
    #[inline(always)]
    fn locate_offsets<T: Lane>(&self, at: [usize; 2], level: usize, xy: &mut [T::Acc]) {
        let [x, y, sx, sy] = self.reference::<T>(at, level);
        for pair in xy.chunks_exact_mut(2) {
            pair[0] = x + pair[0] * sx;
            pair[1] = y + pair[1] * sy;
        }
    }

    /// The reference point of a level, and what one unit of offset adds to it.
    #[inline(always)]
    pub(super) fn reference<T: Lane>(&self, at: [usize; 2], l: usize) -> [T::Acc; 4] {
        let Some((kind, t)) = &self.args.reference else { return [T::Acc::ZERO; 4] };
        let base = t.at([at[0], at[1], l]);
        let get = |i| T::Acc::from_f64(t.data.get(base + i));
        let level = &self.p.levels()[l];
        let (sx, sy) = match kind {
            ReferenceKind::Point => (
                T::Acc::ONE / T::Acc::from_f64(level.w as f64),
                T::Acc::ONE / T::Acc::from_f64(level.h as f64),
            ),
            ReferenceKind::Box => {
                let share = self.half_share::<T>(l);
                (get(2) * share, get(3) * share)
            }
        };
        [get(0), get(1), sx, sy]
    }

    /// A box's offsets are in units of half its size over the number of points.
    #[inline(always)]
    pub(super) fn half_share<T: Lane>(&self, l: usize) -> T::Acc {
        T::Acc::from_f64(0.5) / T::Acc::from_f64(self.p.points()[l] as f64)
    }
}

#[inline(always)]
pub(super) fn softmax<F: Arithmetic>(row: &mut [F]) {
    let mut top = F::from_f64(f64::NEG_INFINITY);
    for &x in row.iter() {
        top = if x > top { x } else { top };
    }
    for x in row.iter_mut() {
        *x = (*x - top).exp_nonpositive();
    }
    let mut sum = F::ZERO;
    for &x in row.iter() {
        sum += x;
    }
    let share = F::ONE / sum;
    for x in row.iter_mut() {
        *x = *x * share;
    }
}

/// Widens `len` elements of some heads of a query, from element `skip` of each head on.
///
/// # Safety
/// The machine must have `I`.
#[inline(always)]
unsafe fn widen_rows<I: InstructionSet, T: Lane>(
    t: &Tensor<'_>,
    [image, query]: [usize; 2],
    heads: Range<usize>,
    skip: usize,
    len: usize,
    to: &mut [T::Acc],
) {
    let start = t.at([image, query, heads.start]) + skip;
    debug_assert!(to.len() >= heads.len() * len);
    // SAFETY: the machine has `I`.
    unsafe {
        if t.strides[2] == len {
            // Rows side by side are one long row.
            widen::<I, T>(&t.data, start, &mut to[..heads.len() * len]);
        } else {
            for k in 0..heads.len() {
                widen::<I, T>(&t.data, start + k * t.strides[2], &mut to[k * len..(k + 1) * len]);
            }
        }
    }
}

/// Reads elements of the value's type or `f32` into the arithmetic type.
///
/// # Safety
/// The machine must have `I`.
#[inline(always)]
pub(super) unsafe fn widen<I: InstructionSet, T: Lane>(data: &Slice<'_>, start: usize, to: &mut [T::Acc]) {
    // An empty tensor may have strides that lead anywhere.
    if to.is_empty() {
        return;
    }
    match (T::slice(data), data) {
        (Some(from), _) => {
            let from = &from[start..start + to.len()];
            let lanes = T::R::<I>::LANES;
            let mut i = 0;
            // SAFETY: both slices have `to.len()` elements; the caller gives the instructions.
            unsafe {
                while i + lanes <= to.len() {
                    T::load::<I>(from.as_ptr().add(i)).store(to.as_mut_ptr().add(i));
                    i += lanes;
                }
                if i < to.len() {
                    let n = to.len() - i;
                    T::load_part::<I>(from.as_ptr().add(i), n).store_part(to.as_mut_ptr().add(i), n);
                }
            }
        }
        (None, Slice::F32(from)) => {
            for (to, from) in to.iter_mut().zip(&from[start..]) {
                *to = T::Acc::from_f64(f64::from(*from));
            }
        }
        (None, _) => unreachable!("checked: the value's type or f32"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_where_softmax_uses_it() {
        let mut worst = 0.0f64;
        for i in 0..200_000 {
            let x = -(i as f32) * 4.35e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(x.exp_nonpositive()) - exact).abs() / exact);
        }
        assert!(worst < 3.0e-7, "relative error {worst:e}");
        assert_eq!(0.0f32.exp_nonpositive(), 1.0);
        assert_eq!((-1000.0f32).exp_nonpositive(), 0.0);
        assert_eq!(f32::NEG_INFINITY.exp_nonpositive(), 0.0);
        assert!(f32::NAN.exp_nonpositive().is_nan());
    }
}
