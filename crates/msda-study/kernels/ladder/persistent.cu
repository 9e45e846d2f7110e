// persistent: one block per SM for the whole call. Blocks take work items from a counter, and keep
// the coarse levels of the current plane in shared memory.
//
//   counter:   0 1 2 3 4 5 ...      a work item: some queries of one plane, one group of channels
//              | | |
//   block 0 <--' | '--> block 0 again, when it is done; for another plane it copies levels anew
//   block 1 <----'
//
// The items of a plane follow each other, so all blocks work on a few planes at a time, which L2
// holds.
//
//   CHANNEL_GROUPS  parts that a row is divided into. An item computes one, so that more positions
//                   fit shared memory; but every group locates all samples again
//   PARTIAL         of the level that does not fit, as much is resident as there is room for
//   LOCATE          each sample is located once, by one lane, and staged through shared memory of
//                   the warp
//   PITCH           there, entries from sample to sample: one per query, or a few more, so that
//                   lanes store to different banks
//   LOAD UNROLL VEC as in direct.cu
//
// Which block computes an item depends on the run. How it is computed does not.
//
// Bound by: latency. With one block per SM, no other block runs while it waits.
// Best for: many planes and uneven work.
#include "ladder/staged.cuh"
#include "ladder/resident.cuh"

constexpr int GROUPS_PER_WARP = 32 / GROUP_LANES; // if LOCATE; 0: a group is longer than a warp
// Queries side by side in a block.
constexpr int GROUPS = LOCATE ? THREADS / 32 * GROUPS_PER_WARP : THREADS / GROUP_LANES;

struct Args {
    Call call;
    int *next_item;
    int items, items_per_plane, queries_per_item;
    Residency residency[LEVELS];
};

// A part of a work item: plane, group of channels, first query and the end.
struct Task {
    int image, head, channel_group, first, end;
};

#if LOCATE
constexpr int SAMPLES_PER_PASS = 32 / GROUPS_PER_WARP; // located by a warp, per query
typedef StagedTaps<SAMPLES_PER_PASS * PITCH> WarpStage;

__device__ __forceinline__ void compute(const Args &args, const Plane &plane, const Task &task,
                                        WarpStage &stage) {
    const Call &call = args.call;
    const int lane = threadIdx.x & 31;
    const int first = task.first + int(threadIdx.x) / 32 * GROUPS_PER_WARP;
    // This lane locates sample `in_pass` of query `located` of the warp.
    const int located = lane / SAMPLES_PER_PASS, in_pass = lane % SAMPLES_PER_PASS;
    const bool locates = located < GROUPS_PER_WARP && first + located < task.end;
    // It sums VEC bytes of query `summed`.
    const int summed = lane / GROUP_LANES, row_offset = lane % GROUP_LANES * VEC;
    const bool sums = summed < GROUPS_PER_WARP && first + summed < task.end;
    float sum[CHANNELS_PER_LANE];
#pragma unroll
    for (int c = 0; c < CHANNELS_PER_LANE; c++) sum[c] = 0;
    SampleInput next{};
    if (locates && in_pass < SAMPLES) {
        next = load_sample(call, task.image, first + located, task.head, in_pass);
    }
#pragma unroll 1
    for (int pass = 0; pass < SAMPLES; pass += SAMPLES_PER_PASS) {
        __syncwarp();
        int s = pass + in_pass;
        if (locates && s < SAMPLES) {
            stage.store(in_pass * PITCH + located, taps_of(call.level[level_of(call, s)], next));
        }
        __syncwarp();
        // Load the inputs of the next pass while this one is summed.
        s += SAMPLES_PER_PASS;
        if (locates && s < SAMPLES) {
            next = load_sample(call, task.image, first + located, task.head, s);
        }
        if (!sums) continue;
#pragma unroll UNROLL
        for (int r = 0; r < SAMPLES_PER_PASS; r++) {
            if (SAMPLES % SAMPLES_PER_PASS != 0 && pass + r >= SAMPLES) break;
            add_taps(sum, plane, row_offset, args.residency[level_of(call, pass + r)],
                     stage.load(r * PITCH + summed));
        }
    }
    if (sums) {
        const int offset = task.channel_group * GROUP_BYTES + row_offset;
        store_output(call, task.image, first + summed, task.head, offset, sum);
    }
}
#else
typedef StagedTaps<1> WarpStage;

__device__ __forceinline__ void compute(const Args &args, const Plane &plane, const Task &task,
                                        WarpStage &) {
    const int query = task.first + int(threadIdx.x) / GROUP_LANES;
    const int row_offset = threadIdx.x % GROUP_LANES * VEC;
    if (int(threadIdx.x) / GROUP_LANES >= GROUPS || query >= task.end) return;
    float sum[CHANNELS_PER_LANE];
    sum_query(sum, args.call, args.residency, plane, task.image, task.head, query, row_offset);
    store_output(args.call, task.image, query, task.head,
                 task.channel_group * GROUP_BYTES + row_offset, sum);
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    msda_forward(const __grid_constant__ Args args) {
    extern __shared__ uint4 shared[];
    __shared__ int item[2], resident_plane; // plane and channel group that shared memory holds
    const Call &call = args.call;
    constexpr int STAGE_BYTES = LOCATE ? THREADS / 32 * int(sizeof(WarpStage)) : 0;
    WarpStage &stage = reinterpret_cast<WarpStage *>(shared)[LOCATE ? threadIdx.x / 32 : 0];
    Plane plane{nullptr, call.value.row_stride, reinterpret_cast<char *>(shared) + STAGE_BYTES};
    if (threadIdx.x == 0) item[0] = atomicAdd(args.next_item, 1), resident_plane = -1;
#pragma unroll 1
    for (int parity = 0;; parity ^= 1) {
        // All threads are done with the last item: its number and its levels may be overwritten.
        __syncthreads();
        const int number = item[parity];
        if (number >= args.items) return;
        if (threadIdx.x == 0) item[parity ^ 1] = atomicAdd(args.next_item, 1);
        const int plane_number = number / args.items_per_plane;
        const int channel_group = plane_number % CHANNEL_GROUPS;
        const int head = plane_number / CHANNEL_GROUPS % call.heads;
        const int image = plane_number / CHANNEL_GROUPS / call.heads;
        plane.value = opaque(call.value.at(image, 0, head) + channel_group * GROUP_BYTES);
        if (plane_number != resident_plane) {
            load_resident(plane, args.residency);
            __syncthreads();
            if (threadIdx.x == 0) resident_plane = plane_number;
        }
        const int begin = number % args.items_per_plane * args.queries_per_item;
        const int end = min(begin + args.queries_per_item, call.queries);
#pragma unroll 1
        for (int first = begin; first < end; first += GROUPS) {
            compute(args, plane, Task{image, head, channel_group, first, end}, stage);
        }
    }
}
