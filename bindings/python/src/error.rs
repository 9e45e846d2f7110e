//! From errors of the operator to Python exceptions.

use std::fmt;

use msda::ErrorKind;
use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyNotImplementedError, PyRuntimeError, PyTypeError, PyValueError};

/// The Python exception that an error becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Value,
    Type,
    NotImplemented,
    Memory,
    Runtime,
}

/// A refused call: the exception and its message.
#[derive(Debug, Clone)]
pub(crate) struct Refused {
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

pub(crate) type Result<T> = std::result::Result<T, Refused>;

impl Refused {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// An argument that was `got`, and what was expected.
    pub(crate) fn value(name: &str, got: impl fmt::Display, expected: impl fmt::Display) -> Self {
        Self::new(Kind::Value, format!("{name}: got {got}, expected {expected}"))
    }

    /// As [`Refused::value`], for a wrong element type or a wrong kind of object.
    pub(crate) fn wrong_type(name: &str, got: impl fmt::Display, expected: impl fmt::Display) -> Self {
        Self { kind: Kind::Type, ..Self::value(name, got, expected) }
    }

    /// The message for callers that can only throw a `RuntimeError`. The Python side finds the
    /// exception by the name in front.
    pub(crate) fn tagged(&self) -> String {
        let name = match self.kind {
            Kind::Value => "ValueError",
            Kind::Type => "TypeError",
            Kind::NotImplemented => "NotImplementedError",
            Kind::Memory => "MemoryError",
            Kind::Runtime => "RuntimeError",
        };
        format!("msda.{name}: {}", self.message)
    }
}

impl From<msda::Error> for Refused {
    fn from(error: msda::Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::Shape | ErrorKind::Overflow => Kind::Value,
            ErrorKind::Type => Kind::Type,
            ErrorKind::Unsupported => Kind::NotImplemented,
            ErrorKind::Memory => Kind::Memory,
            _ => Kind::Runtime,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<Refused> for PyErr {
    fn from(refused: Refused) -> Self {
        match refused.kind {
            Kind::Value => PyValueError::new_err(refused.message),
            Kind::Type => PyTypeError::new_err(refused.message),
            Kind::NotImplemented => PyNotImplementedError::new_err(refused.message),
            Kind::Memory => PyMemoryError::new_err(refused.message),
            Kind::Runtime => PyRuntimeError::new_err(refused.message),
        }
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("internal error: {}\nhint: please report it", said.unwrap_or("a panic without a message"))
}
