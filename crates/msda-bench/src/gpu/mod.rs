//! Everything that needs an NVIDIA GPU. This is the only place that asks whether the feature `cuda`
//! is on: without it the same functions find no GPU and refuse engines with a reason.

#[cfg(feature = "cuda")]
pub mod cubin;
#[cfg(feature = "cuda")]
pub mod disassembly;
#[cfg(feature = "cuda")]
mod engine;
#[cfg(feature = "cuda")]
pub mod kernels;
#[cfg(feature = "cuda")]
pub mod measure;
#[cfg(feature = "cuda")]
mod nvml;
#[cfg(feature = "cuda")]
mod present;
#[cfg(feature = "cuda")]
pub mod tune;
#[cfg(feature = "cuda")]
pub use self::present::*;

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(not(feature = "cuda"))]
pub use self::absent::*;

#[cfg(test)]
mod tests {
    /// With or without a GPU, and with or without the feature: an answer or none, never a panic.
    #[test]
    fn a_missing_gpu_is_no_panic() {
        let gpu = super::describe(0);
        assert_eq!(gpu.is_some(), super::state(0).is_some());
        assert!(super::describe(1000).is_none() && super::state(1000).is_none());
        assert!(super::ceilings_of(1000).is_err() && super::open("cuda@1000").is_err());
        assert!(gpu.is_none_or(|gpu| !gpu.name.is_empty() && gpu.memory_bytes > 0));
    }
}
