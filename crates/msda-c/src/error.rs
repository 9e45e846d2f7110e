//! Codes, the message of the last error, and panics that stop here.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use msda_call::error::{Kind, Result, c_text, catch};

/// No error.
pub const MSDA_OK: i32 = 0;
/// A size or a number is wrong.
pub const MSDA_ERROR_VALUE: i32 = 1;
/// A type is wrong.
pub const MSDA_ERROR_TYPE: i32 = 2;
/// The operator does not compute it.
pub const MSDA_ERROR_NOT_IMPLEMENTED: i32 = 3;
/// There is no memory for it.
pub const MSDA_ERROR_MEMORY: i32 = 4;
/// The machine cannot (no GPU, no driver), or an internal error.
pub const MSDA_ERROR_RUNTIME: i32 = 5;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The message of this thread's last error: what was got, what was expected. It is valid until the
/// next error of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn msda_last_error() -> *const c_char {
    LAST.with_borrow(|text| text.as_ptr())
}

/// The code of a function of this library. Panics stop here.
pub(crate) fn guard(work: impl FnOnce() -> Result<()>) -> i32 {
    let Err(refused) = catch(work) else { return MSDA_OK };
    LAST.with_borrow_mut(|last| *last = c_text(&refused.message));
    match refused.kind {
        Kind::Value => MSDA_ERROR_VALUE,
        Kind::Type => MSDA_ERROR_TYPE,
        Kind::NotImplemented => MSDA_ERROR_NOT_IMPLEMENTED,
        Kind::Memory => MSDA_ERROR_MEMORY,
        Kind::Runtime => MSDA_ERROR_RUNTIME,
    }
}
