//! From the driver's result codes to errors.

use std::ffi::{CStr, c_char};
use std::ptr;

use cudarc::driver::sys::CUresult;
use msda::{Error, ErrorKind, Result};

use super::api::{self, Code};

/// Turns the result code of `call` into an error that names the call, unless it is success.
#[inline]
pub fn check(call: &'static str, code: u32) -> Result<()> {
    if is(code, CUresult::CUDA_SUCCESS) { Ok(()) } else { Err(failure(call, code)) }
}

/// Whether a code is this one.
#[inline]
pub(super) fn is(code: Code, known: CUresult) -> bool {
    code == known as Code
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
    match HINTS.iter().find(|(known, _)| is(code, *known)) {
        Some((_, hint)) => error.hint(*hint),
        None => error,
    }
}

fn kind(code: Code) -> ErrorKind {
    let format = [
        CUresult::CUDA_ERROR_INVALID_IMAGE,
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    ];
    if is(code, CUresult::CUDA_ERROR_OUT_OF_MEMORY) {
        ErrorKind::Memory
    } else if format.iter().any(|known| is(code, *known)) {
        ErrorKind::Format
    } else {
        ErrorKind::Device
    }
}

const HINTS: &[(CUresult, &str)] = &[
    (CUresult::CUDA_ERROR_OUT_OF_MEMORY, "other programs may use the memory: `nvidia-smi` lists them"),
    (
        CUresult::CUDA_ERROR_INVALID_VALUE,
        "a size is larger than the device allows, or an address is not of this device",
    ),
    (CUresult::CUDA_ERROR_INVALID_CONTEXT, FOREIGN),
    (CUresult::CUDA_ERROR_INVALID_HANDLE, FOREIGN),
    (CUresult::CUDA_ERROR_NO_DEVICE, "no GPU is visible: see `nvidia-smi` and CUDA_VISIBLE_DEVICES"),
    (CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, "the kernel was compiled for another architecture"),
    (CUresult::CUDA_ERROR_INVALID_IMAGE, NEWER),
    (CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, NEWER),
    (
        CUresult::CUDA_ERROR_NOT_INITIALIZED,
        "CUDA does not work in a forked process: start a new process instead",
    ),
    (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, LOST),
    (CUresult::CUDA_ERROR_LAUNCH_FAILED, LOST),
    (
        CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        "the block has too many threads for the registers of the kernel",
    ),
];
const FOREIGN: &str = "the stream or module is of another device, or was destroyed";
const NEWER: &str = "the compiler may be newer than the driver";
const LOST: &str = "an earlier kernel failed and the context is lost; find it with `compute-sanitizer`";

/// What the driver says about a code, if it knows the code.
fn text(code: Code, describe: unsafe fn(Code, *mut *const c_char) -> Code) -> Option<String> {
    let mut text = ptr::null();
    // SAFETY: any number is legal; `text` is valid to write.
    let found = unsafe { describe(code, &mut text) };
    if !is(found, CUresult::CUDA_SUCCESS) || text.is_null() {
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
            (CUresult::CUDA_ERROR_OUT_OF_MEMORY, ErrorKind::Memory, "nvidia-smi"),
            (CUresult::CUDA_ERROR_INVALID_IMAGE, ErrorKind::Format, "newer than the driver"),
            (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, ErrorKind::Device, "compute-sanitizer"),
        ] {
            let error = check("cuTest", code as Code).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(hint), "{error}");
        }
    }
}
