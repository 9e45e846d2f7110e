//! Calls on tensors in memory of the host.
#![allow(unsafe_code)]

use std::slice;

use msda::{Backend, Dtype, Gradients, Inputs, Problem, Reference, Slice, SliceMut, Strides, View, ViewMut};

use crate::call::{Call, Tensor};
use crate::error::{Refused, Result};
use crate::threads::{self, OnThreads};

/// Computes the output of the call's problem into `output`, a dense `(B, Q, H * D)`.
///
/// # Safety
/// The memory of all tensors is there, nobody writes to the inputs, nobody else uses the output.
pub unsafe fn forward(
    call: &Call<'_>,
    problem: &Problem,
    output: &Tensor<'_>,
    threads: OnThreads,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let (inputs, out) = unsafe { (inputs(call)?, write(output)?) };
    threads::run(threads, problem, |cpu| cpu.forward(problem, &inputs, out))??;
    Ok(())
}

/// Computes the gradients that have a destination, given the gradient of the output.
///
/// # Safety
/// As for [`forward`]; the destinations are dense.
pub unsafe fn backward(
    call: &Call<'_>,
    problem: &Problem,
    grad_output: &Tensor<'_>,
    grads: [Option<Tensor<'_>>; 4],
    threads: OnThreads,
) -> Result<()> {
    call.check_grad(problem, grad_output)?;
    let grad_strides = call.grad_strides(grad_output)?;
    // SAFETY: the caller's promise.
    let (inputs, grad_view) =
        unsafe { (inputs(call)?, View { data: read(grad_output)?, strides: Some(grad_strides) }) };
    // SAFETY: the caller's promise.
    let [value, locations, weights, reference] =
        grads.map(|grad| grad.map(|grad| unsafe { write(&grad) }).transpose());
    let gradients =
        Gradients { value: value?, locations: locations?, weights: weights?, reference: reference? };
    threads::run(threads, problem, |cpu| cpu.backward(problem, &inputs, grad_view, gradients))??;
    Ok(())
}

unsafe fn inputs<'a>(call: &Call<'a>) -> Result<Inputs<'a>> {
    let strides = call.strides()?;
    let view = |tensor: &Tensor<'a>, strides: Strides| -> Result<View<'a>> {
        // SAFETY: the caller's promise.
        let data = unsafe { read(tensor)? };
        Ok(View { data, strides: Some(strides) })
    };
    let reference = match (&call.reference, strides.reference, call.reference_kind()) {
        (Some(tensor), Some(strides), Some(kind)) => Some(Reference { kind, view: view(tensor, strides)? }),
        _ => None,
    };
    Ok(Inputs {
        value: view(&call.value, strides.value)?,
        locations: view(&call.locations, strides.locations)?,
        weights: view(&call.weights, strides.weights)?,
        reference,
    })
}

/// Refuses addresses that no element of the type can have, and more bytes than memory can have.
fn check_memory(tensor: &Tensor<'_>) -> Result<()> {
    let bytes = tensor.span().checked_mul(tensor.dtype.size());
    if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
        let got = format!("strides {:?} of {}", tensor.strides, tensor.shape());
        return Err(Refused::value(tensor.name, got, "a span that fits memory"));
    }
    if tensor.span() == 0 || tensor.data.addr().is_multiple_of(tensor.dtype.size()) {
        return Ok(());
    }
    let expected = format!("a multiple of {} bytes", tensor.dtype.size());
    Err(Refused::value(tensor.name, format!("address {:?}", tensor.data), expected))
}

/// # Safety
/// The memory of the tensor is there and nobody writes to it.
unsafe fn read<'a>(tensor: &Tensor<'a>) -> Result<Slice<'a>> {
    check_memory(tensor)?;
    let len = tensor.span();
    if len == 0 {
        return Ok(match tensor.dtype {
            Dtype::F64 => Slice::F64(&[]),
            Dtype::F32 => Slice::F32(&[]),
            Dtype::F16 => Slice::F16(&[]),
            Dtype::Bf16 => Slice::Bf16(&[]),
        });
    }
    // SAFETY: the caller's promise; the address is aligned and not null.
    Ok(unsafe {
        match tensor.dtype {
            Dtype::F64 => Slice::F64(slice::from_raw_parts(tensor.data.cast(), len)),
            Dtype::F32 => Slice::F32(slice::from_raw_parts(tensor.data.cast(), len)),
            Dtype::F16 => Slice::F16(slice::from_raw_parts(tensor.data.cast(), len)),
            Dtype::Bf16 => Slice::Bf16(slice::from_raw_parts(tensor.data.cast(), len)),
        }
    })
}

/// # Safety
/// The memory of the tensor is there and nobody else uses it.
unsafe fn write<'a>(tensor: &Tensor<'a>) -> Result<ViewMut<'a>> {
    check_memory(tensor)?;
    let len = tensor.span();
    if len == 0 {
        return Ok(match tensor.dtype {
            Dtype::F64 => SliceMut::F64(&mut []).into(),
            Dtype::F32 => SliceMut::F32(&mut []).into(),
            Dtype::F16 => SliceMut::F16(&mut []).into(),
            Dtype::Bf16 => SliceMut::Bf16(&mut []).into(),
        });
    }
    // SAFETY: the caller's promise; the address is aligned and not null.
    Ok(unsafe {
        match tensor.dtype {
            Dtype::F64 => SliceMut::F64(slice::from_raw_parts_mut(tensor.data.cast(), len)).into(),
            Dtype::F32 => SliceMut::F32(slice::from_raw_parts_mut(tensor.data.cast(), len)).into(),
            Dtype::F16 => SliceMut::F16(slice::from_raw_parts_mut(tensor.data.cast(), len)).into(),
            Dtype::Bf16 => SliceMut::Bf16(slice::from_raw_parts_mut(tensor.data.cast(), len)).into(),
        }
    })
}
