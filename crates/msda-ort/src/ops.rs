//! The operators, and what ONNX Runtime asks them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use msda::Dtype;
use msda_call::dtypes::ONNX;
use msda_call::error::Result;

use crate::api::{Api, ApiBase, CustomOp, Handle, INT64, MEMORY_CPU_INPUT, VERSION};
use crate::form::{Form, Provider};
use crate::kernel::Kernel;
use crate::shape;

/// The domain of the operators.
const DOMAIN: &CStr = c"msda";

/// An operator for one combination of types. With one operator for all types, ONNX Runtime would
/// guess the type of the output.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Op {
    /// The first field: ONNX Runtime's pointer to it is a pointer to the operator.
    questions: CustomOp,
    api: Api,
    form: Form,
    provider: Provider,
    value: Dtype,
    /// The type of locations; of reference points and offsets.
    locations: Dtype,
    /// The type of weights; of logits.
    weights: Dtype,
}

/// All operators.
fn all(api: Api) -> Vec<Op> {
    let mut ops = Vec::new();
    for form in [Form::Plain, Form::Fused] {
        for provider in [Provider::Cpu, Provider::Cuda] {
            for value in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::F64] {
                let others: &[Dtype] = if value == Dtype::F32 { &[Dtype::F32] } else { &[value, Dtype::F32] };
                for &locations in others {
                    for &weights in others {
                        ops.push(Op { questions: QUESTIONS, api, form, provider, value, locations, weights });
                    }
                }
            }
        }
    }
    ops
}

const QUESTIONS: CustomOp = CustomOp {
    version: VERSION,
    create_kernel: None,
    get_name,
    get_provider,
    get_input_type,
    get_input_count,
    get_output_type,
    get_output_count,
    compute: None,
    destroy,
    get_input_characteristic: required,
    get_output_characteristic: required,
    get_input_memory,
    variadic: [None; 4],
    create_kernel_v2,
    compute_v2,
    infer_shape,
    versions: [None; 2],
};

/// Adds the operators to the options of a session. ONNX Runtime calls this function.
///
/// # Safety
/// The pointers are what ONNX Runtime passes.
#[unsafe(no_mangle)]
#[allow(non_snake_case, private_interfaces)]
pub unsafe extern "system" fn RegisterCustomOps(options: Handle, base: *const ApiBase) -> Handle {
    // SAFETY: ONNX Runtime passes its own table, which lives as long as the process.
    match unsafe { Api::load(base) } {
        Err(status) => status,
        Ok(api) => api.guard(|| {
            let domain = domain(api)?;
            // SAFETY: ONNX Runtime made the options for this call, and the domain is never freed.
            unsafe { api.add_custom_op_domain(options, domain) }
        }),
    }
}

/// The domain with all operators, made once for each ONNX Runtime of the process. It is never
/// freed: sessions use it until they end.
fn domain(api: Api) -> Result<Handle> {
    struct Made(Api, Handle);
    // SAFETY: a domain does not change after it was made.
    unsafe impl Send for Made {}
    static DOMAINS: Mutex<Vec<Made>> = Mutex::new(Vec::new());

    let mut domains = DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Made(_, domain)) = domains.iter().find(|made| made.0 == api) {
        return Ok(*domain);
    }
    let mut domain = ptr::null_mut();
    // SAFETY: the name is a string with a zero at its end; the result is valid to write.
    unsafe { api.create_custom_op_domain(DOMAIN.as_ptr(), &mut domain)? };
    for op in all(api).leak() {
        // SAFETY: the operator lives as long as the process.
        unsafe { api.custom_op_domain_add(domain, &op.questions)? };
    }
    domains.push(Made(api, domain));
    Ok(domain)
}

/// # Safety
/// `op` is the first field of an [`Op`], as [`domain`] adds them. They live until the process ends.
unsafe fn op(op: *const CustomOp) -> &'static Op {
    debug_assert!(op.cast::<Op>().is_aligned());
    // SAFETY: `questions` is the first field of a `repr(C)` structure, so its address is that of
    // the operator, which `domain` leaked.
    unsafe { &*op.cast::<Op>() }
}

// What follows is called by ONNX Runtime, with operators that `domain` added.

unsafe extern "system" fn get_name(this: *const CustomOp) -> *const c_char {
    // SAFETY: an operator of ours.
    unsafe { op(this) }.form.name().as_ptr()
}

unsafe extern "system" fn get_provider(this: *const CustomOp) -> *const c_char {
    // SAFETY: an operator of ours.
    unsafe { op(this) }.provider.name().as_ptr()
}

unsafe extern "system" fn get_input_type(this: *const CustomOp, index: usize) -> c_int {
    // SAFETY: an operator of ours.
    let op = unsafe { op(this) };
    match index {
        0 => ONNX.of(op.value),
        1 | 2 => INT64,
        last if last == op.form.floats().len() + 1 => ONNX.of(op.weights),
        _ => ONNX.of(op.locations),
    }
}

unsafe extern "system" fn get_input_count(this: *const CustomOp) -> usize {
    // SAFETY: an operator of ours.
    unsafe { op(this) }.form.floats().len() + 2
}

unsafe extern "system" fn get_output_type(this: *const CustomOp, _: usize) -> c_int {
    // SAFETY: an operator of ours.
    ONNX.of(unsafe { op(this) }.value)
}

unsafe extern "system" fn get_output_count(_: *const CustomOp) -> usize {
    1
}

unsafe extern "system" fn required(_: *const CustomOp, _: usize) -> c_int {
    0
}

/// Level sizes are part of a plan, so they are read on the host.
unsafe extern "system" fn get_input_memory(this: *const CustomOp, index: usize) -> c_int {
    // SAFETY: an operator of ours.
    let on_host = unsafe { op(this) }.provider == Provider::Cuda && (index == 1 || index == 2);
    if on_host { MEMORY_CPU_INPUT } else { 0 }
}

unsafe extern "system" fn infer_shape(this: *const CustomOp, context: Handle) -> Handle {
    // SAFETY: an operator of ours.
    let api = unsafe { op(this) }.api;
    // SAFETY: the context lives through the call. ONNX Runtime does not look at the status and does
    // not free it; the kernel refuses wrong shapes.
    let _ = catch_unwind(|| unsafe { shape::infer(api, context) });
    ptr::null_mut()
}

unsafe extern "system" fn create_kernel_v2(
    this: *const CustomOp,
    table: *const c_void,
    info: Handle,
    kernel: *mut *mut c_void,
) -> Handle {
    let api = Api::from_table(table);
    api.guard(|| {
        // SAFETY: an operator of ours; `info` lives through the call; `kernel` is valid to write.
        unsafe {
            let Op { form, provider, .. } = *op(this);
            *kernel = Box::into_raw(Box::new(Kernel::new(api, form, provider, info)?)).cast();
        }
        Ok(())
    })
}

unsafe extern "system" fn compute_v2(kernel: *mut c_void, context: Handle) -> Handle {
    // SAFETY: a kernel of `create_kernel_v2` that was not destroyed.
    let kernel = unsafe { &*kernel.cast::<Kernel>() };
    // SAFETY: the context and its tensors live through the call.
    kernel.api.guard(|| unsafe { kernel.compute(context) })
}

unsafe extern "system" fn destroy(kernel: *mut c_void) {
    if !kernel.is_null() {
        // SAFETY: a kernel of `create_kernel_v2`, destroyed once.
        drop(unsafe { Box::from_raw(kernel.cast::<Kernel>()) });
    }
}
