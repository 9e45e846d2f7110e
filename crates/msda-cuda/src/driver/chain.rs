//! Kernels that are queued together.

use std::ffi::c_void;
use std::{mem, ptr};

use cudarc::driver::sys::{self, CUDA_KERNEL_NODE_PARAMS, CUgraphExec, CUgraphNode, CUstreamCaptureMode};
use msda::Result;

use super::check::check;
use super::graph::Recorded;
use super::{Device, Function, Launch, StreamHandle};

/// Kernels that run one after another and are queued by one call, which costs the host less than to queue one of them by
/// itself. The driver lets launches of a chain wait for each other, on whatever streams they are: use it on one.
#[derive(Debug)]
pub struct Chain {
    device: Device,
    raw: CUgraphExec,
    links: Vec<Link>,
    /// Whose the nodes are.
    graph: Recorded,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    node: CUgraphNode,
    /// All but the arguments.
    params: CUDA_KERNEL_NODE_PARAMS,
}

// SAFETY: a chain may be used from any thread, by one at a time: what changes it takes `&mut self`.
unsafe impl Send for Chain {}

impl Chain {
    /// Makes the kernels ready, each with an argument that it can be queued with.
    ///
    /// # Safety
    /// Each kernel has one parameter, of which `args` has the address. The functions outlive the chain.
    pub unsafe fn new(kernels: &[(&Function, &Launch)], args: &mut [*mut c_void]) -> Result<Self> {
        assert!(kernels.len() == args.len() && !kernels.is_empty(), "an argument for each kernel");
        let device = kernels[0].0.module().device();
        let _bound = device.bind()?;
        let _unhindered = Unhindered::new();
        let mut graph = Recorded(ptr::null_mut());
        // SAFETY: the graph is valid to write; 0 is the only flag.
        check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut graph.0, 0) })?;
        let mut links: Vec<Link> = Vec::new();
        for ((function, launch), arg) in kernels.iter().zip(args) {
            let mut params = function.node(launch)?;
            params.kernelParams = arg;
            let mut node = ptr::null_mut();
            let before: Vec<CUgraphNode> = links.last().iter().map(|link| link.node).collect();
            // SAFETY: graph and nodes live, the parameters are complete, the argument is copied.
            let result = unsafe {
                sys::cuGraphAddKernelNode_v2(&mut node, graph.0, before.as_ptr(), before.len(), &params)
            };
            check("cuGraphAddKernelNode", result)?;
            if launch.has_clusters() {
                let cluster = launch.cluster_attribute();
                // SAFETY: the node lives; the value is of that attribute.
                let result = unsafe { sys::cuGraphKernelNodeSetAttribute(node, cluster.id, &cluster.value) };
                check("cuGraphKernelNodeSetAttribute", result)?;
            }
            params.kernelParams = ptr::null_mut();
            links.push(Link { node, params });
        }
        let mut raw = ptr::null_mut();
        // SAFETY: the graph lives; `raw` is valid to write; no flags.
        let result = unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, graph.0, 0) };
        check("cuGraphInstantiate", result)?;
        Ok(Self { device: device.clone(), raw, links, graph })
    }

    /// Gives a kernel another argument, from the next launch on.
    ///
    /// # Safety
    /// `arg` is the address of an argument of that kernel.
    pub unsafe fn set(&mut self, kernel: usize, arg: *mut c_void) -> Result<()> {
        // The driver takes the function to be of the context that is current.
        let _bound = self.device.bind()?;
        let Link { node, mut params } = self.links[kernel];
        let mut arg = arg;
        params.kernelParams = &mut arg;
        // SAFETY: chain and node live, and the node is of the chain; the argument is copied.
        let result = unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.raw, node, &params) };
        check("cuGraphExecKernelNodeSetParams", result)
    }

    /// Queues all of them.
    ///
    /// # Safety
    /// As for a launch of each with the argument that it was given last. `stream` does not record a graph.
    pub unsafe fn launch(&mut self, stream: StreamHandle<'_>) -> Result<()> {
        let _bound = self.device.bind()?;
        // SAFETY: chain and stream live; the rest is the caller's promise.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.raw, stream.cu()) })
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        let graph = mem::replace(&mut self.graph, Recorded(ptr::null_mut()));
        self.device.release(|| {
            let _unhindered = Unhindered::new();
            // SAFETY: made by `new` and destroyed once, before its nodes; what is running of it still finishes.
            let result = unsafe { sys::cuGraphExecDestroy(self.raw) };
            drop(graph);
            result
        });
    }
}

/// While it lives, what this thread does is no reason for the driver to break off a recording that someone else is making.
struct Unhindered(CUstreamCaptureMode);

impl Unhindered {
    fn new() -> Self {
        Self(exchange(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))
    }
}

impl Drop for Unhindered {
    fn drop(&mut self) {
        exchange(self.0);
    }
}

/// Sets the thread's mode and returns the one before. It cannot fail for modes that there are.
fn exchange(mut mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    // SAFETY: `mode` is valid to read and write.
    let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    mode
}
