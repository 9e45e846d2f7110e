//! The study: strategies for multi-scale deformable attention that the project's founding documents
//! name, measured one by one, and every figure of those documents compared with measurements.
//!
//! - [`ladder`]: every strategy as a kernel with its host twin; [`engines`] makes each one an
//!   engine;
//! - [`probes`]: kernels that measure limits of a GPU, and the documents' experiments; [`probe`]
//!   runs them;
//! - [`verify`]: the ladder's results against the oracle;
//! - [`analyze`]: why a kernel takes the time it takes;
//! - [`facts`] and [`claims`]: statements of the documents, judged by records;
//! - [`founding`]: the answer to the documents, `docs/FOUNDING.md`;
//! - [`report`]: its sections of the report.
#![deny(unsafe_code)]

pub mod analyze;
pub mod claims;
pub mod engines;
pub mod facts;
pub mod founding;
pub mod ladder;
pub mod list;
mod persisting;
pub mod probe;
pub mod probes;
pub mod report;
mod sources;
mod tensor_map;
mod texture;
pub mod verify;

pub use engines::{kernel, registry};
