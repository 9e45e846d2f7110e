// The rungs' common parts: the argument, loading and locating samples, loading the rows of taps.
//
// Macros: VALUE LOCATION WEIGHT, D, LEVELS, SAMPLES, UNIFORM_POINTS, RING, NEAREST BORDER CORNERS:
// see common/args.cuh. VEC: bytes of a row per lane; it divides the row. F16_SUMS: 2 if all
// products and sums are f16. ELEMENT_LOADS: a row of 2-byte values is loaded element by element.
#pragma once
#include "common/accumulate.cuh"
#include "common/levels.cuh"
#include "common/tensor.cuh"

#ifndef F16_SUMS
#define F16_SUMS 0
#endif
#ifndef ELEMENT_LOADS
#define ELEMENT_LOADS 0
#endif

constexpr int LANES_PER_ROW = ROW_BYTES / VEC;

// A lane's sums of a query.
#if F16_SUMS == 2
typedef F16Sums Sums;
#else
typedef float Sums[CHANNELS_PER_LANE];
#endif

struct Level {
    int height, width;
    int origin; // position of pixel (0, 0)
    int pitch;  // positions from image row to image row
    int first_sample;
};

struct Call {
    Tensor value, locations, weights, output;
    int images, queries, heads;
    Level level[LEVELS];
};

// Location and weight of a sample, as the caller gives them.
struct SampleInput {
    float x, y, weight;
};

// Locations and weights of one query.
struct QueryInputs {
    const char *locations, *weights;

    // Loads N samples from s on. L and W: known alignment of their locations and weights, in bytes.
    template <int N, int L, int W>
    __device__ __forceinline__ void load_many(SampleInput (&to)[N], int s) const {
        float xy[2 * N], weight[N];
        load_widened<LOCATION, 2 * N, L>(locations + s * (2 * size_of<LOCATION>), xy);
        load_widened<WEIGHT, N, W>(weights + s * size_of<WEIGHT>, weight);
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = SampleInput{xy[2 * i], xy[2 * i + 1], weight[i]};
    }

    __device__ __forceinline__ SampleInput load(int s) const {
        SampleInput one[1];
        load_many<1, size_of<LOCATION>, size_of<WEIGHT>>(one, s);
        return one[0];
    }
};

template <int N, int L, int W>
__device__ __forceinline__ void load_samples(SampleInput (&to)[N], const Call &call, int image,
                                             int query, int head, int s) {
    const QueryInputs inputs{call.locations.at(image, query, head),
                             call.weights.at(image, query, head)};
    inputs.load_many<N, L, W>(to, s);
}

__device__ __forceinline__ SampleInput load_sample(const Call &call, int image, int query, int head,
                                                   int s) {
    SampleInput one[1];
    load_samples<1, size_of<LOCATION>, size_of<WEIGHT>>(one, call, image, query, head, s);
    return one[0];
}

// The position of a tap that is not read and has weight 0.
constexpr int NOWHERE = -1;
constexpr int TAPS = NEAREST ? 1 : 4;

// The taps of a sample: top left, top right, bottom left, bottom right. Nearest: only the first.
struct Taps {
    int position[TAPS];
    float weight[TAPS];
};

// A sample on its level: pixel of its first tap, and the distance from there. If it does not count
// (off the map, or not finite), nothing of it is read.
struct Located {
    bool counts;
    int i, j;
    float x, y;
};

__device__ __forceinline__ Located locate(const Level &level, const SampleInput &input) {
    const float w = level.width, h = level.height;
    // Comparisons with NaN are false.
    const bool finite = fabsf(input.x) <= MAX_FLOAT && fabsf(input.y) <= MAX_FLOAT;
    float x = pixel_coordinate(input.x, w), y = pixel_coordinate(input.y, h);
    if (NEAREST) x = rintf(x), y = rintf(y);
    const float low = NEAREST ? 0.0f : -1.0f;
    const bool counts = (NEAREST ? x >= low && y >= low : x > low && y > low) && x < w && y < h &&
                        (!BORDER || finite);
    const float left = floorf(x), top = floorf(y);
    return Located{counts, counts ? int(left) : 0, counts ? int(top) : 0, counts ? x - left : 0,
                   counts ? y - top : 0};
}

// TRUST_RING: the level has a ring of zeros, so taps off the map may be read.
template <bool TRUST_RING = RING>
__device__ __forceinline__ Taps taps_of(const Level &level, const SampleInput &input) {
    const Located at = locate(level, input);
    const int first = level.origin + at.j * level.pitch + at.i;
    const float weight = at.counts ? input.weight : 0;
    Taps taps;
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        const int i = at.i + (k & 1), j = at.j + (k >> 1);
        const bool inside =
            TRUST_RING ? at.counts
                       : at.counts && i >= 0 && j >= 0 && i < level.width && j < level.height;
        taps.position[k] = inside ? first + (k >> 1) * level.pitch + (k & 1) : NOWHERE;
        const float share =
            NEAREST ? weight : weight * (k >> 1 ? at.y : 1 - at.y) * (k & 1 ? at.x : 1 - at.x);
        taps.weight[k] = TRUST_RING || inside ? share : 0;
    }
    return taps;
}

// Hides how an address was computed. Otherwise the compiler computes it again for every sample,
// 64-bit products included, to save two registers.
__device__ __forceinline__ const char *opaque(const char *address) {
    asm volatile("" : "+l"(address));
    return address;
}

__device__ __forceinline__ QueryInputs inputs_of(const Call &call, int image, int query, int head) {
    return QueryInputs{opaque(call.locations.at(image, query, head)),
                       opaque(call.weights.at(image, query, head))};
}

// LOAD, how rows are loaded: through L1 (0), past L1 (1), with a hint that L2 fetches whole lines
// (2), with a hint that L2 keeps them (3).
#ifndef LOAD
#define LOAD 0
#endif
#if LOAD == 0
#define LD "ld.global.nc"
#elif LOAD == 1
#define LD "ld.global.cg"
#elif LOAD == 2
#define LD "ld.global.nc.L2::128B"
#else
#define LD "ld.global.nc.L2::cache_hint"
#endif
#if LOAD == 3
#define HINT(N) ", %" #N ";}"
#else
#define HINT(N) ";}"
#endif
#define LD_IF(N) "{.reg .pred p; setp.ge.s32 p, %" #N ", 0; @p " LD

// The lane's bytes of a position, or zeros if it is NOWHERE. `base`: its bytes of position 0.
// A predicated load, not a branch: behind a branch the compiler computes the whole address again
// for every tap.
__device__ __forceinline__ Vector<VEC> load_row(const char *base, int pixel_stride, int position) {
    Vector<VEC> v{};
    const char *from = address_mad(base, position, pixel_stride);
    u64 policy = 0;
    if (LOAD == 3) asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    if constexpr (ELEMENT_LOADS) {
        static_assert(!ELEMENT_LOADS || size_of<VALUE> == 2, "an element has 2 bytes");
#pragma unroll
        for (int c = 0; c < CHANNELS_PER_LANE; c++) {
            u32 element = 0;
            asm(LD_IF(2) ".u16 %0, [%1]" HINT(3)
                : "+r"(element)
                : "l"(from + c * 2), "r"(position), "l"(policy));
            v.word[c / 2] |= element << c % 2 * 16;
        }
    } else if constexpr (VEC == 16) {
        asm(LD_IF(5) ".v4.u32 {%0, %1, %2, %3}, [%4]" HINT(6)
            : "+r"(v.word[0]), "+r"(v.word[1]), "+r"(v.word[2]), "+r"(v.word[3])
            : "l"(from), "r"(position), "l"(policy));
    } else if constexpr (VEC == 8) {
        asm(LD_IF(3) ".v2.u32 {%0, %1}, [%2]" HINT(4)
            : "+r"(v.word[0]), "+r"(v.word[1])
            : "l"(from), "r"(position), "l"(policy));
    } else if constexpr (VEC == 4) {
        asm(LD_IF(2) ".u32 %0, [%1]" HINT(3)
            : "+r"(v.word[0])
            : "l"(from), "r"(position), "l"(policy));
    } else {
        asm(LD_IF(2) ".u16 %0, [%1]" HINT(3)
            : "+r"(v.word[0])
            : "l"(from), "r"(position), "l"(policy));
    }
    return v;
}

// The rows of a sample's taps. All loads are issued before the first result is used.
struct TapRows {
    Vector<VEC> tap[TAPS];
};

__device__ __forceinline__ TapRows load_taps(const char *base, int pixel_stride, const Taps &taps) {
    TapRows rows;
#pragma unroll
    for (int k = 0; k < TAPS; k++) rows.tap[k] = load_row(base, pixel_stride, taps.position[k]);
    return rows;
}

// Adds a row to sums in f32 or f16.
__device__ __forceinline__ void add_row(float (&sum)[CHANNELS_PER_LANE], const Vector<VEC> &row,
                                        float weight) {
    multiply_add<VALUE>(sum, row, weight);
}
__device__ __forceinline__ void add_row(F16Sums &sum, const Vector<VEC> &row, float weight) {
    multiply_add(sum, row, weight);
}

template <typename SumsOfLane>
__device__ __forceinline__ void add_taps(SumsOfLane &sum, const TapRows &rows, const Taps &taps) {
#pragma unroll
    for (int k = 0; k < TAPS; k++) add_row(sum, rows.tap[k], taps.weight[k]);
}

template <typename SumsOfLane>
__device__ __forceinline__ void add_taps(SumsOfLane &sum, const char *base, int pixel_stride,
                                         const Taps &taps) {
    add_taps(sum, load_taps(base, pixel_stride, taps), taps);
}

// Adds sums in f16 to sums in f32 and resets them; a lane may have one channel.
__device__ __forceinline__ void add_sums(float (&sum)[CHANNELS_PER_LANE], F16Sums &partial) {
    if constexpr (CHANNELS_PER_LANE > 1) {
        flush_f16(sum, partial);
    } else {
        float low, high;
        widen2<F16>(partial.word[0], low, high);
        sum[0] += low, partial.word[0] = 0;
    }
}
__device__ __forceinline__ void add_sums(float (&sum)[CHANNELS_PER_LANE],
                                         const float (&partial)[CHANNELS_PER_LANE]) {
#pragma unroll
    for (int c = 0; c < CHANNELS_PER_LANE; c++) sum[c] += partial[c];
}

// Stores a lane's sums. The ring may hold anything and must not count: if a sum is not finite, it
// is computed again without reading the ring.
__device__ __forceinline__ void store_output(const Call &call, int image, int query, int head,
                                             int row_offset, float (&sum)[CHANNELS_PER_LANE]) {
    if (RING && !all_finite(sum)) {
        const char *base = call.value.at(image, 0, head) + row_offset;
#pragma unroll
        for (int c = 0; c < CHANNELS_PER_LANE; c++) sum[c] = 0;
#pragma unroll 1
        for (int s = 0; s < SAMPLES; s++) {
            add_taps(sum, base, call.value.row_stride,
                     taps_of<false>(call.level[level_of(call, s)],
                                    load_sample(call, image, query, head, s)));
        }
    }
    store_sums(call.output.at(image, query, head) + row_offset, sum);
}

__device__ __forceinline__ void store_output(const Call &call, int image, int query, int head,
                                             int row_offset, F16Sums &partial) {
    float sum[CHANNELS_PER_LANE] = {};
    add_sums(sum, partial);
    store_output(call, image, query, head, row_offset, sum);
}

// Asynchronous copies to shared memory, since sm_80.
template <int BYTES> __device__ __forceinline__ void copy_async(char *to, const char *from) {
    const u32 address = u32(__cvta_generic_to_shared(to));
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from),
                     "n"(BYTES)
                     : "memory");
    }
}

__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all committed groups of this thread but the last.
__device__ __forceinline__ void cp_async_wait_all_but_last() {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}
