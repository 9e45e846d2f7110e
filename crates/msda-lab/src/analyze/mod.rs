//! Why a kernel is as fast as it is.

pub mod banks;
