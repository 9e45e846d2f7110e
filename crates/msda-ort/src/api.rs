//! ONNX Runtime's C interface: the functions that are used, by their index, and two structures.
//!
//! The table of functions only grows, so an index is right for every later version.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::ptr;

use msda_call::error::{Kind, Refused, Result, c_text, catch};

/// The version of the table that is asked for. ONNX Runtime 1.17 is the first that has it.
pub(crate) const VERSION: u32 = 17;

/// Where ONNX Runtime's table is.
#[repr(C)]
#[derive(Debug)]
pub struct ApiBase {
    get_api: unsafe extern "system" fn(u32) -> *const Function,
    get_version: unsafe extern "system" fn() -> *const c_char,
}

type Function = *const c_void;

/// An object of ONNX Runtime.
#[repr(C)]
#[derive(Debug)]
pub struct Opaque {
    _private: [u8; 0],
}

/// A pointer to an object of ONNX Runtime. A comment at each use says what kind.
pub(crate) type Handle = *mut Opaque;

/// The table of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Api(*const Function);

// SAFETY: the table is constant and lives as long as ONNX Runtime; its functions may be called from
// any thread.
unsafe impl Send for Api {}
// SAFETY: no function changes the table, so threads may read it at the same time.
unsafe impl Sync for Api {}

/// Functions that return a status, as methods that return a [`Result`].
macro_rules! functions {
    ($($index:literal $name:ident($($arg:ident: $type:ty),*);)*) => {
        impl Api {
            $(
                /// # Safety
                /// Pointers are what ONNX Runtime's function of this name expects.
                pub(crate) unsafe fn $name(self, $($arg: $type),*) -> Result<()> {
                    // SAFETY: the function of this index has these arguments and returns a status.
                    unsafe {
                        type Call = unsafe extern "system" fn($($type),*) -> Handle;
                        let call = mem::transmute::<Function, Call>(*self.0.add($index));
                        self.check(stringify!($name), call($($arg),*))
                    }
                }
            )*
        }
    };
}

functions! {
    26 create_custom_op_domain(name: *const c_char, domain: *mut Handle);
    27 custom_op_domain_add(domain: Handle, op: *const CustomOp);
    28 add_custom_op_domain(options: Handle, domain: Handle);
    51 get_tensor_mutable_data(value: Handle, data: *mut *mut c_void);
    57 create_tensor_type_and_shape_info(info: *mut Handle);
    58 set_tensor_element_type(info: Handle, dtype: c_int);
    59 set_dimensions(info: Handle, sizes: *const i64, rank: usize);
    60 get_tensor_element_type(info: Handle, dtype: *mut c_int);
    61 get_dimensions_count(info: Handle, rank: *mut usize);
    62 get_dimensions(info: Handle, sizes: *mut i64, rank: usize);
    63 get_symbolic_dimensions(info: Handle, names: *mut *const c_char, rank: usize);
    65 get_tensor_type_and_shape(value: Handle, info: *mut Handle);
    72 memory_info_get_id(info: Handle, id: *mut c_int);
    75 allocator_alloc(allocator: Handle, bytes: usize, memory: *mut *mut c_void);
    76 allocator_free(allocator: Handle, memory: *mut c_void);
    86 kernel_info_get_attribute_int64(info: Handle, name: *const c_char, number: *mut i64);
    87 kernel_info_get_attribute_string(
        info: Handle, name: *const c_char, text: *mut c_char, len: *mut usize
    );
    90 kernel_context_get_input(context: Handle, index: usize, value: *mut Handle);
    91 kernel_context_get_output(
        context: Handle, index: usize, sizes: *const i64, rank: usize, value: *mut Handle
    );
    163 kernel_info_get_attribute_array_int64(
        info: Handle, name: *const c_char, numbers: *mut i64, len: *mut usize
    );
    193 kernel_context_get_gpu_compute_stream(context: Handle, stream: *mut *mut c_void);
    194 get_tensor_memory_info(value: Handle, info: *mut Handle);
    244 kernel_info_get_node_name(info: Handle, text: *mut c_char, len: *mut usize);
    253 kernel_context_get_allocator(context: Handle, info: Handle, allocator: *mut Handle);
    268 shape_infer_context_get_input_type_shape(context: Handle, index: usize, info: *mut Handle);
    270 shape_infer_context_set_output_type_shape(context: Handle, index: usize, info: Handle);
    271 set_symbolic_dimensions(info: Handle, names: *const *const c_char, rank: usize);
    274 kernel_context_parallel_for(
        context: Handle, work: Step, n: usize, batches: usize, data: *mut c_void
    );
}

/// One step of a loop on ONNX Runtime's threads.
pub(crate) type Step = unsafe extern "C" fn(*mut c_void, usize);

/// The functions that free an object.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Release {
    Status = 93,
    TensorTypeAndShapeInfo = 99,
    Allocator = 132,
}

/// Codes of errors.
const INVALID_ARGUMENT: c_int = 2;
const RUNTIME_EXCEPTION: c_int = 6;
const NOT_IMPLEMENTED: c_int = 9;

impl Api {
    /// The table of the ONNX Runtime that loads this library. The error is a status for it.
    ///
    /// # Safety
    /// `base` is what ONNX Runtime passes to `RegisterCustomOps`.
    pub(crate) unsafe fn load(base: *const ApiBase) -> std::result::Result<Self, Handle> {
        // SAFETY: ONNX Runtime's `OrtApiBase` lives as long as the process, and begins with these
        // two functions. The first version of the table has `CreateStatus`.
        unsafe {
            let base = &*base;
            let table = (base.get_api)(VERSION);
            if !table.is_null() {
                return Ok(Self(table));
            }
            let first = (base.get_api)(1);
            if first.is_null() {
                return Err(ptr::null_mut());
            }
            let version = CStr::from_ptr((base.get_version)()).to_string_lossy();
            let refused = Refused::value("ONNX Runtime", version, format!("1.{VERSION} or newer"));
            Err(Self(first).status(&refused))
        }
    }

    /// A table at an address that [`Api::load`] or `CreateKernelV2` got.
    pub(crate) fn from_table(table: *const c_void) -> Self {
        Self(table.cast())
    }

    /// A status with a message.
    fn status(self, refused: &Refused) -> Handle {
        type Call = unsafe extern "system" fn(c_int, *const c_char) -> Handle;
        let code = match refused.kind {
            Kind::Value | Kind::Type => INVALID_ARGUMENT,
            Kind::NotImplemented => NOT_IMPLEMENTED,
            Kind::Memory | Kind::Runtime => RUNTIME_EXCEPTION,
        };
        let text = c_text(&refused.message);
        // SAFETY: function 0 is `CreateStatus`, which copies the text.
        unsafe { mem::transmute::<Function, Call>(*self.0)(code, text.as_ptr()) }
    }

    /// The status of a call back into this library: null, or its error or panic.
    pub(crate) fn guard(self, work: impl FnOnce() -> Result<()>) -> Handle {
        catch(work).map_or_else(|refused| self.status(&refused), |()| ptr::null_mut())
    }

    /// Turns a status of ONNX Runtime into a result, and frees it.
    ///
    /// # Safety
    /// `status` is null or a status that belongs to the caller.
    unsafe fn check(self, name: &str, status: Handle) -> Result<()> {
        type Message = unsafe extern "system" fn(Handle) -> *const c_char;
        if status.is_null() {
            return Ok(());
        }
        // SAFETY: function 2 is `GetErrorMessage`; the text lives as long as the status.
        let message = unsafe {
            let text = mem::transmute::<Function, Message>(*self.0.add(2))(status);
            CStr::from_ptr(text).to_string_lossy().into_owned()
        };
        // SAFETY: the status belongs to the caller, and its message was copied.
        unsafe { self.release(Release::Status, status) };
        Err(Refused::new(Kind::Runtime, format!("ONNX Runtime's {name}: {message}")))
    }

    /// Frees an object.
    ///
    /// # Safety
    /// The object is of that kind, belongs to the caller, and is used no more.
    pub(crate) unsafe fn release(self, kind: Release, object: Handle) {
        type Call = unsafe extern "system" fn(Handle);
        // SAFETY: the function of this index frees such objects.
        unsafe { mem::transmute::<Function, Call>(*self.0.add(kind as usize))(object) };
    }

    /// A text that a function writes: first its size is asked for, then its bytes.
    ///
    /// # Safety
    /// `call` writes at most as many bytes as the number says, a zero at the end, and their number.
    pub(crate) unsafe fn text(call: impl Fn(*mut c_char, *mut usize) -> Result<()>) -> Result<String> {
        let mut len = 0;
        call(ptr::null_mut(), &mut len)?;
        let mut bytes = vec![0u8; len];
        call(bytes.as_mut_ptr().cast(), &mut len)?;
        bytes.truncate(len.saturating_sub(1));
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// ONNX Runtime's number of 64-bit integers.
pub(crate) const INT64: c_int = 7;

/// The memory type of inputs that are read on the host.
pub(crate) const MEMORY_CPU_INPUT: c_int = -2;

/// The questions that ONNX Runtime asks an operator: those up to version 17 of the structure. It
/// reads no more, because `version` says so.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CustomOp {
    pub(crate) version: u32,
    /// Replaced by `create_kernel_v2`.
    pub(crate) create_kernel: Option<unsafe extern "system" fn()>,
    pub(crate) get_name: unsafe extern "system" fn(*const CustomOp) -> *const c_char,
    pub(crate) get_provider: unsafe extern "system" fn(*const CustomOp) -> *const c_char,
    pub(crate) get_input_type: unsafe extern "system" fn(*const CustomOp, usize) -> c_int,
    pub(crate) get_input_count: unsafe extern "system" fn(*const CustomOp) -> usize,
    pub(crate) get_output_type: unsafe extern "system" fn(*const CustomOp, usize) -> c_int,
    pub(crate) get_output_count: unsafe extern "system" fn(*const CustomOp) -> usize,
    /// Replaced by `compute_v2`.
    pub(crate) compute: Option<unsafe extern "system" fn()>,
    pub(crate) destroy: unsafe extern "system" fn(*mut c_void),
    pub(crate) get_input_characteristic: unsafe extern "system" fn(*const CustomOp, usize) -> c_int,
    pub(crate) get_output_characteristic: unsafe extern "system" fn(*const CustomOp, usize) -> c_int,
    pub(crate) get_input_memory: unsafe extern "system" fn(*const CustomOp, usize) -> c_int,
    /// Of operators whose number of inputs or outputs varies.
    pub(crate) variadic: [Option<unsafe extern "system" fn()>; 4],
    pub(crate) create_kernel_v2:
        unsafe extern "system" fn(*const CustomOp, *const c_void, Handle, *mut *mut c_void) -> Handle,
    pub(crate) compute_v2: unsafe extern "system" fn(*mut c_void, Handle) -> Handle,
    pub(crate) infer_shape: unsafe extern "system" fn(*const CustomOp, Handle) -> Handle,
    /// Without these two an operator is of version 1 and newer.
    pub(crate) versions: [Option<unsafe extern "system" fn()>; 2],
}
