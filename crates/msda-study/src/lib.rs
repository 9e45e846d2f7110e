//! The study of the documents that msda began with: every strategy they name, and every experiment.
#![deny(unsafe_code)]

pub mod ladder;
pub mod probes;
mod sources;
mod tensor_map;
mod texture;
