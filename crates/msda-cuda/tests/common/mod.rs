//! What the tests that need a GPU share.

#![allow(dead_code, reason = "not every test file uses all of it")]

use msda::conformance::Group;
use msda_cuda::driver::Device;

/// The first GPU. Without one the test says that it skipped; with `MSDA_GPU=1` in the environment
/// it fails instead.
pub(crate) fn device() -> Option<Device> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(why) => {
            assert!(std::env::var_os("MSDA_GPU").is_none(), "{why}");
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// The groups of the battery that `MSDA_GROUPS` names, `layouts,points` for example: a sanitizer
/// takes its time.
pub(crate) fn named_groups() -> Vec<Group> {
    let names = std::env::var("MSDA_GROUPS").unwrap_or_default();
    let group = |name: &str| {
        let known = Group::ALL.into_iter().find(|group| group.name() == name);
        known.unwrap_or_else(|| panic!("MSDA_GROUPS: no group of the battery is called '{name}'"))
    };
    names.split(',').filter(|name| !name.is_empty()).map(group).collect()
}

/// Those, or all where it names none.
pub(crate) fn groups() -> Vec<Group> {
    let named = named_groups();
    if named.is_empty() { Group::ALL.to_vec() } else { named }
}
