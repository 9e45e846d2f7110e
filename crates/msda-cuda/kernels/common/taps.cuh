// The pixels that a sample touches, by the definition.
//
// Macro: NEAREST.
#pragma once

// A pixel on the map that a sample touches, and its share of the sample on each axis.
template <typename T, typename I> struct Tap {
    I column, row;
    bool right, below; // which of the four pixels
    T share_x, share_y;
    __device__ __forceinline__ T share() const { return share_x * share_y; }
};

// Calls f(tap) for each pixel around (x, y) that is on a map of width x height pixels.
template <typename T, typename I, typename F>
__device__ __forceinline__ void for_each_tap(T x, T y, I width, I height, F f) {
    const T left = floor(x), top = floor(y);
    for (int k = 0; k < (NEAREST ? 1 : 4); k++) {
        const bool right = k & 1, below = k >> 1;
        const I column = I(left) + right, row = I(top) + below;
        if (column < 0 || row < 0 || column >= width || row >= height) continue;
        T share_x = 1, share_y = 1;
        if (!NEAREST) {
            share_x = right ? x - left : 1 - (x - left);
            share_y = below ? y - top : 1 - (y - top);
        }
        f(Tap<T, I>{column, row, right, below, share_x, share_y});
    }
}
