//! Owned tensors: elements of a type known at run time, aligned to cache lines.

use std::ops::{Deref, DerefMut};

use half::{bf16, f16};

use crate::dtype::{Dtype, Element, Slice, SliceMut, retyped, typed};
use crate::error::{Error, ErrorKind, Result};

/// The alignment of the first element in bytes: two cache lines, which processors fetch together.
const ALIGNMENT: usize = 128;

/// Elements whose first one is aligned to 128 bytes.
///
/// A large `Vec` begins 16 bytes into a page, so each of its 128-byte rows touches three cache
/// lines instead of two.
#[derive(Debug)]
pub struct Aligned<T> {
    raw: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy> Aligned<T> {
    /// Elements that may lie before the first one.
    const SPARE: usize = ALIGNMENT / size_of::<T>();

    /// `len` copies of `x`. Panics if the memory cannot be allocated.
    pub(crate) fn filled(len: usize, x: T) -> Self {
        Self::try_filled(len, x).unwrap_or_else(|| panic!("no memory for {len} elements"))
    }

    /// `len` copies of `x`, or `None` if the memory cannot be allocated.
    fn try_filled(len: usize, x: T) -> Option<Self> {
        let total = len.checked_add(Self::SPARE)?;
        let mut raw = Vec::new();
        raw.try_reserve_exact(total).ok()?;
        raw.resize(total, x);
        Some(Self::within(raw, len))
    }

    /// No elements, with memory reserved for `len`.
    pub(crate) fn reserved(len: usize) -> Self
    where
        T: Default,
    {
        let Self { mut raw, start, len } = Self::within(Vec::with_capacity(len + Self::SPARE), 0);
        raw.resize(start, T::default());
        Self { raw, start, len }
    }

    /// Appends copies of `x` up to `len` elements, which must have been reserved, so nothing moves.
    pub(crate) fn grow(&mut self, len: usize, x: T) {
        assert!(self.start + len <= self.raw.capacity(), "reserved");
        self.raw.resize(self.start + len, x);
        self.len = len;
    }

    /// The first `len` elements of `raw` from an aligned one on.
    fn within(raw: Vec<T>, len: usize) -> Self {
        let start = raw.as_ptr().align_offset(ALIGNMENT).min(Self::SPARE);
        Self { raw, start, len }
    }
}

impl<T: Element> Aligned<T> {
    fn collect(len: usize, elements: impl Iterator<Item = T>) -> Self {
        let mut all = Self::filled(len, T::default());
        for (to, x) in all.iter_mut().zip(elements) {
            *to = x;
        }
        all
    }
}

impl<T: Copy> Clone for Aligned<T> {
    fn clone(&self) -> Self {
        match self.first() {
            None => Self { raw: Vec::new(), start: 0, len: 0 },
            Some(&first) => {
                let mut copy = Self::filled(self.len, first);
                copy.copy_from_slice(self);
                copy
            }
        }
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.raw[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.raw[self.start..self.start + self.len]
    }
}

/// No elements, with memory reserved for `len`; an error if it cannot be allocated.
pub(crate) fn try_reserved<T>(len: usize) -> Result<Vec<T>> {
    let mut reserved = Vec::new();
    reserved.try_reserve_exact(len).map_err(|_| no_memory(format!("{len} elements")))?;
    Ok(reserved)
}

/// `len` zeros; an error if the memory cannot be allocated.
pub(crate) fn try_zeros<T: Copy + Default>(len: usize) -> Result<Vec<T>> {
    let mut zeros = try_reserved(len)?;
    zeros.resize(len, T::default());
    Ok(zeros)
}

fn no_memory(got: String) -> Error {
    Error::new(ErrorKind::Memory, "memory", got, "a size that this machine can allocate")
}

/// Owned elements of a type known at run time.
#[derive(Debug, Clone)]
pub enum Buffer {
    /// 64-bit floats.
    F64(Aligned<f64>),
    /// 32-bit floats.
    F32(Aligned<f32>),
    /// Half-precision floats.
    F16(Aligned<f16>),
    /// bfloat16 numbers.
    Bf16(Aligned<bf16>),
}

impl Buffer {
    /// `len` copies of `x`, rounded to `dtype`.
    ///
    /// # Panics
    /// If the memory cannot be allocated; see [`Buffer::try_filled`].
    pub fn filled(dtype: Dtype, len: usize, x: f64) -> Self {
        Self::try_filled(dtype, len, x).unwrap_or_else(|error| panic!("{error}"))
    }

    /// `len` copies of `x`, rounded to `dtype`; an error if the memory cannot be allocated.
    pub fn try_filled(dtype: Dtype, len: usize, x: f64) -> Result<Self> {
        let buffer = match dtype {
            Dtype::F64 => Aligned::try_filled(len, x).map(Self::F64),
            Dtype::F32 => Aligned::try_filled(len, x as f32).map(Self::F32),
            Dtype::F16 => Aligned::try_filled(len, Element::from_f64(x)).map(Self::F16),
            Dtype::Bf16 => Aligned::try_filled(len, Element::from_f64(x)).map(Self::Bf16),
        };
        buffer.ok_or_else(|| no_memory(format!("{len} elements of {dtype}")))
    }

    /// `len` elements; element `i` is `f(i)` rounded to `dtype`.
    ///
    /// # Panics
    /// If the memory cannot be allocated.
    pub fn from_fn(dtype: Dtype, len: usize, mut f: impl FnMut(usize) -> f64) -> Self {
        let mut buffer = Self::filled(dtype, len, 0.0);
        typed!(Buffer, &mut buffer, v => {
            for (i, x) in v.iter_mut().enumerate() {
                *x = Element::from_f64(f(i));
            }
        });
        buffer
    }

    /// Elements from raw little-endian bytes; a trailing partial element is ignored.
    pub fn from_le_bytes(dtype: Dtype, bytes: &[u8]) -> Self {
        fn read<const N: usize, T: Element>(bytes: &[u8], f: impl Fn([u8; N]) -> T) -> Aligned<T> {
            let chunks = bytes.as_chunks::<N>().0;
            Aligned::collect(chunks.len(), chunks.iter().map(|c| f(*c)))
        }
        match dtype {
            Dtype::F64 => Self::F64(read(bytes, f64::from_le_bytes)),
            Dtype::F32 => Self::F32(read(bytes, f32::from_le_bytes)),
            Dtype::F16 => Self::F16(read(bytes, f16::from_le_bytes)),
            Dtype::Bf16 => Self::Bf16(read(bytes, bf16::from_le_bytes)),
        }
    }

    /// The raw little-endian bytes of the elements.
    pub fn to_le_bytes(&self) -> Vec<u8> {
        typed!(Buffer, self, v => v.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// Borrows the elements.
    pub fn as_slice(&self) -> Slice<'_> {
        retyped!(Buffer => Slice, self, v => v)
    }

    /// Borrows the elements mutably.
    pub fn as_mut(&mut self) -> SliceMut<'_> {
        retyped!(Buffer => SliceMut, self, v => v)
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.as_slice().dtype()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All elements as `f64`.
    pub fn to_f64(&self) -> Vec<f64> {
        typed!(Buffer, self, v => v.iter().map(|x| Element::to_f64(*x)).collect())
    }
}

impl<'a> From<&'a Buffer> for Slice<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        buffer.as_slice()
    }
}

impl<'a> From<&'a mut Buffer> for SliceMut<'a> {
    fn from(buffer: &'a mut Buffer) -> Self {
        buffer.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_be_allocated_is_an_error() {
        for dtype in Dtype::ALL {
            for len in [usize::MAX, usize::MAX / dtype.size(), isize::MAX as usize, 1 << 56] {
                let error = Buffer::try_filled(dtype, len, 0.0).expect_err("more than any machine has");
                assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
            }
            assert_eq!(Buffer::try_filled(dtype, 3, 0.5).unwrap().to_f64(), [0.5; 3]);
        }
    }

    #[test]
    fn elements_are_aligned_and_survive_the_round_trip_through_bytes() {
        for dtype in Dtype::ALL {
            for len in [0, 1, 7, 100_000] {
                let a = Buffer::from_fn(dtype, len, |i| i as f64 * 0.25 - 3.0);
                let b = Buffer::from_le_bytes(dtype, &a.to_le_bytes());
                assert_eq!((b.len(), b.to_f64()), (len, a.to_f64()));
                for buffer in [a.clone(), b] {
                    let address = typed!(Buffer, &buffer, v => v.as_ptr() as usize);
                    assert!(len == 0 || address % ALIGNMENT == 0, "{dtype} {len} at {address:x}");
                }
            }
        }
    }
}
