//! Kernels and clears that are queued together.

use std::ffi::c_void;
use std::ptr;

use msda::{Error, ErrorKind, Result};

use super::api;
use super::check::check;
use super::graph::{Definition, Graph};
use super::types::{CUDA_KERNEL_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS, CUgraph, CUgraphNode};
use super::{Device, Function, Launch, StreamHandle};

/// Kernels and clears that are queued by one call, which costs the host less than one kernel
/// launch. Each names the nodes that it runs after. Nodes that do not wait for each other may run
/// at the same time. It is a CUDA graph whose arguments can be changed. The driver makes launches
/// of one graph wait for each other, also on different streams: use it on one stream.
#[derive(Debug)]
pub struct LaunchGraph {
    /// Dropped before its nodes.
    graph: Graph,
    links: Vec<Link>,
    /// It owns the nodes.
    _nodes: Definition,
}

/// A part of a [`LaunchGraph`].
#[derive(Debug, Clone, Copy)]
pub enum Node<'a> {
    /// A kernel with one parameter.
    Kernel {
        /// The kernel.
        function: &'a Function,
        /// The shape of its launch.
        launch: &'a Launch,
        /// The address of its argument.
        arg: *mut c_void,
    },
    /// Device memory that becomes zero. Its address is set before the first launch.
    Clear {
        /// Its size; not 0.
        bytes: usize,
    },
}

/// A node of the graph, with its parameters.
#[derive(Debug, Clone, Copy)]
struct Link {
    node: CUgraphNode,
    params: Params,
}

#[derive(Debug, Clone, Copy)]
enum Params {
    /// Without the argument.
    Kernel(CUDA_KERNEL_NODE_PARAMS),
    /// The address is 0 until it is set.
    Clear(CUDA_MEMSET_NODE_PARAMS),
}

// SAFETY: a graph may be used from any thread, by one at a time: every change takes `&mut self`.
unsafe impl Send for LaunchGraph {}

impl LaunchGraph {
    /// A graph of nodes, each with the numbers of the nodes that it runs after.
    ///
    /// # Safety
    /// Each kernel has one parameter, and its node has the address of an argument. The functions
    /// outlive the graph.
    pub unsafe fn new(device: &Device, nodes: &[(&[usize], Node<'_>)]) -> Result<Self> {
        let _bound = device.bind_relaxed()?;
        let mut all = Definition::none(device);
        // SAFETY: the graph is valid to write; 0 is the only flag.
        check("cuGraphCreate", unsafe { api::cuGraphCreate(&mut all.raw, 0) })?;
        let mut links: Vec<Link> = Vec::new();
        for (after, node) in nodes {
            let node_of = |&number: &usize| {
                links.get(number).map(|link| link.node).ok_or_else(|| not_a("node before it", number))
            };
            let before = after.iter().map(node_of).collect::<Result<Vec<_>>>()?;
            // SAFETY: graph and context live here, and the nodes in `before` were added to it.
            // Kernel and argument are right by the caller's promise.
            links.push(unsafe { Link::add(device, all.raw, &before, node)? });
        }
        Ok(Self { graph: all.instantiate()?, links, _nodes: all })
    }

    /// Gives a kernel another argument, from the next launch on. Nodes are counted from 0.
    ///
    /// # Safety
    /// `arg` is the address of an argument of that kernel.
    pub unsafe fn set_argument(&mut self, node: usize, arg: *mut c_void) -> Result<()> {
        let Some(&Link { node, params: Params::Kernel(mut params) }) = self.links.get(node) else {
            return Err(not_a("kernel", node));
        };
        // The driver takes the function to be of the context that is current.
        let _bound = self.graph.device().bind()?;
        debug_assert!(!arg.is_null(), "a kernel's argument has an address");
        let mut arg = arg;
        params.kernelParams = &mut arg;
        // SAFETY: graph and node live, and the node is of the graph; the argument is copied.
        let result = unsafe { api::cuGraphExecKernelNodeSetParams_v2(self.graph.raw, node, &params) };
        check("cuGraphExecKernelNodeSetParams", result)
    }

    /// Gives a clear another address, from the next launch on. Nodes are counted from 0.
    pub fn set_address(&mut self, node: usize, address: u64) -> Result<()> {
        let Some(Link { node, params: Params::Clear(params) }) = self.links.get_mut(node) else {
            return Err(not_a("clear", node));
        };
        let new = CUDA_MEMSET_NODE_PARAMS { dst: address, ..*params };
        check_address(&new)?;
        let _bound = self.graph.device().bind()?;
        let context = self.graph.device().context();
        // SAFETY: graph and node live, and the node is of the graph. Nothing is written before a
        // launch.
        let result = unsafe { api::cuGraphExecMemsetNodeSetParams(self.graph.raw, *node, &new, context) };
        check("cuGraphExecMemsetNodeSetParams", result)?;
        *params = new;
        Ok(())
    }

    /// Queues all of it.
    ///
    /// # Safety
    /// As for a launch of each kernel and a fill of each clear, with the argument or address that
    /// it was given last. `stream` does not capture a graph.
    pub unsafe fn launch(&mut self, stream: StreamHandle<'_>) -> Result<()> {
        for link in &self.links {
            if let Params::Clear(params) = &link.params {
                check_address(params)?;
            }
        }
        // SAFETY: every clear has an address. The stream does not capture and kernels stay within
        // their memory, by the caller's promise.
        unsafe { self.graph.launch(stream) }
    }
}

impl Link {
    /// Adds a node to a graph, after the nodes before it.
    ///
    /// # Safety
    /// As for [`LaunchGraph::new`]. The graph lives, the nodes before it are of the graph, and the
    /// context is current.
    unsafe fn add(device: &Device, graph: CUgraph, before: &[CUgraphNode], node: &Node<'_>) -> Result<Self> {
        let (list, count, mut added) = (before.as_ptr(), before.len(), ptr::null_mut());
        let params = match *node {
            Node::Kernel { function, launch, mut arg } => {
                debug_assert!(!arg.is_null(), "a kernel's argument has an address");
                let mut params = function.node(launch)?;
                params.kernelParams = &mut arg;
                // SAFETY: graph and node live, the parameters are complete, the argument is copied.
                let result = unsafe { api::cuGraphAddKernelNode_v2(&mut added, graph, list, count, &params) };
                check("cuGraphAddKernelNode", result)?;
                if launch.has_clusters() {
                    let cluster = launch.cluster_attribute();
                    // SAFETY: the node lives; the value is of that attribute.
                    let result =
                        unsafe { api::cuGraphKernelNodeSetAttribute(added, cluster.id, &cluster.value) };
                    check("cuGraphKernelNodeSetAttribute", result)?;
                }
                params.kernelParams = ptr::null_mut();
                Params::Kernel(params)
            }
            Node::Clear { bytes } => {
                debug_assert!(bytes > 0, "a clear has bytes");
                let params = clear(bytes);
                // The driver wants memory of the context, and takes any size later.
                let first = CUDA_MEMSET_NODE_PARAMS { dst: device.placeholder()?, width: 1, ..params };
                // SAFETY: graph and node live, the parameters are complete. Nothing is written
                // before a launch.
                let result = unsafe {
                    api::cuGraphAddMemsetNode(&mut added, graph, list, count, &first, device.context())
                };
                check("cuGraphAddMemsetNode", result)?;
                Params::Clear(params)
            }
        };
        Ok(Self { node: added, params })
    }
}

/// One row of words where the size allows it, else of bytes.
fn clear(bytes: usize) -> CUDA_MEMSET_NODE_PARAMS {
    let element = if bytes.is_multiple_of(4) { 4 } else { 1 };
    CUDA_MEMSET_NODE_PARAMS {
        dst: 0,
        pitch: bytes,
        value: 0,
        elementSize: element,
        width: bytes / element as usize,
        height: 1,
    }
}

fn check_address(params: &CUDA_MEMSET_NODE_PARAMS) -> Result<()> {
    if params.dst != 0 && params.dst.is_multiple_of(u64::from(params.elementSize)) {
        return Ok(());
    }
    let got = format!("{:#x}", params.dst);
    let expected = format!("device memory at a multiple of {}", params.elementSize);
    Err(Error::new(ErrorKind::Shape, "address of a clear", got, expected))
}

fn not_a(kind: &str, node: usize) -> Error {
    let expected = format!("the number of a {kind}");
    Error::new(ErrorKind::Shape, "node of a launch graph", node, expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clears_are_rows_of_words_or_bytes() {
        for (bytes, element, width) in [(64, 4, 16), (4, 4, 1), (6, 1, 6), (1, 1, 1)] {
            let params = clear(bytes);
            assert_eq!((params.elementSize, params.width, params.height), (element, width, 1), "{bytes}");
            let at = |dst| check_address(&CUDA_MEMSET_NODE_PARAMS { dst, ..params });
            assert!(at(0).is_err() && at(512).is_ok(), "{bytes}");
            assert_eq!(at(514).is_ok(), element == 1, "{bytes}");
        }
    }
}
