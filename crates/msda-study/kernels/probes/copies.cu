// copies: 80 KiB of shared memory filled from device memory, in every way there is.
//
//   words, vectors    a loop of the block, 4 or 16 bytes a thread
//   async             the same, 16 bytes, past the registers
//   bulk, tensor      by the copy engine, 16 KiB at a time: as bytes, or as rows of a tensor
//   channels          two f16 channels of every position, which lie 64 bytes apart: how channels are split over blocks
//   channels-async    the same, past the registers
//
// Threads leave weighted sums of what they find: of one piece each where time is taken, of everything where it is checked.
#include "probes/data.cuh"
#include "probes/bulk.cuh"

#define COPY_WORDS 0
#define COPY_VECTORS 1
#define COPY_ASYNC 2
#define COPY_BULK 3
#define COPY_TENSOR 4
#define COPY_CHANNELS 5
#define COPY_CHANNELS_ASYNC 6

// Knobs: STYLE.
#define THREADS 256
#define BYTES 81920
#define WORDS (BYTES / 4)
#define PART 16384 // of a bulk copy: 256 rows of 64 bytes

struct Args {
#if STYLE == COPY_TENSOR
    Map map;
#endif
    const char *data;
    u32 *sums;
    int rounds;
};

extern "C" __global__ void __launch_bounds__(THREADS) msda_probe(const __grid_constant__ Args args) {
    extern __shared__ __align__(128) char held[];
#if STYLE == COPY_CHANNELS || STYLE == COPY_CHANNELS_ASYNC
    // Sixteen blocks share the rows of a plane.
    const char *from = args.data + i64(blockIdx.x / 16) * 16 * BYTES + blockIdx.x % 16 * 4;
#elif STYLE != COPY_TENSOR
    const char *from = args.data + i64(blockIdx.x) * BYTES;
#endif
// As much at a time as the compiler takes where it does not know the number.
#if STYLE == COPY_WORDS
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < BYTES; i += THREADS * 4) store<4>(held + i, gather<4>(from + i));
#elif STYLE == COPY_VECTORS
#pragma unroll 4
    for (int i = threadIdx.x * 16; i < BYTES; i += THREADS * 16) store<16>(held + i, gather<16>(from + i));
#elif STYLE == COPY_ASYNC
#pragma unroll 4
    for (int i = threadIdx.x * 16; i < BYTES; i += THREADS * 16) copy_async<16>(shared_address(held) + i, from + i);
    wait_async();
#elif STYLE == COPY_CHANNELS
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < BYTES; i += THREADS * 4) store<4>(held + i, gather<4>(from + i * 16));
#elif STYLE == COPY_CHANNELS_ASYNC
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < BYTES; i += THREADS * 4) copy_async<4>(shared_address(held) + i, from + i * 16);
    wait_async();
#else
    __shared__ __align__(8) u64 arrived;
    const u32 barrier = shared_address(&arrived);
    if (threadIdx.x == 0) {
        barrier_init(barrier, 1);
        barrier_expect(barrier, BYTES);
        for (int i = 0; i < BYTES; i += PART) {
            const u32 to = shared_address(held) + i;
#if STYLE == COPY_BULK
            copy_bulk(to, from + i, PART, barrier);
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
    for (int round = 0; round < args.rounds; round++) {
        const u32 i = (round * THREADS + threadIdx.x) * 4;
        const uint4 v = *reinterpret_cast<const uint4 *>(held + i * 4);
        sum += v.x * (2 * i + 1) + v.y * (2 * i + 3) + v.z * (2 * i + 5) + v.w * (2 * i + 7);
    }
    args.sums[blockIdx.x * THREADS + threadIdx.x] = sum;
}
