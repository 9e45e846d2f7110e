// Textures of value: one per level, which holds the maps of all planes (image and head).
//
// A map is a level with CHANNELS_PER_TEXEL channels of one plane. The maps of a plane lie side by
// side, and several planes in a row of maps:
//
//   . . . . . . . . . . .          dots are texels that are always zero
//   . 0 0 0 . 1 1 1 . 2 ...        map 0: the first channels of plane 0; map 1: the next
//   . 0 0 0 . 1 1 1 . 2 ...
//   . . . . . . . . . . .
//   . k k k . l l l . m ...        the next planes
//
// One zero texel between two maps serves both. The copy writes the maps only; the memory starts
// with zeros.
//
// Macros beside those of ladder.cuh: THREADS; CHANNELS_PER_TEXEL (1 or 4).
#pragma once
#include "ladder/ladder.cuh"

constexpr int MAPS = D / CHANNELS_PER_TEXEL; // per plane
constexpr int TEXEL_BYTES = CHANNELS_PER_TEXEL * size_of<VALUE>;
constexpr int COPY_BYTES = VEC < TEXEL_BYTES ? VEC : TEXEL_BYTES; // per load of the copy

struct Texture {
    u64 handle;
    char *texels;
    int pitch;          // bytes from texel row to texel row
    int planes_per_row; // in a row of maps
};

// Copies the level blockIdx.y; one thread per pixel.
__device__ __forceinline__ void copy_texels(const Call &call, const Texture &texture) {
    const Level &level = call.level[blockIdx.y];
    const i64 pixels = i64(level.height) * level.width, all = pixels * call.images * call.heads;
    for (i64 i = i64(blockIdx.x) * THREADS + threadIdx.x; i < all; i += i64(gridDim.x) * THREADS) {
        const int plane = i / pixels, pixel = i % pixels, y = pixel / level.width,
                  x = pixel % level.width;
        const int position = level.origin + y * level.pitch + x;
        const char *from = call.value.at(plane / call.heads, position, plane % call.heads);
        const i64 row = i64(plane / texture.planes_per_row) * (level.height + 1) + 1 + y;
        const i64 column = i64(plane % texture.planes_per_row) * MAPS * (level.width + 1) + 1 + x;
        char *to = texture.texels + row * texture.pitch + column * TEXEL_BYTES;
#pragma unroll 8
        for (int map = 0; map < MAPS; map++) {
#pragma unroll
            for (int k = 0; k < TEXEL_BYTES; k += COPY_BYTES) {
                store<COPY_BYTES>(to + i64(map) * (level.width + 1) * TEXEL_BYTES + k,
                                  ld_global<COPY_BYTES>(from + map * TEXEL_BYTES + k));
            }
        }
    }
}

// The texel of a map at a located sample, interpolated. Channels that a texel lacks are 0.
__device__ __forceinline__ float4 fetch(const Texture &texture, const Level &level, int plane,
                                        int map, const Located &at) {
    // A texel's centre is half a texel in. Integers are added first: they are exact.
    const int beside = plane % texture.planes_per_row * MAPS + map;
    const int column = beside * (level.width + 1) + 1 + at.i;
    const int row = plane / texture.planes_per_row * (level.height + 1) + 1 + at.j;
    float4 texel;
    asm("tex.2d.v4.f32.f32 {%0, %1, %2, %3}, [%4, {%5, %6}];"
        : "=f"(texel.x), "=f"(texel.y), "=f"(texel.z), "=f"(texel.w)
        : "l"(texture.handle), "f"(float(column) + (at.x + 0.5f)), "f"(float(row) + (at.y + 0.5f)));
    return texel;
}
