// The fused form's softmax over the logits of a query and head.
#pragma once

template <typename T> struct SoftmaxOf {
    T max, scale; // the largest logit; 1 / sum of exp(logit - max)
    __device__ __forceinline__ T weight_of(T logit) const { return exp(logit - max) * scale; }
};

// Less than all other numbers.
__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }
