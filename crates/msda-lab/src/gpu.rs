//! What the GPU is and how it stands, asked of its driver. Without a driver there is nothing to say.

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};

use crate::record::{Clocks, Gpu, GpuState};

/// The GPU that CUDA programs see first, and how it stands now.
pub fn describe() -> Option<Gpu> {
    let nvml = Nvml::init().ok()?;
    let device = first(&nvml).ok()?;
    let opened = msda_cuda::driver::Device::open(0).ok();
    let cuda = nvml.sys_cuda_driver_version().unwrap_or(0);
    Some(Gpu {
        name: device.name().ok()?,
        driver: nvml.sys_driver_version().unwrap_or_default(),
        cuda: format!("{}.{}", cuda_driver_version_major(cuda), cuda_driver_version_minor(cuda)),
        memory_bytes: device.memory_info().map_or(0, |m| m.total),
        sms: multiprocessors(&device),
        shared_per_block: opened.as_ref().map(|gpu| gpu.shared_per_block() as u64),
        l2_bytes: opened.as_ref().map(|gpu| gpu.l2_bytes() as u64),
        before: Some(read(&device)),
        after: None,
    })
}

/// How that GPU stands now.
pub fn state() -> Option<GpuState> {
    let nvml = Nvml::init().ok()?;
    Some(read(&first(&nvml).ok()?))
}

/// The highest clock of the multiprocessors of the GPU that is plugged in there, in Hz.
pub fn highest_clock(pci_bus_id: &str) -> Option<f64> {
    let nvml = Nvml::init().ok()?;
    let device = nvml.device_by_pci_bus_id(pci_bus_id).ok()?;
    device.max_clock_info(Clock::SM).ok().map(|mhz| f64::from(mhz) * 1e6)
}

/// The GPU that CUDA calls the first: the two number them differently, so it is found by where it is plugged in.
fn first(nvml: &Nvml) -> Result<Device<'_>, NvmlError> {
    match msda_cuda::driver::Device::open(0) {
        Ok(device) => nvml.device_by_pci_bus_id(device.pci_bus_id()),
        Err(_) => nvml.device_by_index(0),
    }
}

fn read(device: &Device<'_>) -> GpuState {
    let clock = |which| device.clock_info(which).ok();
    GpuState {
        clocks_mhz: Clocks { sm: clock(Clock::SM), memory: clock(Clock::Memory) },
        temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
        power_w: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
    }
}

/// The driver counts arithmetic units; how many of them a multiprocessor has depends on its generation.
fn multiprocessors(device: &Device<'_>) -> Option<u32> {
    let generation = device.cuda_compute_capability().ok()?;
    let units = match (generation.major, generation.minor) {
        (6, 0) | (7, _) | (8, 0) => 64,
        (6 | 8.., _) => 128,
        _ => return None,
    };
    Some(device.num_cores().ok()? / units)
}

#[cfg(test)]
mod tests {
    /// With or without a GPU: an answer or none, never a panic.
    #[test]
    fn asking_is_harmless() {
        let gpu = super::describe();
        assert_eq!(gpu.is_some(), super::state().is_some());
        assert!(gpu.is_none_or(|gpu| !gpu.name.is_empty() && gpu.memory_bytes > 0));
    }
}
