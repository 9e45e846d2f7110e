// int8 values, interpolated in f16: the weights of the taps are f16, the integers are exact in f16.
// The caller adds the result to f32 sums. Values are stored with an offset of 128.
#pragma once
#include "ladder/ladder.cuh"

// Two bytes of a word as f16 integers: the first two, or the last two.
template <bool LAST> __device__ __forceinline__ u32 widen_bytes(u32 word) {
    // A byte in the low bits of 1024 is the f16 number 1024 + byte.
    const u32 both = __byte_perm(word, 0x64646464, LAST ? 0x4342 : 0x4140);
    u32 integers;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(integers) : "r"(both), "r"(0xe480e480)); // - 1152
    return integers;
}

// Four channels per word of a tap; two channels per word of the result.
template <int WORDS>
__device__ __forceinline__ void interpolate(u32 (&result)[2 * WORDS], const u32 (&bytes)[WORDS],
                                            float weight) {
    const u32 both = narrow2<F16>(weight, weight);
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        asm("fma.rn.f16x2 %0, %1, %2, %0;"
            : "+r"(result[2 * i])
            : "r"(widen_bytes<false>(bytes[i])), "r"(both));
        asm("fma.rn.f16x2 %0, %1, %2, %0;"
            : "+r"(result[2 * i + 1])
            : "r"(widen_bytes<true>(bytes[i])), "r"(both));
    }
}

// The bytes of one channel of a sample's taps.
struct TapBytes {
    u32 tap[TAPS];
};

__device__ __forceinline__ float interpolate(const TapBytes &bytes, const Taps &taps) {
    u32 result[2] = {};
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        const u32 word[1] = {bytes.tap[k]};
        interpolate(result, word, taps.weight[k]);
    }
    float low, high;
    widen2<F16>(result[0], low, high);
    return low;
}
