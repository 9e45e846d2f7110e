//! Streams.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

use msda::Result;

use super::Device;
use super::api;
use super::check::check;
use super::types::{CUgraphNode, CUstream};

/// Work on a device that runs in order. Work on different streams may overlap. It does not wait for
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
        /// The stream does not wait for the default stream.
        const NON_BLOCKING: u32 = 1;
        let _bound = device.bind_relaxed()?;
        let mut raw = ptr::null_mut();
        // SAFETY: a context is current; `raw` is valid to write.
        check("cuStreamCreate", unsafe { api::cuStreamCreate(&mut raw, NON_BLOCKING) })?;
        Ok(Self { device: device.clone(), raw })
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its handle, for calls that queue work.
    pub fn handle(&self) -> StreamHandle<'_> {
        StreamHandle { raw: self.raw, life: PhantomData }
    }

    /// Waits until all work on it is done.
    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.device.bind_relaxed()?;
        // SAFETY: the stream lives.
        check("cuStreamSynchronize", unsafe { api::cuStreamSynchronize(self.raw) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream was made by `new` and is destroyed once; queued work still finishes.
        self.device.release(|| unsafe { api::cuStreamDestroy_v2(self.raw) });
    }
}

/// Work in a graph that is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Captured(CUgraphNode);

/// The driver's handle of the per-thread default stream.
const PER_THREAD: usize = 2;

/// A borrowed stream: a [`Stream`], torch's current stream, or the default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamHandle<'a> {
    raw: CUstream,
    life: PhantomData<&'a Stream>,
}

// SAFETY: streams may be used from any thread.
unsafe impl Send for StreamHandle<'_> {}
// SAFETY: as above.
unsafe impl Sync for StreamHandle<'_> {}

impl<'a> StreamHandle<'a> {
    /// The default stream of the device it is used with.
    pub const DEFAULT: StreamHandle<'static> = StreamHandle { raw: ptr::null_mut(), life: PhantomData };

    /// The stream of a `CUstream` or `cudaStream_t`; null is the default stream.
    ///
    /// # Safety
    /// `raw` is such a handle, of the device that it is used with, and the stream outlives `'a`.
    pub const unsafe fn from_raw(raw: *mut c_void) -> Self {
        Self { raw: raw.cast(), life: PhantomData }
    }

    /// The `CUstream` itself, for other libraries.
    pub const fn raw(self) -> *mut c_void {
        self.raw.cast()
    }

    /// Whether it captures a graph: work is recorded, and not run. `device` is the device of the
    /// stream.
    pub fn is_capturing(self, device: &Device) -> Result<bool> {
        let _bound = device.bind()?;
        let mut status = 0;
        // SAFETY: the stream lives; `status` is valid to write.
        check("cuStreamIsCapturing", unsafe { api::cuStreamIsCapturing(self.raw, &mut status) })?;
        Ok(status != 0)
    }

    /// The work that the next work in a capture will wait for. The stream captures a graph.
    pub(crate) fn captured(self, device: &Device) -> Result<Vec<Captured>> {
        let _bound = device.bind()?;
        let (mut status, mut id, mut graph, mut list, mut count) =
            (0, 0, ptr::null_mut(), ptr::null::<CUgraphNode>(), 0);
        // SAFETY: the stream lives; the rest is valid to write.
        let result = unsafe {
            api::cuStreamGetCaptureInfo_v2(self.raw, &mut status, &mut id, &mut graph, &mut list, &mut count)
        };
        check("cuStreamGetCaptureInfo", result)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: the driver's list is valid until the next call with the stream.
        Ok(unsafe { std::slice::from_raw_parts(list, count) }.iter().map(|&node| Captured(node)).collect())
    }

    /// Makes the next work in a capture wait for this work, and for no other. The stream captures
    /// the graph that the work is of.
    pub(crate) fn wait_for_captured(self, device: &Device, work: &[Captured]) -> Result<()> {
        /// Replaces the list.
        const SET: u32 = 1;
        let _bound = device.bind()?;
        let mut nodes: Vec<CUgraphNode> = work.iter().map(|captured| captured.0).collect();
        // SAFETY: the stream lives and captures the graph of these nodes.
        let result =
            unsafe { api::cuStreamUpdateCaptureDependencies(self.raw, nodes.as_mut_ptr(), nodes.len(), SET) };
        check("cuStreamUpdateCaptureDependencies", result)
    }

    /// Whether it is the per-thread default stream: another stream in every thread.
    pub fn is_per_thread(self) -> bool {
        self.raw.addr() == PER_THREAD
    }

    pub(super) const fn cu(self) -> CUstream {
        self.raw
    }
}
