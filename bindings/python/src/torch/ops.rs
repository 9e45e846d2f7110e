//! The kernels. One function serves the CPU and CUDA: the tensors say where they are.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

use msda_call::call::{Call, LevelSizes, SHAPES, STARTS, Tensor, names};
use msda_call::cpu;
use msda_call::cuda::Prepared;
use msda_call::error::{Kind, Refused, Result, c_text, catch};
use msda_call::threads::OnThreads;

use super::abi::{Api, Boxed, Handle};
use super::tensor::{Described, Owned, Place, dtype_name};
use crate::error::tagged;

/// The kernels by the names of their operators.
pub(super) const KERNELS: [(&CStr, Boxed); 12] = [
    (c"ms_deform_attn", forward::<3, TABLES>),
    (c"ms_deform_attn_backward", backward::<3, TABLES>),
    (c"ms_deform_attn_fused", forward::<4, TABLES>),
    (c"ms_deform_attn_fused_backward", backward::<4, TABLES>),
    // The same for eager calls: these have no autograd formula that Python would have to run.
    (c"_forward_tables", forward::<3, TABLES>),
    (c"_backward_tables", backward::<3, TABLES>),
    (c"_forward_fused_tables", forward::<4, TABLES>),
    (c"_backward_fused_tables", backward::<4, TABLES>),
    // Level sizes and options in one tensor: every argument less costs less host time.
    (c"_forward", forward::<3, SETUP>),
    (c"_backward", backward::<3, SETUP>),
    (c"_forward_fused", forward::<4, SETUP>),
    (c"_backward_fused", backward::<4, SETUP>),
];

/// Which of the [`Levels`] a kernel gets.
const TABLES: bool = false;
const SETUP: bool = true;

/// Where a kernel finds the level sizes, and the options and points.
enum Levels {
    /// Two tensors, of sizes and of first positions.
    Tables([Owned; 2], [i64; 2]),
    /// A tensor of int64 on the CPU: options, points, then height, width and first position of each
    /// level. The Python side makes it.
    Setup(Owned),
}

/// The arguments of a kernel, by their number.
struct Arguments {
    api: &'static Api,
    stack: *const u64,
}

impl Arguments {
    /// # Safety
    /// There is such an argument, and it is a number.
    unsafe fn number(&self, at: usize) -> i64 {
        // SAFETY: torch's stack has a word per argument, and this one is there.
        unsafe { *self.stack.add(at) as i64 }
    }

    /// # Safety
    /// There is such an argument, it is a tensor, and nobody asks for it again.
    unsafe fn tensor(&self, at: usize) -> Owned {
        // SAFETY: a kernel owns the tensors of its stack, and this handle is taken once.
        unsafe { Owned::new(self.api, ptr::with_exposed_provenance_mut(self.number(at) as usize)) }
    }

    /// The floating-point tensors and the levels, and the number of the argument behind them.
    ///
    /// # Safety
    /// The arguments from number `value` on are those of a kernel with tables for the levels, which
    /// stand behind value, or with a setup.
    unsafe fn inputs<const T: usize, const SETUP: bool>(&self, value: usize) -> ([Owned; T], Levels, usize) {
        // SAFETY: the numbers are those of the schema in `schema.py`, each once.
        unsafe {
            if SETUP {
                let floats = std::array::from_fn(|i| self.tensor(value + i));
                return (floats, Levels::Setup(self.tensor(value + T)), value + T + 1);
            }
            let floats = std::array::from_fn(|i| self.tensor(if i == 0 { value } else { value + 2 + i }));
            let tables = [self.tensor(value + 1), self.tensor(value + 2)];
            let numbers = [self.number(value + T + 2), self.number(value + T + 3)];
            (floats, Levels::Tables(tables, numbers), value + T + 4)
        }
    }
}

unsafe extern "C-unwind" fn forward<const T: usize, const SETUP: bool>(stack: *mut u64, _in: u64, _out: u64) {
    // SAFETY: torch calls the kernel with the arguments of its schema, and takes one result.
    unsafe {
        throw(boxed(stack, |arguments| {
            let (floats, levels, _) = arguments.inputs::<T, SETUP>(0);
            run_forward(arguments.api, floats, levels)
        }))
    }
}

unsafe extern "C-unwind" fn backward<const T: usize, const SETUP: bool>(
    stack: *mut u64,
    _in: u64,
    _out: u64,
) {
    // SAFETY: torch calls the kernel with the arguments of its schema: the gradient of the output
    // first, `wanted` last. It takes as many results as there are floating-point tensors.
    unsafe {
        throw(boxed(stack, |arguments| {
            let grad = arguments.tensor(0);
            let (floats, levels, wanted) = arguments.inputs::<T, SETUP>(1);
            run_backward(arguments.api, grad, floats, levels, arguments.number(wanted))
        }))
    }
}

/// Runs a kernel that returns `R` tensors. The result is null, or the message of an error, which
/// belongs to this thread until its next error.
///
/// # Safety
/// `stack` has the arguments, of which the kernel reads all, and room for the results.
#[inline(never)]
unsafe fn boxed<const R: usize>(
    stack: *mut u64,
    kernel: impl FnOnce(Arguments) -> Result<[Owned; R]>,
) -> *const c_char {
    thread_local! {
        static LAST: RefCell<CString> = RefCell::default();
    }
    // Kernels are registered after the table was loaded.
    let Some(api) = Api::get() else { return ptr::null() };
    let refused = match catch(|| kernel(Arguments { api, stack })) {
        Ok(results) => {
            for (i, result) in results.into_iter().enumerate() {
                let handle: Handle = result.into_raw();
                // SAFETY: the stack has room for the results, and the arguments were taken from it.
                unsafe { *stack.add(i) = handle.expose_provenance() as u64 };
            }
            return ptr::null();
        }
        Err(refused) => refused,
    };
    LAST.with(|last| {
        *last.borrow_mut() = c_text(&tagged(&refused));
        last.borrow().as_ptr()
    })
}

/// Throws a C++ exception with a message, if there is one.
///
/// This is the last call of a kernel, which has nothing to drop: in optimised builds it is a jump,
/// so that the exception passes no frame of ours. `boxed` is never inlined into a kernel, so that
/// without optimisation the kernel's frame at least has no personality function.
///
/// # Safety
/// The message is null, or lives through the call.
#[inline(always)]
unsafe fn throw(message: *const c_char) {
    if let (false, Some(api)) = (message.is_null(), Api::get()) {
        // SAFETY: the strings live through the call.
        unsafe { (api.core.aoti_torch_check)(false, c"msda".as_ptr(), c"msda".as_ptr(), 0, message) };
    }
}

/// Makes the dimensions of tensors from `first` on contiguous. Most calls need no copy.
fn dense<const T: usize>(tensors: [Owned; T], first: usize) -> Result<[Owned; T]> {
    let mut copies: [Option<Owned>; T] = [const { None }; T];
    for (copy, tensor) in copies.iter_mut().zip(&tensors) {
        *copy = tensor.dense_from(first)?;
    }
    let mut copies = copies.into_iter();
    Ok(tensors.map(|tensor| copies.next().flatten().unwrap_or(tensor)))
}

/// The call of floating-point tensors, and where they are.
fn call<'a, const T: usize>(api: &Api, floats: &'a [Owned; T], levels: &Levels) -> Result<(Call<'a>, Place)> {
    let names = const { names(T == 4) };
    let (value, place) = floats[0].float(names[0])?;
    if place.kind != api.cpu && place.kind != api.gpu {
        return Err(Refused::new(Kind::NotImplemented, "msda works on CPU and CUDA tensors"));
    }
    let float = |i: usize| -> Result<Tensor<'a>> {
        let (tensor, there) = floats[i].float(names[i])?;
        if there != place {
            let say = |place: Place| match place.kind == api.cpu {
                true => "the CPU".to_owned(),
                false => format!("device {}", place.index),
            };
            let expected = format!("one on {}, where value is", say(place));
            return Err(Refused::value(names[i], format!("a tensor on {}", say(there)), expected));
        }
        Ok(tensor)
    };
    let (levels, [options, points]) = match levels {
        Levels::Tables([shapes, starts], numbers) => (level_sizes(api, shapes, starts, place)?, *numbers),
        Levels::Setup(setup) => read_setup(api, setup)?,
    };
    let reference = if T == 4 { Some(float(1)?) } else { None };
    let (locations, weights) = (float(T - 2)?, float(T - 1)?);
    Ok((Call { value, levels, reference, locations, weights, options, points }, place))
}

/// The level sizes, and options and points, of a tensor that the Python side made.
fn read_setup(api: &Api, setup: &Owned) -> Result<(LevelSizes, [i64; 2])> {
    let setup = setup.describe()?;
    let &[count] = setup.sizes else {
        return Err(Refused::value("setup", format!("shape {:?}", setup.sizes), "one dimension"));
    };
    if setup.dtype != api.i64 || setup.place.kind != api.cpu || setup.strides != [1] {
        return Err(Refused::wrong_type("setup", "another tensor", "contiguous int64 on the CPU"));
    }
    let data = setup.data.cast::<i64>();
    if data.is_null() || !data.is_aligned() {
        return Err(Refused::value("setup", "an empty or unaligned tensor", "one of msda"));
    }
    // SAFETY: the tensor is contiguous and aligned, has so many elements of that type, and lives.
    let numbers = unsafe { std::slice::from_raw_parts(data, count as usize) };
    LevelSizes::read_setup("setup", numbers)
}

/// The level sizes: read here if they are in memory of the host, else left to the kernel.
fn level_sizes(api: &Api, shapes: &Owned, starts: &Owned, place: Place) -> Result<LevelSizes> {
    let (shapes, starts) = (shapes.describe()?, starts.describe()?);
    let levels = LevelSizes::count(shapes.sizes, starts.sizes)?;
    for (name, table) in [(SHAPES, &shapes), (STARTS, &starts)] {
        if table.dtype != api.i64 && !(table.dtype == api.i32 && table.place.kind == api.cpu) {
            let expected = match table.place.kind == api.cpu {
                true => "int64 or int32",
                false => "int64 on the GPU",
            };
            return Err(Refused::wrong_type(name, dtype_name(table.dtype), expected));
        }
    }
    if shapes.place.kind == api.cpu && starts.place.kind == api.cpu {
        return LevelSizes::read(levels, |i| integer(api, &shapes, i), Some(|i| integer(api, &starts, i)));
    }
    if shapes.place != place || starts.place != place {
        return Err(Refused::value(
            "spatial_shapes and level_start_index",
            "tensors on different devices",
            "both on the CPU, or both on the device of value",
        ));
    }
    let address = |table: &Described<'_>| table.data.addr() as u64;
    Ok(LevelSizes::Device { shapes: address(&shapes), starts: address(&starts), levels })
}

/// An integer of a contiguous tensor on the CPU, which has more than `i`. It may lie at any byte.
fn integer(api: &Api, table: &Described<'_>, i: usize) -> i64 {
    // SAFETY: the tensor is contiguous, has so many elements of that type, and lives.
    unsafe {
        match table.dtype == api.i64 {
            true => table.data.cast::<i64>().add(i).read_unaligned(),
            false => i64::from(table.data.cast::<i32>().add(i).read_unaligned()),
        }
    }
}

/// The number of a device, and the stream that torch uses there now.
fn current(api: &Api, place: Place) -> Result<(usize, *mut c_void)> {
    let missing = || Refused::new(Kind::Runtime, "torch has no CUDA, but a tensor is on a GPU");
    let mut stream: *mut c_void = ptr::null_mut();
    let get = api.cuda.as_ref().ok_or_else(missing)?.aoti_torch_get_current_cuda_stream;
    // SAFETY: `stream` is valid to write.
    if unsafe { get(place.index, &mut stream) } != 0 {
        return Err(Refused::new(
            Kind::Runtime,
            format!("torch has no current stream on device {}", place.index),
        ));
    }
    Ok((usize::try_from(place.index).unwrap_or(0), stream))
}

/// Makes tables contiguous.
fn dense_levels(levels: Levels) -> Result<Levels> {
    Ok(match levels {
        Levels::Tables(tables, numbers) => Levels::Tables(dense(tables, 0)?, numbers),
        setup => setup,
    })
}

/// The output. The floating-point tensors are value, the reference points of the fused form,
/// locations and weights.
fn run_forward<const T: usize>(api: &'static Api, floats: [Owned; T], levels: Levels) -> Result<[Owned; 1]> {
    let (floats, levels) = (dense(floats, 3)?, dense_levels(levels)?);
    let (call, place) = call(api, &floats, &levels)?;
    let on_cpu = place.kind == api.cpu;
    // On the GPU the plan checks the problem when it is made, so that a call that was seen before
    // is not checked twice. Only the ranks matter here.
    let shape = call.output_shape()?;
    let problem = if on_cpu { Some(call.problem()?) } else { None };
    let output = Owned::empty(api, &shape, api.floats.of(call.value.dtype), place)?;
    let (out, _) = output.float("output")?;
    if let Some(problem) = problem {
        // SAFETY: torch's tensors live through the call; the output is new.
        unsafe { cpu::forward(&call, &problem, &out, OnThreads::Count(api.num_threads()))? };
    } else {
        let mut scratch = None;
        let (device, stream) = current(api, place)?;
        let prepared = Prepared::forward(&call, &out, device)?;
        // SAFETY: torch's tensors live until the stream has used them. The workspace is freed
        // before the stream has used it, and torch's allocator gives it only to later work of the
        // same stream.
        unsafe { prepared.launch(stream, |bytes| workspace(api, &mut scratch, bytes, place))? };
    }
    Ok([output])
}

fn workspace(api: &'static Api, room: &mut Option<Owned>, bytes: usize, place: Place) -> Result<u64> {
    let tensor = room.insert(Owned::empty(api, &[bytes as i64], api.u8, place)?);
    Ok(tensor.describe()?.data.addr() as u64)
}

/// Gradients of the floating-point tensors in their order; an empty tensor for each that is not
/// wanted.
fn run_backward<const T: usize>(
    api: &'static Api,
    grad: Owned,
    floats: [Owned; T],
    levels: Levels,
    wanted: i64,
) -> Result<[Owned; T]> {
    // A bit per floating-point tensor.
    if wanted >> T != 0 {
        return Err(Refused::value("wanted", wanted, format!("a sum of bits below {}", 1 << T)));
    }
    let (floats, levels) = (dense(floats, 3)?, dense_levels(levels)?);
    let [grad] = dense([grad], 2)?;
    let (call, place) = call(api, &floats, &levels)?;
    let (grad_output, there) = grad.float("grad_output")?;
    if there != place {
        return Err(Refused::value(
            "grad_output",
            "a tensor on another device",
            "one on the device of value",
        ));
    }
    let problem = if place.kind == api.cpu { Some(call.problem()?) } else { None };
    // The operator's order is value, locations, weights, reference points.
    let order: &[usize] = if T == 3 { &[0, 1, 2] } else { &[0, 3, 1, 2] };
    let mut grads = [None; 4];
    let mut results: [Option<Owned>; T] = [const { None }; T];
    for (i, result) in results.iter_mut().enumerate() {
        let (like, _) = floats[i].float("input")?;
        let wants = wanted >> order[i] & 1 != 0;
        let sizes = if wants { like.sizes } else { &[0] };
        let dtype = if wants { like.dtype } else { call.value.dtype };
        let made = result.insert(Owned::empty(api, sizes, api.floats.of(dtype), place)?);
        if wants {
            grads[order[i]] = Some(made.float("gradient")?.0);
        }
    }
    if let Some(problem) = problem {
        // SAFETY: torch's tensors live through the call; the gradients are new.
        unsafe { cpu::backward(&call, &problem, &grad_output, grads, OnThreads::Count(api.num_threads()))? };
    } else {
        let mut scratch = None;
        let (device, stream) = current(api, place)?;
        if let Some(prepared) = Prepared::backward(&call, &grad_output, grads, device)? {
            // SAFETY: torch's tensors and the workspace live as in `run_forward`.
            unsafe { prepared.launch(stream, |bytes| workspace(api, &mut scratch, bytes, place))? };
        }
    }
    Ok(results.map(|result| result.expect("the loop made every gradient")))
}
