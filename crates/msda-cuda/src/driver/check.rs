//! From the driver's result codes to errors.

use std::ffi::{CStr, c_char};
use std::ptr;

use msda::{Error, ErrorKind, Result};

use super::api::{self, Code};

const OUT_OF_MEMORY: Code = 2;
pub(super) const NOT_INITIALIZED: Code = 3;
const INVALID_IMAGE: Code = 200;
const NO_BINARY_FOR_GPU: Code = 209;
const UNSUPPORTED_PTX_VERSION: Code = 222;
pub(super) const NOT_FOUND: Code = 500;

/// Turns the result code of `call` into an error that names the call, unless it is success.
#[inline]
pub fn check(call: &'static str, code: u32) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(failure(call, code)) }
}

#[cold]
fn failure(call: &'static str, code: Code) -> Error {
    let name = text(code, api::cuGetErrorName);
    let got = match (name, text(code, api::cuGetErrorString)) {
        (Some(name), Some(meaning)) => format!("{name} ({meaning})"),
        (Some(name), None) => name,
        (None, _) => format!("error {code}"),
    };
    let error = Error::new(kind(code), call, got, "success");
    match HINTS.iter().find(|(known, _)| code == *known) {
        Some((_, hint)) => error.hint(*hint),
        None => error,
    }
}

fn kind(code: Code) -> ErrorKind {
    match code {
        OUT_OF_MEMORY => ErrorKind::Memory,
        INVALID_IMAGE | NO_BINARY_FOR_GPU | UNSUPPORTED_PTX_VERSION => ErrorKind::Format,
        _ => ErrorKind::Device,
    }
}

const HINTS: &[(Code, &str)] = &[
    (1, "a size is larger than the device allows, or an address is not of this device"),
    (OUT_OF_MEMORY, "other programs may use the memory: `nvidia-smi` lists them"),
    (NOT_INITIALIZED, "CUDA does not work in a forked process: start a new process instead"),
    (100, "no GPU is visible: see `nvidia-smi` and CUDA_VISIBLE_DEVICES"),
    (INVALID_IMAGE, NEWER),
    (201, FOREIGN), // invalid context
    (NO_BINARY_FOR_GPU, "the kernel was compiled for another architecture"),
    (UNSUPPORTED_PTX_VERSION, NEWER),
    (400, FOREIGN), // invalid handle
    (700, LOST),    // illegal address
    (701, "the block has too many threads for the registers of the kernel"),
    (719, LOST), // launch failed
];
const FOREIGN: &str = "the stream or module is of another device, or was destroyed";
const NEWER: &str = "the compiler may be newer than the driver";
const LOST: &str = "an earlier kernel failed and the context is lost; find it with `compute-sanitizer`";

/// What the driver says about a code, if it knows the code.
fn text(code: Code, describe: unsafe fn(Code, *mut *const c_char) -> Code) -> Option<String> {
    let mut text = ptr::null();
    // SAFETY: any number is legal; `text` is valid to write.
    let found = unsafe { describe(code, &mut text) };
    if found != 0 || text.is_null() {
        return None;
    }
    // SAFETY: on success `text` is a terminated string that lives as long as the driver.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With and without a driver.
    #[test]
    fn an_unknown_code_is_an_error_with_its_number() {
        let error = check("cuTest", 123_456).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device);
        assert_eq!(error.to_string(), "cuTest: got error 123456, expected success");
    }

    #[test]
    fn known_codes_have_kinds_and_hints() {
        assert_eq!(check("cuTest", 0), Ok(()));
        for (code, kind, hint) in [
            (2, ErrorKind::Memory, "nvidia-smi"),
            (200, ErrorKind::Format, "newer than the driver"),
            (700, ErrorKind::Device, "compute-sanitizer"),
        ] {
            let error = check("cuTest", code).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(hint), "{error}");
        }
    }
}
