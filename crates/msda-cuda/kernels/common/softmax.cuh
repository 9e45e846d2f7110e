// The fused form's softmax over the logits of a query and head.
#pragma once
#include "common/warp.cuh"

template <typename T> struct SoftmaxOf {
    T max, scale; // what is subtracted from logits; 1 / sum of exp(logit - max)
    __device__ __forceinline__ T weight_of(T logit) const { return exp(logit - max) * scale; }
};

// The softmax of n logits, which are loaded twice: logit(i). LANES threads that follow each other
// call this together.
template <typename T, int LANES, typename F>
__device__ __forceinline__ SoftmaxOf<T> softmax_of(i64 n, F logit) {
    const i64 lane = LANES == 1 ? 0 : threadIdx.x % LANES;
    T max = T(minus_infinity()), sum = 0;
    for (i64 i = lane; i < n; i += LANES) {
        const T x = logit(i);
        max = x > max ? x : max;
    }
    max = max_over<LANES>(max);
    for (i64 i = lane; i < n; i += LANES) sum += exp(logit(i) - max);
    return SoftmaxOf<T>{max, 1 / sum_over<LANES>(sum)};
}

// Exponentials of logits up to this size, and their sum, are neither too large nor too small: the
// largest logit need not be subtracted.
constexpr float SMALL_LOGIT = 32;
// At least exp(SMALL_LOGIT): such exponentials times this are at least 1, so their products with
// values are no smaller than the values. If a product is too large, the sum is not finite.
constexpr float LIFT = 0x1p47f;

// 1 / x, nearly as exact as a division; x is about 1e-30 to 1e30.
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return fmaf(y, fmaf(-x, y, 1.0f), y);
}
