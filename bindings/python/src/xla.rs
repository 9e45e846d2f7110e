//! The operator as functions that XLA calls through its C interface for custom calls.
//!
//! XLA gives addresses of its buffers, which are read and written in place. The structures below
//! are the parts of XLA's `c_api.h` that this needs. Each begins with its size, so that a version
//! of XLA with another layout is noticed.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::{mem, ptr, slice};

use msda_call::call::{Call, LevelSizes, MOST_DIMENSIONS, Tensor, names};
use msda_call::cpu;
use msda_call::cuda::Prepared;
use msda_call::dtypes::XLA;
use msda_call::error::{Kind, Refused, Result, c_text, catch};
use msda_call::threads::{self, OnThreads};
use pyo3::prelude::*;

use crate::error::PyResult;

/// The number of threads of a call. The environment says it once: while XLA calls, other threads
/// may change the environment.
static THREADS: OnceLock<usize> = OnceLock::new();

/// XLA's name of each platform, and the addresses of the forward and the backward function there.
#[pyfunction]
pub(crate) fn xla_handlers() -> PyResult<[(&'static str, [usize; 2]); 2]> {
    let threads = threads::default()?;
    THREADS.get_or_init(|| threads);
    let cpu: [Handler; 2] = [handle::<CPU, false>, handle::<CPU, true>];
    let cuda: [Handler; 2] = [handle::<CUDA, false>, handle::<CUDA, true>];
    let address = |handler: Handler| handler as *const () as usize;
    Ok([("cpu", cpu), ("CUDA", cuda)].map(|(name, handlers)| (name, handlers.map(address))))
}

const CPU: bool = false;
const CUDA: bool = true;

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

/// The same with the functions that a call on a GPU needs. XLA adds functions at the end.
#[repr(C)]
struct GpuApi {
    first: Api,
    get_message: unsafe extern "C" fn(*mut Asked<*const c_char>),
    destroy_error: unsafe extern "C" fn(*mut Asked<()>),
    _handler_register: *const c_void,
    get_stream: Question<*mut c_void>,
    _types_and_states: [*const c_void; 4],
    allocate: Question<Room>,
    free: Question<Taken>,
    _threads_and_futures: [*const c_void; 6],
    get_device: Question<c_int>,
}

/// The alignment of a workspace. XLA promises no more, and plans need no more.
const WORKSPACE_ALIGN: usize = 16;

/// A function that writes its answer, or returns an error.
type Question<T> = unsafe extern "C" fn(*mut Asked<T>) -> *mut c_void;

/// What a function of XLA reads and writes.
#[repr(C)]
struct Asked<T> {
    size: usize,
    extension: *const Extension,
    /// The context of the call, or an error.
    about: *const c_void,
    answer: T,
}

impl<T> Asked<T> {
    fn new(about: *const c_void, answer: T) -> Self {
        Self { size: mem::size_of::<Self>(), extension: ptr::null(), about, answer }
    }
}

/// Device memory to allocate.
#[repr(C)]
struct Room {
    bytes: usize,
    align: usize,
    data: *mut c_void,
}

/// Device memory to free.
#[repr(C)]
struct Taken {
    bytes: usize,
    data: *mut c_void,
}

/// The context of a call on a GPU.
struct Gpu<'a> {
    api: &'a GpuApi,
    context: *const c_void,
}

impl<'a> Gpu<'a> {
    /// # Safety
    /// The frame is that of a call of XLA on a GPU.
    unsafe fn new(frame: &'a Frame) -> Result<Self> {
        // SAFETY: the table begins with its size.
        let size = unsafe { (*frame.api).size };
        if size < mem::size_of::<GpuApi>() {
            return Err(Refused::new(
                Kind::NotImplemented,
                "XLA does not say on which GPU a call runs\nhint: use JAX 0.6 or newer",
            ));
        }
        // SAFETY: the table has all functions, and lives through the call.
        Ok(Self { api: unsafe { &*frame.api.cast::<GpuApi>() }, context: frame.context })
    }

    /// Asks XLA about the call.
    ///
    /// # Safety
    /// The function is one of XLA's, and `answer` has what it reads.
    unsafe fn ask<T>(&self, question: Question<T>, answer: T) -> Result<T> {
        let mut asked = Asked::new(self.context, answer);
        // SAFETY: the caller's promise.
        let error = unsafe { question(&mut asked) };
        if error.is_null() {
            return Ok(asked.answer);
        }
        let mut message = Asked::new(error, c"".as_ptr());
        // SAFETY: the error is destroyed once, after its message was copied.
        let text = unsafe {
            (self.api.get_message)(&mut message);
            let text = CStr::from_ptr(message.answer).to_string_lossy().into_owned();
            (self.api.destroy_error)(&mut Asked::new(error, ()));
            text
        };
        Err(Refused::new(Kind::Runtime, format!("XLA: {text}")))
    }

    /// The number of the GPU.
    fn device(&self) -> Result<usize> {
        // SAFETY: a function of XLA, which reads nothing of the answer.
        let number = unsafe { self.ask(self.api.get_device, 0)? };
        Ok(usize::try_from(number).unwrap_or(0))
    }

    /// Queues a call on the stream of the context.
    ///
    /// # Safety
    /// As for [`Prepared::launch`].
    unsafe fn launch(&self, prepared: Prepared) -> Result<()> {
        let mut taken = Taken { bytes: 0, data: ptr::null_mut() };
        // SAFETY: the caller's promise. XLA's allocator gives the memory only to later work of the
        // same stream.
        unsafe {
            let stream = self.ask(self.api.get_stream, ptr::null_mut())?;
            let launched = prepared.launch(stream, |bytes| {
                let room = self
                    .ask(self.api.allocate, Room { bytes, align: WORKSPACE_ALIGN, data: ptr::null_mut() });
                let data = room.map_err(|error| Refused::new(Kind::Memory, error.message))?.data;
                taken = Taken { bytes, data };
                Ok(data.addr() as u64)
            });
            if !taken.data.is_null() {
                self.ask(self.api.free, taken)?;
            }
            launched
        }
    }
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
unsafe extern "C" fn handle<const ON: bool, const BACKWARD: bool>(frame: *const Frame) -> *mut c_void {
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
        match catch(|| run(frame, ON == CUDA, BACKWARD)) {
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
unsafe fn run(frame: &Frame, on_gpu: bool, backward: bool) -> Result<()> {
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
    match (grad, results) {
        ([], [output]) => {
            call.check_output(output)?;
            // SAFETY: the caller's promise.
            unsafe { run_forward(frame, on_gpu, &call, output) }
        }
        ([grad], &[value, ref reference @ .., locations, weights]) => {
            let grads = [Some(value), Some(locations), Some(weights), reference.first().copied()];
            call.check_gradients(&grads)?;
            // SAFETY: the caller's promise.
            unsafe { run_backward(frame, on_gpu, &call, grad, grads) }
        }
        _ => unreachable!("results have names"),
    }
}

/// # Safety
/// As for [`run`], and the output was checked.
unsafe fn run_forward(frame: &Frame, on_gpu: bool, call: &Call<'_>, output: &Tensor<'_>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        if on_gpu {
            let gpu = Gpu::new(frame)?;
            return gpu.launch(Prepared::forward(call, output, gpu.device()?)?);
        }
        cpu::forward(call, &call.problem()?, output, on_threads())
    }
}

/// # Safety
/// As for [`run`], and the gradients were checked.
unsafe fn run_backward(
    frame: &Frame,
    on_gpu: bool,
    call: &Call<'_>,
    grad_output: &Tensor<'_>,
    grads: [Option<Tensor<'_>>; 4],
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        if on_gpu {
            let gpu = Gpu::new(frame)?;
            let prepared = Prepared::backward(call, grad_output, grads, gpu.device()?)?;
            return prepared.map_or(Ok(()), |prepared| gpu.launch(prepared));
        }
        cpu::backward(call, &call.problem()?, grad_output, grads, on_threads())
    }
}

fn on_threads() -> OnThreads {
    OnThreads::Count(THREADS.get().copied())
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
