// tile: measures five ways to bring the taps of samples to shared memory: windows of 2x2 pixels of
// 32 f16 channels, at random pixels of a 92x160 map.
//
//   a block = a query = 8 points = 8 windows    window: [y][x][64 bytes]    the map: 942 KB, in L2
//
// The threads load 16 bytes at a time; the TMA copies a window at a time. Pixels are computed, not
// loaded, so their cost is the same for all styles. Each warp stores the weighted sum of the words
// that it finds, and each block the cycles until all windows had arrived.
#include "probes/data.cuh"
#include "probes/bulk.cuh"

// How windows are loaded.
#define MANUAL 0   // load, store, next load
#define PREFETCH 1 // all loads of a thread, then all stores
#define ASYNC 2    // cp.async
#define TMA 3      // a tensor map
#define SCALAR 4   // one thread per window, 2 bytes at a time

// Macros: STYLE; THREADS per block; ISSUERS, threads per block that arrive at the barrier, of which
// the first POINTS copy a window; IMAGE_QUERIES: queries per map, if there are several maps, else
// 0.
#define POINTS 8
#define HEIGHT 92
#define WIDTH 160

struct Args {
#if STYLE == TMA
    TensorMap map;
#endif
    const char *value;
    u32 *sums;
    i64 *cycles;
};

struct Pixel {
    int x, y;
};

// The top left pixel of a window. All four pixels are on the map.
__device__ __forceinline__ Pixel pixel_of(u32 point) {
    const u32 bits = mix(blockIdx.x * POINTS + point);
    // Maps lie one below the other.
    const u32 map = IMAGE_QUERIES ? blockIdx.x / (IMAGE_QUERIES ? IMAGE_QUERIES : 1) : 0;
    return {int((bits & 0xffff) * (WIDTH - 1) >> 16),
            int(((bits >> 16) * (HEIGHT - 1) >> 16) + map * HEIGHT)};
}

// The address of 16-byte chunk i of all windows.
__device__ __forceinline__ const char *chunk_address(const Args &args, u32 i) {
    const Pixel at = pixel_of(i / 16);
    const int pixel = (at.y + i / 8 % 2) * WIDTH + at.x + i / 4 % 2;
    return args.value + pixel * 64 + i % 4 * 16;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_probe(const __grid_constant__ Args args) {
    constexpr u32 CHUNKS = POINTS * 16;
    __shared__ __align__(128) char windows[CHUNKS * 16];
    const i64 start = clock64();
#if STYLE == MANUAL
#pragma unroll 1
    for (u32 i = threadIdx.x; i < CHUNKS; i += THREADS)
        store<16>(windows + i * 16, ld_global<16>(chunk_address(args, i)));
    __syncthreads();
#elif STYLE == PREFETCH
    constexpr u32 LOADS = CHUNKS / THREADS;
    static_assert(LOADS * THREADS == CHUNKS, "the chunks must divide evenly among the threads");
    Vector<16> v[LOADS];
#pragma unroll
    for (u32 k = 0; k < LOADS; k++)
        v[k] = ld_global<16>(chunk_address(args, k * THREADS + threadIdx.x));
#pragma unroll
    for (u32 k = 0; k < LOADS; k++) store<16>(windows + (k * THREADS + threadIdx.x) * 16, v[k]);
    __syncthreads();
#elif STYLE == ASYNC
#pragma unroll
    for (u32 i = threadIdx.x; i < CHUNKS; i += THREADS)
        cp_async_bytes<16>(shared_address(windows) + i * 16, chunk_address(args, i));
    cp_async_wait_all();
    __syncthreads();
#elif STYLE == SCALAR
    if (threadIdx.x < POINTS) {
        const Pixel at = pixel_of(threadIdx.x);
#pragma unroll 1
        for (int k = 0; k < 4; k++) {
            const char *from = args.value + ((at.y + k / 2) * WIDTH + at.x + k % 2) * 64;
            Vector<2> v[32];
#pragma unroll
            for (int c = 0; c < 32; c++) v[c] = ld_global<2>(from + c * 2);
#pragma unroll
            for (int c = 0; c < 32; c++) {
                store<2>(windows + threadIdx.x * 256 + k * 64 + c * 2, v[c]);
            }
        }
    }
    __syncthreads();
#else
    __shared__ __align__(8) u64 arrived;
    const u32 barrier = shared_address(&arrived);
    if (threadIdx.x == 0) barrier_init(barrier, ISSUERS);
    __syncthreads();
    constexpr u32 THREADS_PER_ISSUER = THREADS / ISSUERS;
    if (threadIdx.x % THREADS_PER_ISSUER == 0) {
        const u32 point = threadIdx.x / THREADS_PER_ISSUER;
        const bool copies = ISSUERS == POINTS || point < POINTS;
        barrier_expect(barrier, copies ? 256 : 0);
        if (copies) {
            const Pixel at = pixel_of(point);
            copy_window(shared_address(windows) + point * 256, args.map, 0, at.x, at.y, barrier);
        }
    }
    barrier_wait(barrier);
#endif
    if (threadIdx.x == 0) args.cycles[blockIdx.x] = clock64() - start;
    u32 sum = 0;
#pragma unroll
    for (u32 i = threadIdx.x; i < CHUNKS * 4; i += THREADS)
        sum += reinterpret_cast<const u32 *>(windows)[i] * (2 * i + 1);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) args.sums[(blockIdx.x * THREADS + threadIdx.x) / 32] = sum;
}
