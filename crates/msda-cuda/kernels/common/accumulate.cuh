// Weighted sums of value rows: a lane sums VEC bytes of each row.
//
// Macros: VALUE (element type), D (channels), VEC (bytes per lane and row).
#pragma once
#include "common/memory.cuh"

constexpr int ROW_BYTES = D * size_of<VALUE>;
constexpr int CHANNELS_PER_LANE = VEC / size_of<VALUE>;

template <int T, int N, int BYTES>
__device__ __forceinline__ void multiply_add(float (&sum)[N], const Vector<BYTES> &v,
                                             float weight) {
    float x[N];
    widen_all<T, N>(v, x);
#pragma unroll
    for (int c = 0; c < N; c++) sum[c] = fmaf(weight, x[c], sum[c]);
}

// Partial sums of a few taps in f16, two channels per word.
struct F16Sums {
    u32 word[CHANNELS_PER_LANE > 1 ? CHANNELS_PER_LANE / 2 : 1];
};

__device__ __forceinline__ void multiply_add(F16Sums &sum, const Vector<VEC> &v, float weight) {
    const u32 both = narrow2<F16>(weight, weight);
#pragma unroll
    for (int i = 0; i < Vector<VEC>::WORDS; i++) {
        asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum.word[i]) : "r"(v.word[i]), "r"(both));
    }
}

// Adds the f16 partial sums to the f32 sums and resets them.
__device__ __forceinline__ void flush_f16(float (&sum)[CHANNELS_PER_LANE], F16Sums &partial) {
#pragma unroll
    for (int c = 0; c + 1 < CHANNELS_PER_LANE; c += 2) {
        float low, high;
        widen2<F16>(partial.word[c / 2], low, high);
        sum[c] += low, sum[c + 1] += high;
        partial.word[c / 2] = 0;
    }
}

// Rounds sums to the type of the output and stores them.
template <int N> __device__ __forceinline__ void store_sums(char *to, const float (&sum)[N]) {
    st_global<N * size_of<VALUE>>(to, narrow_all<VALUE, N>(sum));
}

template <int N> __device__ __forceinline__ bool all_finite(const float (&x)[N]) {
    float zero = 0;
#pragma unroll
    for (int c = 0; c < N; c++) zero = fmaf(x[c], 0.0f, zero);
    return zero == 0;
}
