// Sorting by counting, for bins with few samples.
//
//   1. count the samples of each bin. The counter's old value becomes the number of the sample in
//      its bin. Which sample of a bin gets which number varies from run to run
//   2. add up the counts: the ends of the bins
//   3. each sample takes its slot: the end of its bin minus its number
//   4. each slot finds the place of its sample: it counts those of the same bin with a lower index.
//      So the order of the records is always the same
#pragma once
#include "backward/sort_keys.cuh"
static_assert(!WIDE_KEYS, "keys have a number of 16 bits in the upper half");

// A chunk of `count` samples with bins from `lowest` to before `highest`. All threads call each
// function together.
struct CountingSort {
    Sorting &own;
    u32 *keys; // of the samples, in their order; there is room for `capacity`
    u32 capacity, count;
    u32 lowest, highest;

    // Counters begin at a multiple of 8 bins, and there are a multiple of 8.
    __device__ __forceinline__ u32 base() const { return lowest & ~7u; }
    __device__ __forceinline__ u32 span() const { return (highest - base() + 7) & ~7u; }
    // Behind the keys: the sample of each slot, and a counter per bin, which becomes its end.
    __device__ __forceinline__ u16 *slots() const {
        return reinterpret_cast<u16 *>(keys + capacity);
    }
    __device__ __forceinline__ u16 *ends() const { return slots() + capacity; }
    __device__ __forceinline__ uint4 *eights() const { return reinterpret_cast<uint4 *>(ends()); }

    // Sorting by one digit is faster, and so is sorting by two if bins have more than two samples.
    __device__ __forceinline__ bool pays() const {
        const u32 bins = highest - lowest;
        const bool fits = 2 * span() + 6 * capacity <= shared_bytes();
        return bins >= DIGITS && count <= 2 * bins && fits;
    }

    // Counts the bins. The upper half of a key becomes the sample's number in its bin. Returns the
    // pairs of samples with the same bin.
    __device__ __forceinline__ u32 count_bins() {
        for (u32 i = threadIdx.x; i < span() / 8; i += THREADS)
            eights()[i] = make_uint4(0, 0, 0, 0);
        __syncthreads();
        u32 pairs = 0;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < count; i += THREADS) {
            const u32 bin = bin_of_key(keys[i]);
            if (bin == NO_BIN) continue;
            const u32 number = add_to_half(reinterpret_cast<u32 *>(ends()), bin - base(), 1);
            keys[i] = make_key(int(bin), number);
            pairs += number;
        }
        __syncwarp();
        pairs = sum_of_warp(pairs);
        if (threadIdx.x % 32 == 0) atomicAdd(&own.pairs, pairs);
        __syncthreads();
        return own.pairs;
    }

    // Makes the keys as they were before.
    __device__ __forceinline__ void restore_keys() {
        for (u32 i = threadIdx.x; i < count; i += THREADS)
            keys[i] = make_key(int(bin_of_key(keys[i])), i);
        __syncthreads();
    }

    // Adds up the counts, and stores the ends of all bins of the level. Returns how many samples
    // have a bin.
    __device__ __forceinline__ u32 store_ends(const Ends &to, u32 bins_of_level) {
        u32 done = 0; // samples of the bins before
#pragma unroll 1
        for (u32 section = 0; section < span(); section += 8 * THREADS) {
            const u32 at = section + 8 * threadIdx.x;
            const uint4 eight = at < span() ? eights()[at / 8] : make_uint4(0, 0, 0, 0);
            const u32 word[4] = {eight.x, eight.y, eight.z, eight.w};
            u32 of_bin[8], all = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) all += half_of(word[i / 2], i), of_bin[i] = all;
            const u32 before = sum_before(own, all, done);
            if (at < span()) {
#pragma unroll
                for (int i = 0; i < 8; i++) of_bin[i] += before;
                eights()[at / 8] = pack_eight(of_bin);
                store_eight(to, base() + at, of_bin);
            }
            __syncthreads();
        }
        for (u32 bin = 8 * threadIdx.x; bin < bins_of_level; bin += 8 * THREADS) {
            if (bin >= base() && bin < base() + span()) continue;
            const u32 end = bin < base() ? 0 : done;
            const u32 of_bin[8] = {end, end, end, end, end, end, end, end};
            store_eight(to, bin, of_bin);
        }
        return done;
    }

    __device__ __forceinline__ void fill_slots() {
#pragma unroll 4
        for (u32 i = threadIdx.x; i < count; i += THREADS) {
            const u32 bin = bin_of_key(keys[i]), number = index_of_key(keys[i]);
            if (bin != NO_BIN) slots()[ends()[bin - base()] - 1 - number] = u16(i);
        }
        __syncthreads();
    }

    // Stores the records of the samples in the first `filled` slots.
    __device__ __forceinline__ void store_records(Record *records, u32 filled) {
#pragma unroll 2
        for (u32 slot = threadIdx.x; slot < filled; slot += THREADS) {
            const u32 i = slots()[slot], bin = bin_of_key(keys[i]) - base();
            const u32 begin = bin > 0 ? ends()[bin - 1] : 0, end = ends()[bin];
            u32 place = begin;
            for (u32 other = begin; other < end; other++) place += slots()[other] < i;
            records[place] = Record(i);
        }
    }

    // Sorts the samples, and stores ends and records. Returns false, and leaves the keys as they
    // were, where that would be slow or there is no room.
    __device__ __forceinline__ bool run(const Ends &to, u32 bins_of_level, Record *records) {
        if (!pays()) return false;
        if (count_bins() > 4 * count) { // a slot would look at nine samples on average
            restore_keys();
            return false;
        }
        const u32 filled = store_ends(to, bins_of_level);
        fill_slots();
        store_records(records, filled);
        return true;
    }
};
