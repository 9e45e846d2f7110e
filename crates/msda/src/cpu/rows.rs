//! One query's locations and weights, in the arithmetic type: read as they are, or made from the fused inputs.

use std::ops::Range;

use super::simd::{InstructionSet, Lane, Reg, prefetch_row};
use crate::dtype::{Dtype, Float, Slice, SliceMut, typed};
use crate::op::{Args, ReferenceKind};
use crate::problem::Problem;

/// What the kernels need of the arithmetic types beyond [`Float`], in forms that become vector code in loops.
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
        // exp(x) = 2^n * exp(r), r within ln(2)/2 of 0. Adding and subtracting 1.5 * 2^23 rounds to an integer.
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
        // SAFETY: the caller's.
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
        // SAFETY: the caller's.
        unsafe { self.to_int_unchecked() }
    }
}

/// Where the locations and weights of a query come from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) p: &'a Problem,
    pub(super) args: Args<'a>,
}

impl Rows<'_> {
    /// The first element of the value plane that (image, query, head) reads.
    #[inline(always)]
    pub(super) fn plane(&self, at: [usize; 3]) -> usize {
        self.args.value.at([at[0], 0, at[2]])
    }

    /// Asks for the locations and weights of some heads of a query.
    #[inline(always)]
    pub(super) fn prefetch(&self, [image, query]: [usize; 2], heads: Range<usize>) {
        let samples = self.p.samples();
        for (t, n) in [(&self.args.locations, 2 * samples), (&self.args.weights, samples)] {
            typed!(Slice, t.data, data => {
                for head in heads.clone() {
                    prefetch_row(data.as_ptr().wrapping_add(t.at([image, query, head])), n);
                }
            });
        }
    }

    /// Fills `xy` and `att` with the locations and weights of some heads of a query, one head after the other.
    ///
    /// # Safety
    /// The machine must have `I`.
    #[inline(always)]
    pub(super) unsafe fn fill<I: InstructionSet, T: Lane>(
        &self,
        [image, query]: [usize; 2],
        heads: Range<usize>,
        xy: &mut [T::Acc],
        att: &mut [T::Acc],
    ) {
        let n = self.p.samples();
        // SAFETY: the caller's.
        unsafe {
            for (t, to, n) in [(&self.args.locations, &mut *xy, 2 * n), (&self.args.weights, &mut *att, n)] {
                let start = t.at([image, query, heads.start]);
                if t.strides[2] == n {
                    // Heads lie side by side: one row.
                    widen::<I, T>(&t.data, start, &mut to[..heads.len() * n]);
                } else {
                    for k in 0..heads.len() {
                        widen::<I, T>(&t.data, start + k * t.strides[2], &mut to[k * n..(k + 1) * n]);
                    }
                }
            }
        }
        if self.args.reference.is_some() {
            for k in 0..heads.len() {
                softmax(&mut att[k * n..(k + 1) * n]);
                let mut first = k * n;
                for (l, &points) in self.p.points().iter().enumerate() {
                    self.locate_offsets::<T>([image, query], l, &mut xy[2 * first..2 * (first + points)]);
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
            }
            for (to, from) in to[i..].iter_mut().zip(&from[i..]) {
                *to = from.widen();
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

/// A destination for rows of the value's type or `f32`, shared by threads that write different rows.
#[derive(Clone, Copy)]
pub(super) enum RowsOut<T> {
    Own(*mut T),
    F32(*mut f32),
}

// SAFETY: threads write disjoint rows: the checked strides keep outer indices apart.
unsafe impl<T: Send> Send for RowsOut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for RowsOut<T> {}

impl<T: Lane> RowsOut<T> {
    /// The elements of a slice that was checked to be of the value's type or `f32`.
    pub(super) fn new(data: SliceMut<'_>) -> Self {
        match data {
            SliceMut::F32(s) if T::DTYPE != Dtype::F32 => Self::F32(s.as_mut_ptr()),
            data => Self::Own(T::slice_mut(data).expect("checked: the value's type or f32").as_mut_ptr()),
        }
    }

    /// Writes a row.
    ///
    /// # Safety
    /// `start .. start + row.len()` must lie within the slice, and no other thread may touch it.
    #[inline(always)]
    pub(super) unsafe fn write(self, start: usize, row: &[T::Acc]) {
        // SAFETY: the caller's.
        unsafe {
            match self {
                Self::Own(p) => {
                    for (i, &x) in row.iter().enumerate() {
                        *p.add(start + i) = T::narrow(x);
                    }
                }
                Self::F32(p) => {
                    for (i, &x) in row.iter().enumerate() {
                        *p.add(start + i) = x.to_f64() as f32;
                    }
                }
            }
        }
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
