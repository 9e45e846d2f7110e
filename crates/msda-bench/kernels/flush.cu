// flush: reads a buffer, so that the caches hold it and nothing else, with no line to write back.
//
// Threads: a grid-stride loop over 16-byte vectors.
// The buffer is all zeros. A thread ORs all bits that it loads and stores them if one is set. That
// never happens, but the compiler cannot know it, so it keeps the loads.
//
// Bound by: device memory.
// Best for: measuring with cold caches.
#include "common/types.cuh"

struct Args {
    const uint4 *data;
    i64 count; // of 16-byte vectors
    u32 *never_written;
};
static_assert(sizeof(Args) == 24, "measure/flush.rs has the same structure");

extern "C" __global__ void __launch_bounds__(256) msda_flush(const __grid_constant__ Args args) {
    u32 bits = 0;
    const i64 step = i64(gridDim.x) * 256;
#pragma unroll 4
    for (i64 i = i64(blockIdx.x) * 256 + threadIdx.x; i < args.count; i += step) {
        const uint4 x = args.data[i];
        bits |= x.x | x.y | x.z | x.w;
    }
    if (bits != 0) *args.never_written = bits;
}
