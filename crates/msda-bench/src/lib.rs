//! The lab: workloads, engines, verification, measurement and reports for multi-scale deformable attention.
#![forbid(unsafe_code)]

pub mod analyze;
pub mod bench;
pub mod call;
pub mod check;
pub mod claims;
pub mod engines;
pub mod facts;
pub mod files;
pub mod gpu;
pub mod kernels;
pub mod machine;
mod parallel;
pub mod probe;
pub mod record;
pub mod report;
pub mod task;
pub mod timing;
pub mod tune;
pub mod verify;
pub mod work;
pub mod workload;
