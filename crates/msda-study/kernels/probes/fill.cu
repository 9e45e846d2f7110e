// fill: writes mix(i) to word i of a buffer. One thread per word, with a grid-stride loop.
#include "probes/data.cuh"

struct Args {
    u32 *words;
    i64 count;
};

extern "C" __global__ void __launch_bounds__(256) msda_probe(const __grid_constant__ Args args) {
    for (i64 i = i64(blockIdx.x) * 256 + threadIdx.x; i < args.count; i += i64(gridDim.x) * 256) {
        args.words[i] = mix(u32(i));
    }
}
