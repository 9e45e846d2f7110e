// fma: measures multiply-adds. Eight independent chains per thread, nothing else.
//
// Each multiply-add adds 1, so the result is their number. The factor is an argument, so the
// compiler does not know that it is 1. In f16 the numbers stay below 2048, up to which counting is
// exact.
#include "probes/data.cuh"

// Macros: TYPE, F32 or F16 (two numbers per instruction).
struct Args {
    u32 *sums;
    float one;
    int steps; // of 16 multiply-adds per chain
};

extern "C" __global__ void __launch_bounds__(512) msda_probe(const __grid_constant__ Args args) {
    const u32 thread = blockIdx.x * 512 + threadIdx.x;
    float sum = 0;
#if TYPE == F32
    float x[8];
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] = thread % 32 + k;
#pragma unroll 1
    for (int i = 0; i < args.steps; i++) {
#pragma unroll
        for (int k = 0; k < 8 * 16; k++) {
            asm("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x[k % 8]) : "f"(args.one));
        }
    }
#pragma unroll
    for (int k = 0; k < 8; k++) sum += x[k];
#else
    u32 x[8];
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] = narrow2<F16>(thread % 32 + k, thread % 32 + k);
    const u32 one = narrow2<F16>(args.one, args.one);
#pragma unroll 1
    for (int i = 0; i < args.steps; i++) {
#pragma unroll
        for (int k = 0; k < 8 * 16; k++) {
            asm("fma.rn.f16x2 %0, %0, %1, %1;" : "+r"(x[k % 8]) : "r"(one));
        }
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        float low, high;
        widen2<F16>(x[k], low, high);
        sum += low + high;
    }
#endif
    args.sums[thread] = u32(sum);
}
