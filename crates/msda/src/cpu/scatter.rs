//! The gradient of value: every query's gradient, added to the rows it read.
//!
//! Each task owns some rows of every level of one image and a few heads, and adds to them in the order of the queries.

use std::ops::Range;

use rayon::prelude::*;

use super::backward::padded;
use super::place::{Finder, Fixed, Place, Slots};
use super::rows::{Arithmetic, Rows, widen};
use super::simd::{InstructionSet, Kernel, Lane, MAX_LANES, Reg, load_part, prefetch_row, store_part};
use super::taps::{ALL_CORNERS, FAR, Grid, Sampler, Taps};
use super::{Call, Item, Next, Pool, Query, Shared, Visitor, pipeline};
use crate::buffer::Aligned;
use crate::dtype::Float;
use crate::op::{Tensor, offset};
use crate::problem::Problem;
use crate::view::Strides;

/// The most working memory a task takes for sums.
const SUMS_BYTES: usize = 4 << 20;

/// Where sums are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// Where they belong: they are few, and of the gradient's own type.
    InPlace,
    /// Those that are touched one after the other: they are few, and wider than the gradient.
    Touched,
    /// All of them, packed: nearly all are touched, many times.
    All,
}

impl Keep {
    fn choose<T: Lane>(p: &Problem) -> Self {
        // Few queries leave most of a plane untouched; many touch nearly all of it.
        let few = p.queries().saturating_mul(p.samples()) < p.positions();
        match few {
            true if T::DTYPE == T::Acc::DTYPE => Self::InPlace,
            // Which rows are touched is noted for every position of a head, in whatever part of it: at most a quarter of
            // what sums may take.
            true if p.positions() <= SUMS_BYTES / 4 / size_of::<u32>() => Self::Touched,
            _ => Self::All,
        }
    }

    /// Bytes of working memory for a position of one head.
    fn bytes<F: Arithmetic>(self, p: &Problem) -> usize {
        match self {
            Self::InPlace => 0,
            Self::Touched => Slots::<F>::bytes(p),
            Self::All => p.channels() * size_of::<F>(),
        }
    }
}

impl Call<'_> {
    pub(super) fn value_gradient<T: Lane>(
        &self,
        order: &[usize],
        upstream: Tensor<'_>,
        to: Shared<T>,
        strides: Strides,
    ) {
        let p = self.rows.p;
        let nothing = p.weights_len() == 0;
        let keep = Keep::choose::<T>(p);
        // All sums are written, whatever they are; what lies between the levels is not.
        let pixels = p.levels().iter().map(|level| level.h * level.w).sum::<usize>();
        if nothing || keep != Keep::All || pixels < p.positions() {
            zero(p, to, strides);
        }
        if nothing {
            return;
        }
        let bytes = keep.bytes::<T::Acc>(p);
        let parts = parts(p, bytes);
        let longest = parts.iter().map(|part| part.pixels(p)).max().unwrap_or(0);
        let group = heads_together(p, parts.len(), longest * bytes);
        let groups = p.heads().div_ceil(group);
        let pool = Pool::new(|| {
            let room = |wanted| if keep == wanted { group * longest } else { 0 };
            let heads = if keep == Keep::Touched { group } else { 0 };
            Scratch {
                packed: Aligned::filled(room(Keep::All) * p.channels(), T::Acc::ZERO),
                slots: Slots::new(p, heads, room(Keep::Touched), strides),
                memory: [Query::new(p, group), Query::new(p, group)],
                gradient: vec![T::Acc::ZERO; padded(p)],
            }
        });
        (0..p.batch() * groups * parts.len()).into_par_iter().with_max_len(1).for_each(|task| {
            let mut scratch = pool.take();
            let (place, part) = (task / parts.len(), &parts[task % parts.len()]);
            let (image, first) = (place / groups, place % groups * group);
            let heads = first..(first + group).min(p.heads());
            let Scratch { packed, slots, memory, gradient } = &mut scratch;
            let add = Add {
                call: self,
                order: &order[image * p.queries()..(image + 1) * p.queries()],
                upstream,
                heads: heads.clone(),
                memory,
                gradient,
            };
            let to = Shared(to.at(offset(strides, [image, 0, first])));
            match keep {
                Keep::InPlace => {
                    let place = Fixed { sums: to.0.cast(), apart: strides[2] };
                    add.run::<T, _>(part.grids(p, strides[1]), place);
                }
                Keep::Touched => {
                    add.run::<T, _>(part.grids(p, 1), &mut *slots);
                    self.isa.run(NarrowTouched { slots, channels: p.channels(), to });
                }
                Keep::All => {
                    let place = Fixed { sums: packed.as_mut_ptr(), apart: part.pixels(p) * p.channels() };
                    add.run::<T, _>(part.packed_grids(p), place);
                    self.isa.run(NarrowAll { p, part, sums: packed, to, strides, heads: heads.len() });
                }
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
    fn pixels(&self, p: &Problem) -> usize {
        self.rows.iter().zip(p.levels()).map(|(rows, level)| rows.len() * level.w).sum()
    }

    /// The part's rows where the gradient has them, with `stride` elements a position.
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

/// Divides the rows of every level: one part, unless there are too few images and heads for the threads, or the sums,
/// so many bytes a pixel, would take too much memory.
fn parts(p: &Problem, bytes: usize) -> Vec<Part> {
    let planes = (p.batch() * p.heads()).max(1);
    let divide = |n: usize| -> Vec<Part> {
        let rows = |k: usize| p.levels().iter().map(|l| l.h * k / n..l.h * (k + 1) / n).collect();
        (0..n).map(|k| Part { rows: rows(k) }).collect()
    };
    let tallest = p.levels().iter().map(|l| l.h).max().unwrap_or(1);
    let mut n = (2 * rayon::current_num_threads()).div_ceil(planes).min(tallest);
    loop {
        let parts = divide(n);
        let small = parts.iter().all(|part| part.pixels(p) * bytes <= SUMS_BYTES);
        if small || n >= tallest {
            return parts;
        }
        n = (2 * n).min(tallest);
    }
}

/// Working memory for the gradient of value. Sums are zero between tasks.
struct Scratch<F> {
    packed: Aligned<F>,
    slots: Slots<F>,
    memory: [Query<F>; 2],
    gradient: Vec<F>,
}

/// What a task adds, wherever the sums are.
struct Add<'a, F> {
    call: &'a Call<'a>,
    order: &'a [usize],
    upstream: Tensor<'a>,
    heads: Range<usize>,
    memory: &'a mut [Query<F>; 2],
    gradient: &'a mut [F],
}

impl<F: Arithmetic> Add<'_, F> {
    fn run<T: Lane<Acc = F>, P: Place<F>>(self, grids: Vec<Grid>, place: P) {
        let Self { call, order, upstream, heads, memory, gradient } = self;
        let (rows, first) = (call.rows, heads.start);
        let sampler = &Sampler::new(rows.p, grids, heads.len());
        let scatter = Scatter { rows, sampler, upstream, first, place, gradient };
        call.isa.run(ScatterPass::<T, P> { scatter, order, heads, memory });
    }
}

/// Adds the queries of one image and some heads to some rows of the value's gradient.
struct ScatterPass<'a, T: Lane, P: Place<T::Acc>> {
    scatter: Scatter<'a, T, P>,
    order: &'a [usize],
    heads: Range<usize>,
    memory: &'a mut [Query<T::Acc>; 2],
}

impl<T: Lane, P: Place<T::Acc>> Kernel for ScatterPass<'_, T, P> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(mut self) {
        let Scatter { rows, sampler, .. } = self.scatter;
        // SAFETY: the machine has `I`.
        unsafe { pipeline::<I, T>(&rows, sampler, self.order, self.heads, self.memory, &mut self.scatter) };
    }
}

struct Scatter<'a, T: Lane, P> {
    rows: Rows<'a>,
    sampler: &'a Sampler<T::Acc>,
    upstream: Tensor<'a>,
    /// The first of the heads.
    first: usize,
    place: P,
    /// The output's gradient, padded with zeros to whole registers.
    gradient: &'a mut [T::Acc],
}

impl<T: Lane, P: Place<T::Acc>> Visitor<T> for Scatter<'_, T, P> {
    #[inline(always)]
    unsafe fn visit<I: InstructionSet>(
        &mut self,
        at: [usize; 3],
        item: Item<'_, T::Acc>,
        next: Next<'_, T::Acc>,
    ) {
        let d = self.rows.p.channels();
        let next = next.and_then(|(at, taps)| {
            if let Some(upstream) = T::slice(&self.upstream.data) {
                prefetch_row(upstream.as_ptr().wrapping_add(self.upstream.at(at)), d);
            }
            Some((taps, self.place.ahead(at[2] - self.first)?))
        });
        let mut finder = self.place.open(at[2] - self.first);
        let lanes = T::R::<I>::LANES;
        // SAFETY: the machine has `I`; taps that count lie within the part's rows, which are this task's alone.
        unsafe {
            widen::<I, T>(&self.upstream.data, self.upstream.at(at), &mut self.gradient[..d]);
            let mut c = 0;
            while c + 2 * lanes <= d {
                self.add_block::<I, 2>(&mut finder, item.taps, next, c, 2 * lanes);
                c += 2 * lanes;
            }
            while c < d {
                let n = lanes.min(d - c);
                self.add_block::<I, 1>(&mut finder, item.taps, next, c, n);
                c += n;
            }
        }
        self.place.close(finder);
    }
}

impl<T: Lane, P: Place<T::Acc>> Scatter<'_, T, P> {
    /// Adds `weight * gradient` to `n` channels from `c` on of every tap's row; asks for the same of `next`.
    #[inline(always)]
    unsafe fn add_block<I: InstructionSet, const R: usize>(
        &self,
        finder: &mut P::Finder,
        taps: Taps<'_, T::Acc>,
        next: Option<(Taps<'_, T::Acc>, *const T::Acc)>,
        c: usize,
        n: usize,
    ) {
        let lanes = T::R::<I>::LANES;
        // SAFETY: the caller's; a sample's index is below the length of every list in `taps`.
        unsafe {
            let mut g = [T::R::<I>::splat(T::Acc::ZERO); R];
            for r in 0..R {
                g[r] = T::R::<I>::load(self.gradient.as_ptr().add(c + r * lanes));
            }
            for grid in &self.sampler.grids {
                let corners = grid.corners();
                for s in grid.samples.clone() {
                    if let Some((next, sums)) = next
                        && grid.far
                        && *next.mask.get_unchecked(s) != 0
                    {
                        let ahead = sums.wrapping_add(c).wrapping_offset(*next.at.get_unchecked(s));
                        for corner in corners {
                            prefetch_row(ahead.wrapping_offset(corner), R * lanes);
                        }
                    }
                    let at = *taps.at.get_unchecked(s);
                    let (mask, weight) = (*taps.mask.get_unchecked(s), taps.weight.get_unchecked(s));
                    if mask == ALL_CORNERS {
                        for k in 0..4 {
                            let row = finder.row(at.wrapping_add(corners[k]), c);
                            add_row::<T::R<I>, R>(row, g, weight[k], n);
                        }
                    } else if mask != 0 {
                        for k in 0..4 {
                            if mask & (1 << k) != 0 {
                                let row = finder.row(at.wrapping_add(corners[k]), c);
                                add_row::<T::R<I>, R>(row, g, weight[k], n);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Moves all sums of a part to the gradient.
struct NarrowAll<'a, T: Lane> {
    p: &'a Problem,
    part: &'a Part,
    sums: &'a mut [T::Acc],
    /// The gradient from the first of the heads on.
    to: Shared<T>,
    strides: Strides,
    heads: usize,
}

impl<T: Lane> Kernel for NarrowAll<'_, T> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(self) {
        let mut sums = self.sums.chunks_exact_mut(self.p.channels());
        for k in 0..self.heads {
            for (rows, level) in self.part.rows.iter().zip(self.p.levels()) {
                for y in rows.clone() {
                    let to = self.to.at(offset(self.strides, [0, level.position(y, 0), k]));
                    for (x, row) in (0..level.w).zip(&mut sums) {
                        // SAFETY: the machine has `I`; the row's place is checked and this task's alone.
                        unsafe { move_row::<I, T>(row, to.wrapping_add(x * self.strides[1])) };
                    }
                }
            }
        }
    }
}

/// Moves the sums that were touched to the gradient.
struct NarrowTouched<'a, T: Lane> {
    slots: &'a mut Slots<T::Acc>,
    channels: usize,
    /// The gradient from the first of the heads on.
    to: Shared<T>,
}

impl<T: Lane> Kernel for NarrowTouched<'_, T> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(self) {
        /// Rows to ask for early: about as many as a core waits for at a time.
        const AHEAD: usize = 16;
        let (whose, sums) = self.slots.touched();
        for (i, row) in sums.chunks_exact_mut(self.channels).enumerate() {
            if let Some(&later) = whose.get(i + AHEAD) {
                prefetch_row(self.to.at(later), self.channels);
            }
            // SAFETY: the machine has `I`; the row's place is checked and this task's alone.
            unsafe { move_row::<I, T>(row, self.to.at(whose[i])) };
        }
        self.slots.clear();
    }
}

/// Moves a row of sums to the gradient, rounded to its type, and leaves zeros.
///
/// # Safety
/// The machine must have `I`, and `to` must be valid for as many elements.
#[inline(always)]
unsafe fn move_row<I: InstructionSet, T: Lane>(from: &mut [T::Acc], to: *mut T) {
    let lanes = T::R::<I>::LANES;
    let mut c = 0;
    // SAFETY: the caller's.
    unsafe {
        let zero = T::R::<I>::splat(T::Acc::ZERO);
        while c + lanes <= from.len() {
            let sum = from.as_mut_ptr().add(c);
            T::store::<I>(T::R::<I>::load(sum), to.add(c));
            zero.store(sum);
            c += lanes;
        }
        if c < from.len() {
            let rest = &mut from[c..];
            T::store_part::<I>(load_part(rest.as_ptr(), rest.len()), to.add(c), rest.len());
            rest.fill(T::Acc::ZERO);
        }
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
