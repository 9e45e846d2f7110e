//! Calls on tensors in memory of the host.
#![allow(unsafe_code)]

use std::{ptr, slice};

use msda::{Backend, Dtype, Gradients, Inputs, Problem, Reference, Slice, SliceMut, View, ViewMut};

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
    // SAFETY: until this function returns, nobody writes to the inputs, and the output is ours.
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
    let strides = call.grad_strides(grad_output)?;
    // SAFETY: until this function returns, nobody writes to the inputs or to `grad_output`.
    let (inputs, data) = unsafe { (inputs(call)?, read(grad_output)?) };
    let grad_view = View { data, strides: Some(strides) };
    let [value, locations, weights, reference] = grads.map(|grad| {
        // SAFETY: each destination has memory of its own, and until this function returns it is
        // ours.
        grad.map(|grad| unsafe { write(&grad) }).transpose()
    });
    let gradients =
        Gradients { value: value?, locations: locations?, weights: weights?, reference: reference? };
    threads::run(threads, problem, |cpu| cpu.backward(problem, &inputs, grad_view, gradients))??;
    Ok(())
}

/// # Safety
/// As for [`read`], for each input.
unsafe fn inputs<'a>(call: &Call<'a>) -> Result<Inputs<'a>> {
    let view = |tensor: &Tensor<'a>| -> Result<View<'a>> {
        let strides = call.strides(tensor)?;
        // SAFETY: a tensor of the call, whose memory is there for `'a`.
        Ok(View { data: unsafe { read(tensor)? }, strides: Some(strides) })
    };
    let reference = match (&call.reference, call.reference_kind()) {
        (Some(tensor), Some(kind)) => Some(Reference { kind, view: view(tensor)? }),
        _ => None,
    };
    Ok(Inputs {
        value: view(&call.value)?,
        locations: view(&call.locations)?,
        weights: view(&call.weights)?,
        reference,
    })
}

/// The number of elements of a tensor whose address its elements can have.
fn checked_len(tensor: &Tensor<'_>) -> Result<usize> {
    let (len, size) = (tensor.span()?, tensor.dtype.size());
    if len == 0 || !tensor.data.is_null() && tensor.data.addr().is_multiple_of(size) {
        return Ok(len);
    }
    let expected = format!("a multiple of {size} bytes, and not null");
    Err(Refused::value(tensor.name, format!("address {:?}", tensor.data), expected))
}

/// The address of the elements. Where there are none it may be any that is aligned.
fn address<T>(tensor: &Tensor<'_>, len: usize) -> *mut T {
    debug_assert!(size_of::<T>() == tensor.dtype.size());
    if len == 0 { ptr::dangling_mut() } else { tensor.data.cast() }
}

/// The elements of a tensor to read.
///
/// # Safety
/// For `'a` the memory of the tensor is there, and nobody writes to it.
unsafe fn read<'a>(tensor: &Tensor<'a>) -> Result<Slice<'a>> {
    let len = checked_len(tensor)?;
    // SAFETY: the span of the tensor is `len` elements of the type that `dtype` names.
    // `checked_len` refuses null, unaligned addresses, and more bytes than `isize` counts.
    Ok(unsafe {
        match tensor.dtype {
            Dtype::F64 => Slice::F64(slice::from_raw_parts(address(tensor, len), len)),
            Dtype::F32 => Slice::F32(slice::from_raw_parts(address(tensor, len), len)),
            Dtype::F16 => Slice::F16(slice::from_raw_parts(address(tensor, len), len)),
            Dtype::Bf16 => Slice::Bf16(slice::from_raw_parts(address(tensor, len), len)),
        }
    })
}

/// The elements of a dense tensor to write.
///
/// # Safety
/// For `'a` the memory of the tensor is there, and nobody else uses it.
unsafe fn write<'a>(tensor: &Tensor<'a>) -> Result<ViewMut<'a>> {
    let len = checked_len(tensor)?;
    debug_assert!(tensor.dense_from(0), "two indices may share an element");
    // SAFETY: as many elements as in `read`, under the same checks. Nobody else uses the memory, so
    // the reference is the only one.
    Ok(unsafe {
        match tensor.dtype {
            Dtype::F64 => SliceMut::F64(slice::from_raw_parts_mut(address(tensor, len), len)).into(),
            Dtype::F32 => SliceMut::F32(slice::from_raw_parts_mut(address(tensor, len), len)).into(),
            Dtype::F16 => SliceMut::F16(slice::from_raw_parts_mut(address(tensor, len), len)).into(),
            Dtype::Bf16 => SliceMut::Bf16(slice::from_raw_parts_mut(address(tensor, len), len)).into(),
        }
    })
}
