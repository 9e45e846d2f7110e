#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `problem` | [`Spec`] and [`Problem`]: sizes, levels, options and types, checked once |
//! | `dtype`, `buffer`, `view` | element types; owned tensors; tensors with strides |
//! | `op` | inputs, gradients, their checks, and the trait [`Backend`] |
//! | [`oracle`] | the specification: the operator written for clarity |
//! | [`cpu`] | the backend for CPUs, one generic body for each instruction set |
//! | `pack` | copies of value between layouts |
//! | `conformance` | the battery that each backend must pass (a feature) |
//! | `threads`, [`rng`], `error` | loops on several threads; random numbers; the error type |

mod buffer;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod cpu;
mod dtype;
mod error;
mod op;
pub mod oracle;
mod pack;
mod problem;
pub mod rng;
mod threads;
mod view;

/// The checks and checked arguments that implementations of [`Backend`] start from.
///
/// Users of the operator do not need this module.
pub mod backend {
    pub use crate::op::{
        Args, GradientStrides, Tensor, check_gradients, check_inputs, check_output, offset, plane,
    };
}

pub use half::{bf16, f16};

pub use buffer::{Aligned, Buffer};
pub use cpu::{Cpu, Isa};
pub use dtype::{Dtype, Element, Float, Slice, SliceMut};
pub use error::{Argument, Error, ErrorKind, Result};
pub use op::{Backend, GradientBuffers, Gradients, Inputs, Reference, ReferenceKind, backward, forward};
pub use pack::pack;
pub use problem::{Layout, Level, MAX_LEVEL_SIDE, Padding, Problem, Sampling, Spec, Types};
pub use threads::{MOST_THREADS, Threads, threads_wanted, with_threads};
pub use view::{Role, Strides, View, ViewMut};
