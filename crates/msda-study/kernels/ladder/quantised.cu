// quantised: values become bytes first, with one scale for each plane (image and head); then bytes are gathered.
//
//   msda_top        the largest |value| of each plane
//   msda_quantise   value  [ D elements | D elements | ... ]   -->   rows  [ D bytes, up to a multiple of PIECE | ... ]
//   msda_forward    as direct.cu, but that a lane reads PIECE channels; the scale is multiplied in once, at the end
//
//   FP8     0: whole numbers from -127 to 127, 128 added to them; 1: e4m3, a float of 4 exponent and 3 fraction bits
//   PIECE   bytes that a lane reads at once: 8 or 16
//
// As whole numbers every value is off by up to 1/254 of the plane's largest; as e4m3 by up to 1/16 of itself. Values that are
// not finite do not count for the scale: infinities become the largest number, NaN becomes 0, or stays what it is in e4m3.
//
// Wins: half the bytes through the first-level cache, which is what bounds the op, where a model can live with the error and
// the first two kernels are paid once for many calls, or by whoever makes the values.
#include "ladder/ladder.cuh"

constexpr int CHANNELS = (D + PIECE - 1) / PIECE * PIECE; // of a row of bytes
constexpr int ITEM = CHANNELS / PIECE;                    // lanes of a query
constexpr int ITEMS = BLOCK / ITEM;
constexpr float TOP = FP8 ? 448 : 127; // the largest number

struct Args {
    Call call;
    float *top; // of each plane
    char *rows;
    i64 plane; // bytes of rows from plane to plane
};

// Calls `work` with every EACH channels of the levels of a plane: their position, the first of them, and where they are.
// Between levels there may be anything.
template <typename Work> __device__ __forceinline__ void for_each(const Call &call, int image, int head, Work work) {
    const char *value = call.value.at(image, 0, head);
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const Level &level = call.level[l];
        const int first = level.origin - RING * (level.pitch + 1);
        const i64 all = i64(level.h + 2 * RING) * level.pitch * LANES;
#pragma unroll 2
        for (i64 i = i64(blockIdx.x) * BLOCK + threadIdx.x; i < all; i += i64(gridDim.x) * BLOCK) {
            const int position = first + int(i / LANES), chunk = int(i % LANES);
            float x[EACH] = {};
            multiply_add<VALUE>(x, gather<VEC>(offset(value, position, call.value.row) + chunk * VEC), 1.0f);
            work(position, chunk * EACH, x);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) msda_top(const __grid_constant__ Args args) {
    const Call &call = args.call;
    const int head = blockIdx.y, image = blockIdx.z;
    float top = 0;
    for_each(call, image, head, [&](int, int, const float(&x)[EACH]) {
#pragma unroll
        for (int c = 0; c < EACH; c++) {
            // A comparison with NaN is false.
            const float size = fabsf(x[c]);
            if (size > top && size <= 3.402823466e38f) top = size;
        }
    });
#pragma unroll
    for (int step = 1; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    // Floats that are not negative are ordered as their bits are.
    int *to = reinterpret_cast<int *>(args.top) + (i64(image) * call.heads + head);
    if (threadIdx.x % 32 == 0) atomicMax(to, __float_as_int(top));
}

__device__ __forceinline__ u32 byte_of(float x) {
#if FP8
    u16 both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(x));
    return both & 0xff;
#else
    return min(max(__float2int_rn(x), -127), 127) + 128;
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK) msda_quantise(const __grid_constant__ Args args) {
    const Call &call = args.call;
    const int head = blockIdx.y, image = blockIdx.z;
    const i64 plane = i64(image) * call.heads + head;
    const float top = args.top[plane];
    char *rows = args.rows + plane * args.plane;
    for_each(call, image, head, [&](int position, int channel, const float(&x)[EACH]) {
        u32 word[(EACH + 3) / 4] = {};
#pragma unroll
        for (int c = 0; c < EACH; c++) word[c / 4] |= byte_of(top > 0 ? x[c] / top * TOP : 0) << (c % 4 * 8);
        char *at = rows + i64(position) * CHANNELS + channel;
        if constexpr (EACH == 8) {
            *reinterpret_cast<uint2 *>(at) = make_uint2(word[0], word[1]);
        } else if constexpr (EACH == 4) {
            *reinterpret_cast<u32 *>(at) = word[0];
        } else if constexpr (EACH == 2) {
            *reinterpret_cast<u16 *>(at) = u16(word[0]);
        } else {
            *at = char(word[0]);
        }
    });
}

__device__ __forceinline__ void multiply_add_bytes(float (&sum)[PIECE], const Vector<PIECE> &v, float w) {
#pragma unroll
    for (int i = 0; i < PIECE / 4; i++) {
        float x[4];
#if FP8
        u32 low, high;
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
            : "=r"(low), "=r"(high)
            : "r"(v.word[i]));
        widen2<F16>(low, x[0], x[1]);
        widen2<F16>(high, x[2], x[3]);
#else
        // A byte as the last of 2^23's bits is that much more than 2^23: cheaper than a conversion.
#pragma unroll
        for (int c = 0; c < 4; c++) x[c] = __uint_as_float(__byte_perm(v.word[i], 0x4b000000, 0x7440 + c)) - (8388608.0f + 128);
#endif
#pragma unroll
        for (int c = 0; c < 4; c++) sum[4 * i + c] = fmaf(w, x[c], sum[4 * i + c]);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1024 / BLOCK) msda_forward(const __grid_constant__ Args args) {
    const Call &call = args.call;
    const int head = blockIdx.y, image = blockIdx.z;
    const int item = threadIdx.x / ITEM, channel = threadIdx.x % ITEM * PIECE, query = int(blockIdx.x) * ITEMS + item;
    if (item >= ITEMS || query >= call.queries) return;
    const i64 plane = i64(image) * call.heads + head;
    const char *base = args.rows + plane * args.plane + channel;
    float sum[PIECE] = {};
#pragma unroll 1
    for (int s = 0; s < SAMPLES; s++) {
        const Taps taps = taps_of(call.level[level_of(call, s)], given(call, image, query, head, s));
        Vector<PIECE> row[TAPS] = {};
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            if (taps.position[k] != NOWHERE) row[k] = gather<PIECE>(offset(base, taps.position[k], CHANNELS));
        }
#pragma unroll
        for (int k = 0; k < TAPS; k++) multiply_add_bytes(sum, row[k], taps.weight[k]);
    }
    const float scale = args.top[plane] * (1 / TOP);
    char *to = call.output.at(image, query, head);
#pragma unroll
    for (int first = 0; first < PIECE; first += EACH) {
        float some[EACH];
#pragma unroll
        for (int c = 0; c < EACH; c++) some[c] = sum[first + c] * scale;
        // A row of bytes may be longer than D.
        if (channel + first < D) write(to + (channel + first) * size_of<VALUE>, some);
    }
}
