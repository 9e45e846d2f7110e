//! Compiled kernels and their launches.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use msda::{Error, ErrorKind, Result};

use super::api;
use super::check::{NOT_FOUND, check};
use super::types::{
    CLUSTER_DIMENSION, CUDA_KERNEL_NODE_PARAMS, CUfunction, CUlaunchAttribute, CUlaunchConfig, CUmodule,
};
use super::{Device, StreamHandle};

/// Blocks that a cluster may have on every GPU with clusters. A function must opt in to more.
const PORTABLE_CLUSTER: u32 = 8;

/// Compiled kernels on a device. Clones are cheap. It is unloaded with the last clone and the last
/// of its functions.
#[derive(Debug, Clone)]
pub struct Module(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    device: Device,
    raw: CUmodule,
}

// SAFETY: a module may be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver serialises calls on it.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the module was loaded by `Module::new` and is unloaded once, after its last
        // function.
        self.device.release(|| unsafe { api::cuModuleUnload(self.raw) });
    }
}

impl Module {
    pub(super) fn new(device: &Device, cubin: &[u8]) -> Result<Self> {
        if !is_complete(cubin) {
            let got = format!("{} bytes", cubin.len());
            return Err(Error::new(ErrorKind::Format, "cuModuleLoadData", got, "a complete cubin"));
        }
        let _bound = device.bind_relaxed()?;
        let mut raw = ptr::null_mut();
        // SAFETY: a context is current; `raw` is valid to write; the image has the length that its
        // header says.
        check("cuModuleLoadData", unsafe { api::cuModuleLoadData(&mut raw, cubin.as_ptr().cast()) })?;
        Ok(Self(Arc::new(Inner { device: device.clone(), raw })))
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The kernel called `name`.
    pub fn function(&self, name: &str) -> Result<Function> {
        let missing = |got: &str| Error::new(ErrorKind::Device, "kernel", got, "a kernel of the module");
        let text = CString::new(name).map_err(|_| missing("a name with a zero byte"))?;
        let _bound = self.device().bind_relaxed()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the module lives; `raw` is valid to write; `text` is terminated.
        let result = unsafe { api::cuModuleGetFunction(&mut raw, self.0.raw, text.as_ptr()) };
        if result == NOT_FOUND {
            return Err(missing(name).hint("kernels are looked up by name: declare them extern \"C\""));
        }
        check("cuModuleGetFunction", result)?;
        Ok(Function { module: self.clone(), raw, large_clusters: AtomicBool::new(false) })
    }
}

/// Whether these bytes are an ELF file that is not cut off: the driver is not told their length.
fn is_complete(image: &[u8]) -> bool {
    let number = |at: usize, bytes: usize| {
        image[at..at + bytes].iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte))
    };
    // The positions of a table's offset, entry size and entry count in the header.
    let inside = |begin: usize, size: usize, entries: usize| {
        let length = number(size, 2) * number(entries, 2);
        number(begin, 8).checked_add(length).is_some_and(|end| end <= image.len() as u64)
    };
    image.len() >= 64 && image.starts_with(b"\x7fELF\x02\x01") && inside(32, 54, 56) && inside(40, 58, 60)
}

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Blocks per grid.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub shared: u32,
    /// Blocks per cluster; all ones for a launch without clusters.
    pub cluster: [u32; 3],
}

impl Launch {
    /// A launch without dynamic shared memory and without clusters.
    pub const fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self { grid, block, shared: 0, cluster: [1; 3] }
    }

    /// Calls `with` with the driver's description of this launch, which points to local variables.
    #[inline]
    fn describe<R>(&self, stream: StreamHandle<'_>, with: impl FnOnce(&CUlaunchConfig) -> R) -> R {
        with(&CUlaunchConfig {
            grid: self.grid,
            block: self.block,
            sharedMemBytes: self.shared,
            hStream: stream.cu(),
            attrs: &self.cluster_attribute(),
            numAttrs: u32::from(self.has_clusters()),
        })
    }

    /// Whether its blocks are in clusters.
    #[inline]
    pub(super) fn has_clusters(&self) -> bool {
        self.cluster != [1; 3]
    }

    /// The launch attribute with its cluster size.
    #[inline]
    pub(super) fn cluster_attribute(&self) -> CUlaunchAttribute {
        let mut value = [0; 16];
        value[..3].copy_from_slice(&self.cluster);
        CUlaunchAttribute { id: CLUSTER_DIMENSION, pad: 0, value }
    }
}

/// Attributes of a function, as in cuda.h.
const SHARED_SIZE_BYTES: c_uint = 1;
const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_uint = 8;
const PREFERRED_SHARED_MEMORY_CARVEOUT: c_uint = 9;
const NON_PORTABLE_CLUSTER_SIZE_ALLOWED: c_uint = 14;

/// A kernel. It keeps its module loaded.
#[derive(Debug)]
pub struct Function {
    module: Module,
    raw: CUfunction,
    /// Whether it opted in to clusters of more than the portable number of blocks.
    large_clusters: AtomicBool,
}

// SAFETY: a function may be used from any thread, and lives as long as its module.
unsafe impl Send for Function {}
// SAFETY: as above; the driver serialises calls on it.
unsafe impl Sync for Function {}

impl Function {
    /// Its module.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Bytes of static shared memory per block.
    pub fn shared_bytes(&self) -> Result<u32> {
        let _bound = self.module.device().bind_relaxed()?;
        let mut bytes: c_int = 0;
        // SAFETY: the function lives; `bytes` is valid to write.
        let result = unsafe { api::cuFuncGetAttribute(&mut bytes, SHARED_SIZE_BYTES, self.raw) };
        check("cuFuncGetAttribute", result)?;
        Ok(u32::try_from(bytes).unwrap_or(0))
    }

    /// Allows launches with up to `bytes` of dynamic shared memory per block; the default is 48
    /// KiB.
    pub fn allow_shared(&self, bytes: u32) -> Result<()> {
        self.set(MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes)
    }

    /// Prefers this percentage of the L1 as shared memory while the kernel runs. The driver may
    /// ignore it.
    pub fn prefer_shared(&self, percent: u32) -> Result<()> {
        self.set(PREFERRED_SHARED_MEMORY_CARVEOUT, percent)
    }

    /// Blocks of `threads` threads that are resident on an SM at once.
    pub fn occupancy(&self, threads: u32, dynamic_shared: u32) -> Result<u32> {
        let _bound = self.module.device().bind_relaxed()?;
        let mut blocks: c_int = 0;
        // SAFETY: the function lives; `blocks` is valid to write.
        let result = unsafe {
            api::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                self.raw,
                c_int::try_from(threads).unwrap_or(c_int::MAX),
                dynamic_shared as usize,
            )
        };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", result)?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Clusters of such a launch that are resident on the device at once.
    pub fn max_clusters(&self, at: &Launch) -> Result<u32> {
        let _bound = self.module.device().bind_relaxed()?;
        self.allow_clusters(at)?;
        let mut clusters: c_int = 0;
        let result = at.describe(StreamHandle::DEFAULT, |config| {
            let config = CUlaunchConfig { numAttrs: 1, ..*config };
            // SAFETY: the function lives; `clusters` is valid to write; `config` has the one
            // attribute.
            unsafe { api::cuOccupancyMaxActiveClusters(&mut clusters, self.raw, &config) }
        });
        check("cuOccupancyMaxActiveClusters", result)?;
        Ok(u32::try_from(clusters).unwrap_or(0))
    }

    /// Queues the kernel on `stream`. Allocates nothing.
    ///
    /// # Safety
    /// - `args` has a pointer to a value for each parameter of the kernel, in order and of its
    ///   type.
    /// - The kernel stays within the memory that its arguments name.
    /// - Until the kernel is done, that memory and the module live, and nobody else uses the memory
    ///   in a conflicting way.
    #[inline]
    pub unsafe fn launch(
        &self,
        at: &Launch,
        stream: StreamHandle<'_>,
        args: &mut [*mut c_void],
    ) -> Result<()> {
        debug_assert!(args.iter().all(|arg| !arg.is_null()), "every parameter has a value");
        debug_assert!(at.grid.iter().chain(&at.block).all(|&n| n > 0), "a launch has threads: {at:?}");
        let _bound = self.module.device().bind()?;
        self.allow_clusters(at)?;
        let result = at.describe(stream, |config| {
            // SAFETY: function and stream live, `config` is complete. The arguments fit the kernel,
            // which stays within their memory, by the caller's promise.
            unsafe { api::cuLaunchKernelEx(config, self.raw, args.as_mut_ptr(), ptr::null_mut()) }
        });
        check("cuLaunchKernelEx", result)
    }

    /// The parameters of a graph node that launches it, without its argument.
    pub(super) fn node(&self, at: &Launch) -> Result<CUDA_KERNEL_NODE_PARAMS> {
        self.allow_clusters(at)?;
        Ok(CUDA_KERNEL_NODE_PARAMS {
            func: self.raw,
            grid: at.grid,
            block: at.block,
            sharedMemBytes: at.shared,
            kernelParams: ptr::null_mut(),
            others: [ptr::null_mut(); 3],
        })
    }

    /// Opts in, once, to clusters of more than the portable number of blocks, when the launch has
    /// them.
    #[inline]
    fn allow_clusters(&self, at: &Launch) -> Result<()> {
        let blocks = at.cluster.iter().fold(1u32, |blocks, &extent| blocks.saturating_mul(extent));
        if blocks > PORTABLE_CLUSTER && !self.large_clusters.load(Ordering::Relaxed) {
            self.set(NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)?;
            self.large_clusters.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn set(&self, attribute: c_uint, number: u32) -> Result<()> {
        let _bound = self.module.device().bind_relaxed()?;
        let number = c_int::try_from(number).unwrap_or(c_int::MAX);
        // SAFETY: the function lives; the driver checks the number.
        check("cuFuncSetAttribute", unsafe { api::cuFuncSetAttribute(self.raw, attribute, number) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_off_is_refused() {
        let mut elf = vec![0; 64 + 2 * 56 + 3 * 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (elf[32], elf[40], elf[54], elf[56], elf[58], elf[60]) = (64, 176, 56, 2, 64, 3);
        assert!(is_complete(&elf));
        for length in [0, 5, 63, 64, elf.len() - 1] {
            assert!(!is_complete(&elf[..length]), "{length}");
        }
        elf[0] = b'.';
        assert!(!is_complete(&elf));
    }

    #[test]
    fn compiled_cubins_are_complete() {
        use crate::jit;
        if let Err(why) = jit::nvrtc() {
            eprintln!("skipped: {why}");
            return;
        }
        for arch in ["sm_80", "sm_90a", "sm_120a"] {
            let unit =
                jit::Unit::new("selftest.cu", "complete", arch.parse().unwrap()).define("ELEMENT", "float");
            let cubin = jit::compile(&unit).unwrap().cubin;
            assert!(is_complete(&cubin), "{arch}");
            assert!(!is_complete(&cubin[..cubin.len() - 1]), "{arch}: the tables are at the end");
        }
    }
}
