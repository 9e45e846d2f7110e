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
    let cpu: [Handler; 2] = [handle::<false, false>, handle::<false, true>];
    let cuda: [Handler; 2] = [handle::<true, false>, handle::<true, true>];
    let address = |handler: Handler| handler as *const () as usize;
    Ok([("cpu", cpu), ("CUDA", cuda)].map(|(name, handlers)| (name, handlers.map(address))))
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

/// The same with the functions that a call on a GPU needs. A major version keeps their order, and
/// new ones come last.
#[repr(C)]
struct GpuApi {
    first: Api,
    get_error: unsafe extern "C" fn(*mut CallArgs<ErrorDetails>),
    destroy_error: unsafe extern "C" fn(*mut CallArgs<()>),
    _handler_register: *const c_void,
    get_stream: ApiFunction<*mut c_void>,
    _types_and_states: [*const c_void; 4],
    allocate: ApiFunction<Allocate>,
    free: ApiFunction<Free>,
    _others: [*const c_void; 6],
    get_device: ApiFunction<c_int>,
}

/// The major version of that table.
const MAJOR: c_int = 0;

/// A function that reads and writes the fields of its argument, or returns an error.
type ApiFunction<T> = unsafe extern "C" fn(*mut CallArgs<T>) -> *mut c_void;

/// The argument of such a function.
#[repr(C)]
struct CallArgs<T> {
    size: usize,
    extension: *const Extension,
    /// The context of the call, or an error.
    subject: *const c_void,
    fields: T,
}

impl<T> CallArgs<T> {
    fn new(subject: *const c_void, fields: T) -> Self {
        Self { size: mem::size_of::<Self>(), extension: ptr::null(), subject, fields }
    }
}

/// Versions before JAX 0.11 write the message only.
#[repr(C)]
struct ErrorDetails {
    message: *const c_char,
    code: c_int,
}

#[repr(C)]
struct Allocate {
    bytes: usize,
    align: usize,
    data: *mut c_void,
}

#[repr(C)]
struct Free {
    bytes: usize,
    data: *mut c_void,
}

/// The alignment of a workspace. XLA promises no more, and plans need no more.
const WORKSPACE_ALIGN: usize = 16;

/// The context of a call on a GPU.
struct Gpu<'a> {
    api: &'a GpuApi,
    context: *const c_void,
}

impl<'a> Gpu<'a> {
    /// # Safety
    /// The frame is that of a call of XLA on a GPU.
    unsafe fn new(frame: &'a Frame) -> Result<Self> {
        // SAFETY: the table begins with its size and its version.
        let (size, major) = unsafe { ((*frame.api).size, (*frame.api).version.major) };
        if major != MAJOR {
            return Err(too_new(format!("version {major} of its interface, expected {MAJOR}")));
        }
        if size < mem::size_of::<GpuApi>() {
            return Err(Refused::new(
                Kind::NotImplemented,
                "XLA does not say on which GPU a call runs\nhint: use JAX 0.6 or newer",
            ));
        }
        // SAFETY: the table has all functions, and lives through the call.
        Ok(Self { api: unsafe { &*frame.api.cast::<GpuApi>() }, context: frame.context })
    }

    /// Calls a function of XLA about this call. Returns the fields that it wrote.
    ///
    /// # Safety
    /// The function is one of XLA's, and the fields have what it reads.
    unsafe fn call<T>(&self, function: ApiFunction<T>, fields: T) -> Result<T> {
        let mut args = CallArgs::new(self.context, fields);
        // SAFETY: the argument begins with its size, and lives through the call of XLA's function.
        let error = unsafe { function(&mut args) };
        if error.is_null() {
            return Ok(args.fields);
        }
        let mut details = CallArgs::new(error, ErrorDetails { message: c"".as_ptr(), code: 0 });
        // SAFETY: the error is destroyed once, after its message was copied.
        let text = unsafe {
            (self.api.get_error)(&mut details);
            let text = CStr::from_ptr(details.fields.message).to_string_lossy().into_owned();
            (self.api.destroy_error)(&mut CallArgs::new(error, ()));
            text
        };
        Err(Refused::new(Kind::Runtime, format!("XLA: {text}")))
    }

    /// The number of the GPU.
    fn device(&self) -> Result<usize> {
        // SAFETY: a function of XLA, which reads no field.
        let number = unsafe { self.call(self.api.get_device, -1)? };
        usize::try_from(number)
            .map_err(|_| Refused::new(Kind::Runtime, format!("XLA: got GPU {number}, expected at least 0")))
    }

    /// Queues a call on the stream of the context.
    ///
    /// # Safety
    /// As for [`Prepared::launch`].
    unsafe fn launch(&self, prepared: Prepared) -> Result<()> {
        let mut workspace = Free { bytes: 0, data: ptr::null_mut() };
        // SAFETY: the stream is that of the context, and XLA's buffers live until it has run the
        // call. The workspace is freed when the call is queued: XLA runs custom calls on one stream
        // per GPU, so only later work of this stream gets the memory.
        unsafe {
            let stream = self.call(self.api.get_stream, ptr::null_mut())?;
            let launched = prepared.launch(stream, |bytes| {
                let wanted = Allocate { bytes, align: WORKSPACE_ALIGN, data: ptr::null_mut() };
                let got = self.call(self.api.allocate, wanted);
                workspace.data = got.map_err(|error| Refused::new(Kind::Memory, error.message))?.data;
                workspace.bytes = bytes;
                Ok(workspace.data.addr() as u64)
            });
            if workspace.data.is_null() {
                return launched;
            }
            let freed = self.call(self.api.free, workspace);
            launched.and(freed.map(drop))
        }
    }
}

/// The error for a version of XLA with other structures.
fn too_new(got: String) -> Refused {
    let hint = "hint: this version of JAX is too new for this version of msda";
    Refused::new(Kind::NotImplemented, format!("XLA: got {got}\n{hint}"))
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
unsafe extern "C" fn handle<const ON_GPU: bool, const BACKWARD: bool>(frame: *const Frame) -> *mut c_void {
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
        match catch(|| run(frame, ON_GPU, BACKWARD)) {
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
    // SAFETY: the function is XLA's. It copies the message, which lives until the end of this
    // function.
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
        Some((name, got, expected)) => {
            Err(too_new(format!("{got} bytes for the {name} of a call, expected {expected}")))
        }
    }
}

/// # Safety
/// The frame is that of a call of XLA: its buffers live, and nobody else uses the results.
unsafe fn run(frame: &Frame, on_gpu: bool, backward: bool) -> Result<()> {
    check_layout(frame)?;
    if frame.stage != EXECUTE {
        return Ok(());
    }
    // SAFETY: the lists have the layout that `check_layout` compared, and live as long as the
    // frame.
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
    // SAFETY: the buffers live as long as the frame.
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
            // SAFETY: the output was checked, and nobody else uses it.
            unsafe { run_forward(frame, on_gpu, &call, output) }
        }
        ([grad], &[value, ref reference @ .., locations, weights]) => {
            let grads = [Some(value), Some(locations), Some(weights), reference.first().copied()];
            call.check_gradients(&grads)?;
            // SAFETY: the gradients were checked, and nobody else uses them.
            unsafe { run_backward(frame, on_gpu, &call, grad, grads) }
        }
        _ => unreachable!("results have names"),
    }
}

/// # Safety
/// As for [`run`], and the output was checked.
unsafe fn run_forward(frame: &Frame, on_gpu: bool, call: &Call<'_>, output: &Tensor<'_>) -> Result<()> {
    // SAFETY: all buffers are in memory of the device that `on_gpu` says, and live through the
    // call, on a GPU until the stream has run it. The output is dense.
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
    // SAFETY: all buffers are in memory of the device that `on_gpu` says, and live through the
    // call, on a GPU until the stream has run it. The gradients are dense.
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
    // SAFETY: the list has so many addresses of buffers.
    (0..count).map(|i| unsafe { &**list.buffers.add(i) }).collect()
}

/// The attribute of the call: options, points, and height, width and start of each level.
///
/// # Safety
/// The attributes live as long as the frame.
unsafe fn numbers(attributes: &Attributes) -> Result<&[i64]> {
    // SAFETY: the attributes live as long as the frame, and the kind says that the only one is an
    // array, the type that its elements are 64-bit integers.
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
        debug_assert!(array.count == 0 || array.data.is_aligned());
        Ok(if array.count == 0 { &[] } else { slice::from_raw_parts(array.data, array.count) })
    }
}

/// The sizes of a buffer. Its first dimensions, those of vmap and the batch, are one.
///
/// # Safety
/// The buffer lives.
unsafe fn sizes(name: &str, buffer: &Buffer, lead: usize) -> Result<Vec<i64>> {
    let dims = match usize::try_from(buffer.rank) {
        // SAFETY: the buffer lives, and has as many sizes as its rank.
        Ok(rank) if rank > 0 => unsafe { slice::from_raw_parts(buffer.dims, rank) },
        _ => &[],
    };
    if dims.len() <= lead || dims.len() - lead > MOST_DIMENSIONS {
        let expected = format!("at least {} and at most {}", lead + 1, lead + MOST_DIMENSIONS);
        return Err(Refused::value(name, format!("{} dimensions", dims.len()), expected));
    }
    let (batch, rest) = dims.split_at(lead + 1);
    let batch = batch.iter().try_fold(1i64, |all, &size| all.checked_mul(size)).ok_or_else(|| {
        Refused::value(name, format!("shape {dims:?}"), "first dimensions whose product fits 64 bits")
    })?;
    Ok([&[batch], rest].concat())
}

fn tensor<'a>(name: &'static str, buffer: &Buffer, sizes: &'a [i64]) -> Result<Tensor<'a>> {
    let dtype = XLA.find(buffer.dtype).ok_or_else(|| {
        let got = format!("a buffer of type {}", buffer.dtype);
        Refused::wrong_type(name, got, "a floating-point type")
    })?;
    Ok(Tensor { name, data: buffer.data, dtype, sizes, strides: None })
}
