//! Ceilings of a device.
#![allow(unsafe_code)]

use msda::Result;

use crate::driver::{Device, Event, copy_async};

/// Bytes a second that copying within the device's memory moves: each byte is read and written.
pub fn copy(device: &Device) -> Result<f64> {
    const RUNS: usize = 10;
    // A gibibyte, or what a device that is nearly full can spare.
    let bytes = (device.free_memory()? / 4).min(1 << 30);
    let (from, to) = (device.alloc(bytes)?, device.alloc(bytes)?);
    let stream = device.stream()?;
    let _bound = device.bind()?;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let (start, end) = (device.event()?, device.event()?);
        start.record(stream.handle())?;
        // SAFETY: both are ours, of that size, and live until the stream is done.
        unsafe { copy_async(device, to.address(), from.address(), bytes, stream.handle())? };
        end.record(stream.handle())?;
        stream.synchronize()?;
        best = best.min(f64::from(Event::elapsed_ms(&start, &end)?));
    }
    Ok(2.0 * bytes as f64 / (best / 1e3))
}
