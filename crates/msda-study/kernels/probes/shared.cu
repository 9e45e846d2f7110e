// shared: measures loads from shared memory at offsets that the host chose. The host counts their
// bank conflicts.
//
// 32 warps repeat eight loads each. The addresses stay in registers, so a load costs at most one
// more instruction, and the data path is the bound. The loads are volatile: otherwise the compiler
// would keep the eight results.
#include "probes/data.cuh"

// Macros: WIDTH, bytes per lane and load; COUNT, words of shared memory.
struct Args {
    const u32 *offsets; // in bytes: [warp][load][lane]
    u32 *sums;
    i64 *cycles;
    int steps;
};

__device__ __forceinline__ Vector<WIDTH> load(u32 address) {
    Vector<WIDTH> v;
#if WIDTH == 16
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "r"(address));
#elif WIDTH == 8
    asm volatile("ld.volatile.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.word[0]), "=r"(v.word[1])
                 : "r"(address));
#else
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(v.word[0]) : "r"(address));
#endif
    return v;
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    msda_probe(const __grid_constant__ Args args) {
    __shared__ __align__(128) u32 words[COUNT];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (u32 i = threadIdx.x; i < COUNT; i += 1024) words[i] = mix(i);
    u32 address[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const u32 offset = args.offsets[(warp * 8 + k) * 32 + lane];
        address[k] = u32(__cvta_generic_to_shared(words)) + offset;
    }
    u32 sum = 0;
    __syncthreads();
    const i64 start = clock64();
#pragma unroll 1
    for (int i = 0; i < args.steps; i++) {
        Vector<WIDTH> v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = load(address[k]);
#pragma unroll
        for (int k = 0; k < 8; k++) {
#pragma unroll
            for (int j = 0; j < Vector<WIDTH>::WORDS; j++) sum += v[k].word[j];
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) args.cycles[blockIdx.x] = clock64() - start;
    args.sums[blockIdx.x * 1024 + threadIdx.x] = sum;
}
