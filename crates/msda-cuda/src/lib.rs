//! Multi-scale deformable attention on NVIDIA GPUs.
//!
//! Kernels are CUDA C++ embedded in this library. NVRTC compiles them at run time for the installed
//! GPU and for the constants of the inner loop: types, channels, points, options. Images of another
//! size use the same kernel. Building needs neither the CUDA toolkit nor a C++ compiler. Running
//! needs NVIDIA's driver, and NVRTC or a filled cache.
//!
//! The modules, from a call down to the driver:
//!
//! | module | what it has |
//! |---|---|
//! | [`Request`], [`Target`] | what to compute: problem, pass, tensors ([`Slot`]), options; and the GPU |
//! | [`choose`] | the kernel for a request, with its reason: measured lines, else a table |
//! | [`kernels`] | the host twin of each kernel file: what it accepts, its argument, its launch |
//! | [`jit`] | compiles kernels with NVRTC and caches them |
//! | [`Plan`] | the kernels of a request, loaded: a launch allocates nothing and waits for nothing |
//! | [`Packing`] | a copy of value from one layout to another |
//! | [`driver`] | calls the CUDA driver |
//! | [`Cuda`], [`Options`] | the operator on tensors in host memory, for tests of every kernel |
//!
//! One process per GPU, as torch's DDP and DTensor run it, serves several GPUs.
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
mod target;
mod tensors;

pub use op::{Cuda, Options};
pub use packing::Packing;
pub use plan::Plan;
pub use request::{
    Addresses, Levels, Operand, Operands, Pass, Request, Scatter, Sizes, Slot, Slots, Sums, Wanted,
};
pub use target::{ARCHITECTURES, Target};
pub use tensors::Tensors;
