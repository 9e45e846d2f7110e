//! The forward pass: for each query and head, a weighted sum of rows.

use super::rows::Rows;
use super::simd::{InstructionSet, Kernel, Lane, Reg, prefetch_row};
use super::taps::{ALL_CORNERS, Sampler, Taps};
use super::{Item, Next, Query, Shared, Visitor, pipeline};
use crate::dtype::Float;
use crate::op::offset;
use crate::view::Strides;

/// The forward pass over some (image, query) pairs.
pub(super) struct Forward<'a, T: Lane> {
    pub(super) sums: Sums<'a, T>,
    pub(super) pairs: &'a [usize],
    pub(super) memory: &'a mut [Query<T::Acc>; 2],
}

impl<T: Lane> Kernel for Forward<'_, T> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(mut self) {
        let Sums { rows, sampler, .. } = self.sums;
        // SAFETY: the machine has `I`.
        unsafe {
            pipeline::<I, T>(&rows, sampler, self.pairs, 0..rows.p.heads(), self.memory, &mut self.sums)
        };
    }
}

/// What is read and where the sums go.
pub(super) struct Sums<'a, T: Lane> {
    pub(super) rows: Rows<'a>,
    pub(super) sampler: &'a Sampler<T::Acc>,
    pub(super) value: &'a [T],
    pub(super) output: Shared<T>,
    pub(super) output_strides: Strides,
}

impl<T: Lane> Visitor<T> for Sums<'_, T> {
    #[inline(always)]
    unsafe fn visit<I: InstructionSet>(
        &mut self,
        at: [usize; 3],
        item: Item<'_, T::Acc>,
        next: Next<'_, T::Acc>,
    ) {
        let next = ahead(&self.rows, self.value, next);
        let plane = self.value.as_ptr().wrapping_add(self.rows.plane(at));
        // SAFETY: the machine has `I`; taps lie within the levels, which lie within the checked value; the output
        // row is this item's alone.
        unsafe {
            let out = self.output.at(offset(self.output_strides, at));
            weighted_sum::<I, T>(self.sampler, item.taps, plane, next, out, self.rows.p.channels());
        }
    }
}

/// The next item's taps with the value plane they refer to.
#[inline(always)]
pub(super) fn ahead<'a, T: Lane>(
    rows: &Rows<'_>,
    value: &[T],
    next: Next<'a, T::Acc>,
) -> Option<(Taps<'a, T::Acc>, *const T)> {
    next.map(|(at, taps)| (taps, value.as_ptr().wrapping_add(rows.plane(at))))
}

/// `out[c]` = the sum over all taps of `weight * row[c]`, for `d` channels.
///
/// # Safety
/// The machine must have `I`; the taps must lie within the value `plane` points into, and `out` must be valid for
/// `d` elements.
#[inline(always)]
unsafe fn weighted_sum<I: InstructionSet, T: Lane>(
    sampler: &Sampler<T::Acc>,
    taps: Taps<'_, T::Acc>,
    plane: *const T,
    next: Option<(Taps<'_, T::Acc>, *const T)>,
    out: *mut T,
    d: usize,
) {
    let lanes = T::R::<I>::LANES;
    let mut c = 0;
    // SAFETY: the caller's; every block stays within `d` channels.
    unsafe {
        while c + 4 * lanes <= d {
            block::<I, T, 4, 2>(sampler, taps, plane.wrapping_add(c), shift(next, c), out.add(c), 4 * lanes);
            c += 4 * lanes;
        }
        if c + 2 * lanes <= d {
            block::<I, T, 2, 4>(sampler, taps, plane.wrapping_add(c), shift(next, c), out.add(c), 2 * lanes);
            c += 2 * lanes;
        }
        while c < d {
            let n = lanes.min(d - c);
            block::<I, T, 1, 4>(sampler, taps, plane.wrapping_add(c), shift(next, c), out.add(c), n);
            c += n;
        }
    }
}

/// The same taps `c` channels further on.
#[inline(always)]
fn shift<F, T>(next: Option<(Taps<'_, F>, *const T)>, c: usize) -> Option<(Taps<'_, F>, *const T)> {
    next.map(|(taps, plane)| (taps, plane.wrapping_add(c)))
}

/// `R` registers of channels and `K` sums of each, so that additions do not wait for each other. `n` channels are
/// wanted; only with `R` = 1 may they be fewer than a register's. The same channels of `next` are asked for.
#[inline(always)]
unsafe fn block<I: InstructionSet, T: Lane, const R: usize, const K: usize>(
    sampler: &Sampler<T::Acc>,
    taps: Taps<'_, T::Acc>,
    plane: *const T,
    next: Option<(Taps<'_, T::Acc>, *const T)>,
    out: *mut T,
    n: usize,
) {
    let lanes = T::R::<I>::LANES;
    let whole = R > 1 || n == lanes;
    let (ats, masks, weights) = (taps.at.as_ptr(), taps.mask.as_ptr(), taps.weight.as_ptr());
    // Without a next item, this one's rows are asked for once more: that costs less than a condition.
    let (next_ats, next_plane) = match next {
        Some((next, plane)) => (next.at.as_ptr(), plane),
        None => (ats, plane),
    };
    // SAFETY: the caller's; a sample's index is below the length of every list in `taps`.
    unsafe {
        let mut sum = [[T::R::<I>::splat(T::Acc::ZERO); R]; K];
        for g in &sampler.grids {
            let corners = g.corners();
            for s in g.samples.clone() {
                if g.far {
                    let ahead = next_plane.wrapping_offset(*next_ats.add(s));
                    for corner in corners {
                        prefetch_row::<T>(ahead.wrapping_offset(corner), R * lanes);
                    }
                }
                let at = plane.wrapping_offset(*ats.add(s));
                let (mask, weight) = (*masks.add(s), &*weights.add(s));
                if mask == ALL_CORNERS && whole {
                    for k in 0..4 {
                        let (row, w) = (at.wrapping_offset(corners[k]), T::R::<I>::splat(weight[k]));
                        for r in 0..R {
                            sum[k % K][r] =
                                T::load::<I>(row.wrapping_add(r * lanes)).mul_add(w, sum[k % K][r]);
                        }
                    }
                } else if mask != 0 {
                    for k in 0..4 {
                        if mask & (1 << k) == 0 {
                            continue;
                        }
                        let (row, w) = (at.wrapping_offset(corners[k]), T::R::<I>::splat(weight[k]));
                        for r in 0..R {
                            let from = row.wrapping_add(r * lanes);
                            let v = if whole { T::load::<I>(from) } else { T::load_part::<I>(from, n) };
                            sum[k % K][r] = v.mul_add(w, sum[k % K][r]);
                        }
                    }
                }
            }
        }
        for k in 1..K {
            for r in 0..R {
                sum[0][r] = sum[0][r].add(sum[k][r]);
            }
        }
        for r in 0..R {
            if whole {
                T::store::<I>(sum[0][r], out.add(r * lanes));
            } else {
                T::store_part::<I>(sum[0][r], out, n);
            }
        }
    }
}
