//! Times work on a stream by events: any work, and a copy within device memory.
#![allow(unsafe_code)]

use msda::Result;

use super::Flush;
use msda_cuda::driver::{Device, Event, Stream, StreamHandle, copy_async};

/// Runs that are queued before the host waits for the device.
const QUEUED: usize = 16;

/// Times `runs` runs of the work that `queue` queues, in milliseconds each: with cold caches, or
/// warm, right after another run. Every batch begins with a flush. It keeps the device busy while
/// the host queues the events and the work, so that no event waits for the host.
pub fn time(
    stream: &Stream,
    flush: &Flush,
    runs: usize,
    cold: bool,
    queue: impl Fn(StreamHandle<'_>) -> Result<()>,
) -> Result<Vec<f64>> {
    let device = stream.device();
    let _bound = device.bind()?;
    let handle = stream.handle();
    let mut events = Vec::new();
    for _ in 0..runs.min(QUEUED) {
        events.push((device.event()?, device.event()?));
    }
    let mut times = Vec::with_capacity(runs);
    while times.len() < runs {
        let batch = &events[..events.len().min(runs - times.len())];
        if !cold {
            flush.queue(handle)?;
            queue(handle)?;
        }
        for (start, end) in batch {
            if cold {
                flush.queue(handle)?;
            }
            start.record(handle)?;
            queue(handle)?;
            end.record(handle)?;
        }
        stream.synchronize()?;
        for (start, end) in batch {
            times.push(f64::from(Event::elapsed_ms(start, end)?));
        }
    }
    Ok(times)
}

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
