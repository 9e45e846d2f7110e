//! From the driver's result codes to errors.

use std::ffi::CStr;
use std::ptr;

use cudarc::driver::sys::{self, CUresult};
use msda::{Error, ErrorKind, Result};

/// Turns what `call` returned into an error that names it, unless it succeeded.
#[inline]
pub fn check(call: &'static str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failure(call, result)) }
}

#[cold]
fn failure(call: &'static str, result: CUresult) -> Error {
    let got = format!("{} ({})", text(result, sys::cuGetErrorName), text(result, sys::cuGetErrorString));
    let kind = match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => ErrorKind::Memory,
        CUresult::CUDA_ERROR_INVALID_IMAGE
        | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => ErrorKind::Format,
        _ => ErrorKind::Device,
    };
    let error = Error::new(kind, call, got, "success");
    match hint(result) {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

fn hint(result: CUresult) -> Option<&'static str> {
    Some(match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => "free what others hold: `nvidia-smi` lists them",
        CUresult::CUDA_ERROR_INVALID_VALUE => "a size is more than the device has, or an address is not its",
        CUresult::CUDA_ERROR_INVALID_CONTEXT | CUresult::CUDA_ERROR_INVALID_HANDLE => {
            "a stream or a module of another device, or one that was destroyed"
        }
        CUresult::CUDA_ERROR_NO_DEVICE => "no GPU is visible: see `nvidia-smi` and CUDA_VISIBLE_DEVICES",
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => "the kernel was compiled for another architecture",
        CUresult::CUDA_ERROR_INVALID_IMAGE | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "the compiler may be newer than the driver"
        }
        CUresult::CUDA_ERROR_NOT_INITIALIZED => "CUDA does not survive a fork: start the process anew",
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS | CUresult::CUDA_ERROR_LAUNCH_FAILED => {
            "an earlier kernel failed and the context is lost; `compute-sanitizer` finds which"
        }
        CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => "too many threads a block for the kernel's registers",
        _ => return None,
    })
}

type Describe = unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult;

fn text(result: CUresult, describe: Describe) -> String {
    let mut text = ptr::null();
    // SAFETY: a result came from the driver, so it is loaded; `text` is valid to write.
    let found = unsafe { describe(result, &mut text) };
    if found != CUresult::CUDA_SUCCESS || text.is_null() {
        return format!("error {}", result as u32);
    }
    // SAFETY: on success `text` is a terminated string that lives as long as the driver.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
