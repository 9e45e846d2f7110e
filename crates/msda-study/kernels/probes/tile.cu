// tile: what a sample needs, brought to shared memory: squares of 2x2 pixels of 32 f16 channels, from random places of a 92x160 map.
//
//   a block = a query = 8 points = 8 squares     square: [y][x][64 bytes]     a map of 942 KB: in the second-level cache
//
// Loaded by the threads, 16 bytes at a time, or by the copy engine, a square at a time. Places are computed, not read: all
// styles pay the same for them. Every warp leaves the weighted sum of the words it finds, and every block its cycles until all of
// its squares were there.
#include "probes/data.cuh"
#include "probes/bulk.cuh"

// How squares are loaded.
#define MANUAL 0   // a load, a store, the next load
#define PREFETCH 1 // all loads of a thread, then all stores
#define ASYNC 2    // cp.async
#define TMA 3      // a tensor map

// Knobs: STYLE; THREADS, of a block.
#define POINTS 8
#define HEIGHT 92
#define WIDTH 160

struct Args {
#if STYLE == TMA
    Map map;
#endif
    const char *value;
    u32 *sums;
    i64 *cycles;
};

struct Place {
    int x, y;
};

// The upper left pixel of a square, so that all four are on the map.
__device__ __forceinline__ Place place(u32 point) {
    const u32 bits = mix(blockIdx.x * POINTS + point);
    return {int((bits & 0xffff) * (WIDTH - 1) >> 16), int((bits >> 16) * (HEIGHT - 1) >> 16)};
}

// Where the i-th 16 bytes of the squares are.
__device__ __forceinline__ const char *piece(const Args &args, u32 i) {
    const Place at = place(i / 16);
    const int pixel = (at.y + i / 8 % 2) * WIDTH + at.x + i / 4 % 2;
    return args.value + pixel * 64 + i % 4 * 16;
}

extern "C" __global__ void __launch_bounds__(THREADS) msda_probe(const __grid_constant__ Args args) {
    constexpr u32 PIECES = POINTS * 16;
    __shared__ __align__(128) char squares[PIECES * 16];
    const i64 start = clock64();
#if STYLE == MANUAL
#pragma unroll 1
    for (u32 i = threadIdx.x; i < PIECES; i += THREADS) store<16>(squares + i * 16, gather<16>(piece(args, i)));
    __syncthreads();
#elif STYLE == PREFETCH
    constexpr u32 EACH = PIECES / THREADS;
    static_assert(EACH * THREADS == PIECES, "every thread has as many");
    Vector<16> v[EACH];
#pragma unroll
    for (u32 k = 0; k < EACH; k++) v[k] = gather<16>(piece(args, k * THREADS + threadIdx.x));
#pragma unroll
    for (u32 k = 0; k < EACH; k++) store<16>(squares + (k * THREADS + threadIdx.x) * 16, v[k]);
    __syncthreads();
#elif STYLE == ASYNC
#pragma unroll
    for (u32 i = threadIdx.x; i < PIECES; i += THREADS) copy_async<16>(shared_address(squares) + i * 16, piece(args, i));
    wait_async();
    __syncthreads();
#else
    __shared__ __align__(8) u64 arrived;
    const u32 barrier = shared_address(&arrived);
    if (threadIdx.x == 0) barrier_init(barrier, POINTS);
    __syncthreads();
    constexpr u32 EACH = THREADS / POINTS;
    if (threadIdx.x % EACH == 0) {
        const u32 point = threadIdx.x / EACH;
        const Place at = place(point);
        barrier_expect(barrier, 256);
        copy_window(shared_address(squares) + point * 256, args.map, 0, at.x, at.y, barrier);
    }
    barrier_wait(barrier);
#endif
    if (threadIdx.x == 0) args.cycles[blockIdx.x] = clock64() - start;
    u32 sum = 0;
#pragma unroll
    for (u32 i = threadIdx.x; i < PIECES * 4; i += THREADS) sum += reinterpret_cast<const u32 *>(squares)[i] * (2 * i + 1);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) args.sums[(blockIdx.x * THREADS + threadIdx.x) / 32] = sum;
}
