//! What the GPU is and how it stands, asked of its driver. Without a driver there is nothing to say.

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};

use crate::record::{Clocks, Gpu, GpuState};

/// A GPU by the number that CUDA programs know it by, and how it stands now.
pub fn describe(ordinal: usize) -> Option<Gpu> {
    let nvml = Nvml::init().ok()?;
    let device = find(&nvml, ordinal).ok()?;
    let opened = msda_cuda::driver::Device::open(ordinal).ok();
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
pub fn state(ordinal: usize) -> Option<GpuState> {
    let nvml = Nvml::init().ok()?;
    Some(read(&find(&nvml, ordinal).ok()?))
}

/// The highest clock of the multiprocessors of the GPU that is plugged in there, in Hz.
pub fn highest_clock(pci_bus_id: &str) -> Option<f64> {
    let nvml = Nvml::init().ok()?;
    let device = nvml.device_by_pci_bus_id(pci_bus_id).ok()?;
    device.max_clock_info(Clock::SM).ok().map(|mhz| f64::from(mhz) * 1e6)
}

/// The GPU that CUDA has that number for: the two number them differently, so it is found by where it is plugged in. One that CUDA cannot use
/// is described too, if it is the only one.
fn find(nvml: &Nvml, ordinal: usize) -> Result<Device<'_>, NvmlError> {
    match msda_cuda::driver::Device::open(ordinal) {
        Ok(device) => nvml.device_by_pci_bus_id(device.pci_bus_id()),
        Err(_) if ordinal == 0 => nvml.device_by_index(0),
        Err(_) => Err(NvmlError::NotFound),
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
