//! One file per command.

pub(crate) mod bench;
#[cfg(feature = "cuda")]
pub(crate) mod cache;
pub(crate) mod doctor;
#[cfg(feature = "cuda")]
pub(crate) mod kernels;
pub(crate) mod report;
pub(crate) mod run;
#[cfg(feature = "study")]
pub(crate) mod study;
#[cfg(feature = "cuda")]
pub(crate) mod tune;
pub(crate) mod verify;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use msda::Dtype;
use msda::conformance::Group;
use msda_bench::Unknown;
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

/// The command line without the folder of the results: a record does not name folders of this
/// machine.
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

/// Creates a folder for results before the work begins, so that a folder that cannot be written
/// costs no time.
pub(crate) fn make_folder(path: &Path) -> Result<()> {
    ensure!(!path.is_file(), "--out: got the file {}, expected a folder", path.display());
    std::fs::create_dir_all(path).with_context(|| format!("creating {}", path.display()))
}

/// Reads the name of a value type.
pub(crate) fn dtype() -> impl TypedValueParser<Value = Dtype> {
    let names = Dtype::ALL.map(Dtype::name);
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Dtype>())
}

/// The groups of the battery with these names; all if there are none.
pub(crate) fn groups(names: &[String]) -> Result<Vec<Group>> {
    if names.is_empty() {
        return Ok(Group::ALL.to_vec());
    }
    names
        .iter()
        .map(|name| match Group::ALL.into_iter().find(|g| g.name() == name) {
            Some(group) => Ok(group),
            None => {
                let all: Vec<&str> = Group::ALL.into_iter().map(Group::name).collect();
                Err(Unknown::new("group", name, &all).into())
            }
        })
        .collect()
}
