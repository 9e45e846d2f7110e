//! A kernel that is loaded, with its launch and its argument.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use msda::{Error, ErrorKind, Result};

use crate::driver::{Device, Function, Launch, StreamHandle, Window};
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

    /// Whether L2 keeps memory while it runs: a launch attribute, which has an address.
    pub(crate) fn has_window(&self) -> bool {
        self.args.window().is_some()
    }

    fn window(&self, address: impl Fn(Pointer) -> u64) -> Option<Window> {
        let (pointer, bytes) = self.args.window()?;
        let (persisting, most) = self.function.module().device().persisting_l2();
        let bytes = bytes.min(most);
        // If all lines of a larger window were persisting, they would evict each other.
        let kept = if bytes <= persisting { 1000 } else { (persisting * 1000 / bytes) as u16 };
        (bytes > 0).then(|| Window { address: address(pointer), bytes, kept })
    }

    /// Writes its argument into `room`, in 8-byte words.
    pub(crate) fn argument<'a>(
        &self,
        address: impl Fn(Pointer) -> u64,
        room: &'a mut Argument,
    ) -> Result<&'a mut [u64]> {
        let words = &mut room[..self.words()];
        words.fill(MaybeUninit::new(0));
        // SAFETY: `fill` initialised all of them, and the layouts are the same.
        let words: &'a mut [u64] = unsafe { &mut *(ptr::from_mut(words) as *mut [u64]) };
        // SAFETY: a view of the bytes of these words, which nothing else uses while it lives. Any
        // bytes are words.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), 8 * words.len()) };
        bytes[..self.args.bytes().len()].copy_from_slice(self.args.bytes());
        for &(pointer, offset) in self.args.pointers() {
            debug_assert!(offset.is_multiple_of(8), "{pointer:?} is at {offset}");
            bytes[offset..offset + 8].copy_from_slice(&address(pointer).to_ne_bytes());
        }
        for late in self.args.encoded() {
            let part = &mut bytes[late.offset..late.offset + late.bytes];
            late.encode.encode(self.function.module().device(), address(late.pointer), part)?;
        }
        Ok(words)
    }

    /// The size of its argument in 8-byte words; `new` checked that they fit.
    pub(crate) fn words(&self) -> usize {
        self.args.bytes().len().div_ceil(8)
    }

    /// Queues it.
    ///
    /// # Safety
    /// As for [`crate::Plan::launch`], for the memory that its pointers name.
    pub(crate) unsafe fn launch(
        &self,
        address: impl Fn(Pointer) -> u64,
        stream: StreamHandle<'_>,
    ) -> Result<()> {
        let mut room: Argument = [MaybeUninit::uninit(); MAX_ARGS / 8];
        let arg = self.argument(&address, &mut room)?;
        let window = self.window(address);
        let args = &mut [arg.as_mut_ptr().cast::<c_void>()];
        // SAFETY: the kernel has one parameter of as many bytes as `arg`: it compared the size and
        // all offsets when it was compiled. The memory that its pointers name is valid, as this
        // function's contract says.
        unsafe { self.function.launch_keeping(&self.launch, window, stream, args) }
    }
}
