//! Copies value from one layout to another on the device.
#![allow(unsafe_code)]

use msda::{Error, ErrorKind, Problem, Result, Role};

use crate::driver::{Device, StreamHandle};
use crate::kernels::{Pointer, pack};
use crate::loaded::LoadedKernel;
use crate::request::{Operand, Slot};
use crate::target::Target;

/// A copy of value from one layout to another, ready to be launched. A captured launch may outlive
/// it.
#[derive(Debug)]
pub struct Packing {
    /// One kernel per group of levels: the table of levels is part of the argument.
    kernels: Vec<LoadedKernel>,
}

impl Packing {
    /// From the layout of one problem to that of another, both dense; see [`msda::pack`].
    pub fn new(device: &Device, from: &Problem, to: &Problem) -> Result<Self> {
        let same =
            |p: &Problem| (p.batch(), p.heads(), p.channels(), p.spec().levels.clone(), p.types().value);
        if same(from) != same(to) {
            let expected = "the same images, heads, channels, levels and value type";
            return Err(Error::new(ErrorKind::Shape, "packing", format!("{from} to {to}"), expected));
        }
        if to.value_len() == 0 {
            return Ok(Self { kernels: Vec::new() });
        }
        let dense = |p| Operand::dense(p, Role::Value);
        let prepared = pack((from, dense(from)), (to, dense(to)), &Target::of(device));
        let kernels =
            prepared.into_iter().map(|kernel| LoadedKernel::new(device, kernel)).collect::<Result<_>>()?;
        Ok(Self { kernels })
    }

    /// Queues the copy.
    ///
    /// # Safety
    /// Both addresses are device memory that the device can access, of dense tensors as the
    /// problems say. Until `stream` has run the copy, both stay allocated, nobody else writes to
    /// them, and nobody reads `to`.
    pub unsafe fn launch(&self, from: u64, to: u64, stream: StreamHandle<'_>) -> Result<()> {
        let address = |pointer| match pointer {
            Pointer::Slot(Slot::Value) => from,
            Pointer::Slot(Slot::Output) => to,
            _ => 0,
        };
        for kernel in &self.kernels {
            // SAFETY: the kernel reads and writes nothing but the two tensors, which this
            // function's contract says are valid.
            unsafe { kernel.launch(address, |_| Ok(()), stream)? };
        }
        Ok(())
    }
}
