// gather: random rows of a window, 16 bytes a lane, as many lanes to a row as it has pieces. How large the window is decides
// which memory answers.
//
// A step draws one number; the rows of its eight loads are that number with different bits turned over. So an address costs one
// instruction where the caches deliver a row every cycle. Every thread leaves the bits of all it read.
#include "probes/data.cuh"

// Knobs: ROW, the bytes of a row.
struct Args {
    const char *window;
    u32 *sums;
    u32 mask; // the window's size less a row: both are powers of two
    int steps;
};

extern "C" __global__ void __launch_bounds__(512, 2) msda_probe(const __grid_constant__ Args args) {
    constexpr u32 LANES = ROW / 16;
    const u32 thread = blockIdx.x * 512 + threadIdx.x;
    const u32 piece = thread % LANES * 16;
    u32 state = mix(thread / LANES);
    u32 turned[8];
#pragma unroll
    for (int k = 0; k < 8; k++) turned[k] = mix(k) & args.mask;
    u32 sum = 0;
#pragma unroll 1
    for (int i = 0; i < args.steps; i++) {
        // The low bits of such a sequence repeat soon.
        state = state * 1664525u + 1013904223u;
        const u32 row = ((state ^ state >> 15) & args.mask) | piece;
        Vector<16> v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = gather<16>(args.window + (row ^ turned[k]));
#pragma unroll
        for (int k = 0; k < 8; k++) sum ^= v[k].word[0] ^ v[k].word[1] ^ v[k].word[2] ^ v[k].word[3];
    }
    args.sums[thread] = sum;
}
