// The table of levels as the host passes it, and which levels count.
//
// Macros: RING, INLINE_LEVELS (entries of the table in the argument; 0: it is in device memory).
#pragma once
#include "common/types.cuh"
static_assert(RING == 0 || RING == 1, "pixels around a level");

// An entry of the table.
struct LevelEntry {
    i64 height, width, start, first_sample; // start: the first position
};

// A level is at most so many pixels high and wide.
constexpr u64 MAX_EXTENT = 1 << 24;

// Whether a level lies within value. If not, no sample counts there. Sizes that frameworks keep in
// device memory can be anything. Negative numbers become very large ones, which are refused.
__device__ __forceinline__ bool is_legal(u64 height, u64 width, u64 start, u64 positions) {
    return height - 1 < MAX_EXTENT && width - 1 < MAX_EXTENT && start <= positions &&
           u64(u32(height) + 2 * RING) * (u32(width) + 2 * RING) <= positions - start;
}

// The size of level l, and its samples. `args` has:
//   shapes, starts   (height, width) and first position of each level; null if the table has them
//   table, level     the table: in device memory, or in the argument
//   positions
struct LevelSize {
    i64 height, width, start;
    i64 first_sample, end_sample;
    bool legal;

    template <typename Args>
    __device__ __forceinline__ LevelSize(const Args &args, i64 l, i64 levels, i64 samples) {
        const LevelEntry *table = INLINE_LEVELS > 0 ? args.level : args.table;
        height = args.shapes ? args.shapes[2 * l] : table[l].height;
        width = args.shapes ? args.shapes[2 * l + 1] : table[l].width;
        start = args.starts ? args.starts[l] : table[l].start;
        first_sample = table[l].first_sample;
        end_sample = l + 1 < levels ? table[l + 1].first_sample : samples;
        legal = is_legal(height, width, start, args.positions);
    }
    // From image row to image row, in positions; the position of pixel (0, 0).
    __device__ __forceinline__ i64 pitch() const { return width + 2 * RING; }
    __device__ __forceinline__ i64 origin() const { return start + RING * (pitch() + 1); }
    __device__ __forceinline__ i64 points() const { return end_sample - first_sample; }
};
