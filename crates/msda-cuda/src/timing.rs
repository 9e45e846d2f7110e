//! Times of what is queued on a stream, by events.

use msda::Result;

use crate::driver::{Event, Stream, StreamHandle};
use crate::flush::Flush;

/// Runs that are queued before the device is waited for.
const QUEUED: usize = 16;

/// Milliseconds of each of some runs of what `queue` queues; with cold caches, or right after another run. Every batch
/// begins with a flush: while the device is busy with it the host gets ahead, so that no event waits for a launch that
/// is still to come.
pub(crate) fn time(
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
