//! The op on tensors in the host's memory: what the conformance battery and the lab run.
#![allow(unsafe_code)]

use std::sync::Arc;

use msda::op::{check_inputs, check_output};
use msda::{
    Backend, Dtype, Error, ErrorKind, Gradients, Inputs, Problem, Result, Slice, Strides, View, ViewMut,
};

use crate::driver::{Device, Memory};
use crate::plan::{Addresses, Plan};
use crate::request::{Levels, Operand, Operands, Request};
use crate::variants::Kernel;

/// Takes a request to the kernel that is to compute it, or to none when it is to be left out.
type Pick = dyn Fn(&Request<'_>) -> Option<Kernel> + Send + Sync;

/// A device as a backend. Tensors are copied to it and back at every call: the way to check kernels, not the way
/// to use them from a program whose tensors are on the device already, which is [`Plan`].
#[derive(Clone)]
pub struct Cuda {
    device: Device,
    name: String,
    pick: Option<Arc<Pick>>,
}

impl Cuda {
    /// The device with the kernels it would choose.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), name: "cuda".into(), pick: None }
    }

    /// The device with another way to choose kernels.
    pub fn with_pick(
        device: &Device,
        name: impl Into<String>,
        pick: impl Fn(&Request<'_>) -> Option<Kernel> + Send + Sync + 'static,
    ) -> Self {
        Self { device: device.clone(), name: name.into(), pick: Some(Arc::new(pick)) }
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn plan(&self, problem: &Problem, operands: &Operands) -> Result<Plan> {
        let Some(pick) = &self.pick else {
            return Plan::new(&self.device, problem, operands, Levels::Host);
        };
        let request = Request { problem, operands, levels: Levels::Host };
        match pick(&request) {
            Some(kernel) => Plan::with_kernel(&self.device, &request, kernel),
            None => Plan::with_kernel(&self.device, &request, Kernel::Generic),
        }
    }
}

/// A tensor copied to the device, at an address that is as well aligned as it was on the host.
struct Copied {
    memory: Memory,
    offset: usize,
    operand: Operand,
}

/// The bytes of a slice, and its address.
fn raw<'a>(data: &Slice<'a>) -> &'a [u8] {
    let (pointer, len) = match data {
        Slice::F64(s) => (s.as_ptr().cast::<u8>(), size_of_val(*s)),
        Slice::F32(s) => (s.as_ptr().cast::<u8>(), size_of_val(*s)),
        Slice::F16(s) => (s.as_ptr().cast::<u8>(), size_of_val(*s)),
        Slice::Bf16(s) => (s.as_ptr().cast::<u8>(), size_of_val(*s)),
    };
    // SAFETY: the bytes of a slice of numbers, for as long as it is borrowed.
    unsafe { std::slice::from_raw_parts(pointer, len) }
}

impl Copied {
    fn new(device: &Device, data: &Slice<'_>, strides: Strides) -> Result<Self> {
        let bytes = raw(data);
        // Where the host's address is off the boundaries of 16 bytes, the device's is too.
        let offset = if bytes.is_empty() { 0 } else { bytes.as_ptr() as usize % 16 };
        let mut memory = device.alloc(offset + bytes.len())?;
        memory.write(offset, bytes)?;
        let align = if offset == 0 { 16 } else { offset & offset.wrapping_neg() };
        Ok(Self { memory, offset, operand: Operand { strides, align } })
    }

    fn address(&self) -> u64 {
        self.memory.address() + self.offset as u64
    }

    /// Copies all of it back.
    fn fetch(&self, to: &mut ViewMut<'_>) -> Result<()> {
        let bytes = raw(&to.data.as_slice());
        // SAFETY: the elements are borrowed mutably, and any bytes are numbers.
        let bytes = unsafe { std::slice::from_raw_parts_mut(bytes.as_ptr().cast_mut(), bytes.len()) };
        self.memory.read(self.offset, bytes)
    }
}

impl Backend for Cuda {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn computes_gradients(&self) -> bool {
        false
    }

    fn forward(&self, problem: &Problem, inputs: &Inputs<'_>, mut output: ViewMut<'_>) -> Result<()> {
        let args = check_inputs(problem, inputs)?;
        let strides = check_output(problem, &output)?;
        if problem.output_len() == 0 {
            return Ok(());
        }
        let copy = |data: &Slice<'_>, strides| Copied::new(&self.device, data, strides);
        let value = copy(&args.value.data, args.value.strides)?;
        let locations = copy(&args.locations.data, args.locations.strides)?;
        let weights = copy(&args.weights.data, args.weights.strides)?;
        let reference = match &args.reference {
            Some((kind, tensor)) => Some((*kind, copy(&tensor.data, tensor.strides)?)),
            None => None,
        };
        // What lies between its rows comes back as it was.
        let result = copy(&output.data.as_slice(), strides)?;
        let operands = Operands {
            value: value.operand,
            locations: locations.operand,
            weights: weights.operand,
            reference: reference.as_ref().map(|(kind, copied)| (*kind, copied.operand)),
            output: result.operand,
        };
        let plan = self.plan(problem, &operands)?;
        let workspace = self.device.alloc(plan.workspace())?;
        let stream = self.device.stream()?;
        let at = Addresses {
            value: value.address(),
            locations: locations.address(),
            weights: weights.address(),
            reference: reference.as_ref().map_or(0, |(_, copied)| copied.address()),
            output: result.address(),
            workspace: workspace.address(),
            ..Addresses::default()
        };
        // SAFETY: the tensors are on the device, checked against the problem, ours, and live until the stream is done.
        unsafe { plan.launch(&at, stream.handle())? };
        stream.synchronize()?;
        result.fetch(&mut output)
    }

    fn backward(
        &self,
        problem: &Problem,
        _inputs: &Inputs<'_>,
        _grad_output: View<'_>,
        _gradients: Gradients<'_>,
    ) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "backward on CUDA", problem, "the forward pass")
            .hint("the CPU backend computes gradients"))
    }
}

/// Types of values that kernels other than the generic one take.
pub const FAST_TYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];
