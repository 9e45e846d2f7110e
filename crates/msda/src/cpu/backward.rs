//! The backward pass, in two parts that share nothing but their inputs.
//!
//! Gradients of locations and weights belong to a query: each task takes some queries, reads the taps again and takes
//! their dot products with the output's gradient. The gradient of value belongs to a place: each task owns some rows
//! of every level of one image and head, and adds to them in the order of the queries. Neither needs atomics, and no
//! bit depends on the number of threads.

use std::ops::Range;

use rayon::prelude::*;

use super::forward::ahead;
use super::order;
use super::rows::{Rows, RowsOut, widen};
use super::simd::{InstructionSet, Kernel, Lane, MAX_LANES, Reg, load_part, prefetch_row, store_part};
use super::taps::{ALL_CORNERS, FAR, Grid, Sampler, Taps};
use super::{Call, Item, Next, Pool, Query, Shared, Visitor, for_each_chunk, pipeline};
use crate::buffer::Aligned;
use crate::dtype::Float;
use crate::op::{GradientStrides, Gradients, ReferenceKind, Tensor, offset};
use crate::problem::{Padding, Problem, Sampling};
use crate::view::{Role, Strides};

/// The most working memory a task takes for sums that are wider than the gradient's type.
const SUMS_BYTES: usize = 4 << 20;

impl Call<'_> {
    pub(super) fn backward<T: Lane>(
        &self,
        upstream: Tensor<'_>,
        gradients: Gradients<'_>,
        strides: GradientStrides,
    ) {
        let Gradients { value, locations, weights, reference } = gradients;
        let order = if self.rows.p.output_len() == 0 { Vec::new() } else { order::queries(&self.rows) };
        if let (Some(to), Some(strides)) = (value, strides.value) {
            let to = Shared(T::slice_mut(to.data).expect("checked").as_mut_ptr());
            self.value_gradient::<T>(&order, upstream, to, strides);
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
            self.coordinate_gradients::<T>(&order, upstream, to);
        }
    }

    fn coordinate_gradients<T: Lane>(&self, order: &[usize], upstream: Tensor<'_>, to: CoordinateOut<T>) {
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

    fn value_gradient<T: Lane>(
        &self,
        order: &[usize],
        upstream: Tensor<'_>,
        to: Shared<T>,
        strides: Strides,
    ) {
        let p = self.rows.p;
        zero(p, to, strides);
        if p.weights_len() == 0 {
            return;
        }
        // Few queries leave most of a plane untouched; many touch nearly all of it.
        let sparse = p.queries().saturating_mul(p.samples()) < p.positions();
        let direct = sparse && T::DTYPE == T::Acc::DTYPE;
        let parts = parts(p, direct, size_of::<T::Acc>());
        let longest = if direct { 0 } else { parts.iter().map(|part| part.elements(p)).max().unwrap_or(0) };
        let group = heads_together(p, parts.len(), longest * size_of::<T::Acc>());
        let groups = p.heads().div_ceil(group);
        let pool = Pool::new(|| Scratch {
            sums: Aligned::filled(group * longest, T::Acc::ZERO),
            touched: vec![false; ((group * longest) >> touched_bits(p)) + 1],
            memory: [Query::new(p, group), Query::new(p, group)],
            gradient: vec![T::Acc::ZERO; padded(p)],
        });
        (0..p.batch() * groups * parts.len()).into_par_iter().with_max_len(1).for_each(|task| {
            let mut scratch = pool.take();
            let (place, part) = (task / parts.len(), &parts[task % parts.len()]);
            let (image, first) = (place / groups, place % groups * group);
            let heads = first..(first + group).min(p.heads());
            let grids = if direct { part.grids(p, strides[1]) } else { part.packed_grids(p) };
            let sampler = Sampler::new(p, grids, heads.len());
            let Scratch { sums: packed, touched, memory, gradient } = &mut scratch;
            // Few sums, of the gradient's own type, are made where they belong; many in memory that stays near.
            let (sums, apart) = match direct {
                true => (to.at(offset(strides, [image, 0, first])).cast(), strides[2]),
                false => (packed.as_mut_ptr(), part.elements(p)),
            };
            let rows = self.rows;
            let order = &order[image * p.queries()..(image + 1) * p.queries()];
            let marks = if !direct && sparse { touched.as_mut_slice() } else { &mut [] };
            let scatter =
                Scatter { rows, sampler: &sampler, upstream, first, sums, apart, touched: marks, gradient };
            self.isa.run(ScatterPass::<T> { scatter, order, heads: heads.clone(), memory });
            if !direct {
                if !sparse {
                    touched.fill(true);
                }
                self.isa.run(Narrow::<T> { p, part, sums: packed, touched, to, strides, image, heads });
            }
            pool.put(scratch);
        });
    }
}

/// Heads that a task takes together: with few points, enough to fill vector registers with samples; but the threads
/// must all have something to do, and the sums, so many bytes a head, must stay small.
fn heads_together(p: &Problem, parts: usize, bytes: usize) -> usize {
    let fill = MAX_LANES / p.samples().max(1);
    let share = p.batch() * p.heads() * parts / (2 * rayon::current_num_threads());
    let fit = SUMS_BYTES / bytes.max(1);
    fill.min(share).min(fit).clamp(1, p.heads().max(1))
}

/// Channels of the output's gradient in working memory: whole registers of any instruction set.
fn padded(p: &Problem) -> usize {
    p.channels().next_multiple_of(MAX_LANES)
}

/// Makes every element of the value's gradient zero, rings and gaps included.
fn zero<T: Lane>(p: &Problem, to: Shared<T>, strides: Strides) {
    const CHUNK: usize = 1 << 15;
    let (s, h, d) = (p.positions(), p.heads(), p.channels());
    let fill = |start: usize, n: usize| {
        // SAFETY: a checked stretch of the gradient, and no other task has it.
        unsafe { std::slice::from_raw_parts_mut(to.at(start), n) }.fill(T::default());
    };
    if strides == Role::Value.dense(p) {
        let n = p.value_len();
        (0..n.div_ceil(CHUNK)).into_par_iter().for_each(|i| fill(i * CHUNK, CHUNK.min(n - i * CHUNK)));
    } else {
        let rows = (0..p.batch() * s * h).into_par_iter().with_min_len(1024);
        rows.for_each(|row| fill(offset(strides, [row / (s * h), row / h % s, row % h]), d));
    }
}

/// Some rows of every level.
#[derive(Debug)]
struct Part {
    rows: Vec<Range<usize>>,
}

impl Part {
    /// Elements of the part's rows, packed.
    fn elements(&self, p: &Problem) -> usize {
        self.rows.iter().zip(p.levels()).map(|(rows, level)| rows.len() * level.w).sum::<usize>()
            * p.channels()
    }

    /// The part's rows where the gradient has them, `stride` elements a position.
    fn grids(&self, p: &Problem, stride: usize) -> Vec<Grid> {
        self.each(p, |l, _| {
            let level = &p.levels()[l];
            (level.origin as isize * stride as isize, level.pitch * stride, stride)
        })
    }

    /// The part's rows one after the other.
    fn packed_grids(&self, p: &Problem) -> Vec<Grid> {
        self.each(p, |l, first| {
            let row = p.levels()[l].w * p.channels();
            (first as isize - (self.rows[l].start * row) as isize, row, p.channels())
        })
    }

    /// One grid a level; `place` gives origin, row and column of a level whose packed rows begin at an element.
    fn each(&self, p: &Problem, place: impl Fn(usize, usize) -> (isize, usize, usize)) -> Vec<Grid> {
        let (mut samples, mut first) = (0, 0);
        let mut grids = Vec::with_capacity(self.rows.len());
        for (l, rows) in self.rows.iter().enumerate() {
            let level = &p.levels()[l];
            let (origin, row, column) = place(l, first);
            grids.push(Grid {
                w: level.w as i32,
                h: level.h as i32,
                origin,
                row: row as isize,
                column: column as isize,
                rows: rows.start as i32..rows.end as i32,
                samples: samples..samples + p.points()[l],
                far: level.h * row * size_of::<f32>() > FAR,
            });
            samples += p.points()[l];
            first += rows.len() * level.w * p.channels();
        }
        grids
    }
}

/// Divides the rows of every level: one part, unless there are too few images and heads for the threads, or the sums
/// would take too much memory.
fn parts(p: &Problem, direct: bool, size: usize) -> Vec<Part> {
    let planes = (p.batch() * p.heads()).max(1);
    let divide = |n: usize| -> Vec<Part> {
        let rows = |k: usize| p.levels().iter().map(|l| l.h * k / n..l.h * (k + 1) / n).collect();
        (0..n).map(|k| Part { rows: rows(k) }).collect()
    };
    let tallest = p.levels().iter().map(|l| l.h).max().unwrap_or(1);
    let mut n = (2 * rayon::current_num_threads()).div_ceil(planes).min(tallest);
    loop {
        let parts = divide(n);
        let small = parts.iter().all(|part| part.elements(p) * size <= SUMS_BYTES);
        if direct || small || n >= tallest {
            return parts;
        }
        n = (2 * n).min(tallest);
    }
}

/// Rows of sums are noted as touched, so that few queries leave little to write: by the block of two to this power in
/// which their first element lies. Rows are no shorter, so no two share a block.
fn touched_bits(p: &Problem) -> u32 {
    p.channels().ilog2()
}

/// Working memory for the gradient of value. Sums that are not touched are zero.
struct Scratch<F> {
    sums: Aligned<F>,
    touched: Vec<bool>,
    memory: [Query<F>; 2],
    gradient: Vec<F>,
}

/// Adds the queries of one image and some heads to some rows of the value's gradient.
struct ScatterPass<'a, T: Lane> {
    scatter: Scatter<'a, T>,
    order: &'a [usize],
    heads: Range<usize>,
    memory: &'a mut [Query<T::Acc>; 2],
}

impl<T: Lane> Kernel for ScatterPass<'_, T> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(mut self) {
        let Scatter { rows, sampler, .. } = self.scatter;
        // SAFETY: the machine has `I`.
        unsafe { pipeline::<I, T>(&rows, sampler, self.order, self.heads, self.memory, &mut self.scatter) };
    }
}

struct Scatter<'a, T: Lane> {
    rows: Rows<'a>,
    sampler: &'a Sampler<T::Acc>,
    upstream: Tensor<'a>,
    /// The first head, where its sums begin, and how far on the next head's do.
    first: usize,
    sums: *mut T::Acc,
    apart: usize,
    /// A mark for each row of the sums; empty when nobody asks.
    touched: &'a mut [bool],
    /// The output's gradient, padded with zeros to whole registers.
    gradient: &'a mut [T::Acc],
}

impl<T: Lane> Visitor<T> for Scatter<'_, T> {
    #[inline(always)]
    unsafe fn visit<I: InstructionSet>(
        &mut self,
        at: [usize; 3],
        item: Item<'_, T::Acc>,
        next: Next<'_, T::Acc>,
    ) {
        let d = self.rows.p.channels();
        let start = |at: [usize; 3]| (at[2] - self.first) * self.apart;
        let here = (item.taps, start(at));
        let next = match next {
            Some((at, taps)) => {
                if let Some(upstream) = T::slice(&self.upstream.data) {
                    prefetch_row(upstream.as_ptr().wrapping_add(self.upstream.at(at)), d);
                }
                (taps, start(at))
            }
            None => here,
        };
        if !self.touched.is_empty() {
            self.touch(here);
        }
        let lanes = T::R::<I>::LANES;
        // SAFETY: the machine has `I`; taps that count lie within the part's rows, which are this task's alone.
        unsafe {
            widen::<I, T>(&self.upstream.data, self.upstream.at(at), &mut self.gradient[..d]);
            let mut c = 0;
            while c + 2 * lanes <= d {
                self.add_block::<I, 2>(here, next, c, 2 * lanes);
                c += 2 * lanes;
            }
            while c < d {
                let n = lanes.min(d - c);
                self.add_block::<I, 1>(here, next, c, n);
                c += n;
            }
        }
    }
}

impl<T: Lane> Scatter<'_, T> {
    /// Marks every tap's row.
    #[inline(always)]
    fn touch(&mut self, (taps, start): (Taps<'_, T::Acc>, usize)) {
        let bits = touched_bits(self.rows.p);
        for grid in &self.sampler.grids {
            let corners = grid.corners();
            for s in grid.samples.clone() {
                for k in 0..4 {
                    if taps.mask[s] & (1 << k) != 0 {
                        let row = start + (taps.at[s] + corners[k]) as usize;
                        self.touched[row >> bits] = true;
                    }
                }
            }
        }
    }

    /// Adds `weight * gradient` to `n` channels from `c` on of every tap's row; asks for the same of `next`.
    #[inline(always)]
    unsafe fn add_block<I: InstructionSet, const R: usize>(
        &mut self,
        (taps, start): (Taps<'_, T::Acc>, usize),
        (next, next_start): (Taps<'_, T::Acc>, usize),
        c: usize,
        n: usize,
    ) {
        let lanes = T::R::<I>::LANES;
        let (sums, next_sums) = (self.sums.wrapping_add(start + c), self.sums.wrapping_add(next_start + c));
        // SAFETY: the caller's; a sample's index is below the length of every list in `taps`.
        unsafe {
            let mut g = [T::R::<I>::splat(T::Acc::ZERO); R];
            for r in 0..R {
                g[r] = T::R::<I>::load(self.gradient.as_ptr().add(c + r * lanes));
            }
            for grid in &self.sampler.grids {
                let corners = grid.corners();
                for s in grid.samples.clone() {
                    if grid.far && *next.mask.get_unchecked(s) != 0 {
                        let ahead = next_sums.wrapping_offset(*next.at.get_unchecked(s));
                        for corner in corners {
                            prefetch_row(ahead.wrapping_offset(corner), R * lanes);
                        }
                    }
                    let at = sums.wrapping_offset(*taps.at.get_unchecked(s));
                    let (mask, weight) = (*taps.mask.get_unchecked(s), taps.weight.get_unchecked(s));
                    if mask == ALL_CORNERS {
                        for k in 0..4 {
                            add_row::<T::R<I>, R>(at.wrapping_offset(corners[k]), g, weight[k], n);
                        }
                    } else if mask != 0 {
                        for k in 0..4 {
                            if mask & (1 << k) != 0 {
                                add_row::<T::R<I>, R>(at.wrapping_offset(corners[k]), g, weight[k], n);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Rounds the touched sums of a part to the gradient's type, writes them where they belong, and makes them zero again.
struct Narrow<'a, T: Lane> {
    p: &'a Problem,
    part: &'a Part,
    sums: &'a mut [T::Acc],
    touched: &'a mut [bool],
    to: Shared<T>,
    strides: Strides,
    image: usize,
    heads: Range<usize>,
}

impl<T: Lane> Kernel for Narrow<'_, T> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(self) {
        let (d, bits) = (self.p.channels(), touched_bits(self.p));
        let mut first = 0;
        for head in self.heads {
            for (rows, level) in self.part.rows.iter().zip(self.p.levels()) {
                for y in rows.clone() {
                    for x in 0..level.w {
                        if std::mem::take(&mut self.touched[first >> bits]) {
                            let to =
                                self.to.at(offset(self.strides, [self.image, level.position(y, x), head]));
                            let row = &mut self.sums[first..first + d];
                            // SAFETY: the machine has `I`; the row's place is checked and this task's alone.
                            unsafe { narrow_row::<I, T>(row, to) };
                            row.fill(T::Acc::ZERO);
                        }
                        first += d;
                    }
                }
            }
        }
    }
}

/// Rounds a row of sums to the gradient's type.
///
/// # Safety
/// The machine must have `I`, and `to` must be valid for as many elements.
#[inline(always)]
unsafe fn narrow_row<I: InstructionSet, T: Lane>(from: &[T::Acc], to: *mut T) {
    let lanes = T::R::<I>::LANES;
    let mut c = 0;
    while c < from.len() {
        let n = lanes.min(from.len() - c);
        // SAFETY: the caller's.
        unsafe {
            if n == lanes {
                T::store::<I>(T::R::<I>::load(from.as_ptr().add(c)), to.add(c));
            } else {
                T::store_part::<I>(load_part(from.as_ptr().add(c), n), to.add(c), n);
            }
        }
        c += n;
    }
}

/// `row += weight * gradient` for `n` channels, `R` registers; only with `R` = 1 may they be fewer.
///
/// # Safety
/// The machine must have the registers, and `row` must be valid for `n` elements.
#[inline(always)]
unsafe fn add_row<V: Reg, const R: usize>(
    row: *mut V::Scalar,
    gradient: [V; R],
    weight: V::Scalar,
    n: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let w = V::splat(weight);
        if R == 1 && n < V::LANES {
            let sum: V = load_part(row, n);
            store_part(gradient[0].mul_add(w, sum), row, n);
            return;
        }
        for r in 0..R {
            let to = row.add(r * V::LANES);
            gradient[r].mul_add(w, V::load(to)).store(to);
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
            dots::<I, T>(p.channels(), self.sampler, item.taps, plane, next, &der.gradient, &mut der.dots);
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
    taps: Taps<'_, T::Acc>,
    plane: *const T,
    next: Option<(Taps<'_, T::Acc>, *const T)>,
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
                if let Some((next, plane)) = next
                    && g.far
                {
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
fn differentiate<F: Float>(p: &Problem, sampler: &Sampler<F>, item: Item<'_, F>, der: &mut Derivatives<F>) {
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
                *d = *d * scale;
            }
            s += 1;
        }
    }
}
