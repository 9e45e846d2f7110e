// direct: each thread locates its samples itself and loads every tap from global memory.
//
//   a block: a tile of queries of one head          a thread: VEC bytes of a query's row
//
//     query 0  [lane 0 | lane 1 | ... ]             for each sample: four taps, weighted, added
//     query 1  [lane 0 | lane 1 | ... ]
//
// The first kernel that one would write, and the base of the suite, which changes one thing at a
// time:
//
//   LINEAR              one index over the whole output per thread, instead of tiles; with STRIDE
//                       threads stride over it
//   VEC                 bytes that a thread loads at once: one element, or 16
//   LOAD                which caches rows go through, and hints to them
//   ELEMENT_LOADS       VEC bytes are loaded element by element
//   TABLE               where the table of levels is: 0, in the argument, which is constant memory;
//                       1, in memory that is read through L1; 2, in shared memory
//   SAMPLE_GROUPS       groups of lanes that share the samples of a query, and add up by shuffles
//   QUERIES_PER_THREAD  queries that a thread computes at the same time
//   STAGE               1: locations and weights of a tile are staged through shared memory;
//                       2: taps are
//   PIPELINE            inputs of the next tile are copied while this one is computed
//   UNROLL              samples that are unrolled
//   SAMPLES_PER_LOAD    samples whose locations and weights a thread loads at once, LOCATION_ALIGN
//                       and WEIGHT_ALIGN bytes at a time, and unrolls
//   F16_SUMS            products and sums in f16: 1, of SAMPLES_PER_LOAD samples, which are then
//                       added in f32; 2, of all samples
//   ORDERED             queries in the order of a list, in which neighbours sample the same places
//   DROP                samples with less than 1/DROP of the query's mean weight are dropped, and
//                       the others are scaled, so that the sum of weights stays; 0: none
//
// If there are fewer blocks than tiles, a block strides over the tiles.
//
// Bound by: the L1 data path; with one channel per thread, instructions.
// Best for: short rows and short calls. 16 bytes per thread is what matters most.
#include "ladder/ladder.cuh"

constexpr int GROUP_LANES = LANES_PER_ROW * SAMPLE_GROUPS; // lanes per query
constexpr int GROUPS = LINEAR ? 1 : THREADS / GROUP_LANES; // side by side in a block
constexpr int QUERIES_PER_TILE = GROUPS * QUERIES_PER_THREAD;
// Lanes of a row that lie side by side in a warp: sample groups add up within a warp.
constexpr int SIDE = GROUP_LANES <= 32 ? LANES_PER_ROW : 32 / SAMPLE_GROUPS;

struct Args {
    Call call;
    const int *order;
    int tiles;
};
CHECK_ARGS;

// Query number i of an image, or one past the end.
__device__ __forceinline__ int query_of(const Args &args, int image, int i) {
    return ORDERED && i < args.call.queries ? args.order[i64(image) * args.call.queries + i] : i;
}

// Locations and weights of a tile, as they are stored.
struct RawTile {
    __align__(16) char locations[QUERIES_PER_TILE * SAMPLES * 2 * size_of<LOCATION>];
    __align__(16) char weights[QUERIES_PER_TILE * SAMPLES * size_of<WEIGHT>];
};

// Copies `bytes` per query of a tile asynchronously, four at a time.
__device__ __forceinline__ void copy_queries(char *to, const Tensor &from, int bytes, int image,
                                             int head, int first, int queries) {
    for (int i = threadIdx.x * 4; i < QUERIES_PER_TILE * bytes; i += THREADS * 4) {
        const int query = first + i / bytes;
        if (query >= queries) break;
        cp_async<4>(to + i, from.at(image, query, head) + i % bytes);
    }
}

__device__ __forceinline__ void copy_tile(RawTile &to, const Call &call, int image, int head,
                                          int tile) {
    const int first = tile * QUERIES_PER_TILE;
    copy_queries(to.locations, call.locations, SAMPLES * 2 * size_of<LOCATION>, image, head, first,
                 call.queries);
    copy_queries(to.weights, call.weights, SAMPLES * size_of<WEIGHT>, image, head, first,
                 call.queries);
    cp_async_commit();
}

// The samples of a tile in shared memory.
union Staged {
    SampleInput input[STAGE == 1 && !PIPELINE ? QUERIES_PER_TILE * SAMPLES : 1];
    Taps taps[STAGE == 2 ? QUERIES_PER_TILE * SAMPLES : 1];
    RawTile raw[PIPELINE ? 2 : 1];
    __device__ Staged() {}
};

// Computes a thread's part of a tile.
__device__ __forceinline__ void compute(const Args &args, const Level *table, const Staged &staged,
                                        const RawTile &raw, int image, int head, int tile,
                                        int thread) {
    const Call &call = args.call;
    const int group = thread / GROUP_LANES, lane = thread % GROUP_LANES;
    const int chunk = lane / (SIDE * SAMPLE_GROUPS) * SIDE + lane % SIDE;
    const int sample_group = lane / SIDE % SAMPLE_GROUPS;
    // Past the last query a thread computes that one again and stores nothing: with a test in the
    // loop, the loads of unrolled samples would not be issued together.
    const int last = call.queries - 1 - tile * QUERIES_PER_TILE;
    float sum[QUERIES_PER_THREAD][CHANNELS_PER_LANE];
    F16Sums partial[QUERIES_PER_THREAD] = {};
    int in_tile[QUERIES_PER_THREAD], queries[QUERIES_PER_THREAD];
#pragma unroll
    for (int r = 0; r < QUERIES_PER_THREAD; r++) {
        in_tile[r] = min(group + r * GROUPS, last);
        queries[r] = query_of(args, image, tile * QUERIES_PER_TILE + in_tile[r]);
#pragma unroll
        for (int c = 0; c < CHANNELS_PER_LANE; c++) sum[r][c] = 0;
    }
    const char *base = opaque(call.value.at(image, 0, head) + chunk * VEC);
    // An entry of the table is loaded once per level.
    Level loaded;
    int loaded_level = -1;
#pragma unroll UNROLL
    for (int first = sample_group * SAMPLES_PER_LOAD; first < SAMPLES;
         first += SAMPLE_GROUPS * SAMPLES_PER_LOAD) {
#pragma unroll
        for (int r = 0; r < QUERIES_PER_THREAD; r++) {
            SampleInput input[SAMPLES_PER_LOAD];
            if constexpr (STAGE == 0 && !PIPELINE) {
                load_samples<SAMPLES_PER_LOAD, LOCATION_ALIGN, WEIGHT_ALIGN>(
                    input, call, image, queries[r], head, first);
            }
#pragma unroll
            for (int t = 0; t < SAMPLES_PER_LOAD; t++) {
                const int s = first + t, at = in_tile[r] * SAMPLES + s;
                const int l = level_of(call, s);
                if (TABLE && l != loaded_level) loaded = table[l], loaded_level = l;
                const Level &level = TABLE ? loaded : call.level[l];
                Taps taps;
                if constexpr (STAGE == 2) {
                    taps = staged.taps[at];
                } else if constexpr (PIPELINE) {
                    typedef const Element<LOCATION>::Stored *Locations;
                    typedef const Element<WEIGHT>::Stored *Weights;
                    const auto *xy = reinterpret_cast<Locations>(raw.locations) + 2 * at;
                    const auto *weight = reinterpret_cast<Weights>(raw.weights) + at;
                    taps =
                        taps_of(level, SampleInput{widen<LOCATION>(xy[0]), widen<LOCATION>(xy[1]),
                                                   widen<WEIGHT>(*weight)});
                } else {
                    taps = taps_of(level, STAGE ? staged.input[at] : input[t]);
                }
                if constexpr (F16_SUMS) {
                    add_taps(partial[r], base, call.value.row_stride, taps);
                } else {
                    add_taps(sum[r], base, call.value.row_stride, taps);
                }
            }
            if constexpr (F16_SUMS == 1) add_sums(sum[r], partial[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < QUERIES_PER_THREAD; r++) {
        if constexpr (F16_SUMS == 2) add_sums(sum[r], partial[r]);
#pragma unroll
        for (int step = SIDE; step < SIDE * SAMPLE_GROUPS; step *= 2) {
#pragma unroll
            for (int c = 0; c < CHANNELS_PER_LANE; c++) {
                sum[r][c] += __shfl_xor_sync(0xffffffffu, sum[r][c], step);
            }
        }
        if (sample_group == 0 && group + r * GROUPS <= last) {
            store_output(call, image, queries[r], head, chunk * VEC, sum[r]);
        }
    }
}

// Computes a thread's part of a tile with the samples that are not dropped.
__device__ __forceinline__ void compute_heavy(const Args &args, int image, int head, int tile,
                                              int thread) {
    static_assert(!DROP || SAMPLES <= 64, "the samples of a query are bits of a word");
    const Call &call = args.call;
    const int query = tile * QUERIES_PER_TILE + thread / GROUP_LANES;
    const int row_offset = thread % GROUP_LANES * VEC;
    if (query >= call.queries) return;
    const char *weights = call.weights.at(image, query, head);
    // Calls `use(s, weight)` for each sample.
    const auto for_each_weight = [&](auto use) {
#pragma unroll 1
        for (int first = 0; first < SAMPLES; first += SAMPLES_PER_LOAD) {
            float weight[SAMPLES_PER_LOAD];
            load_widened<WEIGHT, SAMPLES_PER_LOAD, WEIGHT_ALIGN>(weights + first * size_of<WEIGHT>,
                                                                 weight);
#pragma unroll
            for (int t = 0; t < SAMPLES_PER_LOAD; t++) use(first + t, weight[t]);
        }
    };
    float total = 0, kept = 0;
    for_each_weight([&](int, float weight) { total += weight; });
    // Negative weights are kept. If the sum is not finite, all are kept: comparisons with NaN are
    // false. The dropped weights are less than 1/DROP of the sum, so kept > 0 if any are dropped.
    const float least = total <= MAX_FLOAT ? total / ((DROP ? DROP : 1) * SAMPLES) : 0;
    u64 samples = 0;
    bool drops = false;
    for_each_weight([&](int s, float weight) {
        if (weight >= 0 && weight < least) {
            drops = true;
        } else {
            samples |= u64(1) << s, kept += weight;
        }
    });
    const float scale = drops ? total / kept : 1;
    const char *base = opaque(call.value.at(image, 0, head) + row_offset);
    float sum[CHANNELS_PER_LANE] = {};
#pragma unroll 1
    for (; samples != 0; samples &= samples - 1) {
        const int s = __ffsll(samples) - 1;
        SampleInput input = load_sample(call, image, query, head, s);
        input.weight *= scale;
        add_taps(sum, base, call.value.row_stride, taps_of(call.level[level_of(call, s)], input));
    }
    store_output(call, image, query, head, row_offset, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    msda_forward(const __grid_constant__ Args args) {
    const Call &call = args.call;
    __shared__ Staged staged;
    const Level *table = call.level;
#if TABLE == 1
    table = reinterpret_cast<const Level *>(opaque(reinterpret_cast<const char *>(call.level)));
#elif TABLE == 2
    __shared__ Level levels[LEVELS];
    for (int l = threadIdx.x; l < LEVELS; l += THREADS) levels[l] = call.level[l];
    __syncthreads();
    table = levels;
#endif
    if constexpr (LINEAR) {
        // A tile has QUERIES_PER_THREAD queries here.
        const i64 all = i64(call.images) * args.tiles * call.heads * GROUP_LANES;
#pragma unroll 1
        for (i64 i = i64(blockIdx.x) * THREADS + threadIdx.x; i < all;
             i += i64(gridDim.x) * THREADS) {
            const int lane = i % GROUP_LANES, head = i / GROUP_LANES % call.heads;
            const i64 rest = i / GROUP_LANES / call.heads;
            compute(args, table, staged, staged.raw[0], rest / args.tiles, head, rest % args.tiles,
                    lane);
            if (!STRIDE) break;
        }
        return;
    }
    const int head = blockIdx.y, image = blockIdx.z;
    // Threads past the last whole group only help with staging.
    const bool has_group = int(threadIdx.x) < GROUPS * GROUP_LANES;
    int buffer = 0;
    if (PIPELINE && int(blockIdx.x) < args.tiles) {
        copy_tile(staged.raw[0], call, image, head, blockIdx.x);
    }
    for (int tile = blockIdx.x; tile < args.tiles; tile += gridDim.x, buffer ^= 1) {
        if constexpr (PIPELINE) {
            const int next = tile + gridDim.x;
            if (next < args.tiles) {
                copy_tile(staged.raw[buffer ^ 1], call, image, head, next);
                cp_async_wait_all_but_last();
            } else {
                cp_async_wait();
            }
            __syncthreads();
        } else if constexpr (STAGE) {
            for (int i = threadIdx.x; i < QUERIES_PER_TILE * SAMPLES; i += THREADS) {
                const int query = query_of(args, image, tile * QUERIES_PER_TILE + i / SAMPLES);
                const int s = i % SAMPLES;
                if (query >= call.queries) break;
                const SampleInput input = load_sample(call, image, query, head, s);
                if constexpr (STAGE == 2) {
                    staged.taps[i] = taps_of(table[level_of(call, s)], input);
                } else {
                    staged.input[i] = input;
                }
            }
            __syncthreads();
        }
        if (DROP && has_group) {
            compute_heavy(args, image, head, tile, threadIdx.x);
        } else if (has_group) {
            compute(args, table, staged, staged.raw[PIPELINE ? buffer : 0], image, head, tile,
                    threadIdx.x);
        }
        if (STAGE || PIPELINE) __syncthreads();
    }
}
