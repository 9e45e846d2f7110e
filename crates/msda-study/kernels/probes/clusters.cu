// clusters: measures loads from the shared memory of other blocks of a cluster.
//
//   block r holds 80 KiB and reads those of blocks r+1, r+2, ... in turn, 16 bytes per lane; or its
//   own as often, to compare
//
// The shared memory of a block is gone when it exits, so no block exits before all have reached the
// last barrier. Without it (LAST_BARRIER 0) a block may read freed memory; the probe tries that in
// a process of its own.
#include "probes/data.cuh"

// Macros: CLUSTER, blocks per cluster; REMOTE, 1: other blocks are read; LAST_BARRIER.
#define THREADS 512
#define BYTES 81920
#define LOADS (BYTES / 16 / THREADS) // per thread and pass

struct Args {
    u32 *sums;
    u32 passes; // each reads all that a block holds
};

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

__device__ __forceinline__ Vector<16> load(u32 at) {
    Vector<16> v;
#if REMOTE
    asm("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
#else
    asm("ld.shared::cta.v4.u32 {%0, %1, %2, %3}, [%4];"
#endif
        : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
        : "r"(at));
    return v;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_probe(const __grid_constant__ Args args) {
    extern __shared__ __align__(128) char memory[];
    for (u32 i = threadIdx.x; i < BYTES / 4; i += THREADS)
        reinterpret_cast<u32 *>(memory)[i] = mix(blockIdx.x * (BYTES / 4) + i);
    const u32 begin = u32(__cvta_generic_to_shared(memory));
    cluster_barrier();
    u32 sum = 0;
#pragma unroll 1
    for (u32 pass = 0; pass < args.passes; pass++) {
        u32 at = begin;
#if REMOTE
        asm("mapa.shared::cluster.u32 %0, %1, %2;"
            : "=r"(at)
            : "r"(begin), "r"((blockIdx.x + 1 + pass % (CLUSTER - 1)) % CLUSTER));
#endif
        // Other addresses in each pass: the compiler cannot reuse the last pass's results.
        at += (threadIdx.x + pass * 32) % THREADS * 16;
        Vector<16> v[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; k++) v[k] = load(at + k * THREADS * 16);
#pragma unroll
        for (int k = 0; k < LOADS; k++)
            sum += v[k].word[0] + v[k].word[1] + v[k].word[2] + v[k].word[3];
    }
    args.sums[blockIdx.x * THREADS + threadIdx.x] = sum;
    if (LAST_BARRIER) cluster_barrier();
}
