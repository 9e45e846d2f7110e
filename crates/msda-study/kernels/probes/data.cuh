// The data that probes read. The host computes the same words, so a sum shows that all of them
// arrived.
#pragma once
#include "common/memory.cuh"

__device__ __forceinline__ u32 mix(u32 i) {
    i *= 0x9e3779b1u;
    i ^= i >> 15;
    i *= 0x85ebca77u;
    return i ^ i >> 13;
}

// The sum over all lanes of a warp.
__device__ __forceinline__ u32 warp_sum(u32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(~0u, x);
#else
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
#endif
}
