//! Memory for the sums of the value's gradient while queries are added to them.

use super::bounds::Bounds;
use super::rows::Arithmetic;
use crate::buffer::Aligned;
use crate::problem::Problem;
use crate::view::Strides;

/// Memory for the sums of some heads.
pub(super) trait Place<F> {
    type Finder: Finder<F>;
    /// A finder for the taps of one query on the k-th of the heads.
    fn open(&mut self, k: usize) -> Self::Finder;
    /// Takes a finder back after its query.
    fn close(&mut self, finder: Self::Finder);
    /// The sums of the k-th head, for prefetching.
    fn ahead(&self, k: usize) -> *const F;
}

/// Finds the row of sums of a tap. It is a value, so that it stays in registers while sums are
/// stored.
pub(super) trait Finder<F>: Copy {
    /// Whether a tap's row is known before the tap is visited, so that it can be prefetched.
    const PREFETCHES: bool;

    /// Channel `c` of the row of the tap at element `at`, of which `n` channels are used.
    ///
    /// # Safety
    /// The tap must be on the map, and belong to the query and head of this finder.
    unsafe fn row(&mut self, at: isize, c: usize, n: usize) -> *mut F;
}

/// Rows lie at their taps' elements.
pub(super) struct Fixed<F> {
    pub(super) sums: *mut F,
    /// Elements from one head to the next.
    pub(super) apart: usize,
    pub(super) bounds: Bounds,
}

/// The sums of a head.
#[derive(Clone, Copy)]
pub(super) struct FixedFinder<F> {
    sums: *mut F,
    bounds: Bounds,
}

impl<F: Copy> Place<F> for Fixed<F> {
    type Finder = FixedFinder<F>;

    #[inline(always)]
    fn open(&mut self, k: usize) -> FixedFinder<F> {
        FixedFinder { sums: self.sums.wrapping_add(k * self.apart), bounds: self.bounds }
    }

    #[inline(always)]
    fn close(&mut self, _: FixedFinder<F>) {}

    #[inline(always)]
    fn ahead(&self, k: usize) -> *const F {
        self.sums.wrapping_add(k * self.apart)
    }
}

impl<F: Copy> Finder<F> for FixedFinder<F> {
    const PREFETCHES: bool = true;

    #[inline(always)]
    unsafe fn row(&mut self, at: isize, c: usize, n: usize) -> *mut F {
        let row = self.sums.wrapping_add(c).wrapping_offset(at);
        self.bounds.debug_assert(row, n);
        row
    }
}

/// Rows lie one after the other in the order in which taps first fall on them. Few queries touch
/// few rows: these stay in the cache, and are known without a search. A tap's element is its
/// position.
pub(super) struct Slots<F> {
    /// Slot after slot, zero where nothing was added. Grows with the slots in use.
    sums: Aligned<F>,
    channels: usize,
    /// The slot of each position, head after head; 0 where there is none yet.
    of: Vec<u32>,
    positions: usize,
    /// The element of the gradient that each slot's row belongs to. Slot 0 is not used.
    owner: Vec<usize>,
    /// Elements of the gradient from one position to the next, and from one head to the next.
    strides: [usize; 2],
    /// Slots in use.
    taken: usize,
    /// The most rows that one head of a query touches.
    query: usize,
}

impl<F: Arithmetic> Slots<F> {
    /// Bytes for each position of a head.
    pub(super) fn bytes(p: &Problem) -> usize {
        p.channels() * size_of::<F>() + size_of::<u32>() + size_of::<usize>()
    }

    /// For some heads of an image, of which at most `rows` rows are touched.
    pub(super) fn new(p: &Problem, heads: usize, rows: usize, [_, position, head]: Strides) -> Self {
        Self {
            sums: Aligned::reserved((rows + 1) * p.channels()),
            channels: p.channels(),
            of: vec![0; heads * p.positions()],
            positions: p.positions(),
            owner: vec![0; rows + 2],
            strides: [position, head],
            taken: 1,
            query: 4 * p.samples(),
        }
    }

    /// The touched rows: the element of the gradient, relative to the first head, and the sums.
    #[inline(always)]
    pub(super) fn touched(&mut self) -> (&[usize], &mut [F]) {
        if self.taken == 1 {
            // Memory for sums comes with the first query, and there may be none.
            return (&[], &mut []);
        }
        (&self.owner[1..self.taken], &mut self.sums[self.channels..self.taken * self.channels])
    }

    /// Forgets which rows were touched. Their sums must be zero again.
    pub(super) fn clear(&mut self) {
        self.of.fill(0);
        self.taken = 1;
    }
}

impl<F: Arithmetic> Place<F> for &mut Slots<F> {
    type Finder = SlotFinder<F>;

    #[inline(always)]
    fn open(&mut self, k: usize) -> SlotFinder<F> {
        let slots = (self.taken + self.query).min(self.owner.len() - 1);
        if slots * self.channels > self.sums.len() {
            self.sums.grow(slots * self.channels, F::ZERO);
        }
        let [position, head] = self.strides;
        SlotFinder {
            sums: self.sums.as_mut_ptr(),
            channels: self.channels,
            of: self.of[k * self.positions..].as_mut_ptr(),
            owner: self.owner.as_mut_ptr(),
            taken: self.taken,
            position,
            head: k * head,
            bounds: [
                Bounds::of(&self.sums),
                Bounds::of(&self.of[k * self.positions..(k + 1) * self.positions]),
                Bounds::of(&self.owner),
            ],
        }
    }

    #[inline(always)]
    fn close(&mut self, finder: SlotFinder<F>) {
        self.taken = finder.taken;
    }

    #[inline(always)]
    fn ahead(&self, _: usize) -> *const F {
        self.sums.as_ptr()
    }
}

/// Gives rows slots.
#[derive(Clone, Copy)]
pub(super) struct SlotFinder<F> {
    sums: *mut F,
    channels: usize,
    of: *mut u32,
    owner: *mut usize,
    taken: usize,
    /// The row at element `at` belongs to `at * position + head` of the gradient.
    position: usize,
    head: usize,
    /// Of `sums`, `of` and `owner`.
    bounds: [Bounds; 3],
}

impl<F: Copy> Finder<F> for SlotFinder<F> {
    const PREFETCHES: bool = false;

    #[inline(always)]
    unsafe fn row(&mut self, at: isize, c: usize, n: usize) -> *mut F {
        let [sums, of, owner] = self.bounds;
        of.debug_assert(self.of.wrapping_offset(at), 1);
        owner.debug_assert(self.owner.wrapping_add(self.taken), 1);
        // Whether a row is new is hard to predict: the owner of the free slot is written in any
        // case. SAFETY: a tap on the map lies on one of the head's positions. There are sums for as
        // many slots as a query can take, and one more owner than slots.
        unsafe {
            let of = self.of.offset(at);
            *self.owner.add(self.taken) = self.head + at as usize * self.position;
            let new = *of == 0;
            let slot = if new { self.taken as u32 } else { *of };
            *of = slot;
            self.taken += usize::from(new);
            let row = self.sums.wrapping_add(slot as usize * self.channels + c);
            sums.debug_assert(row, n);
            row
        }
    }
}
