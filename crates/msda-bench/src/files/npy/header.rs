//! The dict in an `.npy` header: exactly the keys `descr`, `fortran_order` and `shape`.

use msda::{Error, ErrorKind, Result};
use serde::Deserialize;

use crate::files::stored::Stored;
use crate::files::{quoted, shown};

/// The contents of an `.npy` header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) stored: Stored,
    pub(super) shape: Vec<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dict {
    descr: String,
    fortran_order: bool,
    shape: Vec<usize>,
}

/// Parses the text of the header.
pub(super) fn parse(text: &[u8]) -> Result<Header> {
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
    Ok(Header { stored: from_descr(&dict.descr)?, shape: dict.shape })
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
pub(super) fn descr(stored: Stored) -> Option<&'static str> {
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
