// copies: measures eight ways to fill 80 KiB of shared memory from device memory.
//
//   words, vectors    loads and stores of 4 or 16 bytes per thread
//   async             cp.async of 16 bytes
//   bulk, tensor      the TMA, 16 KiB at a time: as bytes, or as rows of a tensor
//   channels          two f16 channels of every position, 64 bytes apart: a plane whose channels
//                     are distributed over blocks
//   channels-async    the same with cp.async
//   halves            the same, one channel per thread and step
//
// Each thread stores a weighted sum of what it finds: of one vector when time is measured, of all
// when results are checked.
#include "probes/data.cuh"
#include "probes/bulk.cuh"

#define COPY_WORDS 0
#define COPY_VECTORS 1
#define COPY_ASYNC 2
#define COPY_BULK 3
#define COPY_TENSOR 4
#define COPY_CHANNELS 5
#define COPY_CHANNELS_ASYNC 6
#define COPY_HALVES 7

// Macros: STYLE.
#define THREADS 256
#define BYTES 81920
#define WORDS (BYTES / 4)
#define BULK_BYTES 16384 // per bulk copy: 256 rows of 64 bytes

struct Args {
#if STYLE == COPY_TENSOR
    TensorMap map;
#endif
    const char *data;
    u32 *sums;
    int passes;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_probe(const __grid_constant__ Args args) {
    extern __shared__ __align__(128) char memory[];
#if STYLE == COPY_CHANNELS || STYLE == COPY_CHANNELS_ASYNC || STYLE == COPY_HALVES
    // Sixteen blocks share the rows of a plane.
    const char *from = args.data + i64(blockIdx.x / 16) * 16 * BYTES + blockIdx.x % 16 * 4;
#elif STYLE != COPY_TENSOR
    const char *from = args.data + i64(blockIdx.x) * BYTES;
#endif
// Unrolled by 4, as the compiler does if it does not know the trip count.
#if STYLE == COPY_WORDS
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < BYTES; i += THREADS * 4)
        store<4>(memory + i, ld_global<4>(from + i));
#elif STYLE == COPY_VECTORS
#pragma unroll 4
    for (int i = threadIdx.x * 16; i < BYTES; i += THREADS * 16)
        store<16>(memory + i, ld_global<16>(from + i));
#elif STYLE == COPY_ASYNC
#pragma unroll 4
    for (int i = threadIdx.x * 16; i < BYTES; i += THREADS * 16)
        cp_async_bytes<16>(shared_address(memory) + i, from + i);
    cp_async_wait_all();
#elif STYLE == COPY_CHANNELS
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < BYTES; i += THREADS * 4)
        store<4>(memory + i, ld_global<4>(from + i * 16));
#elif STYLE == COPY_HALVES
#pragma unroll 4
    for (int i = threadIdx.x; i < BYTES / 2; i += THREADS)
        store<2>(memory + i * 2, ld_global<2>(from + i / 2 * 64 + i % 2 * 2));
#elif STYLE == COPY_CHANNELS_ASYNC
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < BYTES; i += THREADS * 4)
        cp_async_bytes<4>(shared_address(memory) + i, from + i * 16);
    cp_async_wait_all();
#else
    __shared__ __align__(8) u64 arrived;
    const u32 barrier = shared_address(&arrived);
    if (threadIdx.x == 0) {
        barrier_init(barrier, 1);
        barrier_expect(barrier, BYTES);
        for (int i = 0; i < BYTES; i += BULK_BYTES) {
            const u32 to = shared_address(memory) + i;
#if STYLE == COPY_BULK
            copy_bulk(to, from + i, BULK_BYTES, barrier);
#else
            copy_window(to, args.map, 0, (int(blockIdx.x) * BYTES + i) / 64, barrier);
#endif
        }
    }
    __syncthreads();
    barrier_wait(barrier);
#endif
    __syncthreads();
    u32 sum = 0;
    for (int pass = 0; pass < args.passes; pass++) {
        const u32 i = (pass * THREADS + threadIdx.x) * 4;
        const uint4 v = *reinterpret_cast<const uint4 *>(memory + i * 4);
        sum += v.x * (2 * i + 1) + v.y * (2 * i + 3) + v.z * (2 * i + 5) + v.w * (2 * i + 7);
    }
    args.sums[blockIdx.x * THREADS + threadIdx.x] = sum;
}
