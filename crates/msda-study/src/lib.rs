//! The study: strategies for multi-scale deformable attention that the project's founding documents
//! name, measured one by one, and every figure of those documents compared with measurements.
//!
//! | module | what it has |
//! |---|---|
//! | [`ladder`] | every strategy (`ladder.toml`) as a kernel with its host twin |
//! | [`engines`], [`verify`] | rungs as engines, and their results |
//! | [`probes`] | kernels that measure limits, and the documents' experiments |
//! | [`analyze`] | the work of a workload, the compiled kernel, hardware counters |
//! | [`facts`] | named numbers from records and definitions |
//! | [`claims`] | statements of the documents (`claims.toml`), judged by facts; parts of `docs/STUDY.md` |
//! | [`report`] | the study's sections of a report |
//! | `listed` | enums that list their variants |
//! | `found` | the figures of a command so far, for its record |
//! | `tensor_map`, `texture`, `persisting` | parts of the driver that only rungs use |
//!
//! `main.rs` and `commands/` are the program `msda-study`.
#![deny(unsafe_code)]

pub mod analyze;
pub mod claims;
pub mod engines;
pub mod facts;
mod found;
mod functions;
pub mod ladder;
mod listed;
mod persisting;
pub mod probes;
pub mod report;
mod sources;
mod tensor_map;
mod texture;
pub mod verify;

pub use engines::{kernel, registry};
