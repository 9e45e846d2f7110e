//! The study: strategies for multi-scale deformable attention that the project's founding documents
//! name, measured one by one, and every figure of those documents compared with measurements.
//!
//! - [`engines`]: the ladder, one engine per strategy;
//! - [`probe`]: limits of the machine, and the documents' experiments;
//! - [`verify`]: the ladder's results against the oracle;
//! - [`analyze`]: why a kernel takes the time it takes;
//! - [`facts`] and [`claims`]: statements of the documents, judged by records;
//! - [`report`]: its sections of the report.
#![forbid(unsafe_code)]

pub mod analyze;
pub mod claims;
pub mod engines;
pub mod facts;
pub mod list;
pub mod probe;
pub mod report;
pub mod verify;

pub use engines::{kernel, registry};
