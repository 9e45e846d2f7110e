// bin: sorts the samples of each plane by their bins, for the gradient of value.
//
//   msda_bin_count    a block per chunk counts the samples of each bin
//   msda_bin_scan     a block per plane turns the counts into first records
//   msda_bin_write    a block per chunk sorts its samples in shared memory, then writes records
//
// Threads: to count, POINTS_PER_LOAD samples of a query per lane; to write, one sample per lane.
//
// A block sorts by digits of the bins, the lowest first. A warp counts the digits of its samples;
// lanes with the same digit find each other with match_any. The samples of a digit keep their
// order: by warp, by 32 samples, by lane. So the order of the records is always the same. Atomics
// only count. Records of a bin follow each other in shared memory, so stores to device memory touch
// few lines.
//
// Bound by: instructions (count, write) and latency (scan).
#include "backward/tiles.cuh"

// Macros besides those of tiles.cuh: THREADS; POINTS_PER_LOAD, 1, 2 or 4, which divides the points
// of each level; WIDE_KEYS: a level may have 2^16 - 1 bins or more.
constexpr int WARPS = THREADS / 32;
constexpr int DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS;

extern __shared__ uint4 shared[];

// The bin of a sample, counted from the first of its level; -1: it does not count.
__device__ __forceinline__ int bin_of_location(const Levels &levels, int l,
                                               const Wide (&reference)[FUSED ? FUSED : 1], Wide x,
                                               Wide y) {
    const TileLevel &level = levels.level[l];
    if (FUSED) add_reference(reference, levels, l, x, y);
    return place(x, y, level) ? bin_of(levels, level, x, y) : -1;
}

// A chunk of a block. Lanes take N samples at a time.
template <int N> struct Work {
    i64 plane;
    int image, head, chunk, l;
    u32 first, count; // records of the level
    __device__ __forceinline__ Work(const Args &args) {
        // Chunks of the same queries follow each other: their locations are in the same lines.
        const u32 rest = blockIdx.x / LEVELS;
        l = int(blockIdx.x - rest * LEVELS);
        plane = rest / args.chunks, chunk = int(rest - u32(plane) * args.chunks);
        image = int(plane / args.heads), head = int(plane - i64(image) * args.heads);
    }
    // Finds the samples of the chunk.
    __device__ __forceinline__ void divide(const Args &args, const TileLevel &level) {
        const i64 all = i64(args.queries) * level.points, begin = i64(chunk) * args.chunk_samples;
        first = u32(begin < all ? begin : all);
        count = u32(all - first < args.chunk_samples ? all - first : args.chunk_samples);
    }
    // The counts of the chunk, for the bins of its level.
    __device__ __forceinline__ u32 *counts(const Args &args, const TileLevel &level) const {
        return args.counts + (plane * args.chunks + chunk) * args.bin_capacity + level.first_bin;
    }
    // Loads the locations of N samples, and the reference point of their query.
    __device__ __forceinline__ void load(const Args &args, const TileLevel &level, u32 record,
                                         Wide (&xy)[2 * N],
                                         Wide (&reference)[FUSED ? FUSED : 1]) const {
        int sample;
        const int query = query_of_record(record, level, sample);
        load_wide<LOCATION, 2 * N, LOCATION_ALIGN>(
            args.locations.at(image, query, head) + i64(sample) * (2 * size_of<LOCATION>), xy);
        if (FUSED) {
            load_wide<LOCATION, FUSED ? FUSED : 1, REFERENCE_ALIGN>(
                args.reference.at(image, query, l), reference);
        }
    }
    // Calls f(bin, index) for n samples, from record `from` on. Several loads are in flight.
    template <typename F>
    __device__ __forceinline__ void for_each(const Args &args, const Levels &levels, u32 from, u32 n,
                                             F f) const {
        constexpr int AT_ONCE = N > 1 ? 2 : 4;
        const TileLevel &level = levels.level[l];
#pragma unroll 1
        for (u32 begin = threadIdx.x * N; begin < n; begin += AT_ONCE * THREADS * N) {
            Wide xy[AT_ONCE][2 * N], reference[AT_ONCE][FUSED ? FUSED : 1];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                const u32 index = begin + u * (THREADS * N);
                if (index < n) load(args, level, from + index, xy[u], reference[u]);
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                const u32 index = begin + u * (THREADS * N);
                if (index >= n) break;
#pragma unroll
                for (int i = 0; i < N; i++) {
                    f(bin_of_location(levels, l, reference[u], xy[u][2 * i], xy[u][2 * i + 1]),
                      index + i);
                }
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_bin_count(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    u32 *counters = reinterpret_cast<u32 *>(shared);
    Work<POINTS_PER_LOAD> work(args);
    load_levels(args, levels);
    const TileLevel &level = levels.level[work.l];
    work.divide(args, level);
    const int bins = bins_of(level, levels.bin_shift), band_bins = args.count_bins;
    u32 *to = work.counts(args, level);
#pragma unroll 1
    for (int band = 0; band < bins; band += band_bins) {
        const int here = min(band_bins, bins - band);
        for (int b = threadIdx.x; b < here; b += THREADS) counters[b] = 0;
        __syncthreads();
        work.for_each(args, levels, work.first, work.count, [&](int bin, u32) {
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
        // There are no counts after those of the last bin.
        if (b + 2 > bins) own.y = 0;
        if (b + 3 > bins) own.z = 0;
        if (b + 4 > bins) own.w = 0;
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
            // The last of these four may not be bins; the array has room for them.
            starts[b] = lower, starts[b + 1] = lower + own.x;
            starts[b + 2] = lower + own.x + own.y, starts[b + 3] = lower + own.x + own.y + own.z;
        }
        before += all;
        __syncthreads();
    }
    if (threadIdx.x == 0) starts[bins] = before;
}

// A sample of a chunk: its bin, or NO_BIN, in the lower half; its index in the chunk in the upper.
#if WIDE_KEYS
typedef u64 Key;
constexpr u32 NO_BIN = 0xffffffff;
#else
typedef u32 Key;
constexpr u32 NO_BIN = 0xffff;
#endif
constexpr int HALF = sizeof(Key) * 4;
__device__ __forceinline__ Key make_key(int bin, u32 index) {
    return (Key(index) << HALF) + (u32(bin) & NO_BIN);
}
__device__ __forceinline__ u32 bin_of_key(Key key) { return u32(key) & NO_BIN; }

// What a block has in shared memory, besides keys and, for each, its rank among the samples of a
// warp with the same digit.
struct Sorting {
    u32 count[WARPS][DIGITS / 2]; // of samples, 16 bits each; later the place of the first one
    u32 of_warp[WARPS];
    u32 lowest, highest; // bins
    __device__ __forceinline__ u32 place(u32 warp, u32 digit) const {
        return reinterpret_cast<const u16 *>(count[warp])[digit];
    }
};

__device__ __forceinline__ u32 min_of_warp(u32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(0xffffffffu, x);
#else
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = min(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
#endif
}

// Turns the counts of digits into places: by digit, then by warp. A thread takes some digits, two
// per word: no sum runs over, because there are fewer than 2^16 samples. All threads call this
// together.
__device__ __forceinline__ void scan_counts(Sorting &own) {
    constexpr int WORDS = DIGITS / 2 < THREADS ? 1 : DIGITS / 2 / THREADS;
    const bool has_digits = threadIdx.x * WORDS < DIGITS / 2;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 counts[WARPS][WORDS], of_digits[WORDS] = {}, all = 0;
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            counts[w][i] = has_digits ? own.count[w][threadIdx.x * WORDS + i] : 0;
            of_digits[i] += counts[w][i];
        }
        all += (of_digits[i] & 0xffff) + (of_digits[i] >> 16);
    }
    u32 sum = all;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
    }
    if (lane == 31) own.of_warp[warp] = sum;
    __syncthreads();
    sum -= all;
    for (int w = 0; w < WARPS; w++) sum += w < warp ? own.of_warp[w] : 0;
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        const u32 first = of_digits[i] & 0xffff, second = of_digits[i] >> 16;
        u32 places = sum + ((sum + first) << 16);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            if (has_digits) own.count[w][threadIdx.x * WORDS + i] = places;
            places += counts[w][i];
        }
        sum += first + second;
    }
}

// Sorts n samples by the digit of their bins from bit `shift` on. Bins are counted from `lowest`;
// samples without a bin count as bin `bins`. All threads call this together.
__device__ __forceinline__ void sort_by_digit(Sorting &own, const Key *from, Key *to, u16 *ranks, u32 n,
                                              u32 lowest, u32 bins, int shift) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 share = (n + 32 * WARPS - 1) / (32 * WARPS) * 32; // samples of a warp
    const u32 begin = warp * share, end = min(begin + share, n);
    auto digit_of = [&](Key key) {
        return min(bin_of_key(key) - lowest, bins) >> shift & (DIGITS - 1);
    };
#pragma unroll
    for (int i = 0; i < DIGITS / 2 / 32; i++) own.count[0][i * THREADS + threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 4
    for (u32 first = begin; first < end; first += 32) {
        const bool exists = first + lane < end;
        const u32 digit = exists ? digit_of(from[first + lane]) : ~0u;
        const u32 same = __match_any_sync(0xffffffffu, digit), lower = same & ((1u << lane) - 1);
        u32 before = 0;
        if (exists && lower == 0) {
            const u32 bit = digit % 2 * 16;
            before = atomicAdd(&own.count[warp][digit / 2], u32(__popc(same)) << bit) >> bit & 0xffff;
        }
        before = __shfl_sync(0xffffffffu, before, __ffs(int(same)) - 1);
        if (exists) ranks[first + lane] = u16(before + __popc(lower));
    }
    __syncthreads();
    scan_counts(own);
    __syncthreads();
#pragma unroll 4
    for (u32 i = begin + lane; i < end; i += 32) {
        const Key key = from[i];
        to[own.place(warp, digit_of(key)) + ranks[i]] = key;
    }
    __syncthreads();
}

// The first of n sorted samples with this bin.
__device__ __forceinline__ u32 first_with(const Key *keys, u32 n, u32 bin) {
    u32 begin = 0, end = n; // it is in between
    while (begin < end) {
        const u32 middle = (begin + end) / 2;
        if (bin_of_key(keys[middle]) < bin) begin = middle + 1; else end = middle;
    }
    return begin;
}

// Writes the records of n sorted samples, of which the first in the chunk is record `first`.
// `before` has the records of the bins in chunks before; with `more`, those of these samples are
// added to it. All threads call this together.
__device__ __forceinline__ void write_records(u32 *records, const Key *keys, u32 n, u32 first,
                                              const u32 *starts, u32 *before, bool more) {
    const u32 lane = threadIdx.x % 32, share = (n + THREADS - 1) / THREADS * 32; // of a warp
    const u32 begin = threadIdx.x / 32 * share, end = min(begin + share, n);
    // From the index of a sample in shared memory to its record: the distance is the same for all
    // samples of a bin. `carried`: the distance of the sample before the next 32.
    auto place_of = [&](u32 bin, u32 index) { return starts[bin] + before[bin] - index; };
    u32 carried = 0;
    if (begin < end && bin_of_key(keys[begin]) != NO_BIN) {
        const u32 bin = bin_of_key(keys[begin]);
        carried = place_of(bin, first_with(keys, begin, bin));
    }
    constexpr int AT_ONCE = 4; // times 32 samples, so that several loads are in flight
#pragma unroll 1
    for (u32 at = begin; at < end; at += 32 * AT_ONCE) {
        Key key[AT_ONCE];
        u32 place[AT_ONCE];
        bool is_first[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const u32 i = at + u * 32 + lane;
            key[u] = i < end ? keys[i] : Key(NO_BIN);
            const u32 bin = bin_of_key(key[u]);
            is_first[u] = i > begin && bin != NO_BIN && bin != bin_of_key(keys[i - 1]);
            place[u] = is_first[u] ? place_of(bin, i) : 0;
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const u32 up_to_here = __ballot_sync(0xffffffffu, is_first[u]) & (~0u >> (31 - lane));
            const u32 found = __shfl_sync(0xffffffffu, place[u], 31 - __clz(int(up_to_here)));
            const u32 to = up_to_here == 0 ? carried : found;
            const u32 i = at + u * 32 + lane;
            if (bin_of_key(key[u]) != NO_BIN) records[to + i] = first + u32(key[u] >> HALF);
            carried = __shfl_sync(0xffffffffu, to, 31);
        }
    }
    if (!more) return;
    __syncthreads();
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        const u32 bin = bin_of_key(keys[i]);
        const bool is_last = i + 1 == n || bin != bin_of_key(keys[i + 1]);
        if (is_last && bin != NO_BIN) before[bin] += i + 1 - first_with(keys, i, bin);
    }
}

// Blocks per SM. Shared memory limits them on sm_90, the number of threads on sm_75.
constexpr int WRITE_BLOCKS = VALUE == F64 ? 2 : __CUDA_ARCH__ >= 800 ? 5 : 4;

extern "C" __global__ void __launch_bounds__(THREADS, WRITE_BLOCKS)
    msda_bin_write(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    __shared__ Sorting own;
    Work<1> work(args);
    load_levels(args, levels);
    const TileLevel &level = levels.level[work.l];
    if (level.cells() == 0) return;
    work.divide(args, level);
    const u32 *starts = bin_starts(args, level, work.plane);
    u32 *before = work.counts(args, level);
    u32 *records = args.records + work.plane * args.records_per_plane;
    // As many samples at a time as shared memory has room for: usually all of the chunk.
#pragma unroll 1
    for (u32 done = 0; done < work.count; done += args.batch_samples) {
        const u32 n = min(work.count - done, u32(args.batch_samples)), first = work.first + done;
        Key *keys = reinterpret_cast<Key *>(shared), *other = keys + args.batch_samples;
        u16 *ranks = reinterpret_cast<u16 *>(other + args.batch_samples);
        if (threadIdx.x == 0) own.lowest = NO_BIN, own.highest = 0;
        __syncthreads();
        u32 low = NO_BIN, high = 0; // the largest bin + 1
        work.for_each(args, levels, first, n, [&](int bin, u32 index) {
            keys[index] = make_key(bin, index);
            if (bin >= 0) low = min(low, u32(bin)), high = max(high, u32(bin) + 1);
        });
        __syncwarp();
        low = min_of_warp(low), high = ~min_of_warp(~high);
        if (threadIdx.x % 32 == 0) atomicMin(&own.lowest, low), atomicMax(&own.highest, high);
        __syncthreads();
        const u32 lowest = own.lowest, bins = own.highest == 0 ? 0 : own.highest - lowest;
#pragma unroll 1
        for (int shift = 0; shift < 32 && bins >> shift != 0; shift += DIGIT_BITS) {
            sort_by_digit(own, keys, other, ranks, n, lowest, bins, shift);
            Key *const sorted = other;
            other = keys, keys = sorted;
        }
        if (bins > 0) write_records(records, keys, n, first, starts, before, n < work.count);
        __syncthreads();
    }
}
