//! A probe's kernel: how it is compiled and launched.
#![allow(unsafe_code)]

use std::ffi::c_void;

use msda::{Error, ErrorKind, Result};

use msda_cuda::driver::{Arch, Device, Function, Launch, StreamHandle};
use msda_cuda::jit::{self, Unit};

use crate::sources::SOURCES;
use crate::tensor_map::TensorMap;

/// Declares the arguments of kernels, as the kernels declare them.
macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* })*) => {
        $($(#[$doc])* #[repr(C)] #[derive(Debug, Clone, Copy)] struct $name { $($field: $type),* })*
    };
}
pub(super) use arguments;

/// An argument with a tensor map in front.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Mapped<A> {
    map: TensorMap,
    args: A,
}

/// A kernel of a probe. It has one argument, a structure.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// What is compiled.
    pub unit: Unit,
    /// Threads per block.
    pub threads: u32,
    /// Bytes of the argument.
    pub argument: usize,
    /// The first architecture that supports it.
    pub since: Arch,
}

impl Kernel {
    /// The name of every probe's kernel.
    pub const ENTRY: &'static str = "msda_probe";

    /// A kernel without macros whose argument is an `A`.
    pub(super) fn new<A>(file: &'static str, key: impl Into<String>, arch: Arch, threads: u32) -> Self {
        let unit = Unit::of(&SOURCES, file, format!("probe-{}", key.into()), arch);
        Self { unit, threads, argument: size_of::<A>(), since: Arch::new(7, 5) }
    }

    pub(super) fn define(mut self, name: &str, value: impl ToString) -> Self {
        self.unit = self.unit.define(name, value);
        self
    }

    pub(super) fn since(self, major: u32, minor: u32) -> Self {
        Self { since: Arch::new(major, minor), ..self }
    }

    /// The same with a tensor map in front of its argument, an `A`.
    pub(super) fn mapped<A>(self) -> Self {
        Self { argument: size_of::<Mapped<A>>(), ..self }
    }

    /// A launch of that many blocks.
    pub(super) fn grid(&self, blocks: u32) -> Launch {
        Launch::new([blocks, 1, 1], [self.threads, 1, 1])
    }
}

/// A kernel that is loaded, with its launch and argument.
#[derive(Debug)]
pub(super) struct Ready<A> {
    pub(super) function: Function,
    at: Launch,
    pub(super) args: A,
    map: Option<TensorMap>,
}

impl<A: Copy> Ready<A> {
    /// Loads the kernel for launches of that shape.
    ///
    /// # Safety
    /// The argument of the kernel is an `A`, or with a map a [`Mapped`] one. Launched in this
    /// shape, it stays within the memory that `args` and `map` name. That memory lives, and nobody
    /// else uses it, while the result is used.
    pub(super) unsafe fn new(
        device: &Device,
        kernel: &Kernel,
        at: Launch,
        map: Option<TensorMap>,
        args: A,
    ) -> Result<Self> {
        super::needs(device, kernel)?;
        if at.shared as usize > device.shared_per_block() {
            let got = format!("{} bytes of shared memory a block", device.shared_per_block());
            let subject = format!("probe {}", kernel.unit.key);
            return Err(Error::new(ErrorKind::Unsupported, subject, got, format!("{} or more", at.shared)));
        }
        let function = jit::load(device, &kernel.unit)?.function(Kernel::ENTRY)?;
        if at.shared > 0 {
            function.allow_shared(at.shared)?;
        }
        Ok(Self { function, at, args, map })
    }

    /// Queues it. Two runs write the same numbers, one after the other.
    pub(super) fn queue(&self, stream: StreamHandle<'_>) -> Result<()> {
        let mut args = self.args;
        let mut mapped = self.map.map(|map| Mapped { map, args });
        let argument: *mut c_void = match &mut mapped {
            Some(mapped) => (&raw mut *mapped).cast(),
            None => (&raw mut args).cast(),
        };
        // SAFETY: by the promise of `new`; freeing memory waits for the device, and the module is
        // kept loaded.
        unsafe { self.function.launch(&self.at, stream, &mut [argument]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_take_their_map_first() {
        let offsets = [std::mem::offset_of!(Mapped<u64>, map), std::mem::offset_of!(Mapped<u64>, args)];
        assert_eq!(offsets, [0, 128]);
    }
}
