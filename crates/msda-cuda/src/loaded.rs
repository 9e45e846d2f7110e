//! A kernel that is loaded, with its launch and its argument.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use msda::{Error, ErrorKind, Result};

use crate::driver::{Device, Function, Launch, StreamHandle};
use crate::jit;
use crate::kernels::{Args, Pointer, Prepared};

/// The most bytes that a kernel's argument can have with every driver.
pub(crate) const MAX_ARGS: usize = 4096;

/// Shared memory that a block gets without opting in to more.
const DEFAULT_SHARED: u32 = 48 << 10;

/// Room for a kernel's argument.
pub(crate) type Argument = [MaybeUninit<u64>; MAX_ARGS / 8];

/// A kernel that is loaded on a device.
#[derive(Debug)]
pub(crate) struct LoadedKernel {
    pub(crate) function: Function,
    pub(crate) launch: Launch,
    args: Args,
}

impl LoadedKernel {
    pub(crate) fn new(device: &Device, prepared: Prepared) -> Result<Self> {
        let Prepared { unit, entry, launch, args } = prepared;
        args.check()?;
        if args.bytes().len() > MAX_ARGS {
            let got = format!("{} bytes", args.bytes().len());
            let expected = format!("at most {MAX_ARGS}");
            return Err(Error::new(ErrorKind::Unsupported, "kernel argument", got, expected));
        }
        let function = jit::load(device, &unit)?.function(entry)?;
        let own_shared = function.shared_bytes()?;
        if own_shared.saturating_add(launch.shared) > DEFAULT_SHARED {
            // Other plans use the same function with other sizes: allow all that the device has.
            function.allow_shared((device.shared_per_block() as u32).saturating_sub(own_shared))?;
        }
        if launch.cluster != [1; 3] && function.max_clusters(&launch)? == 0 {
            let got = format!("{:?} blocks of {} bytes of shared memory", launch.cluster, launch.shared);
            return Err(Error::new(ErrorKind::Unsupported, "cluster", got, "one that fits the device")
                .hint("use fewer blocks per cluster, or less shared memory"));
        }
        Ok(Self { function, launch, args })
    }

    /// Writes its argument into `room`, in 8-byte words.
    pub(crate) fn argument<'a>(
        &self,
        address: impl Fn(Pointer) -> u64,
        room: &'a mut Argument,
    ) -> &'a mut [u64] {
        let words = &mut room[..self.words()];
        words.fill(MaybeUninit::new(0));
        // SAFETY: `fill` initialised all of them, and the layouts are the same.
        let words: &'a mut [u64] = unsafe { &mut *(ptr::from_mut(words) as *mut [u64]) };
        let bytes = bytes_of(words);
        bytes[..self.args.bytes().len()].copy_from_slice(self.args.bytes());
        for &(pointer, offset) in self.args.pointers() {
            debug_assert!(offset.is_multiple_of(8), "{pointer:?} is at {offset}");
            bytes[offset..offset + 8].copy_from_slice(&address(pointer).to_ne_bytes());
        }
        words
    }

    /// The size of its argument in 8-byte words; `new` checked that they fit.
    pub(crate) fn words(&self) -> usize {
        self.args.bytes().len().div_ceil(8)
    }

    /// Queues it with the argument that `before` may change.
    ///
    /// # Safety
    /// As for [`crate::Plan::launch`], for the memory that its pointers name.
    pub(crate) unsafe fn launch(
        &self,
        address: impl Fn(Pointer) -> u64,
        before: impl FnOnce(&mut [u8]) -> Result<()>,
        stream: StreamHandle<'_>,
    ) -> Result<()> {
        let mut room: Argument = [MaybeUninit::uninit(); MAX_ARGS / 8];
        let arg = self.argument(address, &mut room);
        before(bytes_of(arg))?;
        let args = &mut [arg.as_mut_ptr().cast::<c_void>()];
        // SAFETY: the kernel has one parameter of as many bytes as `arg`: it compared the size and
        // all offsets when it was compiled. The memory that its pointers name is valid, as this
        // function's contract says.
        unsafe { self.function.launch(&self.launch, stream, args) }
    }
}

fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: the bytes of these words, while they are borrowed; any bytes are words.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of_val(words)) }
}
