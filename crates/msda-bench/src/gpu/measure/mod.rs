//! Measuring on a device: calls whose tensors stay there, cold caches, times by events, the rate of
//! a copy.

mod flush;
mod resident;
mod timing;

pub use flush::Flush;
pub use resident::{Resident, Setup};
pub use timing::{copy, time};
