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

/// The device and stream of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct On {
    pub(crate) device: usize,
    pub(crate) stream: *mut c_void,
}

/// A tensor that the call writes or reads besides its inputs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Other<'a> {
    pub(crate) slot: Slot,
    pub(crate) tensor: Tensor<'a>,
    pub(crate) strides: Strides,
}

/// Computes the output into `output`, a dense `(B, Q, H * D)`. `workspace` gets a number of bytes
/// and returns the address of device memory that stays there until the stream has run the call.
///
/// # Safety
/// The memory of all tensors is on the device and follows the rules of [`Plan::launch`].
pub(crate) unsafe fn forward(
    call: &Call<'_>,
    output: &Tensor<'_>,
    on: On,
    workspace: impl FnMut(usize) -> Result<u64>,
) -> Result<()> {
    let others = [Other { slot: Slot::Output, tensor: *output, strides: output_strides(call)? }];
    // SAFETY: the caller's promise.
    unsafe { launch(call, None, &others, on, workspace) }
}

/// The outer strides of a dense output.
fn output_strides(call: &Call<'_>) -> Result<Strides> {
    let size = |n: i64| usize::try_from(n).unwrap_or(0);
    let (queries, heads) = (call.locations.sizes.get(1), call.value.sizes.get(2));
    let channels = size(call.value.sizes.get(3).copied().unwrap_or(0));
    let heads = size(heads.copied().unwrap_or(0));
    let queries = size(queries.copied().unwrap_or(0));
    let strides =
        channels.checked_mul(heads).and_then(|row| Some([row.checked_mul(queries)?, row, channels]));
    strides.ok_or_else(|| {
        Refused::value("output", "a size that overflows", "a tensor that fits the address space")
    })
}

/// Computes the gradients that have a destination.
///
/// # Safety
/// As for [`forward`].
pub(crate) unsafe fn backward(
    call: &Call<'_>,
    grad_output: &Tensor<'_>,
    grads: [Option<Tensor<'_>>; 4],
    on: On,
    workspace: impl FnMut(usize) -> Result<u64>,
) -> Result<()> {
    let problem = call.problem()?;
    let strides = call.grad_strides(&problem, grad_output)?;
    if grads.iter().all(Option::is_none) {
        return Ok(());
    }
    let mut others = vec![Other { slot: Slot::GradOutput, tensor: *grad_output, strides }];
    let slots = [Slot::GradValue, Slot::GradLocations, Slot::GradWeights, Slot::GradReference];
    let mut wanted = 0;
    for (i, (slot, grad)) in slots.into_iter().zip(grads).enumerate() {
        let Some(tensor) = grad else { continue };
        wanted |= 1 << i;
        let Some(role) = slot.role(call.reference_kind()) else { continue };
        others.push(Other { slot, tensor, strides: role.dense(&problem) });
    }
    // SAFETY: the caller's promise.
    unsafe { launch(call, Some(Wanted(wanted)), &others, on, workspace) }
}

unsafe fn launch(
    call: &Call<'_>,
    wanted: Option<Wanted>,
    others: &[Other<'_>],
    on: On,
    mut workspace: impl FnMut(usize) -> Result<u64>,
) -> Result<()> {
    let strides = call.strides()?;
    let inputs = [
        Some((Slot::Value, &call.value, strides.value)),
        Some((Slot::Locations, &call.locations, strides.locations)),
        Some((Slot::Weights, &call.weights, strides.weights)),
        call.reference.as_ref().zip(strides.reference).map(|(t, strides)| (Slot::Reference, t, strides)),
    ];
    let others = others.iter().map(|other| (other.slot, &other.tensor, other.strides));
    let tensors = inputs.into_iter().flatten().chain(others);

    let mut key = Key::new();
    key.push(on.device as u64);
    key.push(wanted.map_or(u64::MAX, |wanted| wanted.0 as u64));
    key.push(call.options as u64);
    key.push(call.points as u64);
    for (slot, tensor, strides) in tensors.clone() {
        key.push(slot as u64 | (tensor.dtype as u64) << 8 | (align(tensor) as u64) << 16);
        tensor.sizes.iter().for_each(|&size| key.push(size as u64));
        strides.iter().for_each(|&stride| key.push(stride as u64));
    }
    match &call.levels {
        LevelSizes::Host(shapes, starts) => {
            shapes.iter().for_each(|&(h, w)| key.push((h as u64) << 32 ^ w as u64));
            starts.iter().flatten().for_each(|&start| key.push(start as u64));
        }
        LevelSizes::Device { levels, .. } => key.push(u64::MAX - *levels as u64),
    }
    let plan = match find(key.numbers()) {
        Some(plan) => plan,
        None => {
            let mut operands = Operands::none(call.reference_kind());
            for (slot, tensor, strides) in tensors.clone() {
                operands[slot] = Operand { strides, align: align(tensor) };
            }
            insert(key.numbers(), make(call, wanted, &operands, on)?)
        }
    };
    let mut at = Addresses::default();
    for (slot, tensor, _) in tensors {
        at[slot] = tensor.data.addr() as u64;
    }
    if let LevelSizes::Device { shapes, starts, .. } = call.levels {
        (at[Slot::Shapes], at[Slot::Starts]) = (shapes, starts);
    }
    if plan.workspace() > 0 {
        at[Slot::Workspace] = workspace(plan.workspace())?;
    }
    // SAFETY: the stream is the framework's current stream of that device; the rest is the caller's
    // promise.
    unsafe { plan.launch(&at, StreamHandle::from_raw(on.stream))? };
    Ok(())
}

/// The alignment of a tensor's address: at most 16 bytes matter.
fn align(tensor: &Tensor<'_>) -> usize {
    let address = tensor.data.addr() | 16;
    address & address.wrapping_neg()
}

fn make(call: &Call<'_>, wanted: Option<Wanted>, operands: &Operands, on: On) -> Result<Arc<Plan>> {
    check_process()?;
    let problem: Problem = call.problem()?;
    let pass = wanted.map_or(Pass::Forward, |wanted| {
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
    let device = Device::open(on.device).map_err(missing)?;
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
    let mut plans = PLANS.lock().unwrap_or_else(PoisonError::into_inner);
    let plans = plans.get_or_insert_default();
    let mut dropped = None;
    if plans.len() >= MOST_PLANS {
        let oldest = plans.iter().min_by_key(|(_, kept)| kept.used.load(Ordering::Relaxed));
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            dropped = plans.remove(&oldest);
        }
    }
    let used = AtomicU64::new(CLOCK.fetch_add(1, Ordering::Relaxed));
    plans.insert(key.into(), Kept { plan: plan.clone(), used });
    drop(dropped);
    plan
}

/// How many plans are kept.
pub(crate) fn plans() -> usize {
    PLANS.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, HashMap::len)
}

/// The GPUs of this machine, or why there are none.
pub(crate) fn devices() -> Result<Vec<Device>> {
    let count = Device::count()?;
    Ok((0..count).map(Device::open).collect::<msda::Result<_>>()?)
}
