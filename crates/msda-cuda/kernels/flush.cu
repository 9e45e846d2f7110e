// flush: reads a buffer, so that the caches hold it and nothing else, and hold it clean.
//
// The buffer is all zeros. What is read is joined bit by bit and written only if it is not zero, which does not happen
// and which the compiler does not know.
#include "prelude.cuh"

struct Args {
    const uint4 *data;
    i64 count; // of 16 bytes
    u32 *never;
};

extern "C" __global__ void __launch_bounds__(256) msda_flush(const __grid_constant__ Args args) {
    u32 bits = 0;
    const i64 step = i64(gridDim.x) * 256;
#pragma unroll 4
    for (i64 i = i64(blockIdx.x) * 256 + threadIdx.x; i < args.count; i += step) {
        const uint4 x = args.data[i];
        bits |= x.x | x.y | x.z | x.w;
    }
    if (bits != 0) *args.never = bits;
}
