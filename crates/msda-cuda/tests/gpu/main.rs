//! What plans and kernels promise, on a GPU.
//!
//! Without a GPU every test says that it skipped; with `MSDA_GPU=1` in the environment it fails
//! instead.
#![allow(unsafe_code)]

mod backward;
mod calls;
#[path = "../common/mod.rs"]
mod common;
mod counting;
mod forward;
mod large;
mod not_finite;
mod plans;
