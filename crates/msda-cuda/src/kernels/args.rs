//! A kernel's argument: one structure, laid out here field by field as the kernel declares it.

use std::fmt;
use std::sync::Arc;

use msda::Result;

use super::Region;
use crate::driver::Device;
use crate::request::{Operand, Slot};

/// A pointer in a kernel's argument. Its value is known when the plan is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointer {
    /// A tensor of the call.
    Slot(Slot),
    /// A byte of the workspace.
    Workspace(usize),
    /// A word of the objects that the plan owns: see [`super::Owned::word`].
    Owned(usize),
}

impl From<Slot> for Pointer {
    fn from(slot: Slot) -> Self {
        Self::Slot(slot)
    }
}

impl From<Region> for Pointer {
    fn from(region: Region) -> Self {
        Self::Workspace(region.offset)
    }
}

/// Writes bytes of an argument that depend on an address, such as the description of a tensor.
pub trait Encode: fmt::Debug + Send + Sync {
    /// Fills `bytes` for the tensor at `address`.
    fn encode(&self, device: &Device, address: u64, bytes: &mut [u8]) -> Result<()>;
}

/// Bytes that an [`Encode`] fills.
#[derive(Debug, Clone)]
pub(crate) struct Encoded {
    pub(crate) pointer: Pointer,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) encode: Arc<dyn Encode>,
}

/// A kernel's argument: its bytes, and the places that are filled in at launch.
#[derive(Debug, Clone, Default)]
pub struct Args {
    bytes: Vec<u8>,
    pointers: Vec<(Pointer, usize)>,
    encoded: Vec<Encoded>,
    /// Rare, so it does not make every argument larger.
    window: Option<Box<(Pointer, usize)>>,
}

impl Args {
    /// The bytes; pointers are 0.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The pointers and their offsets.
    pub fn pointers(&self) -> &[(Pointer, usize)] {
        &self.pointers
    }

    /// The memory that L2 should keep while the kernel runs, and its length in bytes.
    pub(crate) fn window(&self) -> Option<(Pointer, usize)> {
        self.window.as_deref().copied()
    }

    /// Makes L2 keep so many bytes from a pointer on while the kernel runs, as far as the context's
    /// limit of persisting lines allows.
    pub fn keep_in_l2(&mut self, pointer: impl Into<Pointer>, bytes: usize) {
        self.window = Some(Box::new((pointer.into(), bytes)));
    }

    pub(crate) fn encoded(&self) -> &[Encoded] {
        &self.encoded
    }

    /// Room for `bytes` bytes, at a multiple of `align`, that are computed from an address at
    /// launch.
    pub fn encode(
        &mut self,
        pointer: impl Into<Pointer>,
        align: usize,
        bytes: usize,
        encode: Arc<dyn Encode>,
    ) {
        self.align(align);
        let offset = self.bytes.len();
        self.encoded.push(Encoded { pointer: pointer.into(), offset, bytes, encode });
        self.bytes.resize(offset + bytes, 0);
    }

    /// Zeros up to a multiple of so many bytes.
    pub fn align(&mut self, bytes: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(bytes), 0);
    }

    /// A `Tensor` of the kernels: address, image stride, row stride and head stride in bytes.
    pub fn tensor(&mut self, slot: Slot, operand: Operand, element: usize) {
        self.pointer(slot);
        let [image, row, head] = operand.strides.map(|stride| stride.wrapping_mul(element));
        self.i64(image as i64);
        self.i32(row);
        self.i32(head);
    }

    /// A pointer.
    pub fn pointer(&mut self, pointer: impl Into<Pointer>) {
        self.pointers.push((pointer.into(), self.bytes.len()));
        self.i64(0);
    }

    /// A pointer to a region of the workspace, or null.
    pub(crate) fn optional(&mut self, region: Option<Region>) {
        match region {
            Some(region) => self.pointer(region),
            None => self.i64(0),
        }
    }

    /// A tensor with any strides: address and three strides in bytes.
    pub(crate) fn strided(&mut self, slot: Slot, operand: Operand, element: usize) {
        self.pointer(slot);
        for stride in operand.strides {
            self.i64(stride.wrapping_mul(element) as i64);
        }
    }

    /// A 64-bit integer.
    pub fn i64(&mut self, x: i64) {
        self.bytes.extend(x.to_le_bytes());
    }

    /// A 32-bit integer. Kernels refuse requests with numbers that do not fit.
    pub fn i32(&mut self, x: usize) {
        self.bytes.extend((x as i32).to_le_bytes());
    }

    /// A 32-bit float.
    pub fn f32(&mut self, x: f32) {
        self.bytes.extend(x.to_le_bytes());
    }
}
