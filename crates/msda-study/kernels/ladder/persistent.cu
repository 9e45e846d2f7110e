// persistent: one block a multiprocessor for the whole call. Blocks take items from a counter until there are none left, and
// keep the coarse levels of the plane that they are at in shared memory.
//
//   counter:   0 1 2 3 4 5 ...           an item: some queries of one plane (and one group of its channels)
//              | | |
//   block 0 <--' | '--> block 0 again, when it is done: what is kept is brought anew where the plane is another one
//   block 1 <----'
//
// Items of a plane follow each other, so that all blocks are at a few planes at a time, which the second-level cache holds.
//
//   GROUPS   parts that a row is divided into: an item computes one, so that positions are short and more of them fit,
//            but every group finds the taps for itself
//   PARTIAL  of the level that does not fit as much is kept as there is room for
//   LOCATE   taps are found once by a lane each, and handed to the lanes of their query through memory of the warp
//   PITCH    there, from sample to sample: as many as queries, or a few more, so that lanes write to different banks
//   LOAD UNROLL VEC as elsewhere
//
// Who computes an item depends on the run, how it is computed does not. Wins: against blocks that bring the same levels again
// for each tile, and where planes are many and work is uneven. One block an SM has nobody to fill in while it waits.
#include "ladder/handed.cuh"
#include "ladder/kept.cuh"

constexpr int WARP_ITEMS = 32 / ITEM; // queries of a warp, where taps are handed on; 0: it would not hold one
constexpr int ITEMS = LOCATE ? BLOCK / 32 * WARP_ITEMS : BLOCK / ITEM; // queries side by side

struct Args {
    Call call;
    int *next; // the item that nobody took yet
    int items, tiles, each; // items of the call, of a plane and group; queries of an item
    Keep keep[LEVELS];
};

// A part of an item: its plane, its group of channels, the first query and the one after the last.
struct Part {
    int image, head, group, first, end;
};

#if LOCATE
constexpr int ROUND = 32 / WARP_ITEMS; // samples of each query that a warp finds at a time
typedef Handed<ROUND * PITCH> Warp;

__device__ __forceinline__ void compute(const Args &args, const Plane &plane, const Part &part, Warp &handed) {
    const Call &call = args.call;
    const int lane = threadIdx.x & 31, first = part.first + int(threadIdx.x) / 32 * WARP_ITEMS;
    // What the lane finds: a sample of a query of its warp.
    const int other = lane / ROUND, turn = lane % ROUND;
    const bool finds = other < WARP_ITEMS && first + other < part.end;
    // What it sums: bytes of a query.
    const int own = lane / ITEM, chunk = lane % ITEM * VEC;
    const bool sums = own < WARP_ITEMS && first + own < part.end;
    float sum[EACH];
#pragma unroll
    for (int c = 0; c < EACH; c++) sum[c] = 0;
    Given next{};
    if (finds && turn < SAMPLES) next = given(call, part.image, first + other, part.head, turn);
#pragma unroll 1
    for (int start = 0; start < SAMPLES; start += ROUND) {
        __syncwarp();
        int s = start + turn;
        if (finds && s < SAMPLES) {
            handed.put(turn * PITCH + other, taps_of(call.level[level_of(call, s)], next));
        }
        __syncwarp();
        // The next round's are on their way while this one is summed.
        s += ROUND;
        if (finds && s < SAMPLES) next = given(call, part.image, first + other, part.head, s);
        if (!sums) continue;
#pragma unroll UNROLL
        for (int r = 0; r < ROUND; r++) {
            if (SAMPLES % ROUND != 0 && start + r >= SAMPLES) break;
            add(sum, plane, chunk, args.keep[level_of(call, start + r)], handed.take(r * PITCH + own));
        }
    }
    if (sums) finish(call, part.image, first + own, part.head, part.group * PART + chunk, sum);
}
#else
typedef Handed<1> Warp;

__device__ __forceinline__ void compute(const Args &args, const Plane &plane, const Part &part, Warp &) {
    const int query = part.first + int(threadIdx.x) / ITEM, chunk = threadIdx.x % ITEM * VEC;
    if (int(threadIdx.x) / ITEM >= ITEMS || query >= part.end) return;
    float sum[EACH];
    sum_query(sum, args.call, args.keep, plane, part.image, part.head, query, chunk);
    finish(args.call, part.image, query, part.head, part.group * PART + chunk, sum);
}
#endif

extern "C" __global__ void __launch_bounds__(BLOCK, 1) msda_forward(const __grid_constant__ Args args) {
    extern __shared__ uint4 shared[];
    __shared__ int taken[2], kept; // the plane, and group, whose levels are in shared memory
    const Call &call = args.call;
    constexpr int HANDED = LOCATE ? BLOCK / 32 * int(sizeof(Warp)) : 0;
    Warp &handed = reinterpret_cast<Warp *>(shared)[LOCATE ? threadIdx.x / 32 : 0];
    Plane plane{nullptr, call.value.row, reinterpret_cast<char *>(shared) + HANDED};
    if (threadIdx.x == 0) taken[0] = atomicAdd(args.next, 1), kept = -1;
#pragma unroll 1
    for (int turn = 0;; turn ^= 1) {
        // Everybody is done with the last item: its number can be overwritten, and so can its levels.
        __syncthreads();
        const int number = taken[turn];
        if (number >= args.items) return;
        if (threadIdx.x == 0) taken[turn ^ 1] = atomicAdd(args.next, 1);
        const int whole = number / args.tiles, group = whole % GROUPS, head = whole / GROUPS % call.heads;
        const int image = whole / GROUPS / call.heads;
        plane.value = once(call.value.at(image, 0, head) + group * PART);
        if (whole != kept) {
            bring(plane, args.keep);
            __syncthreads();
            if (threadIdx.x == 0) kept = whole;
        }
        const int start = number % args.tiles * args.each, end = min(start + args.each, call.queries);
#pragma unroll 1
        for (int first = start; first < end; first += ITEMS) {
            compute(args, plane, Part{image, head, group, first, end}, handed);
        }
    }
}
