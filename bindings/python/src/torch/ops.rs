//! The kernels. One function serves the CPU and CUDA: the tensors say where they are.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use super::abi::{Api, Boxed, Handle};
use super::tensor::{Described, Owned, Place, dtype_name};
use crate::call::{Call, LevelSizes, Tensor, Wanted};
use crate::cuda::On;
use crate::error::{Kind, Refused, Result, panic_message};
use crate::{cpu, cuda};

/// The kernels by the names of their operators.
pub(super) const KERNELS: [(&CStr, Boxed); 8] = [
    (c"ms_deform_attn", forward),
    (c"ms_deform_attn_backward", backward),
    (c"ms_deform_attn_fused", forward_fused),
    (c"ms_deform_attn_fused_backward", backward_fused),
    // The same for eager calls: these have no autograd formula that Python would have to run.
    (c"_forward", forward),
    (c"_backward", backward),
    (c"_forward_fused", forward_fused),
    (c"_backward_fused", backward_fused),
];

/// Names of the tensors of the plain and of the fused form.
const NAMES: [&str; 5] =
    ["value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights"];
const FUSED_NAMES: [&str; 6] = [
    "value",
    "spatial_shapes",
    "level_start_index",
    "reference_points",
    "sampling_offsets",
    "attention_logits",
];

unsafe extern "C-unwind" fn forward(stack: *mut u64, _in: u64, _out: u64) {
    // SAFETY: torch calls the kernel with the arguments of its schema.
    unsafe { boxed::<5, 2, 1>(stack, |api, tensors, ints| run_forward(api, tensors, &NAMES, ints)) }
}

unsafe extern "C-unwind" fn forward_fused(stack: *mut u64, _in: u64, _out: u64) {
    // SAFETY: as above.
    unsafe { boxed::<6, 2, 1>(stack, |api, tensors, ints| run_forward(api, tensors, &FUSED_NAMES, ints)) }
}

unsafe extern "C-unwind" fn backward(stack: *mut u64, _in: u64, _out: u64) {
    // SAFETY: as above.
    unsafe {
        boxed::<6, 3, 3>(stack, |api, tensors, ints| {
            let [grad, tensors @ ..] = tensors;
            let [value, locations, weights, _] = run_backward(api, grad, tensors, &NAMES, ints)?;
            Ok([value, locations, weights])
        })
    }
}

unsafe extern "C-unwind" fn backward_fused(stack: *mut u64, _in: u64, _out: u64) {
    // SAFETY: as above.
    unsafe {
        boxed::<7, 3, 4>(stack, |api, tensors, ints| {
            let [grad, tensors @ ..] = tensors;
            let [value, offsets, logits, reference] = run_backward(api, grad, tensors, &FUSED_NAMES, ints)?;
            Ok([value, reference, offsets, logits])
        })
    }
}

/// Runs a kernel with `T` tensors and `I` integers that returns `R` tensors. Its inputs are
/// deleted, and an error is thrown as torch throws it.
///
/// # Safety
/// `stack` has the arguments: tensors that belong to the kernel now, then integers.
unsafe fn boxed<const T: usize, const I: usize, const R: usize>(
    stack: *mut u64,
    kernel: impl FnOnce(&'static Api, [Owned; T], [i64; I]) -> Result<[Owned; R]>,
) {
    // Kernels are registered after the table was loaded.
    let Some(api) = Api::get() else { return };
    let message = {
        // SAFETY: the caller's promise.
        let tensors: [Owned; T] = std::array::from_fn(|i| unsafe {
            Owned::new(api, ptr::with_exposed_provenance_mut(*stack.add(i) as usize))
        });
        // SAFETY: the caller's promise.
        let ints: [i64; I] = std::array::from_fn(|i| unsafe { *stack.add(T + i) } as i64);
        match catch_unwind(AssertUnwindSafe(|| kernel(api, tensors, ints))) {
            Ok(Ok(results)) => {
                for (i, result) in results.into_iter().enumerate() {
                    let handle: Handle = result.into_raw();
                    // SAFETY: the stack has room for the results.
                    unsafe { *stack.add(i) = handle.expose_provenance() as u64 };
                }
                return;
            }
            Ok(Err(refused)) => refused.tagged(),
            Err(panic) => Refused::new(Kind::Runtime, panic_message(&*panic)).tagged(),
        }
    };
    throw(api, message);
}

/// Throws a C++ exception through this frame. Everything that was owned is dropped already, except
/// the message, which is copied to the stack of this thread's last error.
fn throw(api: &'static Api, message: String) {
    thread_local! {
        static LAST: RefCell<CString> = RefCell::default();
    }
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    let pointer = LAST.with(|last| {
        *last.borrow_mut() = text;
        last.borrow().as_ptr()
    });
    // SAFETY: the strings live through the call: the message belongs to this thread until its next
    // error.
    unsafe { (api.core.aoti_torch_check)(false, c"msda".as_ptr(), c"msda".as_ptr(), 0, pointer) };
}

/// Makes the inner dimensions of all tensors contiguous: value, shapes, starts, then the rest. Most
/// calls need no copy.
fn dense<const T: usize>(tensors: [Owned; T]) -> Result<[Owned; T]> {
    let first = |i: usize| if i == 1 || i == 2 { 0 } else { 3 };
    let mut copies: [Option<Owned>; T] = [const { None }; T];
    for (i, tensor) in tensors.iter().enumerate() {
        copies[i] = tensor.dense_from(first(i))?;
    }
    let mut copies = copies.into_iter();
    Ok(tensors.map(|tensor| copies.next().flatten().unwrap_or(tensor)))
}

/// The call, and where its tensors are.
fn call<'a, const T: usize>(
    api: &Api,
    tensors: &'a [Owned; T],
    names: &[&'static str],
    options: i64,
    points: i64,
) -> Result<(Call<'a>, Place)> {
    let (value, place) = tensors[0].float(names[0])?;
    if place.kind != api.cpu && place.kind != api.gpu {
        return Err(Refused::new(Kind::NotImplemented, "msda works on CPU and CUDA tensors"));
    }
    let float = |i: usize| -> Result<Tensor<'a>> {
        let (tensor, there) = tensors[i].float(names[i])?;
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
    let levels = levels(api, &tensors[1], &tensors[2], place)?;
    let call = Call {
        value,
        levels,
        reference: if T == 6 { Some(float(3)?) } else { None },
        locations: float(T - 2)?,
        weights: float(T - 1)?,
        options,
        points,
    };
    Ok((call, place))
}

/// The level sizes: read here if they are in memory of the host, else left to the kernel.
fn levels(api: &Api, shapes: &Owned, starts: &Owned, place: Place) -> Result<LevelSizes> {
    let (shapes, starts) = (shapes.describe()?, starts.describe()?);
    let [count, 2] = *shapes.sizes else {
        return Err(Refused::value(
            NAMES[1],
            format!("shape {:?}", shapes.sizes),
            "(levels, 2): height and width",
        ));
    };
    if starts.sizes != [count] {
        return Err(Refused::value(
            NAMES[2],
            format!("shape {:?}", starts.sizes),
            format!("[{count}], one per level"),
        ));
    }
    for (name, table) in [(NAMES[1], &shapes), (NAMES[2], &starts)] {
        if table.dtype != api.i64 && !(table.dtype == api.i32 && table.place.kind == api.cpu) {
            let expected = match table.place.kind == api.cpu {
                true => "int64 or int32",
                false => "int64 on the GPU",
            };
            return Err(Refused::wrong_type(name, dtype_name(table.dtype), expected));
        }
    }
    let levels = usize::try_from(count).unwrap_or(0);
    if shapes.place.kind == api.cpu && starts.place.kind == api.cpu {
        let size =
            |n: i64, name| usize::try_from(n).map_err(|_| Refused::value(name, n, "numbers of at least 0"));
        let numbers = integers(api, &shapes, 2 * levels);
        let pairs = numbers.chunks(2).map(|hw| Ok((size(hw[0], NAMES[1])?, size(hw[1], NAMES[1])?)));
        let first = integers(api, &starts, levels).into_iter().map(|start| size(start, NAMES[2]));
        let (pairs, first): (Vec<_>, Vec<_>) = (pairs.collect::<Result<_>>()?, first.collect::<Result<_>>()?);
        return Ok(LevelSizes::new(pairs, Some(first)));
    }
    if shapes.place != place || starts.place != place {
        let expected = "both on the CPU, or both on the device of value";
        return Err(Refused::value(
            "spatial_shapes and level_start_index",
            "tensors on different devices",
            expected,
        ));
    }
    let address = |table: &Described<'_>| table.data.addr() as u64;
    Ok(LevelSizes::Device { shapes: address(&shapes), starts: address(&starts), levels })
}

/// Integers of a contiguous tensor on the CPU.
fn integers(api: &Api, table: &Described<'_>, count: usize) -> Vec<i64> {
    if count == 0 {
        return Vec::new();
    }
    // SAFETY: the tensor is contiguous, has so many elements of that type, and lives.
    unsafe {
        if table.dtype == api.i64 {
            std::slice::from_raw_parts(table.data.cast::<i64>().cast_const(), count).to_vec()
        } else {
            let numbers = std::slice::from_raw_parts(table.data.cast::<i32>().cast_const(), count);
            numbers.iter().map(|&n| i64::from(n)).collect()
        }
    }
}

/// The stream that torch uses now on a device.
fn current(api: &Api, place: Place) -> Result<On> {
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
    Ok(On { device: usize::try_from(place.index).unwrap_or(0), stream })
}

fn run_forward<const T: usize>(
    api: &'static Api,
    tensors: [Owned; T],
    names: &[&'static str],
    [options, points]: [i64; 2],
) -> Result<[Owned; 1]> {
    let tensors = dense(tensors)?;
    let (call, place) = call(api, &tensors, names, options, points)?;
    // On the GPU the plan checks the problem when it is made, so that a call that was seen before
    // is not checked twice. Only the ranks matter here.
    if place.kind == api.cpu || call.value.sizes.len() != 4 || call.locations.sizes.len() < 3 {
        call.problem()?;
    }
    let (v, q) = (call.value.sizes, call.locations.sizes[1]);
    let row = v[2]
        .checked_mul(v[3])
        .ok_or_else(|| Refused::value("value", call.value.shape(), "sizes that fit"))?;
    let output = Owned::empty(api, &[v[0], q, row], api.number(call.value.dtype), place)?;
    let (out, _) = output.float("output")?;
    if place.kind == api.cpu {
        // SAFETY: torch's tensors live through the call; the output is new.
        unsafe { cpu::forward(&call, &out, api.num_threads())? };
    } else {
        let mut scratch = None;
        let on = current(api, place)?;
        // SAFETY: as above. The workspace is freed before the stream has used it, and torch's
        // allocator gives it only to later work of the same stream.
        unsafe { cuda::forward(&call, &out, on, |bytes| workspace(api, &mut scratch, bytes, place))? };
    }
    Ok([output])
}

fn workspace(api: &'static Api, room: &mut Option<Owned>, bytes: usize, place: Place) -> Result<u64> {
    let tensor = room.insert(Owned::empty(api, &[bytes as i64], api.u8, place)?);
    Ok(tensor.describe()?.data.addr() as u64)
}

/// Gradients of value, locations, weights and reference points; an empty tensor for each that is
/// not wanted.
fn run_backward<const T: usize>(
    api: &'static Api,
    grad: Owned,
    tensors: [Owned; T],
    names: &[&'static str],
    [options, points, wanted]: [i64; 3],
) -> Result<[Owned; 4]> {
    let tensors = dense(tensors)?;
    let (call, place) = call(api, &tensors, names, options, points)?;
    call.problem()?;
    let grad = grad.dense_from(2)?.unwrap_or(grad);
    let (grad_output, there) = grad.float("grad_output")?;
    if there != place {
        return Err(Refused::value(
            "grad_output",
            "a tensor on another device",
            "one on the device of value",
        ));
    }
    let wanted = Wanted(wanted);
    let likes = [
        (Wanted::VALUE, Some(&call.value)),
        (Wanted::LOCATIONS, Some(&call.locations)),
        (Wanted::WEIGHTS, Some(&call.weights)),
        (Wanted::REFERENCE, call.reference.as_ref()),
    ];
    let mut results = Vec::with_capacity(4);
    for (bit, like) in likes {
        let (sizes, dtype) = match like.filter(|_| wanted.has(bit)) {
            Some(like) => (like.sizes, like.dtype),
            None => (&[0][..], call.value.dtype),
        };
        results.push(Owned::empty(api, sizes, api.number(dtype), place)?);
    }
    let results: [Owned; 4] = match results.try_into() {
        Ok(results) => results,
        Err(_) => return Err(Refused::new(Kind::Runtime, "internal error: four gradients")),
    };
    let mut grads = [None; 4];
    for (i, (bit, like)) in likes.into_iter().enumerate() {
        if like.is_some() && wanted.has(bit) {
            grads[i] = Some(results[i].float("gradient")?.0);
        }
    }
    if place.kind == api.cpu {
        // SAFETY: torch's tensors live through the call; the gradients are new.
        unsafe { cpu::backward(&call, &grad_output, grads, api.num_threads())? };
    } else {
        let mut scratch = None;
        let on = current(api, place)?;
        // SAFETY: as above, and as for the workspace of `run_forward`.
        unsafe {
            cuda::backward(&call, &grad_output, grads, on, |bytes| {
                workspace(api, &mut scratch, bytes, place)
            })?
        };
    }
    Ok(results)
}
