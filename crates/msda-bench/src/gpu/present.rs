//! A build with CUDA: the functions that the rest of the crate uses.

use anyhow::Result;
use msda::Backend;
use msda_cuda::driver::{Device, driver_problem};

use crate::engines::Engine;
use crate::record::{self, Ceiling};
use crate::work::{COPY, GATHER_L1};

pub use super::engine::{Cuda, backend, check};
pub use super::nvml::{describe, highest_clock, state};

/// Number of GPUs.
pub fn count() -> usize {
    Device::count().unwrap_or(0)
}

/// Why there is no GPU, in a few words.
pub fn missing(why: &anyhow::Error) -> String {
    if driver_problem().is_some() {
        return "no NVIDIA driver was found".into();
    }
    why.root_cause().to_string().lines().next().unwrap_or_default().to_owned()
}

/// Opens the engine called `name`.
pub fn open(name: &str) -> Result<Box<dyn Engine>> {
    Ok(Box::new(Cuda::open(name)?))
}

/// One backend per seed, each with other kernel parameters.
pub fn sweeps(seeds: &[u64]) -> Result<Vec<Box<dyn Backend + Send>>> {
    let gpu = Device::open(0)?;
    Ok(seeds.iter().map(|&seed| Box::new(msda_cuda::Cuda::sweep(&gpu, seed)) as _).collect())
}

/// The ceilings of the GPU with this number.
pub fn ceilings_of(ordinal: usize) -> Result<Vec<Ceiling>> {
    ceilings(&Device::open(ordinal)?)
}

/// The ceilings of a GPU: the rate of a copy, measured, and the rate of the L1 caches at the
/// highest clock, computed.
pub fn ceilings(device: &Device) -> Result<Vec<Ceiling>> {
    /// Bytes that the L1 cache of an SM delivers per cycle.
    const L1_BYTES_PER_CYCLE: f64 = 128.0;
    let l1 = highest_clock(&device.pci_bus_id()).map(|hz| f64::from(device.sms()) * L1_BYTES_PER_CYCLE * hz);
    let rates = [(COPY, Some(super::measure::copy(device)?)), (GATHER_L1, l1)];
    let ceiling = |(name, rate): (&str, Option<f64>)| {
        Some(Ceiling { name: name.into(), device: record::Device::Cuda, threads: 1, rate: rate? / 1e9 })
    };
    Ok(rates.into_iter().filter_map(ceiling).collect())
}
