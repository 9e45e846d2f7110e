// shared: the coarse levels of a plane are brought to shared memory, and a run of its queries is computed from there.
//
//   a block:   bring levels   |   queries of one plane, BLOCK / ITEM at a time
//                             ^ all threads meet once
//
//   rows of 32 channels in f16, 4 bytes a lane: a warp reads two rows at a time, of 16 banks each
//
//     PAD 0   bank  0..15 | 16..31      rows begin at bank 0 or 16: two rows collide entirely, or not at all
//     PAD 2   bank  0..15 | 17..0 | ..  rows begin anywhere: two rows nearly always share a bank
//
//   VEC   bytes that a lane reads at once, of either memory: 4, or 16 (rows then need be multiples of 16: PAD 0)
//   PAD   elements behind each row
//
// Padding is for threads that walk down a column; taps are whole rows at random positions. Wins: with wide reads over
// reading the same levels through the first-level cache, which then has room for the fine ones. Padded: never.
#include "ladder/kept.cuh"

constexpr int ITEMS = BLOCK / ITEM; // side by side in a block

struct Args {
    Call call;
    int each; // queries of a block
    Keep keep[LEVELS];
};

extern "C" __global__ void __launch_bounds__(BLOCK, 1) msda_forward(const __grid_constant__ Args args) {
    extern __shared__ uint4 shared[];
    const Call &call = args.call;
    const int head = blockIdx.y, image = blockIdx.z;
    const Plane plane{once(call.value.at(image, 0, head)), call.value.row, reinterpret_cast<char *>(shared)};
    bring(plane, args.keep);
    __syncthreads();
    const int item = threadIdx.x / ITEM, chunk = threadIdx.x % ITEM * VEC;
    if (item >= ITEMS) return;
    const int first = blockIdx.x * args.each, end = min(first + args.each, call.queries);
#pragma unroll 1
    for (int query = first + item; query < end; query += ITEMS) {
        float sum[EACH];
        sum_query(sum, call, args.keep, plane, image, head, query, chunk);
        finish(call, image, query, head, chunk, sum);
    }
}
