// bin: sorts the samples of each plane by the tiles that they touch, for the gradient of value.
//
//   msda_bin_count    a block counts the bins of a chunk of queries
//   msda_bin_scan     a block per plane turns counts into first records
//   msda_bin_write    a block per chunk writes the records of its samples to their places
//
// Planes with few queries are one chunk: msda_bin_write alone counts, scans and writes (ONE_CHUNK).
//
// Threads: one per query. A warp takes 32 neighbouring queries and goes through their samples
// together, so that lanes that look at the same place write beside each other.
//
//     counters of a block in msda_bin_write:   bin     0   1   2   3  ...
//                                     warp 0           2   0   1   0         16 bits each
//                                     warp 1           1   4   0   0
//
// The order of the records of a bin is always the same: by chunk, warp, group of 32 queries, sample,
// lane. Lanes of a warp with the same bin find each other with match_any; atomics only count.
//
// If a block has no room for the counters of all bins, it goes through its samples several times and
// takes band_bins of them at a time.
//
// Bound by: L2, which takes the records in small pieces; latency if there are few queries.
#include "backward/tiles.cuh"

// Macros besides those of tiles.cuh: THREADS; ONE_CHUNK; COUNTERS_16BIT: no block has more records;
// POINTS_PER_LOAD, which divides the points of each level.
constexpr int WARPS = THREADS / 32;
constexpr int COUNTERS_PER_WORD = COUNTERS_16BIT ? 2 : 1;
constexpr int COUNTER_BITS = 32 / COUNTERS_PER_WORD;

extern __shared__ uint4 shared[];

// Calls f(bin, record) for every sample of a query; bin -1: the sample does not count. All lanes of
// a warp call this together.
template <typename F>
__device__ __forceinline__ void for_each_sample(const Args &args, const Levels &levels, int image,
                                                int head, int query, bool active, F f) {
    const char *locations = args.locations.at(image, active ? query : 0, head);
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const TileLevel level = levels.level[l];
        const int points = UNIFORM_POINTS > 0 ? UNIFORM_POINTS : level.points;
        Wide reference[FUSED ? FUSED : 1];
        if (FUSED && active) {
            load_wide<LOCATION, FUSED ? FUSED : 1, REFERENCE_ALIGN>(
                args.reference.at(image, query, l), reference);
        }
#pragma unroll 1
        for (int p = 0; p < points; p += POINTS_PER_LOAD) {
            Wide xy[2 * POINTS_PER_LOAD];
            if (active) {
                constexpr int ALIGN = LOCATION_ALIGN;
                load_wide<LOCATION, 2 * POINTS_PER_LOAD, ALIGN>(
                    locations + i64(level.first_sample + p) * (2 * size_of<LOCATION>), xy);
            }
#pragma unroll
            for (int i = 0; i < POINTS_PER_LOAD; i++) {
                Wide x = xy[2 * i], y = xy[2 * i + 1];
                if (FUSED && active) add_reference(reference, level, x, y);
                const bool counts = active && place(x, y, level);
                f(counts ? bin_of(levels, level, x, y) : -1, u32(query) * points + p + i);
            }
        }
    }
}

// The exclusive prefix sum of x[0..n) on top of `before`, by all threads of a block. Returns the sum
// of all. x is in shared or global memory of the block.
__device__ __forceinline__ u32 scan_in_place(u32 *x, int n, u32 before) {
    __shared__ u32 of_warp[32];
    for (int begin = 0; begin < n; begin += blockDim.x) {
        const int i = begin + threadIdx.x, lane = threadIdx.x % 32;
        const u32 own = i < n ? x[i] : 0;
        u32 sum = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const u32 other = __shfl_up_sync(0xffffffffu, sum, step);
            sum += lane >= step ? other : 0;
        }
        if (lane == 31) of_warp[threadIdx.x / 32] = sum;
        __syncthreads();
        u32 lower = before, all = 0;
        for (int w = 0; w < int(blockDim.x) / 32; w++) {
            lower += w < int(threadIdx.x) / 32 ? of_warp[w] : 0;
            all += of_warp[w];
        }
        if (i < n) x[i] = lower + sum - own;
        before += all;
        __syncthreads();
    }
    return before;
}

// What a block works on.
struct Work {
    i64 plane;
    int image, head, chunk, first, end; // queries
    __device__ __forceinline__ Work(const Args &args) {
        plane = blockIdx.x / args.chunks, chunk = blockIdx.x - int(plane) * args.chunks;
        image = int(plane / args.heads), head = int(plane - i64(image) * args.heads);
        first = chunk * args.chunk_queries;
        end = min(first + args.chunk_queries, args.queries);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_bin_count(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    u32 *counters = reinterpret_cast<u32 *>(shared);
    const Work work(args);
    load_levels(args, levels);
    const int bins = bins_of(levels), band_bins = args.band_bins;
    u32 *to = args.counts + (work.plane * args.chunks + work.chunk) * args.bin_capacity;
    for (int band = 0; band < bins; band += band_bins) {
        const int here = min(band_bins, bins - band);
        for (int b = threadIdx.x; b < here; b += THREADS) counters[b] = 0;
        __syncthreads();
#pragma unroll 1
        for (int query = work.first + threadIdx.x; query < work.end; query += THREADS) {
            for_each_sample(args, levels, work.image, work.head, query, true, [&](int bin, u32) {
                if (u32(bin - band) < u32(here)) atomicAdd(&counters[bin - band], 1u);
            });
        }
        __syncthreads();
        for (int b = threadIdx.x; b < here; b += THREADS) to[band + b] = counters[b];
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(1024)
    msda_bin_scan(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    load_levels(args, levels);
    const int bins = bins_of(levels);
    const i64 plane = blockIdx.x;
    u32 *starts = args.bin_starts + plane * (args.bin_capacity + 1);
    for (int b = threadIdx.x; b < bins; b += blockDim.x) {
        u32 *count = args.counts + plane * args.chunks * args.bin_capacity + b;
        u32 sum = 0;
#pragma unroll 8
        for (int chunk = 0; chunk < args.chunks; chunk++) {
            const u32 here = *count;
            *count = sum, sum += here;
            count += args.bin_capacity;
        }
        starts[b] = sum;
    }
    __syncthreads();
    const u32 total = scan_in_place(starts, bins, 0);
    if (threadIdx.x == 0) starts[bins] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_bin_write(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    u32 *base = reinterpret_cast<u32 *>(shared); // first record of each bin of the band
    u32 *counters = base + args.band_bins;
    const Work work(args);
    load_levels(args, levels);
    const int bins = bins_of(levels), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int band_bins = args.band_bins, warp_words = band_bins / COUNTERS_PER_WORD;
    u32 *own = counters + warp * warp_words;
    u32 *starts = args.bin_starts + work.plane * (args.bin_capacity + 1);
    const u32 *before = args.counts + (work.plane * args.chunks + work.chunk) * args.bin_capacity;
    u32 *records = args.records + work.plane * args.records_per_plane;
    // Each warp takes whole groups of 32 queries, one after the other.
    const int groups = (work.end - work.first + 31) / 32;
    const int groups_per_warp = (groups + WARPS - 1) / WARPS;
    const int first_group = warp * groups_per_warp;
    const int end_group = min(first_group + groups_per_warp, groups);
    u32 total = 0; // ONE_CHUNK: records of the bands before
    for (int band = 0; band < bins; band += band_bins) {
        const int here = min(band_bins, bins - band);
        for (int i = threadIdx.x; i < WARPS * warp_words; i += THREADS) counters[i] = 0;
        __syncthreads();
#pragma unroll 1
        for (int group = first_group; group < end_group; group++) {
            const int query = work.first + group * 32 + lane;
            for_each_sample(args, levels, work.image, work.head, query, query < work.end,
                            [&](int bin, u32) {
                                const u32 b = u32(bin - band);
                                if (b >= u32(here)) return;
                                atomicAdd(&own[b / COUNTERS_PER_WORD],
                                          1u << (b % COUNTERS_PER_WORD * COUNTER_BITS));
                            });
        }
        __syncthreads();
        // Counts of the warps become records of the warps before, word by word: sums of halves do
        // not run over into each other, because no block has more records than a counter holds.
        for (int i = threadIdx.x; i < warp_words; i += THREADS) {
            u32 sum = 0;
            for (int w = 0; w < WARPS; w++) {
                const u32 count = counters[w * warp_words + i];
                counters[w * warp_words + i] = sum, sum += count;
            }
#pragma unroll
            for (int k = 0; k < COUNTERS_PER_WORD; k++) {
                const int b = i * COUNTERS_PER_WORD + k;
                if (b >= here) continue;
                if (ONE_CHUNK) {
                    base[b] = COUNTERS_PER_WORD == 1 ? sum : (sum >> (k * 16)) & 0xffff;
                } else {
                    base[b] = starts[band + b] + before[band + b];
                }
            }
        }
        __syncthreads();
        if (ONE_CHUNK) {
            total = scan_in_place(base, here, total);
            for (int b = threadIdx.x; b < here; b += THREADS) starts[band + b] = base[b];
        }
#pragma unroll 1
        for (int group = first_group; group < end_group; group++) {
            const int query = work.first + group * 32 + lane;
            for_each_sample(args, levels, work.image, work.head, query, query < work.end,
                            [&](int bin, u32 record) {
                                const u32 b = u32(bin - band);
                                const bool in_band = b < u32(here);
                                const u32 same = __match_any_sync(0xffffffffu, in_band ? b : ~0u);
                                const int leader = __ffs(int(same)) - 1;
                                u32 first = 0;
                                if (in_band && lane == leader) {
                                    const int bit = int(b % COUNTERS_PER_WORD) * COUNTER_BITS;
                                    const u32 old = atomicAdd(&own[b / COUNTERS_PER_WORD],
                                                              u32(__popc(same)) << bit);
                                    first = COUNTERS_PER_WORD == 1 ? old : (old >> bit) & 0xffff;
                                }
                                first = __shfl_sync(0xffffffffu, first, leader);
                                if (!in_band) return;
                                const u32 rank = first + __popc(same & ((1u << lane) - 1));
                                records[base[b] + rank] = record;
                            });
        }
        __syncthreads();
    }
    if (ONE_CHUNK && threadIdx.x == 0) starts[bins] = total;
}
