//! From refused calls to Python exceptions.

use msda_call::error::{Kind, Refused};
use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyNotImplementedError, PyRuntimeError, PyTypeError, PyValueError};

/// A refused call that becomes a Python exception.
#[derive(Debug, Clone)]
pub(crate) struct Exception(Refused);

/// The result of a function that Python calls.
pub(crate) type PyResult<T> = std::result::Result<T, Exception>;

impl<E: Into<Refused>> From<E> for Exception {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl From<Exception> for PyErr {
    fn from(Exception(Refused { kind, message }): Exception) -> Self {
        match kind {
            Kind::Value => PyValueError::new_err(message),
            Kind::Type => PyTypeError::new_err(message),
            Kind::NotImplemented => PyNotImplementedError::new_err(message),
            Kind::Memory => PyMemoryError::new_err(message),
            Kind::Runtime => PyRuntimeError::new_err(message),
        }
    }
}

/// The message for callers that can only throw a `RuntimeError`. The Python side finds the
/// exception by the name in front.
pub(crate) fn tagged(refused: &Refused) -> String {
    let name = match refused.kind {
        Kind::Value => "ValueError",
        Kind::Type => "TypeError",
        Kind::NotImplemented => "NotImplementedError",
        Kind::Memory => "MemoryError",
        Kind::Runtime => "RuntimeError",
    };
    format!("msda.{name}: {}", refused.message)
}
