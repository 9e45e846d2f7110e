// gather: measures loads of random rows from a window, 16 bytes per lane, ROW / 16 lanes per row.
// The size of the window decides which memory answers: L1, L2 or device memory.
//
// A step draws one random number. The rows of its eight loads are that number with different bits
// flipped, so an address costs one instruction, and the caches are the bound. Each thread stores
// the XOR of all that it loaded.
#include "probes/data.cuh"

// Macros: ROW, bytes per row.
struct Args {
    const char *window;
    u32 *sums;
    u32 mask; // size of the window minus size of a row; both are powers of two
    int steps;
};

extern "C" __global__ void __launch_bounds__(512, 2) msda_probe(const __grid_constant__ Args args) {
    constexpr u32 LANES_PER_ROW = ROW / 16;
    const u32 thread = blockIdx.x * 512 + threadIdx.x;
    const u32 row_offset = thread % LANES_PER_ROW * 16;
    u32 state = mix(thread / LANES_PER_ROW);
    u32 flips[8];
#pragma unroll
    for (int k = 0; k < 8; k++) flips[k] = mix(k) & args.mask;
    u32 sum = 0;
#pragma unroll 1
    for (int i = 0; i < args.steps; i++) {
        // The low bits of a linear congruential generator have short periods.
        state = state * 1664525u + 1013904223u;
        const u32 row = ((state ^ state >> 15) & args.mask) | row_offset;
        Vector<16> v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = ld_global<16>(args.window + (row ^ flips[k]));
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum ^= v[k].word[0] ^ v[k].word[1] ^ v[k].word[2] ^ v[k].word[3];
    }
    args.sums[thread] = sum;
}
