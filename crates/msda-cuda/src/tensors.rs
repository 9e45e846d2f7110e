//! Host tensors copied to a device with their strides, gaps and alignment.
#![allow(unsafe_code)]

use msda::backend::check_inputs;
use msda::{
    Buffer, Dtype, Error, ErrorKind, Inputs, Problem, ReferenceKind, Result, Role, Slice, SliceMut, Strides,
    ViewMut,
};

use crate::driver::{Device, Memory};
use crate::request::{Addresses, Operand, Operands, Slot, Slots};

/// A tensor on the device, at an address that is aligned as it was on the host.
#[derive(Debug)]
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
        // The device address has the same offset from a multiple of 16 as the host address.
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
}

/// All tensors of a call on the device.
#[derive(Debug)]
pub struct Tensors {
    slots: Slots<Option<Copied>>,
    reference: Option<ReferenceKind>,
}

impl Tensors {
    /// Copies the inputs.
    pub fn new(device: &Device, problem: &Problem, inputs: &Inputs<'_>) -> Result<Self> {
        let args = check_inputs(problem, inputs)?;
        let reference = args.reference.as_ref().map(|(kind, _)| *kind);
        let mut tensors = Self { slots: Slots::default(), reference };
        tensors.copy(device, Slot::Value, &args.value.data, args.value.strides)?;
        tensors.copy(device, Slot::Locations, &args.locations.data, args.locations.strides)?;
        tensors.copy(device, Slot::Weights, &args.weights.data, args.weights.strides)?;
        if let Some((_, tensor)) = &args.reference {
            tensors.copy(device, Slot::Reference, &tensor.data, tensor.strides)?;
        }
        Ok(tensors)
    }

    /// Copies a tensor whose strides were checked. A tensor that a kernel writes is copied too, so
    /// that the memory between its rows comes back unchanged.
    pub fn copy(&mut self, device: &Device, slot: Slot, data: &Slice<'_>, strides: Strides) -> Result<()> {
        self.slots[slot] = Some(Copied::new(device, data, strides)?);
        Ok(())
    }

    /// Allocates a dense tensor of the problem.
    pub fn allocate(&mut self, device: &Device, problem: &Problem, slot: Slot) -> Result<()> {
        let (role, dtype) = self.kind(slot, problem)?;
        let memory = device.alloc(len(role, problem).saturating_mul(dtype.size()))?;
        self.slots[slot] = Some(Copied { memory, offset: 0, operand: Operand::dense(problem, role) });
        Ok(())
    }

    /// Zeros in host memory, as many as a dense tensor of the problem has elements.
    pub fn zeros(&self, problem: &Problem, slot: Slot) -> Result<Buffer> {
        let (role, dtype) = self.kind(slot, problem)?;
        Buffer::try_filled(dtype, len(role, problem), 0.0)
    }

    fn kind(&self, slot: Slot, problem: &Problem) -> Result<(Role, Dtype)> {
        slot.role(self.reference).zip(slot.dtype(problem)).ok_or_else(|| missing(slot))
    }

    /// Copies the level sizes and starts, for kernels that read them from device memory.
    pub fn add_levels(&mut self, device: &Device, problem: &Problem) -> Result<()> {
        let ring = problem.layout().ring();
        let levels = problem.levels();
        let shapes: Vec<i64> = levels.iter().flat_map(|l| [l.h, l.w]).map(|n| n as i64).collect();
        let starts: Vec<i64> = levels.iter().map(|l| (l.origin - ring * (l.pitch + 1)) as i64).collect();
        for (slot, table) in [(Slot::Shapes, shapes), (Slot::Starts, starts)] {
            let bytes: Vec<u8> = table.iter().flat_map(|n| n.to_le_bytes()).collect();
            let mut memory = device.alloc(bytes.len())?;
            memory.write(0, &bytes)?;
            self.slots[slot] = Some(Copied { memory, offset: 0, operand: Operand::default() });
        }
        Ok(())
    }

    /// How they lie in memory.
    pub fn operands(&self) -> Operands {
        let mut operands = Operands::none(self.reference);
        for slot in Slot::ALL {
            operands[slot] = self.slots[slot].as_ref().map_or_else(Operand::default, |copied| copied.operand);
        }
        operands
    }

    /// Their addresses, and that of the workspace.
    pub fn addresses(&self, workspace: &Memory) -> Addresses {
        let mut addresses = Addresses::from([(Slot::Workspace, workspace.address())]);
        for slot in Slot::ALL {
            if let Some(copied) = &self.slots[slot] {
                addresses[slot] = copied.address();
            }
        }
        addresses
    }

    /// Whether a tensor is there.
    pub fn has(&self, slot: Slot) -> bool {
        self.slots[slot].is_some()
    }

    /// Copies a tensor back, all of it.
    pub fn fetch(&self, slot: Slot, to: &mut ViewMut<'_>) -> Result<()> {
        self.slots[slot].as_ref().ok_or_else(|| missing(slot))?.fetch(to)
    }

    /// Sets every byte of a tensor.
    pub fn fill(&mut self, slot: Slot, byte: u8) -> Result<()> {
        self.slots[slot].as_mut().ok_or_else(|| missing(slot))?.memory.fill(byte)
    }
}

/// The number of elements of a dense tensor.
fn len(role: Role, problem: &Problem) -> usize {
    let (extents, inner) = role.shape(problem);
    extents.into_iter().fold(inner, usize::saturating_mul)
}

fn missing(slot: Slot) -> Error {
    Error::new(ErrorKind::Shape, slot.name(), "no such tensor in this call", "one that the pass uses")
}
