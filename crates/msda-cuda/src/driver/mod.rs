//! The CUDA driver: devices, memory, streams, modules, launches. No other module calls it. Other
//! crates find functions that are not wrapped here by [`symbol`] and turn their result codes into
//! errors by [`check`].
//!
//! Every result is checked, and a failure becomes an [`msda::Error`]; nothing panics, with or
//! without a driver. Each function binds the primary context of its device, which torch and others
//! use too. Everything but [`Device::synchronize`] may be called while a stream captures a graph.
#![allow(unsafe_code)]

mod api;
mod arch;
mod check;
mod device;
mod event;
mod graph;
mod launch_graph;
mod library;
mod memory;
mod module;
mod relaxed;
mod stream;
mod types;

pub use arch::Arch;
pub use check::check;
pub use device::{Bound, Device};
pub use event::Event;
pub use graph::Graph;
pub use launch_graph::{LaunchGraph, Node};
pub(crate) use library::explain;
pub use library::{driver_problem, driver_version, symbol};
pub use memory::{Memory, copy_async, fill_async};
pub use module::{Function, Launch, Module};
pub use relaxed::Relaxed;
pub(crate) use stream::Captured;
pub use stream::{Stream, StreamHandle};

#[cfg(test)]
mod tests;
