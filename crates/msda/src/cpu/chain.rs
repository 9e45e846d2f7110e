//! Gradients of locations, weights and reference points: the chain rule.
//!
//! A sample's derivatives follow from the dot products of its four rows with the output's gradient.
//! The rows of all heads of a query are read first; the rest is then computed for all samples of
//! the query at once.

use std::ops::Range;

use super::bounds::Bounds;
use super::parts::Part;
use super::query::{QueryMemory, Step};
use super::rows::CallInputs;
use super::simd::{Block, InstructionSet, Lane, MAX_LANES, Reg, for_each_block, load_block, prefetch_row};
use super::taps::{Body, Map, Prefetch, Sampler, Walk};
use super::writer::NumberWriter;
use crate::buffer::Aligned;
use crate::dtype::Float;
use crate::op::ReferenceKind;
use crate::problem::Problem;

/// Destinations of the gradients of locations, weights and reference points, where wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct CoordinateWriters<T> {
    pub(super) locations: Option<NumberWriter<T>>,
    pub(super) weights: Option<NumberWriter<T>>,
    pub(super) reference: Option<NumberWriter<T>>,
}

impl<T: Lane> CoordinateWriters<T> {
    pub(super) fn any(&self) -> bool {
        self.locations.is_some() || self.weights.is_some() || self.reference.is_some()
    }
}

/// Working memory for the derivatives of some heads of a query.
#[derive(Debug)]
pub(super) struct Derivatives<F> {
    /// Partial sums of the dot products of each sample's rows with the output's gradient.
    quads: Aligned<F>,
    /// The dot products, for each corner a list of samples.
    dots: [Vec<F>; 4],
    xy: Vec<F>,
    att: Vec<F>,
    /// For each level, up to four numbers.
    reference: Vec<F>,
}

impl<F: Float> Derivatives<F> {
    pub(super) fn new(p: &Problem, heads: usize) -> Self {
        let n = heads * p.samples();
        // Quads are summed four at a time.
        let padded = n.next_multiple_of(4);
        Self {
            quads: Aligned::filled(padded * MAX_LANES, F::ZERO),
            dots: [(); 4].map(|()| vec![F::ZERO; padded]),
            xy: vec![F::ZERO; 2 * n],
            att: vec![F::ZERO; n],
            reference: vec![F::ZERO; 4 * p.levels().len()],
        }
    }
}

/// The chain rule for query after query.
pub(super) struct ChainRule<'a, T: Lane> {
    pub(super) rows: CallInputs<'a>,
    pub(super) sampler: &'a Sampler<T::Acc>,
    pub(super) map: &'a Map,
    pub(super) part: &'a Part,
    pub(super) heads: Range<usize>,
    pub(super) value: &'a [T],
    pub(super) to: CoordinateWriters<T>,
    pub(super) derivatives: &'a mut Derivatives<T::Acc>,
}

impl<T: Lane> ChainRule<'_, T> {
    /// Reads the rows of one head. `gradient` is the output's gradient, padded to whole registers.
    ///
    /// # Safety
    /// The machine must have `I`, and the step's taps must lie within the value.
    #[inline(always)]
    pub(super) unsafe fn visit<I: InstructionSet>(&mut self, step: &Step<'_, T::Acc>, gradient: &[T::Acc]) {
        let first = step.k * self.sampler.samples * T::R::<I>::QUAD;
        debug_assert!(gradient.len() >= self.rows.p.channels().next_multiple_of(T::R::<I>::LANES));
        let mut dots = Dots {
            bounds: [Bounds::of(self.value), Bounds::of(&self.derivatives.quads)],
            walk: Walk::value(self.map, step.taps, step.next_taps),
            plane: self.value.as_ptr().wrapping_add(self.rows.plane(step.at)),
            next: self.value.as_ptr().wrapping_add(self.rows.plane(step.next)),
            gradient: gradient.as_ptr(),
            quads: self.derivatives.quads.as_mut_ptr().wrapping_add(first),
        };
        // SAFETY: the machine has `I`, and taps on the map lie within the value; there is a quad
        // for each sample of every head.
        unsafe { for_each_block::<I, T>(self.rows.p.channels(), &mut dots) };
    }

    /// Computes and writes the derivatives of a query after all its heads were visited. Its samples
    /// begin at `first` in `query`.
    ///
    /// # Safety
    /// The machine must have `I`, and the query's rows must belong to this task.
    #[inline(always)]
    pub(super) unsafe fn end_query<I: InstructionSet>(
        &mut self,
        at: [usize; 2],
        query: &QueryMemory<T::Acc>,
        first: usize,
    ) {
        let (heads, skip) = (self.heads.len(), self.part.samples.start);
        let samples = first..first + heads * self.sampler.samples;
        let n = samples.len();
        // SAFETY: the lists are padded to whole groups of four quads.
        unsafe { sum_quads::<I, T>(&self.derivatives.quads, &mut self.derivatives.dots, n) };
        differentiate(self.sampler, query, samples, self.derivatives);
        if let Some((kind, _)) = self.rows.args.reference {
            self.derivatives.reference.fill(T::Acc::ZERO);
            for k in 0..heads {
                self.through_fusion(kind, query, first, at, k);
            }
        }
        let Derivatives { xy, att, reference, .. } = &*self.derivatives;
        let index = [at[0], at[1], self.heads.start];
        // SAFETY: the machine has `I`, the rows are this task's; strides were checked.
        unsafe {
            if let Some(to) = self.to.locations {
                to.write::<I>(index, 2 * skip, heads, &xy[..2 * n]);
            }
            if let Some(to) = self.to.weights {
                to.write::<I>(index, skip, heads, &att[..n]);
            }
            if let (Some(to), Some((kind, _))) = (self.to.reference, self.rows.args.reference) {
                for (l, numbers) in reference.chunks_exact(4).enumerate() {
                    to.write::<I>([at[0], at[1], l], 0, 1, &numbers[..kind.dim()]);
                }
            }
        }
    }

    /// From derivatives by location and weight to derivatives by offset, logit and reference point.
    #[inline(always)]
    fn through_fusion(
        &mut self,
        kind: ReferenceKind,
        query: &QueryMemory<T::Acc>,
        first: usize,
        at: [usize; 2],
        k: usize,
    ) {
        let p = self.rows.p;
        let n = p.samples();
        let of_head = k * n..(k + 1) * n;
        let Derivatives { xy: d_xy, att: d_att, reference, .. } = &mut *self.derivatives;
        let d_xy = &mut d_xy[2 * of_head.start..2 * of_head.end];
        let d_att = &mut d_att[of_head.clone()];
        let (start, end) = (first + of_head.start, first + of_head.end);
        let (att, xy) = (&query.att[start..end], &query.xy[2 * start..2 * end]);
        let head = self.heads.start + k;
        let mut mean = T::Acc::ZERO;
        for (&w, &d) in att.iter().zip(&*d_att) {
            mean += w * d;
        }
        for (&w, d) in att.iter().zip(d_att) {
            *d = w * (*d - mean);
        }
        let offsets = &self.rows.args.locations;
        let row = offsets.at([at[0], at[1], head]);
        let mut s = 0;
        for (l, sums) in reference.chunks_exact_mut(4).enumerate() {
            let [_, _, scale_x, scale_y] = self.rows.reference::<T>(at, l);
            for _ in 0..p.points()[l] {
                let finite = xy[2 * s].is_finite() && xy[2 * s + 1].is_finite();
                for (axis, scale) in [scale_x, scale_y].into_iter().enumerate() {
                    let d = &mut d_xy[2 * s + axis];
                    sums[axis] += *d;
                    if kind == ReferenceKind::Box && finite {
                        let raw = T::Acc::from_f64(offsets.data.get(row + 2 * s + axis));
                        sums[2 + axis] += *d * raw * self.rows.half_share::<T>(l);
                    }
                    *d = if finite { *d * scale } else { T::Acc::ZERO };
                }
                s += 1;
            }
        }
    }
}

/// For each sample and corner, the sum over channels of `row * gradient`. 0 off the map.
struct Dots<'a, T: Lane> {
    walk: Walk<'a, T::Acc>,
    plane: *const T,
    next: *const T,
    gradient: *const T::Acc,
    quads: *mut T::Acc,
    /// Of the value and of `quads`.
    bounds: [Bounds; 2],
}

impl<T: Lane> Block<T> for Dots<'_, T> {
    #[inline(always)]
    unsafe fn block<I: InstructionSet, const R: usize, const WHOLE: bool>(&mut self, c: usize, n: usize) {
        // SAFETY: the machine has `I`; the gradient is padded to whole registers.
        unsafe {
            let zero = T::R::<I>::splat(T::Acc::ZERO);
            let mut gradient = [zero; R];
            for r in 0..R {
                gradient[r] = T::R::<I>::load(self.gradient.add(c + r * T::R::<I>::LANES));
            }
            self.walk.run(&mut DotsBody::<I, T, R, WHOLE> {
                plane: self.plane.wrapping_add(c),
                next: self.next.wrapping_add(c),
                n,
                gradient,
                sums: [zero; 4],
                quads: self.quads,
                more: c > 0,
                bounds: self.bounds,
            });
        }
    }
}

struct DotsBody<I: InstructionSet, T: Lane, const R: usize, const WHOLE: bool> {
    plane: *const T,
    next: *const T,
    n: usize,
    gradient: [T::R<I>; R],
    sums: [T::R<I>; 4],
    quads: *mut T::Acc,
    /// Whether other channels came before.
    more: bool,
    bounds: [Bounds; 2],
}

impl<I: InstructionSet, T: Lane, const R: usize, const WHOLE: bool> Body<T::Acc>
    for DotsBody<I, T, R, WHOLE>
{
    const PREFETCH: Prefetch = Prefetch::Always;

    #[inline(always)]
    unsafe fn prefetch(&self, at: isize) {
        prefetch_row(self.next.wrapping_offset(at), R * T::R::<I>::LANES);
    }

    #[inline(always)]
    unsafe fn tap(&mut self, k: usize, at: isize, _: T::Acc) {
        let row = self.plane.wrapping_offset(at);
        self.bounds[0].debug_assert(row, self.n);
        // SAFETY: the machine has `I`, and the row of a tap on the map has `n` channels from here
        // on.
        unsafe {
            let row = load_block::<I, T, R, WHOLE>(row, self.n);
            for r in 0..R {
                self.sums[k] = row[r].mul_add(self.gradient[r], self.sums[k]);
            }
        }
    }

    #[inline(always)]
    unsafe fn end_sample(&mut self, s: usize) {
        let quad = self.quads.wrapping_add(s * T::R::<I>::QUAD);
        self.bounds[1].debug_assert(quad, T::R::<I>::QUAD);
        // SAFETY: the machine has `I`; there is a quad for each sample.
        unsafe {
            T::R::<I>::store_quad(self.sums, quad, self.more);
            self.sums = [T::R::<I>::splat(T::Acc::ZERO); 4];
        }
    }
}

/// Completes the dot products of `n` samples.
///
/// # Safety
/// The machine must have `I`. The lists must be padded to whole groups of four samples.
#[inline(always)]
unsafe fn sum_quads<I: InstructionSet, T: Lane>(quads: &[T::Acc], dots: &mut [Vec<T::Acc>; 4], n: usize) {
    let padded = n.next_multiple_of(4);
    debug_assert!(quads.len() >= padded * T::R::<I>::QUAD && dots.iter().all(|list| list.len() >= padded));
    let to = dots.each_mut().map(|list| list.as_mut_ptr());
    for s in (0..n).step_by(4) {
        let to = to.map(|list| list.wrapping_add(s));
        // SAFETY: the machine has `I`, and the lists are padded to whole groups.
        unsafe { T::R::<I>::sum_quads(quads.as_ptr().add(s * T::R::<I>::QUAD), to) };
    }
}

/// From dot products to the derivatives by location and weight of some samples of a query.
#[inline(always)]
fn differentiate<F: Float>(
    sampler: &Sampler<F>,
    query: &QueryMemory<F>,
    samples: Range<usize>,
    der: &mut Derivatives<F>,
) {
    let (n, taps) = (samples.len(), &query.taps);
    let (fx, fy) = (&taps.fx[samples.clone()], &taps.fy[samples.clone()]);
    let (att, mask) = (&query.att[samples.clone()], &taps.mask[samples.clone()]);
    let xy = &query.xy[2 * samples.start..2 * samples.end];
    let (sx, sy) = (&sampler.scale_x[..n], &sampler.scale_y[..n]);
    let [uls, urs, lls, lrs] = der.dots.each_ref().map(|list| &list[..n]);
    let (d_att, d_xy) = (&mut der.att[..n], &mut der.xy[..2 * n]);
    let smooth = sampler.is_smooth();
    for s in 0..n {
        let (ul, ur, ll, lr) = (uls[s], urs[s], lls[s], lrs[s]);
        let (right, below) = (fx[s], fy[s]);
        let (left, above) = (F::ONE - right, F::ONE - below);
        d_att[s] = above * (left * ul + right * ur) + below * (left * ll + right * lr);
        let dx = att[s] * sx[s] * (above * (ur - ul) + below * (lr - ll));
        let dy = att[s] * sy[s] * (left * (ll - ul) + right * (lr - ur));
        // Selected, not multiplied: a weight that is not finite has no effect where nothing is
        // read.
        let counts = smooth & (mask[s] != 0);
        d_xy[2 * s] = if counts { dx } else { F::ZERO };
        d_xy[2 * s + 1] = if counts { dy } else { F::ZERO };
    }
    if sampler.clamps() {
        // A clamped coordinate does not move the sample.
        for s in 0..n {
            let clamped = sampler.clamped(s, [xy[2 * s], xy[2 * s + 1]]);
            for axis in 0..2 {
                if clamped[axis] {
                    d_xy[2 * s + axis] = F::ZERO;
                }
            }
        }
    }
}
