//! The element types of files, and their conversion from bytes.

use std::fmt;

use msda::{Buffer, Dtype, Error, ErrorKind, Result};

use super::tensor::Data;

/// The type of a tensor's elements in a file, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    Float(Dtype),
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

impl Stored {
    /// Every type.
    pub(super) const ALL: [Self; 12] = [
        Self::Float(Dtype::F64),
        Self::Float(Dtype::F32),
        Self::Float(Dtype::F16),
        Self::Float(Dtype::Bf16),
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
    ];

    /// The type in which `data` is written.
    pub(super) fn of(data: &Data) -> Self {
        match data {
            Data::Float(buffer) => Self::Float(buffer.dtype()),
            Data::Int(_) => Self::I64,
        }
    }

    /// Bytes of one element.
    pub(super) fn size(self) -> usize {
        match self {
            Self::Float(dtype) => dtype.size(),
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 => 4,
            Self::I64 | Self::U64 => 8,
        }
    }

    /// The elements in `bytes`, whose length the caller has checked. Messages name `subject`.
    pub(super) fn decode(self, subject: &str, bytes: &[u8]) -> Result<Data> {
        Ok(Data::Int(match self {
            Self::Float(dtype) => return Ok(Data::Float(Buffer::from_le_bytes(dtype, bytes))),
            Self::I8 => ints(bytes, i8::from_le_bytes),
            Self::I16 => ints(bytes, i16::from_le_bytes),
            Self::I32 => ints(bytes, i32::from_le_bytes),
            Self::I64 => ints(bytes, i64::from_le_bytes),
            Self::U8 => ints(bytes, u8::from_le_bytes),
            Self::U16 => ints(bytes, u16::from_le_bytes),
            Self::U32 => ints(bytes, u32::from_le_bytes),
            Self::U64 => {
                // Numbers that do not fit are negative when read as signed.
                let all = ints(bytes, i64::from_le_bytes);
                if let Some(i) = all.iter().position(|x| *x < 0) {
                    let got = format!("{} at position {i}", all[i].cast_unsigned());
                    let expected = format!("at most {}", i64::MAX);
                    return Err(Error::new(ErrorKind::Overflow, subject, got, expected)
                        .hint("integers are read as signed 64-bit numbers"));
                }
                all
            }
        }))
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Float(dtype) => dtype.name(),
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
        })
    }
}

/// The little-endian bytes of `data`, in the type [`Stored::of`] returns.
pub(super) fn encode(data: &Data) -> Vec<u8> {
    match data {
        Data::Float(buffer) => buffer.to_le_bytes(),
        Data::Int(ints) => ints.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

fn ints<const N: usize, T: Into<i64>>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<i64> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| read(*chunk).into()).collect()
}
