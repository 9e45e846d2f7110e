//! The types of cuda.h that the driver's functions take, under its names. What is an enum there is
//! a plain number here: a newer driver has values that older headers lack.
#![allow(non_snake_case)]

use std::ffi::{c_int, c_uint, c_void};

/// Something that only the driver looks into.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Opaque<const KIND: u8>([u8; 0]);

pub(super) type CUcontext = *mut Opaque<0>;
pub(super) type CUevent = *mut Opaque<1>;
pub(super) type CUfunction = *mut Opaque<2>;
pub(super) type CUgraph = *mut Opaque<3>;
pub(super) type CUgraphExec = *mut Opaque<4>;
pub(super) type CUgraphNode = *mut Opaque<5>;
pub(super) type CUmodule = *mut Opaque<6>;
pub(super) type CUstream = *mut Opaque<7>;
pub(super) type CUdevice = c_int;
pub(super) type CUdeviceptr = u64;

/// A launch attribute: the union of the values is 64 bytes, and begins at a multiple of 8.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct CUlaunchAttribute {
    pub(super) id: c_uint,
    pub(super) pad: c_uint,
    pub(super) value: [c_uint; 16],
}

/// The attribute whose value is the number of blocks per cluster, in three dimensions.
pub(super) const CLUSTER_DIMENSION: c_uint = 4;

#[derive(Debug)]
#[repr(C)]
pub(super) struct CUlaunchConfig {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) sharedMemBytes: c_uint,
    pub(super) hStream: CUstream,
    pub(super) attrs: *const CUlaunchAttribute,
    pub(super) numAttrs: c_uint,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct CUDA_KERNEL_NODE_PARAMS {
    pub(super) func: CUfunction,
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) sharedMemBytes: c_uint,
    pub(super) kernelParams: *mut *mut c_void,
    /// `extra`, `kern` and `ctx`: null.
    pub(super) others: [*mut c_void; 3],
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct CUDA_MEMSET_NODE_PARAMS {
    pub(super) dst: CUdeviceptr,
    pub(super) pitch: usize,
    pub(super) value: c_uint,
    pub(super) elementSize: c_uint,
    pub(super) width: usize,
    pub(super) height: usize,
}

/// How strictly a capture forbids calls that would disturb it.
pub(super) mod capture {
    pub(in super::super) const THREAD_LOCAL: u32 = 1;
    pub(in super::super) const RELAXED: u32 = 2;
}

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of};

    use super::*;

    /// Sizes and offsets of cuda.h on 64-bit systems.
    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!((size_of::<CUlaunchAttribute>(), align_of::<CUlaunchAttribute>()), (72, 8));
        assert_eq!(offset_of!(CUlaunchAttribute, value), 8);
        assert_eq!((size_of::<CUlaunchConfig>(), offset_of!(CUlaunchConfig, hStream)), (56, 32));
        let params = offset_of!(CUDA_KERNEL_NODE_PARAMS, kernelParams);
        assert_eq!((size_of::<CUDA_KERNEL_NODE_PARAMS>(), params), (72, 40));
        assert_eq!(
            (size_of::<CUDA_MEMSET_NODE_PARAMS>(), offset_of!(CUDA_MEMSET_NODE_PARAMS, width)),
            (40, 24)
        );
    }
}
