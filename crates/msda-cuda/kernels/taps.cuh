// What kernels that read rows share: where tensors are, pixel coordinates, weighted sums of VEC bytes.
//
// Macros: VALUE, D, VEC (bytes that a lane reads of a row), LEVELS, UNIFORM (points of each level, or 0 where they differ),
// CORNERS, BORDER.
#pragma once
#include "prelude.cuh"

constexpr int ROW = D * size_of<VALUE>;
constexpr int EACH = VEC / size_of<VALUE>; // channels of a lane

// A tensor: bytes from image to image, from query or position to the next, and from head (or level) to the next.
struct Tensor {
    char *base;
    i64 image;
    int row, head;
    __device__ __forceinline__ char *at(int i, int j, int k) const {
        return base + i * image + i64(j) * row + i64(k) * head;
    }
    // The same in fewer instructions, for reads and writes that name global memory: the compiler no longer sees that it is.
    __device__ __forceinline__ char *address(int i, int j, int k) const {
        return const_cast<char *>(offset(offset(base + i * image, j, row), k, head));
    }
};

// The level of a sample, of arguments that have the first sample of each.
template <typename Args> __device__ __forceinline__ int level_of(const Args &args, int s) {
    if (UNIFORM > 0) return s / (UNIFORM > 0 ? UNIFORM : 1);
    int l = 0;
#pragma unroll
    for (int i = 1; i < LEVELS; i++) l = s >= args.level[i].sample ? i : l;
    return l;
}

// The pixel coordinate of a normalised one on an axis.
__device__ __forceinline__ float pixel(float t, float side) {
    float c = CORNERS ? t * (side - 1) : t * side - 0.5f;
    if (BORDER) c = fminf(fmaxf(c, 0.0f), side - 1);
    return c;
}

template <int T, int N, int BYTES> __device__ __forceinline__ void multiply_add(float (&sum)[N], const Vector<BYTES> &v, float w) {
    if constexpr (T == F32) {
#pragma unroll
        for (int c = 0; c < N; c++) sum[c] = fmaf(w, __uint_as_float(v.word[c]), sum[c]);
    } else if constexpr (N == 1) {
        sum[0] = fmaf(w, widen<T>(u16(v.word[0])), sum[0]);
    } else {
#pragma unroll
        for (int c = 0; c < N; c += 2) {
            float low, high;
            widen2<T>(v.word[c / 2], low, high);
            sum[c] = fmaf(w, low, sum[c]);
            sum[c + 1] = fmaf(w, high, sum[c + 1]);
        }
    }
}

// Sums of a few taps in f16, two to a word.
struct Halves {
    u32 word[EACH > 1 ? EACH / 2 : 1];
};

__device__ __forceinline__ void multiply_add(Halves &sum, const Vector<VEC> &v, float w) {
    const u32 both = narrow2<F16>(w, w);
#pragma unroll
    for (int i = 0; i < Vector<VEC>::WORDS; i++) {
        asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum.word[i]) : "r"(v.word[i]), "r"(both));
    }
}

// Adds them, and begins anew.
__device__ __forceinline__ void gather_up(float (&sum)[EACH], Halves &halves) {
#pragma unroll
    for (int c = 0; c + 1 < EACH; c += 2) {
        float low, high;
        widen2<F16>(halves.word[c / 2], low, high);
        sum[c] += low, sum[c + 1] += high;
        halves.word[c / 2] = 0;
    }
}

// Writes sums to global memory.
template <int N> __device__ __forceinline__ void write(char *at, const float (&sum)[N]) {
    Vector<N * size_of<VALUE>> v;
    if constexpr (VALUE == F32) {
#pragma unroll
        for (int c = 0; c < N; c++) v.word[c] = __float_as_uint(sum[c]);
    } else if constexpr (N == 1) {
        v.word[0] = narrow<VALUE>(sum[0]);
    } else {
#pragma unroll
        for (int c = 0; c < N; c += 2) v.word[c / 2] = narrow2<VALUE>(sum[c], sum[c + 1]);
    }
    put<N * size_of<VALUE>>(at, v);
}

// Whether all of them are finite.
template <int N> __device__ __forceinline__ bool finite(const float (&x)[N]) {
    float zero = 0;
#pragma unroll
    for (int c = 0; c < N; c++) zero = fmaf(x[c], 0.0f, zero);
    return zero == 0;
}
