//! A kernel's argument: one structure, laid out here field by field as the kernel declares it.

use msda::{Error, ErrorKind, Result};

use super::Region;
use crate::jit::Unit;
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
///
/// Every field has the name that it has in the kernel, such as `value` or `level[0].height`. The
/// kernel compares names and offsets when it is compiled (`CHECK_ARGS`). Elements of an array
/// repeat the names of its first element, and only that one is compared.
#[derive(Debug, Clone, Default)]
pub struct Args {
    bytes: Vec<u8>,
    /// Names and offsets of fields.
    fields: Vec<(&'static str, usize)>,
    /// The first number that does not fit its field.
    overflow: Option<(&'static str, usize)>,
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

    /// Puts one pointer in the place of another.
    pub(crate) fn redirect(&mut self, from: Pointer, to: Pointer) {
        let found = self.pointers.iter_mut().filter(|(pointer, _)| *pointer == from);
        found.for_each(|(pointer, _)| *pointer = to);
    }

    /// Room for so many bytes at a multiple of `align`, which a [`super::Hook`] fills. Returns its
    /// offset.
    pub fn room(&mut self, align: usize, bytes: usize) -> usize {
        self.align(align);
        let offset = self.bytes.len();
        self.bytes.resize(offset + bytes, 0);
        offset
    }

    /// An error if a number does not fit its field.
    pub(crate) fn check(&self) -> Result<()> {
        let Some((name, got)) = self.overflow else { return Ok(()) };
        let subject = format!("{name} in a kernel's argument");
        Err(Error::new(ErrorKind::Unsupported, subject, got, "a number that fits the field"))
    }

    /// A unit with the macros by which its kernel compares the argument.
    pub(crate) fn compared(&self, unit: Unit) -> Unit {
        let fields: Vec<_> = self.fields.iter().map(|(name, at)| format!("ARG({name}, {at})")).collect();
        unit.define("ARGS_BYTES", self.bytes.len()).define("ARGS_FIELDS", fields.join(" "))
    }

    /// Zeros up to a multiple of so many bytes.
    pub fn align(&mut self, bytes: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(bytes), 0);
    }

    /// A `Tensor` of the kernels: address, image stride, row stride and head stride in bytes.
    pub fn tensor(&mut self, name: &'static str, slot: Slot, operand: Operand, element: usize) {
        self.pointer(name, slot);
        let [image, row, head] = operand.strides.map(|stride| stride.saturating_mul(element));
        self.i64(name, image);
        self.i32(name, row);
        self.i32(name, head);
    }

    /// A tensor with any strides: address and three strides in bytes.
    pub(crate) fn strided(
        &mut self,
        name: &'static str,
        pointer: impl Into<Pointer>,
        operand: Operand,
        element: usize,
    ) {
        self.pointer(name, pointer);
        self.strides(name, operand, element);
    }

    /// Three strides in bytes.
    pub(crate) fn strides(&mut self, name: &'static str, operand: Operand, element: usize) {
        for stride in operand.strides {
            self.i64(name, stride.saturating_mul(element));
        }
    }

    /// A pointer.
    pub fn pointer(&mut self, name: &'static str, pointer: impl Into<Pointer>) {
        self.pointers.push((pointer.into(), self.bytes.len()));
        self.i64(name, 0);
    }

    /// A pointer, or null.
    pub(crate) fn optional(&mut self, name: &'static str, pointer: Option<impl Into<Pointer>>) {
        match pointer {
            Some(pointer) => self.pointer(name, pointer),
            None => self.i64(name, 0),
        }
    }

    /// A 64-bit integer.
    pub fn i64(&mut self, name: &'static str, x: usize) {
        let fitting = self.fitting::<i64>(name, x);
        self.push(name, fitting.to_le_bytes());
    }

    /// A 32-bit integer.
    pub fn i32(&mut self, name: &'static str, x: usize) {
        let fitting = self.fitting::<i32>(name, x);
        self.push(name, fitting.to_le_bytes());
    }

    /// A 32-bit float.
    pub fn f32(&mut self, name: &'static str, x: f32) {
        self.push(name, x.to_le_bytes());
    }

    /// The number, or 0 if it does not fit: then [`Args::check`] fails, and nothing is launched.
    fn fitting<T: TryFrom<usize> + Default>(&mut self, name: &'static str, x: usize) -> T {
        T::try_from(x).unwrap_or_else(|_| {
            self.overflow.get_or_insert((name, x));
            T::default()
        })
    }

    fn push(&mut self, name: &'static str, bytes: impl IntoIterator<Item = u8>) {
        if self.fields.iter().all(|(other, _)| *other != name) {
            self.fields.push((name, self.bytes.len()));
        }
        self.bytes.extend(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Arch;

    #[test]
    fn numbers_that_do_not_fit_are_errors() {
        let mut args = Args::default();
        args.i32("queries", i32::MAX as usize);
        args.i64("positions", 1 << 40);
        args.check().unwrap();
        let mut long = args.clone();
        long.i32("heads", 1 << 31);
        let error = long.check().unwrap_err().to_string();
        assert!(error.contains("heads") && error.contains("got 2147483648, expected"), "{error}");
        args.tensor("value", Slot::Value, Operand { strides: [usize::MAX, 1, 1], align: 2 }, 2);
        assert!(args.check().is_err());
    }

    #[test]
    fn kernels_get_the_offset_of_every_field() {
        let mut args = Args::default();
        args.pointer("table", Slot::Value);
        for level in 0..2 {
            args.i32("level[0].height", level);
            args.i32("level[0].width", level);
        }
        args.align(16);
        args.f32("scale", 1.0);
        let unit = args.compared(Unit::new("pack.cu", "key", Arch::new(9, 0)));
        let fields = "ARG(table, 0) ARG(level[0].height, 8) ARG(level[0].width, 12) ARG(scale, 32)";
        let defines = [("ARGS_BYTES", "36"), ("ARGS_FIELDS", fields)];
        assert_eq!(unit.defines, defines.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
