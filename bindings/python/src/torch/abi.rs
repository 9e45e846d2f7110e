//! The part of torch's stable C ABI that the operators need, found at run time.
//!
//! The extension is not linked to torch: it asks the libraries that the process has loaded. So one
//! binary serves every version of torch that has these functions.

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::sync::OnceLock;

use libloading::Library;
use msda_call::dtypes::Dtypes;

/// A tensor of torch (`AtenTensorHandle`).
pub(crate) type Handle = *mut c_void;

/// The code that functions return: 0 is success.
pub(crate) type Code = i32;

/// A kernel: arguments and results share one array of 64-bit words.
pub(crate) type Boxed = unsafe extern "C-unwind" fn(*mut u64, u64, u64);

macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($name:ident: fn($($arg:ty),*) -> $result:ty;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C-unwind" fn($($arg),*) -> $result,)*
        }

        impl $table {
            /// Finds every function, or names the first that is missing.
            ///
            /// # Safety
            /// The library is torch's and is never unloaded.
            unsafe fn load(library: &Library) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: the type is that of torch's header.
                        *unsafe { library.get(name) }.map_err(|_| {
                            concat!("torch has no ", stringify!($name), " in its C ABI").to_owned()
                        })?
                    },)*
                })
            }
        }
    };
}

functions! {
    /// Functions of `libtorch_cpu`.
    Core {
        aoti_torch_device_type_cpu: fn() -> i32;
        aoti_torch_device_type_cuda: fn() -> i32;
        aoti_torch_dtype_float64: fn() -> i32;
        aoti_torch_dtype_float32: fn() -> i32;
        aoti_torch_dtype_float16: fn() -> i32;
        aoti_torch_dtype_bfloat16: fn() -> i32;
        aoti_torch_dtype_int64: fn() -> i32;
        aoti_torch_dtype_int32: fn() -> i32;
        aoti_torch_dtype_uint8: fn() -> i32;
        aoti_torch_get_dim: fn(Handle, *mut i64) -> Code;
        aoti_torch_get_sizes: fn(Handle, *mut *mut i64) -> Code;
        aoti_torch_get_strides: fn(Handle, *mut *mut i64) -> Code;
        aoti_torch_get_dtype: fn(Handle, *mut i32) -> Code;
        aoti_torch_get_device_type: fn(Handle, *mut i32) -> Code;
        aoti_torch_get_device_index: fn(Handle, *mut i32) -> Code;
        aoti_torch_get_data_ptr: fn(Handle, *mut *mut c_void) -> Code;
        aoti_torch_empty_strided: fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> Code;
        aoti_torch_copy_: fn(Handle, Handle, i32) -> Code;
        aoti_torch_delete_tensor_object: fn(Handle) -> Code;
        aoti_torch_check: fn(bool, *const c_char, *const c_char, u32, *const c_char) -> ();
        aoti_torch_library_init_impl: fn(*const c_char, *const c_char, *const c_char, u32, *mut *mut c_void) -> Code;
        aoti_torch_library_impl: fn(*mut c_void, *const c_char, Boxed) -> Code;
    }
}

functions! {
    /// Functions of `libtorch_cuda`.
    Cuda {
        aoti_torch_get_current_cuda_stream: fn(i32, *mut *mut c_void) -> Code;
    }
}

/// The number of threads that torch is set to; exists from 2.10 on.
type NumThreads = unsafe extern "C-unwind" fn(*mut u32) -> Code;

/// The same of OpenMP, which torch uses, for older versions.
type OpenMpThreads = unsafe extern "C-unwind" fn() -> i32;

/// Everything that was found, and torch's constants.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) core: Core,
    pub(crate) cuda: Option<Cuda>,
    num_threads: Option<NumThreads>,
    openmp_threads: Option<OpenMpThreads>,
    pub(crate) cpu: i32,
    pub(crate) gpu: i32,
    pub(crate) floats: Dtypes<i32>,
    pub(crate) i64: i32,
    pub(crate) i32: i32,
    pub(crate) u8: i32,
}

static API: OnceLock<Api> = OnceLock::new();

impl Api {
    /// The functions of the libraries that the process has loaded. The error names what is missing.
    pub(crate) fn load(cpu: &Path, cuda: Option<&Path>) -> Result<&'static Self, String> {
        if let Some(api) = API.get() {
            return Ok(api);
        }
        let library = loaded(cpu)?;
        // SAFETY: torch's library, which stays loaded: the handle is never closed.
        let core = unsafe { Core::load(library)? };
        let cuda = match cuda {
            // SAFETY: torch's library for CUDA, which stays loaded too.
            Some(path) => Some(unsafe { Cuda::load(loaded(path)?)? }),
            None => None,
        };
        // SAFETY: the type is that of torch's header.
        let num_threads = unsafe { library.get::<NumThreads>("torch_get_num_threads\0") }.ok().map(|f| *f);
        // SAFETY: the type is that of OpenMP's header. The search includes the libraries that
        // torch's library needs.
        let openmp_threads = unsafe { library.get::<OpenMpThreads>("omp_get_max_threads\0") };
        let openmp_threads = openmp_threads.ok().map(|f| *f);
        // SAFETY: functions without requirements.
        let api = unsafe {
            Self {
                core,
                cuda,
                num_threads,
                openmp_threads,
                cpu: (core.aoti_torch_device_type_cpu)(),
                gpu: (core.aoti_torch_device_type_cuda)(),
                floats: Dtypes {
                    f64: (core.aoti_torch_dtype_float64)(),
                    f32: (core.aoti_torch_dtype_float32)(),
                    f16: (core.aoti_torch_dtype_float16)(),
                    bf16: (core.aoti_torch_dtype_bfloat16)(),
                },
                i64: (core.aoti_torch_dtype_int64)(),
                i32: (core.aoti_torch_dtype_int32)(),
                u8: (core.aoti_torch_dtype_uint8)(),
            }
        };
        Ok(API.get_or_init(|| api))
    }

    /// The table of the process, once it was loaded. Kernels are registered after that.
    pub(crate) fn get() -> Option<&'static Self> {
        API.get()
    }

    /// The number of threads that torch is set to, if torch or OpenMP tells.
    pub(crate) fn num_threads(&self) -> Option<usize> {
        let mut count = 0;
        match (self.num_threads, self.openmp_threads) {
            // SAFETY: `count` is valid to write.
            (Some(threads), _) if unsafe { threads(&mut count) } == 0 => {}
            // SAFETY: a function without requirements.
            (_, Some(threads)) => count = unsafe { threads() }.try_into().unwrap_or(0),
            _ => {}
        }
        (count > 0).then_some(count as usize)
    }

    /// Registers kernels of one dispatch key. They stay registered for the life of the process.
    pub(crate) fn register(&self, key: &CStr, kernels: &[(&CStr, Boxed)]) -> Result<(), String> {
        let mut library = std::ptr::null_mut();
        let file = c"msda";
        // SAFETY: the strings live through the call; `library` is valid to write. The handle owns
        // the registrations, so it is never deleted.
        let code = unsafe {
            (self.core.aoti_torch_library_init_impl)(
                c"msda".as_ptr(),
                key.as_ptr(),
                file.as_ptr(),
                0,
                &mut library,
            )
        };
        if code != 0 {
            return Err(format!("torch refused a library for the key {}", key.to_string_lossy()));
        }
        for (name, kernel) in kernels {
            // SAFETY: the library lives; the kernel follows torch's convention for boxed kernels.
            let code = unsafe { (self.core.aoti_torch_library_impl)(library, name.as_ptr(), *kernel) };
            if code != 0 {
                return Err(format!("torch refused the kernel {}", name.to_string_lossy()));
            }
        }
        Ok(())
    }
}

/// A library that the process has loaded already; it is never loaded anew and never closed.
fn loaded(path: &Path) -> Result<&'static Library, String> {
    #[cfg(unix)]
    // SAFETY: with RTLD_NOLOAD no initialiser runs.
    let library = unsafe {
        const RTLD_NOLOAD: i32 = if cfg!(target_os = "macos") { 0x10 } else { 0x4 };
        libloading::os::unix::Library::open(Some(path), libloading::os::unix::RTLD_NOW | RTLD_NOLOAD)
    };
    #[cfg(windows)]
    let library = libloading::os::windows::Library::open_already_loaded(path);
    let library = library.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Box::leak(Box::new(Library::from(library))))
}
