//! What the tests that need a GPU share.

use msda_cuda::driver::Device;

/// The first GPU. Without one the test says that it skipped; with `MSDA_GPU=1` in the environment it fails instead.
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
