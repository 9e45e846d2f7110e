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

use anyhow::{Context, Result, bail};
use msda::conformance::Group;
use msda_bench::record::Device;

/// A device, or both.
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
    /// The device, unless it is both.
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

/// The command line without `--out`, because a record names no folders of this machine.
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
    std::fs::create_dir_all(path).with_context(|| format!("creating {}", path.display()))
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
                bail!("group: got '{name}', expected one of {}", all.join(", "))
            }
        })
        .collect()
}
