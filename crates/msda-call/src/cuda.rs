//! Calls on tensors in device memory: plans, kept for calls of the same kind.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{BuildHasherDefault, Hasher};
use std::process;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use msda::{Problem, Strides};
use msda_cuda::driver::{Device, StreamHandle};
use msda_cuda::{Addresses, Levels, Operand, Operands, Pass, Plan, Request, Slot, Wanted as Gradients};

use crate::call::{Call, LevelSizes, Tensor, Wanted};
use crate::error::{Kind, Refused, Result};

/// The most plans that are kept. A plan holds no device memory of its own, except tables of many
/// levels.
const MOST_PLANS: usize = 512;

/// A tensor that the call writes: new and dense, so that its sizes follow from the inputs.
#[derive(Debug, Clone, Copy)]
struct Written<'a> {
    slot: Slot,
    tensor: Tensor<'a>,
    strides: Strides,
}

/// A call and the plan that runs it.
pub struct Prepared {
    plan: Arc<Plan>,
    at: Addresses,
}

impl Prepared {
    /// A forward pass into `output`, a dense `(B, Q, H * D)`. The plan is found, or made and kept.
    pub fn forward(call: &Call<'_>, output: &Tensor<'_>, device: usize) -> Result<Self> {
        let [batch, row, _] = output.dense_outer();
        let channels = call.value.sizes.last().map_or(0, |&n| n as usize);
        let strides = [batch, row, channels];
        let results = [Some(Written { slot: Slot::Output, tensor: *output, strides })];
        prepare(call, None, &results, device)
    }

    /// A backward pass into the gradients that have a destination: of value, locations, weights and
    /// reference points. `None` if there is none.
    pub fn backward(
        call: &Call<'_>,
        grad_output: &Tensor<'_>,
        grads: [Option<Tensor<'_>>; 4],
        device: usize,
    ) -> Result<Option<Self>> {
        let slots = [Slot::GradValue, Slot::GradLocations, Slot::GradWeights, Slot::GradReference];
        let mut wanted = 0;
        let mut results = [None; 4];
        for (i, (slot, grad)) in slots.into_iter().zip(grads).enumerate() {
            let Some(tensor) = grad else { continue };
            wanted |= 1 << i;
            results[i] = Some(Written { slot, tensor, strides: tensor.dense_outer() });
        }
        if wanted == 0 {
            call.check_grad(&call.problem()?, grad_output)?;
            return Ok(None);
        }
        prepare(call, Some((Wanted(wanted), grad_output)), &results, device).map(Some)
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
        // SAFETY: the caller's promise.
        unsafe { self.plan.launch(&self.at, StreamHandle::from_raw(stream))? };
        Ok(())
    }
}

/// Finds or makes the plan of a call. A backward pass has the gradient of the output.
fn prepare(
    call: &Call<'_>,
    backward: Option<(Wanted, &Tensor<'_>)>,
    results: &[Option<Written<'_>>],
    device: usize,
) -> Result<Prepared> {
    // Before the table of plans: a fork may have left it locked.
    check_process()?;
    let strides = call.strides()?;
    let grad = match backward {
        Some((_, grad)) => Some((Slot::GradOutput, grad, call.grad_strides(grad)?)),
        None => None,
    };
    let reference = call.reference.as_ref().zip(strides.reference);
    let read = [
        Some((Slot::Value, &call.value, strides.value)),
        Some((Slot::Locations, &call.locations, strides.locations)),
        Some((Slot::Weights, &call.weights, strides.weights)),
        reference.map(|(tensor, strides)| (Slot::Reference, tensor, strides)),
        grad,
    ];
    let read = read.iter().flatten().copied();
    let written = results.iter().flatten().map(|result| (result.slot, &result.tensor, result.strides));

    let pass = backward.map_or(u64::MAX, |(wanted, _)| wanted.0 as u64);
    let key = key(call, device as u64 | pass << 32, read.clone(), written.clone());
    let plan = match find(key.numbers()) {
        Some(plan) => plan,
        None => {
            let mut operands = Operands::none(call.reference_kind());
            for (slot, tensor, strides) in read.clone().chain(written.clone()) {
                operands[slot] = Operand { strides, align: align(tensor) };
            }
            insert(key.numbers(), make(call, backward, &operands, device)?)
        }
    };
    let mut at = Addresses::default();
    for (slot, tensor, _) in read.chain(written) {
        at[slot] = tensor.data.addr() as u64;
    }
    if let LevelSizes::Device { shapes, starts, .. } = call.levels {
        (at[Slot::Shapes], at[Slot::Starts]) = (shapes, starts);
    }
    Ok(Prepared { plan, at })
}

/// What the plan of a call depends on. `first` is the device and the pass.
fn key<'a>(
    call: &Call<'_>,
    first: u64,
    read: impl Iterator<Item = (Slot, &'a Tensor<'a>, Strides)>,
    written: impl Iterator<Item = (Slot, &'a Tensor<'a>, Strides)>,
) -> Key {
    let mut key = Key::new();
    key.push(first);
    key.push(call.options as u64);
    key.push(call.points as u64);
    push_levels(&mut key, &call.levels);
    for (slot, tensor, strides) in read {
        key.push(header(slot, tensor));
        tensor.sizes.iter().for_each(|&size| key.push(size as u64));
        strides.iter().for_each(|&stride| key.push(stride as u64));
    }
    written.for_each(|(slot, tensor, _)| key.push(header(slot, tensor)));
    key
}

/// The levels of a key. Their number comes first, so that lists of different lengths never meet.
fn push_levels(key: &mut Key, levels: &LevelSizes) {
    key.push(levels.len() as u64);
    match levels {
        LevelSizes::Host(shapes, starts) => {
            key.push(u64::from(starts.is_some()));
            shapes.iter().for_each(|&(h, w)| [h, w].into_iter().for_each(|n| key.push(n as u64)));
            starts.iter().flatten().for_each(|&start| key.push(start as u64));
        }
        LevelSizes::Device { .. } => key.push(u64::MAX),
    }
}

/// The levels of a plan's key, for tests.
pub fn level_key(levels: &LevelSizes) -> Vec<u64> {
    let mut key = Key::new();
    push_levels(&mut key, levels);
    key.numbers().to_vec()
}

/// Slot, type, alignment and rank of a tensor as one number.
fn header(slot: Slot, tensor: &Tensor<'_>) -> u64 {
    let rank = tensor.sizes.len() as u64;
    slot as u64 | (tensor.dtype as u64) << 8 | (align(tensor) as u64) << 16 | rank << 32
}

/// The alignment of a tensor's address: at most 16 bytes matter.
fn align(tensor: &Tensor<'_>) -> usize {
    let address = tensor.data.addr() | 16;
    address & address.wrapping_neg()
}

fn make(
    call: &Call<'_>,
    backward: Option<(Wanted, &Tensor<'_>)>,
    operands: &Operands,
    device: usize,
) -> Result<Arc<Plan>> {
    let problem: Problem = call.problem()?;
    if let Some((_, grad)) = backward {
        call.check_grad(&problem, grad)?;
    }
    let pass = backward.map_or(Pass::Forward, |(wanted, _)| {
        Pass::Backward(Gradients {
            value: wanted.has(Wanted::VALUE),
            locations: wanted.has(Wanted::LOCATIONS),
            weights: wanted.has(Wanted::WEIGHTS),
            reference: wanted.has(Wanted::REFERENCE),
        })
    });
    let levels = match call.levels {
        LevelSizes::Host(..) => Levels::Host,
        LevelSizes::Device { .. } => Levels::Device,
    };
    // A missing driver or compiler is not a missing feature.
    let missing = |error: msda::Error| Refused::new(Kind::Runtime, error.to_string());
    let device = Device::open(device).map_err(missing)?;
    let request = Request { pass, levels, ..Request::new(&problem, operands) };
    match Plan::new(&device, &request) {
        Err(error) if msda_cuda::jit::nvrtc().is_err() => Err(missing(error)),
        plan => Ok(Arc::new(plan?)),
    }
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

/// What a plan depends on, as numbers. Keys of usual calls need no memory.
struct Key {
    first: [u64; 96],
    len: usize,
    /// All numbers, if there are more.
    long: Vec<u64>,
}

impl Key {
    fn new() -> Self {
        Self { first: [0; 96], len: 0, long: Vec::new() }
    }

    fn push(&mut self, n: u64) {
        if let Some(to) = self.first.get_mut(self.len) {
            *to = n;
        } else {
            if self.long.is_empty() {
                self.long.extend(self.first);
            }
            self.long.push(n);
        }
        self.len += 1;
    }

    fn numbers(&self) -> &[u64] {
        if self.long.is_empty() { &self.first[..self.len] } else { &self.long }
    }
}

/// Mixes words quickly: keys are sizes, not secrets.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}

struct Kept {
    plan: Arc<Plan>,
    used: AtomicU64,
}

type Plans = HashMap<Box<[u64]>, Kept, BuildHasherDefault<Mix>>;

static PLANS: Mutex<Option<Plans>> = Mutex::new(None);
static CLOCK: AtomicU64 = AtomicU64::new(0);

fn find(key: &[u64]) -> Option<Arc<Plan>> {
    let plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = plans.as_ref()?.get(key)?;
    kept.used.store(CLOCK.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    Some(kept.plan.clone())
}

fn insert(key: &[u64], plan: Arc<Plan>) -> Arc<Plan> {
    let used = AtomicU64::new(CLOCK.fetch_add(1, Ordering::Relaxed));
    let mut plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
    let table = plans.get_or_insert_default();
    let mut dropped = [table.insert(key.into(), Kept { plan: plan.clone(), used }), None];
    if table.len() > MOST_PLANS {
        let oldest = table.iter().min_by_key(|(_, kept)| kept.used.load(Ordering::Relaxed));
        let oldest = oldest.map(|(key, _)| key.clone());
        dropped[1] = oldest.and_then(|key| table.remove(&key));
    }
    // Other threads need not wait while plans are freed.
    drop(plans);
    drop(dropped);
    plan
}

/// How many plans are kept.
pub fn plans() -> usize {
    PLANS.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, HashMap::len)
}

/// The GPUs of this machine, or why there are none.
pub fn devices() -> Result<Vec<Device>> {
    let count = Device::count()?;
    Ok((0..count).map(Device::open).collect::<msda::Result<_>>()?)
}
