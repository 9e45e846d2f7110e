//! Functions of the driver that `msda-cuda` does not wrap.

/// Declares `struct Functions` with these functions of the driver, and `fn functions()`, which
/// looks them up once. They return plain numbers: a newer driver has codes that older headers lack.
macro_rules! functions {
    ($($field:ident: $name:literal => fn($($argument:ty),*),)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        fn functions() -> msda::Result<&'static Functions> {
            static FOUND: std::sync::OnceLock<msda::Result<Functions>> = std::sync::OnceLock::new();
            let look_up = || {
                Ok(Functions {
                    // SAFETY: the driver has this function with the type of cuda.h.
                    $($field: unsafe {
                        std::mem::transmute::<
                            *const std::ffi::c_void,
                            unsafe extern "C" fn($($argument),*) -> u32,
                        >(msda_cuda::driver::symbol($name)?)
                    },)*
                })
            };
            FOUND.get_or_init(look_up).as_ref().map_err(Clone::clone)
        }
    };
}

pub(crate) use functions;
