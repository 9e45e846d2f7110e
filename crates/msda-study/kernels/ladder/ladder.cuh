// What the rungs of the ladder share: the call, its samples, and where their taps are.
//
// Macros beside those of taps.cuh: LOCATION, WEIGHT, SAMPLES, RING, NEAREST. VEC divides a row.
#pragma once
#include "taps.cuh"

constexpr int LANES = ROW / VEC; // that a row takes

// A level: its size, the position of its first pixel, positions from row to row, and its first sample.
struct Level {
    int h, w, origin, pitch, sample;
};

struct Call {
    Tensor value, locations, weights, output;
    int images, queries, heads;
    Level level[LEVELS];
};

// A sample as it is given.
struct Given {
    float x, y, weight;
};

// N samples from s on; L and W bytes are what their locations and weights are known to be aligned to.
template <int N, int L, int W>
__device__ __forceinline__ void given(Given (&to)[N], const Call &call, int image, int query, int head, int s) {
    float xy[2 * N], weight[N];
    read<LOCATION, 2 * N, L>(call.locations.at(image, query, head) + s * (2 * size_of<LOCATION>), xy);
    read<WEIGHT, N, W>(call.weights.at(image, query, head) + s * size_of<WEIGHT>, weight);
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = Given{xy[2 * i], xy[2 * i + 1], weight[i]};
}

__device__ __forceinline__ Given given(const Call &call, int image, int query, int head, int s) {
    Given one[1];
    given<1, size_of<LOCATION>, size_of<WEIGHT>>(one, call, image, query, head, s);
    return one[0];
}

// The position of a tap that is not read, and has no weight.
constexpr int NOWHERE = -1;
constexpr int TAPS = NEAREST ? 1 : 4;

// The taps of a sample: top left, top right, bottom left, bottom right; of a nearest one the first only.
struct Taps {
    int position[TAPS];
    float weight[TAPS];
};

// A sample on its level: the pixel that its first tap is, and how far it is from there. Nothing of it is read where it is not `there`.
struct Spot {
    bool there;
    int i, j;
    float x, y;
};

__device__ __forceinline__ Spot spot(const Level &level, const Given &given) {
    const float w = level.w, h = level.h;
    // Comparisons with NaN are false.
    const bool finite = fabsf(given.x) <= 3.402823466e38f && fabsf(given.y) <= 3.402823466e38f;
    float x = pixel(given.x, w), y = pixel(given.y, h);
    if (NEAREST) x = rintf(x), y = rintf(y);
    const float low = NEAREST ? 0.0f : -1.0f;
    const bool there = (NEAREST ? x >= low && y >= low : x > low && y > low) && x < w && y < h && (!BORDER || finite);
    const float left = floorf(x), top = floorf(y);
    return Spot{there, there ? int(left) : 0, there ? int(top) : 0, there ? x - left : 0, there ? y - top : 0};
}

// TRUST: what is around the level is zeros.
template <bool TRUST = RING> __device__ __forceinline__ Taps taps_of(const Level &level, const Given &given) {
    const Spot at = spot(level, given);
    const int first = level.origin + at.j * level.pitch + at.i;
    const float weight = at.there ? given.weight : 0;
    Taps taps;
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        const int i = at.i + (k & 1), j = at.j + (k >> 1);
        const bool inside = TRUST ? at.there : at.there && i >= 0 && j >= 0 && i < level.w && j < level.h;
        taps.position[k] = inside ? first + (k >> 1) * level.pitch + (k & 1) : NOWHERE;
        const float part = NEAREST ? weight : weight * (k >> 1 ? at.y : 1 - at.y) * (k & 1 ? at.x : 1 - at.x);
        taps.weight[k] = TRUST || inside ? part : 0;
    }
    return taps;
}

// An address that is computed once. Left alone the compiler computes such a base anew for every sample, 64-bit products
// included, to save two registers; so it does not get to know where it comes from.
__device__ __forceinline__ const char *once(const char *base) {
    asm volatile("" : "+l"(base));
    return base;
}

// How a row is read, by the macro LOAD: through the first-level cache (0), past it (1), with a hint that the second-level
// cache should read whole lines (2), with the wish that it keeps them (3).
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
#define WHERE(N) "{.reg .pred p; setp.ge.s32 p, %" #N ", 0; @p " LD

// The lane's bytes of a position, or zeros if it is NOWHERE; `base` is where position 0 has them. Not a branch but one
// instruction that is or is not executed: behind a branch the compiler computes all of an address anew for every tap.
__device__ __forceinline__ Vector<VEC> row_at(const char *base, int row, int position) {
    Vector<VEC> v{};
    const char *at = offset(base, position, row);
    u64 keep = 0;
    if (LOAD == 3) asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
    if constexpr (VEC == 16) {
        asm(WHERE(5) ".v4.u32 {%0, %1, %2, %3}, [%4]" HINT(6)
            : "+r"(v.word[0]), "+r"(v.word[1]), "+r"(v.word[2]), "+r"(v.word[3])
            : "l"(at), "r"(position), "l"(keep));
    } else if constexpr (VEC == 8) {
        asm(WHERE(3) ".v2.u32 {%0, %1}, [%2]" HINT(4) : "+r"(v.word[0]), "+r"(v.word[1]) : "l"(at), "r"(position), "l"(keep));
    } else if constexpr (VEC == 4) {
        asm(WHERE(2) ".u32 %0, [%1]" HINT(3) : "+r"(v.word[0]) : "l"(at), "r"(position), "l"(keep));
    } else {
        asm(WHERE(2) ".u16 %0, [%1]" HINT(3) : "+r"(v.word[0]) : "l"(at), "r"(position), "l"(keep));
    }
    return v;
}

// The rows of a sample's taps; what is not read is zeros, so that nothing waits for one row before it asks for the next.
struct Rows {
    Vector<VEC> tap[TAPS];
};

__device__ __forceinline__ Rows rows_of(const char *base, int row, const Taps &taps) {
    Rows rows;
#pragma unroll
    for (int k = 0; k < TAPS; k++) rows.tap[k] = row_at(base, row, taps.position[k]);
    return rows;
}

__device__ __forceinline__ void add(float (&sum)[EACH], const Rows &rows, const Taps &taps) {
#pragma unroll
    for (int k = 0; k < TAPS; k++) multiply_add<VALUE>(sum, rows.tap[k], taps.weight[k]);
}

__device__ __forceinline__ void add(float (&sum)[EACH], const char *base, int row, const Taps &taps) {
    add(sum, rows_of(base, row, taps), taps);
}

// The same with products and sums in f16.
__device__ __forceinline__ void add(Halves &sum, const char *base, int row, const Taps &taps) {
    const Rows rows = rows_of(base, row, taps);
#pragma unroll
    for (int k = 0; k < TAPS; k++) multiply_add(sum, rows.tap[k], taps.weight[k]);
}

// Stores a lane's sums. A ring may hold anything but must not count: where it made a sum that is not finite, the sum
// is computed once more without it.
__device__ __forceinline__ void finish(const Call &call, int image, int query, int head, int start, float (&sum)[EACH]) {
    if (RING && !finite(sum)) {
        const char *base = call.value.at(image, 0, head) + start;
#pragma unroll
        for (int c = 0; c < EACH; c++) sum[c] = 0;
#pragma unroll 1
        for (int s = 0; s < SAMPLES; s++) {
            add(sum, base, call.value.row, taps_of<false>(call.level[level_of(call, s)], given(call, image, query, head, s)));
        }
    }
    write(call.output.at(image, query, head) + start, sum);
}
