// shared: a block copies the coarse levels of a plane to shared memory, then computes some of its
// queries.
//
//   a block:   copy levels    |   queries of one plane, THREADS / GROUP_LANES at a time
//                             ^ barrier
//
//   rows of 32 f16 channels, 4 bytes per lane: a warp loads two rows at a time, of 16 banks each
//
//     PAD 0   bank  0..15 | 16..31      rows begin at bank 0 or 16: two rows conflict entirely or
//                                       not at all
//     PAD 2   bank  0..15 | 17..0 | ..  rows begin anywhere: two rows nearly always share a bank
//
//   VEC   bytes that a lane loads at once, from either memory: 4, or 16 (which needs PAD 0)
//   PAD   unused elements after each row
//
// Padding helps threads that walk down a column. Taps are whole rows at random positions.
//
// Bound by: the L1 data path, which serves shared memory too.
// Best for: with 16 bytes per lane, many queries per plane. With PAD: nothing.
#include "ladder/resident.cuh"

constexpr int GROUPS = THREADS / GROUP_LANES; // queries side by side in a block

struct Args {
    Call call;
    int queries_per_block;
    Residency residency[LEVELS];
};
CHECK_ARGS;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    msda_forward(const __grid_constant__ Args args) {
    extern __shared__ uint4 shared[];
    const Call &call = args.call;
    const int head = blockIdx.y, image = blockIdx.z;
    const Plane plane{opaque(call.value.at(image, 0, head)), call.value.row_stride,
                      reinterpret_cast<char *>(shared)};
    load_resident(plane, args.residency);
    __syncthreads();
    const int group = threadIdx.x / GROUP_LANES, row_offset = threadIdx.x % GROUP_LANES * VEC;
    if (group >= GROUPS) return;
    const int first = blockIdx.x * args.queries_per_block;
    const int end = min(first + args.queries_per_block, call.queries);
#pragma unroll 1
    for (int query = first + group; query < end; query += GROUPS) {
        Sums sum = {};
        sum_query(sum, call, args.residency, plane, image, head, query, row_offset);
        store_output(call, image, query, head, row_offset, sum);
    }
}
