//! Multi-scale deformable attention.

mod buffer;
pub mod conformance;
pub mod cpu;
mod dtype;
mod error;
pub mod op;
mod problem;
pub mod reference;
pub mod rng;
mod view;

pub use half::{bf16, f16};

pub use buffer::{Aligned, Buffer};
pub use cpu::{Cpu, Isa};
pub use dtype::{Dtype, Element, Float, Slice, SliceMut};
pub use error::{Error, ErrorKind, Result};
pub use op::{Backend, Gradients, Inputs, Reference, ReferenceKind};
pub use problem::{Layout, Level, MAX_LEVEL_SIDE, Padding, Problem, Sampling, Spec, Types};
pub use view::{Role, Strides, View, ViewMut};
