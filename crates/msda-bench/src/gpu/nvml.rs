//! Description and state of the GPU, from its driver.

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};

use crate::record::{Clocks, Gpu, GpuState};

/// The GPU with this CUDA number, and its state now; none without a driver.
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
        sms: opened.as_ref().map(msda_cuda::driver::Device::sms),
        shared_per_block: opened.as_ref().map(|gpu| gpu.shared_per_block() as u64),
        l2_bytes: opened.as_ref().map(|gpu| gpu.l2_bytes() as u64),
        before: Some(read(&device)),
        after: None,
    })
}

/// Clocks, temperature and power of the GPU now.
pub fn state(ordinal: usize) -> Option<GpuState> {
    let nvml = Nvml::init().ok()?;
    Some(read(&find(&nvml, ordinal).ok()?))
}

/// The highest SM clock of the GPU at this PCI address, in Hz.
pub fn highest_clock(pci_bus_id: &str) -> Option<f64> {
    let nvml = Nvml::init().ok()?;
    let device = nvml.device_by_pci_bus_id(pci_bus_id).ok()?;
    device.max_clock_info(Clock::SM).ok().map(|mhz| f64::from(mhz) * 1e6)
}

/// The GPU with this CUDA number. NVML numbers GPUs differently, so the PCI address identifies it.
/// Without a usable CUDA device, number 0 is the first GPU of NVML.
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
