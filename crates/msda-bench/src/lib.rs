//! Workloads, engines, checks, timing, records and reports for multi-scale deformable attention.
//!
//! Other crates add engines with [`engines::Source`] and sections of the report with
//! [`report::Extension`].
#![deny(unsafe_code)]

pub mod bench;
pub mod call;
pub mod check;
pub mod engines;
pub mod files;
pub mod gpu;
pub mod machine;
pub mod parallel;
pub mod record;
pub mod report;
pub mod task;
pub mod terminal;
pub mod timing;
mod unknown;
pub mod verify;
pub mod work;
pub mod workload;

pub use self::unknown::Unknown;
