//! Calls of the operator as frameworks make them: tensors by address, sizes and strides.
//!
//! The Python package, the operators for ONNX Runtime and the C interface share this crate.
//!
//! | module | contents |
//! |---|---|
//! | [`call`] | a call, its checks, and the [`Problem`](msda::Problem) that it describes |
//! | [`dtypes`] | the types of elements by the numbers and the names of frameworks |
//! | [`cpu`] | runs a call on tensors in memory of the host |
//! | [`cuda`] | runs a call on tensors in device memory, with plans that are stored |
//! | [`explain`] | which kernels a call gets, and why |
//! | [`threads`] | thread pools of the CPU, and threads of the caller |
//! | [`error`] | refused calls, and panics that become refused calls |
#![deny(unsafe_code)]

pub mod call;
pub mod cpu;
pub mod cuda;
pub mod dtypes;
pub mod error;
pub mod explain;
pub mod threads;
