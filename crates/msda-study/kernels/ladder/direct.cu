// direct: every tap is read from device memory when it is needed, and whatever a query needs is found by its own threads.
//
//   a block: a tile of queries of one head          a thread: VEC bytes of a query's row
//
//     query 0  [lane 0 | lane 1 | ... ]             for each sample: four taps, weighted, added
//     query 1  [lane 0 | lane 1 | ... ]
//
// This is where everybody begins, and the common base on which one thing at a time can be switched on:
//
//   LINEAR    threads are counted through the whole output instead (one index, divided down)
//   VEC       bytes that a thread reads at once: one element, or 16
//   LOAD      which caches a row goes through, and hints to them
//   SPLIT     groups of lanes that share the samples of a query, and add up by shuffles
//   EACH_ONE  queries that a thread computes at a time
//   STAGE     1: locations and weights of the tile are first brought to shared memory; 2: taps are computed there, once
//   PIPELINE  those of the next tile are brought while this one is computed
//   STRIDE    as many blocks as the device holds, each with every so many-th tile
//   UNROLL    samples that are unrolled
//   TOGETHER  samples whose locations and weights a thread reads at once, ALIGN_L and ALIGN_W bytes at a time, and unrolls
//   HALF      products and sums in f16: 1, of the samples that are read together, which are then added in f32; 2, of all
//   LISTED    tiles take their queries from a list, in which neighbours look at the same places
//
// Wins: never by itself; 16 bytes a thread is what matters most. Where rows are short it is hard to beat all the same.
#include "ladder/ladder.cuh"

constexpr int ITEM = LANES * SPLIT;
constexpr int ITEMS = LINEAR ? 1 : BLOCK / ITEM; // side by side in a block
constexpr int QUERIES = ITEMS * EACH_ONE;

struct Args {
    Call call;
    const int *order;
    int tiles;
};

// The query at a place of a tile, or one that is not there.
__device__ __forceinline__ int query_at(const Args &args, int image, int i) {
    return LISTED && i < args.call.queries ? args.order[i64(image) * args.call.queries + i] : i;
}

// Locations and weights of a tile, as they are given.
struct Raw {
    __align__(16) char locations[QUERIES * SAMPLES * 2 * size_of<LOCATION>];
    __align__(16) char weights[QUERIES * SAMPLES * size_of<WEIGHT>];
};

// Copies `bytes` of each of a tile's queries, four at a time, without waiting.
__device__ __forceinline__ void copy(char *to, const Tensor &from, int bytes, int image, int head, int first, int queries) {
    for (int i = threadIdx.x * 4; i < QUERIES * bytes; i += BLOCK * 4) {
        const int query = first + i / bytes;
        if (query >= queries) break;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(u32(__cvta_generic_to_shared(to + i))),
                     "l"(from.at(image, query, head) + i % bytes));
    }
}

__device__ __forceinline__ void bring(Raw &to, const Call &call, int image, int head, int tile) {
    const int first = tile * QUERIES;
    copy(to.locations, call.locations, SAMPLES * 2 * size_of<LOCATION>, image, head, first, call.queries);
    copy(to.weights, call.weights, SAMPLES * size_of<WEIGHT>, image, head, first, call.queries);
    asm volatile("cp.async.commit_group;");
}

// What a tile's samples are staged as.
union Staged {
    Given given[STAGE == 1 && !PIPELINE ? QUERIES * SAMPLES : 1];
    Taps taps[STAGE == 2 ? QUERIES * SAMPLES : 1];
    Raw raw[PIPELINE ? 2 : 1];
    __device__ Staged() {}
};

// One element, or VEC bytes, of the output.
__device__ __forceinline__ void compute(const Args &args, const Staged &staged, const Raw &raw, int image, int head, int tile, int thread) {
    const Call &call = args.call;
    const int item = thread / ITEM, chunk = thread % LANES, group = thread % ITEM / LANES;
    // Past the last query a thread computes that one once more, and writes nothing: a test among the samples would keep
    // those that are unrolled from being asked for together.
    const int last = call.queries - 1 - tile * QUERIES;
    float sum[EACH_ONE][EACH];
    Halves halves[EACH_ONE] = {};
    int places[EACH_ONE], queries[EACH_ONE];
#pragma unroll
    for (int r = 0; r < EACH_ONE; r++) {
        places[r] = min(item + r * ITEMS, last);
        queries[r] = query_at(args, image, tile * QUERIES + places[r]);
#pragma unroll
        for (int c = 0; c < EACH; c++) sum[r][c] = 0;
    }
    const char *base = once(call.value.at(image, 0, head) + chunk * VEC);
#pragma unroll UNROLL
    for (int first = group * TOGETHER; first < SAMPLES; first += SPLIT * TOGETHER) {
#pragma unroll
        for (int r = 0; r < EACH_ONE; r++) {
            Given some[TOGETHER];
            if constexpr (STAGE == 0 && !PIPELINE) given<TOGETHER, ALIGN_L, ALIGN_W>(some, call, image, queries[r], head, first);
#pragma unroll
            for (int t = 0; t < TOGETHER; t++) {
                const int s = first + t, at = places[r] * SAMPLES + s;
                const Level &level = call.level[level_of(call, s)];
                Taps taps;
                if constexpr (STAGE == 2) {
                    taps = staged.taps[at];
                } else if constexpr (PIPELINE) {
                    const auto *xy = reinterpret_cast<const Element<LOCATION>::Stored *>(raw.locations) + 2 * at;
                    const auto *weight = reinterpret_cast<const Element<WEIGHT>::Stored *>(raw.weights) + at;
                    taps = taps_of(level, Given{widen<LOCATION>(xy[0]), widen<LOCATION>(xy[1]), widen<WEIGHT>(*weight)});
                } else {
                    taps = taps_of(level, STAGE ? staged.given[at] : some[t]);
                }
                if constexpr (HALF) {
                    add(halves[r], base, call.value.row, taps);
                } else {
                    add(sum[r], base, call.value.row, taps);
                }
            }
            if constexpr (HALF == 1) gather_up(sum[r], halves[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < EACH_ONE; r++) {
        if constexpr (HALF == 2) gather_up(sum[r], halves[r]);
#pragma unroll
        for (int step = LANES; step < ITEM; step *= 2) {
#pragma unroll
            for (int c = 0; c < EACH; c++) sum[r][c] += __shfl_xor_sync(0xffffffffu, sum[r][c], step);
        }
        if (group == 0 && item + r * ITEMS <= last) finish(call, image, queries[r], head, chunk * VEC, sum[r]);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1024 / BLOCK) msda_forward(const __grid_constant__ Args args) {
    const Call &call = args.call;
    __shared__ Staged staged;
    if constexpr (LINEAR) {
        const i64 i = i64(blockIdx.x) * BLOCK + threadIdx.x;
        if (i >= i64(call.images) * call.queries * call.heads * LANES) return;
        const int chunk = i % LANES, head = i / LANES % call.heads;
        const i64 rest = i / LANES / call.heads;
        // A tile of one query is the query.
        compute(args, staged, staged.raw[0], rest / call.queries, head, rest % call.queries, chunk);
        return;
    }
    const int head = blockIdx.y, image = blockIdx.z;
    // Threads beyond the last whole item have nothing to do but to help staging.
    const bool busy = int(threadIdx.x) < ITEMS * ITEM;
    int turn = 0;
    if (PIPELINE && int(blockIdx.x) < args.tiles) bring(staged.raw[0], call, image, head, blockIdx.x);
    for (int tile = blockIdx.x; tile < args.tiles; tile += gridDim.x, turn ^= 1) {
        if constexpr (PIPELINE) {
            const int next = tile + gridDim.x;
            if (next < args.tiles) {
                bring(staged.raw[turn ^ 1], call, image, head, next);
                asm volatile("cp.async.wait_group 1;");
            } else {
                asm volatile("cp.async.wait_group 0;");
            }
            __syncthreads();
        } else if constexpr (STAGE) {
            for (int i = threadIdx.x; i < QUERIES * SAMPLES; i += BLOCK) {
                const int query = query_at(args, image, tile * QUERIES + i / SAMPLES), s = i % SAMPLES;
                if (query >= call.queries) break;
                const Given one = given(call, image, query, head, s);
                if constexpr (STAGE == 2) {
                    staged.taps[i] = taps_of(call.level[level_of(call, s)], one);
                } else {
                    staged.given[i] = one;
                }
            }
            __syncthreads();
        }
        if (busy) compute(args, staged, staged.raw[PIPELINE ? turn : 0], image, head, tile, threadIdx.x);
        if (STAGE || PIPELINE) __syncthreads();
    }
}
