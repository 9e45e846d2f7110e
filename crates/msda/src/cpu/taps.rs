//! From sampling locations to weighted rows: where each sample falls, which of its four corners count, and how much.
//!
//! Everything about a sample that does not depend on the channel is worked out here, once, in loops over all samples
//! of a query that the compiler turns into vector code.

use std::ops::Range;

use super::rows::Arithmetic;
use crate::dtype::Float;
use crate::problem::{Padding, Problem, Sampling};

/// A level as a kernel addresses it: pixel `(y, x)` is element `origin + y * row + x * column`.
#[derive(Debug, Clone)]
pub(super) struct Grid {
    pub(super) w: i32,
    pub(super) h: i32,
    pub(super) origin: isize,
    pub(super) row: isize,
    pub(super) column: isize,
    /// Rows that are taken; taps on others are left out.
    pub(super) rows: Range<i32>,
    /// Which samples of a head read this level.
    pub(super) samples: Range<usize>,
    /// Whether the level is too large to be in the second-level cache anyway: then its rows are asked for early.
    pub(super) far: bool,
}

/// A level larger than this, in bytes from its first row to its last, is far.
pub(super) const FAR: usize = 1 << 19;

impl Grid {
    /// What to add to the upper left corner's element to reach each corner's.
    #[inline(always)]
    pub(super) fn corners(&self) -> [isize; 4] {
        [0, self.column, self.row, self.row + self.column]
    }
}

/// The fixed part of locating samples: options, levels, and what each sample needs of its level.
#[derive(Debug)]
pub(super) struct Sampler<F> {
    pub(super) grids: Vec<Grid>,
    sampling: Sampling,
    padding: Padding,
    shift: F,
    /// For each sample: scale from normalised to pixel coordinates, and the level's size.
    pub(super) scale_x: Vec<F>,
    pub(super) scale_y: Vec<F>,
    w: Vec<F>,
    h: Vec<F>,
    /// For each sample: the width, the first row that is taken, and how many are.
    columns: Vec<u32>,
    first: Vec<i32>,
    rows: Vec<u32>,
    /// For each sample: the level's first element, and how far apart its rows and columns are.
    origin: Vec<isize>,
    row: Vec<isize>,
    column: Vec<isize>,
}

impl<F: Float> Sampler<F> {
    /// For the samples of `heads` heads of a query, one head after the other.
    pub(super) fn new(p: &Problem, grids: Vec<Grid>, heads: usize) -> Self {
        let each = Each { grids: &grids, heads };
        Self {
            sampling: p.sampling(),
            padding: p.padding(),
            shift: F::from_f64(p.pixel_transform(1).1),
            scale_x: each.sample(|g| F::from_f64(p.pixel_transform(g.w as usize).0)),
            scale_y: each.sample(|g| F::from_f64(p.pixel_transform(g.h as usize).0)),
            w: each.sample(|g| F::from_f64(f64::from(g.w))),
            h: each.sample(|g| F::from_f64(f64::from(g.h))),
            columns: each.sample(|g| g.w as u32),
            first: each.sample(|g| g.rows.start),
            rows: each.sample(|g| (g.rows.end - g.rows.start) as u32),
            origin: each.sample(|g| g.origin),
            row: each.sample(|g| g.row),
            column: each.sample(|g| g.column),
            grids,
        }
    }

    /// Samples located at a time.
    fn samples(&self) -> usize {
        self.w.len()
    }
}

/// Repeats what belongs to a level for each of its samples.
struct Each<'a> {
    grids: &'a [Grid],
    heads: usize,
}

impl Each<'_> {
    fn sample<T: Copy>(&self, f: impl Fn(&Grid) -> T) -> Vec<T> {
        let of_head: Vec<T> =
            self.grids.iter().flat_map(|g| std::iter::repeat_n(f(g), g.samples.len())).collect();
        of_head.repeat(self.heads)
    }
}

/// The pixel of a sample that lies outside: none of its corners is on any map.
const OUTSIDE: f64 = -4.0;

/// All four corners of a sample count.
pub(super) const ALL_CORNERS: u32 = 0b1111;

/// Where the samples of a head fall, and what their corners weigh. Corners are upper left, upper right, lower left, lower
/// right.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taps<'a, F> {
    /// Distance from the upper left pixel.
    pub(super) fx: &'a [F],
    pub(super) fy: &'a [F],
    /// The upper left pixel's element; meaningless, but harmless, where that corner does not count.
    pub(super) at: &'a [isize],
    /// Bit k is set when corner k counts.
    pub(super) mask: &'a [u32],
    /// Weight of each corner, the attention weight included.
    pub(super) weight: &'a [[F; 4]],
}

/// Memory for the taps of several heads.
#[derive(Debug)]
pub(super) struct TapLists<F> {
    /// The upper left pixel.
    x: Vec<i32>,
    y: Vec<i32>,
    fx: Vec<F>,
    fy: Vec<F>,
    at: Vec<isize>,
    mask: Vec<u32>,
    weight: Vec<[F; 4]>,
}

impl<F: Arithmetic> TapLists<F> {
    pub(super) fn new(samples: usize) -> Self {
        Self {
            x: vec![0; samples],
            y: vec![0; samples],
            fx: vec![F::ZERO; samples],
            fy: vec![F::ZERO; samples],
            at: vec![0; samples],
            mask: vec![0; samples],
            weight: vec![[F::ZERO; 4]; samples],
        }
    }

    /// The taps of some samples.
    #[inline(always)]
    pub(super) fn of(&self, samples: Range<usize>) -> Taps<'_, F> {
        Taps {
            fx: &self.fx[samples.clone()],
            fy: &self.fy[samples.clone()],
            at: &self.at[samples.clone()],
            mask: &self.mask[samples.clone()],
            weight: &self.weight[samples],
        }
    }

    /// Works out all samples with normalised locations `xy`, in pairs, and attention weights `att`.
    #[inline(always)]
    pub(super) fn locate(&mut self, sampler: &Sampler<F>, xy: &[F], att: &[F]) {
        self.find_pixels(sampler, xy);
        self.find_corners(sampler, att);
    }

    /// Pixel and distance of every sample. Loop bodies are free of branches, so that they become vector code.
    #[inline(always)]
    fn find_pixels(&mut self, sampler: &Sampler<F>, xy: &[F]) {
        let n = sampler.samples();
        let (xy, xs, ys) = (&xy[..2 * n], &mut self.x[..n], &mut self.y[..n]);
        let (fxs, fys) = (&mut self.fx[..n], &mut self.fy[..n]);
        let (sx, sy) = (&sampler.scale_x[..n], &sampler.scale_y[..n]);
        let (ws, hs) = (&sampler.w[..n], &sampler.h[..n]);
        let (outside, minus_one) = (F::from_f64(OUTSIDE), F::from_f64(-1.0));
        match (sampler.sampling, sampler.padding) {
            (Sampling::Bilinear, Padding::Zeros) => {
                for s in 0..n {
                    let x = xy[2 * s] * sx[s] + sampler.shift;
                    let y = xy[2 * s + 1] * sy[s] + sampler.shift;
                    let inside = (x > minus_one) & (x < ws[s]) & (y > minus_one) & (y < hs[s]);
                    let (x, y) = if inside { (x, y) } else { (outside, outside) };
                    let (x0, y0) = (x.floor(), y.floor());
                    // SAFETY: from OUTSIDE to a level's side, and not NaN.
                    (xs[s], ys[s]) = unsafe { (x0.truncate(), y0.truncate()) };
                    (fxs[s], fys[s]) = (x - x0, y - y0);
                }
            }
            (Sampling::Bilinear, Padding::Border) => {
                for s in 0..n {
                    let (tx, ty) = (xy[2 * s], xy[2 * s + 1]);
                    let inside = tx.is_finite() & ty.is_finite();
                    let x = clamp(tx * sx[s] + sampler.shift, ws[s] - F::ONE);
                    let y = clamp(ty * sy[s] + sampler.shift, hs[s] - F::ONE);
                    let (x, y) = if inside { (x, y) } else { (outside, outside) };
                    let (x0, y0) = (x.floor(), y.floor());
                    // SAFETY: as above.
                    (xs[s], ys[s]) = unsafe { (x0.truncate(), y0.truncate()) };
                    (fxs[s], fys[s]) = (x - x0, y - y0);
                }
            }
            (Sampling::Nearest, padding) => {
                for s in 0..n {
                    let (tx, ty) = (xy[2 * s], xy[2 * s + 1]);
                    let (mut x, mut y) = (tx * sx[s] + sampler.shift, ty * sy[s] + sampler.shift);
                    if padding == Padding::Border {
                        (x, y) = (clamp(x, ws[s] - F::ONE), clamp(y, hs[s] - F::ONE));
                    }
                    let (x, y) = (x.round_ties_even(), y.round_ties_even());
                    let inside = tx.is_finite() & ty.is_finite();
                    let inside = inside & (x >= F::ZERO) & (x < ws[s]) & (y >= F::ZERO) & (y < hs[s]);
                    let (x, y) = if inside { (x, y) } else { (outside, outside) };
                    // SAFETY: as above.
                    (xs[s], ys[s]) = unsafe { (x.truncate(), y.truncate()) };
                    (fxs[s], fys[s]) = (F::ZERO, F::ZERO);
                }
            }
        }
    }

    /// Which corners count, and their weights.
    #[inline(always)]
    fn find_corners(&mut self, sampler: &Sampler<F>, att: &[F]) {
        let n = sampler.samples();
        let (xs, ys, masks) = (&self.x[..n], &self.y[..n], &mut self.mask[..n]);
        let (columns, first, rows) = (&sampler.columns[..n], &sampler.first[..n], &sampler.rows[..n]);
        // A nearest sample has one corner.
        let kept = if sampler.sampling == Sampling::Nearest { 1 } else { ALL_CORNERS };
        for s in 0..n {
            let (x, y) = (xs[s], ys[s] - first[s]);
            let (x0, x1) = (u32::from((x as u32) < columns[s]), u32::from(((x + 1) as u32) < columns[s]));
            let (y0, y1) = (u32::from((y as u32) < rows[s]), u32::from(((y + 1) as u32) < rows[s]));
            masks[s] = ((x0 & y0) | (x1 & y0) << 1 | (x0 & y1) << 2 | (x1 & y1) << 3) & kept;
        }
        let (fx, fy, att, weights) = (&self.fx[..n], &self.fy[..n], &att[..n], &mut self.weight[..n]);
        for s in 0..n {
            let (upper, lower) = ((F::ONE - fy[s]) * att[s], fy[s] * att[s]);
            let (left, right) = (F::ONE - fx[s], fx[s]);
            weights[s] = [left * upper, right * upper, left * lower, right * lower];
        }
        let (ats, origin) = (&mut self.at[..n], &sampler.origin[..n]);
        let (row, column) = (&sampler.row[..n], &sampler.column[..n]);
        for s in 0..n {
            let down = (ys[s] as isize).wrapping_mul(row[s]);
            let across = (xs[s] as isize).wrapping_mul(column[s]);
            ats[s] = origin[s].wrapping_add(down).wrapping_add(across);
        }
    }
}

#[inline(always)]
fn clamp<F: Float>(x: F, last: F) -> F {
    let x = if x < F::ZERO { F::ZERO } else { x };
    if x > last { last } else { x }
}
