//! One file a command.

pub(crate) mod analyze;
pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod claims;
pub(crate) mod doctor;
pub(crate) mod kernels;
pub(crate) mod probe;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod tune;
pub(crate) mod verify;

use msda_bench::record::Device;

/// Where something is done.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum DeviceArg {
    /// On the processor
    Cpu,
    /// On the GPU
    Cuda,
    /// On both
    All,
}

impl DeviceArg {
    /// The only device, if there is an only one.
    pub(crate) fn only(self) -> Option<Device> {
        match self {
            Self::Cpu => Some(Device::Cpu),
            Self::Cuda => Some(Device::Cuda),
            Self::All => None,
        }
    }

    pub(crate) fn includes(self, device: Device) -> bool {
        self.only().is_none_or(|only| only == device)
    }
}

/// What was typed, less where the report goes: a record says nothing of this machine's folders.
pub(crate) fn typed(mut args: impl Iterator<Item = String>) -> String {
    let mut words = vec!["msda".to_owned()];
    while let Some(word) = args.next() {
        if word == "--out" {
            args.next();
        } else if !word.starts_with("--out=") {
            words.push(word);
        }
    }
    words.join(" ")
}
