//! The hardware that kernels are chosen and compiled for.

use msda::{Error, ErrorKind, Result};

use crate::driver::{Arch, Device};

/// The architectures that CUDA 12 and 13 compile for and that the kernels support, and the SMs of
/// the largest common GPU of each.
pub const ARCHITECTURES: [(Arch, u32); 12] = [
    (Arch::new(7, 5), 40),
    (Arch::new(8, 0), 108),
    (Arch::new(8, 6), 84),
    (Arch::new(8, 7), 142),
    (Arch::new(8, 9), 142),
    (Arch::new(9, 0), 132),
    (Arch::new(10, 0), 148),
    (Arch::new(10, 1), 148),
    (Arch::new(10, 3), 148),
    (Arch::new(11, 0), 100),
    (Arch::new(12, 0), 188),
    (Arch::new(12, 1), 188),
];

/// The hardware that a kernel is compiled and launched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The architecture.
    pub arch: Arch,
    /// The number of SMs.
    pub sms: u32,
}

impl Target {
    /// The target of a device.
    pub fn of(device: &Device) -> Self {
        Self { arch: device.arch(), sms: device.sms() }
    }

    /// The target of an architecture of [`ARCHITECTURES`], which need not be in this machine.
    pub fn of_arch(arch: Arch) -> Result<Self> {
        match ARCHITECTURES.iter().find(|(known, _)| *known == arch) {
            Some(&(arch, sms)) => Ok(Self { arch, sms }),
            None => {
                let known = ARCHITECTURES.map(|(arch, _)| arch.to_string()).join(", ");
                let expected = format!("one of {known}");
                Err(Error::new(ErrorKind::Format, "architecture", arch.to_string(), expected))
            }
        }
    }

    /// The most shared memory per block, in bytes.
    pub fn shared(&self) -> usize {
        let kilobytes = match (self.arch.major, self.arch.minor) {
            (7, 5) => 64,
            (8, 0 | 7) => 163,
            (9 | 10, _) => 227,
            // Every other architecture has at least this much.
            _ => 96,
        };
        kilobytes << 10
    }

    /// The most threads per SM.
    pub fn threads(&self) -> u32 {
        match (self.arch.major, self.arch.minor) {
            (7, 5) => 1024,
            (8, 6 | 7 | 9) | (12, _) => 1536,
            _ => 2048,
        }
    }
}
