//! CUDA

pub mod driver;
pub mod jit;
