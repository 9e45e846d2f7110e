// Walking: which query a lane group processes.
//
//   input order                  q is the query
//   strips (STRIP_HEIGHT > 0)    queries are the pixels of the levels; down the columns of strips
//                                of STRIP_HEIGHT image rows, so that a tile is nearly a square:
//
//                                  0  8 16 ..     a tile of 64 queries covers 8 x 8 pixels
//                                  1  9 17 ..
//                                  .  .  .
//                                  7 15 23 ..
//
//   list (ORDERED)               a list in global memory, which order.cu wrote
//   sorted (SORTED)              a list in shared memory, which the block made: resident.cu
#pragma once
#include "common/args.cuh"

// The query at index q of an image's walk, or -1. SORTED: `list` has the order of the queries from
// `list_begin` on. `pixels`: false if the level sizes do not fit the queries after all.
__device__ __forceinline__ int query_of(const Args &args, int image, int q, int list_begin,
                                        const u16 *list, bool pixels = true) {
    if (q >= args.queries) return -1;
    if (SORTED) return list_begin + list[q - list_begin];
    if (ORDERED) return args.order[i64(image) * args.queries + q];
    if (STRIP_HEIGHT == 0 || !pixels) return q;
    int l = 0;
#pragma unroll
    for (int k = 1; k < LEVELS; k++) l = q >= level_at(args, k).first_query ? k : l;
    const Level &level = level_at(args, l);
    const int pixel = q - level.first_query, strip_pixels = STRIP_HEIGHT * level.width;
    int strip = int((float(pixel) + 0.5f) * level.inverse_strip);
    // The product of floats may be off by one strip if a level has many pixels.
    strip += pixel - strip * strip_pixels >= strip_pixels ? 1
             : pixel - strip * strip_pixels < 0           ? -1
                                                          : 0;
    // The last strip may be lower.
    const int in_strip = pixel - strip * strip_pixels;
    const int height = min(STRIP_HEIGHT, level.height - strip * STRIP_HEIGHT);
    const int x = height == STRIP_HEIGHT ? in_strip / (STRIP_HEIGHT > 0 ? STRIP_HEIGHT : 1)
                                         : in_strip / height;
    const int y = strip * STRIP_HEIGHT + in_strip - x * height;
    return level.first_query + y * level.width + x;
}
