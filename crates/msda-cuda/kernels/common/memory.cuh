// Loads and stores of 2 to 32 bytes, asynchronous copies of 4 or 16.
#pragma once
#include "common/types.cuh"

// Loads through the read-only path.
template <int BYTES> __device__ __forceinline__ Vector<BYTES> ld_global(const char *from) {
    Vector<BYTES> v;
    if constexpr (BYTES == 32) {
        const Vector<16> half[2] = {ld_global<16>(from), ld_global<16>(from + 16)};
#pragma unroll
        for (int i = 0; i < 8; i++) v.word[i] = half[i / 4].word[i % 4];
    } else if constexpr (BYTES == 16) {
        asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
            : "l"(from));
    } else if constexpr (BYTES == 8) {
        asm("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.word[0]), "=r"(v.word[1]) : "l"(from));
    } else if constexpr (BYTES == 4) {
        asm("ld.global.nc.u32 %0, [%1];" : "=r"(v.word[0]) : "l"(from));
    } else {
        asm("ld.global.nc.u16 %0, [%1];" : "=r"(v.word[0]) : "l"(from));
    }
    return v;
}

// The same for data that is read once: it does not evict values from L1.
template <int BYTES> __device__ __forceinline__ Vector<BYTES> ld_global_once(const char *from) {
    Vector<BYTES> v;
    if constexpr (BYTES == 16) {
        asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
            : "l"(from));
    } else if constexpr (BYTES == 8) {
        asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
            : "=r"(v.word[0]), "=r"(v.word[1])
            : "l"(from));
    } else if constexpr (BYTES == 4) {
        asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v.word[0]) : "l"(from));
    } else {
        asm("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=r"(v.word[0]) : "l"(from));
    }
    return v;
}

template <int BYTES> __device__ __forceinline__ void st_global(char *to, const Vector<BYTES> &v) {
    if constexpr (BYTES == 32) {
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            const Vector<16> half{{v.word[i], v.word[i + 1], v.word[i + 2], v.word[i + 3]}};
            st_global<16>(to + i * 4, half);
        }
    } else if constexpr (BYTES == 16) {
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.word[0]),
                     "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3])
                     : "memory");
    } else if constexpr (BYTES == 8) {
        asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(v.word[0]), "r"(v.word[1])
                     : "memory");
    } else if constexpr (BYTES == 4) {
        asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(v.word[0]) : "memory");
    } else {
        asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(u16(v.word[0])) : "memory");
    }
}

// A plain store: the compiler finds out which memory it is.
template <int BYTES> __device__ __forceinline__ void store(char *to, const Vector<BYTES> &v) {
    if constexpr (BYTES == 16) {
        *reinterpret_cast<uint4 *>(to) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
    } else if constexpr (BYTES == 8) {
        *reinterpret_cast<uint2 *>(to) = make_uint2(v.word[0], v.word[1]);
    } else if constexpr (BYTES == 4) {
        *reinterpret_cast<u32 *>(to) = v.word[0];
    } else {
        *reinterpret_cast<u16 *>(to) = u16(v.word[0]);
    }
}

// Copies 4 or 16 bytes to shared memory. They are visible after `cp_async_wait` and a barrier.
template <int BYTES = 16> __device__ __forceinline__ void cp_async(void *to, const char *from) {
#if __CUDA_ARCH__ >= 800
    const u32 address = u32(__cvta_generic_to_shared(to));
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from)
                     : "memory");
    }
#else
    store<BYTES>(reinterpret_cast<char *>(to), ld_global<BYTES>(from));
#endif
}

__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// base + a * b as a PTX instruction, which the compiler turns into two adds per row. For the same
// expression in C++ it emits one IMAD.WIDE, in the pipe that also widens f16: that was slower.
__device__ __forceinline__ const char *address_mad(const char *base, int a, int b) {
    const char *address;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(address) : "r"(a), "r"(b), "l"(base));
    return address;
}

// N consecutive numbers as they are stored. ALIGN: known alignment of their address, in bytes.
template <int T, int N, int ALIGN> struct Packed {
    static constexpr int total_bytes = N * size_of<T>;
    static constexpr int natural = total_bytes & -total_bytes;
    static constexpr int common = ALIGN < natural ? ALIGN : natural;
    static constexpr int load_bytes = common > 16 ? 16 : common;
    static constexpr int numbers_per_load = load_bytes / size_of<T>;
    Vector<load_bytes> loaded[N / numbers_per_load];

    __device__ __forceinline__ void load(const char *from) {
#pragma unroll
        for (int i = 0; i < N / numbers_per_load; i++) {
            loaded[i] = ld_global_once<load_bytes>(from + i * load_bytes);
        }
    }
    // The same for data whose neighbours are read soon: L1 keeps the line.
    __device__ __forceinline__ void load_cached(const char *from) {
#pragma unroll
        for (int i = 0; i < N / numbers_per_load; i++) {
            loaded[i] = ld_global<load_bytes>(from + i * load_bytes);
        }
    }

    __device__ __forceinline__ void widen_to(float (&x)[N]) const {
#pragma unroll
        for (int i = 0; i < N / numbers_per_load; i++) {
            widen_all<T, numbers_per_load>(loaded[i], x + i * numbers_per_load);
        }
    }
};

// Loads N consecutive numbers and widens them.
template <int T, int N, int ALIGN>
__device__ __forceinline__ void load_widened(const char *from, float (&x)[N]) {
    Packed<T, N, ALIGN> packed;
    packed.load(from);
    packed.widen_to(x);
}
