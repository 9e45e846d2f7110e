// What every kernel is written in: element types, wide loads and stores, and the levels. No headers are needed.
#pragma once

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// Element types as macros name them.
#define F32 0
#define F16 1
#define BF16 2
#define F64 3

// How an element is stored, and the type that arithmetic on it is done in.
template <int T> struct Element;
template <> struct Element<F32> { typedef float Stored; typedef float Wide; };
template <> struct Element<F16> { typedef u16 Stored; typedef float Wide; };
template <> struct Element<BF16> { typedef u16 Stored; typedef float Wide; };
template <> struct Element<F64> { typedef double Stored; typedef double Wide; };

template <int T> __device__ __forceinline__ typename Element<T>::Wide widen(typename Element<T>::Stored x) {
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

template <int T> __device__ __forceinline__ typename Element<T>::Stored narrow(typename Element<T>::Wide x) {
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
        // To nearest, ties to even; a NaN stays one.
        const u32 bits = __float_as_uint(x);
        return x != x ? u16(0x7fff) : u16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
    } else {
        return x;
    }
}

// The two 16-bit numbers of a word, widened.
template <int T> __device__ __forceinline__ void widen2(u32 word, float &low, float &high) {
    if constexpr (T == F16) {
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
            : "=f"(low), "=f"(high)
            : "r"(word));
    } else {
        // So and not by shift and mask: the compiler then plans for more reads on their way.
        asm("prmt.b32 %0, %1, 0, 0x1044;" : "=f"(low) : "r"(word));
        asm("prmt.b32 %0, %1, 0, 0x3244;" : "=f"(high) : "r"(word));
    }
}

template <int T> __device__ __forceinline__ u32 narrow2(float low, float high) {
    return u32(narrow<T>(low)) | u32(narrow<T>(high)) << 16;
}

template <int T> constexpr int size_of = T == F64 ? 8 : T == F32 ? 4 : 2;

// BYTES (2 to 16) of a row, as 32-bit words; 2 bytes sit in the low half of one word.
template <int BYTES> struct Vector {
    static constexpr int WORDS = BYTES < 4 ? 1 : BYTES / 4;
    u32 word[WORDS];
};

// Reads through the read-only path.
template <int BYTES> __device__ __forceinline__ Vector<BYTES> gather(const char *at) {
    Vector<BYTES> v;
    if constexpr (BYTES == 16) {
        asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
            : "l"(at));
    } else if constexpr (BYTES == 8) {
        asm("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.word[0]), "=r"(v.word[1]) : "l"(at));
    } else if constexpr (BYTES == 4) {
        asm("ld.global.nc.u32 %0, [%1];" : "=r"(v.word[0]) : "l"(at));
    } else {
        asm("ld.global.nc.u16 %0, [%1];" : "=r"(v.word[0]) : "l"(at));
    }
    return v;
}

// base + a * b. The compiler makes adds of it, two at a time; of a multiplication and an addition it would make one instruction. But that
// is done where f16 is widened, and where a kernel does much of it, it takes longer.
__device__ __forceinline__ const char *offset(const char *base, int a, int b) {
    const char *at;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(at) : "r"(a), "r"(b), "l"(base));
    return at;
}

// Reads what is read once: it need not stay in the first-level cache.
template <int BYTES> __device__ __forceinline__ Vector<BYTES> stream(const char *at) {
    Vector<BYTES> v;
    if constexpr (BYTES == 16) {
        asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
            : "l"(at));
    } else if constexpr (BYTES == 8) {
        asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.word[0]), "=r"(v.word[1]) : "l"(at));
    } else if constexpr (BYTES == 4) {
        asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v.word[0]) : "l"(at));
    } else {
        asm("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=r"(v.word[0]) : "l"(at));
    }
    return v;
}

// Copies 16 bytes to shared memory; they are there after `copied` and a barrier.
__device__ __forceinline__ void copy(uint4 *to, const char *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(u32(__cvta_generic_to_shared(to))), "l"(from) : "memory");
#else
    const Vector<16> v = gather<16>(from);
    *to = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
#endif
}

__device__ __forceinline__ void copied() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

template <int BYTES> __device__ __forceinline__ void store(char *at, const Vector<BYTES> &v) {
    if constexpr (BYTES == 16) {
        *reinterpret_cast<uint4 *>(at) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
    } else if constexpr (BYTES == 8) {
        *reinterpret_cast<uint2 *>(at) = make_uint2(v.word[0], v.word[1]);
    } else if constexpr (BYTES == 4) {
        *reinterpret_cast<u32 *>(at) = v.word[0];
    } else {
        *reinterpret_cast<u16 *>(at) = u16(v.word[0]);
    }
}

// To global memory.
template <int BYTES> __device__ __forceinline__ void put(char *at, const Vector<BYTES> &v) {
    if constexpr (BYTES == 16) {
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]) : "memory");
    } else if constexpr (BYTES == 8) {
        asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(v.word[0]), "r"(v.word[1]) : "memory");
    } else if constexpr (BYTES == 4) {
        asm volatile("st.global.u32 [%0], %1;" ::"l"(at), "r"(v.word[0]) : "memory");
    } else {
        asm volatile("st.global.u16 [%0], %1;" ::"l"(at), "h"(u16(v.word[0])) : "memory");
    }
}

// N numbers that lie together, as they are stored; ALIGN bytes is what their address is known to be a multiple of.
template <int T, int N, int ALIGN> struct Packed {
    static constexpr int all = N * size_of<T>;
    static constexpr int even = ALIGN < (all & -all) ? ALIGN : all & -all;
    static constexpr int wide = even > 16 ? 16 : even; // bytes read at a time
    static constexpr int each = wide / size_of<T>;
    Vector<wide> part[N / each];

    __device__ __forceinline__ void load(const char *at) {
#pragma unroll
        for (int i = 0; i < N / each; i++) part[i] = stream<wide>(at + i * wide);
    }

    __device__ __forceinline__ void widen_to(float (&x)[N]) const {
#pragma unroll
        for (int i = 0; i < N; i += each) {
            const Vector<wide> &v = part[i / each];
            if constexpr (T == F32) {
#pragma unroll
                for (int k = 0; k < each; k++) x[i + k] = __uint_as_float(v.word[k]);
            } else if constexpr (each == 1) {
                x[i] = widen<T>(u16(v.word[0]));
            } else {
#pragma unroll
                for (int k = 0; k < each; k += 2) widen2<T>(v.word[k / 2], x[i + k], x[i + k + 1]);
            }
        }
    }
};

// The same, widened at once.
template <int T, int N, int ALIGN> __device__ __forceinline__ void read(const char *at, float (&x)[N]) {
    Packed<T, N, ALIGN> packed;
    packed.load(at);
    packed.widen_to(x);
}
