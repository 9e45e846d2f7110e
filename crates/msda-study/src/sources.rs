//! The kernels of the study. They include headers of `msda-cuda`.

use msda_cuda::jit::{KERNELS, Sources};

/// The files by the name that `#include` uses.
pub(crate) static SOURCES: Sources = Sources::new(
    &[
        ("ladder/ladder.cuh", include_str!("../kernels/ladder/ladder.cuh")),
        ("ladder/direct.cu", include_str!("../kernels/ladder/direct.cu")),
        ("ladder/distributed.cu", include_str!("../kernels/ladder/distributed.cu")),
        ("ladder/async_multilevel.cu", include_str!("../kernels/ladder/async_multilevel.cu")),
        ("ladder/distributed_best.cu", include_str!("../kernels/ladder/distributed_best.cu")),
        ("ladder/tensor_core.cu", include_str!("../kernels/ladder/tensor_core.cu")),
        ("ladder/barrier.cuh", include_str!("../kernels/ladder/barrier.cuh")),
        ("ladder/int8.cuh", include_str!("../kernels/ladder/int8.cuh")),
        ("ladder/loaders.cuh", include_str!("../kernels/ladder/loaders.cuh")),
        ("ladder/loading_warps.cu", include_str!("../kernels/ladder/loading_warps.cu")),
        ("ladder/prefetch.cuh", include_str!("../kernels/ladder/prefetch.cuh")),
        ("ladder/release.cu", include_str!("../kernels/ladder/release.cu")),
        ("ladder/texels.cuh", include_str!("../kernels/ladder/texels.cuh")),
        ("ladder/texture.cu", include_str!("../kernels/ladder/texture.cu")),
        ("ladder/tma_windows.cu", include_str!("../kernels/ladder/tma_windows.cu")),
        ("ladder/staged.cuh", include_str!("../kernels/ladder/staged.cuh")),
        ("ladder/resident.cuh", include_str!("../kernels/ladder/resident.cuh")),
        ("ladder/persistent.cu", include_str!("../kernels/ladder/persistent.cu")),
        ("ladder/quantised.cu", include_str!("../kernels/ladder/quantised.cu")),
        ("ladder/shared.cu", include_str!("../kernels/ladder/shared.cu")),
        ("ladder/specialised.cu", include_str!("../kernels/ladder/specialised.cu")),
        ("probes/bulk.cuh", include_str!("../kernels/probes/bulk.cuh")),
        ("probes/data.cuh", include_str!("../kernels/probes/data.cuh")),
        ("probes/claims.cu", include_str!("../kernels/probes/claims.cu")),
        ("probes/clusters.cu", include_str!("../kernels/probes/clusters.cu")),
        ("probes/copies.cu", include_str!("../kernels/probes/copies.cu")),
        ("probes/fill.cu", include_str!("../kernels/probes/fill.cu")),
        ("probes/fma.cu", include_str!("../kernels/probes/fma.cu")),
        ("probes/gather.cu", include_str!("../kernels/probes/gather.cu")),
        ("probes/shared.cu", include_str!("../kernels/probes/shared.cu")),
        ("probes/stream.cu", include_str!("../kernels/probes/stream.cu")),
        ("probes/tile.cu", include_str!("../kernels/probes/tile.cu")),
    ],
    Some(&KERNELS),
);
