//! A tensor of a file, and the computation of its size.

use msda::{Buffer, Error, ErrorKind, Result};

/// The most dimensions that NumPy supports.
const MAX_RANK: usize = 64;

/// Elements in row-major order, and the lengths of their dimensions.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Lengths of the dimensions, outermost first; empty for a single number.
    pub shape: Vec<usize>,
    /// The elements.
    pub data: Data,
}

/// The elements of a [`Tensor`].
#[derive(Debug, Clone)]
pub enum Data {
    /// Floating-point numbers, in the type of the file.
    Float(Buffer),
    /// Integers, widened to 64 bits.
    Int(Vec<i64>),
}

impl Data {
    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Float(buffer) => buffer.len(),
            Self::Int(ints) => ints.len(),
        }
    }
}

impl Tensor {
    /// The floating-point elements. Messages use `name`.
    pub fn float(&self, name: &str) -> Result<&Buffer> {
        match &self.data {
            Data::Float(buffer) => Ok(buffer),
            Data::Int(_) => Err(Error::new(ErrorKind::Type, name, "integers", "f64, f32, f16 or bf16")
                .hint("convert before saving: a.astype(np.float32) or t.float()")),
        }
    }

    /// The integer elements. Messages use `name`.
    pub fn ints(&self, name: &str) -> Result<&[i64]> {
        match &self.data {
            Data::Int(ints) => Ok(ints),
            Data::Float(buffer) => Err(Error::new(ErrorKind::Type, name, buffer.dtype(), "integers")
                .hint("convert before saving: a.astype(np.int64) or t.long()")),
        }
    }

    /// Checks that shape and elements match, because the fields are public.
    pub(super) fn check(&self, subject: &str) -> Result<()> {
        let expected = byte_len(subject, &self.shape, 1)?;
        if self.data.len() == expected {
            return Ok(());
        }
        let got = format!("{} elements", self.data.len());
        let expected = format!("{expected} for the shape {:?}", self.shape);
        Err(Error::new(ErrorKind::Shape, subject, got, expected))
    }
}

/// Bytes of a tensor of `shape` with `size` bytes per element.
pub(super) fn byte_len(subject: &str, shape: &[usize], size: usize) -> Result<usize> {
    if shape.len() > MAX_RANK {
        let got = format!("{} dimensions", shape.len());
        return Err(Error::new(ErrorKind::Shape, subject, got, format!("at most {MAX_RANK}")));
    }
    // Zeros are left out, as in NumPy: the strides of an empty tensor must not overflow either.
    let bytes = shape.iter().filter(|n| **n != 0).try_fold(size, |product, n| product.checked_mul(*n));
    match bytes.filter(|bytes| isize::try_from(*bytes).is_ok()) {
        Some(_) if shape.contains(&0) => Ok(0),
        Some(bytes) => Ok(bytes),
        None => Err(Error::new(
            ErrorKind::Overflow,
            subject,
            format!("the shape {shape:?} of {size}-byte elements"),
            format!("at most {} bytes", isize::MAX),
        )),
    }
}
