// claims: which outputs a persistent kernel writes, by the way in which it takes work items.
//
//   a block:  take an item (a query)  |  thread c < 32 writes channel c of it  |  again
//
//   PER_THREAD 1   every thread takes an item of its own, and writes its channel of that item
//   PER_THREAD 0   one thread takes an item for the block
#include "common/memory.cuh"

#define THREADS 256
#define CHANNELS 32

struct Args {
    u32 *next;
    u32 *output;
    int items;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_probe(const __grid_constant__ Args args) {
    for (;;) {
#if PER_THREAD
        const int item = int(atomicAdd(args.next, 1u));
#else
        __shared__ int taken;
        __syncthreads();
        if (threadIdx.x == 0) taken = int(atomicAdd(args.next, 1u));
        __syncthreads();
        const int item = taken;
#endif
        const bool done = item >= args.items;
        // All threads stay together, as in a kernel that fills shared memory for each item.
        if (__syncthreads_and(done)) return;
        if (!done && threadIdx.x < CHANNELS) args.output[item * CHANNELS + threadIdx.x] = 1;
    }
}
