//! The kernels of the study. They include headers of `msda-cuda`.

use msda_bench::parallel::{cores, in_parallel};
use msda_cuda::jit::{Cache, KERNELS, Sources, Unit};

/// Compiles kernels with all cores. A failure is reported when the kernel is used.
pub(crate) fn compile(units: &[&Unit]) {
    in_parallel(cores(), units, |unit| drop(Cache::global().get(unit)));
}

/// Files by the name that `#include` uses, with their texts.
macro_rules! files {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("../kernels/", $name)))),*] };
}

/// The files of the study.
pub(crate) static SOURCES: Sources = Sources::new(
    files![
        "ladder/ladder.cuh" "ladder/direct.cu" "ladder/distributed.cu" "ladder/async_multilevel.cu"
        "ladder/distributed_best.cu" "ladder/tensor_core.cu" "ladder/barrier.cuh" "ladder/int8.cuh"
        "ladder/loaders.cuh" "ladder/loading_warps.cu" "ladder/prefetch.cuh" "ladder/release.cu"
        "ladder/texels.cuh" "ladder/texture.cu" "ladder/tma_windows.cu" "ladder/staged.cuh"
        "ladder/resident.cuh" "ladder/persistent.cu" "ladder/quantised.cu" "ladder/shared.cu"
        "ladder/specialised.cu"
        "probes/bulk.cuh" "probes/data.cuh" "probes/claims.cu" "probes/clusters.cu"
        "probes/copies.cu" "probes/fill.cu" "probes/fma.cu" "probes/gather.cu" "probes/shared.cu"
        "probes/stream.cu" "probes/tile.cu"
    ],
    Some(&KERNELS),
);
