//! Destinations that several threads write at once.

use super::bounds::Bounds;
use super::simd::{Block, InstructionSet, Lane, Reg, for_each_block, store_block};
use crate::dtype::{Dtype, Float, SliceMut};
use crate::op::offset;
use crate::view::Strides;

/// A destination that threads share. Each thread writes rows that no other thread touches.
#[derive(Debug)]
pub(super) struct Writer<E> {
    first: *mut E,
    pub(super) strides: Strides,
    pub(super) bounds: Bounds,
}

impl<E> Clone for Writer<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Writer<E> {}

// SAFETY: a writer only computes addresses; writing through them is unsafe, and every such place
// says why its rows are its own. The checked strides keep the rows of outer indices apart.
unsafe impl<E: Send> Send for Writer<E> {}
// SAFETY: threads that share a writer only read its address and strides.
unsafe impl<E: Send> Sync for Writer<E> {}

impl<E> Writer<E> {
    pub(super) fn new(data: &mut [E], strides: Strides) -> Self {
        Self { bounds: Bounds::of(data), first: data.as_mut_ptr(), strides }
    }

    /// The address of the row at an outer index.
    #[inline(always)]
    pub(super) fn row(self, index: [usize; 3]) -> *mut E {
        self.element(offset(self.strides, index))
    }

    /// The address of an element.
    #[inline(always)]
    pub(super) fn element(self, i: usize) -> *mut E {
        self.first.wrapping_add(i)
    }

    /// The address of the row at an outer index from element `skip` on, asserted in debug builds to
    /// have `n` elements there.
    #[inline(always)]
    pub(super) fn row_part(self, index: [usize; 3], skip: usize, n: usize) -> *mut E {
        let row = self.row(index).wrapping_add(skip);
        self.bounds.debug_assert(row, n);
        row
    }

    /// The same destination with outer index `index` as its origin.
    pub(super) fn starting_at(self, index: [usize; 3]) -> Self {
        Self { first: self.row(index), ..self }
    }
}

/// A writer of numbers of the value's type or of `f32`.
#[derive(Debug, Clone, Copy)]
pub(super) enum NumberWriter<T> {
    Own(Writer<T>),
    F32(Writer<f32>),
}

impl<T: Lane> NumberWriter<T> {
    /// For a slice that was checked to be of the value's type or `f32`.
    pub(super) fn new(data: SliceMut<'_>, strides: Strides) -> Self {
        match data {
            SliceMut::F32(data) if T::DTYPE != Dtype::F32 => Self::F32(Writer::new(data, strides)),
            data => {
                Self::Own(Writer::new(T::slice_mut(data).expect("checked: the value's type or f32"), strides))
            }
        }
    }

    fn strides(self) -> Strides {
        match self {
            Self::Own(to) => to.strides,
            Self::F32(to) => to.strides,
        }
    }

    /// Writes `rows` rows of equal length, one after the other in `numbers`, to neighbouring last
    /// indices from `index` on, each from its element `skip` on.
    ///
    /// # Safety
    /// The machine must have `I`. The rows must lie within the destination and belong to this
    /// thread.
    #[inline(always)]
    pub(super) unsafe fn write<I: InstructionSet>(
        self,
        index: [usize; 3],
        skip: usize,
        rows: usize,
        numbers: &[T::Acc],
    ) {
        if numbers.is_empty() {
            return;
        }
        debug_assert!(rows > 0 && numbers.len().is_multiple_of(rows));
        let len = numbers.len() / rows;
        // Rows side by side are one long row.
        let (rows, len) = if self.strides()[2] == len { (1, numbers.len()) } else { (rows, len) };
        for (k, row) in numbers.chunks_exact(len).enumerate().take(rows) {
            let index = [index[0], index[1], index[2] + k];
            // SAFETY: the machine has `I`, and the row lies within the destination, as asserted
            // above.
            unsafe {
                match self {
                    Self::Own(to) => write_row::<I, T>(row, to.row_part(index, skip, row.len())),
                    Self::F32(to) => {
                        let to = to.row_part(index, skip, row.len());
                        for (i, x) in row.iter().enumerate() {
                            *to.add(i) = x.to_f64() as f32;
                        }
                    }
                }
            }
        }
    }
}

/// Writes a row, rounded to its type.
///
/// # Safety
/// The machine must have `I`, and `to` must be valid for as many elements.
#[inline(always)]
pub(super) unsafe fn write_row<I: InstructionSet, T: Lane>(from: &[T::Acc], to: *mut T) {
    // SAFETY: the machine has `I`, and both rows have `from.len()` elements.
    unsafe { for_each_block::<I, T>(from.len(), &mut Narrow { from: from.as_ptr(), to }) };
}

struct Narrow<T: Lane> {
    from: *const T::Acc,
    to: *mut T,
}

impl<T: Lane> Block<T> for Narrow<T> {
    #[inline(always)]
    unsafe fn block<I: InstructionSet, const R: usize, const WHOLE: bool>(&mut self, c: usize, n: usize) {
        // SAFETY: the machine has `I`, and both rows have `n` elements from `c` on.
        unsafe {
            let mut block = [T::R::<I>::splat(T::Acc::ZERO); R];
            for r in 0..R {
                let from = self.from.add(c + r * T::R::<I>::LANES);
                block[r] = if WHOLE { T::R::<I>::load(from) } else { T::R::<I>::load_part(from, n) };
            }
            store_block::<I, T, R, WHOLE>(block, self.to.add(c), n);
        }
    }
}
