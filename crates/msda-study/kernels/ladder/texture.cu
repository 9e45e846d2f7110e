// texture: the four taps of a sample are weighted by the texture unit.
//
// A texture has four channels a texel, so value is first copied, level by level, into maps of four channels each, the
// maps of a plane (image and head) side by side and a few planes to a row:
//
//   . . . . . . . . . . .          a texture of one level; dots are texels that are always zero
//   . 0 0 0 . 1 1 1 . 2 ...        map 0: channels 0 to 3 of plane 0, map 1: channels 4 to 7 of it, ...
//   . 0 0 0 . 1 1 1 . 2 ...
//   . . . . . . . . . . .
//   . k k k . l l l . m ...        planes that come next
//
// One zero between two maps serves both. The copy writes the maps alone; the zeros are there from the beginning.
//
// A thread has a query and SHARE maps of its plane. It locates a sample once and fetches it from each.
//
// The unit's weights are multiples of 1/256, so results are only about so exact.
//
// Wins: where arithmetic is the limit and an error of some thousandths does not matter.
//
// Knobs: SHARE, BLOCK.
#include "ladder/ladder.cuh"

constexpr int MAPS = D / 4;                 // of a plane
constexpr int TEXEL = 4 * size_of<VALUE>;   // bytes
constexpr int PIECE = VEC < TEXEL ? VEC : TEXEL; // that a texel is copied by
constexpr int TURNS = MAPS / SHARE;         // threads of a query
constexpr int PARTS = SHARE * 4 / EACH;     // stores of a thread
static_assert(MAPS % SHARE == 0 && SHARE * 4 % EACH == 0, "");

// A level's texture: its texels, bytes from row to row, planes in a row of maps.
struct Texture {
    u64 handle;
    char *texels;
    int pitch, planes;
};

struct Args {
    Call call;
    Texture texture[LEVELS];
};

// One thread a pixel: blockIdx.y is the level.
extern "C" __global__ void __launch_bounds__(BLOCK) msda_texels(const __grid_constant__ Args args) {
    const Call &call = args.call;
    const Level &level = call.level[blockIdx.y];
    const Texture &texture = args.texture[blockIdx.y];
    const i64 pixels = i64(level.h) * level.w, all = pixels * call.images * call.heads;
    for (i64 i = i64(blockIdx.x) * BLOCK + threadIdx.x; i < all; i += i64(gridDim.x) * BLOCK) {
        const int plane = i / pixels, pixel = i % pixels, y = pixel / level.w, x = pixel % level.w;
        const int position = level.origin + y * level.pitch + x;
        const char *from = call.value.at(plane / call.heads, position, plane % call.heads);
        const i64 row = i64(plane / texture.planes) * (level.h + 1) + 1 + y;
        const i64 column = i64(plane % texture.planes) * MAPS * (level.w + 1) + 1 + x;
        char *to = texture.texels + row * texture.pitch + column * TEXEL;
#pragma unroll 8
        for (int map = 0; map < MAPS; map++) {
#pragma unroll
            for (int k = 0; k < TEXEL; k += PIECE) {
                store<PIECE>(to + i64(map) * (level.w + 1) * TEXEL + k, gather<PIECE>(from + map * TEXEL + k));
            }
        }
    }
}

__device__ __forceinline__ float4 fetch(u64 texture, float u, float v) {
    float4 texel;
    asm("tex.2d.v4.f32.f32 {%0, %1, %2, %3}, [%4, {%5, %6}];"
        : "=f"(texel.x), "=f"(texel.y), "=f"(texel.z), "=f"(texel.w)
        : "l"(texture), "f"(u), "f"(v));
    return texel;
}

extern "C" __global__ void __launch_bounds__(BLOCK) msda_forward(const __grid_constant__ Args args) {
    const Call &call = args.call;
    const int head = blockIdx.y, image = blockIdx.z, plane = image * call.heads + head;
    // Neighbours in a warp are neighbouring queries with the same maps.
    const i64 index = i64(blockIdx.x) * BLOCK + threadIdx.x;
    const int query = index % call.queries, turn = index / call.queries;
    if (turn >= TURNS) return;
    float sum[SHARE * 4];
#pragma unroll
    for (int c = 0; c < SHARE * 4; c++) sum[c] = 0;
#pragma unroll 2
    for (int s = 0; s < SAMPLES; s++) {
        const int l = level_of(call, s);
        const Level &level = call.level[l];
        const Texture &texture = args.texture[l];
        const Given one = given(call, image, query, head, s);
        const Spot at = spot(level, one);
        if (!at.there) continue;
        // The centre of a texel is half a texel in. Whole numbers are added first: they are exact.
        const int column = (plane % texture.planes * MAPS + turn * SHARE) * (level.w + 1) + 1 + at.i;
        const int row = plane / texture.planes * (level.h + 1) + 1 + at.j;
        const float v = float(row) + (at.y + 0.5f);
        float4 texel[SHARE];
#pragma unroll
        for (int k = 0; k < SHARE; k++) {
            texel[k] = fetch(texture.handle, float(column + k * (level.w + 1)) + (at.x + 0.5f), v);
        }
#pragma unroll
        for (int k = 0; k < SHARE; k++) {
            sum[4 * k] = fmaf(one.weight, texel[k].x, sum[4 * k]);
            sum[4 * k + 1] = fmaf(one.weight, texel[k].y, sum[4 * k + 1]);
            sum[4 * k + 2] = fmaf(one.weight, texel[k].z, sum[4 * k + 2]);
            sum[4 * k + 3] = fmaf(one.weight, texel[k].w, sum[4 * k + 3]);
        }
    }
    char *to = call.output.at(image, query, head) + turn * SHARE * TEXEL;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        float some[EACH];
#pragma unroll
        for (int c = 0; c < EACH; c++) some[c] = sum[part * EACH + c];
        write(to + part * VEC, some);
    }
}
