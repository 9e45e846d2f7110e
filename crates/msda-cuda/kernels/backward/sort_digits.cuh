// Sorting by digits of the bins (a radix sort), the lowest digit first. A warp counts the digits of
// its samples; lanes with the same digit find each other with match_any. The samples of a digit
// keep their order: by warp, by 32 samples, by lane.
#pragma once
#include "backward/sort_keys.cuh"

// Turns the counts of digits into places: by digit, then by warp. A thread takes some digits, two
// per word. All threads call this together.
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
        all += half_of(of_digits[i], 0) + half_of(of_digits[i], 1);
    }
    u32 total = 0, sum = sum_before(own, all, total);
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        const u32 first = half_of(of_digits[i], 0), second = half_of(of_digits[i], 1);
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
__device__ __forceinline__ void sort_by_digit(Sorting &own, const Key *from, Key *to, u16 *ranks,
                                              u32 n, u32 lowest, u32 bins, int shift) {
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
            before = add_to_half(own.count[warp], digit, u32(__popc(same)));
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
        if (bin_of_key(keys[middle]) < bin) begin = middle + 1;
        else end = middle;
    }
    return begin;
}

// Stores the ends of all bins of a level. The n sorted samples have bins from `lowest` to before
// `highest`. A thread takes 8 bins. All threads call this together.
__device__ __forceinline__ void store_ends(const Ends &ends, const Key *keys, u32 n, u32 bins,
                                           u32 lowest, u32 highest, Sorting &own) {
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
            for (int i = 0; i < 4; i++)
                sum = max(sum, max(half_of(word[i], 0), half_of(word[i], 1)));
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
            largest = max(largest, half_of(word[i / 2], i)), of_bin[i] = largest;
        }
        store_eight(ends, bin, of_bin);
    }
}
