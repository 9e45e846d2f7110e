//! Whether there is a driver, and whether it is new enough.

use std::error::Error as _;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use libloading::Library;
use msda::{Error, ErrorKind, Result};

use super::api::{self, Code};
use super::check::check;

/// The oldest driver that has every function used here.
const OLDEST: (u32, u32) = (12, 0);

const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// The driver's library, or what the system loader said about each of its names.
fn library() -> std::result::Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let mut said = Vec::new();
        for name in NAMES {
            // SAFETY: loading the driver's library runs its initialisers, which have no
            // requirements.
            match unsafe { Library::new(*name) } {
                Ok(library) => return Ok(library),
                Err(error) => said.push(explain(&error)),
            }
        }
        Err(said.join("; "))
    });
    library.as_ref().map_err(String::as_str)
}

/// Why the driver's library could not be loaded, in the words of the system loader.
pub fn driver_problem() -> Option<&'static str> {
    library().err()
}

/// The address of a function of the driver, for functions that are not wrapped here. Result codes
/// are `u32`.
pub fn symbol(name: &str) -> Result<*const c_void> {
    driver_version()?;
    let library =
        library().map_err(|why| Error::new(ErrorKind::Unsupported, "CUDA driver", why, "a driver"))?;
    // SAFETY: the address is only returned; the library is never unloaded.
    let found = unsafe { library.get::<*const c_void>(name) }.map_err(incomplete)?;
    Ok(*found)
}

/// What the system loader says; the error itself keeps that in its source.
pub(crate) fn explain(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The newest CUDA version that the driver supports, such as `(13, 0)`. An error when there is no
/// driver, or when it is too old.
pub fn driver_version() -> Result<(u32, u32)> {
    static VERSION: OnceLock<Result<(u32, u32)>> = OnceLock::new();
    VERSION.get_or_init(query_version).clone()
}

fn query_version() -> Result<(u32, u32)> {
    type GetVersion = unsafe extern "C" fn(*mut c_int) -> Code;
    let library = library().map_err(|_| {
        let got = "none (no NVIDIA driver was found)";
        Error::new(ErrorKind::Unsupported, "GPU", got, "an NVIDIA GPU with its driver")
            .hint("install NVIDIA's driver, or use a machine with a GPU")
    })?;
    // By itself, because an old driver lacks other functions.
    // SAFETY: the type is that of cuda.h, and the library is never unloaded.
    let get_version = *unsafe { library.get::<GetVersion>("cuDriverGetVersion") }.map_err(incomplete)?;
    let mut number: c_int = 0;
    // SAFETY: `number` is valid to write.
    check("cuDriverGetVersion", unsafe { get_version(&mut number) })?;
    let version = supported(number)?;
    // SAFETY: the library is the driver's and is never unloaded.
    unsafe { api::load(library) }.map_err(incomplete)?;
    Ok(version)
}

fn incomplete(error: libloading::Error) -> Error {
    Error::new(ErrorKind::Unsupported, "CUDA driver", explain(&error), "all functions of CUDA 12.0")
        .hint("the driver's installation may be damaged: install it again")
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

/// Initialises the driver. Cheap after the first call.
pub(super) fn initialise() -> Result<()> {
    static INITIALISED: OnceLock<Result<()>> = OnceLock::new();
    INITIALISED
        .get_or_init(|| {
            driver_version()?;
            // SAFETY: 0 is the only flag.
            check("cuInit", unsafe { api::cuInit(0) })
        })
        .clone()
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
