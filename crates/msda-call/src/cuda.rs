//! Calls on tensors in device memory: plans, stored for calls of the same kind.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::process;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use msda::Strides;
use msda_cuda::driver::{Device, StreamHandle};
use msda_cuda::{Addresses, Levels, Operand, Operands, Pass, Plan, Request, Slot, Wanted};

use crate::call::{Call, LevelSizes, Tensor};
use crate::error::{Kind, Refused, Result};

/// The most plans that are stored. A plan holds no device memory of its own, except tables of many
/// levels.
const MOST_PLANS: usize = 512;

/// A tensor of a call and its place in a plan.
#[derive(Debug, Clone, Copy)]
struct Bound<'a> {
    slot: Slot,
    tensor: &'a Tensor<'a>,
    strides: Strides,
}

/// A call and the plan that runs it.
pub struct Prepared {
    plan: Arc<Plan>,
    at: Addresses,
}

impl Prepared {
    /// A forward pass into `output`, a dense `(B, Q, H * D)`. The plan is found, or made and
    /// stored.
    pub fn forward(call: &Call<'_>, output: &Tensor<'_>, device: usize) -> Result<Self> {
        let [batch, row, _] = output.dense_outer();
        let channels = call.value.sizes.last().map_or(0, |&n| n as usize);
        let output = Bound { slot: Slot::Output, tensor: output, strides: [batch, row, channels] };
        prepare(call, Pass::Forward, None, &[Some(output)], device)
    }

    /// A backward pass into the gradients that have a destination: of value, locations, weights and
    /// reference points. `None` if there is none.
    pub fn backward(
        call: &Call<'_>,
        grad_output: &Tensor<'_>,
        grads: [Option<Tensor<'_>>; 4],
        device: usize,
    ) -> Result<Option<Self>> {
        let [value, locations, weights, reference] = grads.each_ref().map(Option::is_some);
        let wanted = Wanted { value, locations, weights, reference };
        if wanted == Wanted::default() {
            call.check_grad(&call.problem()?, grad_output)?;
            return Ok(None);
        }
        let slots = [Slot::GradValue, Slot::GradLocations, Slot::GradWeights, Slot::GradReference];
        let results: [_; 4] = std::array::from_fn(|i| {
            let tensor = grads[i].as_ref()?;
            Some(Bound { slot: slots[i], tensor, strides: tensor.dense_outer() })
        });
        prepare(call, Pass::Backward(wanted), Some(grad_output), &results, device).map(Some)
    }

    /// Bytes of device memory that the launch needs.
    pub fn workspace(&self) -> usize {
        self.plan.workspace()
    }

    /// Queues the call. `workspace` gets a number of bytes above 0 and returns the address of
    /// device memory that stays there until the stream has run the call.
    ///
    /// # Safety
    /// The memory of all tensors is on the device and follows the rules of [`Plan::launch`]. The
    /// stream is a `CUstream` of that device.
    pub unsafe fn launch(
        mut self,
        stream: *mut c_void,
        mut workspace: impl FnMut(usize) -> Result<u64>,
    ) -> Result<()> {
        if self.workspace() > 0 {
            self.at[Slot::Workspace] = workspace(self.workspace())?;
        }
        // SAFETY: the stream is one of the plan's device. `at` has the address of every tensor of
        // the call, and a workspace of as many bytes as the plan asked for.
        unsafe { self.plan.launch(&self.at, StreamHandle::from_raw(stream))? };
        Ok(())
    }
}

/// Finds or makes the plan of a call. A backward pass has the gradient of the output.
fn prepare(
    call: &Call<'_>,
    pass: Pass,
    grad_output: Option<&Tensor<'_>>,
    written: &[Option<Bound<'_>>],
    device: usize,
) -> Result<Prepared> {
    // Before the table of plans: a fork may have left it locked.
    check_process()?;
    let inputs = [
        (Slot::Value, Some(&call.value)),
        (Slot::Locations, Some(&call.locations)),
        (Slot::Weights, Some(&call.weights)),
        (Slot::Reference, call.reference.as_ref()),
        (Slot::GradOutput, grad_output),
    ];
    let mut read = [None; 5];
    for (bound, (slot, tensor)) in read.iter_mut().zip(inputs) {
        let Some(tensor) = tensor else { continue };
        let strides = match slot {
            Slot::GradOutput => call.grad_strides(tensor)?,
            _ => call.strides(tensor)?,
        };
        *bound = Some(Bound { slot, tensor, strides });
    }
    thread_local! {
        /// Room for the key of a call: one whose plan is stored allocates nothing.
        static ROOM: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
    }
    let mut key = ROOM.take();
    key.clear();
    push_call(&mut key, call, device, &read, written);
    let tensors = || read.iter().chain(written).flatten();
    let plan = match find(&key) {
        Some(plan) => plan,
        None => insert(&key, Arc::new(make(call, pass, grad_output, tensors(), device)?)),
    };
    ROOM.set(key);
    let mut at = Addresses::default();
    for &Bound { slot, tensor, .. } in tensors() {
        at[slot] = tensor.data.addr() as u64;
    }
    if let LevelSizes::Device { shapes, starts, .. } = call.levels {
        (at[Slot::Shapes], at[Slot::Starts]) = (shapes, starts);
    }
    Ok(Prepared { plan, at })
}

/// Checks the call and makes its plan.
fn make<'a>(
    call: &Call<'_>,
    pass: Pass,
    grad_output: Option<&Tensor<'_>>,
    tensors: impl Iterator<Item = &'a Bound<'a>>,
    device: usize,
) -> Result<Plan> {
    let problem = call.problem()?;
    if let Some(grad) = grad_output {
        call.check_grad(&problem, grad)?;
    }
    let mut operands = Operands::none(call.reference_kind());
    for &Bound { slot, tensor, strides } in tensors {
        tensor.span()?;
        operands[slot] = Operand { strides, align: align(tensor) };
    }
    let levels = match call.levels {
        LevelSizes::Host(..) => Levels::Host,
        LevelSizes::Device { .. } => Levels::Device,
    };
    let request = Request { pass, levels, ..Request::new(&problem, &operands) };
    // A missing driver or compiler is not a missing feature.
    let missing = |error: msda::Error| Refused::new(Kind::Runtime, error.to_string());
    let device = Device::open(device).map_err(missing)?;
    match Plan::new(&device, &request) {
        Err(error) if msda_cuda::jit::nvrtc().is_err() => Err(missing(error)),
        plan => Ok(plan?),
    }
}

/// What the plan of a call depends on, as numbers. The slots of the tensors say which pass it is.
/// Tensors that are written are dense, and their sizes follow from the inputs.
fn push_call(
    key: &mut Vec<u64>,
    call: &Call<'_>,
    device: usize,
    read: &[Option<Bound<'_>>],
    written: &[Option<Bound<'_>>],
) {
    key.extend([device as u64, call.options as u64, call.points as u64]);
    push_levels(key, &call.levels);
    for bound in read.iter().flatten() {
        key.push(header(bound));
        key.extend(bound.tensor.sizes.iter().map(|&size| size as u64));
        key.extend(bound.strides.map(|stride| stride as u64));
    }
    key.extend(written.iter().flatten().map(header));
}

/// The levels of a key. Their number comes first, so that lists of different lengths never meet.
fn push_levels(key: &mut Vec<u64>, levels: &LevelSizes) {
    key.push(levels.len() as u64);
    match levels {
        LevelSizes::Host(shapes, starts) => {
            key.push(u64::from(starts.is_some()));
            key.extend(shapes.iter().flat_map(|&(height, width)| [height as u64, width as u64]));
            key.extend(starts.iter().flatten().map(|&start| start as u64));
        }
        LevelSizes::Device { .. } => key.push(u64::MAX),
    }
}

/// The levels of a plan's key, for tests.
pub fn level_key(levels: &LevelSizes) -> Vec<u64> {
    let mut key = Vec::new();
    push_levels(&mut key, levels);
    key
}

/// Slot, type, alignment and rank of a tensor as one number.
fn header(Bound { slot, tensor, .. }: &Bound<'_>) -> u64 {
    let rank = tensor.sizes.len() as u64;
    *slot as u64 | (tensor.dtype as u64) << 8 | (align(tensor) as u64) << 16 | rank << 32
}

/// The alignment of a tensor's address: at most 16 bytes matter.
pub(crate) fn align(tensor: &Tensor<'_>) -> usize {
    let address = tensor.data.addr() | 16;
    address & address.wrapping_neg()
}

/// CUDA does not work in a child that was forked after CUDA was used.
fn check_process() -> Result<()> {
    static PROCESS: AtomicU32 = AtomicU32::new(0);
    let here = process::id();
    match PROCESS.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed) {
        Err(first) if first != here => Err(Refused::new(
            Kind::Runtime,
            "CUDA was used before this process was forked, and does not work in a forked child\n\
             hint: start the process with `multiprocessing.get_context(\"spawn\")`",
        )),
        _ => Ok(()),
    }
}

struct Stored {
    plan: Arc<Plan>,
    used: u64,
}

type Plans = BTreeMap<Box<[u64]>, Stored>;

static PLANS: Mutex<Plans> = Mutex::new(Plans::new());
static CLOCK: AtomicU64 = AtomicU64::new(0);

fn plans_by_key() -> MutexGuard<'static, Plans> {
    PLANS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find(key: &[u64]) -> Option<Arc<Plan>> {
    let mut plans = plans_by_key();
    let stored = plans.get_mut(key)?;
    stored.used = CLOCK.fetch_add(1, Ordering::Relaxed);
    Some(stored.plan.clone())
}

fn insert(key: &[u64], plan: Arc<Plan>) -> Arc<Plan> {
    let used = CLOCK.fetch_add(1, Ordering::Relaxed);
    let mut plans = plans_by_key();
    let mut dropped = [plans.insert(key.into(), Stored { plan: plan.clone(), used }), None];
    if plans.len() > MOST_PLANS {
        let oldest = plans.iter().min_by_key(|(_, stored)| stored.used).map(|(key, _)| key.clone());
        dropped[1] = oldest.and_then(|key| plans.remove(&key));
    }
    // Other threads need not wait while plans are freed.
    drop(plans);
    drop(dropped);
    plan
}

/// How many plans are stored.
pub fn plans() -> usize {
    plans_by_key().len()
}

/// The GPUs of this machine, or why there are none.
pub fn devices() -> Result<Vec<Device>> {
    let count = Device::count()?;
    Ok((0..count).map(Device::open).collect::<msda::Result<_>>()?)
}
