// stream: measures reading a buffer in order, 16 bytes per lane, eight loads in flight.
//
// Each thread stores the XOR of all that it loaded, so no load can be removed.
#include "probes/data.cuh"

struct Args {
    const char *data; // steps * 8 * threads * 16 bytes
    u32 *sums;
    int steps;
};

extern "C" __global__ void __launch_bounds__(512, 2) msda_probe(const __grid_constant__ Args args) {
    const u32 thread = blockIdx.x * 512 + threadIdx.x;
    const i64 stride = i64(gridDim.x) * 512 * 16;
    const char *from = args.data + i64(thread) * 16;
    u32 sum = 0;
#pragma unroll 1
    for (int i = 0; i < args.steps; i++) {
        Vector<16> v[8];
#pragma unroll
        for (int k = 0; k < 8; k++, from += stride) v[k] = ld_global_once<16>(from);
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum ^= v[k].word[0] ^ v[k].word[1] ^ v[k].word[2] ^ v[k].word[3];
    }
    args.sums[thread] = sum;
}
