//! From sampling locations to weighted rows: the pixel of each sample, which of its four corners
//! are on the map, and their weights.
//!
//! Everything about a sample that does not depend on the channel is computed here, once, in loops
//! over all samples of a query that the compiler vectorises.

use std::marker::PhantomData;
use std::ops::Range;

use super::bounds::Bounds;
use super::parts::Part;
use super::query::batch;
use super::rows::Arithmetic;
use crate::dtype::Float;
use crate::problem::{Level, Padding, Problem, Sampling};

/// The addresses of a level's pixels: pixel `(y, x)` is element `origin + y * row + x * column`.
#[derive(Debug, Clone)]
pub(super) struct Grid {
    pub(super) origin: isize,
    pub(super) row: isize,
    pub(super) column: isize,
    /// Whether the level is too large for L2. Its rows are then prefetched.
    pub(super) far: bool,
}

/// A level larger than this, in bytes from its first row to its last, is far.
pub(super) const FAR: usize = 1 << 19;

impl Grid {
    /// The offset of each corner from the upper left one.
    #[inline(always)]
    fn corners(&self) -> [isize; 4] {
        [0, self.column, self.row, self.row + self.column]
    }
}

/// The addresses of a tensor's pixels, by level and by sample.
#[derive(Debug)]
pub(super) struct Map {
    grids: Vec<(Grid, Range<usize>)>,
    /// For each sample of a query: [`Grid::origin`], [`Grid::row`] and [`Grid::column`].
    origin: Vec<isize>,
    row: Vec<isize>,
    column: Vec<isize>,
}

impl Map {
    /// One grid per level of `part`, for the samples of `heads` heads of a batch of queries.
    pub(super) fn new(p: &Problem, part: &Part, heads: usize, grid: impl Fn(usize) -> Grid) -> Self {
        let grids: Vec<_> = part.levels.clone().map(|l| (grid(l), part.samples_of(p, l))).collect();
        let heads = heads * batch(heads, part.samples.len());
        let per_sample = |f: fn(&Grid) -> isize| {
            let of_head: Vec<isize> =
                grids.iter().flat_map(|(g, samples)| samples.clone().map(|_| f(g))).collect();
            of_head.repeat(heads)
        };
        let [origin, row, column] =
            [|g: &Grid| g.origin, |g: &Grid| g.row, |g: &Grid| g.column].map(per_sample);
        Self { origin, row, column, grids }
    }

    /// The element of each sample's upper left pixel.
    #[inline(always)]
    fn locate(&self, xs: &[i32], ys: &[i32], at: &mut [isize]) {
        let n = self.origin.len();
        let (xs, ys, at) = (&xs[..n], &ys[..n], &mut at[..n]);
        let (row, column) = (&self.row[..n], &self.column[..n]);
        for s in 0..n {
            let down = (ys[s] as isize).wrapping_mul(row[s]);
            let across = (xs[s] as isize).wrapping_mul(column[s]);
            at[s] = self.origin[s].wrapping_add(down).wrapping_add(across);
        }
    }
}

/// The part of locating samples that is the same for every query.
#[derive(Debug)]
pub(super) struct Sampler<F> {
    /// Samples of one head.
    pub(super) samples: usize,
    sampling: Sampling,
    padding: Padding,
    shift: F,
    /// For each sample: the scale from normalised to pixel coordinates, and the level's size.
    pub(super) scale_x: Vec<F>,
    pub(super) scale_y: Vec<F>,
    w: Vec<F>,
    h: Vec<F>,
    /// For each sample: the width, the first row of the part, and its number of rows.
    columns: Vec<u32>,
    first: Vec<i32>,
    rows: Vec<u32>,
    /// Addresses in the value.
    pub(super) value: Option<Map>,
    /// Addresses in the sums of the value's gradient.
    pub(super) sums: Option<Map>,
}

impl<F: Float> Sampler<F> {
    /// For the samples of `heads` heads of a query on `part`, one head after the other, and of as
    /// many queries as are prepared together.
    pub(super) fn new(p: &Problem, part: &Part, heads: usize, value: Option<Map>, sums: Option<Map>) -> Self {
        let each = Each { p, part, heads: heads * batch(heads, part.samples.len()) };
        Self {
            samples: part.samples.len(),
            sampling: p.sampling(),
            padding: p.padding(),
            shift: F::from_f64(p.pixel_transform(1).1),
            scale_x: each.sample(|l, _| F::from_f64(p.pixel_transform(l.w).0)),
            scale_y: each.sample(|l, _| F::from_f64(p.pixel_transform(l.h).0)),
            w: each.sample(|l, _| F::from_f64(l.w as f64)),
            h: each.sample(|l, _| F::from_f64(l.h as f64)),
            columns: each.sample(|l, _| l.w as u32),
            first: each.sample(|_, rows| rows.start as i32),
            rows: each.sample(|_, rows| rows.len() as u32),
            value,
            sums,
        }
    }

    /// Whether locations outside of the map move the sample.
    #[inline(always)]
    pub(super) fn clamps(&self) -> bool {
        self.padding == Padding::Border
    }

    /// Whether moving the location of a sample changes its value smoothly.
    #[inline(always)]
    pub(super) fn is_smooth(&self) -> bool {
        self.sampling == Sampling::Bilinear
    }

    /// Whether the pixel coordinate of a location was clamped, for both axes of sample `s`.
    #[inline(always)]
    pub(super) fn clamped(&self, s: usize, [x, y]: [F; 2]) -> [bool; 2] {
        let outside = |t: F, scale: F, size: F| {
            let c = t * scale + self.shift;
            !(c > F::ZERO && c < size - F::ONE)
        };
        [outside(x, self.scale_x[s], self.w[s]), outside(y, self.scale_y[s], self.h[s])]
    }
}

/// Repeats a number of each level for each of its samples, and all of them for each head.
struct Each<'a> {
    p: &'a Problem,
    part: &'a Part,
    heads: usize,
}

impl Each<'_> {
    fn sample<N: Copy>(&self, f: impl Fn(&Level, &Range<usize>) -> N) -> Vec<N> {
        let Self { p, part, heads } = self;
        let of_level = |l: usize| {
            let number = f(&p.levels()[l], &part.rows[l - part.levels.start]);
            std::iter::repeat_n(number, p.points()[l])
        };
        part.levels.clone().flat_map(of_level).collect::<Vec<N>>().repeat(*heads)
    }
}

/// The pixel of a sample that lies outside: none of its corners is on any map.
const OUTSIDE: f64 = -4.0;

/// The mask of a sample with all four corners on the map.
const ALL_CORNERS: u32 = 0b1111;

/// The taps of one head's samples: pointers to the numbers of its first sample. Corners are upper
/// left, upper right, lower left, lower right.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taps<'a, F> {
    /// The element of the upper left pixel, in the value and in the sums. Any number where that
    /// corner is off the map.
    pub(super) value_at: *const isize,
    pub(super) sums_at: *const isize,
    /// Bit k is set when corner k is on the map.
    mask: *const u32,
    /// Weight of each corner times the attention weight.
    weight: *const [F; 4],
    /// Of `mask`; the other lists have as many numbers.
    bounds: Bounds,
    lists: PhantomData<&'a TapLists<F>>,
}

/// The taps of several heads.
#[derive(Debug)]
pub(super) struct TapLists<F> {
    /// The upper left pixel.
    x: Vec<i32>,
    pub(super) y: Vec<i32>,
    /// Distance from it.
    pub(super) fx: Vec<F>,
    pub(super) fy: Vec<F>,
    value_at: Vec<isize>,
    sums_at: Vec<isize>,
    pub(super) mask: Vec<u32>,
    weight: Vec<[F; 4]>,
}

impl<F: Arithmetic> TapLists<F> {
    pub(super) fn new(samples: usize) -> Self {
        Self {
            x: vec![0; samples],
            y: vec![0; samples],
            fx: vec![F::ZERO; samples],
            fy: vec![F::ZERO; samples],
            value_at: vec![0; samples],
            sums_at: vec![0; samples],
            mask: vec![0; samples],
            weight: vec![[F::ZERO; 4]; samples],
        }
    }

    /// The taps from sample `first` on.
    #[inline(always)]
    pub(super) fn starting_at(&self, first: usize) -> Taps<'_, F> {
        Taps {
            value_at: self.value_at.as_ptr().wrapping_add(first),
            sums_at: self.sums_at.as_ptr().wrapping_add(first),
            mask: self.mask.as_ptr().wrapping_add(first),
            weight: self.weight.as_ptr().wrapping_add(first),
            bounds: Bounds::of(&self.mask),
            lists: PhantomData,
        }
    }

    /// Computes the taps of samples with normalised locations `xy`, in pairs, and attention
    /// weights `att`.
    #[inline(always)]
    pub(super) fn locate(&mut self, sampler: &Sampler<F>, xy: &[F], att: &[F]) {
        debug_assert!(xy.len() == 2 * att.len() && self.mask.len() == att.len());
        self.find_pixels(sampler, xy);
        self.find_corners(sampler, att);
        if let Some(map) = &sampler.value {
            map.locate(&self.x, &self.y, &mut self.value_at);
        }
        if let Some(map) = &sampler.sums {
            map.locate(&self.x, &self.y, &mut self.sums_at);
        }
    }

    #[inline(always)]
    fn find_pixels(&mut self, sampler: &Sampler<F>, xy: &[F]) {
        let Self { x, y, fx, fy, .. } = self;
        match (sampler.sampling, sampler.padding) {
            (Sampling::Bilinear, Padding::Zeros) => bilinear::<F, false>(sampler, xy, x, y, fx, fy),
            (Sampling::Bilinear, Padding::Border) => bilinear::<F, true>(sampler, xy, x, y, fx, fy),
            (Sampling::Nearest, padding) => {
                nearest(sampler, padding == Padding::Border, xy, x, y);
                fx.fill(F::ZERO);
                fy.fill(F::ZERO);
            }
        }
    }

    /// The corners that are on the part's rows, and their weights.
    #[inline(always)]
    fn find_corners(&mut self, sampler: &Sampler<F>, att: &[F]) {
        // A nearest sample has one corner.
        let kept = if sampler.sampling == Sampling::Nearest { 1 } else { ALL_CORNERS };
        corners_on_map(sampler, kept, &self.x, &self.y, &mut self.mask);
        corner_weights(sampler.w.len(), &self.fx, &self.fy, att, &mut self.weight);
    }
}

// The loops below have no branches and take their results as arguments, so that they vectorise
// without tests for overlapping memory.

/// Pixel and distance of every sample: on a map with zeros around it, or clamped to the map.
#[inline(always)]
fn bilinear<F: Arithmetic, const CLAMPS: bool>(
    sampler: &Sampler<F>,
    xy: &[F],
    xs: &mut [i32],
    ys: &mut [i32],
    fxs: &mut [F],
    fys: &mut [F],
) {
    let n = sampler.w.len();
    let (sx, sy) = (&sampler.scale_x[..n], &sampler.scale_y[..n]);
    let (ws, hs, shift) = (&sampler.w[..n], &sampler.h[..n], sampler.shift);
    let (xy, xs, ys, fxs, fys) = (&xy[..2 * n], &mut xs[..n], &mut ys[..n], &mut fxs[..n], &mut fys[..n]);
    let (outside, minus_one) = (F::from_f64(OUTSIDE), F::from_f64(-1.0));
    for s in 0..n {
        let (tx, ty) = (xy[2 * s], xy[2 * s + 1]);
        let (mut x, mut y) = (tx * sx[s] + shift, ty * sy[s] + shift);
        let inside = if CLAMPS {
            (x, y) = (clamp(x, ws[s] - F::ONE), clamp(y, hs[s] - F::ONE));
            tx.is_finite() & ty.is_finite()
        } else {
            // False for NaN, also where an infinite location is multiplied by a scale of 0.
            (x > minus_one) & (x < ws[s]) & (y > minus_one) & (y < hs[s])
        };
        let (x, y) = if inside { (x, y) } else { (outside, outside) };
        let (x0, y0) = (x.floor(), y.floor());
        // SAFETY: from OUTSIDE to a level's side, and not NaN.
        (xs[s], ys[s]) = unsafe { (x0.truncate(), y0.truncate()) };
        (fxs[s], fys[s]) = (x - x0, y - y0);
    }
}

/// The nearest pixel of every sample.
#[inline(always)]
fn nearest<F: Arithmetic>(sampler: &Sampler<F>, clamps: bool, xy: &[F], xs: &mut [i32], ys: &mut [i32]) {
    let n = sampler.w.len();
    let (sx, sy) = (&sampler.scale_x[..n], &sampler.scale_y[..n]);
    let (ws, hs, shift) = (&sampler.w[..n], &sampler.h[..n], sampler.shift);
    let (xy, xs, ys) = (&xy[..2 * n], &mut xs[..n], &mut ys[..n]);
    let outside = F::from_f64(OUTSIDE);
    for s in 0..n {
        let (tx, ty) = (xy[2 * s], xy[2 * s + 1]);
        let (mut x, mut y) = (tx * sx[s] + shift, ty * sy[s] + shift);
        if clamps {
            (x, y) = (clamp(x, ws[s] - F::ONE), clamp(y, hs[s] - F::ONE));
        }
        let (x, y) = (x.round_ties_even(), y.round_ties_even());
        let inside = tx.is_finite() & ty.is_finite();
        let inside = inside & (x >= F::ZERO) & (x < ws[s]) & (y >= F::ZERO) & (y < hs[s]);
        let (x, y) = if inside { (x, y) } else { (outside, outside) };
        // SAFETY: from OUTSIDE to a level's side, and not NaN.
        (xs[s], ys[s]) = unsafe { (x.truncate(), y.truncate()) };
    }
}

/// A bit for each corner that is on the part's rows, of the corners in `kept`.
#[inline(always)]
fn corners_on_map<F>(sampler: &Sampler<F>, kept: u32, xs: &[i32], ys: &[i32], masks: &mut [u32]) {
    let n = sampler.columns.len();
    let (columns, first, rows) = (&sampler.columns[..n], &sampler.first[..n], &sampler.rows[..n]);
    let (xs, ys, masks) = (&xs[..n], &ys[..n], &mut masks[..n]);
    for s in 0..n {
        let (x, y) = (xs[s], ys[s] - first[s]);
        let (x0, x1) = (u32::from((x as u32) < columns[s]), u32::from(((x + 1) as u32) < columns[s]));
        let (y0, y1) = (u32::from((y as u32) < rows[s]), u32::from(((y + 1) as u32) < rows[s]));
        masks[s] = ((x0 & y0) | (x1 & y0) << 1 | (x0 & y1) << 2 | (x1 & y1) << 3) & kept;
    }
}

/// The weights of the four corners of `n` samples.
#[inline(always)]
fn corner_weights<F: Float>(n: usize, fx: &[F], fy: &[F], att: &[F], weights: &mut [[F; 4]]) {
    let (fx, fy, att, weights) = (&fx[..n], &fy[..n], &att[..n], &mut weights[..n]);
    for s in 0..n {
        let (upper, lower) = ((F::ONE - fy[s]) * att[s], fy[s] * att[s]);
        let (left, right) = (F::ONE - fx[s], fx[s]);
        weights[s] = [left * upper, right * upper, left * lower, right * lower];
    }
}

#[inline(always)]
fn clamp<F: Float>(x: F, last: F) -> F {
    let x = if x < F::ZERO { F::ZERO } else { x };
    if x > last { last } else { x }
}

/// The taps of one head and of the head after it.
#[derive(Clone, Copy)]
pub(super) struct Walk<'a, F> {
    map: &'a Map,
    at: *const isize,
    taps: Taps<'a, F>,
    next_at: *const isize,
    next: Taps<'a, F>,
}

impl<'a, F: Copy> Walk<'a, F> {
    /// Over the rows of the value.
    #[inline(always)]
    pub(super) fn value(map: &'a Map, taps: Taps<'a, F>, next: Taps<'a, F>) -> Self {
        Self { map, at: taps.value_at, taps, next_at: next.value_at, next }
    }

    /// Over the rows of the value's gradient.
    #[inline(always)]
    pub(super) fn sums(map: &'a Map, taps: Taps<'a, F>, next: Taps<'a, F>) -> Self {
        Self { map, at: taps.sums_at, taps, next_at: next.sums_at, next }
    }

    /// Calls `body` with every tap of the head, and prefetches rows of the next head in between.
    ///
    /// # Safety
    /// The taps must have been located on `map`, and `body` must accept every tap on the map.
    #[inline(always)]
    pub(super) unsafe fn run<B: Body<F>>(self, body: &mut B) {
        // SAFETY: both lists have a number for every sample of the head.
        unsafe {
            for (grid, samples) in &self.map.grids {
                let corners = grid.corners();
                for s in samples.clone() {
                    self.taps.bounds.debug_assert(self.taps.mask.wrapping_add(s), 1);
                    self.next.bounds.debug_assert(self.next.mask.wrapping_add(s), 1);
                    let wanted = match B::PREFETCH {
                        Prefetch::Never => false,
                        Prefetch::Always => grid.far,
                        Prefetch::OnMap => grid.far && *self.next.mask.add(s) != 0,
                    };
                    if wanted {
                        let at = *self.next_at.add(s);
                        for corner in corners {
                            body.prefetch(at.wrapping_add(corner));
                        }
                    }
                    let (at, mask) = (*self.at.add(s), *self.taps.mask.add(s));
                    let weight = &*self.taps.weight.add(s);
                    if mask == ALL_CORNERS {
                        body.tap(0, at, weight[0]);
                        body.tap(1, at.wrapping_add(corners[1]), weight[1]);
                        body.tap(2, at.wrapping_add(corners[2]), weight[2]);
                        body.tap(3, at.wrapping_add(corners[3]), weight[3]);
                    } else if mask != 0 {
                        if mask & 1 != 0 {
                            body.tap(0, at, weight[0]);
                        }
                        if mask & 2 != 0 {
                            body.tap(1, at.wrapping_add(corners[1]), weight[1]);
                        }
                        if mask & 4 != 0 {
                            body.tap(2, at.wrapping_add(corners[2]), weight[2]);
                        }
                        if mask & 8 != 0 {
                            body.tap(3, at.wrapping_add(corners[3]), weight[3]);
                        }
                    }
                    body.end_sample(s);
                }
            }
        }
    }
}

/// Which rows of the next head a pass prefetches.
#[derive(Debug, Clone, Copy)]
pub(super) enum Prefetch {
    Never,
    /// The rows of every sample. Few samples are off the map, and a test costs more than their
    /// rows.
    Always,
    /// The rows of samples on the map. Most samples are off the map of a band of rows.
    OnMap,
}

/// The work of a pass on each tap of a head, for some channels. A trait, because a closure is not
/// compiled for the instruction set of its caller.
pub(super) trait Body<F> {
    /// Which rows of the next head are prefetched.
    const PREFETCH: Prefetch;

    /// Prefetches the row at element `at` of the next head.
    ///
    /// # Safety
    /// None beyond the instruction set of the body; any address may be prefetched.
    unsafe fn prefetch(&self, at: isize);

    /// Corner `k` of a sample: the row at element `at`.
    ///
    /// # Safety
    /// The tap must be on the map.
    unsafe fn tap(&mut self, k: usize, at: isize, weight: F);

    /// Called after the corners of sample `s`.
    ///
    /// # Safety
    /// `s` must be a sample of the head.
    #[inline(always)]
    unsafe fn end_sample(&mut self, s: usize) {
        let _ = s;
    }
}
