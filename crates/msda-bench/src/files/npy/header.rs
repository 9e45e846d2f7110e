//! The dict in an `.npy` header: exactly the keys `descr`, `fortran_order` and `shape`.

use msda::{Error, ErrorKind, Result};

use crate::files::quoted;
use crate::files::stored::Stored;

const SUBJECT: &str = "npy header";

/// The contents of an `.npy` header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) stored: Stored,
    pub(super) shape: Vec<usize>,
}

/// Parses the text of the header.
pub(super) fn parse(text: &[u8]) -> Result<Header> {
    let mut cursor = Cursor { rest: text };
    let (mut stored, mut fortran, mut shape) = (None, None, None);
    cursor.expect(b'{')?;
    while !cursor.eat(b'}') {
        let key = cursor.string("a key in quotes")?;
        cursor.expect(b':')?;
        let again = match key {
            "descr" => stored.replace(cursor.descr()?).is_some(),
            "fortran_order" => fortran.replace(cursor.boolean()?).is_some(),
            "shape" => shape.replace(cursor.shape()?).is_some(),
            _ => return Err(refused(quoted(key), "the keys descr, fortran_order and shape")),
        };
        if again {
            return Err(refused(format!("{} twice", quoted(key)), "each key once"));
        }
        if !cursor.eat(b',') {
            cursor.expect(b'}')?;
            break;
        }
    }
    if !text.ends_with(b"\n") || !cursor.rest.trim_ascii().is_empty() {
        return Err(cursor.unexpected("spaces and a newline after the dict"));
    }
    let missing = |key: &str| refused("none", format!("the key {key}"));
    let header = Header {
        stored: stored.ok_or_else(|| missing("descr"))?,
        shape: shape.ok_or_else(|| missing("shape"))?,
    };
    if fortran.ok_or_else(|| missing("fortran_order"))? {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "npy order",
            "column-major (Fortran)",
            "row-major (C)",
        )
        .hint("save np.ascontiguousarray(a) instead"));
    }
    Ok(header)
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

fn refused(got: impl Into<String>, expected: impl Into<String>) -> Error {
    Error::new(ErrorKind::Format, SUBJECT, got.into(), expected.into())
        .hint("the file is damaged, or not written by np.save")
}

/// The rest of the text. Every method skips white space first.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.eat(byte) { Ok(()) } else { Err(self.unexpected(&format!("'{}'", byte.escape_ascii()))) }
    }

    fn unexpected(&self, expected: &str) -> Error {
        // Shortened before it is copied, because the header may be long.
        let next = String::from_utf8_lossy(&self.rest[..self.rest.len().min(20)]);
        refused(if next.is_empty() { "the end of the header".into() } else { quoted(&next) }, expected)
    }

    /// Consumes the characters at the front that satisfy `belongs`.
    fn take_while(&mut self, belongs: impl Fn(u8) -> bool) -> &'a str {
        let end = self.rest.iter().position(|b| !belongs(*b)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        str::from_utf8(taken).unwrap_or_default()
    }

    fn string(&mut self, what: &str) -> Result<&'a str> {
        let quote = match self.peek() {
            Some(quote @ (b'\'' | b'"')) => quote,
            _ => return Err(self.unexpected(what)),
        };
        self.rest = &self.rest[1..];
        let text = self.take_while(|b| b.is_ascii_graphic() && b != quote && b != b'\\');
        match self.rest.split_first() {
            Some((b, rest)) if *b == quote => {
                self.rest = rest;
                Ok(text)
            }
            _ => Err(self.unexpected("a closing quote")),
        }
    }

    fn descr(&mut self) -> Result<Stored> {
        if self.peek() == Some(b'[') {
            let got = "a record with fields";
            return Err(Error::new(ErrorKind::Type, "npy element type", got, "one number per element")
                .hint("save the fields one by one: np.save(path, a['field'])"));
        }
        from_descr(self.string("an element type in quotes")?)
    }

    fn boolean(&mut self) -> Result<bool> {
        self.peek();
        let before = self.rest;
        match self.take_while(|b| b.is_ascii_alphanumeric()) {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => Err(Cursor { rest: before }.unexpected("True or False")),
        }
    }

    fn shape(&mut self) -> Result<Vec<usize>> {
        self.expect(b'(')?;
        let mut shape = Vec::new();
        while !self.eat(b')') {
            shape.push(self.length()?);
            if !self.eat(b',') {
                // In Python `(3)` is a number; the tuple is `(3,)`.
                if shape.len() == 1 {
                    return Err(self.unexpected("a comma after the only length"));
                }
                self.expect(b')')?;
                break;
            }
        }
        Ok(shape)
    }

    fn length(&mut self) -> Result<usize> {
        self.peek();
        let before = self.rest;
        let digits = self.take_while(|b| b.is_ascii_digit());
        let leading_zero = digits.len() > 1 && digits.starts_with('0');
        if digits.is_empty() || leading_zero {
            return Err(Cursor { rest: before }.unexpected("a length in decimal digits"));
        }
        digits.parse().map_err(|_| {
            let got = quoted(digits);
            Error::new(ErrorKind::Overflow, "npy shape", got, format!("lengths of at most {}", usize::MAX))
        })
    }
}
