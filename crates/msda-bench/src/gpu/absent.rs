//! A build without CUDA: no GPU is found, and GPU engines are refused.

use anyhow::{Result, anyhow};
use msda::Backend;

use crate::engines::Engine;
use crate::record::{Ceiling, Gpu, GpuState};

fn refused<T>(what: &str) -> Result<T> {
    Err(anyhow!("{what}: this build has no CUDA support\nhint: build msda with the feature `cuda`"))
}

/// Number of GPUs.
pub fn count() -> usize {
    0
}

/// The GPU with this number.
pub fn describe(_ordinal: usize) -> Option<Gpu> {
    None
}

/// Clocks, temperature and power of the GPU now.
pub fn state(_ordinal: usize) -> Option<GpuState> {
    None
}

/// Refuses a name that no engine on a GPU has. This build knows no kernels.
pub fn check(_name: &str) -> Result<()> {
    Ok(())
}

/// Why there is no GPU, in a few words.
pub fn missing(_why: &anyhow::Error) -> String {
    "this build has no CUDA support".into()
}

/// Opens the engine called `name`.
pub fn open(name: &str) -> Result<Box<dyn Engine>> {
    refused(&format!("engine {name}"))
}

/// Opens the backend called `name`.
pub fn backend(name: &str) -> Result<Box<dyn Backend + Send>> {
    refused(&format!("engine {name}"))
}

/// One backend per seed, each with other kernel parameters.
pub fn sweeps(_seeds: &[u64]) -> Result<Vec<Box<dyn Backend + Send>>> {
    refused("engines on the GPU")
}

/// The ceilings of the GPU with this number.
pub fn ceilings_of(_ordinal: usize) -> Result<Vec<Ceiling>> {
    refused("ceilings of the GPU")
}
