// Integer names, element types and their conversions, and vectors of raw bytes.
// The kernels use no headers, so NVRTC needs no include folder.
#pragma once

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// Element types, as the host's macros name them.
#define F32 0
#define F16 1
#define BF16 2
#define F64 3

// Stored: the type in memory. Wide: the type of the arithmetic.
template <int T> struct Element;
template <> struct Element<F32> {
    typedef float Stored;
    typedef float Wide;
};
template <> struct Element<F16> {
    typedef u16 Stored;
    typedef float Wide;
};
template <> struct Element<BF16> {
    typedef u16 Stored;
    typedef float Wide;
};
template <> struct Element<F64> {
    typedef double Stored;
    typedef double Wide;
};

template <int T> constexpr int size_of = T == F64 ? 8 : T == F32 ? 4 : 2;

template <int T>
__device__ __forceinline__ typename Element<T>::Wide widen(typename Element<T>::Stored x) {
    if constexpr (T == F16) {
        float y;
        asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
        return y;
    } else if constexpr (T == BF16) {
        return __uint_as_float(u32(x) << 16);
    } else {
        return x;
    }
}

template <int T>
__device__ __forceinline__ typename Element<T>::Stored narrow(typename Element<T>::Wide x) {
    if constexpr (T == F16) {
        u16 y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
        return y;
    } else if constexpr (T == BF16) {
#if __CUDA_ARCH__ >= 800
        u16 y;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
        return y;
#else
        // Round to nearest, ties to even. A NaN stays a NaN.
        const u32 bits = __float_as_uint(x);
        return x != x ? u16(0x7fff) : u16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
    } else {
        return x;
    }
}

// Widens both 16-bit numbers of a word.
template <int T> __device__ __forceinline__ void widen2(u32 word, float &low, float &high) {
    if constexpr (T == F16) {
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
            : "=f"(low), "=f"(high)
            : "r"(word));
    } else {
        // A byte permutation, not a shift and a mask: with those the compiler schedules half as
        // many loads in flight.
        asm("prmt.b32 %0, %1, 0, 0x1044;" : "=f"(low) : "r"(word));
        asm("prmt.b32 %0, %1, 0, 0x3244;" : "=f"(high) : "r"(word));
    }
}

template <int T> __device__ __forceinline__ u32 narrow2(float low, float high) {
    return u32(narrow<T>(low)) | u32(narrow<T>(high)) << 16;
}

// FLT_MAX, to test for finite numbers: comparisons with NaN are false.
constexpr float MAX_FLOAT = 3.402823466e38f;

// BYTES (2 to 32) of a row as 32-bit words. Two bytes use the low half of one word.
template <int BYTES> struct Vector {
    static constexpr int WORDS = BYTES < 4 ? 1 : BYTES / 4;
    u32 word[WORDS];
};

// The N numbers of a vector, widened.
template <int T, int N>
__device__ __forceinline__ void widen_all(const Vector<N * size_of<T>> &v, float *x) {
    if constexpr (T == F32) {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = __uint_as_float(v.word[i]);
    } else if constexpr (N == 1) {
        x[0] = widen<T>(u16(v.word[0]));
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 2) widen2<T>(v.word[i / 2], x[i], x[i + 1]);
    }
}

// Rounds N numbers to type T.
template <int T, int N>
__device__ __forceinline__ Vector<N * size_of<T>> narrow_all(const float *x) {
    Vector<N * size_of<T>> v;
    if constexpr (T == F32) {
#pragma unroll
        for (int i = 0; i < N; i++) v.word[i] = __float_as_uint(x[i]);
    } else if constexpr (N == 1) {
        v.word[0] = narrow<T>(x[0]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 2) v.word[i / 2] = narrow2<T>(x[i], x[i + 1]);
    }
    return v;
}
// Compares the argument with the one that the host laid out: the host defines ARGS_BYTES, and
// ARGS_FIELDS as a list of ARG(field, offset). NVRTC has no offsetof; __INTADDR__ is its way to use
// an address in a constant.
#define ARG(field, offset)                                                                         \
    static_assert(__INTADDR__(&((Args *)0)->field) == offset,                                      \
                  "host and kernel disagree about the argument: " #field);
#define CHECK_ARGS                                                                                 \
    static_assert(sizeof(Args) == ARGS_BYTES, "host and kernel disagree about the argument");      \
    ARGS_FIELDS static_assert(true, "")
