//! Gradients of locations, weights and reference points: the chain rule, query by query.
//!
//! Each task takes some queries, reads their taps again and takes the rows' dot products with the output's gradient.

use super::backward::padded;
use super::forward::ahead;
use super::rows::{Rows, RowsOut, widen};
use super::simd::{InstructionSet, Kernel, Lane, Reg, prefetch_row};
use super::taps::{ALL_CORNERS, Sampler, Taps};
use super::{Call, Item, Next, Query, Visitor, for_each_chunk, pipeline};
use crate::dtype::Float;
use crate::op::{ReferenceKind, Tensor, offset};
use crate::problem::{Padding, Problem, Sampling};
use crate::view::Strides;

impl Call<'_> {
    pub(super) fn coordinate_gradients<T: Lane>(
        &self,
        order: &[usize],
        upstream: Tensor<'_>,
        to: CoordinateOut<T>,
    ) {
        let p = self.rows.p;
        if p.output_len() == 0 {
            to.zero_reference(&self.rows);
            return;
        }
        let value = T::slice(&self.rows.args.value.data).expect("checked");
        let sampler = Sampler::new(p, self.value_grids(), p.heads());
        let scratch = || ([Query::new(p, p.heads()), Query::new(p, p.heads())], Derivatives::new(p));
        for_each_chunk(order, scratch, |(memory, derivatives), pairs| {
            let chain = Chain { rows: self.rows, sampler: &sampler, value, upstream, to, derivatives };
            self.isa.run(Coordinates { chain, pairs, memory });
        });
    }
}

/// Where the gradients of locations, weights and reference points go, where wanted.
#[derive(Clone, Copy)]
pub(super) struct CoordinateOut<T> {
    pub(super) locations: Option<(RowsOut<T>, Strides)>,
    pub(super) weights: Option<(RowsOut<T>, Strides)>,
    pub(super) reference: Option<(RowsOut<T>, Strides)>,
}

impl<T: Lane> CoordinateOut<T> {
    /// Without heads no task visits the queries, yet reference points have a gradient: zero.
    fn zero_reference(self, rows: &Rows<'_>) {
        let (Some((out, strides)), Some((kind, _))) = (self.reference, rows.args.reference) else { return };
        for pair in 0..rows.p.batch() * rows.p.queries() {
            for l in 0..rows.p.levels().len() {
                let at = [pair / rows.p.queries(), pair % rows.p.queries(), l];
                // SAFETY: a checked row, and no other thread writes.
                unsafe { out.write(offset(strides, at), &[T::Acc::ZERO; 4][..kind.dim()]) };
            }
        }
    }
}

/// Working memory for the derivatives of one query.
struct Derivatives<F> {
    /// The output's gradient, padded with zeros to whole registers.
    gradient: Vec<F>,
    /// For each sample and corner, the row's dot product with it.
    dots: Vec<F>,
    xy: Vec<F>,
    att: Vec<F>,
    /// For each level, up to four numbers.
    reference: Vec<F>,
}

impl<F: Float> Derivatives<F> {
    fn new(p: &Problem) -> Self {
        let n = p.samples();
        Self {
            gradient: vec![F::ZERO; padded(p)],
            dots: vec![F::ZERO; 4 * n],
            xy: vec![F::ZERO; 2 * n],
            att: vec![F::ZERO; n],
            reference: vec![F::ZERO; 4 * p.levels().len()],
        }
    }
}

/// The gradients of locations, weights and reference points of some (image, query) pairs.
struct Coordinates<'a, T: Lane> {
    chain: Chain<'a, T>,
    pairs: &'a [usize],
    memory: &'a mut [Query<T::Acc>; 2],
}

impl<T: Lane> Kernel for Coordinates<'_, T> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(mut self) {
        let Chain { rows, sampler, .. } = self.chain;
        // SAFETY: the machine has `I`.
        unsafe {
            pipeline::<I, T>(&rows, sampler, self.pairs, 0..rows.p.heads(), self.memory, &mut self.chain)
        };
    }
}

/// The chain rule for one (image, query, head) after another.
struct Chain<'a, T: Lane> {
    rows: Rows<'a>,
    sampler: &'a Sampler<T::Acc>,
    value: &'a [T],
    upstream: Tensor<'a>,
    to: CoordinateOut<T>,
    derivatives: &'a mut Derivatives<T::Acc>,
}

impl<T: Lane> Visitor<T> for Chain<'_, T> {
    /// Differentiates one (image, query, head) and writes what is its own; the reference's with the last head.
    #[inline(always)]
    unsafe fn visit<I: InstructionSet>(
        &mut self,
        at: [usize; 3],
        item: Item<'_, T::Acc>,
        next: Next<'_, T::Acc>,
    ) {
        let (p, rows, der) = (self.rows.p, &self.rows, &mut *self.derivatives);
        let next = ahead(rows, self.value, next);
        let plane = self.value.as_ptr().wrapping_add(rows.plane(at));
        // SAFETY: the machine has `I`; the item's taps lie within the value.
        unsafe {
            widen::<I, T>(&self.upstream.data, self.upstream.at(at), &mut der.gradient[..p.channels()]);
            let mut dots = Dots {
                sampler: self.sampler,
                taps: item.taps,
                plane,
                next,
                gradient: &der.gradient,
                dots: &mut der.dots,
            };
            dots.fill::<I>(p.channels());
        }
        differentiate(p, self.sampler, item, der);
        if let Some((kind, _)) = rows.args.reference {
            through_fusion::<T>(rows, kind, item, der, at);
        }
        // SAFETY: checked strides; the rows are this query's, and all its heads are visited by one task.
        unsafe {
            if let Some((out, strides)) = self.to.locations {
                out.write(offset(strides, at), &der.xy);
            }
            if let Some((out, strides)) = self.to.weights {
                out.write(offset(strides, at), &der.att);
            }
            if let (Some((out, strides)), Some((kind, _))) = (self.to.reference, rows.args.reference)
                && at[2] + 1 == p.heads()
            {
                for (l, numbers) in der.reference.chunks_exact(4).enumerate() {
                    out.write(offset(strides, [at[0], at[1], l]), &numbers[..kind.dim()]);
                }
            }
        }
    }
}

/// For each sample and corner, the sum over channels of `row * gradient`; 0 for corners that do not count.
struct Dots<'a, T: Lane> {
    sampler: &'a Sampler<T::Acc>,
    taps: Taps<'a, T::Acc>,
    plane: *const T,
    next: Option<(Taps<'a, T::Acc>, *const T)>,
    /// Padded to whole registers.
    gradient: &'a [T::Acc],
    dots: &'a mut [T::Acc],
}

impl<T: Lane> Dots<'_, T> {
    /// Computes them from `d` channels.
    ///
    /// # Safety
    /// The machine must have `I`, and the taps must lie within the value `plane` points into.
    #[inline(always)]
    unsafe fn fill<I: InstructionSet>(&mut self, d: usize) {
        let lanes = T::R::<I>::LANES;
        let mut c = 0;
        // SAFETY: the caller's; every block stays within `d` channels.
        unsafe {
            while c + 4 * lanes <= d {
                self.block::<I, 4>(c, 4 * lanes);
                c += 4 * lanes;
            }
            if c + 2 * lanes <= d {
                self.block::<I, 2>(c, 2 * lanes);
                c += 2 * lanes;
            }
            while c < d {
                let n = lanes.min(d - c);
                self.block::<I, 1>(c, n);
                c += n;
            }
        }
    }

    /// Adds the products of `n` channels from `c` on, `R` registers; only with `R` = 1 may they be fewer. The same
    /// channels of `next` are asked for.
    #[inline(always)]
    unsafe fn block<I: InstructionSet, const R: usize>(&mut self, c: usize, n: usize) {
        let lanes = T::R::<I>::LANES;
        let whole = R > 1 || n == lanes;
        let Taps { at: ats, mask: masks, .. } = self.taps;
        let plane = self.plane.wrapping_add(c);
        // SAFETY: the caller's; the gradient is padded to whole registers.
        unsafe {
            let zero = T::R::<I>::splat(T::Acc::ZERO);
            let mut gradient = [zero; R];
            for r in 0..R {
                gradient[r] = T::R::<I>::load(self.gradient.as_ptr().add(c + r * lanes));
            }
            for g in &self.sampler.grids {
                let corners = g.corners();
                for s in g.samples.clone() {
                    if let Some((next, plane)) = self.next
                        && g.far
                    {
                        let ahead = plane.wrapping_add(c).wrapping_offset(next.at[s]);
                        for corner in corners {
                            prefetch_row(ahead.wrapping_offset(corner), R * lanes);
                        }
                    }
                    let (mask, at) = (masks[s], plane.wrapping_offset(ats[s]));
                    let mut sums = [zero; 4];
                    if mask == ALL_CORNERS && whole {
                        for k in 0..4 {
                            let row = at.wrapping_offset(corners[k]);
                            for r in 0..R {
                                sums[k] = T::load::<I>(row.add(r * lanes)).mul_add(gradient[r], sums[k]);
                            }
                        }
                    } else {
                        for k in 0..4 {
                            if mask & (1 << k) == 0 {
                                continue;
                            }
                            let row = at.wrapping_offset(corners[k]);
                            for r in 0..R {
                                let from = row.add(r * lanes);
                                let v = if whole { T::load::<I>(from) } else { T::load_part::<I>(from, n) };
                                sums[k] = v.mul_add(gradient[r], sums[k]);
                            }
                        }
                    }
                    let mut sums = T::R::<I>::sum4(sums);
                    let dots = &mut self.dots[4 * s..4 * s + 4];
                    if c > 0 {
                        for k in 0..4 {
                            sums[k] += dots[k];
                        }
                    }
                    dots.copy_from_slice(&sums);
                }
            }
        }
    }
}

/// From dot products to the derivatives by location and weight of every sample.
#[inline(always)]
fn differentiate<F: Float>(p: &Problem, sampler: &Sampler<F>, item: Item<'_, F>, der: &mut Derivatives<F>) {
    let n = p.samples();
    let (fx, fy, att) = (&item.taps.fx[..n], &item.taps.fy[..n], &item.att[..n]);
    let (sx, sy) = (&sampler.scale_x[..n], &sampler.scale_y[..n]);
    let (dots, d_att, d_xy) = (&der.dots[..4 * n], &mut der.att[..n], &mut der.xy[..2 * n]);
    let (mask, moves) = (&item.taps.mask[..n], p.sampling() == Sampling::Bilinear);
    for s in 0..n {
        let (ul, ur, ll, lr) = (dots[4 * s], dots[4 * s + 1], dots[4 * s + 2], dots[4 * s + 3]);
        let (right, below) = (fx[s], fy[s]);
        let (left, above) = (F::ONE - right, F::ONE - below);
        d_att[s] = above * (left * ul + right * ur) + below * (left * ll + right * lr);
        let dx = att[s] * sx[s] * (above * (ur - ul) + below * (lr - ll));
        let dy = att[s] * sy[s] * (left * (ll - ul) + right * (lr - ur));
        // Chosen, not multiplied: a weight that is not finite must not make a gradient where nothing was read.
        let counts = moves & (mask[s] != 0);
        d_xy[2 * s] = if counts { dx } else { F::ZERO };
        d_xy[2 * s + 1] = if counts { dy } else { F::ZERO };
    }
    if p.padding() == Padding::Border {
        // A clamped coordinate does not move the sample.
        let shift = F::from_f64(p.pixel_transform(1).1);
        let clamped = |t: F, scale: F, side: i32| {
            let c = t * scale + shift;
            !(c > F::ZERO && c < F::from_f64(f64::from(side) - 1.0))
        };
        for g in &sampler.grids {
            for s in g.samples.clone() {
                if clamped(item.xy[2 * s], sx[s], g.w) {
                    d_xy[2 * s] = F::ZERO;
                }
                if clamped(item.xy[2 * s + 1], sy[s], g.h) {
                    d_xy[2 * s + 1] = F::ZERO;
                }
            }
        }
    }
}

/// From derivatives by location and weight to those by offset, logit and reference point.
#[inline(always)]
fn through_fusion<T: Lane>(
    rows: &Rows<'_>,
    kind: ReferenceKind,
    item: Item<'_, T::Acc>,
    der: &mut Derivatives<T::Acc>,
    at: [usize; 3],
) {
    let p = rows.p;
    let mut mean = T::Acc::ZERO;
    for (&w, &d) in item.att.iter().zip(&der.att) {
        mean += w * d;
    }
    for (&w, d) in item.att.iter().zip(&mut der.att) {
        *d = w * (*d - mean);
    }
    if at[2] == 0 {
        der.reference.fill(T::Acc::ZERO);
    }
    let offsets = &rows.args.locations;
    let row = offsets.at(at);
    let mut s = 0;
    for (l, sums) in der.reference.chunks_exact_mut(4).enumerate() {
        let [_, _, scale_x, scale_y] = rows.reference::<T>([at[0], at[1]], l);
        for _ in 0..p.points()[l] {
            for (axis, scale) in [scale_x, scale_y].into_iter().enumerate() {
                let d = &mut der.xy[2 * s + axis];
                sums[axis] += *d;
                let finite = item.xy[2 * s].is_finite() && item.xy[2 * s + 1].is_finite();
                if kind == ReferenceKind::Box && finite {
                    let raw = T::Acc::from_f64(offsets.data.get(row + 2 * s + axis));
                    sums[2 + axis] += *d * raw * rows.half_share::<T>(l);
                }
                *d = if finite { *d * scale } else { T::Acc::ZERO };
            }
            s += 1;
        }
    }
}
