//! Recorded work.

use std::ptr;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode};
use msda::Result;

use super::check::check;
use super::{Device, Stream, StreamHandle};

/// Work that was recorded once and is launched as a whole, cheaper than piece by piece.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    raw: CUgraphExec,
}

// SAFETY: a graph may be launched from any thread; the driver orders launches of the same one.
unsafe impl Send for Graph {}
// SAFETY: as above; nothing here changes it after construction.
unsafe impl Sync for Graph {}

impl Graph {
    /// Records what `work` queues on the stream that it is given, which is `stream`, without running it. `work` must
    /// neither wait for the device nor allocate or free its memory.
    pub fn capture(stream: &Stream, work: impl FnOnce(StreamHandle<'_>) -> Result<()>) -> Result<Self> {
        let device = stream.device();
        let _bound = device.bind()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        let result = unsafe { sys::cuStreamBeginCapture_v2(stream.handle().cu(), mode) };
        check("cuStreamBeginCapture", result)?;
        let capture = Capture { stream, ended: false };
        let worked = work(stream.handle());
        let recorded = capture.end();
        // What went wrong first explains what went wrong after.
        worked?;
        let recorded = recorded?;
        let mut raw = ptr::null_mut();
        // SAFETY: the graph lives; `raw` is valid to write; no flags.
        let result = unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, recorded.0, 0) };
        check("cuGraphInstantiate", result)?;
        Ok(Self { device: device.clone(), raw })
    }

    /// Queues all of it on `stream`.
    ///
    /// # Safety
    /// What the launches in it were promised still holds: modules and memory live, and nobody else uses the memory in
    /// a conflicting way until `stream` got there.
    pub unsafe fn launch(&self, stream: StreamHandle<'_>) -> Result<()> {
        let _bound = self.device.bind()?;
        // SAFETY: graph and stream live; the rest is the caller's promise.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.raw, stream.cu()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `capture` and destroyed once; what is running of it still finishes.
        self.device.release(|| unsafe { sys::cuGraphExecDestroy(self.raw) });
    }
}

/// A recording in progress. It ends also when the work fails or panics: a stream that records is of no other use.
struct Capture<'a> {
    stream: &'a Stream,
    ended: bool,
}

impl Capture<'_> {
    fn end(mut self) -> Result<Recorded> {
        self.stop()
    }

    fn stop(&mut self) -> Result<Recorded> {
        self.ended = true;
        let mut graph = Recorded(ptr::null_mut());
        // SAFETY: the stream lives and records; the graph is valid to write.
        let result = unsafe { sys::cuStreamEndCapture(self.stream.handle().cu(), &mut graph.0) };
        check("cuStreamEndCapture", result)?;
        Ok(graph)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.stop();
        }
    }
}

/// A graph before it is made ready to launch; null when there is none.
#[derive(Debug)]
pub(super) struct Recorded(pub(super) CUgraph);

impl Drop for Recorded {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made once and destroyed once.
            let _ = unsafe { sys::cuGraphDestroy(self.0) };
        }
    }
}
