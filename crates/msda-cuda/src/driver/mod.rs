//! The CUDA driver: devices, memory, streams, modules, launches. The only place that calls it.
//!
//! Every call is checked and becomes an [`msda::Error`]; nothing panics, with or without a driver. Everything that
//! needs a context binds its device's primary context by itself, the one that torch and others use too.
#![allow(unsafe_code)]

mod arch;
mod chain;
mod check;
mod device;
mod event;
mod graph;
mod library;
mod memory;
mod module;
mod stream;

pub use arch::Arch;
pub use chain::Chain;
pub use check::check;
pub use device::{Bound, Device};
pub use event::Event;
pub use graph::Graph;
pub(crate) use library::explain;
pub use library::{driver_version, loader_error};
pub use memory::{Memory, copy_async, fill_async};
pub use module::{Function, Launch, Module};
pub use stream::{Stream, StreamHandle};

#[cfg(test)]
mod tests;
