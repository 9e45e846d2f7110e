//! The element types of files, by their names in safetensors, and their conversion from bytes.

pub(super) use ::safetensors::Dtype as Stored;
use msda::{Buffer, Dtype, Error, ErrorKind, Result};

use super::tensor::Data;

/// The type in which `data` is written.
pub(super) fn stored(data: &Data) -> Stored {
    match data {
        Data::Int(_) => Stored::I64,
        Data::Float(buffer) => match buffer.dtype() {
            Dtype::F64 => Stored::F64,
            Dtype::F32 => Stored::F32,
            Dtype::F16 => Stored::F16,
            Dtype::Bf16 => Stored::BF16,
        },
    }
}

/// Bytes of one element. A type that is not read is an error about `subject`.
pub(super) fn size(stored: Stored, subject: &str) -> Result<usize> {
    use Stored::{BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
    match stored {
        F64 | F32 | F16 | BF16 | I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64 => Ok(stored.bitsize() / 8),
        _ => Err(Error::new(ErrorKind::Type, subject, stored, "F64, F32, F16, BF16, I8..I64 or U8..U64")
            .hint("convert before saving: t.float() or t.long()")),
    }
}

/// The elements in `bytes`, whose type and length the caller has checked.
pub(super) fn decode(stored: Stored, subject: &str, bytes: &[u8]) -> Result<Data> {
    let float = |dtype| Ok(Data::Float(Buffer::from_le_bytes(dtype, bytes)));
    match stored {
        Stored::F64 => float(Dtype::F64),
        Stored::F32 => float(Dtype::F32),
        Stored::F16 => float(Dtype::F16),
        Stored::BF16 => float(Dtype::Bf16),
        Stored::I8 => ints(bytes, i8::from_le_bytes),
        Stored::I16 => ints(bytes, i16::from_le_bytes),
        Stored::I32 => ints(bytes, i32::from_le_bytes),
        Stored::I64 => ints(bytes, i64::from_le_bytes),
        Stored::U8 => ints(bytes, u8::from_le_bytes),
        Stored::U16 => ints(bytes, u16::from_le_bytes),
        Stored::U32 => ints(bytes, u32::from_le_bytes),
        _ => {
            let all = bytes.as_chunks().0.iter().map(|chunk| u64::from_le_bytes(*chunk));
            let number = |(i, x): (usize, u64)| {
                i64::try_from(x).map_err(|_| {
                    let (got, expected) = (format!("{x} at position {i}"), format!("at most {}", i64::MAX));
                    Error::new(ErrorKind::Overflow, subject, got, expected)
                        .hint("integers are read as signed 64-bit numbers")
                })
            };
            Ok(Data::Int(all.enumerate().map(number).collect::<Result<_>>()?))
        }
    }
}

/// The little-endian bytes of `data`, in the type that [`stored`] returns.
pub(super) fn encode(data: &Data) -> Vec<u8> {
    match data {
        Data::Float(buffer) => buffer.to_le_bytes(),
        Data::Int(ints) => ints.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

fn ints<const N: usize, T: Into<i64>>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Result<Data> {
    Ok(Data::Int(bytes.as_chunks::<N>().0.iter().map(|chunk| read(*chunk).into()).collect()))
}
