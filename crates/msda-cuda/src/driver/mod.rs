//! The CUDA driver: devices, memory, streams, modules, launches. No other module calls it.
//!
//! Every result is checked, and a failure becomes an [`msda::Error`]; nothing panics, with or
//! without a driver. Each function binds the primary context of its device, which torch and others
//! use too. Everything but [`Device::synchronize`] may be called while a stream captures a graph.
#![allow(unsafe_code)]

mod api;
mod arch;
mod chain;
mod check;
mod device;
mod event;
mod graph;
mod library;
mod memory;
mod module;
mod relaxed;
mod stream;
mod tensor_map;
mod texture;

pub use arch::Arch;
pub use chain::{Chain, Node};
pub use device::{Bound, Device};
pub use event::Event;
pub use graph::Graph;
pub(crate) use library::explain;
pub use library::{driver_problem, driver_version};
pub use memory::{Memory, copy_async, fill_async};
pub use module::{Function, Launch, Module};
pub use stream::{Stream, StreamHandle};
pub use tensor_map::{Promotion, Swizzle, TensorMap, Tiled};
pub use texture::{Texels, Texture};

#[cfg(test)]
mod tests;
