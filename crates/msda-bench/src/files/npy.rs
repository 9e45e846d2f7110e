//! NumPy's `.npy`: magic bytes, version, length of the header, a Python dict as text, then the
//! elements.
//!
//! The format is described in NumPy's documentation under `numpy.lib.format`.

mod header;

use msda::{Error, ErrorKind, Result};

use super::stored;
use super::tensor::{Tensor, byte_len};

const MAGIC: &[u8] = b"\x93NUMPY";
const SUBJECT: &str = "npy data";
/// NumPy aligns the elements to this, for mapped files.
const ALIGNMENT: usize = 64;

/// The tensor in the bytes of an `.npy` file.
pub fn parse(bytes: &[u8]) -> Result<Tensor> {
    let (header, data) = split(bytes)?;
    let header::Header { stored, shape } = header::parse(header)?;
    let expected = byte_len(SUBJECT, &shape, stored::size(stored, SUBJECT)?)?;
    if data.len() != expected {
        let got = format!("{} bytes after the header", data.len());
        let expected_text = format!("{expected} for the shape {shape:?} of {stored}");
        let hint = if data.len() < expected {
            "the file is truncated"
        } else {
            "the file has extra bytes at its end"
        };
        return Err(Error::new(ErrorKind::Shape, SUBJECT, got, expected_text)
            .hint(format!("{hint}: save it again with np.save")));
    }
    let data = stored::decode(stored, SUBJECT, data)?;
    Ok(Tensor { shape, data })
}

/// The bytes of an `.npy` file, version 1.0.
pub fn encode(tensor: &Tensor) -> Result<Vec<u8>> {
    tensor.check("npy")?;
    let stored = stored::stored(&tensor.data);
    let descr = header::descr(stored).ok_or_else(|| {
        Error::new(ErrorKind::Type, "npy", format!("{stored} elements"), "F64, F32, F16 or integers")
            .hint("NumPy has no bfloat16: write a .safetensors file")
    })?;
    let lengths: String = tensor.shape.iter().map(|n| format!("{n}, ")).collect();
    // Python requires the comma after a single length and forbids it in `()`.
    let lengths = if tensor.shape.len() == 1 { lengths.trim_end() } else { lengths.trim_end_matches(", ") };
    let mut dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({lengths}), }}");
    let before = MAGIC.len() + 4;
    let total = (before + dict.len() + 1).next_multiple_of(ALIGNMENT);
    dict.extend(std::iter::repeat_n(' ', total - before - dict.len() - 1));
    dict.push('\n');
    let len = u16::try_from(dict.len()).map_err(|_| {
        Error::new(ErrorKind::Overflow, "npy header", format!("{} bytes", dict.len()), "at most 65535")
    })?;

    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend(len.to_le_bytes());
    bytes.extend(dict.bytes());
    bytes.extend(stored::encode(&tensor.data));
    Ok(bytes)
}

/// The header's text and the elements' bytes.
fn split(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let cut = |what: &str| {
        let got = format!("{} bytes in all", bytes.len());
        Error::new(ErrorKind::Shape, "npy file", got, what).hint("the file is truncated or not an .npy")
    };
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        let got = format!("first bytes '{}'", bytes[..bytes.len().min(MAGIC.len())].escape_ascii());
        let error = Error::new(ErrorKind::Format, "npy file", got, "'\\x93NUMPY'");
        let zip = bytes.starts_with(b"PK");
        return Err(if zip { error.hint("this is a zip archive, an .npz perhaps: unzip it") } else { error });
    };
    let Some((&[major, minor], rest)) = rest.split_first_chunk() else { return Err(cut("a version")) };
    let (len, rest) = match (major, minor) {
        (1, 0) => rest.split_first_chunk().map(|(len, rest)| (u16::from_le_bytes(*len).into(), rest)),
        (2 | 3, 0) => rest.split_first_chunk().map(|(len, rest)| (u32::from_le_bytes(*len), rest)),
        _ => {
            let got = format!("{major}.{minor}");
            return Err(Error::new(ErrorKind::Unsupported, "npy version", got, "1.0, 2.0 or 3.0"));
        }
    }
    .ok_or_else(|| cut("the length of the header"))?;
    let present = rest.len();
    let split = usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len));
    split.ok_or_else(|| {
        let got = format!("a length of {len} with {present} bytes left in the file");
        Error::new(ErrorKind::Shape, "npy header", got, "a header inside the file")
            .hint("the file is truncated or damaged")
    })
}
