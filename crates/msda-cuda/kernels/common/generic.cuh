// What the generic kernels share: numbers of any type, and the place and weight of a sample. All
// indices have 64 bits.
//
// Macros: VALUE LOCATION WEIGHT, RING, NEAREST BORDER CORNERS, FUSED: see common/args.cuh.
// INLINE_LEVELS: see common/level_table.cuh.
#pragma once
#include "common/level_table.cuh"
#include "common/softmax.cuh"
#include "common/taps.cuh"
#include "common/tensor.cuh"

typedef Element<VALUE>::Wide Wide;
typedef SoftmaxOf<Wide> Softmax;

template <int T> __device__ __forceinline__ Wide load(const char *from, i64 i) {
    return Wide(widen<T>(reinterpret_cast<const typename Element<T>::Stored *>(from)[i]));
}

// The softmax of logits. LANES threads that follow each other call this together.
template <int LANES>
__device__ __forceinline__ Softmax softmax_of_all(const char *logits, i64 samples) {
    return softmax_of<Wide, LANES>(samples, [&](i64 s) { return load<WEIGHT>(logits, s); });
}

// A coordinate in pixels. `slope`: its change per unit of the normalised coordinate; 0 if clamped.
__device__ __forceinline__ Wide pixel_coordinate(Wide t, i64 extent, Wide &slope) {
    slope = Wide(CORNERS ? extent - 1 : extent);
    Wide x = CORNERS ? t * Wide(extent - 1) : t * Wide(extent) - Wide(0.5);
    if (BORDER) {
        if (!(x > 0 && x < Wide(extent - 1))) slope = 0;
        x = x <= 0 ? 0 : x >= Wide(extent - 1) ? Wide(extent - 1) : x;
    }
    return x;
}

// A sample of a query: where it is on its level, in pixels, and its weight.
struct Sample {
    Wide x, y, weight;
    Wide slope_x, slope_y; // see pixel_coordinate
    Wide scale_x, scale_y; // FUSED: change of the location per unit of the offset
    bool finite, counts;

    // `reference`: FUSED: the query's reference point on the level.
    __device__ __forceinline__ Sample(const LevelSize &level, const char *locations,
                                      const char *weights, i64 s, const char *reference,
                                      const Softmax &softmax) {
        x = load<LOCATION>(locations, 2 * s), y = load<LOCATION>(locations, 2 * s + 1);
        weight = load<WEIGHT>(weights, s), scale_x = 1, scale_y = 1;
        if (FUSED) {
            scale_x = 1 / Wide(level.width), scale_y = 1 / Wide(level.height);
            if (FUSED == 4) {
                const Wide share = Wide(0.5) / Wide(level.points());
                scale_x = load<LOCATION>(reference, 2) * share;
                scale_y = load<LOCATION>(reference, 3) * share;
            }
            x = load<LOCATION>(reference, 0) + x * scale_x;
            y = load<LOCATION>(reference, 1) + y * scale_y;
            weight = softmax.weight_of(weight);
        }
        finite = x - x == 0 && y - y == 0; // infinity - infinity is NaN
        x = pixel_coordinate(x, level.width, slope_x);
        y = pixel_coordinate(y, level.height, slope_y);
        if (NEAREST) x = rint(x), y = rint(y);
        counts = level.legal && finite && x > -1 && y > -1 && x < Wide(level.width) &&
                 y < Wide(level.height);
    }
};
