// Level sizes in device memory, as frameworks keep them: the host need not wait for them.
//
// A warp reads the sizes, lane l those of level l, and makes a table in shared memory, behind the
// staging. Where queries are visited in input order, each warp makes its own table: no block
// barrier is needed, and the loads overlap with those of locations and weights. Strips need the
// sizes before the query is known, so all warps wait anyway: one warp makes the table of the block.
#pragma once
#include "common/args.cuh"
#include "common/level_table.cuh"

static_assert(!DEVICE_LEVELS || LEVELS <= 32, "a lane reads one level");

__device__ __forceinline__ bool makes_table() { return STRIP_HEIGHT == 0 || threadIdx.x < 32; }

// The sizes of the level of a lane, while they are loaded.
struct LoadedLevel {
    u64 height, width, start;
};

__device__ __forceinline__ u64 ld_level(const i64 *from) {
    u64 x;
    asm volatile("ld.global.nc.u64 %0, [%1];" : "=l"(x) : "l"(from));
    return x;
}

__device__ __forceinline__ LoadedLevel load_level(const Args &args) {
    LoadedLevel level{0, 0, 0};
#if DEVICE_LEVELS
    if (!makes_table()) return level;
    const int l = min(int(threadIdx.x % 32), LEVELS - 1);
    level.height = ld_level(args.shapes + 2 * l), level.width = ld_level(args.shapes + 2 * l + 1);
    level.start = ld_level(args.starts + l);
#endif
    return level;
}

// Writes the table. If a level reaches past the end of value, no sample counts there.
// STRIP_HEIGHT > 0: if the queries are not the pixels of the levels, first queries become -1.
#if DEVICE_LEVELS
__device__ __forceinline__ void write_table(const Args &args, const LoadedLevel &from) {
    const int l = threadIdx.x % 32;
    const u32 height = u32(from.height), width = u32(from.width), start = u32(from.start);
    const u32 pitch = width + 2 * RING;
    const bool legal = is_legal(from.height, from.width, from.start, args.positions);
    const u32 pixels = legal ? height * width : 0;
    u32 sum = pixels; // of the levels up to this one
    bool fits = true;
    if (STRIP_HEIGHT > 0) {
#pragma unroll
        for (int step = 1; step < LEVELS; step *= 2) {
            const u32 other = __shfl_up_sync(0xffffffffu, sum, step);
            sum += l >= step ? other : 0;
        }
        // The sum of all levels must be the number of queries. No sum runs over 32 bits unless one
        // before it is larger than that.
        fits = legal && sum <= u32(args.queries) && (l != LEVELS - 1 || sum == u32(args.queries));
        fits = __all_sync(0xffffffffu, l >= LEVELS || fits);
    }
    const bool thin = !RING && (height == 1 || width == 1);
    ReadLevel level;
    level.origin = legal ? int(start + RING * (pitch + 1)) : 0;
    level.pitch = int(pitch);
    level.row_pitch = legal && !thin ? int(pitch) * args.value.row_stride : 0;
    level.shift = pixels == 1 && start + 1 == args.positions;
    level.rows = legal ? float(height) : -1.0f, level.columns = legal ? float(width) : -1.0f;
    level.first_query = fits ? int(sum - pixels) : -1, level.width = int(width);
    if (l < LEVELS) read_levels()[l] = level;
}
#endif

// Makes the table and waits for it. Returns whether the queries are the pixels of the levels.
__device__ __forceinline__ bool publish_level(const Args &args, const LoadedLevel &from) {
#if DEVICE_LEVELS
    if (makes_table()) write_table(args, from);
    if (STRIP_HEIGHT == 0) {
        __syncwarp();
        return true;
    }
    __syncthreads();
    return read_levels()[0].first_query >= 0;
#else
    return true;
#endif
}
