//! The driver's functions, declared as in cuda.h, with plain numbers for enums.
#![allow(non_snake_case, clippy::too_many_arguments)]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use libloading::Library;

use super::types::*;

/// A result code. 0 is success.
pub(super) type Code = u32;

/// Declares a table of functions, and one function per entry that calls through the table.
macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {
        struct Table {
            $($name: unsafe extern "C" fn($($kind),*) -> Code,)*
        }

        impl Table {
            /// # Safety
            /// The library is NVIDIA's driver and is never unloaded.
            unsafe fn find(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of cuda.h; the library stays loaded, as the caller
                // promises.
                Ok(unsafe { Self { $($name: *library.get(stringify!($name))?,)* } })
            }
        }

        $(
            /// # Safety
            /// As the driver's documentation of this function says.
            #[inline]
            pub(super) unsafe fn $name($($argument: $kind),*) -> Code {
                match TABLE.get() {
                    // SAFETY: NVIDIA's driver has a function of that name and type; the arguments
                    // are right by the caller's promise.
                    Some(table) => unsafe { (table.$name)($($argument),*) },
                    None => super::check::NOT_INITIALIZED,
                }
            }
        )*
    };
}

static TABLE: OnceLock<Table> = OnceLock::new();

/// Looks up every function. Until then each of them returns `CUDA_ERROR_NOT_INITIALIZED`.
///
/// # Safety
/// The library is NVIDIA's driver and is never unloaded.
pub(super) unsafe fn load(library: &Library) -> Result<(), libloading::Error> {
    if TABLE.get().is_none() {
        // SAFETY: it is NVIDIA's driver and stays loaded, so functions of these names have these
        // types and can always be called.
        let _ = TABLE.set(unsafe { Table::find(library)? });
    }
    Ok(())
}

functions! {
    cuGetErrorName(code: Code, name: *mut *const c_char);
    cuGetErrorString(code: Code, text: *mut *const c_char);
    cuInit(flags: c_uint);

    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetAttribute(number: *mut c_int, attribute: c_uint, device: CUdevice);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    cuDeviceGetPCIBusId(name: *mut c_char, length: c_int, device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);

    cuCtxGetCurrent(context: *mut CUcontext);
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuCtxPushCurrent_v2(context: CUcontext);
    cuCtxSynchronize();

    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    // By its first name: drivers before 12.8 lack the second.
    cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);

    cuFuncGetAttribute(number: *mut c_int, attribute: c_uint, function: CUfunction);
    cuFuncSetAttribute(function: CUfunction, attribute: c_uint, number: c_int);
    cuLaunchKernelEx(
        config: *const CUlaunchConfig,
        function: CUfunction,
        args: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    cuModuleUnload(module: CUmodule);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        function: CUfunction,
        threads: c_int,
        dynamic_shared: usize,
    );
    cuOccupancyMaxActiveClusters(clusters: *mut c_int, function: CUfunction, config: *const CUlaunchConfig);

    cuGraphAddKernelNode_v2(
        node: *mut CUgraphNode,
        graph: CUgraph,
        dependencies: *const CUgraphNode,
        count: usize,
        params: *const CUDA_KERNEL_NODE_PARAMS,
    );
    cuGraphAddMemsetNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        dependencies: *const CUgraphNode,
        count: usize,
        params: *const CUDA_MEMSET_NODE_PARAMS,
        context: CUcontext,
    );
    cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
    cuGraphDestroy(graph: CUgraph);
    cuGraphExecDestroy(exec: CUgraphExec);
    cuGraphExecKernelNodeSetParams_v2(
        exec: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_KERNEL_NODE_PARAMS,
    );
    cuGraphExecMemsetNodeSetParams(
        exec: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_MEMSET_NODE_PARAMS,
        context: CUcontext,
    );
    cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    cuGraphKernelNodeSetAttribute(
        node: CUgraphNode,
        attribute: c_uint,
        value: *const [c_uint; 16],
    );
    cuGraphLaunch(exec: CUgraphExec, stream: CUstream);

    cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    cuMemsetD8Async(address: CUdeviceptr, byte: u8, bytes: usize, stream: CUstream);

    cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    cuStreamGetCaptureInfo_v2(
        stream: CUstream,
        status: *mut c_uint,
        id: *mut c_ulonglong,
        graph: *mut CUgraph,
        dependencies: *mut *const CUgraphNode,
        count: *mut usize,
    );
    cuStreamIsCapturing(stream: CUstream, status: *mut c_uint);
    cuStreamSynchronize(stream: CUstream);
    cuStreamUpdateCaptureDependencies(
        stream: CUstream,
        dependencies: *mut CUgraphNode,
        count: usize,
        flags: c_uint,
    );
    cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
}
