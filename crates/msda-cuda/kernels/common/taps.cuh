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

// Calls f(tap) for each pixel around (x, y) that is on a map of `width` x `height` pixels. The
// sizes are read where they are compared: copies of them cost the forward kernels registers.
template <typename T, typename Map, typename F>
__device__ __forceinline__ void for_each_tap(T x, T y, const Map &map, F f) {
    typedef decltype(map.width) I;
    const T left = floor(x), top = floor(y);
    const T dx = x - left, dy = y - top;
#pragma unroll
    for (int k = 0; k < (NEAREST ? 1 : 4); k++) {
        const bool right = k & 1, below = k >> 1;
        const I column = I(left) + right, row = I(top) + below;
        if (column < 0 || row < 0 || column >= map.width || row >= map.height) continue;
        const T share_x = NEAREST ? 1 : right ? dx : 1 - dx;
        const T share_y = NEAREST ? 1 : below ? dy : 1 - dy;
        f(Tap<T, I>{column, row, right, below, share_x, share_y});
    }
}
