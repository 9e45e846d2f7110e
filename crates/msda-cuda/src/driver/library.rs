//! Whether there is a driver, and whether it is new enough.

use std::error::Error as _;
use std::ffi::c_int;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUevent, CUresult};
use libloading::Library;
use msda::{Error, ErrorKind, Result};

use super::check::check;

/// The oldest driver that has every function used here.
const OLDEST: (u32, u32) = (12, 0);

const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// The driver's library. Asked before any function of `sys`, which panics when it cannot be loaded. (`sys` has a
/// question for this too, but not when another crate of the build makes it link instead of load.)
fn library() -> Result<&'static Library> {
    load().as_ref().map_err(|_| {
        Error::new(ErrorKind::Unsupported, "CUDA driver", "none", "an NVIDIA driver")
            .hint("install NVIDIA's driver; `nvidia-smi` tells whether it works")
    })
}

/// Why the driver's library cannot be loaded; none if it can.
pub fn loader_error() -> Option<&'static str> {
    load().as_ref().err().map(String::as_str)
}

fn load() -> &'static std::result::Result<Library, String> {
    static LIBRARY: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let mut why = Vec::new();
        for name in NAMES {
            // SAFETY: loading the driver's library runs its initialisers, which have no requirements.
            match unsafe { Library::new(*name) } {
                Ok(library) => return Ok(library),
                Err(error) => why.push(explain(&error)),
            }
        }
        Err(why.join("; "))
    })
}

/// What the system's loader says, which the error itself keeps to its source.
pub(crate) fn explain(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The newest CUDA version that the driver supports, such as `(13, 0)`. An error when there is no driver, or one
/// that is too old.
pub fn driver_version() -> Result<(u32, u32)> {
    static VERSION: OnceLock<Result<(u32, u32)>> = OnceLock::new();
    VERSION.get_or_init(query_version).clone()
}

fn query_version() -> Result<(u32, u32)> {
    library()?;
    let mut number: c_int = 0;
    // SAFETY: the library is there; `number` is valid to write.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut number) })?;
    supported(number)
}

/// The version that a driver's number stands for, unless it is too old.
fn supported(number: c_int) -> Result<(u32, u32)> {
    let number = u32::try_from(number).unwrap_or(0);
    let version = (number / 1000, number % 1000 / 10);
    if version < OLDEST {
        let got = format!("CUDA {}.{}", version.0, version.1);
        let expected = format!("CUDA {}.{} or newer", OLDEST.0, OLDEST.1);
        return Err(Error::new(ErrorKind::Unsupported, "CUDA driver", got, expected)
            .hint("update NVIDIA's driver (525 or newer)"));
    }
    Ok(version)
}

/// Makes the driver ready for use. Cheap after the first call.
pub(super) fn ready() -> Result<()> {
    static READY: OnceLock<Result<()>> = OnceLock::new();
    READY
        .get_or_init(|| {
            driver_version()?;
            // SAFETY: the library is there and has this function; 0 is the only flag.
            check("cuInit", unsafe { sys::cuInit(0) })
        })
        .clone()
}

/// The function that measures between two events.
pub(super) type ElapsedTime = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

/// `cuEventElapsedTime`, by its first name: `sys` has only the second, which drivers before 12.8 lack.
pub(super) fn elapsed_time() -> Result<ElapsedTime> {
    // SAFETY: the type is the function's declaration in cuda.h, and the library is never unloaded.
    let symbol = unsafe { library()?.get::<ElapsedTime>(c"cuEventElapsedTime") };
    symbol.map(|function| *function).map_err(|error| {
        Error::new(ErrorKind::Unsupported, "CUDA driver", explain(&error), "the function cuEventElapsedTime")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_driver_is_refused() {
        assert_eq!(supported(12000), Ok((12, 0)));
        assert_eq!(supported(13020), Ok((13, 2)));
        for old in [11080, 0, -1] {
            let error = supported(old).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let said = error.to_string();
            assert!(said.contains("12.0 or newer") && said.contains("hint: update"), "{said}");
        }
        assert!(supported(11080).unwrap_err().to_string().contains("11.8"));
    }
}
