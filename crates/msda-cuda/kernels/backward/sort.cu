// sort: sorts the samples of each plane and level by their bins, for the gradient of value.
//
// Threads: a block per chunk. To locate, a lane takes POINTS_PER_LOAD samples of a query.
//
//   1. locate the samples: a key is the bin and the index of a sample
//   2. sort the keys in shared memory
//   3. store the ends of the bins
//   4. store the records, one after the other
//
// If bins have few samples, the block sorts by counting (sort_counting.cuh), otherwise by digits of
// the bins (sort_digits.cuh). Either way the order of the records is always the same, because
// atomics only count.
//
// A chunk that does not fit shared memory (large levels, very many queries) is sorted in batches:
// the block counts the samples of each bin first, and then knows where those of a batch go.
//
// Bound by: latency, of global memory, shared memory and barriers.
#include "backward/sort_digits.cuh"
#if !WIDE_KEYS
#include "backward/sort_counting.cuh"
#endif

// Macros besides those of tiles.cuh: THREADS; POINTS_PER_LOAD, 1, 2 or 4, which divides the points
// of each level; WIDE_KEYS: a level may have 2^16 - 1 bins or more.
static_assert(POINTS_PER_LOAD == 1 || POINTS_PER_LOAD == 2 || POINTS_PER_LOAD == 4,
              "loads of a lane");
static_assert(UNIFORM_POINTS % POINTS_PER_LOAD == 0, "a lane's samples belong to one query");

extern __shared__ uint4 shared[];

// The bin of a sample, counted from the first of its level; -1: it does not count.
__device__ __forceinline__ int bin_of_location(const Levels &levels, int l,
                                               const Wide (&reference)[FUSED ? FUSED : 1], Wide x,
                                               Wide y) {
    const TileLevel &level = levels.level[l];
    if (FUSED) add_reference(reference, levels, l, x, y);
    return place(x, y, level) ? bin_of(levels, level, x, y) : -1;
}

// A chunk of a block. Lanes take N samples of a query at a time.
struct Work {
    static constexpr int N = POINTS_PER_LOAD;
    i64 plane;
    int image, head, chunk, l;
    u32 first, count; // samples of the level
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
    // Loads the locations of N samples, and the reference point of their query.
    __device__ __forceinline__ void load(const Args &args, const TileLevel &level, u32 index,
                                         Wide (&xy)[2 * N],
                                         Wide (&reference)[FUSED ? FUSED : 1]) const {
        int sample;
        const int query = query_of_sample(index, level, sample);
        load_wide<LOCATION, 2 * N, LOCATION_ALIGN>(
            args.locations.at(image, query, head) + i64(sample) * (2 * size_of<LOCATION>), xy);
        if (FUSED) {
            load_wide<LOCATION, FUSED ? FUSED : 1, REFERENCE_ALIGN>(
                args.reference.at(image, query, l), reference);
        }
    }
    // Calls f(bins of N samples, index of the first) for n samples, from sample `from` on. Several
    // loads are in flight.
    template <typename F>
    __device__ __forceinline__ void for_each(const Args &args, const Levels &levels, u32 from,
                                             u32 n, F f) const {
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
                int bins[N];
#pragma unroll
                for (int i = 0; i < N; i++) {
                    bins[i] =
                        bin_of_location(levels, l, reference[u], xy[u][2 * i], xy[u][2 * i + 1]);
                }
                f(bins, index);
            }
        }
    }
};

// Counts the samples of a chunk: the ends become the number of samples in the bins before. All
// threads call this together.
__device__ __forceinline__ void count_samples(const Args &args, const Levels &levels,
                                              const Work &work, const Ends &ends, u32 bins,
                                              Sorting &own) {
    u32 *counters = reinterpret_cast<u32 *>(shared);
    const u32 band_bins = shared_bytes() / 4; // as many as there is room for
#pragma unroll 1
    for (u32 band = 0, before = 0; band < bins; band += band_bins) { // before: samples so far
        const u32 here = min(band_bins, bins - band);
        for (u32 b = threadIdx.x; b < here; b += THREADS) counters[b] = 0;
        __syncthreads();
        work.for_each(args, levels, work.first, work.count, [&](const int (&bin)[Work::N], u32) {
#pragma unroll
            for (int i = 0; i < Work::N; i++) {
                if (bin[i] >= 0 && u32(bin[i]) - band < here)
                    atomicAdd(&counters[bin[i] - band], 1u);
            }
        });
        __syncthreads();
        // A thread takes some bins that follow each other.
        const u32 each = (here + THREADS - 1) / THREADS;
        const u32 begin = min(threadIdx.x * each, here), end = min(begin + each, here);
        u32 all = 0;
        for (u32 b = begin; b < end; b++) all += counters[b];
        u32 place = sum_before(own, all, before);
        for (u32 b = begin; b < end; b++) ends.at(int(band + b)) = End(place), place += counters[b];
        __syncthreads();
    }
}

// Stores the records of a batch of n sorted samples, some of which may have no bin. `first`: the
// first sample of the batch, counted from that of the chunk. `ends` has the place of the next
// record of each bin, and is moved on. All threads call this together.
__device__ __forceinline__ void store_batch(Record *records, const Key *keys, u32 n, u32 first,
                                            const Ends &ends) {
    const u32 lane = threadIdx.x % 32, share = (n + THREADS - 1) / THREADS * 32; // of a warp
    const u32 begin = threadIdx.x / 32 * share, end = min(begin + share, n);
    // From the index of a sample in shared memory to its record: the distance is the same for all
    // samples of a bin. `carried`: the distance of the sample before the next 32.
    auto distance_of = [&](u32 bin, u32 index) { return u32(ends.at(int(bin))) - index; };
    u32 carried = 0;
    if (begin < end && bin_of_key(keys[begin]) != NO_BIN) {
        const u32 bin = bin_of_key(keys[begin]);
        carried = distance_of(bin, first_with(keys, begin, bin));
    }
    constexpr int AT_ONCE = 4; // times 32 samples, so that several loads are in flight
#pragma unroll 1
    for (u32 at = begin; at < end; at += 32 * AT_ONCE) {
        Key key[AT_ONCE];
        u32 distance[AT_ONCE];
        bool is_first[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const u32 i = at + u * 32 + lane;
            key[u] = i < end ? keys[i] : Key(NO_BIN);
            const u32 bin = bin_of_key(key[u]);
            is_first[u] = i > begin && bin != NO_BIN && bin != bin_of_key(keys[i - 1]);
            distance[u] = is_first[u] ? distance_of(bin, i) : 0;
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const u32 up_to_here = __ballot_sync(0xffffffffu, is_first[u]) & (~0u >> (31 - lane));
            const u32 found = __shfl_sync(0xffffffffu, distance[u], 31 - __clz(int(up_to_here)));
            const u32 to = up_to_here == 0 ? carried : found;
            const u32 place = to + at + u * 32 + lane;
            if (bin_of_key(key[u]) != NO_BIN) records[place] = Record(first + index_of_key(key[u]));
            carried = __shfl_sync(0xffffffffu, to, 31);
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        const u32 bin = bin_of_key(keys[i]);
        const bool is_last = i + 1 == n || bin != bin_of_key(keys[i + 1]);
        if (is_last && bin != NO_BIN) {
            End &end = ends.at(int(bin));
            end = End(end + i + 1 - first_with(keys, i, bin));
        }
    }
}

// Blocks per SM. Shared memory limits them on sm_90. An SM of sm_75 has 1024 threads.
constexpr int SORT_BLOCKS = THREADS > 256 ? 1 : VALUE == F64 ? 2 : __CUDA_ARCH__ >= 800 ? 5 : 4;

extern "C" __global__ void __launch_bounds__(THREADS, SORT_BLOCKS)
    msda_sort(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    __shared__ Sorting own;
    Work work(args);
    load_levels(args, levels);
    const TileLevel &level = levels.level[work.l];
    if (level.cells() == 0) return;
    work.divide(args, level);
    const Ends ends(args, level, work.plane, work.chunk);
    const u32 bins_of_level = u32(bins_of(level, levels.bin_shift));
    const u32 batch_samples = u32(args.batch_samples);
    const bool one_batch = work.count <= batch_samples;
    if (!one_batch) count_samples(args, levels, work, ends, bins_of_level, own);
    Record *records =
        args.records + work.plane * args.records_per_plane + first_record(args, level, work.chunk);
    u32 done = 0;
#pragma unroll 1
    do {
        const u32 n = min(work.count - done, batch_samples);
        Key *keys = reinterpret_cast<Key *>(shared), *other = keys + batch_samples;
        u16 *ranks = reinterpret_cast<u16 *>(other + batch_samples);
        if (threadIdx.x == 0) own.lowest = NO_BIN, own.highest = own.pairs = 0;
        __syncthreads();
        u32 low = NO_BIN, high = 0; // the largest bin + 1
        work.for_each(
            args, levels, work.first + done, n, [&](const int (&bin)[Work::N], u32 index) {
                struct __align__(sizeof(Key) * Work::N < 16 ? sizeof(Key) * Work::N : 16) Keys {
                    Key of[Work::N];
                } own_keys;
#pragma unroll
                for (int i = 0; i < Work::N; i++) {
                    own_keys.of[i] = make_key(bin[i], index + i);
                    if (bin[i] >= 0) low = min(low, u32(bin[i])), high = max(high, u32(bin[i]) + 1);
                }
                *reinterpret_cast<Keys *>(keys + index) = own_keys;
            });
        __syncwarp();
        low = min_of_warp(low), high = ~min_of_warp(~high);
        if (threadIdx.x % 32 == 0) atomicMin(&own.lowest, low), atomicMax(&own.highest, high);
        __syncthreads();
        const u32 highest = own.highest, lowest = min(own.lowest, highest), bins = highest - lowest;
#if !WIDE_KEYS
        CountingSort by_counting{own, keys, batch_samples, n, lowest, highest};
        if (one_batch && by_counting.run(ends, bins_of_level, records)) return;
#endif
#pragma unroll 1
        for (int shift = 0; shift < 32 && bins >> shift != 0; shift += DIGIT_BITS) {
            sort_by_digit(own, keys, other, ranks, n, lowest, bins, shift);
            Key *const sorted = other;
            other = keys, keys = sorted;
        }
        // Samples without a bin are the last ones.
        const u32 with_bin = bins == 0 ? 0 : first_with(keys, n, NO_BIN);
        if (one_batch) store_ends(ends, keys, with_bin, bins_of_level, lowest, highest, own);
        if (one_batch) {
#pragma unroll 4
            for (u32 i = threadIdx.x; i < with_bin; i += THREADS)
                records[i] = Record(index_of_key(keys[i]));
        } else if (bins > 0) {
            store_batch(records, keys, n, done, ends);
        }
        __syncthreads();
        done += batch_samples;
    } while (done < work.count);
}
