//! Multi-scale deformable attention on NVIDIA GPUs.
//!
//! Kernels are CUDA C++ that is part of this library and compiled at run time, for the GPU at hand and the shape of
//! the inner loop: types, channels, points, options. Images of another size need no other kernel. Neither a toolkit
//! nor a compiler is needed to build; to run, a driver, and NVRTC or a filled cache.
//!
//! - [`driver`] is all there is of the driver's functions; [`jit`] compiles and keeps kernels;
//! - [`kernels`] are the kernels' host twins, [`choose`] decides between them;
//! - [`Plan`] is a call made ready: launching it allocates nothing and waits for nothing;
//! - [`Resident`] is a call whose tensors stay on the device, to be run and timed again and again;
//! - [`probe`] measures what a device can do at best, and what the documents' experiments measured;
//! - [`Cuda`] runs the op on tensors in the host's memory: every kernel passes the conformance battery through it.
#![deny(unsafe_code)]

pub mod choose;
pub mod driver;
mod flush;
pub mod jit;
pub mod kernels;
mod op;
mod plan;
pub mod probe;
mod request;
mod resident;
mod tensors;
mod timing;

pub use op::Cuda;
pub use plan::{Addresses, Packing, Plan};
pub use request::{Levels, Operand, Operands, Request, Sizes, Sums, Target};
pub use resident::Resident;
