// shared: a warp's loads from shared memory, at places that the host chose and can count the conflicts of.
//
// 32 warps, eight loads each, again and again: addresses stay in registers, a load costs at most one more instruction, and the
// data path is what they wait for. The loads are volatile: the compiler would keep the eight results instead.
#include "probes/data.cuh"

// Knobs: WIDTH, the bytes a lane loads; COUNT, the words of shared memory.
struct Args {
    const u32 *places; // bytes from the beginning: [warp][load][lane]
    u32 *sums;
    i64 *cycles;
    int steps;
};

__device__ __forceinline__ Vector<WIDTH> load(u32 at) {
    Vector<WIDTH> v;
#if WIDTH == 16
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "r"(at));
#elif WIDTH == 8
    asm volatile("ld.volatile.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.word[0]), "=r"(v.word[1]) : "r"(at));
#else
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(v.word[0]) : "r"(at));
#endif
    return v;
}

extern "C" __global__ void __launch_bounds__(1024, 1) msda_probe(const __grid_constant__ Args args) {
    __shared__ __align__(128) u32 words[COUNT];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (u32 i = threadIdx.x; i < COUNT; i += 1024) words[i] = mix(i);
    u32 at[8];
#pragma unroll
    for (int k = 0; k < 8; k++) at[k] = u32(__cvta_generic_to_shared(words)) + args.places[(warp * 8 + k) * 32 + lane];
    u32 sum = 0;
    __syncthreads();
    const i64 start = clock64();
#pragma unroll 1
    for (int i = 0; i < args.steps; i++) {
        Vector<WIDTH> v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = load(at[k]);
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
