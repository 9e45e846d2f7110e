//! Tensors of the host copied to a device, with their strides, gaps and alignment.
#![allow(unsafe_code)]

use msda::backend::{check_inputs, check_output};
use msda::{Inputs, Problem, ReferenceKind, Result, Role, Slice, SliceMut, Strides, ViewMut};

use crate::driver::{Device, Memory};
use crate::plan::Addresses;
use crate::request::{Operand, Operands};

/// A tensor on the device, at an address that is as well aligned as it was on the host.
#[derive(Debug)]
pub(crate) struct Copied {
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

    /// Room for a dense output.
    fn room(device: &Device, problem: &Problem) -> Result<Self> {
        let bytes = problem.output_len().saturating_mul(problem.types().value.size());
        let operand = Operand::dense(problem, Role::Output);
        Ok(Self { memory: device.alloc(bytes)?, offset: 0, operand })
    }

    fn address(&self) -> u64 {
        self.memory.address() + self.offset as u64
    }

    /// Copies all of it back.
    pub(crate) fn fetch(&self, to: &mut ViewMut<'_>) -> Result<()> {
        let (pointer, len) = match &mut to.data {
            SliceMut::F64(s) => (s.as_mut_ptr().cast::<u8>(), size_of_val(*s)),
            SliceMut::F32(s) => (s.as_mut_ptr().cast::<u8>(), size_of_val(*s)),
            SliceMut::F16(s) => (s.as_mut_ptr().cast::<u8>(), size_of_val(*s)),
            SliceMut::Bf16(s) => (s.as_mut_ptr().cast::<u8>(), size_of_val(*s)),
        };
        // SAFETY: the bytes of a slice that is borrowed mutably, and any bytes are numbers.
        let bytes = unsafe { std::slice::from_raw_parts_mut(pointer, len) };
        self.memory.read(self.offset, bytes)
    }

    /// Sets every byte.
    pub(crate) fn fill(&mut self, byte: u8) -> Result<()> {
        self.memory.fill(byte)
    }
}

/// All tensors of a call on the device.
#[derive(Debug)]
pub(crate) struct Tensors {
    value: Copied,
    locations: Copied,
    weights: Copied,
    reference: Option<(ReferenceKind, Copied)>,
    pub(crate) output: Copied,
}

impl Tensors {
    /// Copies the inputs. The output is a copy too where one is given, so that what lies between its rows comes back
    /// as it was; else there is room for a dense one.
    pub(crate) fn new(
        device: &Device,
        problem: &Problem,
        inputs: &Inputs<'_>,
        output: Option<&ViewMut<'_>>,
    ) -> Result<Self> {
        let args = check_inputs(problem, inputs)?;
        let strides = output.map(|output| check_output(problem, output)).transpose()?;
        let copy = |data: &Slice<'_>, strides| Copied::new(device, data, strides);
        Ok(Self {
            value: copy(&args.value.data, args.value.strides)?,
            locations: copy(&args.locations.data, args.locations.strides)?,
            weights: copy(&args.weights.data, args.weights.strides)?,
            reference: match &args.reference {
                Some((kind, tensor)) => Some((*kind, copy(&tensor.data, tensor.strides)?)),
                None => None,
            },
            output: match output.zip(strides) {
                Some((output, strides)) => copy(&output.data.as_slice(), strides)?,
                None => Copied::room(device, problem)?,
            },
        })
    }

    /// How they lie.
    pub(crate) fn operands(&self) -> Operands {
        Operands {
            value: self.value.operand,
            locations: self.locations.operand,
            weights: self.weights.operand,
            reference: self.reference.as_ref().map(|(kind, copied)| (*kind, copied.operand)),
            output: self.output.operand,
        }
    }

    /// Where they lie.
    pub(crate) fn addresses(&self, workspace: &Memory) -> Addresses {
        Addresses {
            value: self.value.address(),
            locations: self.locations.address(),
            weights: self.weights.address(),
            reference: self.reference.as_ref().map_or(0, |(_, copied)| copied.address()),
            output: self.output.address(),
            workspace: workspace.address(),
            ..Addresses::default()
        }
    }
}
