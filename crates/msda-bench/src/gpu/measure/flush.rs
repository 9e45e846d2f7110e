//! `flush.cu`: makes the caches cold.
#![allow(unsafe_code)]

use std::ffi::c_void;

use msda::Result;

use msda_cuda::driver::{Arch, Device, Function, Launch, Memory, StreamHandle, fill_async};
use msda_cuda::jit::{self, KERNELS, Sources, Unit};

static SOURCES: Sources =
    Sources::new(&[("flush.cu", include_str!("../../../kernels/flush.cu"))], Some(&KERNELS));

/// More than any L2 holds.
const BYTES: usize = 256 << 20;

/// Two buffers and a kernel that make the caches cold.
#[derive(Debug)]
pub struct Flush {
    written: Memory,
    read: Memory,
    function: Function,
    launch: Launch,
}

/// The kernel's argument.
#[repr(C)]
struct Args {
    data: u64,
    count: i64,
    never: u64,
}

impl Flush {
    /// The source of the kernel.
    pub fn unit(arch: Arch) -> Unit {
        Unit::of(&SOURCES, "flush.cu", "flush", arch)
    }

    /// Allocates the buffers and loads the kernel.
    pub fn new(device: &Device) -> Result<Self> {
        let unit = Self::unit(device.arch());
        let mut read = device.alloc(BYTES)?;
        read.fill(0)?;
        Ok(Self {
            written: device.alloc(BYTES)?,
            read,
            function: jit::load(device, &unit)?.function("msda_flush")?,
            launch: Launch::new([device.sms().max(1) * 8, 1, 1], [256, 1, 1]),
        })
    }

    /// Queues a write of one buffer, which evicts the present contents of the caches, and then a
    /// read of the other, which evicts the first: dirty lines would be written back at the expense
    /// of the next kernel.
    pub fn queue(&self, stream: StreamHandle<'_>) -> Result<()> {
        let device = self.written.device();
        // SAFETY: the memory is ours, freeing it waits for the device, and nobody reads it.
        unsafe { fill_async(device, self.written.address(), 0, BYTES, stream)? };
        let mut args =
            Args { data: self.read.address(), count: (BYTES / 16) as i64, never: self.written.address() };
        // SAFETY: the kernel takes one such structure and reads the whole buffer; modules are never
        // unloaded.
        unsafe { self.function.launch(&self.launch, stream, &mut [(&raw mut args).cast::<c_void>()]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::cubin;

    #[test]
    fn the_kernel_compiles_and_reads() {
        if let Err(why) = jit::nvrtc() {
            eprintln!("skipped: {why}");
            return;
        }
        for arch in ["sm_75", "sm_80", "sm_90a", "sm_120a"] {
            let compiled = jit::compile(&Flush::unit(arch.parse().unwrap())).unwrap();
            assert!((8..=64).contains(&compiled.registers()), "{arch}: {}", compiled.log);
            assert_eq!((compiled.spills(), compiled.stack()), (0, 0), "{arch}");
            let (cubin, entry) = (&compiled.cubin, "msda_flush");
            assert_eq!(cubin::registers(cubin, entry), Some(compiled.registers() as usize), "{arch}");
            assert_eq!(cubin::parameter_bytes(cubin, entry), Some(size_of::<Args>()), "{arch}");
            assert!(
                cubin::shared_bytes(cubin, entry) <= 1024 && !cubin::instructions(cubin, entry).is_empty()
            );
            assert_eq!(cubin::registers(cubin, "another"), None);
        }
    }
}
