// quantised: values are first rounded to bytes, with one scale per plane (image and head); then the
// bytes are gathered.
//
//   msda_top        the largest |value| of each plane
//   msda_quantise   value  [ D elements | ... ]  -->  rows  [ D bytes, padded to PIECE | ... ]
//   msda_forward    as direct.cu, but a lane loads PIECE channels; the scale is applied at the end
//
//   FP8     0: integers from -127 to 127, stored with an offset of 128; 1: e4m3, a float of 4
//           exponent and 3 fraction bits
//   PIECE   bytes, and so channels, that a lane loads at once: 8 or 16
//   HALF_WEIGHTS   a sample is interpolated in f16, with f16 weights (int8.cuh), and added in f32
//
// An integer is off by up to 1/254 of the plane's largest value, e4m3 by up to 1/16 of the value
// itself. Values that are not finite do not count for the scale: infinities become the largest
// number, NaN becomes 0, or stays NaN in e4m3.
//
// Bound by: the L1 data path, with half the bytes per row.
// Best for: models that accept the error and quantise once for many calls.
#include "ladder/int8.cuh"

constexpr int QUANTISED_ROW_BYTES = (D + PIECE - 1) / PIECE * PIECE;
constexpr int GROUP_LANES = QUANTISED_ROW_BYTES / PIECE; // per query
constexpr int GROUPS = THREADS / GROUP_LANES;            // queries per block
constexpr float MAX_QUANTISED = FP8 ? 448 : 127;

struct Args {
    Call call;
    float *top; // largest |value| of each plane
    char *rows;
    i64 plane_stride; // bytes of rows from plane to plane
};
CHECK_ARGS;

// Calls `work` for each VEC bytes of the levels of a plane: with position, first channel, values.
// The gaps between levels are skipped: they may hold anything.
template <typename Work>
__device__ __forceinline__ void for_each(const Call &call, int image, int head, Work work) {
    const char *value = call.value.at(image, 0, head);
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const Level &level = call.level[l];
        const int first = level.origin - RING * (level.pitch + 1);
        const i64 all = i64(level.height + 2 * RING) * level.pitch * LANES_PER_ROW;
#pragma unroll 2
        for (i64 i = i64(blockIdx.x) * THREADS + threadIdx.x; i < all;
             i += i64(gridDim.x) * THREADS) {
            const int position = first + int(i / LANES_PER_ROW), chunk = int(i % LANES_PER_ROW);
            float x[CHANNELS_PER_LANE] = {};
            const char *row = address_mad(value, position, call.value.row_stride);
            multiply_add<VALUE>(x, ld_global<VEC>(row + chunk * VEC), 1.0f);
            work(position, chunk * CHANNELS_PER_LANE, x);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) msda_top(const __grid_constant__ Args args) {
    const Call &call = args.call;
    const int head = blockIdx.y, image = blockIdx.z;
    float top = 0;
    for_each(call, image, head, [&](int, int, const float (&x)[CHANNELS_PER_LANE]) {
#pragma unroll
        for (int c = 0; c < CHANNELS_PER_LANE; c++) {
            // Comparisons with NaN are false.
            const float size = fabsf(x[c]);
            if (size > top && size <= MAX_FLOAT) top = size;
        }
    });
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    }
    // Floats that are not negative have the order of their bits.
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

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_quantise(const __grid_constant__ Args args) {
    const Call &call = args.call;
    const int head = blockIdx.y, image = blockIdx.z;
    const i64 plane = i64(image) * call.heads + head;
    const float top = args.top[plane];
    char *rows = args.rows + plane * args.plane_stride;
    for_each(
        call, image, head, [&](int position, int channel, const float (&x)[CHANNELS_PER_LANE]) {
            u32 word[(CHANNELS_PER_LANE + 3) / 4] = {};
#pragma unroll
            for (int c = 0; c < CHANNELS_PER_LANE; c++) {
                word[c / 4] |= byte_of(top > 0 ? x[c] / top * MAX_QUANTISED : 0) << (c % 4 * 8);
            }
            char *to = rows + i64(position) * QUANTISED_ROW_BYTES + channel;
            if constexpr (CHANNELS_PER_LANE == 8) {
                *reinterpret_cast<uint2 *>(to) = make_uint2(word[0], word[1]);
            } else if constexpr (CHANNELS_PER_LANE == 4) {
                *reinterpret_cast<u32 *>(to) = word[0];
            } else if constexpr (CHANNELS_PER_LANE == 2) {
                *reinterpret_cast<u16 *>(to) = u16(word[0]);
            } else {
                *to = char(word[0]);
            }
        });
}

__device__ __forceinline__ void multiply_add_bytes(float (&sum)[PIECE], const Vector<PIECE> &v,
                                                   float weight) {
#pragma unroll
    for (int i = 0; i < PIECE / 4; i++) {
        float x[4];
#if FP8
        u32 low, high;
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; "
            "cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
            : "=r"(low), "=r"(high)
            : "r"(v.word[i]));
        widen2<F16>(low, x[0], x[1]);
        widen2<F16>(high, x[2], x[3]);
#else
        // A byte in the low bits of 2^23 is the float 2^23 + byte: cheaper than a conversion.
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const u32 bits = __byte_perm(v.word[i], 0x4b000000, 0x7440 + c);
            x[c] = __uint_as_float(bits) - (8388608.0f + 128);
        }
#endif
#pragma unroll
        for (int c = 0; c < 4; c++) sum[4 * i + c] = fmaf(weight, x[c], sum[4 * i + c]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    msda_forward(const __grid_constant__ Args args) {
    const Call &call = args.call;
    const int head = blockIdx.y, image = blockIdx.z;
    const int group = threadIdx.x / GROUP_LANES, channel = threadIdx.x % GROUP_LANES * PIECE;
    const int query = int(blockIdx.x) * GROUPS + group;
    if (group >= GROUPS || query >= call.queries) return;
    const i64 plane = i64(image) * call.heads + head;
    const char *base = args.rows + plane * args.plane_stride + channel;
    float sum[PIECE] = {};
#pragma unroll 1
    for (int s = 0; s < SAMPLES; s++) {
        SampleInput input = load_sample(call, image, query, head, s);
        const float weight = input.weight;
        if (HALF_WEIGHTS) input.weight = 1;
        const Taps taps = taps_of(call.level[level_of(call, s)], input);
        Vector<PIECE> row[TAPS] = {};
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            if (taps.position[k] != NOWHERE) {
                row[k] = ld_global<PIECE>(address_mad(base, taps.position[k], QUANTISED_ROW_BYTES));
            }
        }
        if constexpr (HALF_WEIGHTS) {
            u32 interpolated[PIECE / 2] = {};
#pragma unroll
            for (int k = 0; k < TAPS; k++) interpolate(interpolated, row[k].word, taps.weight[k]);
#pragma unroll
            for (int c = 0; c < PIECE; c += 2) {
                float low, high;
                widen2<F16>(interpolated[c / 2], low, high);
                sum[c] = fmaf(weight, low, sum[c]);
                sum[c + 1] = fmaf(weight, high, sum[c + 1]);
            }
        } else {
#pragma unroll
            for (int k = 0; k < TAPS; k++) multiply_add_bytes(sum, row[k], taps.weight[k]);
        }
    }
    const float scale = args.top[plane] * (1 / MAX_QUANTISED);
    char *to = call.output.at(image, query, head);
#pragma unroll
    for (int first = 0; first < PIECE; first += CHANNELS_PER_LANE) {
        float some[CHANNELS_PER_LANE];
#pragma unroll
        for (int c = 0; c < CHANNELS_PER_LANE; c++) some[c] = sum[first + c] * scale;
        // A row of bytes may be longer than D.
        if (channel + first < D) store_sums(to + (channel + first) * size_of<VALUE>, some);
    }
}
