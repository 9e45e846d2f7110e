//! Queues of work.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

use cudarc::driver::sys::{self, CUstream, CUstream_flags, CUstreamCaptureStatus};
use msda::Result;

use super::check::check;
use super::{Device, Event};

/// A queue of work on a device, in order; what is on other streams may run at the same time. It does not wait for
/// the default stream.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    raw: CUstream,
}

// SAFETY: a stream may be used from any thread, and the driver serialises calls on it.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let _bound = device.bind()?;
        let mut raw = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current; `raw` is valid to write.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut raw, flags) })?;
        Ok(Self { device: device.clone(), raw })
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What calls that queue work take.
    pub fn handle(&self) -> StreamHandle<'_> {
        StreamHandle { raw: self.raw, life: PhantomData }
    }

    /// Waits until everything on it is done.
    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.device.bind()?;
        // SAFETY: the stream lives.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Lets everything queued on it from now on wait until `event`, as recorded last, has happened.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let _bound = self.device.bind()?;
        // SAFETY: stream and event live; 0 is the only flag that makes sense here.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.raw(), 0) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream was made by `new` and is destroyed once; queued work still finishes.
        self.device.release(|| unsafe { sys::cuStreamDestroy_v2(self.raw) });
    }
}

/// The handle that stands for a default stream of the thread's own, as the driver defines it.
const PER_THREAD: usize = 2;

/// A stream that someone else owns: a [`Stream`], torch's current one, or the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamHandle<'a> {
    raw: CUstream,
    life: PhantomData<&'a Stream>,
}

// SAFETY: a handle is a name; streams may be used from any thread.
unsafe impl Send for StreamHandle<'_> {}
// SAFETY: as above.
unsafe impl Sync for StreamHandle<'_> {}

impl<'a> StreamHandle<'a> {
    /// The default stream of the device it is used with.
    pub const DEFAULT: StreamHandle<'static> = StreamHandle { raw: ptr::null_mut(), life: PhantomData };

    /// The stream behind a `CUstream` or `cudaStream_t`; null is the default stream.
    ///
    /// # Safety
    /// `raw` is such a handle, of the device it is used with, and the stream outlives `'a`.
    pub const unsafe fn from_raw(raw: *mut c_void) -> Self {
        Self { raw: raw.cast(), life: PhantomData }
    }

    /// The `CUstream` itself, for other libraries.
    pub const fn raw(self) -> *mut c_void {
        self.raw.cast()
    }

    /// Whether what is queued on it is recorded, and not run. `device` is its own.
    pub fn records(self, device: &Device) -> Result<bool> {
        let _bound = device.bind()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream lives; `status` is valid to write.
        check("cuStreamIsCapturing", unsafe { sys::cuStreamIsCapturing(self.raw, &mut status) })?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Whether it is one stream, and not one for each thread.
    pub fn is_one(self) -> bool {
        self.raw.addr() != PER_THREAD
    }

    pub(super) const fn cu(self) -> CUstream {
        self.raw
    }
}
