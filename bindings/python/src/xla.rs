//! The operator as functions that XLA calls through its C interface for custom calls.
//!
//! XLA gives addresses of its buffers, which are read and written in place. The structures below
//! are the parts of XLA's `c_api.h` that this needs. Each begins with its size, so that a version
//! of XLA with another layout is noticed.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;
use std::{mem, ptr, slice};

use msda_call::call::{Call, LevelSizes, MOST_DIMENSIONS, Tensor, names};
use msda_call::cpu;
use msda_call::dtypes::XLA;
use msda_call::error::{Kind, Refused, Result, c_text, catch};
use msda_call::threads::{self, OnThreads};
use pyo3::prelude::*;

use crate::error::PyResult;

/// The number of threads of a call. The environment says it once: while XLA calls, other threads
/// may change the environment.
static THREADS: OnceLock<usize> = OnceLock::new();

/// The addresses of the forward and the backward function for the CPU.
#[pyfunction]
pub(crate) fn xla_handlers() -> PyResult<[usize; 2]> {
    let threads = threads::default()?;
    THREADS.get_or_init(|| threads);
    let handlers: [Handler; 2] = [handle::<false>, handle::<true>];
    Ok(handlers.map(|handler| handler as *const () as usize))
}

type Handler = unsafe extern "C" fn(*const Frame) -> *mut c_void;

/// The first version of the interface. Older versions of XLA do not say theirs when they ask.
const OLDEST: (c_int, c_int) = (0, 1);
/// An extension of a call that asks for the version of the interface.
const METADATA: c_int = 1;
/// The stage of a call that computes.
const EXECUTE: c_int = 3;
/// An attribute that is an array.
const ARRAY: c_int = 1;
/// The type of its elements.
const INT64: c_int = 5;

#[repr(C)]
struct Extension {
    size: usize,
    kind: c_int,
    next: *const Extension,
}

#[repr(C)]
struct MetadataExtension {
    base: Extension,
    metadata: *mut Metadata,
}

#[repr(C)]
struct Metadata {
    size: usize,
    version: Version,
    traits: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    size: usize,
    extension: *const Extension,
    major: c_int,
    minor: c_int,
}

#[repr(C)]
struct Frame {
    size: usize,
    extension: *const Extension,
    api: *const Api,
    context: *const c_void,
    stage: c_int,
    inputs: Buffers,
    results: Buffers,
    attributes: Attributes,
}

#[repr(C)]
struct Api {
    size: usize,
    extension: *const Extension,
    version: Version,
    internal: *const c_void,
    create_error: unsafe extern "C" fn(*mut NewError) -> *mut c_void,
}

#[repr(C)]
struct NewError {
    size: usize,
    extension: *const Extension,
    message: *const c_char,
    code: c_int,
}

#[repr(C)]
struct Buffers {
    size: usize,
    extension: *const Extension,
    count: i64,
    kinds: *const c_int,
    buffers: *const *const Buffer,
}

#[repr(C)]
struct Buffer {
    size: usize,
    extension: *const Extension,
    dtype: c_int,
    data: *mut c_void,
    rank: i64,
    dims: *const i64,
}

#[repr(C)]
struct Attributes {
    size: usize,
    extension: *const Extension,
    count: i64,
    kinds: *const c_int,
    names: *const c_void,
    arrays: *const *const Array,
}

#[repr(C)]
struct Array {
    dtype: c_int,
    count: usize,
    data: *const i64,
}

/// # Safety
/// XLA calls it with the frame of a call.
unsafe extern "C" fn handle<const BACKWARD: bool>(frame: *const Frame) -> *mut c_void {
    // SAFETY: the frame, the functions of XLA and an extension live through the call. A frame that
    // asks for the version has room for the answer.
    unsafe {
        let frame = &*frame;
        if let Some(METADATA) = frame.extension.as_ref().map(|extension| extension.kind) {
            let asked = &mut *(*frame.extension.cast::<MetadataExtension>()).metadata;
            let version = frame.api.as_ref().map(|api| (api.version.major, api.version.minor));
            (asked.version.major, asked.version.minor) = version.unwrap_or(OLDEST);
            asked.traits = 0;
            return ptr::null_mut();
        }
        match catch(|| run(frame, BACKWARD)) {
            Ok(()) => ptr::null_mut(),
            Err(refused) => error(&*frame.api, &refused),
        }
    }
}

/// # Safety
/// `api` has the functions of XLA.
unsafe fn error(api: &Api, refused: &Refused) -> *mut c_void {
    let code = match refused.kind {
        Kind::Value | Kind::Type => 3,
        Kind::Memory => 8,
        Kind::NotImplemented => 12,
        Kind::Runtime => 13,
    };
    let message = c_text(&refused.message);
    let mut new = NewError {
        size: mem::size_of::<NewError>(),
        extension: ptr::null(),
        message: message.as_ptr(),
        code,
    };
    // SAFETY: the caller's promise; XLA copies the message.
    unsafe { (api.create_error)(&mut new) }
}

/// Refuses a version of XLA with other structures.
fn check_layout(frame: &Frame) -> Result<()> {
    let parts = [
        ("inputs", frame.inputs.size, mem::size_of::<Buffers>()),
        ("results", frame.results.size, mem::size_of::<Buffers>()),
        ("attributes", frame.attributes.size, mem::size_of::<Attributes>()),
    ];
    match parts.into_iter().find(|(_, got, expected)| got != expected) {
        None => Ok(()),
        Some((name, got, expected)) => Err(Refused::new(
            Kind::NotImplemented,
            format!(
                "XLA: got {got} bytes for the {name} of a call, expected {expected}\n\
                 hint: this version of JAX is too new for this version of msda"
            ),
        )),
    }
}

/// # Safety
/// The frame is that of a call of XLA: its buffers live, and nobody else uses the results.
unsafe fn run(frame: &Frame, backward: bool) -> Result<()> {
    check_layout(frame)?;
    if frame.stage != EXECUTE {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let (numbers, inputs, results) =
        unsafe { (numbers(&frame.attributes)?, buffers(&frame.inputs), buffers(&frame.results)) };
    let (levels, [options, points]) = LevelSizes::read_setup("XLA", numbers)?;
    // The gradient of the output comes before the inputs.
    let first: &[&str] = if backward { &["grad_output"] } else { &[] };
    let fused = inputs.len() == first.len() + 4;
    let names = names(fused);
    let outputs: &[&str] = match (backward, fused) {
        (false, _) => &["output"],
        (true, false) => &["gradient of value", "gradient of locations", "gradient of weights"],
        (true, true) => &[
            "gradient of value",
            "gradient of reference points",
            "gradient of offsets",
            "gradient of logits",
        ],
    };
    if inputs.len() != first.len() + names.len() || results.len() != outputs.len() {
        let got =
            format!("{} inputs and {} results", inputs.len().saturating_sub(first.len()), results.len());
        return Err(Refused::value("XLA", got, "those of the operator"));
    }
    // The first dimensions are those of vmap.
    let lead = usize::try_from(inputs[first.len()].rank - 4).unwrap_or(0);
    let buffers = || [first, names, outputs].into_iter().flatten().zip(inputs.iter().chain(&results));
    // SAFETY: the caller's promise.
    let sizes = buffers().map(|(name, buffer)| unsafe { sizes(name, buffer, lead) });
    let sizes = sizes.collect::<Result<Vec<_>>>()?;
    let tensors = buffers().zip(&sizes).map(|((name, buffer), sizes)| tensor(name, buffer, sizes));
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    let (grad, tensors) = tensors.split_at(first.len());
    let (inputs, results) = tensors.split_at(names.len());
    let &[value, ref reference @ .., locations, weights] = inputs else { unreachable!("3 or 4 names") };
    let reference = reference.first().copied();
    let call = Call { value, levels, reference, locations, weights, options, points };
    let problem = call.problem()?;
    let threads = OnThreads::Count(THREADS.get().copied());
    match (grad, results) {
        ([], [output]) => {
            call.check_output(output)?;
            // SAFETY: the caller's promise.
            unsafe { cpu::forward(&call, &problem, output, threads) }
        }
        ([grad], &[value, ref reference @ .., locations, weights]) => {
            let grads = [Some(value), Some(locations), Some(weights), reference.first().copied()];
            call.check_gradients(&grads)?;
            // SAFETY: the caller's promise.
            unsafe { cpu::backward(&call, &problem, grad, grads, threads) }
        }
        _ => unreachable!("results have names"),
    }
}

/// # Safety
/// The buffers live as long as the frame.
unsafe fn buffers(list: &Buffers) -> Vec<&Buffer> {
    let count = usize::try_from(list.count).unwrap_or(0);
    // SAFETY: the caller's promise; XLA has so many buffers.
    (0..count).map(|i| unsafe { &**list.buffers.add(i) }).collect()
}

/// The attribute of the call: options, points, and height, width and start of each level.
///
/// # Safety
/// The attributes live as long as the frame.
unsafe fn numbers(attributes: &Attributes) -> Result<&[i64]> {
    // SAFETY: the caller's promise; the kind says what the attribute is.
    unsafe {
        if attributes.count != 1 || *attributes.kinds != ARRAY {
            let got = format!("{} attributes", attributes.count);
            return Err(Refused::wrong_type("XLA", got, "one array"));
        }
        let array = &**attributes.arrays;
        if array.dtype != INT64 {
            let got = format!("an attribute of type {}", array.dtype);
            return Err(Refused::wrong_type("XLA", got, "int64"));
        }
        Ok(if array.count == 0 { &[] } else { slice::from_raw_parts(array.data, array.count) })
    }
}

/// The sizes of a buffer. Its first dimensions, those of vmap and the batch, are one.
///
/// # Safety
/// The buffer lives.
unsafe fn sizes(name: &str, buffer: &Buffer, lead: usize) -> Result<Vec<i64>> {
    let dims = match usize::try_from(buffer.rank) {
        // SAFETY: the caller's promise.
        Ok(rank) if rank > 0 => unsafe { slice::from_raw_parts(buffer.dims, rank) },
        _ => &[],
    };
    if dims.len() <= lead || dims.len() - lead > MOST_DIMENSIONS {
        let expected = format!("at least {} and at most {}", lead + 1, lead + MOST_DIMENSIONS);
        return Err(Refused::value(name, format!("{} dimensions", dims.len()), expected));
    }
    let (batch, rest) = dims.split_at(lead + 1);
    Ok([&[batch.iter().product()], rest].concat())
}

fn tensor<'a>(name: &'static str, buffer: &Buffer, sizes: &'a [i64]) -> Result<Tensor<'a>> {
    let dtype = XLA.find(buffer.dtype).ok_or_else(|| {
        let got = format!("a buffer of type {}", buffer.dtype);
        Refused::wrong_type(name, got, "a floating-point type")
    })?;
    Ok(Tensor { name, data: buffer.data, dtype, sizes, strides: None })
}
