//! A GPU and its primary context.

use std::ffi::{c_char, c_int, c_uint};
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use msda::{Error, ErrorKind, Result};

use super::api::{self, Code};
use super::check::check;
use super::relaxed::Relaxed;
use super::types::{CUcontext, CUdevice, CUstream};
use super::{Arch, Event, Memory, Module, Stream, library};

/// A GPU. Clones are cheap and stand for the same GPU. Its primary context lives until the process
/// ends.
#[derive(Clone)]
pub struct Device(&'static Inner);

struct Inner {
    ordinal: usize,
    context: CUcontext,
    name: String,
    pci_bus_id: String,
    arch: Arch,
    sms: u32,
    shared_per_block: usize,
    l2_bytes: usize,
    total_memory: usize,
    /// For copies and fills that are waited for, made with the first of them.
    transfers: Mutex<Option<Stream>>,
    /// For graph nodes whose address is not known yet.
    placeholder: OnceLock<Memory>,
}

// SAFETY: a context may be used from any thread; the rest is plain data, or behind a lock.
unsafe impl Send for Inner {}
// SAFETY: as above; all else stays as it was made.
unsafe impl Sync for Inner {}

/// Every device that was opened, once each, for the life of the process.
static OPEN: Mutex<Vec<Device>> = Mutex::new(Vec::new());

impl Device {
    /// The number of GPUs that the driver shows.
    pub fn count() -> Result<usize> {
        library::initialise()?;
        let mut count: c_int = 0;
        // SAFETY: the driver is initialised; `count` is valid to write.
        check("cuDeviceGetCount", unsafe { api::cuDeviceGetCount(&mut count) })?;
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

    /// The architecture that its kernels are compiled for.
    pub fn arch(&self) -> Arch {
        self.0.arch
    }

    /// The number of its SMs.
    pub fn sms(&self) -> u32 {
        self.0.sms
    }

    /// Bytes of shared memory that a block can have at most, after
    /// [`super::Function::allow_shared`].
    pub fn shared_per_block(&self) -> usize {
        self.0.shared_per_block
    }

    /// Bytes of its L2.
    pub fn l2_bytes(&self) -> usize {
        self.0.l2_bytes
    }

    /// Bytes of its memory.
    pub fn total_memory(&self) -> usize {
        self.0.total_memory
    }

    /// Its address on the PCI bus, such as `0000:19:00.0`, which NVML uses too.
    pub fn pci_bus_id(&self) -> String {
        self.0.pci_bus_id.clone()
    }

    /// Bytes of its memory that are free now.
    pub fn free_memory(&self) -> Result<usize> {
        let _bound = self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current; both are valid to write.
        check("cuMemGetInfo", unsafe { api::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(free)
    }

    /// Makes its context current in the calling thread until the result is dropped. Results are
    /// dropped in the reverse order of their creation.
    #[inline]
    pub fn bind(&self) -> Result<Bound<'_>> {
        let mut current = ptr::null_mut();
        // SAFETY: a device exists, so the driver is initialised; `current` is valid to write.
        check("cuCtxGetCurrent", unsafe { api::cuCtxGetCurrent(&mut current) })?;
        let pushed = current != self.0.context;
        if pushed {
            // SAFETY: the context is retained for the life of the process.
            check("cuCtxPushCurrent", unsafe { api::cuCtxPushCurrent_v2(self.0.context) })?;
        }
        Ok(Bound { pushed, device: PhantomData, thread: PhantomData })
    }

    /// As [`Device::bind`], and the thread may allocate, load and wait while a stream captures a
    /// graph.
    pub fn bind_relaxed(&self) -> Result<(Relaxed, Bound<'_>)> {
        Ok((Relaxed::new(), self.bind()?))
    }

    /// Queues `work` on a private stream and waits for it. The default stream cannot be used here:
    /// while another stream captures a graph, the driver refuses it.
    pub(super) fn transfer(&self, call: &'static str, work: impl FnOnce(CUstream) -> Code) -> Result<()> {
        let _bound = self.bind_relaxed()?;
        let mut transfers = self.0.transfers.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = match &*transfers {
            Some(stream) => stream.handle().cu(),
            None => transfers.insert(Stream::new(self)?).handle().cu(),
        };
        drop(transfers);
        check(call, work(stream))?;
        // SAFETY: the stream lives as long as the process.
        check("cuStreamSynchronize", unsafe { api::cuStreamSynchronize(stream) })
    }

    /// The address of 16 bytes that nobody uses.
    pub(super) fn placeholder(&self) -> Result<u64> {
        if let Some(memory) = self.0.placeholder.get() {
            return Ok(memory.address());
        }
        let memory = self.alloc(16)?;
        Ok(self.0.placeholder.get_or_init(|| memory).address())
    }

    pub(super) fn context(&self) -> CUcontext {
        self.0.context
    }

    /// Waits until all work on all of its streams is done. An error while a stream captures a
    /// graph.
    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.bind()?;
        // SAFETY: a context is current.
        check("cuCtxSynchronize", unsafe { api::cuCtxSynchronize() })
    }

    /// A new stream, which does not wait for the default stream.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }

    /// Uninitialised memory on it. 0 bytes are legal and have address 0.
    pub fn alloc(&self, bytes: usize) -> Result<Memory> {
        Memory::new(self, bytes)
    }

    /// Loads compiled kernels. For this crate only: the driver trusts the image, and the kernels in
    /// it are run.
    pub(crate) fn load(&self, cubin: &[u8]) -> Result<Module> {
        Module::new(self, cubin)
    }

    /// A new event, for timing.
    pub fn event(&self) -> Result<Event> {
        Event::new(self)
    }

    /// Destroys something while the context is bound. Failures are ignored: at the end of the
    /// process the driver may be gone already.
    pub(super) fn release(&self, destroy: impl FnOnce() -> Code) {
        if let Ok(_bound) = self.bind_relaxed() {
            destroy();
        }
    }
}

/// Each GPU is opened once.
impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}: {}, {})", self.ordinal(), self.name(), self.arch())
    }
}

/// Attributes of a device, as in cuda.h.
const MULTIPROCESSOR_COUNT: c_uint = 16;
const L2_CACHE_SIZE: c_uint = 38;
const CAPABILITY_MAJOR: c_uint = 75;
const CAPABILITY_MINOR: c_uint = 76;
const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: c_uint = 97;

impl Inner {
    fn new(ordinal: usize) -> Result<Self> {
        let mut device: CUdevice = 0;
        // SAFETY: `device` is valid to write; the number was checked against the count.
        check("cuDeviceGet", unsafe { api::cuDeviceGet(&mut device, ordinal as c_int) })?;
        let number = |attribute| -> Result<u32> {
            let mut number: c_int = 0;
            // SAFETY: `number` is valid to write; the device exists.
            let result = unsafe { api::cuDeviceGetAttribute(&mut number, attribute, device) };
            check("cuDeviceGetAttribute", result)?;
            Ok(u32::try_from(number).unwrap_or(0))
        };
        let arch = Arch::new(number(CAPABILITY_MAJOR)?, number(CAPABILITY_MINOR)?);
        let mut total_memory = 0;
        // SAFETY: `total_memory` is valid to write; the device exists.
        check("cuDeviceTotalMem", unsafe { api::cuDeviceTotalMem_v2(&mut total_memory, device) })?;
        let name = text("cuDeviceGetName", |at, length| {
            // SAFETY: `at` has room for `length` characters.
            unsafe { api::cuDeviceGetName(at, length, device) }
        })?;
        let pci_bus_id = text("cuDeviceGetPCIBusId", |at, length| {
            // SAFETY: `at` has room for `length` characters.
            unsafe { api::cuDeviceGetPCIBusId(at, length, device) }
        })?;
        let mut inner = Self {
            ordinal,
            context: ptr::null_mut(),
            name,
            pci_bus_id,
            arch,
            sms: number(MULTIPROCESSOR_COUNT)?,
            shared_per_block: number(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
            l2_bytes: number(L2_CACHE_SIZE)? as usize,
            total_memory,
            transfers: Mutex::new(None),
            placeholder: OnceLock::new(),
        };
        // Last, because it is never released: nothing after it can fail.
        let _relaxed = Relaxed::new();
        // SAFETY: the field is valid to write; the device exists.
        let result = unsafe { api::cuDevicePrimaryCtxRetain(&mut inner.context, device) };
        check("cuDevicePrimaryCtxRetain", result)?;
        Ok(inner)
    }
}

/// A text that the driver writes into a buffer of a given length.
fn text(call: &'static str, write: impl FnOnce(*mut c_char, c_int) -> Code) -> Result<String> {
    let mut buffer = [0u8; 256];
    check(call, write(buffer.as_mut_ptr().cast(), buffer.len() as c_int))?;
    let length = buffer.iter().position(|&byte| byte == 0).unwrap_or(buffer.len());
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// While it lives, the device's context is current in the calling thread.
#[derive(Debug)]
#[must_use = "the context is bound only while this lives"]
pub struct Bound<'a> {
    pushed: bool,
    device: PhantomData<&'a Device>,
    /// The current context belongs to the thread.
    thread: PhantomData<*mut ()>,
}

impl Drop for Bound<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = ptr::null_mut();
            // SAFETY: this thread pushed a context; `popped` is valid to write.
            let _ = unsafe { api::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}
