// Keys: what sort.cu sorts, and what its two ways of sorting share.
//
// Macros besides those of tiles.cuh: THREADS, WIDE_KEYS.
#pragma once
#include "backward/tiles.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int DIGIT_BITS = HOST_DIGIT_BITS, DIGITS = 1 << DIGIT_BITS;
static_assert(THREADS % 32 == 0, "whole warps");

// A sample of a batch: its bin, or NO_BIN, in the lower half; its index in the batch in the upper.
#if WIDE_KEYS
typedef u64 Key;
constexpr u32 NO_BIN = 0xffffffff;
#else
typedef u32 Key;
constexpr u32 NO_BIN = 0xffff;
#endif
constexpr int HALF_BITS = sizeof(Key) * 4;
__device__ __forceinline__ Key make_key(int bin, u32 index) {
    return (Key(index) << HALF_BITS) + (u32(bin) & NO_BIN);
}
__device__ __forceinline__ u32 bin_of_key(Key key) { return u32(key) & NO_BIN; }
__device__ __forceinline__ u32 index_of_key(Key key) { return u32(key >> HALF_BITS); }

// Counters of 16 bits, two per word: number i is half i % 2 of word i / 2. No sum runs over,
// because a batch has fewer than 2^16 samples.
__device__ __forceinline__ u32 bit_of_half(u32 i) { return i % 2 * 16; }
__device__ __forceinline__ u32 half_of(u32 word, u32 i) { return word >> bit_of_half(i) & 0xffff; }
// Adds to counter i and returns what it was.
__device__ __forceinline__ u32 add_to_half(u32 *words, u32 i, u32 n) {
    return half_of(atomicAdd(&words[i / 2], n << bit_of_half(i)), i);
}

// What a block has in shared memory, besides keys and, for each, its rank among the samples of a
// warp with the same digit.
struct __align__(16) Sorting {
    u32 count[WARPS][DIGITS / 2]; // of samples, 16 bits each; later the place of the first one
    u32 of_warp[WARPS];
    u32 lowest, highest; // bins
    u32 pairs;           // of samples with the same bin
    __device__ __forceinline__ u32 place(u32 warp, u32 digit) const {
        return reinterpret_cast<const u16 *>(count[warp])[digit];
    }
};

__device__ __forceinline__ u32 min_of_warp(u32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(0xffffffffu, x);
#else
    return ~max_over<32>(~x);
#endif
}

__device__ __forceinline__ u32 shared_bytes() {
    u32 bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

__device__ __forceinline__ u32 sum_of_warp(u32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(0xffffffffu, x);
#else
    return sum_over<32>(x);
#endif
}

// The sum of a number per thread over the threads before this one, and `total`. Adds the sum over
// all threads to `total`. All threads call this together, and meet at a barrier before they call it
// again.
__device__ __forceinline__ u32 sum_before(Sorting &own, u32 x, u32 &total) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 sum = sum_up_to_lane(x);
    if (lane == 31) own.of_warp[warp] = sum;
    __syncthreads();
    u32 before = total + sum - x;
    for (u32 w = 0; w < WARPS; w++) {
        before += w < warp ? own.of_warp[w] : 0;
        total += own.of_warp[w];
    }
    return before;
}

// Eight numbers of 16 bits.
__device__ __forceinline__ uint4 pack_eight(const u32 (&x)[8]) {
    return make_uint4(x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16);
}

// Stores the ends of 8 bins, of which the first is a multiple of 8.
__device__ __forceinline__ void store_eight(const Ends &ends, u32 bin, const u32 (&of_bin)[8]) {
    uint4 *to = reinterpret_cast<uint4 *>(&ends.at(int(bin)));
#if WIDE_ENDS
    to[0] = make_uint4(of_bin[0], of_bin[1], of_bin[2], of_bin[3]);
    to[1] = make_uint4(of_bin[4], of_bin[5], of_bin[6], of_bin[7]);
#else
    to[0] = pack_eight(of_bin);
#endif
}
