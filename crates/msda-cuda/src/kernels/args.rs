//! A kernel's argument: one structure, laid out here field by field as the kernel declares it.

use super::Region;
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

/// A kernel's argument: its bytes, and the places that are filled in at launch.
#[derive(Debug, Clone, Default)]
pub struct Args {
    bytes: Vec<u8>,
    pointers: Vec<(Pointer, usize)>,
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

    /// Room for so many bytes at a multiple of `align`, which a [`super::Hook`] fills. Returns its
    /// offset.
    pub fn room(&mut self, align: usize, bytes: usize) -> usize {
        self.align(align);
        let offset = self.bytes.len();
        self.bytes.resize(offset + bytes, 0);
        offset
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
