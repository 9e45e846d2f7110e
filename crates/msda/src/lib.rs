//! Multi-scale deformable attention: the op inside Deformable-DETR, DINO, RT-DETR, Mask2Former and BEVFormer.
//!
//! Every query looks at a few points of a pyramid of feature maps and sums what it finds there, weighted. This crate
//! has the op forward and backward, plain and fused with the arithmetic around it, in `f64`, `f32`, `f16` and `bf16`:
//!
//! - [`Problem`] says what is to be computed, and is validated once;
//! - [`Inputs`], [`View`] and [`ViewMut`] are tensors in anybody's memory;
//! - [`Cpu`] computes, with the vector instructions and threads the machine has, and always the same bits;
//! - [`oracle`](mod@oracle) is the specification, and [`conformance`](mod@conformance) the battery every backend passes.
//!
//! ```
//! use msda::{Backend, Cpu, Inputs, Problem, Spec};
//!
//! // One image, one query, one head of two channels, one level of 2 x 2 pixels, one point.
//! let problem = Problem::new(Spec {
//!     batch: 1,
//!     queries: 1,
//!     heads: 1,
//!     channels: 2,
//!     levels: vec![(2, 2)],
//!     points: vec![1],
//!     ..Spec::default()
//! })?;
//! let value = [1.0f32, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0];
//! let locations = [0.5f32, 0.5]; // the middle, between all four pixels
//! let weights = [1.0f32];
//! let mut output = [0.0f32; 2];
//!
//! let inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
//! Cpu::new().forward(&problem, &inputs, output.as_mut_slice().into())?;
//! assert_eq!(output, [2.5, 25.0]);
//! # Ok::<(), msda::Error>(())
//! ```

mod buffer;
pub mod conformance;
pub mod cpu;
mod dtype;
mod error;
pub mod op;
pub mod oracle;
mod pack;
mod problem;
pub mod rng;
mod threads;
mod view;

pub use half::{bf16, f16};

pub use buffer::{Aligned, Buffer};
pub use cpu::{Cpu, Isa};
pub use dtype::{Dtype, Element, Float, Slice, SliceMut};
pub use error::{Error, ErrorKind, Result};
pub use op::{Backend, Gradients, Inputs, Reference, ReferenceKind};
pub use pack::pack;
pub use problem::{Layout, Level, MAX_LEVEL_SIDE, Padding, Problem, Sampling, Spec, Types};
pub use view::{Role, Strides, View, ViewMut};
