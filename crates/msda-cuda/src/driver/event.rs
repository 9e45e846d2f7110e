//! Marks in a stream.

use std::ptr;

use cudarc::driver::sys::{self, CUevent, CUevent_flags};
use msda::Result;

use super::check::check;
use super::{Device, StreamHandle, library};

/// A mark in a stream: it happens when everything before it is done, and notes the time.
#[derive(Debug)]
pub struct Event {
    device: Device,
    raw: CUevent,
}

// SAFETY: an event may be used from any thread, and the driver serialises calls on it.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let _bound = device.bind()?;
        let mut raw = ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DEFAULT as u32;
        // SAFETY: a context is current; `raw` is valid to write.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, flags) })?;
        Ok(Self { device: device.clone(), raw })
    }

    pub(super) fn raw(&self) -> CUevent {
        self.raw
    }

    /// Puts the mark behind what is on `stream` now. A second call moves it.
    pub fn record(&self, stream: StreamHandle<'_>) -> Result<()> {
        let _bound = self.device.bind()?;
        // SAFETY: event and stream live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.raw, stream.cu()) })
    }

    /// Waits until it has happened. One that was never recorded has.
    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.device.bind()?;
        // SAFETY: the event lives.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) })
    }

    /// Milliseconds between two events that have happened, to about half a microsecond.
    pub fn elapsed_ms(start: &Self, end: &Self) -> Result<f32> {
        let elapsed_time = library::elapsed_time()?;
        let _bound = start.device.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events live; `milliseconds` is valid to write.
        let result = unsafe { elapsed_time(&mut milliseconds, start.raw, end.raw) };
        check("cuEventElapsedTime", result)?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event was made by `new` and is destroyed once; the driver keeps it while it is pending.
        self.device.release(|| unsafe { sys::cuEventDestroy_v2(self.raw) });
    }
}
