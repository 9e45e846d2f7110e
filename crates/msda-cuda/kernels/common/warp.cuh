// Sums and maxima over lanes of a warp. All lanes of the warp call these together.
#pragma once
#include "common/types.cuh"

// Less than all other numbers.
__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// Over each LANES lanes that follow each other; every lane gets the result.
template <int LANES, typename T> __device__ __forceinline__ T sum_over(T x) {
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

template <int LANES, typename T> __device__ __forceinline__ T max_over(T x) {
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
        const T other = __shfl_xor_sync(0xffffffffu, x, step);
        x = other > x ? other : x;
    }
    return x;
}

// The sum over the lanes up to this one.
__device__ __forceinline__ u32 sum_up_to_lane(u32 x) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(0xffffffffu, x, step);
        x += lane >= step ? other : 0;
    }
    return x;
}
