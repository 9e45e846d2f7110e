//! The gradient of value: every query's gradient, added to the rows it read.

use std::ops::Range;

use super::parts::Part;
use super::place::{Finder, Place, Slots};
use super::query::Step;
use super::simd::{Block, InstructionSet, Kernel, Lane, Reg, for_each_block, prefetch_row, store_block};
use super::taps::{Body, FAR, Grid, Map, Prefetch, Walk};
use super::writer::Writer;
use crate::dtype::Float;
use crate::op::offset;
use crate::problem::Problem;
use crate::threads;

/// The addresses of a part's rows in the gradient, with `stride` elements per position.
pub(super) fn map_in_place(p: &Problem, part: &Part, heads: usize, stride: usize) -> Map {
    Map::new(p, part, heads, |l| {
        let level = &p.levels()[l];
        Grid {
            origin: (level.origin * stride) as isize,
            row: (level.pitch * stride) as isize,
            column: stride as isize,
            far: level.h * level.pitch * stride * size_of::<f32>() > FAR,
        }
    })
}

/// The addresses of a part's rows when they lie one after the other.
pub(super) fn map_packed(p: &Problem, part: &Part, heads: usize) -> Map {
    Map::new(p, part, heads, |l| {
        let k = l - part.levels.start;
        let (row, rows) = (p.levels()[l].w * p.channels(), &part.rows[k]);
        let before = part.levels.clone().zip(&part.rows).take(k);
        let first: usize = before.map(|(l, rows)| rows.len() * p.levels()[l].w * p.channels()).sum();
        Grid {
            origin: first as isize - (rows.start * row) as isize,
            row: row as isize,
            column: p.channels() as isize,
            far: rows.len() * row * size_of::<f32>() > FAR,
        }
    })
}

/// Sets every element of an image of the value's gradient to zero, rings and gaps included.
pub(super) fn zero<T: Lane>(p: &Problem, to: Writer<T>) {
    const ELEMENTS: usize = 1 << 15;
    const ROWS: usize = 1 << 10;
    let (s, h, d) = (p.positions(), p.heads(), p.channels());
    let n = s * h * d;
    if n == 0 {
        return;
    }
    let fill = |start: usize, n: usize| {
        to.bounds.debug_assert(to.element(start), n);
        // SAFETY: checked elements of the gradient, which no other task has.
        unsafe { std::slice::from_raw_parts_mut(to.element(start), n) }.fill(T::default());
    };
    // No two rows share an element: rows that span no more than their own elements leave no gap.
    if offset(to.strides, [0, s - 1, h - 1]) + d == n {
        threads::for_each(n.div_ceil(ELEMENTS), |i| fill(i * ELEMENTS, ELEMENTS.min(n - i * ELEMENTS)));
    } else {
        let rows = s * h;
        threads::for_each(rows.div_ceil(ROWS), |i| {
            for row in i * ROWS..rows.min((i + 1) * ROWS) {
                fill(offset(to.strides, [0, row / h, row % h]), d);
            }
        });
    }
}

/// Adds gradients of queries to the sums of some heads.
pub(super) struct Add<'a, P> {
    pub(super) map: &'a Map,
    /// The first of the heads.
    pub(super) first: usize,
    pub(super) channels: usize,
    pub(super) place: P,
}

impl<P> Add<'_, P> {
    /// Adds one head. `gradient` is the output's gradient, padded to whole registers.
    ///
    /// # Safety
    /// The machine must have `I`. Taps on the map must lie within the sums, and these must belong
    /// to this task.
    #[inline(always)]
    pub(super) unsafe fn visit<I: InstructionSet, T: Lane>(
        &mut self,
        step: &Step<'_, T::Acc>,
        gradient: &[T::Acc],
    ) where
        P: Place<T::Acc>,
    {
        debug_assert!(gradient.len() >= self.channels.next_multiple_of(T::R::<I>::LANES));
        let mut rows = AddRows {
            walk: Walk::sums(self.map, step.taps, step.next_taps),
            gradient: gradient.as_ptr(),
            next: self.place.ahead(step.next[2] - self.first),
            finder: self.place.open(step.k),
        };
        // SAFETY: the machine has `I`, and taps on the map lie within the sums of this task.
        unsafe { for_each_block::<I, T>(self.channels, &mut rows) };
        self.place.close(rows.finder);
    }
}

/// `row += weight * gradient` for every tap.
struct AddRows<'a, F, R> {
    walk: Walk<'a, F>,
    gradient: *const F,
    next: *const F,
    finder: R,
}

impl<T: Lane, F: Finder<T::Acc>> Block<T> for AddRows<'_, T::Acc, F> {
    #[inline(always)]
    unsafe fn block<I: InstructionSet, const R: usize, const WHOLE: bool>(&mut self, c: usize, n: usize) {
        // SAFETY: the machine has `I`, and the sums have `n` channels from `c` on; the gradient is
        // padded to whole registers.
        unsafe {
            let mut gradient = [T::R::<I>::splat(T::Acc::ZERO); R];
            for r in 0..R {
                gradient[r] = T::R::<I>::load(self.gradient.add(c + r * T::R::<I>::LANES));
            }
            let next = self.next.wrapping_add(c);
            let mut body = AddBody::<_, _, R, WHOLE> { finder: self.finder, gradient, next, c, n };
            self.walk.run(&mut body);
            self.finder = body.finder;
        }
    }
}

struct AddBody<V: Reg, F, const R: usize, const WHOLE: bool> {
    finder: F,
    gradient: [V; R],
    next: *const V::Scalar,
    c: usize,
    n: usize,
}

impl<V: Reg, F: Finder<V::Scalar>, const R: usize, const WHOLE: bool> Body<V::Scalar>
    for AddBody<V, F, R, WHOLE>
{
    const PREFETCH: Prefetch = if F::PREFETCHES { Prefetch::OnMap } else { Prefetch::Never };

    #[inline(always)]
    unsafe fn prefetch(&self, at: isize) {
        prefetch_row(self.next.wrapping_offset(at), R * V::LANES);
    }

    #[inline(always)]
    unsafe fn tap(&mut self, _: usize, at: isize, weight: V::Scalar) {
        // SAFETY: the machine has `I`, and the row of a tap on the map has `n` sums from here on.
        unsafe {
            let row = self.finder.row(at, self.c, self.n);
            let weight = V::splat(weight);
            for r in 0..R {
                let to = row.add(r * V::LANES);
                if WHOLE {
                    self.gradient[r].mul_add(weight, V::load(to)).store(to);
                } else {
                    self.gradient[r].mul_add(weight, V::load_part(to, self.n)).store_part(to, self.n);
                }
            }
        }
    }
}

/// Rows of the gradient to prefetch before they are written: about as many as a core has in flight.
const AHEAD: usize = 16;

/// Moves all sums of a part to the gradient.
pub(super) struct MoveAll<'a, T: Lane> {
    pub(super) p: &'a Problem,
    pub(super) part: &'a Part,
    pub(super) sums: &'a mut [T::Acc],
    /// The gradient from the first of the heads on.
    pub(super) to: Writer<T>,
    pub(super) heads: Range<usize>,
}

impl<T: Lane> Kernel for MoveAll<'_, T> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(self) {
        let mut sums = self.sums.chunks_exact_mut(self.p.channels());
        for k in 0..self.heads.len() {
            for (l, rows) in self.part.levels.clone().zip(&self.part.rows) {
                let level = &self.p.levels()[l];
                for y in rows.clone() {
                    let to = self.to.row([0, level.position(y, 0), k]);
                    for (x, row) in (0..level.w).zip(&mut sums) {
                        prefetch_row(to.wrapping_add((x + AHEAD) * self.to.strides[1]), row.len());
                        let to = to.wrapping_add(x * self.to.strides[1]);
                        self.to.bounds.debug_assert(to, row.len());
                        // SAFETY: the machine has `I`; the row is checked and belongs to this task.
                        unsafe { move_row::<I, T>(row, to) };
                    }
                }
            }
        }
    }
}

/// Moves the sums that were touched to the gradient.
pub(super) struct MoveTouched<'a, T: Lane> {
    pub(super) slots: &'a mut Slots<T::Acc>,
    pub(super) channels: usize,
    /// The gradient from the first of the heads on.
    pub(super) to: Writer<T>,
}

impl<T: Lane> Kernel for MoveTouched<'_, T> {
    #[inline(always)]
    unsafe fn run<I: InstructionSet>(self) {
        let (owners, sums) = self.slots.touched();
        for (i, row) in sums.chunks_exact_mut(self.channels).enumerate() {
            if let Some(&later) = owners.get(i + AHEAD) {
                prefetch_row(self.to.element(later), self.channels);
            }
            let to = self.to.element(owners[i]);
            self.to.bounds.debug_assert(to, row.len());
            // SAFETY: the machine has `I`; the row is checked and belongs to this task.
            unsafe { move_row::<I, T>(row, to) };
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
    // SAFETY: the machine has `I`, and both rows have `from.len()` elements.
    unsafe { for_each_block::<I, T>(from.len(), &mut Move { from: from.as_mut_ptr(), to }) };
}

struct Move<T: Lane> {
    from: *mut T::Acc,
    to: *mut T,
}

impl<T: Lane> Block<T> for Move<T> {
    #[inline(always)]
    unsafe fn block<I: InstructionSet, const R: usize, const WHOLE: bool>(&mut self, c: usize, n: usize) {
        // SAFETY: the machine has `I`, and both rows have `n` elements from `c` on.
        unsafe {
            let zero = T::R::<I>::splat(T::Acc::ZERO);
            let mut block = [zero; R];
            for r in 0..R {
                let from = self.from.add(c + r * T::R::<I>::LANES);
                if WHOLE {
                    block[r] = T::R::<I>::load(from);
                    zero.store(from);
                } else {
                    block[r] = T::R::<I>::load_part(from, n);
                    zero.store_part(from, n);
                }
            }
            store_block::<I, T, R, WHOLE>(block, self.to.add(c), n);
        }
    }
}
