//! Refused calls: a kind, and a message that says what was got and what was expected.

use std::ffi::CString;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use msda::ErrorKind;

/// What is wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A size or a number.
    Value,
    /// A type.
    Type,
    /// The operator does not compute it.
    NotImplemented,
    /// There is no memory for it.
    Memory,
    /// The machine cannot, or an internal error.
    Runtime,
}

/// A refused call.
#[derive(Debug, Clone)]
pub struct Refused {
    /// What is wrong.
    pub kind: Kind,
    /// The argument, what was got, what was expected, and a hint.
    pub message: String,
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Refused>;

impl Refused {
    /// A refused call with a message.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// An argument that was `got`, and what was expected.
    pub fn value(name: &str, got: impl fmt::Display, expected: impl fmt::Display) -> Self {
        Self::new(Kind::Value, format!("{name}: got {got}, expected {expected}"))
    }

    /// As [`Refused::value`], for a wrong element type or a wrong kind of object.
    pub fn wrong_type(name: &str, got: impl fmt::Display, expected: impl fmt::Display) -> Self {
        Self { kind: Kind::Type, ..Self::value(name, got, expected) }
    }
}

impl From<msda::Error> for Refused {
    fn from(error: msda::Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::Shape | ErrorKind::Overflow | ErrorKind::Format => Kind::Value,
            ErrorKind::Type => Kind::Type,
            ErrorKind::Unsupported => Kind::NotImplemented,
            ErrorKind::Memory => Kind::Memory,
            _ => Kind::Runtime,
        };
        Self::new(kind, error.to_string())
    }
}

/// Runs what C calls. A panic becomes a refused call.
pub fn catch<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let said = said.unwrap_or("a panic without a message");
        Err(Refused::new(Kind::Runtime, format!("internal error: {said}\nhint: please report it")))
    })
}

/// A message as C takes it.
pub fn c_text(message: &str) -> CString {
    CString::new(message.replace('\0', " ")).unwrap_or_default()
}
