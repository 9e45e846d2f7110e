// release: makes lines of L2 normal that an access policy window made persisting.
//
// Macros: THREADS, LINES_PER_THREAD.
#include "common/types.cuh"

constexpr int LINE = 128;

struct Args {
    const char *base;
    i64 bytes;
};
CHECK_ARGS;

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_release(const __grid_constant__ Args args) {
    const u64 first = u64(args.base) & ~u64(LINE - 1), end = u64(args.base) + args.bytes;
#pragma unroll
    for (int i = 0; i < LINES_PER_THREAD; i++) {
        const u64 line = u64(blockIdx.x) * (THREADS * LINES_PER_THREAD) + i * THREADS + threadIdx.x;
        const u64 address = first + line * LINE;
        if (address < end) {
            asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(address));
        }
    }
}
