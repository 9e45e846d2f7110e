//! One file per command.

pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod doctor;
pub(crate) mod kernels;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod tune;
pub(crate) mod verify;

use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use msda::Dtype;
use msda_bench::record::{Device, Pass};

/// The devices of a command.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum DeviceArg {
    Cpu,
    Cuda,
    All,
}

impl DeviceArg {
    /// The device, if it is one.
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

/// The passes of a command.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum PassArg {
    Forward,
    Backward,
    Both,
}

impl PassArg {
    /// The pass, if it is one.
    pub(crate) fn only(self) -> Option<Pass> {
        match self {
            Self::Forward => Some(Pass::Forward),
            Self::Backward => Some(Pass::Backward),
            Self::Both => None,
        }
    }

    /// The passes, forward first.
    pub(crate) fn all(self) -> Vec<Pass> {
        self.only().map_or_else(|| vec![Pass::Forward, Pass::Backward], |only| vec![only])
    }
}

/// Reads a whole number, for options without a range.
pub(crate) fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a whole number, 0 or more".into())
}

/// Reads the name of a value type.
pub(crate) fn dtype() -> impl TypedValueParser<Value = Dtype> {
    let names = Dtype::ALL.map(Dtype::name);
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Dtype>())
}
