//! Everything that needs an NVIDIA GPU. Its driver is loaded at run time: without it there is no
//! GPU, and engines are refused with a reason.

pub mod cubin;
pub mod disassembly;
mod engine;
pub mod kernels;
pub mod measure;
mod nvml;
pub mod tune;

use anyhow::Result;
use msda::Backend;
use msda_cuda::driver::{Device, driver_problem};

use crate::engines::Engine;
use crate::record::{self, Ceiling};
use crate::work::{COPY, GATHER_L1};

pub use self::engine::{Cuda, backend, check};
pub use self::nvml::{describe, highest_clock, state};

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
    let rates = [(COPY, Some(measure::copy(device)?)), (GATHER_L1, l1)];
    let ceiling = |(name, rate): (&str, Option<f64>)| {
        Some(Ceiling { name: name.into(), device: record::Device::Cuda, threads: 1, rate: rate? / 1e9 })
    };
    Ok(rates.into_iter().filter_map(ceiling).collect())
}

#[cfg(test)]
mod tests {
    /// With or without a GPU: an answer or none, never a panic.
    #[test]
    fn a_missing_gpu_is_no_panic() {
        let gpu = super::describe(0);
        assert_eq!(gpu.is_some(), super::state(0).is_some());
        assert!(super::describe(1000).is_none() && super::state(1000).is_none());
        assert!(super::ceilings_of(1000).is_err() && super::open("cuda@1000").is_err());
        assert!(gpu.is_none_or(|gpu| !gpu.name.is_empty() && gpu.memory_bytes > 0));
    }
}
