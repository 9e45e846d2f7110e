// sort: sorts the samples of each plane and level by their bins, for the gradient of value.
//
// Threads: a block per chunk. To locate, a lane takes POINTS_PER_LOAD samples of a query.
//
//   1. locate the samples: a key is the bin and the index of a sample
//   2. sort the keys in shared memory
//   3. store the ends of the bins
//   4. store the records, one after the other
//
// If bins have few samples, the block sorts by counting: see sort_by_counting. Otherwise it sorts
// by digits of the bins (a radix sort), the lowest digit first. A warp counts the digits of its
// samples; lanes with the same digit find each other with match_any. The samples of a digit keep
// their order: by warp, by 32 samples, by lane. Either way the order of the records is always the
// same, because atomics only count.
//
// A chunk that does not fit shared memory (large levels, very many queries) is sorted in batches:
// the block counts the samples of each bin first, and then knows where those of a batch go.
//
// Bound by: latency, of global memory, shared memory and barriers.
#include "backward/tiles.cuh"

// Macros besides those of tiles.cuh: THREADS; POINTS_PER_LOAD, 1, 2 or 4, which divides the points
// of each level; WIDE_KEYS: a level may have 2^16 - 1 bins or more.
constexpr int WARPS = THREADS / 32;
constexpr int DIGIT_BITS = HOST_DIGIT_BITS, DIGITS = 1 << DIGIT_BITS;

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
                int bins[N];
#pragma unroll
                for (int i = 0; i < N; i++) {
                    bins[i] = bin_of_location(levels, l, reference[u], xy[u][2 * i], xy[u][2 * i + 1]);
                }
                f(bins, index);
            }
        }
    }
};

// A sample of a batch: its bin, or NO_BIN, in the lower half; its index in the batch in the upper.
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
struct __align__(16) Sorting {
    u32 count[WARPS][DIGITS / 2]; // of samples, 16 bits each; later the place of the first one
    u32 of_warp[WARPS];
    u32 lowest, highest; // bins
    u32 pairs;           // of samples with the same bin
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

__device__ __forceinline__ u32 shared_bytes() {
    u32 bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

__device__ __forceinline__ u32 sum_of_warp(u32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(0xffffffffu, x);
#else
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
#endif
}

// The sum of a number per thread over the threads before this one, and `total`. Adds the sum over
// all threads to `total`. All threads call this together, and meet at a barrier before they call it
// again.
__device__ __forceinline__ u32 sum_before(Sorting &own, u32 x, u32 &total) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 sum = sum_up_to_lane(x);
    if (lane == 31) own.of_warp[warp] = sum;
    __syncthreads();
    u32 before = total + sum - x;
    for (u32 w = 0; w < WARPS; w++) {
        before += w < warp ? own.of_warp[w] : 0;
        total += own.of_warp[w];
    }
    return before;
}

// Turns the counts of digits into places: by digit, then by warp. A thread takes some digits, two
// per word: no sum runs over, because there are fewer than 2^16 samples. All threads call this
// together.
__device__ __forceinline__ void scan_counts(Sorting &own) {
    constexpr int WORDS = DIGITS / 2 < THREADS ? 1 : DIGITS / 2 / THREADS;
    const bool has_digits = threadIdx.x * WORDS < DIGITS / 2;
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
    u32 total = 0, sum = sum_before(own, all, total);
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

// The first of n sorted samples with this bin, or a later one.
__device__ __forceinline__ u32 first_with(const Key *keys, u32 n, u32 bin) {
    u32 begin = 0, end = n; // it is in between
    while (begin < end) {
        const u32 middle = (begin + end) / 2;
        if (bin_of_key(keys[middle]) < bin) begin = middle + 1; else end = middle;
    }
    return begin;
}

// Eight numbers of 16 bits.
__device__ __forceinline__ uint4 pack_eight(const u32 (&x)[8]) {
    return make_uint4(x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16);
}

// Stores the ends of 8 bins, of which the first is a multiple of 8.
__device__ __forceinline__ void store_eight(const Ends &ends, u32 bin, const u32 (&of_bin)[8]) {
    uint4 *to = reinterpret_cast<uint4 *>(&ends.at(int(bin)));
#if WIDE_ENDS
    to[0] = make_uint4(of_bin[0], of_bin[1], of_bin[2], of_bin[3]);
    to[1] = make_uint4(of_bin[4], of_bin[5], of_bin[6], of_bin[7]);
#else
    to[0] = pack_eight(of_bin);
#endif
}

// Stores the ends of all bins of a level. The n sorted samples have bins from `lowest` to before
// `highest`. A thread takes 8 bins. All threads call this together.
__device__ __forceinline__ void store_ends(const Ends &ends, const Key *keys, u32 n, u32 bins, u32 lowest,
                                           u32 highest, Sorting &own) {
    static_assert(sizeof(own.count) == 16 * THREADS, "room for 8 ends per thread");
    u16 *found = reinterpret_cast<u16 *>(own.count); // the end of each bin that has samples, or 0
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 done = 0; // samples of the bins before
#pragma unroll 1
    for (u32 section = 0; section < bins; section += 8 * THREADS) {
        const u32 bin = section + 8 * threadIdx.x, section_end = section + 8 * THREADS;
        u32 largest = done, word[4] = {0, 0, 0, 0}; // two ends per word
        if (section < highest && section_end > lowest) {
            uint4 &eight = *reinterpret_cast<uint4 *>(found + 8 * threadIdx.x);
            eight = make_uint4(0, 0, 0, 0);
            __syncthreads();
            const u32 end = section_end < highest ? first_with(keys, n, section_end) : n;
            for (u32 i = done + threadIdx.x; i < end; i += THREADS) {
                const u32 own_bin = bin_of_key(keys[i]);
                const bool is_last = i + 1 == n || bin_of_key(keys[i + 1]) != own_bin;
                if (is_last) found[own_bin - section] = u16(i + 1);
            }
            __syncthreads();
            done = end;
            word[0] = eight.x, word[1] = eight.y, word[2] = eight.z, word[3] = eight.w;
            // A bin without samples ends where the one before ends: ends never become smaller.
            u32 sum = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) sum = max(sum, max(word[i] & 0xffff, word[i] >> 16));
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const u32 other = __shfl_up_sync(0xffffffffu, sum, step);
                sum = lane >= step ? max(sum, other) : sum;
            }
            if (lane == 31) own.of_warp[warp] = sum;
            const u32 before = __shfl_up_sync(0xffffffffu, sum, 1);
            __syncthreads();
            largest = max(largest, lane == 0 ? 0 : before);
            for (u32 w = 0; w < warp; w++) largest = max(largest, own.of_warp[w]);
        }
        if (bin >= bins) continue;
        u32 of_bin[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            largest = max(largest, word[i / 2] >> (i % 2 * 16) & 0xffff), of_bin[i] = largest;
        }
        store_eight(ends, bin, of_bin);
    }
}

// Counts the samples of a chunk: the ends become the number of samples in the bins before. All
// threads call this together.
__device__ __forceinline__ void count_samples(const Args &args, const Levels &levels, const Work &work,
                                              const Ends &ends, u32 bins, Sorting &own) {
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
                if (bin[i] >= 0 && u32(bin[i]) - band < here) atomicAdd(&counters[bin[i] - band], 1u);
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
            if (bin_of_key(key[u]) != NO_BIN) records[place] = Record(first + u32(key[u] >> HALF));
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

// Sorts the n samples of a chunk by counting, and stores ends and records. Returns false, and
// leaves the keys as they were, where that would be slow or there is no room: with few bins, or if
// bins have many samples. All threads call this together.
//
//   1. count the samples of each bin. The counter's old value becomes the number of the sample in
//      its bin. Which sample of a bin gets which number varies from run to run
//   2. add up the counts: the ends of the bins
//   3. each sample takes its slot
//   4. each slot finds the place of its sample: it counts those of the same bin with a lower index.
//      So the order of the records is always the same.
__device__ __forceinline__ bool sort_by_counting(Sorting &own, u32 *keys, u32 batch_samples, u32 n,
                                                 u32 lowest, u32 highest, const Ends &ends,
                                                 u32 bins_of_level, Record *records) {
    const u32 bins = highest - lowest, base = lowest & ~7u, span = (highest - base + 7) & ~7u;
    // Sorting by one digit is faster, and so is sorting by two if bins have more than two samples.
    if (bins < DIGITS || n > 2 * bins || 2 * span + 6 * batch_samples > shared_bytes()) return false;
    u16 *slots = reinterpret_cast<u16 *>(keys + batch_samples);
    u16 *end_of = slots + batch_samples; // first the counts
    uint4 *eights = reinterpret_cast<uint4 *>(end_of);
    for (u32 i = threadIdx.x; i < span / 8; i += THREADS) eights[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    u32 pairs = 0;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        const u32 bin = keys[i] & 0xffff;
        if (bin == 0xffff) continue;
        const u32 bit = bin % 2 * 16; // base is even
        u32 *count = reinterpret_cast<u32 *>(end_of) + (bin - base) / 2;
        const u32 number = atomicAdd(count, 1u << bit) >> bit & 0xffff;
        keys[i] = number << 16 | bin;
        pairs += number;
    }
    __syncwarp();
    pairs = sum_of_warp(pairs);
    if (threadIdx.x % 32 == 0) atomicAdd(&own.pairs, pairs);
    __syncthreads();
    if (own.pairs > 4 * n) { // a slot would look at nine samples on average
        for (u32 i = threadIdx.x; i < n; i += THREADS) keys[i] = i << 16 | (keys[i] & 0xffff);
        __syncthreads();
        return false;
    }
    u32 done = 0; // samples of the bins before
#pragma unroll 1
    for (u32 section = 0; section < span; section += 8 * THREADS) {
        const u32 at = section + 8 * threadIdx.x;
        const uint4 eight = at < span ? eights[at / 8] : make_uint4(0, 0, 0, 0);
        const u32 word[4] = {eight.x, eight.y, eight.z, eight.w};
        u32 of_bin[8], all = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) all += word[i / 2] >> (i % 2 * 16) & 0xffff, of_bin[i] = all;
        const u32 before = sum_before(own, all, done);
        if (at < span) {
#pragma unroll
            for (int i = 0; i < 8; i++) of_bin[i] += before;
            eights[at / 8] = pack_eight(of_bin);
            store_eight(ends, base + at, of_bin);
        }
        __syncthreads();
    }
    for (u32 bin = 8 * threadIdx.x; bin < bins_of_level; bin += 8 * THREADS) {
        if (bin >= base && bin < base + span) continue;
        const u32 end = bin < base ? 0 : done;
        const u32 of_bin[8] = {end, end, end, end, end, end, end, end};
        store_eight(ends, bin, of_bin);
    }
#pragma unroll 4
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        const u32 key = keys[i], bin = key & 0xffff;
        if (bin != 0xffff) slots[end_of[bin - base] - 1 - (key >> 16)] = u16(i);
    }
    __syncthreads();
#pragma unroll 2
    for (u32 slot = threadIdx.x; slot < done; slot += THREADS) {
        const u32 i = slots[slot], bin = (keys[i] & 0xffff) - base;
        const u32 begin = bin > 0 ? end_of[bin - 1] : 0, end = end_of[bin];
        u32 place = begin;
        for (u32 other = begin; other < end; other++) place += slots[other] < i;
        records[place] = Record(i);
    }
    return true;
}

// Blocks per SM. Shared memory limits them on sm_90. An SM of sm_75 has 1024 threads.
constexpr int SORT_BLOCKS = VALUE == F64 ? 2 : __CUDA_ARCH__ >= 800 ? 5 : 4;

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
        work.for_each(args, levels, work.first + done, n, [&](const int (&bin)[Work::N], u32 index) {
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
        if (one_batch && sort_by_counting(own, keys, batch_samples, n, lowest, highest, ends,
                                          bins_of_level, records)) {
            return;
        }
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
            for (u32 i = threadIdx.x; i < with_bin; i += THREADS) records[i] = Record(keys[i] >> HALF);
        } else if (bins > 0) {
            store_batch(records, keys, n, done, ends);
        }
        __syncthreads();
        done += batch_samples;
    } while (done < work.count);
}
