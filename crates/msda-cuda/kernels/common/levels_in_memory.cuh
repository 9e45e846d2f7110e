// Level sizes in device memory, as frameworks keep them: the host need not wait for them.
//
// Each block reads the sizes once and makes the level table in its shared memory, behind the
// staging. The loads are issued first and awaited late, so that they overlap with the loads of
// locations and weights.
#pragma once
#include "common/args.cuh"

// The sizes of one level, of the thread with its number, while they are loaded.
struct LoadedLevel {
    i64 height, width, start;
    i64 first_query; // the sum of the levels before; for strips only
};

__device__ __forceinline__ LoadedLevel load_level(const Args &args) {
    LoadedLevel level{0, 0, 0, 0};
#if DEVICE_LEVELS
    const int l = threadIdx.x;
    if (l < LEVELS) {
        level.height = args.shapes[2 * l], level.width = args.shapes[2 * l + 1];
        level.start = args.starts[l];
        for (int k = 0; STRIP_HEIGHT > 0 && k < l; k++) {
            level.first_query += args.shapes[2 * k] * args.shapes[2 * k + 1];
        }
    }
#endif
    return level;
}

// Writes the table and waits for it. A level that reaches past the end of value gets sizes at which
// no sample counts. Returns whether the queries are the pixels of the levels.
__device__ __forceinline__ bool publish_level(const Args &args, const LoadedLevel &from) {
#if DEVICE_LEVELS
    const int l = threadIdx.x;
    bool fits = true;
    if (l < LEVELS) {
        const i64 limit = 1 << 24, pitch = from.width + 2 * RING;
        const bool legal = from.height > 0 && from.width > 0 && from.height <= limit &&
                           from.width <= limit && from.start >= 0 &&
                           from.start <= args.positions &&
                           (from.height + 2 * RING) * pitch <= args.positions - from.start;
        Level level;
        level.height = legal ? int(from.height) : 0, level.width = legal ? int(from.width) : 0;
        level.rows = legal ? float(level.height) : -1.0f;
        level.columns = legal ? float(level.width) : -1.0f;
        level.origin = legal ? int(from.start + RING * (pitch + 1)) : 0;
        level.pitch = legal ? int(pitch) : 0;
        const bool thin = !RING && (level.height == 1 || level.width == 1);
        level.row_pitch = thin ? 0 : level.pitch * args.value.row_stride;
        level.first_sample = args.level[l].first_sample;
        level.first_query = int(from.first_query);
        level.inverse_strip = 1.0f / float((STRIP_HEIGHT > 0 ? STRIP_HEIGHT : 1) * level.width);
#if THIN_LEVELS
        level.shift = level.height == 1 && level.width == 1 && level.origin + 1 == args.positions;
#endif
        fits = legal &&
               (l + 1 < LEVELS || from.first_query + from.height * from.width == args.queries);
        const_cast<Level &>(level_at(args, l)) = level;
    }
    return __syncthreads_and(fits);
#else
    return true;
#endif
}
