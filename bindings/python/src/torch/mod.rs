//! Torch operators whose kernels are Rust functions, registered through torch's stable C ABI.
//!
//! Python defines the schemas; see `python/msda_attn/_torch/schema.py`. No Python code runs in
//! a call.
#![allow(unsafe_code)]

mod abi;
mod ops;
mod tensor;

use std::path::Path;

use abi::Api;

/// Registers the kernels. The error says which function of torch is missing.
pub(crate) fn register(cpu: &Path, cuda: Option<&Path>) -> Result<(), String> {
    let api = Api::load(cpu, cuda)?;
    api.register(c"CPU", &ops::KERNELS)?;
    if api.cuda.is_some() {
        api.register(c"CUDA", &ops::KERNELS)?;
    }
    Ok(())
}
