// clusters: blocks of a cluster read each other's shared memory.
//
//   block r holds 80 KiB and reads those of r+1, r+2, ... around the ring, 16 bytes a lane; or its own as often, to compare
//
// Memory that a neighbour still reads must not go away: nobody leaves before all have arrived at the last barrier. A kernel
// without it reads what is no longer there, and hangs or fails as soon as other clusters wait for the room.
#include "probes/data.cuh"

// Knobs: CLUSTER, its blocks; REMOTE, whether neighbours are read.
#define THREADS 512
#define BYTES 81920
#define EACH (BYTES / 16 / THREADS)

struct Args {
    u32 *sums;
    u32 turns; // each reads all that a block holds
};

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
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

extern "C" __global__ void __launch_bounds__(THREADS) msda_probe(const __grid_constant__ Args args) {
    extern __shared__ __align__(128) char held[];
    for (u32 i = threadIdx.x; i < BYTES / 4; i += THREADS) reinterpret_cast<u32 *>(held)[i] = mix(blockIdx.x * (BYTES / 4) + i);
    const u32 begin = u32(__cvta_generic_to_shared(held));
    cluster_barrier();
    u32 sum = 0;
#pragma unroll 1
    for (u32 turn = 0; turn < args.turns; turn++) {
        u32 at = begin;
#if REMOTE
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(begin), "r"((blockIdx.x + 1 + turn % (CLUSTER - 1)) % CLUSTER));
#endif
        // Another warp's pieces every turn: what is read is never what the registers hold.
        at += (threadIdx.x + turn * 32) % THREADS * 16;
        Vector<16> v[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++) v[k] = load(at + k * THREADS * 16);
#pragma unroll
        for (int k = 0; k < EACH; k++) sum += v[k].word[0] + v[k].word[1] + v[k].word[2] + v[k].word[3];
    }
    args.sums[blockIdx.x * THREADS + threadIdx.x] = sum;
    cluster_barrier();
}
