//! A tensor of the caller. Sizes and strides may be any numbers, so all arithmetic is checked.

use std::ffi::c_void;
use std::fmt;

use msda::{Dtype, Strides};

use crate::error::{Refused, Result};

/// A tensor of the caller. The memory is as large as sizes and strides say.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// The argument's name, for messages.
    pub name: &'static str,
    /// The address of the first element.
    pub data: *mut c_void,
    /// The type of the elements.
    pub dtype: Dtype,
    /// One number per dimension.
    pub sizes: &'a [i64],
    /// One number per dimension, in elements. A dense tensor needs none.
    pub strides: Option<&'a [i64]>,
}

/// More dimensions than any tensor of the operator has.
pub const MOST_DIMENSIONS: usize = 8;

/// The stride of a dimension of a dense tensor; the largest number if it is larger.
pub fn dense_stride(sizes: &[i64], dim: usize) -> i64 {
    sizes.iter().skip(dim + 1).fold(1, |stride, &size| stride.saturating_mul(size.max(1)))
}

impl Tensor<'_> {
    /// The stride of a dimension.
    fn stride(&self, dim: usize) -> i64 {
        self.strides.map_or_else(|| dense_stride(self.sizes, dim), |strides| strides[dim])
    }

    /// Sizes and strides, for messages.
    fn sizes_and_strides(&self) -> String {
        let strides: Vec<i64> = (0..self.sizes.len()).map(|dim| self.stride(dim)).collect();
        format!("shape {:?} with strides {strides:?}", self.sizes)
    }

    /// The sizes, for messages.
    pub fn shape(&self) -> String {
        format!("shape {:?}", self.sizes)
    }

    /// Whether the dimensions from `first` on are contiguous.
    pub fn dense_from(&self, first: usize) -> bool {
        let Some(strides) = self.strides else { return true };
        let is_dense = |dim: usize| self.sizes[dim] == 1 || strides[dim] == dense_stride(self.sizes, dim);
        self.sizes.contains(&0) || (first..self.sizes.len()).all(is_dense)
    }

    /// The strides of the three outer dimensions; 0 for those that are never used. The dimensions
    /// from `inner` on must be contiguous.
    pub(super) fn outer(&self, inner: usize) -> Result<Strides> {
        if !self.dense_from(inner) {
            let expected = "contiguous inner dimensions";
            return Err(Refused::value(self.name, self.sizes_and_strides(), expected));
        }
        let mut strides = [0; 3];
        for dim in (0..self.sizes.len().min(3)).filter(|&dim| self.sizes[dim] > 1) {
            let stride = self.stride(dim);
            strides[dim] = usize::try_from(stride).map_err(|_| {
                Refused::value(self.name, format!("stride {stride}"), "strides of at least 0")
            })?;
        }
        Ok(strides)
    }

    /// The strides of the three outer dimensions of a dense tensor.
    pub(crate) fn dense_outer(&self) -> Strides {
        [0, 1, 2].map(|dim| dense_stride(self.sizes, dim) as usize)
    }

    /// Elements from the first to behind the last. Refuses more than memory can have.
    pub(crate) fn span(&self) -> Result<usize> {
        if self.sizes.contains(&0) {
            return Ok(0);
        }
        let last = self.sizes.iter().enumerate().try_fold(0i64, |last, (dim, &size)| {
            last.checked_add(size.checked_sub(1)?.checked_mul(self.stride(dim))?)
        });
        let span = last.and_then(|last| usize::try_from(last).ok()?.checked_add(1));
        let bytes = span.and_then(|span| span.checked_mul(self.dtype.size()));
        match (span, bytes) {
            (Some(span), Some(0..=MOST_BYTES)) => Ok(span),
            _ => Err(Refused::value(self.name, self.sizes_and_strides(), "a span that fits memory")),
        }
    }

    /// The size of a dimension that the tensor has.
    pub(super) fn size(&self, dim: usize) -> Result<usize> {
        usize::try_from(self.sizes[dim])
            .map_err(|_| Refused::value(self.name, self.shape(), "sizes of at least 0"))
    }

    /// Refuses a destination that is not dense, or of another shape or type.
    pub(super) fn check_dense(&self, sizes: &[i64], dtype: Dtype) -> Result<()> {
        if self.sizes != sizes || !self.dense_from(0) {
            let expected = format!("a contiguous tensor of shape {sizes:?}");
            return Err(Refused::value(self.name, self.sizes_and_strides(), expected));
        }
        self.check_type(dtype)
    }

    /// Refuses another type.
    pub(super) fn check_type(&self, dtype: Dtype) -> Result<()> {
        if self.dtype == dtype {
            return Ok(());
        }
        Err(Refused::wrong_type(self.name, self.dtype, dtype))
    }

    /// Refuses another shape. `words` say what the dimensions are.
    pub(super) fn check_shape(&self, expected: &[i64], words: impl fmt::Display) -> Result<()> {
        if self.sizes == expected {
            return Ok(());
        }
        Err(Refused::value(self.name, self.shape(), format!("{expected:?} ({words})")))
    }
}

/// No memory is larger.
const MOST_BYTES: usize = isize::MAX as usize;
