//! Workloads, engines, checks, timing, records and reports for multi-scale deformable attention.
//!
//! | module | what it has |
//! |---|---|
//! | [`workload`] | problems with data, described in TOML |
//! | [`task`] | a workload's data with a pass: what an engine runs |
//! | [`engines`] | implementations by name: backends; torch and peers in a Python process |
//! | [`gpu`] | engines on NVIDIA GPUs, tuning, explanations of kernels |
//! | [`check`] | compares an engine with the oracle before it is timed |
//! | [`verify`] | the battery and whole workloads, for `msda verify` |
//! | [`timing`], [`work`] | repeated runs; the work of a pass and the limits of the machine |
//! | [`mod@bench`] | the benchmark: plans, checks, times and makes a record |
//! | [`record`], [`machine`] | results as JSON; what this computer is |
//! | [`report`] | records as a page, as Markdown and as tables of a terminal |
//! | [`files`], [`evaluation`] | tensors in files, and the operator on them, for `msda run` |
//! | [`parallel`] | jobs on several threads |
//!
//! Other crates add engines with [`engines::Source`] and sections of the report with
//! [`report::Extension`].
#![deny(unsafe_code)]

pub mod bench;
pub mod check;
pub mod engines;
pub mod evaluation;
pub mod files;
pub mod gpu;
pub mod machine;
pub mod parallel;
pub mod random;
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
