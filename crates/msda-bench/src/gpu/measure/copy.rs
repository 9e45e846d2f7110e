//! The rate of a copy within device memory.
#![allow(unsafe_code)]

use msda::Result;

use msda_cuda::driver::{Device, Event, copy_async};

/// Bytes per second that a copy within device memory moves: each byte is read and written.
pub fn copy(device: &Device) -> Result<f64> {
    const RUNS: usize = 10;
    // One gibibyte, or a quarter of the free memory.
    let bytes = (device.free_memory()? / 4).min(1 << 30);
    let (from, to) = (device.alloc(bytes)?, device.alloc(bytes)?);
    let stream = device.stream()?;
    let _bound = device.bind()?;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let (start, end) = (device.event()?, device.event()?);
        start.record(stream.handle())?;
        // SAFETY: both buffers are ours, have that size, and live until the stream is done.
        unsafe { copy_async(device, to.address(), from.address(), bytes, stream.handle())? };
        end.record(stream.handle())?;
        stream.synchronize()?;
        best = best.min(f64::from(Event::elapsed_ms(&start, &end)?));
    }
    Ok(2.0 * bytes as f64 / (best / 1e3))
}
