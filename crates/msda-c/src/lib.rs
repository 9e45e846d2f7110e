//! The C interface of msda.
//!
//! | module | contents |
//! |---|---|
//! | `types` | the structures of C, and how they become a call |
//! | `error` | codes, the message of the last error, and panics that stop here |
//! | this file | the functions |
//!
//! The header is `include/msda.h`. `examples` has a program in C and one in C++.
#![allow(unsafe_code)]

mod error;
mod types;

use std::ffi::{c_char, c_void};
use std::ptr;

use msda_call::call::{Call, Tensor};
use msda_call::cpu;
use msda_call::cuda::Prepared;
use msda_call::error::{Refused, Result};
use msda_call::threads::OnThreads;

pub use error::*;
pub use types::*;

use crate::error::guard;

/// The version of the library. The text is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn msda_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Computes the output on the CPU: a dense (batch, queries, heads * channels) of the type of value.
/// `threads` is 0 for as many as MSDA_NUM_THREADS or OMP_NUM_THREADS says, else one per core.
/// Returns MSDA_OK or the kind of the error.
///
/// # Safety
/// All pointers are valid for their sizes, and nobody else uses the output during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msda_forward(
    inputs: *const msda_inputs,
    output: *const msda_tensor,
    threads: i32,
) -> i32 {
    guard(|| {
        // SAFETY: the structures are null or valid until this function returns.
        let (call, output) = unsafe { (types::call(inputs)?, types::tensor("output", output)?) };
        let problem = call.problem()?;
        call.check_output(&output)?;
        // SAFETY: the memory is as large as sizes and strides say, and the output is the call's
        // alone.
        unsafe { cpu::forward(&call, &problem, &output, on_threads(threads)?) }
    })
}

/// Computes gradients on the CPU, given the gradient of the output. A gradient that is NULL is not
/// computed; the others are dense and have the shape and type of their tensor.
///
/// # Safety
/// As for `msda_forward`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msda_backward(
    inputs: *const msda_inputs,
    grad_output: *const msda_tensor,
    gradients: *const msda_gradients,
    threads: i32,
) -> i32 {
    guard(|| {
        // SAFETY: the structures are null or valid until this function returns.
        let (grad, call, grads) = unsafe { backward_arguments(inputs, grad_output, gradients)? };
        let problem = call.problem()?;
        call.check_gradients(&grads)?;
        // SAFETY: the memory is as large as sizes and strides say, and each gradient is the call's
        // alone.
        unsafe { cpu::backward(&call, &problem, &grad, grads, on_threads(threads)?) }
    })
}

/// Makes ready what `msda_cuda_forward` needs for such a call: the kernel is compiled, and kept for
/// all calls with these sizes, strides, types and alignments. Writes the bytes of workspace that
/// each call needs to `workspace`.
///
/// # Safety
/// The structures are valid. Addresses of tensors are not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msda_cuda_forward_workspace(
    inputs: *const msda_inputs,
    output: *const msda_tensor,
    device: i32,
    workspace: *mut usize,
) -> i32 {
    // SAFETY: structures and `workspace` are null or valid until this function returns.
    guard(|| unsafe { write(workspace, forward(inputs, output, device)?.workspace()) })
}

/// Queues the computation of the output on a stream (a cudaStream_t or CUstream) of a device. All
/// tensors and the workspace are in its memory, and the stream belongs to its primary context
/// (that of the CUDA runtime); the tables of the levels are in memory of the host. The workspace
/// begins at a multiple of 16 bytes. Nothing is allocated, and nothing waits, if
/// `msda_cuda_forward_workspace` was called before; the last 512 combinations are kept.
/// The call can be captured into a CUDA graph.
///
/// # Safety
/// As for `msda_forward`; the memory stays until the stream has run the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msda_cuda_forward(
    inputs: *const msda_inputs,
    output: *const msda_tensor,
    device: i32,
    stream: *mut c_void,
    workspace: *mut c_void,
    workspace_bytes: usize,
) -> i32 {
    // SAFETY: the structures are null or valid. Tensors and workspace are in memory of the device,
    // and stay there until the stream has run the call.
    guard(|| unsafe {
        forward(inputs, output, device)?.launch(stream, |bytes| room(workspace, workspace_bytes, bytes))
    })
}

/// As `msda_cuda_forward_workspace`, for `msda_cuda_backward`.
///
/// # Safety
/// As for `msda_cuda_forward_workspace`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msda_cuda_backward_workspace(
    inputs: *const msda_inputs,
    grad_output: *const msda_tensor,
    gradients: *const msda_gradients,
    device: i32,
    workspace: *mut usize,
) -> i32 {
    // SAFETY: structures and `workspace` are null or valid until this function returns.
    guard(|| unsafe {
        let prepared = backward(inputs, grad_output, gradients, device)?;
        write(workspace, prepared.map_or(0, |prepared| prepared.workspace()))
    })
}

/// As `msda_cuda_forward`, for the gradients that `msda_backward` describes.
///
/// # Safety
/// As for `msda_cuda_forward`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msda_cuda_backward(
    inputs: *const msda_inputs,
    grad_output: *const msda_tensor,
    gradients: *const msda_gradients,
    device: i32,
    stream: *mut c_void,
    workspace: *mut c_void,
    workspace_bytes: usize,
) -> i32 {
    // SAFETY: the structures are null or valid. Tensors and workspace are in memory of the device,
    // and stay there until the stream has run the call.
    guard(|| unsafe {
        match backward(inputs, grad_output, gradients, device)? {
            Some(prepared) => prepared.launch(stream, |bytes| room(workspace, workspace_bytes, bytes)),
            None => Ok(()),
        }
    })
}

/// # Safety
/// The structures are null or valid until this function returns.
unsafe fn forward(inputs: *const msda_inputs, output: *const msda_tensor, device: i32) -> Result<Prepared> {
    // SAFETY: both are null or valid here. A prepared call has addresses, and no structure.
    let (call, output) = unsafe { (types::call(inputs)?, types::tensor("output", output)?) };
    call.check_output(&output)?;
    Prepared::forward(&call, &output, device_number(device)?)
}

/// # Safety
/// The structures are null or valid until this function returns.
unsafe fn backward(
    inputs: *const msda_inputs,
    grad_output: *const msda_tensor,
    gradients: *const msda_gradients,
    device: i32,
) -> Result<Option<Prepared>> {
    // SAFETY: all are null or valid here. A prepared call has addresses, and no structure.
    let (grad, call, grads) = unsafe { backward_arguments(inputs, grad_output, gradients)? };
    call.check_gradients(&grads)?;
    Prepared::backward(&call, &grad, grads, device_number(device)?)
}

/// The gradient of the output, the inputs, and the destinations.
///
/// # Safety
/// The structures are null or valid for `'a`.
unsafe fn backward_arguments<'a>(
    inputs: *const msda_inputs,
    grad_output: *const msda_tensor,
    gradients: *const msda_gradients,
) -> Result<(Tensor<'a>, Call<'a>, [Option<Tensor<'a>>; 4])> {
    // SAFETY: each function refuses null, and reads the structure of its type.
    unsafe {
        let grad = types::tensor("grad_output", grad_output)?;
        Ok((grad, types::call(inputs)?, types::gradients(gradients)?))
    }
}

fn on_threads(threads: i32) -> Result<OnThreads> {
    let number = usize::try_from(threads);
    let number = number.map_err(|_| Refused::value("threads", threads, "a number of at least 0"))?;
    Ok(OnThreads::Count(Some(number).filter(|&number| number > 0)))
}

fn device_number(device: i32) -> Result<usize> {
    usize::try_from(device).map_err(|_| Refused::value("device", device, "a number of at least 0"))
}

/// The address of a workspace, if it is large enough.
fn room(workspace: *mut c_void, got: usize, bytes: usize) -> Result<u64> {
    if workspace.is_null() || got < bytes {
        let got = if workspace.is_null() { 0 } else { got };
        return Err(Refused::value("workspace", format!("{got} bytes"), format!("at least {bytes}")));
    }
    Ok(workspace.addr() as u64)
}

/// # Safety
/// The address is null or valid to write.
unsafe fn write(to: *mut usize, bytes: usize) -> Result<()> {
    if to.is_null() {
        return Err(Refused::value("workspace", "NULL", "the address of a number"));
    }
    debug_assert!(to.is_aligned());
    // SAFETY: the address is not null, so it is valid to write.
    unsafe { ptr::write(to, bytes) };
    Ok(())
}
