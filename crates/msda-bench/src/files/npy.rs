//! NumPy's `.npy`: magic bytes, version, length of the header, a Python dict as text, then the
//! elements.
//!
//! The format is described in NumPy's documentation under `numpy.lib.format`.

use msda::{Error, ErrorKind, Result};
use serde::Deserialize;

use super::stored::{self, Stored};
use super::tensor::{Tensor, byte_len};
use super::{quoted, shown};

const MAGIC: &[u8] = b"\x93NUMPY";
const SUBJECT: &str = "npy data";
/// NumPy aligns the elements to this, for mapped files.
const ALIGNMENT: usize = 64;

/// The tensor in the bytes of an `.npy` file.
pub fn parse(bytes: &[u8]) -> Result<Tensor> {
    let (text, data) = split(bytes)?;
    let (stored, shape) = header(text)?;
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
    let descr = descr(stored).ok_or_else(|| {
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

/// The dict in the header: exactly these keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dict {
    descr: String,
    fortran_order: bool,
    shape: Vec<usize>,
}

/// The type and the shape in the text of the header.
fn header(text: &[u8]) -> Result<(Stored, Vec<usize>)> {
    let text = str::from_utf8(text).map_err(|e| refused(&e.to_string()))?;
    if !text.ends_with('\n') {
        return Err(refused("no newline at the end"));
    }
    if text.contains('[') {
        let got = "a record with fields, or another list";
        return Err(Error::new(ErrorKind::Type, "npy header", got, "one number per element, and a tuple")
            .hint("save the fields one by one: np.save(path, a['field'])"));
    }
    let tuple = text.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    if tuple.is_some_and(|(inside, _)| !inside.trim().is_empty() && !inside.contains(',')) {
        return Err(refused("(N), which is a number, for the tuple (N,)"));
    }
    let dict: Dict = serde_json::from_str(&as_json(text)).map_err(|e| refused(&e.to_string()))?;
    if dict.fortran_order {
        let got = "column-major (Fortran)";
        return Err(Error::new(ErrorKind::Unsupported, "npy order", got, "row-major (C)")
            .hint("save np.ascontiguousarray(a) instead"));
    }
    Ok((from_descr(&dict.descr)?, dict.shape))
}

/// Python's text as JSON: other quotes, brackets and truth values, and no comma at the end of a
/// dict or tuple.
fn as_json(text: &str) -> String {
    let last = |at: usize| text[at + 1..].trim_start().starts_with(['}', ')']);
    let json: String = text
        .char_indices()
        .filter(|&(at, c)| c != ',' || !last(at))
        .map(|(_, c)| match c {
            '\'' => '"',
            '(' => '[',
            ')' => ']',
            c => c,
        })
        .collect();
    json.replace("True", "true").replace("False", "false")
}

/// Names of element types. Of two names for one type, the first is written.
const DESCRS: [(&str, Stored); 13] = [
    ("<f8", Stored::F64),
    ("<f4", Stored::F32),
    ("<f2", Stored::F16),
    ("|i1", Stored::I8),
    ("<i1", Stored::I8),
    ("<i2", Stored::I16),
    ("<i4", Stored::I32),
    ("<i8", Stored::I64),
    ("|u1", Stored::U8),
    ("<u1", Stored::U8),
    ("<u2", Stored::U16),
    ("<u4", Stored::U32),
    ("<u8", Stored::U64),
];

/// The name of an element type, if NumPy has it.
fn descr(stored: Stored) -> Option<&'static str> {
    DESCRS.iter().find(|(_, s)| *s == stored).map(|(descr, _)| *descr)
}

fn from_descr(descr: &str) -> Result<Stored> {
    if let Some((_, stored)) = DESCRS.iter().find(|(d, _)| *d == descr) {
        return Ok(*stored);
    }
    if descr.starts_with('>') {
        let error = Error::new(ErrorKind::Unsupported, "npy byte order", quoted(descr), "little-endian, '<'");
        return Err(error.hint("save a.astype(a.dtype.newbyteorder('<')) instead"));
    }
    let hint = match descr {
        // NumPy stores the bfloat16 of an extension as two untyped bytes.
        "<V2" | "|V2" => "if this is bfloat16, which NumPy lacks, use a .safetensors file",
        _ => "convert before saving: a.astype(np.float32)",
    };
    Err(Error::new(ErrorKind::Type, "npy element type", quoted(descr), "f2, f4, f8, i1..i8 or u1..u8")
        .hint(hint))
}

fn refused(got: &str) -> Error {
    let expected = "a Python dict with the keys descr, fortran_order and shape";
    Error::new(ErrorKind::Format, "npy header", shown(got), expected)
        .hint("the file is damaged, or not written by np.save")
}
