//! Events.

use std::ptr;

use msda::Result;

use super::api;
use super::check::check;
use super::types::CUevent;
use super::{Device, StreamHandle};

/// An event in a stream: it happens when all work before it is done, and keeps the time.
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
        let _bound = device.bind_relaxed()?;
        let mut raw = ptr::null_mut();
        // SAFETY: a context is current; `raw` is valid to write; no flags.
        check("cuEventCreate", unsafe { api::cuEventCreate(&mut raw, 0) })?;
        Ok(Self { device: device.clone(), raw })
    }

    /// Records it after the work that is on `stream` now. A second call moves it.
    pub fn record(&self, stream: StreamHandle<'_>) -> Result<()> {
        let _bound = self.device.bind()?;
        // SAFETY: event and stream live.
        check("cuEventRecord", unsafe { api::cuEventRecord(self.raw, stream.cu()) })
    }

    /// Milliseconds between two events that have happened, to about half a microsecond.
    pub fn elapsed_ms(start: &Self, end: &Self) -> Result<f32> {
        let _bound = start.device.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events live; `milliseconds` is valid to write.
        let result = unsafe { api::cuEventElapsedTime(&mut milliseconds, start.raw, end.raw) };
        check("cuEventElapsedTime", result)?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event was made by `new` and is destroyed once; the driver keeps it while it
        // is pending.
        self.device.release(|| unsafe { api::cuEventDestroy_v2(self.raw) });
    }
}
