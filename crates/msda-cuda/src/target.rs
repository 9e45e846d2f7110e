//! The hardware that kernels are chosen and compiled for.

use crate::driver::{Arch, Device};

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
