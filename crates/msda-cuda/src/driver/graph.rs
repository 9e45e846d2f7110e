//! Graphs, and their capture.

use std::ptr;

use msda::Result;

use super::api;
use super::check::check;
use super::relaxed::Relaxed;
use super::types::{CUgraph, CUgraphExec, capture};
use super::{Device, Stream, StreamHandle};

/// Work that is launched as a whole.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    pub(super) raw: CUgraphExec,
}

// SAFETY: a graph may be launched from any thread; the driver orders launches of the same one.
unsafe impl Send for Graph {}
// SAFETY: as above; nothing here changes it after construction.
unsafe impl Sync for Graph {}

impl Graph {
    /// Captures the work that `work` queues on `stream`, without running it. Plans may be made
    /// inside the capture.
    pub fn capture(stream: &Stream, work: impl FnOnce(StreamHandle<'_>) -> Result<()>) -> Result<Self> {
        Self::capture_in(stream, capture::THREAD_LOCAL, work)
    }

    pub(super) fn capture_in(
        stream: &Stream,
        mode: u32,
        work: impl FnOnce(StreamHandle<'_>) -> Result<()>,
    ) -> Result<Self> {
        let device = stream.device();
        let _bound = device.bind()?;
        // SAFETY: the stream lives.
        let result = unsafe { api::cuStreamBeginCapture_v2(stream.handle().cu(), mode) };
        check("cuStreamBeginCapture", result)?;
        let capture = Capture { stream, ended: false };
        let worked = work(stream.handle());
        let captured = capture.end();
        // The first failure explains the second.
        worked?;
        captured?.instantiate()
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Queues all of its work on `stream`.
    ///
    /// # Safety
    /// The promises of each captured launch still hold: until the work is done, modules and memory
    /// live, and nobody else uses the memory in a conflicting way.
    pub unsafe fn launch(&self, stream: StreamHandle<'_>) -> Result<()> {
        let _bound = self.device.bind()?;
        // SAFETY: graph and stream live; the rest is the caller's promise.
        check("cuGraphLaunch", unsafe { api::cuGraphLaunch(self.raw, stream.cu()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `instantiate` and destroyed once; launches in flight still finish.
        self.device.release(|| unsafe { api::cuGraphExecDestroy(self.raw) });
    }
}

/// A capture in progress. It ends when the work fails or panics too, so that the stream works
/// again.
struct Capture<'a> {
    stream: &'a Stream,
    ended: bool,
}

impl Capture<'_> {
    fn end(mut self) -> Result<Definition> {
        self.stop()
    }

    fn stop(&mut self) -> Result<Definition> {
        self.ended = true;
        let mut graph = Definition::none(self.stream.device());
        // SAFETY: the stream lives and captures; the graph is valid to write.
        let result = unsafe { api::cuStreamEndCapture(self.stream.handle().cu(), &mut graph.raw) };
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

/// A graph before it is instantiated; null when there is none.
#[derive(Debug)]
pub(super) struct Definition {
    device: Device,
    pub(super) raw: CUgraph,
}

impl Definition {
    /// None yet, for the driver to fill in.
    pub(super) fn none(device: &Device) -> Self {
        Self { device: device.clone(), raw: ptr::null_mut() }
    }

    /// A graph that can be launched. The context is current.
    pub(super) fn instantiate(&self) -> Result<Graph> {
        let _relaxed = Relaxed::new();
        let mut raw = ptr::null_mut();
        // SAFETY: the graph lives; `raw` is valid to write; no flags.
        let result = unsafe { api::cuGraphInstantiateWithFlags(&mut raw, self.raw, 0) };
        check("cuGraphInstantiateWithFlags", result)?;
        Ok(Graph { device: self.device.clone(), raw })
    }
}

impl Drop for Definition {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: made once and destroyed once.
            self.device.release(|| unsafe { api::cuGraphDestroy(self.raw) });
        }
    }
}
