//! A GPU and its primary context.

use std::ffi::{c_char, c_int};
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute, CUresult};
use msda::{Error, ErrorKind, Result};

use super::check::check;
use super::{Arch, Event, Memory, Module, Stream, library};

/// A GPU. Copies are cheap and mean the same one; its primary context is kept until the process ends.
#[derive(Clone, PartialEq, Eq)]
pub struct Device(&'static Inner);

#[derive(PartialEq, Eq)]
struct Inner {
    ordinal: usize,
    context: CUcontext,
    name: String,
    pci_bus_id: String,
    arch: Arch,
    multiprocessors: u32,
    shared_per_block: usize,
    l2_bytes: usize,
    total_memory: usize,
}

// SAFETY: a context may be used from any thread, which is what the handle is for; the rest is plain data.
unsafe impl Send for Inner {}
// SAFETY: as above; nothing is changed after construction.
unsafe impl Sync for Inner {}

/// Every device that was opened: one each, for the life of the process.
static OPEN: Mutex<Vec<Device>> = Mutex::new(Vec::new());

impl Device {
    /// How many GPUs the driver shows.
    pub fn count() -> Result<usize> {
        library::ready()?;
        let mut count: c_int = 0;
        // SAFETY: the driver is ready; `count` is valid to write.
        check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The GPU with this number, counted from 0 in the driver's order.
    pub fn open(ordinal: usize) -> Result<Self> {
        let count = Self::count()?;
        if ordinal >= count {
            return Err(Error::new(ErrorKind::Device, "GPU", ordinal, format!("a number below {count}"))
                .hint("`nvidia-smi -L` lists the GPUs; CUDA_VISIBLE_DEVICES hides some"));
        }
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = open.iter().find(|device| device.ordinal() == ordinal) {
            return Ok(device.clone());
        }
        let device = Self(Box::leak(Box::new(Inner::new(ordinal)?)));
        open.push(device.clone());
        Ok(device)
    }

    /// Its number.
    pub fn ordinal(&self) -> usize {
        self.0.ordinal
    }

    /// Its name, such as `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What kernels are compiled for to run on it.
    pub fn arch(&self) -> Arch {
        self.0.arch
    }

    /// The number of its multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.0.multiprocessors
    }

    /// The most shared memory that one block can have, in bytes, when [`super::Function::allow_shared`] asks for it.
    pub fn shared_per_block(&self) -> usize {
        self.0.shared_per_block
    }

    /// The size of its second-level cache in bytes.
    pub fn l2_bytes(&self) -> usize {
        self.0.l2_bytes
    }

    /// The size of its memory in bytes.
    pub fn total_memory(&self) -> usize {
        self.0.total_memory
    }

    /// Where it is plugged in, such as `0000:19:00.0`: the name by which NVML knows it too.
    pub fn pci_bus_id(&self) -> String {
        self.0.pci_bus_id.clone()
    }

    /// The bytes of its memory that nobody uses now.
    pub fn free_memory(&self) -> Result<usize> {
        let _bound = self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current; both are valid to write.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(free)
    }

    /// Makes its context the calling thread's, until the result is dropped. Bindings are dropped in the reverse of
    /// the order in which they were made.
    #[inline]
    pub fn bind(&self) -> Result<Bound<'_>> {
        let mut current = ptr::null_mut();
        // SAFETY: a device exists, so the driver is ready; `current` is valid to write.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut current) })?;
        let pushed = current != self.0.context;
        if pushed {
            // SAFETY: the context is retained for the life of the process.
            check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.0.context) })?;
        }
        Ok(Bound { pushed, device: PhantomData, thread: PhantomData })
    }

    /// Waits until everything queued on it is done, on all streams. Not while a stream of it records a graph.
    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.bind()?;
        // SAFETY: a context is current.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// A new stream, which does not wait for the default one.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }

    /// Memory on it, with whatever was there before. 0 bytes are legal and have address 0.
    pub fn alloc(&self, bytes: usize) -> Result<Memory> {
        Memory::new(self, bytes)
    }

    /// Loads compiled kernels.
    pub fn load(&self, cubin: &[u8]) -> Result<Module> {
        Module::new(self, cubin)
    }

    /// A new event, for timing and for one stream to wait for another.
    pub fn event(&self) -> Result<Event> {
        Event::new(self)
    }

    /// Gives something back while the context is bound. A failure has no one to report to: at the end of the
    /// process the driver is gone before what it held.
    pub(super) fn release(&self, give_back: impl FnOnce() -> CUresult) {
        if let Ok(_bound) = self.bind() {
            give_back();
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}: {}, {})", self.ordinal(), self.name(), self.arch())
    }
}

impl Inner {
    fn new(ordinal: usize) -> Result<Self> {
        let mut device: CUdevice = 0;
        // SAFETY: the driver is ready; `device` is valid to write; the number was checked against the count.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal as c_int) })?;
        let number = |attribute| -> Result<u32> {
            let mut number: c_int = 0;
            // SAFETY: `number` is valid to write; the device is one.
            let result = unsafe { sys::cuDeviceGetAttribute(&mut number, attribute, device) };
            check("cuDeviceGetAttribute", result)?;
            Ok(u32::try_from(number).unwrap_or(0))
        };
        use CUdevice_attribute as A;
        let arch = Arch::new(
            number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let mut total_memory = 0;
        // SAFETY: `total_memory` is valid to write; the device is one.
        check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut total_memory, device) })?;
        let name = text("cuDeviceGetName", |at, length| {
            // SAFETY: `at` has room for `length` characters.
            unsafe { sys::cuDeviceGetName(at, length, device) }
        })?;
        let pci_bus_id = text("cuDeviceGetPCIBusId", |at, length| {
            // SAFETY: `at` has room for `length` characters.
            unsafe { sys::cuDeviceGetPCIBusId(at, length, device) }
        })?;
        let mut inner = Self {
            ordinal,
            context: ptr::null_mut(),
            name,
            pci_bus_id,
            arch,
            multiprocessors: number(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_per_block: number(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
            l2_bytes: number(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
            total_memory,
        };
        // Last, so that nothing after it can fail: it is never released.
        // SAFETY: the field is valid to write; the device is one.
        let result = unsafe { sys::cuDevicePrimaryCtxRetain(&mut inner.context, device) };
        check("cuDevicePrimaryCtxRetain", result)?;
        Ok(inner)
    }
}

/// A text that the driver writes into a buffer of a given length.
fn text(call: &'static str, write: impl FnOnce(*mut c_char, c_int) -> CUresult) -> Result<String> {
    let mut buffer = [0u8; 256];
    check(call, write(buffer.as_mut_ptr().cast(), buffer.len() as c_int))?;
    let length = buffer.iter().position(|&byte| byte == 0).unwrap_or(buffer.len());
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// While this lives, the device's context is the calling thread's.
#[derive(Debug)]
#[must_use = "the context is bound only while this lives"]
pub struct Bound<'a> {
    pushed: bool,
    device: PhantomData<&'a Device>,
    /// It belongs to the thread that made it.
    thread: PhantomData<*mut ()>,
}

impl Drop for Bound<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = ptr::null_mut();
            // SAFETY: this thread pushed a context; `popped` is valid to write.
            let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}
