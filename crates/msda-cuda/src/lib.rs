//! Multi-scale deformable attention on NVIDIA GPUs.
//!
//! Kernels are CUDA C++ embedded in this library. NVRTC compiles them at run time for the installed
//! GPU and for the constants of the inner loop: types, channels, points, options. Images of another
//! size use the same kernel. Building needs neither the CUDA toolkit nor a C++ compiler. Running
//! needs NVIDIA's driver, and NVRTC or a filled cache.
//!
//! - [`Plan`] is a call ready to be launched: a launch allocates nothing and waits for nothing.
//! - [`Request`] says what to compute: problem, pass, tensors ([`Slot`]), options. [`choose`] picks
//!   the kernels.
//! - [`kernels`] has the host twin of each kernel; [`jit`] compiles and caches kernels; [`driver`]
//!   calls the CUDA driver.
//! - [`Split`] runs the operator on several devices: each computes some of the images or heads.
//! - [`Cuda`] runs the operator on tensors in host memory: every kernel passes the conformance
//!   battery through it.
#![deny(unsafe_code)]

pub mod choose;
pub mod driver;
pub mod jit;
pub mod kernels;
mod loaded;
mod op;
mod packing;
mod plan;
mod request;
mod split;
mod tensors;

pub use op::Cuda;
pub use packing::Packing;
pub use plan::Plan;
pub use request::{
    Addresses, Levels, Operand, Operands, Pass, Request, Scatter, Sizes, Slot, Slots, Sums, Target, Wanted,
};
pub use split::Split;
pub use tensors::Tensors;
