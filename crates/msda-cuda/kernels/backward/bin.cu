// bin: sorts the samples of each plane by the tiles that they touch, for the gradient of value.
//
//   msda_bin_count    a block counts the bins of a chunk: some queries and one level
//   msda_bin_scan     a block per plane turns the counts into first records
//   msda_bin_write    a block per chunk writes the records of its samples to their places
//
// Threads: a warp takes neighbouring queries at a time. To count: 32 queries, with all points of a
// query per lane. To write: 8 queries of 4 points, a sample per lane, if the number of points
// divides a warp.
//
//     counters of a block in msda_bin_write:   bin     0   1   2   3  ...
//                                     warp 0           2   0   1   0         16 bits each
//                                     warp 1           1   4   0   0
//
// The order of the records of a bin is always the same: by chunk, warp and group of queries, then
// by lane, or by point and lane where a lane has all points of a query. Lanes of a warp with the
// same bin find each other with match_any; atomics only count.
//
// If a block has no room for the counters of all bins of its level, it goes through its samples
// several times and takes band_bins of them at a time.
//
// Bound by: instructions (count) and latency (write).
#include "backward/tiles.cuh"

// Macros besides those of tiles.cuh: THREADS; COUNTERS_16BIT: a block has < 2^16 records;
// POINTS_PER_LOAD, which divides the points of each level; MAX_POINTS of a level; KEPT: the samples
// of a lane if their bins are kept in shared memory, so that samples are located once, or 0.
constexpr int WARPS = THREADS / 32;
constexpr int COUNTERS_PER_WORD = COUNTERS_16BIT ? 2 : 1;
constexpr int COUNTER_BITS = 32 / COUNTERS_PER_WORD;
constexpr int POINTS = UNIFORM_POINTS > 0 ? UNIFORM_POINTS : 1;
// Lanes that share a query when records are written: its points, if they divide a warp. So the
// records of a query follow each other in a bin, and value.cu loads its gradients once.
constexpr int POINT_LANES = POINTS <= 32 && (POINTS & (POINTS - 1)) == 0 ? POINTS : 1;
constexpr int LANE_SAMPLES = POINT_LANES > 1 ? 1 : MAX_POINTS; // of a unit

extern __shared__ uint4 shared[];

// The bin of a sample, counted from the first of its level; -1: it does not count.
__device__ __forceinline__ int bin_of_location(const Levels &levels, const TileLevel &level,
                                               const Wide (&reference)[FUSED ? FUSED : 1], Wide x,
                                               Wide y, bool active) {
    if (FUSED && active) add_reference(reference, level, x, y);
    return active && place(x, y, level) ? bin_of(levels, level, x, y) : -1;
}

// A chunk of a block, and what a warp of it works on: units of UNIT_QUERIES queries. LANES lanes
// share a query: a lane has one sample of a unit, or all points of a query.
template <int LANES> struct Work {
    static constexpr int UNIT_QUERIES = 32 / LANES;
    i64 plane;
    int image, head, chunk, l;
    int first, end; // first query, and one past the last
    int first_unit, end_unit;
    __device__ __forceinline__ Work(const Args &args) {
        // Chunks of the same queries follow each other: their locations are in the same lines.
        const u32 rest = blockIdx.x / LEVELS;
        l = int(blockIdx.x - rest * LEVELS);
        plane = rest / args.chunks, chunk = int(rest - u32(plane) * args.chunks);
        image = int(plane / args.heads), head = int(plane - i64(image) * args.heads);
        first = chunk * args.chunk_queries;
        end = min(first + args.chunk_queries, args.queries);
        const int units = (end - first + UNIT_QUERIES - 1) / UNIT_QUERIES;
        const int share = (units + WARPS - 1) / WARPS;
        first_unit = min(int(threadIdx.x) / 32 * share, units);
        end_unit = min(first_unit + share, units);
    }
    // The counts of the chunk, for the bins of its level.
    __device__ __forceinline__ u32 *counts(const Args &args, const TileLevel &level) const {
        return args.counts + (plane * args.chunks + chunk) * args.bin_capacity + level.first_bin;
    }
    __device__ __forceinline__ int query_of(int unit) const {
        return first + unit * UNIT_QUERIES + int(threadIdx.x % 32) / LANES;
    }
    __device__ __forceinline__ int point_of(int i) const {
        return LANES > 1 ? int(threadIdx.x % LANES) : i;
    }
    // Loads the locations of the lane's samples p to p + N of a unit, and the reference point.
    template <int N>
    __device__ __forceinline__ bool load(const Args &args, const TileLevel &level, int unit, int p,
                                         Wide (&xy)[2 * N],
                                         Wide (&reference)[FUSED ? FUSED : 1]) const {
        const int query = query_of(unit);
        if (unit >= end_unit || query >= end) return false;
        const char *from = args.locations.at(image, query, head);
        load_wide<LOCATION, 2 * N, LOCATION_ALIGN>(
            from + i64(level.first_sample + point_of(p)) * (2 * size_of<LOCATION>), xy);
        if (FUSED) {
            load_wide<LOCATION, FUSED ? FUSED : 1, REFERENCE_ALIGN>(
                args.reference.at(image, query, l), reference);
        }
        return true;
    }
    // Calls f(bin, unit, point) for all samples. All lanes of a warp do that together. Several
    // loads are in flight.
    template <typename F>
    __device__ __forceinline__ void for_each(const Args &args, const Levels &levels, F f) const {
        constexpr int N = LANES > 1 ? 1 : POINTS_PER_LOAD, AT_ONCE = N > 1 ? 2 : 4;
        const TileLevel &level = levels.level[l];
        const int points_of_lane = LANES > 1 ? 1 : UNIFORM_POINTS;
        // Loads of a unit, if the points are the same on all levels.
        const int loads = points_of_lane / N;
        if constexpr (UNIFORM_POINTS > 0) {
#pragma unroll 1
            for (int k = first_unit * loads; k < end_unit * loads; k += AT_ONCE) {
                Wide xy[AT_ONCE][2 * N], reference[AT_ONCE][FUSED ? FUSED : 1];
                bool active[AT_ONCE];
#pragma unroll
                for (int u = 0; u < AT_ONCE; u++) {
                    active[u] = load<N>(args, level, (k + u) / loads, (k + u) % loads * N, xy[u],
                                        reference[u]);
                }
#pragma unroll
                for (int u = 0; u < AT_ONCE; u++) {
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        f(bin_of_location(levels, level, reference[u], xy[u][2 * i],
                                          xy[u][2 * i + 1], active[u]),
                          (k + u) / loads, (k + u) % loads * N + i);
                    }
                }
            }
        } else {
#pragma unroll 1
            for (int unit = first_unit; unit < end_unit; unit++) {
#pragma unroll 1
                for (int p = 0; p < level.points; p += N) {
                    Wide xy[2 * N], reference[FUSED ? FUSED : 1];
                    const bool active = load<N>(args, level, unit, p, xy, reference);
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        f(bin_of_location(levels, level, reference, xy[2 * i], xy[2 * i + 1],
                                          active),
                          unit, p + i);
                    }
                }
            }
        }
    }
    __device__ __forceinline__ u32 record_of(const TileLevel &level, int unit, int i) const {
        const u32 points = UNIFORM_POINTS > 0 ? UNIFORM_POINTS : level.points;
        return u32(query_of(unit)) * points + point_of(i);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_bin_count(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    u32 *counters = reinterpret_cast<u32 *>(shared);
    const Work<1> work(args);
    load_levels(args, levels);
    const TileLevel &level = levels.level[work.l];
    const int bins = bins_of(levels, level), band_bins = args.band_bins;
    u32 *to = work.counts(args, level);
#pragma unroll 1
    for (int band = 0; band < bins; band += band_bins) {
        const int here = min(band_bins, bins - band);
        for (int b = threadIdx.x; b < here; b += THREADS) counters[b] = 0;
        __syncthreads();
        work.for_each(args, levels, [&](int bin, int, int) {
            if (u32(bin - band) < u32(here)) atomicAdd(&counters[bin - band], 1u);
        });
        __syncthreads();
        for (int b = threadIdx.x; b < here; b += THREADS) to[band + b] = counters[b];
        __syncthreads();
    }
}

// The counts of the chunks of four bins become the records of the chunks before. Returns the sums.
__device__ __forceinline__ uint4 add_up_chunks(const Args &args, u32 *counts) {
    constexpr int AT_ONCE = 8; // loads in flight
    uint4 sum = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (int first = 0; first < args.chunks; first += AT_ONCE) {
        uint4 count[AT_ONCE];
        auto at = [&](int i) {
            return reinterpret_cast<uint4 *>(counts + i64(first + i) * args.bin_capacity);
        };
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            count[i] = first + i < args.chunks ? *at(i) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (first + i < args.chunks) *at(i) = sum;
            sum.x += count[i].x, sum.y += count[i].y, sum.z += count[i].z, sum.w += count[i].w;
        }
    }
    return sum;
}

// A block per plane. A thread takes four bins.
extern "C" __global__ void __launch_bounds__(1024)
    msda_bin_scan(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    __shared__ u32 of_warp[32];
    load_levels(args, levels);
    const i64 plane = blockIdx.x;
    const int bins = levels.bins, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 *starts = args.bin_starts + plane * (args.bin_capacity + 1);
    u32 before = 0; // records of the bins before
#pragma unroll 1
    for (int begin = 0; begin < bins; begin += 4 * 1024) {
        const int b = begin + 4 * threadIdx.x;
        uint4 own = make_uint4(0, 0, 0, 0);
        if (b < bins) own = add_up_chunks(args, args.counts + plane * args.chunks * args.bin_capacity + b);
        const u32 all_four = own.x + own.y + own.z + own.w;
        u32 sum = all_four;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const u32 other = __shfl_up_sync(0xffffffffu, sum, step);
            sum += lane >= step ? other : 0;
        }
        if (lane == 31) of_warp[warp] = sum;
        __syncthreads();
        u32 lower = before, all = 0;
        for (int w = 0; w < 32; w++) {
            lower += w < warp ? of_warp[w] : 0;
            all += of_warp[w];
        }
        if (b < bins) {
            lower += sum - all_four;
            starts[b] = lower, starts[b + 1] = lower + own.x;
            starts[b + 2] = lower + own.x + own.y, starts[b + 3] = lower + own.x + own.y + own.z;
        }
        before += all;
        __syncthreads();
    }
    if (threadIdx.x == 0) starts[bins] = before;
}

// Counts the samples of a warp, one per lane, and returns the rank of each in its bin. All lanes
// call this together.
__device__ __forceinline__ u32 rank_of(u32 *own, u32 b, bool counts, int lane) {
    const u32 same = __match_any_sync(0xffffffffu, counts ? b : ~0u);
    const int leader = __ffs(int(same)) - 1;
    u32 first = 0;
    if (counts && lane == leader) {
        const int bit = int(b % COUNTERS_PER_WORD) * COUNTER_BITS;
        const u32 old = atomicAdd(&own[b / COUNTERS_PER_WORD], u32(__popc(same)) << bit);
        first = COUNTERS_PER_WORD == 1 ? old : old >> bit & 0xffff;
    }
    return __shfl_sync(0xffffffffu, first, leader) + __popc(same & ((1u << lane) - 1));
}

// Counts of the warps become records of the warps before, word by word: sums of halves do not run
// over into each other, because no block has more records than a counter holds. `base` gets the
// first record of each bin.
__device__ __forceinline__ void add_up_warps(const Args &args, u32 *base, u32 *counters,
                                             const u32 *starts, const u32 *before, int here) {
    const int warp_words = args.band_bins / COUNTERS_PER_WORD;
    for (int i = threadIdx.x; i * COUNTERS_PER_WORD < here; i += THREADS) {
        u32 sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const u32 count = counters[w * warp_words + i];
            counters[w * warp_words + i] = sum, sum += count;
        }
#pragma unroll
        for (int k = 0; k < COUNTERS_PER_WORD; k++) {
            const int b = i * COUNTERS_PER_WORD + k;
            if (b < here) base[b] = starts[b] + before[b];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, VALUE == F64 ? 2 : 4)
    msda_bin_write(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    u32 *base = reinterpret_cast<u32 *>(shared); // first record of each bin of the band
    u32 *counters = base + args.band_bins;
    const Work<POINT_LANES> work(args);
    load_levels(args, levels);
    const TileLevel &level = levels.level[work.l];
    const int bins = bins_of(levels, level), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int band_bins = args.band_bins, warp_words = band_bins / COUNTERS_PER_WORD;
    u32 *own = counters + warp * warp_words;
    const u32 *starts =
        args.bin_starts + work.plane * (args.bin_capacity + 1) + level.first_bin;
    const u32 *before = work.counts(args, level);
    u32 *records = args.records + work.plane * args.records_per_plane;
    // KEPT: the bins of the lane's samples, which fit 16 bits.
    constexpr u16 NOWHERE = 0xffff;
    u16 *kept = reinterpret_cast<u16 *>(counters + WARPS * warp_words) + warp * (KEPT * 32) + lane;
    const int kept_end = (work.end_unit - work.first_unit) * LANE_SAMPLES;
    if (UNIFORM_POINTS == 0) {
        // Levels with fewer points than others set only some of them.
        for (int k = 0; k < KEPT; k++) kept[k * 32] = NOWHERE;
    }
#pragma unroll 1
    for (int band = 0; band < bins; band += band_bins) {
        const int here = min(band_bins, bins - band);
        auto count = [&](u32 b) {
            if (b >= u32(here)) return;
            atomicAdd(&own[b / COUNTERS_PER_WORD], 1u << (b % COUNTERS_PER_WORD * COUNTER_BITS));
        };
        auto write = [&](u32 b, int unit, int i) {
            const bool in_band = b < u32(here);
            const u32 rank = rank_of(own, b, in_band, lane);
            if (in_band) records[base[b] + rank] = work.record_of(level, unit, i);
        };
        for (int i = threadIdx.x; i < WARPS * warp_words; i += THREADS) counters[i] = 0;
        __syncthreads();
        if (KEPT == 0 || band == 0) {
            work.for_each(args, levels, [&](int bin, int unit, int i) {
                if (KEPT > 0 && unit < work.end_unit) {
                    kept[((unit - work.first_unit) * LANE_SAMPLES + i) * 32] = u16(bin);
                }
                count(u32(bin - band));
            });
        } else {
            for (int k = 0; k < kept_end; k++) count(u32(kept[k * 32]) - band);
        }
        __syncthreads();
        add_up_warps(args, base, counters, starts + band, before + band, here);
        __syncthreads();
        if constexpr (KEPT > 0) {
#pragma unroll 4
            for (int k = 0; k < kept_end; k++) {
                write(u32(kept[k * 32]) - band, work.first_unit + k / LANE_SAMPLES, k % LANE_SAMPLES);
            }
        } else {
            work.for_each(args, levels, [&](int bin, int unit, int i) {
                write(u32(bin - band), unit, i);
            });
        }
        __syncthreads();
    }
}
