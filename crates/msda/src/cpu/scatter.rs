//! The gradient of value: every query's gradient, added to the rows it read.
//!
//! Each task owns some rows of every level of one image and a few heads, and adds to them in the order of the queries.

use std::ops::Range;

use rayon::prelude::*;

use super::backward::padded;
use super::rows::{Rows, widen};
use super::simd::{InstructionSet, Kernel, Lane, MAX_LANES, Reg, load_part, prefetch_row, store_part};
use super::taps::{ALL_CORNERS, FAR, Grid, Sampler, Taps};
use super::{Call, Item, Next, Pool, Query, Shared, Visitor, pipeline};
use crate::buffer::Aligned;
use crate::dtype::Float;
use crate::op::{Tensor, offset};
use crate::problem::Problem;
use crate::view::Strides;

/// The most working memory a task takes for sums that are wider than the gradient's type.
const SUMS_BYTES: usize = 4 << 20;

impl Call<'_> {
    pub(super) fn value_gradient<T: Lane>(
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

/// Makes every element of the value's gradient zero, rings and gaps included.
fn zero<T: Lane>(p: &Problem, to: Shared<T>, strides: Strides) {
    const CHUNK: usize = 1 << 15;
    let (b, s, h, d) = (p.batch(), p.positions(), p.heads(), p.channels());
    let n = p.value_len();
    if n == 0 {
        return;
    }
    let fill = |start: usize, n: usize| {
        // SAFETY: a checked stretch of the gradient, and no other task has it.
        unsafe { std::slice::from_raw_parts_mut(to.at(start), n) }.fill(T::default());
    };
    // No two rows share an element, so rows that span no more than their own elements leave no gap.
    if offset(strides, [b - 1, s - 1, h - 1]) + d == n {
        (0..n.div_ceil(CHUNK)).into_par_iter().for_each(|i| fill(i * CHUNK, CHUNK.min(n - i * CHUNK)));
    } else {
        let rows = (0..b * s * h).into_par_iter().with_min_len(1024);
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
