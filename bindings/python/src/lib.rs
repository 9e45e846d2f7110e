//! The compiled part of the Python package `msda_attn`.
//!
//! `torch` registers operators whose kernels run without Python, and `xla` has the functions that
//! XLA calls for JAX. `raw` takes addresses, for NumPy and DLPack. The crate `msda-call` checks and
//! runs the calls of all.
#![deny(unsafe_code)]

mod error;
mod raw;
mod torch;
mod xla;

use std::path::PathBuf;

use msda_call::error::{Kind, Refused};
use msda_call::{cuda, threads};
use pyo3::prelude::*;

use crate::error::PyResult;

/// Registers the kernels with torch's dispatcher: paths of `libtorch_cpu` and `libtorch_cuda`.
#[pyfunction]
#[pyo3(signature = (cpu, cuda=None))]
fn register_torch(cpu: PathBuf, cuda: Option<PathBuf>) -> PyResult<()> {
    let registered = torch::register(&cpu, cuda.as_deref());
    Ok(registered.map_err(|message| Refused::new(Kind::Runtime, message))?)
}

/// A folder of Python packages in which NVRTC may be, such as `site-packages`.
#[pyfunction]
fn add_packages(folder: PathBuf) {
    msda_cuda::jit::add_packages(folder);
}

/// The instruction set that the CPU backend uses here.
#[pyfunction]
fn cpu_isa() -> String {
    msda::Cpu::new().isa().to_string()
}

/// The number of threads that the CPU backend uses where the framework does not say one.
#[pyfunction]
fn cpu_threads() -> PyResult<usize> {
    Ok(threads::default()?)
}

/// The GPUs: name, architecture, SMs, bytes of memory. An error says why there are none.
#[pyfunction]
fn cuda_devices() -> PyResult<Vec<(String, String, u32, usize)>> {
    let devices = cuda::devices()?;
    let describe = |device: &msda_cuda::driver::Device| {
        (device.name().to_owned(), device.arch().to_string(), device.sms(), device.total_memory())
    };
    Ok(devices.iter().map(describe).collect())
}

/// The newest CUDA version that the driver supports.
#[pyfunction]
fn cuda_driver() -> PyResult<(u32, u32)> {
    Ok(msda_cuda::driver::driver_version()?)
}

/// The compiler of the kernels: its name and its file.
#[pyfunction]
fn nvrtc() -> PyResult<(String, String)> {
    let nvrtc = msda_cuda::jit::nvrtc()?;
    Ok((nvrtc.name(), nvrtc.path().to_owned()))
}

/// How many plans the cache of CUDA calls holds.
#[pyfunction]
fn cuda_plans() -> usize {
    cuda::plans()
}

/// ONNX Runtime can load this module as a library of operators: a wheel needs no second file.
pub use msda_ort::RegisterCustomOps;

#[pymodule]
mod _native {
    /// The workloads of the benchmark: name and TOML text.
    #[pymodule_export]
    const WORKLOADS: [(&str, &str); msda_workloads::ALL.len()] = msda_workloads::ALL;

    #[pymodule_export]
    use super::raw::{check, cuda_level_key, explain, forward};
    #[pymodule_export]
    use super::xla::xla_handlers;
    #[pymodule_export]
    use super::{
        add_packages, cpu_isa, cpu_threads, cuda_devices, cuda_driver, cuda_plans, nvrtc, register_torch,
    };

    /// Behind the plus sign are the commit and the kind of device, as torch has them. NVIDIA has no
    /// driver for macOS.
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = if cfg!(target_os = "macos") {
        concat!(env!("CARGO_PKG_VERSION"), "+g", env!("MSDA_COMMIT"), ".cpu")
    } else {
        concat!(env!("CARGO_PKG_VERSION"), "+g", env!("MSDA_COMMIT"), ".cuda")
    };
}
