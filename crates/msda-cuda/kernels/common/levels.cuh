// Levels: which level a sample lies on, and pixel coordinates.
//
// Macros: LEVELS, UNIFORM_POINTS (points per level, or 0 if levels differ), CORNERS, BORDER.
#pragma once

// The level of sample s. `args` has an array `level` with the first sample of each level.
template <typename Args> __device__ __forceinline__ int level_of(const Args &args, int s) {
    if (UNIFORM_POINTS > 0) return s / (UNIFORM_POINTS > 0 ? UNIFORM_POINTS : 1);
    int l = 0;
#pragma unroll
    for (int i = 1; i < LEVELS; i++) l = s >= args.level[i].first_sample ? i : l;
    return l;
}

// From a normalised coordinate to pixels, on an axis of `extent` pixels.
__device__ __forceinline__ float pixel_coordinate(float t, float extent) {
    float x = CORNERS ? t * (extent - 1) : t * extent - 0.5f;
    if (BORDER) x = fminf(fmaxf(x, 0.0f), extent - 1);
    return x;
}
