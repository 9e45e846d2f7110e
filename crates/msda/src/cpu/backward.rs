//! The backward pass, in two parts that share nothing but their inputs.
//!
//! Gradients of locations and weights belong to a query: each task takes a range of queries, reads the taps again
//! and takes their dot products with the output's gradient. The gradient of value belongs to a place: each task owns
//! a band of rows of one level, image and head, sums into memory of its own in the order of the queries, and writes
//! every element once. Neither needs atomics, and no bit depends on the number of threads.

use std::ops::Range;

use rayon::prelude::*;

use super::forward::ahead;
use super::rows::{Rows, RowsOut, widen};
use super::simd::{InstructionSet, Kernel, Lane, MAX_LANES, Reg, prefetch_row};
use super::taps::{ALL_CORNERS, Grid, Sampler, Taps};
use super::{Call, Item, Next, Shared, Visitor, for_each_chunk, pipeline};
use crate::buffer::Aligned;
use crate::dtype::Float;
use crate::op::{GradientStrides, Gradients, ReferenceKind, Tensor, offset};
use crate::problem::{Padding, Problem, Sampling};
use crate::view::Strides;

/// Working memory of a band: it should stay in the second-level cache.
const BAND_BYTES: usize = 768 << 10;

impl Call<'_> {
    pub(super) fn backward<T: Lane>(
        &self,
        upstream: Tensor<'_>,
        gradients: Gradients<'_>,
        strides: GradientStrides,
    ) {
        let Gradients { value, locations, weights, reference } = gradients;
        if let (Some(to), Some(strides)) = (value, strides.value) {
            let to = Shared(T::slice_mut(to.data).expect("checked").as_mut_ptr());
            self.value_gradient::<T>(upstream, to, strides);
        }
        let rows_out = |view: Option<crate::ViewMut<'_>>, strides: Option<Strides>| {
            view.zip(strides).map(|(view, strides)| (RowsOut::<T>::new(view.data), strides))
        };
        let to = CoordinateOut {
            locations: rows_out(locations, strides.locations),
            weights: rows_out(weights, strides.weights),
            reference: rows_out(reference, strides.reference),
        };
        if to.locations.is_some() || to.weights.is_some() || to.reference.is_some() {
            self.coordinate_gradients::<T>(upstream, to);
        }
    }

    fn coordinate_gradients<T: Lane>(&self, upstream: Tensor<'_>, to: CoordinateOut<T>) {
        let p = self.rows.p;
        if p.heads() == 0 {
            to.zero_reference(&self.rows);
            return;
        }
        let value = T::slice(&self.rows.args.value.data).expect("checked");
        let sampler = Sampler::new(p, self.value_grids());
        let scratch = || ([Item::new(p), Item::new(p)], Derivatives::new(p));
        for_each_chunk(&self.rows, scratch, |(items, derivatives), pairs| {
            let chain = Chain { rows: self.rows, sampler: &sampler, value, upstream, to, derivatives };
            self.isa.run(Coordinates { chain, pairs, items });
        });
    }

    fn value_gradient<T: Lane>(&self, upstream: Tensor<'_>, to: Shared<T>, strides: Strides) {
        let p = self.rows.p;
        let holes = holes(p);
        let bands = bands(p, size_of::<T::Acc>(), strides);
        let tasks = p.batch() * bands.len();
        let longest = bands.iter().map(|b| b.elements(p)).max().unwrap_or(0);
        let widest = bands.iter().map(|b| b.samples.len()).max().unwrap_or(0);
        let scratch = || Sums {
            sums: Aligned::filled(longest, T::Acc::ZERO),
            xy: vec![T::Acc::ZERO; 2 * widest.max(BLOCK)],
            att: vec![T::Acc::ZERO; widest.max(BLOCK)],
            softmax: vec![T::Acc::ZERO; p.samples()],
            taps: Taps::new(widest.max(BLOCK)),
            gradient: vec![T::Acc::ZERO; padded(p)],
        };
        (0..tasks).into_par_iter().with_max_len(1).for_each_init(scratch, |scratch, task| {
            let (image, band) = (task / bands.len(), &bands[task % bands.len()]);
            let queries = (BLOCK / band.samples.len().max(1)).max(1);
            let sampler = Sampler::new(p, vec![band.grid(p, queries * band.samples.len())]);
            let rows = self.rows;
            self.isa.run(Scatter {
                rows,
                upstream,
                band,
                sampler: &sampler,
                image,
                queries,
                scratch,
                to,
                strides,
            });
        });
        if !holes.is_empty() {
            (0..p.batch() * p.heads()).into_par_iter().for_each(|plane| {
                zero_holes(p, &holes, to, strides, plane / p.heads(), plane % p.heads());
            });
        }
    }
}

/// Channels of a row of working memory: whole registers of any instruction set.
fn padded(p: &Problem) -> usize {
    p.channels().next_multiple_of(MAX_LANES)
}

/// Some rows of a level, for some heads.
#[derive(Debug, Clone)]
struct Band {
    level: usize,
    samples: Range<usize>,
    rows: Range<usize>,
    heads: Range<usize>,
}

impl Band {
    fn elements(&self, p: &Problem) -> usize {
        self.rows.len() * p.levels()[self.level].w * self.heads.len() * padded(p)
    }

    /// The band's working memory as a kernel addresses it: rows, pixels, heads, channels.
    fn grid(&self, p: &Problem, samples: usize) -> Grid {
        let level = &p.levels()[self.level];
        let column = (self.heads.len() * padded(p)) as isize;
        let row = level.w as isize * column;
        Grid {
            w: level.w as i32,
            h: level.h as i32,
            origin: -(self.rows.start as isize * row),
            row,
            column,
            rows: self.rows.start as i32..self.rows.end as i32,
            samples: 0..samples,
        }
    }
}

/// Divides the value into bands: small enough for the cache, and enough of them for the threads.
///
/// Bands of one head are the tallest, so queries are looked at least often; bands of all heads are written in one
/// piece where heads lie side by side. Which costs less depends on how many queries there are.
fn bands(p: &Problem, size: usize, strides: Strides) -> Vec<Band> {
    // Rough costs, in cycles: looking whether a query has anything for a band, and writing to a far place.
    const LOOK: usize = 25;
    const FAR_WRITE: usize = 60;
    let heads_are_neighbours = strides[2] < strides[1];
    let choices = (0..).map(|i| 1 << i).take_while(|&g| g == 1 || (heads_are_neighbours && g <= p.heads()));
    choices
        .map(|group| divide(p, size, group))
        .min_by_key(|bands| {
            let looks: usize = bands.iter().map(|b| b.heads.len()).sum::<usize>() * p.queries();
            let writes: usize = bands.iter().map(|b| b.rows.len() * p.levels()[b.level].w).sum();
            looks.saturating_mul(LOOK).saturating_add(writes.saturating_mul(FAR_WRITE))
        })
        .unwrap_or_default()
}

/// Bands of up to `group` heads.
fn divide(p: &Problem, size: usize, group: usize) -> Vec<Band> {
    let groups = p.heads().div_ceil(group);
    let wanted = (4 * rayon::current_num_threads()).div_ceil((p.batch() * groups * p.levels().len()).max(1));
    let mut bands = Vec::new();
    let mut first = 0;
    for (l, level) in p.levels().iter().enumerate() {
        let samples = first..first + p.points()[l];
        first = samples.end;
        let fit = (BAND_BYTES / (level.w * group * padded(p) * size)).max(1);
        let parts = level.h.div_ceil(fit).max(wanted.min(level.h));
        let height = level.h.div_ceil(parts);
        for start in (0..level.h).step_by(height) {
            for head in (0..p.heads()).step_by(group) {
                let rows = start..(start + height).min(level.h);
                let heads = head..(head + group).min(p.heads());
                bands.push(Band { level: l, samples: samples.clone(), rows, heads });
            }
        }
    }
    bands
}

/// Positions that belong to no level: rings, and gaps between levels.
fn holes(p: &Problem) -> Vec<Range<usize>> {
    let mut covered: Vec<Range<usize>> =
        p.levels().iter().flat_map(|l| (0..l.h).map(|y| l.position(y, 0)..l.position(y, 0) + l.w)).collect();
    covered.sort_unstable_by_key(|r| r.start);
    let mut holes = Vec::new();
    let mut next = 0;
    for r in covered {
        if r.start > next {
            holes.push(next..r.start);
        }
        next = r.end;
    }
    if next < p.positions() {
        holes.push(next..p.positions());
    }
    holes
}

fn zero_holes<T: Lane>(
    p: &Problem,
    holes: &[Range<usize>],
    to: Shared<T>,
    strides: Strides,
    image: usize,
    head: usize,
) {
    for position in holes.iter().cloned().flatten() {
        let row = offset(strides, [image, position, head]);
        for c in 0..p.channels() {
            // SAFETY: a checked row of the gradient; no band covers it, and no other task has this plane's holes.
            unsafe { *to.0.add(row + c) = T::default() };
        }
    }
}

/// Samples that are located at a time: enough to fill vector registers.
const BLOCK: usize = 64;

/// Working memory for a band.
struct Sums<F> {
    sums: Aligned<F>,
    /// Locations and weights of a few queries' samples of one level.
    xy: Vec<F>,
    att: Vec<F>,
    /// All weights of one query, in the fused form.
    softmax: Vec<F>,
    taps: Taps<F>,
    /// The output's gradient, padded with zeros to whole registers.
    gradient: Vec<F>,
}

/// The value gradient of one band of one image.
struct Scatter<'a, T: Lane> {
    rows: Rows<'a>,
    upstream: Tensor<'a>,
    band: &'a Band,
    sampler: &'a Sampler<T::Acc>,
    image: usize,
    /// Queries looked at together.
    queries: usize,
    scratch: &'a mut Sums<T::Acc>,
    to: Shared<T>,
    strides: Strides,
}

impl<T: Lane> Kernel for Scatter<'_, T> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(self) {
        let (p, band) = (self.rows.p, self.band);
        let points = band.samples.len();
        let Sums { sums, xy, att, softmax, taps, gradient } = &mut *self.scratch;
        let sums = &mut sums[..band.elements(p)];
        sums.fill(T::Acc::ZERO);
        let queries = if points == 0 { 0 } else { p.queries() };
        for first in (0..queries).step_by(self.queries) {
            let block = first..(first + self.queries).min(queries);
            for head in band.heads.clone() {
                for (i, query) in block.clone().enumerate() {
                    let at = [self.image, query, head];
                    let (xy, att) = (&mut xy[2 * i * points..], &mut att[i * points..]);
                    // SAFETY: the machine has `I`.
                    unsafe {
                        self.rows.fill_level::<I, T>(at, band.level, band.samples.clone(), xy, att, softmax)
                    };
                }
                taps.locate(self.sampler, xy, att);
                let start = (head - band.heads.start) * padded(p);
                for (i, query) in block.clone().enumerate() {
                    let samples = i * points..(i + 1) * points;
                    if taps.mask[samples.clone()].iter().fold(0, |any, m| any | m) == 0 {
                        continue;
                    }
                    let from = self.upstream.at([self.image, query, head]);
                    // SAFETY: the machine has `I`; taps that count lie within the band, whose rows are whole
                    // registers.
                    unsafe {
                        widen::<I, T>(&self.upstream.data, from, &mut gradient[..p.channels()]);
                        let sums = sums[start..].as_mut_ptr();
                        add_to_rows::<I, T>(sums, &self.sampler.grids[0], taps, samples, gradient);
                    }
                }
            }
        }
        // SAFETY: the machine has `I`; the band's rows of the gradient are this task's alone.
        unsafe { self.write::<I>() };
    }
}

impl<T: Lane> Scatter<'_, T> {
    #[inline(always)]
    unsafe fn write<I: InstructionSet>(&self) {
        let (p, band) = (self.rows.p, self.band);
        let (d, level, lanes) = (p.channels(), &p.levels()[band.level], T::R::<I>::LANES);
        let mut from = self.scratch.sums.as_ptr();
        for y in band.rows.clone() {
            for x in 0..level.w {
                for head in band.heads.clone() {
                    let row = offset(self.strides, [self.image, level.position(y, x), head]);
                    let mut c = 0;
                    // SAFETY: the caller's; `sums` holds a padded row for each pixel and head of the band.
                    unsafe {
                        let to = self.to.0.add(row);
                        while c + lanes <= d {
                            T::store::<I>(T::R::<I>::load(from.add(c)), to.add(c));
                            c += lanes;
                        }
                        if c < d {
                            T::store_part::<I>(T::R::<I>::load(from.add(c)), to.add(c), d - c);
                        }
                        from = from.add(padded(p));
                    }
                }
            }
        }
    }
}

/// Adds `weight * gradient` to the row of every tap.
///
/// # Safety
/// The machine must have `I`; the taps must lie within `sums`, and `gradient` must be whole registers.
#[inline(always)]
unsafe fn add_to_rows<I: InstructionSet, T: Lane>(
    sums: *mut T::Acc,
    grid: &Grid,
    taps: &Taps<T::Acc>,
    samples: Range<usize>,
    gradient: &[T::Acc],
) {
    let lanes = T::R::<I>::LANES;
    // SAFETY: the caller's.
    unsafe {
        let mut c = 0;
        while c + 2 * lanes <= gradient.len() {
            add_block::<I, T, 2>(sums.add(c), grid, taps, samples.clone(), gradient.as_ptr().add(c));
            c += 2 * lanes;
        }
        while c < gradient.len() {
            add_block::<I, T, 1>(sums.add(c), grid, taps, samples.clone(), gradient.as_ptr().add(c));
            c += lanes;
        }
    }
}

#[inline(always)]
unsafe fn add_block<I: InstructionSet, T: Lane, const R: usize>(
    sums: *mut T::Acc,
    grid: &Grid,
    taps: &Taps<T::Acc>,
    samples: Range<usize>,
    gradient: *const T::Acc,
) {
    let lanes = T::R::<I>::LANES;
    let corners = grid.corners();
    // SAFETY: the caller's.
    unsafe {
        let mut g = [T::R::<I>::splat(T::Acc::ZERO); R];
        for r in 0..R {
            g[r] = T::R::<I>::load(gradient.add(r * lanes));
        }
        for s in samples {
            let at = sums.wrapping_offset(*taps.at.get_unchecked(s));
            let (mask, weight) = (*taps.mask.get_unchecked(s), taps.weight.get_unchecked(s));
            for k in 0..4 {
                if mask & (1 << k) == 0 {
                    continue;
                }
                let row = at.wrapping_offset(corners[k]);
                let w = T::R::<I>::splat(weight[k]);
                for r in 0..R {
                    let to = row.add(r * lanes);
                    g[r].mul_add(w, T::R::<I>::load(to)).store(to);
                }
            }
        }
    }
}

/// Where the gradients of locations, weights and reference points go, where wanted.
#[derive(Clone, Copy)]
struct CoordinateOut<T> {
    locations: Option<(RowsOut<T>, Strides)>,
    weights: Option<(RowsOut<T>, Strides)>,
    reference: Option<(RowsOut<T>, Strides)>,
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
    pairs: &'a [u32],
    items: &'a mut [Item<T::Acc>; 2],
}

impl<T: Lane> Kernel for Coordinates<'_, T> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(mut self) {
        let Chain { rows, sampler, .. } = self.chain;
        // SAFETY: the machine has `I`.
        unsafe { pipeline::<I, T>(&rows, sampler, self.pairs, self.items, &mut self.chain) };
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
        item: &Item<T::Acc>,
        next: Next<'_, T::Acc>,
    ) {
        let (p, rows, der) = (self.rows.p, &self.rows, &mut *self.derivatives);
        let next = ahead(rows, self.value, next);
        let plane = self.value.as_ptr().wrapping_add(rows.plane(at));
        // SAFETY: the machine has `I`; the item's taps lie within the value.
        unsafe {
            widen::<I, T>(&self.upstream.data, self.upstream.at(at), &mut der.gradient[..p.channels()]);
            dots::<I, T>(p.channels(), self.sampler, &item.taps, plane, next, &der.gradient, &mut der.dots);
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
///
/// # Safety
/// The machine must have `I`, and the taps must lie within the value `plane` points into.
#[inline(always)]
unsafe fn dots<I: InstructionSet, T: Lane>(
    d: usize,
    sampler: &Sampler<T::Acc>,
    taps: &Taps<T::Acc>,
    plane: *const T,
    next: Option<(&Taps<T::Acc>, *const T)>,
    gradient: &[T::Acc],
    dots: &mut [T::Acc],
) {
    let lanes = T::R::<I>::LANES;
    // SAFETY: the caller's; the gradient is padded to whole registers.
    unsafe {
        let zero = T::R::<I>::splat(T::Acc::ZERO);
        for g in &sampler.grids {
            let corners = g.corners();
            for s in g.samples.clone() {
                if let Some((next, plane)) = next {
                    for corner in corners {
                        prefetch_row(plane.wrapping_offset(next.at[s]).wrapping_offset(corner), d);
                    }
                }
                let mask = taps.mask[s];
                let at = plane.wrapping_offset(taps.at[s]);
                let mut sums = [zero; 4];
                if mask == ALL_CORNERS {
                    let mut c = 0;
                    while c + lanes <= d {
                        let gradient = T::R::<I>::load(gradient.as_ptr().add(c));
                        for k in 0..4 {
                            let row = at.wrapping_offset(corners[k]).add(c);
                            sums[k] = T::load::<I>(row).mul_add(gradient, sums[k]);
                        }
                        c += lanes;
                    }
                    if c < d {
                        let gradient = T::R::<I>::load(gradient.as_ptr().add(c));
                        for k in 0..4 {
                            let row = at.wrapping_offset(corners[k]).add(c);
                            sums[k] = T::load_part::<I>(row, d - c).mul_add(gradient, sums[k]);
                        }
                    }
                } else if mask != 0 {
                    for k in 0..4 {
                        let mut c = if mask & (1 << k) == 0 { d } else { 0 };
                        while c < d {
                            let n = lanes.min(d - c);
                            let gradient = T::R::<I>::load(gradient.as_ptr().add(c));
                            let row = at.wrapping_offset(corners[k]).wrapping_add(c);
                            let v = if n == lanes { T::load::<I>(row) } else { T::load_part::<I>(row, n) };
                            sums[k] = v.mul_add(gradient, sums[k]);
                            c += n;
                        }
                    }
                }
                dots[4 * s..4 * s + 4].copy_from_slice(&T::R::<I>::sum4(sums));
            }
        }
    }
}

/// From dot products to the derivatives by location and weight of every sample.
#[inline(always)]
fn differentiate<F: Float>(p: &Problem, sampler: &Sampler<F>, item: &Item<F>, der: &mut Derivatives<F>) {
    let n = p.samples();
    let (fx, fy, att) = (&item.taps.fx[..n], &item.taps.fy[..n], &item.att[..n]);
    let (sx, sy) = (&sampler.scale_x[..n], &sampler.scale_y[..n]);
    let (dots, d_att, d_xy) = (&der.dots[..4 * n], &mut der.att[..n], &mut der.xy[..2 * n]);
    let slope = F::from_f64(if p.sampling() == Sampling::Nearest { 0.0 } else { 1.0 });
    for s in 0..n {
        let (ul, ur, ll, lr) = (dots[4 * s], dots[4 * s + 1], dots[4 * s + 2], dots[4 * s + 3]);
        let (right, below) = (fx[s], fy[s]);
        let (left, above) = (F::ONE - right, F::ONE - below);
        d_att[s] = above * (left * ul + right * ur) + below * (left * ll + right * lr);
        d_xy[2 * s] = slope * att[s] * sx[s] * (above * (ur - ul) + below * (lr - ll));
        d_xy[2 * s + 1] = slope * att[s] * sy[s] * (left * (ll - ul) + right * (lr - ur));
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
    item: &Item<T::Acc>,
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
        let [_, _, scale_x, scale_y] = rows.reference::<T>(at, l);
        for _ in 0..p.points()[l] {
            for (axis, scale) in [scale_x, scale_y].into_iter().enumerate() {
                let d = &mut der.xy[2 * s + axis];
                sums[axis] += *d;
                let finite = item.xy[2 * s].is_finite() && item.xy[2 * s + 1].is_finite();
                if kind == ReferenceKind::Box && finite {
                    let raw = T::Acc::from_f64(offsets.data.get(row + 2 * s + axis));
                    sums[2 + axis] += *d * raw * rows.half_share::<T>(l);
                }
                *d = *d * scale;
            }
            s += 1;
        }
    }
}
