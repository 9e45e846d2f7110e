//! An operator of a model: its attributes, and the computation.

use std::any::Any;
use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{ptr, slice, thread};

use msda::Threads;
use msda_call::call::{Call, LevelSizes, MOST_DIMENSIONS, SHAPES, STARTS, Tensor, dense_stride, pack_points};
use msda_call::cpu;
use msda_call::cuda::Prepared;
use msda_call::dtypes::{EXPECTED, ONNX};
use msda_call::error::{Kind, Refused, Result};
use msda_call::threads::OnThreads;

use crate::api::{Api, Handle, INT64, Release};
use crate::ops::{Form, Op, Provider};

/// An operator of a model that is loaded.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) api: Api,
    form: Form,
    provider: Provider,
    /// As [`Call`] takes them.
    options: i64,
    /// Points per level; none if all levels have the same number.
    points: Vec<u8>,
    workspaces: Mutex<Vec<Workspace>>,
}

impl Kernel {
    /// # Safety
    /// `info` describes a node of the operator.
    pub(crate) unsafe fn new(api: Api, op: &Op, info: Handle) -> Result<Self> {
        // SAFETY: the caller's promise.
        let attributes = unsafe { (options(api, info), points(api, info)) };
        let named = |refused: Refused| {
            // SAFETY: the function follows the rules of `Api::text`.
            let name = unsafe { Api::text(|text, len| api.kernel_info_get_node_name(info, text, len)) };
            let (op, name) = (op.form.name().to_string_lossy(), name.unwrap_or_default());
            Refused::new(refused.kind, format!("{op} node {name:?}: {}", refused.message))
        };
        Ok(Self {
            api,
            form: op.form,
            provider: op.provider,
            options: attributes.0.map_err(named)?,
            points: attributes.1.map_err(named)?,
            workspaces: Mutex::default(),
        })
    }

    /// # Safety
    /// `context` is the context of a run of this kernel.
    pub(crate) unsafe fn compute(&self, context: Handle) -> Result<()> {
        let api = self.api;
        // SAFETY: the caller's promise: the operator has so many inputs.
        let input = |i: usize, name| unsafe { Input::new(api, context, i, name) };
        let levels = level_sizes(&input(1, SHAPES)?, &input(2, STARTS)?)?;
        let names = self.form.floats();
        let float = |i: usize| input(if i == 0 { 0 } else { i + 2 }, names[i]);
        let (value, locations, weights) = (float(0)?, float(names.len() - 2)?, float(names.len() - 1)?);
        let mut reference = if self.form == Form::Fused { Some(float(1)?) } else { None };
        if let Some(reference) = &mut reference {
            reference.repeat_level(levels.len());
        }
        if !self.points.is_empty() && self.points.len() != levels.len() {
            let got = format!("{} numbers", self.points.len());
            return Err(Refused::value("points", got, format!("{}, one per level", levels.len())));
        }
        let call = Call {
            value: value.tensor()?,
            levels,
            reference: reference.as_ref().map(Input::tensor).transpose()?,
            locations: locations.tensor()?,
            weights: weights.tensor()?,
            options: self.options,
            points: pack_points(&self.points).unwrap_or(0),
        };
        // On the GPU the plan checks the problem when it is made.
        let problem = if self.provider == Provider::Cpu { Some(call.problem()?) } else { None };
        let sizes = call.output_shape()?;
        let (mut output, mut data) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the context lives; the results are valid to write.
        unsafe {
            api.kernel_context_get_output(context, 0, sizes.as_ptr(), sizes.len(), &mut output)?;
            api.get_tensor_mutable_data(output, &mut data)?;
        }
        let dtype = call.value.dtype;
        let output = Tensor { name: "output", data, dtype, sizes: &sizes, strides: None };
        match problem {
            Some(problem) => {
                let threads = OnThreads::Framework(Arc::new(Pool { api, context }));
                // SAFETY: ONNX Runtime keeps the tensors through the call; the output is new.
                unsafe { cpu::forward(&call, &problem, &output, threads) }
            }
            None => {
                let (mut device, mut stream) = (ptr::null_mut(), ptr::null_mut());
                let mut number: c_int = 0;
                // SAFETY: the context and the tensor live; the results are valid to write.
                unsafe {
                    api.get_tensor_memory_info(value.value, &mut device)?;
                    api.memory_info_get_id(device, &mut number)?;
                    api.kernel_context_get_gpu_compute_stream(context, &mut stream)?;
                }
                let number = usize::try_from(number).unwrap_or(0);
                let prepared = Prepared::forward(&call, &output, number)?;
                // Two runs may queue on one stream: the workspaces stay locked until the end.
                let mut locked = None;
                // SAFETY: as above, in memory of the device. The workspace stays until the kernel
                // is destroyed, and only this stream uses it, one run after the other.
                unsafe {
                    prepared.launch(stream, |bytes| {
                        let guard = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
                        let workspaces = locked.insert(guard);
                        Workspace::find_or_add(workspaces, api, context, device, stream, bytes)
                    })
                }
            }
        }
    }
}

/// Device memory of ONNX Runtime's allocator.
#[derive(Debug)]
struct Workspace {
    api: Api,
    allocator: Handle,
    memory: *mut c_void,
    stream: *mut c_void,
    bytes: usize,
}

// SAFETY: allocators may be used from any thread; the addresses are only passed on.
unsafe impl Send for Workspace {}

impl Workspace {
    /// The address of device memory for work on a stream. It is kept: ONNX Runtime's allocator may
    /// give freed memory to another stream, and a captured graph uses it again.
    ///
    /// # Safety
    /// `context` is that of the run, and `device` describes memory of its device.
    unsafe fn find_or_add(
        all: &mut Vec<Self>,
        api: Api,
        context: Handle,
        device: Handle,
        stream: *mut c_void,
        bytes: usize,
    ) -> Result<u64> {
        let fits = |kept: &&Self| kept.stream == stream && kept.bytes >= bytes;
        if let Some(kept) = all.iter().find(fits) {
            return Ok(kept.memory.addr() as u64);
        }
        // Sizes that grow slowly take at most twice the largest.
        let bytes = bytes.checked_next_power_of_two().unwrap_or(bytes);
        let mut kept = Self { api, allocator: ptr::null_mut(), memory: ptr::null_mut(), stream, bytes };
        // SAFETY: the caller's promise; the results are valid to write.
        unsafe {
            api.kernel_context_get_allocator(context, device, &mut kept.allocator)?;
            api.allocator_alloc(kept.allocator, bytes, &mut kept.memory)?;
        }
        if kept.memory.is_null() {
            let message = format!("workspace: ONNX Runtime has no {bytes} bytes of device memory");
            return Err(Refused::new(Kind::Memory, message));
        }
        let address = kept.memory.addr() as u64;
        all.push(kept);
        Ok(address)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // SAFETY: both belong to this workspace and are freed once. Runs have ended.
        unsafe {
            if !self.memory.is_null() {
                let _ = self.api.allocator_free(self.allocator, self.memory);
            }
            if !self.allocator.is_null() {
                self.api.release(Release::Allocator, self.allocator);
            }
        }
    }
}

/// An input of a run.
#[derive(Debug)]
struct Input {
    name: &'static str,
    value: Handle,
    data: *mut c_void,
    dtype: c_int,
    rank: usize,
    sizes: [i64; MOST_DIMENSIONS],
    /// None for a dense tensor.
    strides: Option<[i64; MOST_DIMENSIONS]>,
}

impl Input {
    /// # Safety
    /// `context` is that of a run whose operator has an input of that index.
    unsafe fn new(api: Api, context: Handle, index: usize, name: &'static str) -> Result<Self> {
        let (mut value, mut info, mut data) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let (mut dtype, mut rank, mut sizes) = (0, 0, [0; MOST_DIMENSIONS]);
        // SAFETY: the caller's promise; the results are valid to write, sizes for its length.
        unsafe {
            api.kernel_context_get_input(context, index, &mut value)?;
            if value.is_null() {
                return Err(Refused::value(name, "no tensor", "a tensor"));
            }
            api.get_tensor_type_and_shape(value, &mut info)?;
            let described = api
                .get_tensor_element_type(info, &mut dtype)
                .and_then(|()| api.get_dimensions_count(info, &mut rank))
                .and_then(|()| api.get_dimensions(info, sizes.as_mut_ptr(), rank.min(MOST_DIMENSIONS)));
            api.release(Release::TensorTypeAndShapeInfo, info);
            described?;
            api.get_tensor_mutable_data(value, &mut data)?;
        }
        if rank > MOST_DIMENSIONS {
            let expected = format!("at most {MOST_DIMENSIONS}");
            return Err(Refused::value(name, format!("{rank} dimensions"), expected));
        }
        Ok(Self { name, value, data, dtype, rank, sizes, strides: None })
    }

    fn sizes(&self) -> &[i64] {
        &self.sizes[..self.rank]
    }

    /// As a tensor of floats.
    fn tensor(&self) -> Result<Tensor<'_>> {
        let dtype = ONNX.find(self.dtype).ok_or_else(|| self.wrong_type(EXPECTED))?;
        let strides = self.strides.as_ref().map(|strides| &strides[..self.rank]);
        Ok(Tensor { name: self.name, data: self.data, dtype, sizes: self.sizes(), strides })
    }

    fn wrong_type(&self, expected: &str) -> Refused {
        Refused::wrong_type(self.name, format!("type number {} of ONNX", self.dtype), expected)
    }

    /// The elements of a table of integers on the host.
    fn integers(&self) -> Result<&[i64]> {
        if self.dtype != INT64 {
            return Err(self.wrong_type("int64"));
        }
        let len = self.sizes().iter().product::<i64>();
        if len <= 0 {
            return Ok(&[]);
        }
        // SAFETY: a dense tensor of so many 64-bit integers on the host. It lives through the run.
        Ok(unsafe { slice::from_raw_parts(self.data.cast(), len as usize) })
    }

    /// Reference points of one level serve all levels.
    fn repeat_level(&mut self, levels: usize) {
        if self.rank == 4 && self.sizes[2] == 1 {
            let mut strides = std::array::from_fn(|dim| dense_stride(self.sizes(), dim));
            strides[2] = 0;
            (self.sizes[2], self.strides) = (levels as i64, Some(strides));
        }
    }
}

fn level_sizes(shapes: &Input, starts: &Input) -> Result<LevelSizes> {
    let levels = LevelSizes::count(shapes.sizes(), starts.sizes())?;
    let (shapes, starts) = (shapes.integers()?, starts.integers()?);
    LevelSizes::read(levels, |i| shapes[i], Some(|i| starts[i]))
}

/// ONNX Runtime's threads for the operators of a session, for one run.
struct Pool {
    api: Api,
    context: Handle,
}

// SAFETY: the pool is used during the run alone, and ONNX Runtime's loop is called from its thread.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Threads for Pool {
    /// ONNX Runtime does not say how many threads a session has. A number above it costs little.
    fn count(&self) -> usize {
        static COUNT: OnceLock<usize> = OnceLock::new();
        *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
    }

    fn for_each(&self, n: usize, work: &(dyn Fn(usize) + Sync)) {
        struct Loop<'a> {
            work: &'a (dyn Fn(usize) + Sync),
            panic: Mutex<Option<Box<dyn Any + Send>>>,
        }
        unsafe extern "C" fn step(data: *mut c_void, i: usize) {
            // SAFETY: the loop below outlives the steps.
            let this = unsafe { &*data.cast::<Loop<'_>>() };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (this.work)(i))) {
                this.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
        }
        let this = Loop { work, panic: Mutex::new(None) };
        // SAFETY: the call returns after the last step.
        let ran = unsafe {
            self.api.kernel_context_parallel_for(
                self.context,
                step,
                n,
                0,
                (&raw const this).cast_mut().cast(),
            )
        };
        if let Some(panic) = this.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
        // `Api::guard` turns it into a status.
        if let Err(refused) = ran {
            panic!("{}", refused.message);
        }
    }
}

/// The value of an attribute, or `None` if the node has none of that name.
fn given<T>(name: &CStr, expected: &str, got: Result<T>) -> Result<Option<T>> {
    match got {
        Ok(value) => Ok(Some(value)),
        // ONNX Runtime's words in all versions. With other words an attribute of ours is wrong, and
        // is not ignored. Attributes of other names are not seen: ONNX Runtime does not list them.
        Err(refused) if refused.message.contains("No attribute") => Ok(None),
        Err(refused) => Err(Refused::wrong_type(&name.to_string_lossy(), refused.message, expected)),
    }
}

/// The options as the number that [`Call`] takes.
///
/// # Safety
/// `info` describes a node.
unsafe fn options(api: Api, info: Handle) -> Result<i64> {
    let mut bits = 0;
    for (name, choices, bit) in
        [(c"sampling", ["bilinear", "nearest"], 1), (c"padding", ["zeros", "border"], 2)]
    {
        let expected = format!("{:?} or {:?}", choices[0], choices[1]);
        // SAFETY: the function follows the rules of `Api::text`; the node lives.
        let text = unsafe {
            Api::text(|text, len| api.kernel_info_get_attribute_string(info, name.as_ptr(), text, len))
        };
        let Some(text) = given(name, &expected, text)? else { continue };
        let Some(choice) = choices.iter().position(|choice| *choice == text) else {
            return Err(Refused::value(&name.to_string_lossy(), format!("{text:?}"), expected));
        };
        bits |= bit * choice as i64;
    }
    let (name, expected) = (c"align_corners", "0 or 1");
    let mut number = 0;
    // SAFETY: the node lives; the result is valid to write.
    let got = unsafe { api.kernel_info_get_attribute_int64(info, name.as_ptr(), &mut number) };
    match given(name, expected, got)?.map(|()| number) {
        None | Some(0) => Ok(bits),
        Some(1) => Ok(bits | 4),
        Some(other) => Err(Refused::value("align_corners", other, expected)),
    }
}

/// Points per level; none if the node has no such attribute, or an empty one.
///
/// # Safety
/// `info` describes a node.
unsafe fn points(api: Api, info: Handle) -> Result<Vec<u8>> {
    let (name, mut len) = (c"points", 0);
    let expected = "one number per level (at most 8), from 0 to 255 and at least one above 0";
    // SAFETY: the node lives; without a list, only the length is written.
    let got =
        unsafe { api.kernel_info_get_attribute_array_int64(info, name.as_ptr(), ptr::null_mut(), &mut len) };
    if given(name, expected, got)?.is_none() {
        return Ok(Vec::new());
    }
    if len == 0 {
        // An empty list is the schema's default. ONNX Runtime says 0 for a single number too.
        let mut single = 0;
        // SAFETY: as above.
        return match unsafe { api.kernel_info_get_attribute_int64(info, name.as_ptr(), &mut single) } {
            Ok(()) => Err(Refused::wrong_type("points", single, expected)),
            Err(_) => Ok(Vec::new()),
        };
    }
    let mut numbers = vec![0i64; len];
    // SAFETY: the list has room for so many numbers.
    unsafe {
        api.kernel_info_get_attribute_array_int64(info, name.as_ptr(), numbers.as_mut_ptr(), &mut len)?;
    }
    let points: Option<Vec<u8>> = numbers.iter().map(|&n| u8::try_from(n).ok()).collect();
    points
        .filter(|points| pack_points(points).is_some())
        .ok_or_else(|| Refused::value("points", format!("{numbers:?}"), expected))
}
